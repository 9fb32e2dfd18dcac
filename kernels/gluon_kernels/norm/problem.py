"""The cases of softmax, norms and cross entropy, for tests and benchmarks."""

from __future__ import annotations

import importlib
import random
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.norm.gated import swiglu
from gluon_kernels.norm.linear_loss import linear_cross_entropy
from gluon_kernels.norm.loss import cross_entropy
from gluon_kernels.norm.ops import layer_norm, rms_norm, softmax
from gluon_kernels.problem import Problem, Shape, with_gradients

__all__ = [
    "CROSS_ENTROPY",
    "LAYER_NORM",
    "LINEAR_CROSS_ENTROPY",
    "PROBLEMS",
    "RMS_NORM",
    "SOFTMAX",
    "SWIGLU",
    "WITH_GRADIENTS",
]

_ELEMENTS = 2**28


def draw_rows(draw: random.Random) -> Shape:
    """Draw rows and columns: uniform in the logarithm, in three cases of four a multiple of 8, 64 or 128 columns."""
    unit = draw.choice((1, 8, 64, 128))
    columns = max(unit, int(2 ** draw.uniform(6, 17.3)) // unit * unit)
    most = min(_ELEMENTS // columns, 2**17)
    least = min(most, max(1, 2**20 // columns))
    rows = int(2 ** draw.uniform(least.bit_length() - 1, most.bit_length() - 1))
    return {"rows": max(1, rows), "columns": columns, "dtype": "bfloat16"}


def matrix(shape: Shape, device: Any) -> Tensor:
    """Return random rows; with `apart`, columns of a wider matrix."""
    wide = shape["columns"] + shape.get("apart", 0)
    x = torch.randn(shape["rows"], wide, device=device).to(getattr(torch, shape["dtype"]))
    return x[:, : shape["columns"]]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.device.type == "cpu" else torch.float32)


def _bytes(matrices: float) -> Callable[[Shape], float]:
    def moved(shape: Shape) -> float:
        size = torch.empty((), dtype=getattr(torch, shape["dtype"])).element_size()
        return float(matrices * size * shape["rows"] * shape["columns"])

    return moved


def _rows_only(shape: Shape, device: Any) -> dict[str, Any]:
    return {"x": matrix(shape, device)}


def _norm_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    arguments = {"x": matrix(shape, device)}
    dtype = getattr(torch, shape["dtype"])
    for name in ("weight", "bias"):
        if name == "weight" or shape.get("bias"):
            arguments[name] = torch.randn(shape["columns"], device=device).to(dtype)
    if shape.get("residual"):
        arguments["residual"] = matrix(shape, device)
    return arguments


def _norm_reference(centred: bool) -> Callable[..., Any]:
    def reference(
        x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, residual: Optional[Tensor] = None
    ) -> Any:
        summed = x if residual is None else (x.float() + residual.float()).to(x.dtype)
        y, w = _wide(summed), _wide(weight)
        if centred:
            b = None if bias is None else _wide(bias)
            result = F.layer_norm(y, y.shape[-1:], w, b, 1e-5)
        else:
            result = F.rms_norm(y, y.shape[-1:], w, 1e-6)
        return result if residual is None else (result, summed)

    return reference


def _loss_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    labels = torch.randint(0, shape["columns"], (shape["rows"],), device=device)
    labels[::5] = -100
    return {
        "x": matrix(shape, device),
        "labels": labels,
        "reduction": shape.get("reduction", "none"),
    }


def _loss_reference(x: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(_wide(x), labels, reduction=reduction)


def _case(rows: int, columns: int, dtype: str = "bfloat16", **more: Any) -> Shape:
    return {"rows": rows, "columns": columns, "dtype": dtype, **more}


def _quack(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of QuACK (`quack-kernels`), such as "softmax.softmax"."""
    module, name = function.split(".")
    return getattr(importlib.import_module(f"quack.{module}"), name)(*arguments, **options)


def _quack_loss(x: Tensor, labels: Tensor, reduction: str) -> Tensor:
    if reduction == "none" and not x.requires_grad:
        loss: Tensor = _quack("cross_entropy.cross_entropy_fwd", x, labels)
        return loss
    loss = _quack("cross_entropy.cross_entropy", x, labels, reduction=reduction)
    return loss


NAMED = [
    _case(rows, columns)
    for rows, columns in (
        (16384, 4096), (8192, 5120), (4096, 12288), (2048, 50304), (1024, 131072), (65536, 256),
    )
]  # fmt: skip

SOFTMAX = Problem(
    name="softmax",
    op=softmax,
    arguments=_rows_only,
    reference=lambda x: _wide(x).softmax(-1),
    rivals={
        "torch": lambda x: torch.softmax(x, -1),
        "quack": lambda x: _quack("softmax.softmax", x),
    },
    draw=draw_rows,
    flops=lambda shape: 0.0,
    bytes=_bytes(2),
    tolerance=8e-3,
    small=(
        _case(70, 64),
        _case(5, 300, "float16"),
        _case(3, 1001, "float32", apart=7),
        _case(2, 40000),
        _case(1, 1, "float32"),
        _case(0, 8),
    ),
    named=NAMED,
)

RMS_NORM = Problem(
    name="rms_norm",
    op=rms_norm,
    arguments=_norm_arguments,
    reference=_norm_reference(False),
    rivals={
        "torch": lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-6),
        "quack": lambda x, weight: _quack("rmsnorm.rmsnorm", x, weight, eps=1e-6),
    },
    draw=draw_rows,
    flops=lambda shape: 0.0,
    bytes=_bytes(2),
    tolerance=1e-2,
    small=(
        _case(70, 64, residual=True),
        _case(5, 300, "float16"),
        _case(3, 1001, "float32", apart=7, residual=True),
        _case(2, 40000),
    ),
    named=NAMED,
)

LAYER_NORM = Problem(
    name="layer_norm",
    op=layer_norm,
    arguments=_norm_arguments,
    reference=_norm_reference(True),
    rivals={
        "torch": lambda x, weight, bias=None: F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    },
    draw=lambda draw: {**draw_rows(draw), "bias": True},
    flops=lambda shape: 0.0,
    bytes=_bytes(2),
    tolerance=1e-2,
    small=(
        _case(70, 64, residual=True, bias=True),
        _case(5, 300, "float16"),
        _case(3, 1001, "float32", apart=7, bias=True),
        _case(2, 40000, bias=True),
    ),
    named=[{**shape, "bias": True} for shape in NAMED],
)

CROSS_ENTROPY = Problem(
    name="cross_entropy",
    op=cross_entropy,
    arguments=_loss_arguments,
    reference=_loss_reference,
    rivals={
        "torch": lambda x, labels, reduction: F.cross_entropy(x, labels, reduction=reduction),
        "quack": _quack_loss,
    },
    draw=draw_rows,
    flops=lambda shape: 0.0,
    bytes=_bytes(1),
    tolerance=1e-2,
    small=(
        _case(70, 64),
        _case(5, 300, "float16", reduction="mean"),
        _case(3, 1001, "float32", apart=7, reduction="sum"),
        _case(2, 40000, reduction="mean"),
    ),
    named=NAMED,
)


def _halves(shape: Shape, device: Any) -> dict[str, Any]:
    """Return the halves of a projection, whose rows are twice as far apart as they are wide."""
    wide = matrix({**shape, "columns": 2 * shape["columns"]}, device)
    gate, up = wide.chunk(2, 1)
    return {"gate": gate, "up": up}


def half_of(shape: Shape) -> Shape:
    """Return a shape of half as many rows, whose three matrices fit where two do."""
    return {**shape, "rows": max(1, shape["rows"] // 2)}


SWIGLU = Problem(
    name="swiglu",
    op=swiglu,
    arguments=_halves,
    reference=lambda gate, up: F.silu(_wide(gate)) * _wide(up),
    rivals={"torch": lambda gate, up: F.silu(gate) * up},
    draw=lambda draw: half_of(draw_rows(draw)),
    flops=lambda shape: 0.0,
    bytes=_bytes(3),
    tolerance=1e-2,
    small=(_case(70, 64), _case(3, 1001, "float32", apart=7)),
    named=NAMED,
)


def _layer_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    rows, width, classes = (shape[x] for x in ("rows", "width", "classes"))
    dtype = getattr(torch, shape["dtype"])
    labels = torch.randint(0, classes, (rows,), device=device)
    labels[::5] = -100
    return {
        "x": torch.randn(rows, width, device=device).to(dtype),
        "weight": (torch.randn(classes, width, device=device) / width**0.5).to(dtype),
        "labels": labels,
    }


def _layer_draw(draw: random.Random) -> Shape:
    """Draw rows, width and classes: uniform in the logarithm, as many as torch has memory for in float32."""
    while True:
        rows, width = int(2 ** draw.uniform(5, 13)), 64 * int(2 ** draw.uniform(2, 7))
        classes = int(2 ** draw.uniform(10, 17.3)) // 8 * 8
        if rows * classes < 2**28:
            return {"rows": rows, "width": width, "classes": classes, "dtype": "bfloat16"}


LINEAR_CROSS_ENTROPY = Problem(
    name="linear_cross_entropy",
    op=linear_cross_entropy,
    arguments=_layer_arguments,
    reference=lambda x, weight, labels: F.cross_entropy(_wide(x) @ _wide(weight).mT, labels),
    rivals={"torch": lambda x, weight, labels: F.cross_entropy(F.linear(x, weight), labels)},
    draw=_layer_draw,
    flops=lambda s: 2.0 * s["rows"] * s["width"] * s["classes"],
    bytes=lambda s: 2.0 * s["width"] * (s["rows"] + s["classes"]),
    tolerance=1e-2,
    small=({"rows": 40, "width": 64, "classes": 136, "dtype": "bfloat16"},),
    named=[
        {"rows": rows, "width": width, "classes": classes, "dtype": "bfloat16"}
        for rows, width, classes in ((4096, 4096, 50304), (2048, 4096, 131072))
    ],
)  # fmt: skip


PROBLEMS = (SOFTMAX, RMS_NORM, LAYER_NORM, CROSS_ENTROPY, SWIGLU, LINEAR_CROSS_ENTROPY)

WITH_GRADIENTS = (
    with_gradients(SOFTMAX, "x", draw=lambda draw: half_of(SOFTMAX.draw(draw))),
    with_gradients(RMS_NORM, "x", "weight", draw=lambda draw: half_of(RMS_NORM.draw(draw))),
    with_gradients(
        LAYER_NORM, "x", "weight", "bias", draw=lambda draw: half_of(LAYER_NORM.draw(draw))
    ),
    with_gradients(CROSS_ENTROPY, "x", draw=lambda draw: half_of(CROSS_ENTROPY.draw(draw))),
    with_gradients(SWIGLU, "gate", "up", draw=lambda draw: half_of(SWIGLU.draw(draw))),
    with_gradients(LINEAR_CROSS_ENTROPY, "x", "weight", draw=LINEAR_CROSS_ENTROPY.draw),
)
