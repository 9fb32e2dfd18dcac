"""Errors of an op on a wrong name, a wrong schema, writes and shapes that it does not declare."""

from typing import Optional

import pytest
import torch
from torch import Tensor

import gluon_torch
from gluon_core.errors import (
    ArgumentError,
    FakeResultError,
    MutationError,
    OpNameError,
    OpSchemaError,
)
from tests.torch import ops_for_tests as ops

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@pytest.mark.parametrize("name", ["add", "a::b::c", "a.b", "1a::b", "", None, "aten::add"])
def test_a_wrong_name(name):
    with pytest.raises(OpNameError, match="name"):
        gluon_torch.op(name)(add)


def test_an_unknown_name():
    assert gluon_torch.get("gluon_tests::scale") is ops.scale
    with pytest.raises(OpNameError, match="Did you mean .*'gluon_tests::scale'"):
        gluon_torch.get("gluon_tests::scal")
    with pytest.raises(OpNameError, match="Import the module"):
        gluon_torch.get("elsewhere::entirely")


def unannotated(x: Tensor, y) -> Tensor: ...


def without_result(x: Tensor): ...


def with_a_dict(x: Tensor, options: dict) -> Tensor: ...


def with_more(x: Tensor, *rest: Tensor) -> Tensor: ...


@pytest.mark.parametrize(
    "function, message",
    [
        (unannotated, r"unannotated\(y\): an op needs the type"),
        (without_result, "without_result: .*result.*-> torch.Tensor"),
        (with_a_dict, "with_a_dict: no schema.*dict"),
        (with_more, "with_more: no schema.*varargs"),
    ],
)
def test_a_function_without_a_schema(function, message):
    with pytest.raises(OpSchemaError, match=message):
        gluon_torch.op("gluon_tests::wrong", function)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(mutates_args=("z",)), "mutates_args: add has no such parameter.*'x' or 'y', got 'z'"),
        (dict(schema="(Tensor x, Tensor z) -> Tensor"), "schema: .*expected x, y, got x, z"),
        (dict(schema="(Tensor x) -> Tensor"), "schema: .*got x"),
        (dict(schema="Tensor x"), "schema: torch cannot read it"),
        (dict(schema="(Tensor(a!) x, Tensor y) -> Tensor"), r"mutates_args: .*\['x'\].*got \[\]"),
        (dict(fake=lambda x: x), r"fake: does not take.*expected \(x, y\), got \(x\)"),
        (dict(shape=lambda: ()), "shape: does not take"),
        (dict(fake=add, shape=add), "one of fake= and shape="),
        (dict(setup_context=add), "setup_context: .*no"),
        (dict(vmap="all at once"), "vmap: unknown rule"),
        (dict(mutates_args="x", backward=add), "backward: .*writes its arguments"),
    ],
)
def test_options_that_disagree_with_the_function(options, message):
    with pytest.raises(OpSchemaError, match=message):
        gluon_torch.op("gluon_tests::wrong", add, **options)


def test_a_device_without_a_kernel():
    op = gluon_torch.op("gluon_tests::elsewhere", add, device_types="cuda")
    with pytest.raises(NotImplementedError, match="CPU"):
        op(torch.ones(2), torch.ones(2))
    op.register_kernel("cpu", add)
    assert torch.equal(op(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_a_kernel_with_other_parameters():
    with pytest.raises(OpSchemaError, match="register_kernel"):
        ops.scale.register_kernel("cpu")(lambda x: x)


def test_all_of_a_batch_write_one_tensor():
    out = torch.empty(3)
    with pytest.raises(ArgumentError, match=r"scale_into\(out\).*same tensor"):
        torch.vmap(lambda x: ops.scale_into(x, out, 2.0) or x)(torch.randn(2, 3))


@gluon_torch.op("gluon_tests::says_nothing")
def says_nothing(x: Tensor, out: Tensor) -> None:
    ops.scale_kernel[(1,)](x, out, x.numel(), 2.0, BLOCK=ops.BLOCK)


@gluon_torch.op("gluon_tests::says_nothing_of_many")
def says_nothing_of_many(x: Tensor, outs: list[Tensor]) -> None:
    says_nothing.function(x, outs[1])


def test_a_write_that_is_not_declared():
    x, out = torch.randn(8), torch.full((8,), torch.nan)
    says_nothing(x, out)  # unseen, unless asked for
    out.fill_(torch.nan)
    with gluon_torch.debug(), pytest.raises(MutationError, match="out: .*mutates_args"):
        says_nothing(x, out)
    with gluon_torch.debug(), pytest.raises(MutationError, match="outs: "):
        says_nothing_of_many(x, [x.clone(), out.zero_()])
    with gluon_torch.debug():
        ops.scale_into(x, out, 2.0)
        ops.scale_into(x, x, 2.0)  # given twice: written as `out`
        ops.norm(torch.randn(2, 8), x, 1e-6)


@pytest.mark.parametrize(
    "fake, message",
    [
        (lambda x: x.new_empty(x.shape[0]), r"float32\[2, 3\].*got float32\[2\]"),
        (lambda x: torch.empty_like(x, dtype=torch.half), r"got float16\[2, 3\]"),
        (lambda x: x.new_empty(3, 2).t(), r"strides \[3, 1\].*got .*strides \[1, 2\]"),
        (lambda x: torch.empty_like(x, device="meta"), "on cpu, got .*on meta"),
    ],
    ids=["shape", "dtype", "strides", "device"],
)
def test_a_fake_that_disagrees(fake, message):
    @gluon_torch.op("gluon_tests::untold", fake=fake)
    def untold(x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    x = torch.randn(2, 3)
    untold(x)
    with gluon_torch.debug(), pytest.raises(FakeResultError, match=f"result 0 of .*{message}"):
        untold(x)


def test_a_shape_function_with_too_few_results():
    @gluon_torch.op("gluon_tests::pair", shape=lambda x: x.shape)
    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), x.clone()

    with pytest.raises(Exception, match="pair returns 2 tensors, and its shape function tells 1"):
        torch.compile(pair, backend="aot_eager", fullgraph=True)(torch.randn(3))


def test_an_op_that_cannot_tell_its_shape():
    @gluon_torch.op("gluon_tests::silent")
    def silent(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        ops.scale_kernel[(1,)](x, out, x.numel(), 2.0, BLOCK=ops.BLOCK)
        return out

    with pytest.raises(Exception, match="gluon_core.torch.launch.*fake= or shape="):
        torch.compile(silent, backend="aot_eager", fullgraph=True)(torch.randn(3))


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_parameter_without_a_type_is_named(name):
    def typed(x: Tensor, y: Tensor) -> Tensor: ...

    del typed.__annotations__[name]
    with pytest.raises(
        OpSchemaError, match=rf"typed\({name}\).*expected .*Write {name}: torch.Tensor"
    ):
        gluon_torch.op("gluon_tests::wrong", typed)


def test_a_fake_with_another_number_of_results():
    """Torch itself holds a fake to the schema where that fixes the number; a list it does not."""

    @gluon_torch.op("gluon_tests::halves", fake=lambda x: [torch.empty_like(x)])
    def halves(x: Tensor) -> list[Tensor]:
        return [x + 1, x + 2]

    x = torch.randn(4)
    assert len(halves(x)) == 2
    with gluon_torch.debug(), pytest.raises(FakeResultError, match="number of results.* 2, got 1"):
        halves(x)


def test_checks_of_arguments_by_name():
    x, out = torch.randn(8), torch.empty(8)
    with gluon_torch.debug():
        ops.scale_into(x, factor=2.0, out=out)
        assert torch.equal(out, x * 2)
        with pytest.raises(MutationError, match=r"out: .*got mutates_args=\(\)"):
            says_nothing(x, out=out.zero_())


def test_an_optional_argument_that_is_written():
    @gluon_torch.op("gluon_tests::maybe", mutates_args=("out",), vmap="one_by_one")
    def maybe(x: Tensor, out: Optional[Tensor], more: Tensor) -> None:
        more.zero_()
        if out is not None:
            out.copy_(x)

    x, out, more = torch.randn(4), torch.zeros(4), torch.ones(4)
    with gluon_torch.debug(), pytest.raises(MutationError, match=r"more: .*\('out',\)"):
        maybe(x, out, more)
    assert torch.equal(out, x)
    with gluon_torch.debug(), pytest.raises(MutationError, match="more: "):
        maybe(x, None, torch.ones(4))
