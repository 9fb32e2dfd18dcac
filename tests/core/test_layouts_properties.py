"""Random layouts: our answers against the compiler's, on the installed Triton."""

from __future__ import annotations

import math
import os
import random
import sys

import pytest

pytestmark = pytest.mark.once  # layouts know no Triton

pytest.importorskip("triton")
hypothesis = pytest.importorskip("hypothesis")
sys.path.insert(0, os.path.dirname(__file__))

import layouts_random as make  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layouts_oracle import TRITON, Oracle  # noqa: E402

from gluon_core import layouts as L  # noqa: E402
from gluon_core.errors import GluonError  # noqa: E402
from gluon_core.layouts import infer  # noqa: E402

# An illegal call aborts the process, so a run that ends proves that we refuse what is illegal.
# The cases are always the same ones: a new abort must not hit somebody else's change.
CASES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**40).map(random.Random)


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


def random_shape(rng, rank):
    shape = make.shape(rng, rank)
    if rng.random() < 0.2:
        shape[rng.randrange(rank)] = 1
    return shape


def same(ours, theirs, *case):
    assert ours == theirs, "\n".join(["", *(f"case {c!r}" for c in case), f"{ours=}", f"{theirs=}"])


@CASES
@given(rng=SEEDS)
def test_linear_form_of_register_layouts(oracle, rng):
    shape = random_shape(rng, rng.randint(1, 3))
    layout = make.distributed(rng, shape)
    if isinstance(layout, L.DistributedLinearLayout) and rng.random() < 0.3:
        shape = random_shape(rng, len(shape))
    try:
        layout._emit(oracle.builder)
    except GluonError:
        return
    same(layout.to_linear(shape), oracle.linear(layout, shape), layout, shape)


@pytest.mark.skipif(TRITON < (3, 7), reason="the 3.6 builder has no linear form of shared layouts")
@CASES
@given(rng=SEEDS)
def test_linear_form_of_shared_layouts(oracle, rng):
    shape = random_shape(rng, rng.randint(1, 3))
    layout = make.shared(rng, shape)
    linear = layout.to_linear(shape)
    if linear.in_size("offset") == 1:
        return
    linear_layout = oracle.builder.to_linear_layout(layout._emit(oracle.builder), list(shape))
    ours = linear.bases
    same(
        [ours["offset"], ours["block"]],
        [linear_layout.offset_bases, linear_layout.block_bases],
        layout,
        shape,
    )


@CASES
@given(rng=SEEDS)
def test_bank_conflicts(oracle, rng):
    rank = rng.randint(1, 3)
    shape = make.shape(rng, rank, most=12)
    register = make.blocked(rng, rank, 0) if rng.random() < 0.7 else make.distributed(rng, shape)
    shared = make.shared(rng, shape, 0)
    bits = rng.choice([8, 16, 32, 64])
    ours = L.bank_conflicts(register, shared, shape, bits)
    lanes = register.to_linear(shape).in_size("lane")
    # The compiler aborts where a buffer does not fill the banks; before 3.9 it took 64 lanes at
    # once.
    if math.prod(shape) * bits < 1024 or (lanes > 32 and TRITON < (3, 9)):
        return
    try:
        theirs = oracle.bank_conflicts(register, shared, shape, bits)
    except GluonError:
        return
    same(ours, theirs, register, shared, shape, bits)


def in_ir(oracle, layout, shape):
    """The tensor, or None where this Triton cannot represent the layout."""
    try:
        return oracle.tensor(layout, shape)
    except GluonError:
        return None


@CASES
@given(rng=SEEDS)
def test_permute(oracle, rng):
    rank = rng.randint(1, 3)
    shape = random_shape(rng, rank)
    layout, order = make.distributed(rng, shape), make.order(rng, rank)
    tensor = in_ir(oracle, layout, shape)
    if tensor is not None:
        theirs = oracle.of_tensor(oracle.builder.create_trans(tensor, order))
        same(infer.permute(layout, shape, order), theirs, layout, shape, order)


@CASES
@given(rng=SEEDS)
def test_reshape(oracle, rng):
    rank = rng.randint(1, 3)
    shape = random_shape(rng, rank)
    kind = rng.random()
    if kind < 0.4:
        layout = make.distributed(rng, shape)
    elif kind < 0.8:
        layout = make.blocked(rng, rank, rng.choice([0, 0, 0, 1]))
    else:
        layout = infer.default_blocked(shape, 4, 32, rng.choice([1, 1, 2, 4]))
    new_shape = make.reshaped(rng, shape)
    if rng.random() < 0.2:
        new_shape = [*shape]
        new_shape.insert(rng.randint(0, rank), 1)
    elif rng.random() < 0.2:
        new_shape = [size for size in shape if size > 1] or [1]
    tensor = in_ir(oracle, layout, shape)
    if tensor is not None:
        theirs = oracle.of_tensor(oracle.builder.create_reshape(tensor, new_shape, False))
        same(infer.reshape(layout, shape, new_shape), theirs, layout, shape, new_shape)


@CASES
@given(rng=SEEDS)
def test_join(oracle, rng):
    rank = rng.randint(1, 3)
    shape = random_shape(rng, rank)
    layout = make.distributed(rng, shape)
    if rng.random() < 0.5:
        layout = L.SliceLayout(rank, make.distributed(rng, [*shape, rng.choice([1, 2, 4])]))
    try:
        ours = infer.join(layout, shape)
        first, second = oracle.tensor(layout, shape), oracle.tensor(layout, shape)
    except GluonError:
        return
    same(ours, oracle.of_tensor(oracle.builder.create_join(first, second)), layout, shape)


@CASES
@given(rng=SEEDS)
def test_split(oracle, rng):
    shape = random_shape(rng, rng.randint(1, 2))
    kind = rng.random()
    if kind < 0.4:
        layout = infer.join(make.blocked(rng, len(shape)), shape)
    elif kind < 0.8:
        layout = make.blocked(rng, len(shape) + 1)
    else:
        layout = make.linear(rng, [*shape, 2])
    shape = [*shape, 2]
    try:
        ours = infer.split(layout, shape)
    except GluonError:
        return
    halves = oracle.builder.create_split(oracle.tensor(layout, shape))
    same(ours, oracle.of_tensor(halves[0]), layout, shape)


@CASES
@given(rng=SEEDS)
def test_expand_dims_and_reduce(oracle, rng):
    rank = rng.randint(1, 3)
    shape = random_shape(rng, rank)
    axis = rng.randint(0, rank)
    parent = make.distributed(rng, [*shape[:axis], 1, *shape[axis:]])
    try:
        layout = infer.reduce(parent, axis)
        tensor = oracle.tensor(layout, shape)
    except GluonError:
        return
    same(layout, oracle.of_tensor(tensor))
    theirs = oracle.of_tensor(oracle.builder.create_expand_dims(tensor, axis))
    same(infer.expand_dims(layout, axis), theirs, layout, axis)


def random_buffer(rng, shape):
    return make.shared(rng, shape) if rng.random() < 0.6 else make.padded(rng, shape)


@CASES
@given(rng=SEEDS)
def test_memdesc_permute(oracle, rng):
    rank = rng.randint(1, 3)
    shape = random_shape(rng, rank)
    layout, order = random_buffer(rng, shape), make.order(rng, rank)
    try:
        ours = infer.memdesc_permute(layout, shape, order)
        buffer = oracle.buffer(layout, shape)
    except GluonError:
        return
    theirs = oracle.of_buffer(oracle.builder.create_memdesc_trans(buffer, order))
    same(ours, theirs, layout, shape, order)


@CASES
@given(rng=SEEDS)
def test_memdesc_reshape(oracle, rng):
    shape = random_shape(rng, rng.randint(1, 3))
    layout, new_shape = random_buffer(rng, shape), make.reshaped(rng, shape)
    try:
        ours = infer.memdesc_reshape(layout, shape, new_shape)
        buffer = oracle.buffer(layout, shape)
    except GluonError:
        return
    theirs = oracle.of_buffer(oracle.builder.create_memdesc_reshape(buffer, new_shape))
    same(ours, theirs, layout, shape, new_shape)


@CASES
@given(rng=SEEDS)
def test_trivial_conversions(oracle, rng):
    """Conversions that stay in registers for us are those that the compiler calls trivial."""
    shape = random_shape(rng, rng.randint(1, 3))
    src = dst = make.distributed(rng, shape)
    if rng.random() < 0.5:
        dst = make.distributed(rng, shape)
    elif rng.random() < 0.8:
        bases = src.to_linear(shape).bases
        rng.shuffle(bases["register"])
        dst = L.DistributedLinearLayout(
            bases["register"], bases["lane"], bases["warp"], bases["block"], shape
        )
    first, second = src.to_linear(shape), dst.to_linear(shape)
    if any(first.in_size(dim) != second.in_size(dim) for dim in ("lane", "warp", "block")):
        return
    b = oracle.builder
    try:
        tensor = oracle.tensor(src, shape)
        ty = b.get_distributed_ty(b.get_int32_ty(), list(shape), dst._emit(b))
    except GluonError:
        return
    ours = L.conversion(src, dst, shape, 32).kind in ("none", "registers")
    same(ours, b.is_convert_layout_trivial(ty, tensor), src, dst, shape)


@CASES
@given(rng=SEEDS)
def test_builder_round_trip(oracle, rng):
    """A layout that we emit comes back as itself."""
    shape = random_shape(rng, rng.randint(1, 3))
    layout = make.distributed(rng, shape)
    tensor = in_ir(oracle, layout, shape)
    if tensor is not None:
        same(layout, oracle.of_tensor(tensor))
    buffer_layout = random_buffer(rng, shape)
    try:
        buffer = oracle.buffer(buffer_layout, shape)
    except GluonError:
        return
    same(buffer_layout, oracle.of_buffer(buffer))
