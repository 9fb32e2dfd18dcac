"""Arguments of the operators of `gluon_kernels` that are no tensors: each is refused by the documented error, before any launch."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import gluon_kernels
from gluon_core.errors import ArgumentError, DtypeError, GluonError
from tests.kernels.launched import on_target
from tests.kernels.routes import plain, route

pytestmark = pytest.mark.once

OTHERS = {
    "a list": [1.0, 2.0],
    "None": None,
    "an array": np.ones((4, 4)),
    "a string": "x",
    "an integer": 3,
}
SPARSE = {
    "sparse": lambda x: x.to_sparse(),
    "sparse by rows": lambda x: x.to_sparse_csr() if x.ndim >= 2 else None,
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "of mkldnn": lambda x: x.float().to_mkldnn(),
}
ODD = {
    "complex": lambda x: x.float().to(torch.complex64),
    "float64": lambda x: x.double(),
    "bool": lambda x: x.float() > 0,
    "of 8 bits": lambda x: x.float().to(torch.float8_e5m2),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "scalar": lambda x: torch.ones((), dtype=x.dtype),
    "of six dimensions": lambda x: x.expand(*[1] * (6 - x.ndim), *x.shape),
    "without elements": lambda x: x[..., :0] if x.ndim else None,
    "elsewhere": lambda x: x.to("meta"),
}
OPERATORS = [name for name in gluon_kernels.__all__ if inspect.isfunction(getattr(gluon_kernels, name))]  # fmt: skip


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def eight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def of(kind: Any, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=kind)


def arguments() -> dict[str, dict[str, Any]]:
    """Return arguments that each operator takes, all of its tensors among them."""
    heads, recurrent, gates = half(1, 2, 8, 16), half(1, 8, 2, 16), torch.zeros(1, 8, 2)
    qkv, linear = dict.fromkeys("qkv", heads), dict.fromkeys("qkv", recurrent)
    state = torch.zeros(1, 2, 16, 16)
    pages = {"page_table": of(torch.int32, 0)[None], "lengths": of(torch.int32, 8)}
    product = {"a": half(8, 16), "b": half(16, 8)}
    biased = {**product, "bias": half(8), "out": half(8, 8)}
    one, labels = torch.ones(()), of(torch.int64, 1, 2)
    packed = dict.fromkeys("qkv", half(8, 2, 16))
    of_fp8 = dict.fromkeys("qkv", eight(1, 2, 8, 64))
    rows = {"x": half(2, 64), "weight": half(64), "residual": half(2, 64), "out": half(2, 64)}
    experts = {"gate_up": half(2, 8, 16), "down": half(2, 8, 8)}
    return {
        "attention": {**qkv, "sinks": half(2), "out": half(1, 2, 8, 16)},
        "attention_decode": {"q": half(1, 2, 16), "k_cache": half(1, 8, 2, 16), "v_cache": half(1, 8, 2, 16), **pages, "sinks": half(2)},
        "attention_fp8": {**of_fp8, **dict.fromkeys(("q_scale", "k_scale", "v_scale"), torch.ones(1, 2))},
        "attention_varlen": {**packed, **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), of(torch.int32, 0, 8)), "sinks": half(2), "out": half(8, 2, 16)},
        "bmm": {"a": half(2, 8, 16), "b": half(2, 16, 8), "bias": half(8), "out": half(2, 8, 8)},
        "cross_entropy": {"x": half(2, 64), "labels": labels},
        "cumsum": {"x": half(2, 64)},
        "gated_delta_rule": {**linear, "g": gates, "beta": gates, "initial_state": state},
        "gated_linear_attention": {**linear, "g": gates, "initial_state": state},
        "grouped_matmul": {"a": half(8, 16), "b": half(2, 16, 8), "offs": of(torch.int32, 4, 8), "out": half(8, 8)},
        "kda": {**linear, "g": torch.zeros(1, 8, 2, 16), "beta": gates, "initial_state": state},
        "layer_norm": {**rows, "bias": half(64)},
        "linear": {"x": half(2, 64), "weight": torch.ones(8, 64, dtype=torch.int8), "bias": half(8), "scales": half(8), "out": half(2, 8)},
        "linear_cross_entropy": {"x": half(2, 64), "weight": half(8, 64), "labels": labels},
        "matmul": biased,
        "matmul_batch_invariant": product,
        "matmul_fp8": {"a": eight(8, 16), "b": eight(16, 8), "a_scale": one, "b_scale": one, "out": half(8, 8)},
        "mla_decode": {"q": half(1, 2, 80), "cache": half(1, 8, 80), **pages, "latent": 64},
        "moe": {"x": half(2, 8), "weights": torch.ones(2, 1), "experts": of(torch.int32, 0, 1)[:, None], **experts, "out": half(2, 8)},
        "quantize": {"x": half(2, 64)},
        "rms_norm": rows,
        "rotary": {"x": half(1, 8, 2, 16), "cos": half(8, 8), "sin": half(8, 8)},
        "softmax": {"x": half(2, 64), "out": half(2, 64)},
        "ssd": {"x": recurrent, "dt": gates, "a": -torch.ones(2), "b": half(1, 8, 1, 16), "c": half(1, 8, 1, 16), "d": torch.ones(2),
                "dt_bias": torch.ones(2), "initial_state": state},
        "swiglu": {"gate": half(2, 64), "up": half(2, 64)},
        "topk": {"x": half(2, 64), "k": 3},
    }  # fmt: skip


ARGUMENTS = arguments()


def as_on_a_gpu():
    """Let operators take their way past the dispatcher of torch, which plain tensors on a GPU take."""
    ours = [module for name, module in sys.modules.items() if name.startswith("gluon_kernels")]
    ways = {"is_plain": plain, "route": route}
    return [
        patch.object(m, name, way) for m in ours for name, way in ways.items() if hasattr(m, name)
    ]


def test_every_operator_is_here():
    assert sorted(ARGUMENTS) == sorted(OPERATORS) and len(OPERATORS) == 26


@contextlib.contextmanager
def taking(way: str):
    """Run operators on the simulator, by the way that plain tensors on a GPU take or by torch's dispatcher."""
    with on_target("sim:sm_90"), contextlib.ExitStack() as stack:
        for one in as_on_a_gpu() if way == "past the dispatcher" else []:
            stack.enter_context(one)
        yield


WAYS = pytest.mark.parametrize("way", ["past the dispatcher", "by the dispatcher"])


@WAYS
@pytest.mark.parametrize("operator", OPERATORS)
def test_tensors_without_strides(operator, way):
    function, right = getattr(gluon_kernels, operator), ARGUMENTS[operator]
    with taking(way):
        for name, x in right.items():
            for kind, convert in SPARSE.items() if isinstance(x, torch.Tensor) else ():
                try:
                    value = convert(x)
                except (RuntimeError, NotImplementedError):  # torch has none of this dtype
                    continue
                if value is None:
                    continue
                with pytest.raises(ArgumentError, match=f"{name}: .* takes dense tensors; expected layout torch.strided, got .*"):  # fmt: skip
                    function(**{**right, name: value})
                    pytest.fail(f"{operator} took a tensor {kind} for {name}")


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("operator", OPERATORS)
def test_odd_tensors(operator):
    """Each is taken, or refused before a launch by an error that names an argument and what it should be."""
    function, right = getattr(gluon_kernels, operator), ARGUMENTS[operator]
    parameters = inspect.signature(function).parameters
    with on_target("sim:sm_90"):
        for name, x in right.items():
            for kind, convert in ODD.items() if isinstance(x, torch.Tensor) else ():
                value = convert(x)
                if value is None:
                    continue
                try:
                    function(**{**right, name: value})
                except GluonError as error:
                    text = f"{operator} of {name} {kind}: {error}"
                    named = str(error).partition(": ")[0].split(", ")
                    assert set(named) <= set(parameters), text
                    assert "expected" in str(error) or kind == "elsewhere", text


@WAYS
@pytest.mark.parametrize("operator", OPERATORS)
def test_settings_of_another_type(operator, way):
    function, right = getattr(gluon_kernels, operator), ARGUMENTS[operator]
    settings = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if "Tensor" not in str(parameter.annotation) and name != "score_args"
    }
    right = {name: x for name, x in right.items() if name != "out"}
    with taking(way):
        for name, parameter in settings.items():
            values = [object(), [2.0], {}, print if name != "score_mod" else 2.0]
            if parameter.default is not None and "Optional" not in str(parameter.annotation):
                values.append(None)
            for value in values:
                with pytest.raises(GluonError, match=rf"(?s)^{name}: .*(expected|takes) .*got"):
                    function(**{**right, name: value})
                    pytest.fail(f"{operator} took {value} for {name}")


@WAYS
@pytest.mark.parametrize("operator", OPERATORS)
def test_arguments_that_are_no_tensors(operator, way):
    function, right = getattr(gluon_kernels, operator), ARGUMENTS[operator]
    parameters = inspect.signature(function).parameters
    tensors = [name for name, x in right.items() if isinstance(x, torch.Tensor)]
    assert {n for n, p in parameters.items() if "Tensor" in str(p.annotation)} - {*tensors} <= {
        "out"
    }
    with taking(way):
        for name in tensors:
            for kind, value in OTHERS.items():
                if value is None and parameters[name].default is None:
                    continue
                with pytest.raises(DtypeError, match=f"(?s){name}: .* takes tensors.*a torch.Tensor"):  # fmt: skip
                    function(**{**right, name: value})
                    pytest.fail(f"{operator} took {kind} for {name}")


@pytest.mark.sampled(13)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_other_arguments_are_right(operator):
    """Each call of the test above fails for the one argument that is no tensor."""
    with on_target("sim:sm_90"):
        getattr(gluon_kernels, operator)(**ARGUMENTS[operator])
