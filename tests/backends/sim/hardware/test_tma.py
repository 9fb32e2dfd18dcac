"""Copies of the TMA on the simulator: the bytes they move, and from where."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_core.language.nvidia.blackwell import tma as blackwell_tma
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import (
    BarrierError,
    OutOfBoundsError,
)
from gluon_sim.settings import using
from tests.backends.sim.hardware.boxes import (
    CUBE,
    F16,
    F16_,
    F32,
    FLAT,
    REGISTERS,
    SCHEDULES,
    describe,
    numbers,
    report,
    since_38,
)

# -- results ----------------------------------------------------------------------------------------


@gluon.jit
def copy_boxes(a, b):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    x, y = gl.program_id(0) * a.block_shape[0], gl.program_id(1) * a.block_shape[1]
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [x, y], bar, s)
    mbarrier.wait(bar, 0)
    tma.async_store(b, [x, y], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("block, layout", [((64, 64), F16), ((32, 128), F16), ((16, 32), None)])
def test_boxes_in_and_across_the_tensor(block, layout, schedule):
    layout = layout or gl.NVMMASharedLayout(64, 16, 2)
    a, b = numbers(200, 136), np.zeros((200, 136), np.float16)
    with using(schedule=schedule[0], seed=schedule[1]):
        grid = (-(-200 // block[0]), -(-136 // block[1]))
        copy_boxes[grid](describe(a, block, layout), describe(b, block, layout))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int32, np.int8, np.float64, np.int64, ml_dtypes.bfloat16]
)
def test_elements_of_every_size(dtype):
    bits = np.dtype(dtype).itemsize * 8
    layout = gl.NVMMASharedLayout(128, bits, 2)
    a = numbers(70, 2048 // bits, dtype=dtype)
    b = np.zeros_like(a)
    if dtype is ml_dtypes.bfloat16:
        torch = pytest.importorskip("torch")
        ta = torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        tb = torch.from_numpy(b.view(np.int16)).view(torch.bfloat16)
        copy_boxes[(2, 2)](
            describe(ta, (64, 1024 // bits), layout), describe(tb, (64, 1024 // bits), layout)
        )
    else:
        copy_boxes[(2, 2)](
            describe(a, (64, 1024 // bits), layout), describe(b, (64, 1024 // bits), layout)
        )
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@gluon.jit
def read_box(a, out, x, y, pred):
    s = gl.allocate_shared_memory(a.dtype, [64, 64], F16_)
    s.store(gl.full([64, 64], 7, gl.float16, REGISTERS))
    fence_async_shared()
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    go = pred > gl.program_id(0)
    mbarrier.expect(bar, 8192, go)
    tma.async_load(a, [x, y], bar, s, go)
    mbarrier.wait(bar, 0, go)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + gl.program_id(0) * 4096 + rows * 64 + columns, s.load(REGISTERS))
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("x, y", [(-8, -8), (60, 40), (-64, 0), (500, 8), (-(2**31), 2**31 - 72)])
def test_elements_outside_come_as_padding(x, y, padding):
    a, out = numbers(100, 72), np.zeros((64, 64), np.float16)
    read_box[(1,)](describe(a, (64, 64), padding=padding), out, x, y, 1)
    expected = np.full((64, 64), np.nan if padding == "nan" else 0, np.float16)
    for i in range(max(x, 0), min(x + 64, 100)):
        for j in range(max(y, 0), min(y + 64, 72)):
            expected[i - x, j - y] = a[i, j]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_predicate_for_each_program(schedule):
    a, out = numbers(64, 64), np.zeros((4, 64, 64), np.float16)
    with using(schedule=schedule[0], seed=schedule[1]):
        read_box[(4,)](describe(a, (64, 64)), out, 0, 0, 2)
    np.testing.assert_array_equal(out[:2], np.stack([a, a]))
    assert (out[2:] == 7).all()


@gluon.jit
def squeeze(a, b, n):
    s = gl.allocate_shared_memory(a.dtype, [64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    for i in range(n):
        mbarrier.expect(bar, a.nbytes_per_cta)
        tma.async_copy_global_to_shared(a, [i, 0, 0], bar, s)
        mbarrier.wait(bar, i % 2)
        tma.async_copy_shared_to_global(b, [n - 1 - i, 0, 0], s)
        tma.store_wait(0)
    mbarrier.invalidate(bar)


def test_a_box_of_another_rank():
    a, b = numbers(5, 64, 64), np.zeros((5, 64, 64), np.float16)
    squeeze[(1,)](describe(a, (1, 64, 64), CUBE), describe(b, (1, 64, 64), CUBE), 5)
    np.testing.assert_array_equal(b, a[::-1])


@gluon.jit
def copy_line(a, b):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [gl.program_id(0) * a.block_shape[0]], bar, s)
    mbarrier.wait(bar, 0)
    tma.async_store(b, [gl.program_id(0) * a.block_shape[0]], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def test_one_dimension():
    a, b = numbers(1000), np.zeros(1000, np.float16)
    copy_line[(4,)](describe(a, (256,), FLAT), describe(b, (256,), FLAT))
    np.testing.assert_array_equal(a, b)


def test_a_tensor_with_strides_of_its_own():
    whole = numbers(64, 128)
    torch = pytest.importorskip("torch")
    part = torch.from_numpy(whole)[:, :72]
    b = torch.zeros(64, 72, dtype=torch.float16)
    copy_boxes[(1, 2)](describe(part, (64, 64)), describe(b, (64, 64)))
    np.testing.assert_array_equal(b.numpy(), whole[:, :72])


@gluon.jit
def read_float(a, out, L: gl.constexpr):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    rows = gl.arange(0, 32, gl.SliceLayout(1, L))[:, None]
    columns = gl.arange(0, 32, gl.SliceLayout(0, L))[None, :]
    gl.store(out + rows * 32 + columns, s.load(L))
    mbarrier.invalidate(bar)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
def test_rounding_to_tf32():
    a = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    ties = 1 + np.float32([1, 3, -1, -3]) * np.float32(2**-11)
    a[0, :6] = np.inf, np.nan, *ties
    out = np.zeros_like(a)
    descriptor = describe(a, (32, 32), F32, round_f32_to_tf32=True)
    read_float[(1,)](descriptor, out, gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))
    assert not (out.view(np.int32)[np.isfinite(out)] & 0x1FFF).any()
    np.testing.assert_allclose(out, a, rtol=2**-11)
    assert (out[1:] != a[1:]).any()
    even = 1 + np.float32([0, 4, -1, -3]) * np.float32(2**-11)  # below 1 these are no ties
    np.testing.assert_array_equal(out[0, 2:6], even)


# -- descriptors that kernels make ------------------------------------------------------------------


@gluon.jit
def copy_matrices(p, q, sizes, stride, shift, L: gl.constexpr):
    n = gl.load(sizes + gl.program_id(2))
    offset = gl.program_id(2) * 64 * stride
    a = tma.make_tensor_descriptor(p + offset + shift, [n, 64], [stride, 1], [32, 64], L)
    b = tma.make_tensor_descriptor(
        q + offset, shape=[n, 64], strides=[stride, 1], block_shape=[32, 64], layout=L
    )
    copy_boxes(a, b)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_descriptors_that_differ_between_programs(schedule):
    a, b = numbers(5, 64, 64), np.zeros((5, 64, 64), np.float16)
    sizes = np.array([64, 1, 20, 33, 48], np.int32)
    with using(schedule=schedule[0], seed=schedule[1]):
        copy_matrices[(2, 1, 5)](a, b, sizes, 64, 0, F16)
    for one, other, size in zip(a, b, sizes):
        np.testing.assert_array_equal(other[:size], one[:size])
        assert not other[size:].any()


@gluon.jit
def choose(p, q, out, L: gl.constexpr):
    d = tma.make_tensor_descriptor(p, [64, 64], [64, 1], [64, 64], L)
    if gl.program_id(0) % 2 == 1:
        d = tma.make_tensor_descriptor(q, [40, 64], [64, 1], [64, 64], L)
    e = tma.make_tensor_descriptor(out + gl.program_id(0) * 4096, [64, 64], [64, 1], [64, 64], L)
    s = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, d.nbytes_per_cta)
    tma.async_load(d, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    tma.async_store(e, [0, 0], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def test_a_descriptor_that_a_branch_chooses():
    a, b, out = numbers(64, 64), numbers(64, 64) + 1, np.zeros((4, 64, 64), np.float16)
    choose[(4,)](a, b, out, F16)
    cut = np.where(np.arange(64)[:, None] < 40, b, 0)
    np.testing.assert_array_equal(out, [a, cut, a, cut])


@pytest.mark.parametrize(
    "size, stride, shift, match",
    [
        (64, 64, 1, "illegal base in program .0, 0, 0."),
        (64, 63, 0, r"illegal strides\[0\] in program"),
        (0, 64, 0, r"illegal shape\[0\] in program .0, 0, 1."),
    ],
)
def test_tensors_that_the_hardware_cannot_address(size, stride, shift, match):
    a, b = numbers(5, 64, 64), np.zeros((5, 64, 64), np.float16)
    sizes = np.array([64, size], np.int32)
    with pytest.raises(ArgumentError, match=match) as caught:
        copy_matrices[(2, 1, 2)](a, b, sizes, stride, shift, F16)
    assert "make_tensor_descriptor" in caught.value.span.text


def test_a_descriptor_that_reaches_beyond_its_storage():
    a, b = numbers(16, 64), np.zeros((64, 64), np.float16)
    with pytest.raises(OutOfBoundsError) as caught:
        copy_matrices[(1, 1, 1)](a, b, np.array([64], np.int32), 64, 0, F16)
    assert "tma.async_load" in caught.value.span.text


@gluon.jit
def load_slice(a, b, AT: gl.constexpr, L: gl.constexpr):
    whole = gl.allocate_shared_memory(a.dtype, [64, 16], L)
    s = whole.slice(AT, 2)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    tma.async_store(b, [0, 0], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def test_views_that_do_not_start_where_a_box_can():
    layout = gl.NVMMASharedLayout(0, 16, 2)
    a, b = numbers(2, 16), np.zeros((2, 16), np.float16)
    load_slice[(1,)](describe(a, (2, 16), layout), describe(b, (2, 16), layout), 8, layout)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(ArgumentError, match="multiple of 128 bytes.*got 64 bytes") as caught:
        load_slice[(1,)](describe(a, (2, 16), layout), describe(b, (2, 16), layout), 2, layout)
    assert "tma.async_load" in caught.value.span.text


@pytest.mark.parametrize("y", [3, -4, 97])
def test_boxes_that_do_not_start_where_tma_can(y):
    a, out = numbers(100, 72), np.zeros((64, 64), np.float16)
    match = (
        rf"coord: .*in program .0, 0, 0.; .*multiple of 8 elements, which is 16 bytes, got {y}\."
    )
    report(
        ArgumentError,
        read_box,
        describe(a, (64, 64)),
        out,
        0,
        y,
        1,
        match=match,
        line="tma.async_load",
    )
    read_box[(1,)](describe(a, (64, 64)), out, y, 8, 1)  # of other dimensions any row will do
    read_box[(1,)](describe(a, (64, 64)), out, 0, y, 0)  # nor where nothing happens


@gluon.jit
def store_each(b, s_layout: gl.constexpr, step, kind: gl.constexpr):
    s = gl.allocate_shared_memory(b.dtype, b.block_shape, s_layout)
    s.store(gl.full([64, 64], 1, gl.float16, REGISTERS))
    fence_async_shared()
    column = gl.program_id(0) * step
    if kind == "store":
        tma.async_store(b, [0, column], s)  # HERE
    else:
        tma.async_atomic_add(b, [0, column], s)  # HERE
    tma.store_wait(0)


@pytest.mark.parametrize("kind", ["store", "add"])
def test_stores_that_do_not_start_where_tma_can(kind):
    b = np.zeros((64, 72), np.float16)
    store_each[(2,)](describe(b, (64, 64)), F16, 64, kind)
    assert (b == 1).all()
    report(
        ArgumentError, store_each, describe(b, (64, 64)), F16, 4, kind,
        match="in program .1, 0, 0.; .*got 4", line="# HERE", grid=(2,),
    )  # fmt: skip


def test_rows_that_do_not_start_where_tma_can(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    a, b = numbers(100, 96), np.zeros((100, 96), np.float16)
    table = np.arange(32, dtype=np.int32)
    rows = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    with pytest.raises(ArgumentError, match="y_offset.*multiple of 8 elements.*got 100"):
        move_rows[(1,)](describe(a, (1, 64)), describe(b, (1, 64)), table, table, 100, 32, rows)


# -- reductions, rows, im2col -----------------------------------------------------------------------


@gluon.jit
def reduce_box(a, b, KIND: gl.constexpr):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [gl.program_id(0) * a.block_shape[0], 0], bar, s)
    mbarrier.wait(bar, 0)
    if KIND == "add":
        tma.async_atomic_add(b, [0, 0], s)
    elif KIND == "min":
        tma.async_atomic_min(b, [0, 0], s)
    elif KIND == "max":
        tma.async_atomic_max(b, [0, 0], s)
    elif KIND == "and":
        tma.async_atomic_and(b, [0, 0], s)
    elif KIND == "or":
        tma.async_atomic_or(b, [0, 0], s)
    else:
        tma.async_atomic_xor(b, [0, 0], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


REDUCED = {
    "add": lambda x: x.sum(0, dtype=x.dtype), "min": lambda x: x.min(0), "max": lambda x: x.max(0),
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(REDUCED))
@pytest.mark.parametrize("dtype", ["int32", "float16", "uint32"])
def test_reductions(kind, dtype):
    if dtype == "float16" and kind in ("and", "or", "xor"):
        pytest.skip("of bits")
    torch = pytest.importorskip("torch")
    bits = np.dtype(dtype).itemsize * 8
    parts = numbers(4, 32, 1024 // bits, dtype=np.int32).astype(dtype)
    start = numbers(40, 1024 // bits, dtype=np.int32).astype(dtype)[:40] * 2
    layout = gl.NVMMASharedLayout(128, bits, 2)
    a, b = torch.from_numpy(parts.reshape(128, -1).copy()), torch.from_numpy(start[:30].copy())
    block = (32, 1024 // bits)
    reduce_box[(4,)](describe(a, block, layout), describe(b, block, layout), kind)
    expected = REDUCED[kind](np.concatenate([start[None, :30], parts[:, :30]]))
    np.testing.assert_array_equal(b.numpy(), expected)


@gluon.jit
def move_rows(a, b, table, back, column, N: gl.constexpr, R: gl.constexpr):
    s = gl.allocate_shared_memory(a.dtype, [N, a.block_shape[1]], a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, N * a.block_shape[1] * 2)
    o = gl.arange(0, N, R)
    blackwell_tma.async_gather(a, gl.load(table + o), column, bar, s)
    mbarrier.wait(bar, 0)
    # Rows are gathered before the matrix, too, but not scattered there.
    blackwell_tma.async_scatter(b, gl.load(back + o), gl.maximum(column, 0), s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("column", [0, 32, -8, 104])
def test_gather_and_scatter(column, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    a, b = numbers(100, 96), np.zeros((100, 96), np.float16)
    rng = np.random.default_rng(1)
    table, back = (
        rng.integers(-4, 104, 32, dtype=np.int32),
        rng.permutation(112)[:32].astype(np.int32),
    )
    rows = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    move_rows[(1,)](describe(a, (1, 64)), describe(b, (1, 64)), table, back, column, 32, rows)
    expected = np.zeros_like(b)
    for source, target in zip(table, back):
        for j in range(max(column, 0), min(max(column, 0) + 64, 96)):
            taken = j + min(column, 0)
            if target < 100:
                expected[target, j] = a[source, taken] if 0 <= source < 100 and taken >= 0 else 0
    np.testing.assert_array_equal(b, expected)


@gluon.jit
def convolve(image, out, R: gl.constexpr, S: gl.constexpr):
    s = gl.allocate_shared_memory(image.dtype, image.block_shape, image.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    h, w = gl.program_id(1), gl.program_id(0)
    mbarrier.expect(bar, image.nbytes_per_cta)
    tma.async_load_im2col(image, [0, -1, -1, 0], [h.to(gl.int16), w.to(gl.int16)], bar, s)
    mbarrier.wait(bar, 0)
    tma.async_store(out, [(h * S + w) * 256, 0], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


@since_38
def test_im2col():
    from gluon_core.nvidia.hopper import TensorDescriptorIm2Col

    n, height, width, channels = 2, 8, 10, 64
    a = numbers(n, height, width, channels)
    out = np.ones((9 * 256, channels), np.float16)
    image = TensorDescriptorIm2Col.from_tensor(
        a, [256, 64], F16, pixel_box_lower_corner=[-1, -1], pixel_box_upper_corner=[-1, -1]
    )
    convolve[(3, 3)](image, describe(out, (256, 64)), 3, 3)
    padded = np.pad(a, ((0, 2), (1, 1), (1, 1), (0, 0)))
    for r in range(3):
        for s in range(3):
            taps = padded[:, r : r + height, s : s + width].reshape(-1, channels)[:256]
            taps[n * height * width :] = 0
            np.testing.assert_array_equal(out[(r * 3 + s) * 256 :][:256], taps)


SYNC = gl.constexpr(TRITON_VERSION == (3, 7))  # later compilers do it themselves


@gluon.jit
def pair(a, b, L: gl.constexpr, MULTICAST: gl.constexpr, TOGETHER: gl.constexpr = True):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if SYNC and TOGETHER:
        mbarrier.sync_cluster_init()
    mbarrier.expect(bar, a.nbytes_per_cta)
    tma.async_load(a, [0, 0], bar, s, multicast=MULTICAST)
    mbarrier.wait(bar, 0)
    tma.async_store(b, [0, 0], s)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
@pytest.mark.parametrize("cga, multicast", [([[0, 0]], True), ([[1, 0]], False), ([[1, 0]], True)])
def test_blocks_of_a_cluster(cga, multicast):
    layout = gl.NVMMASharedLayout(128, 16, 2, cga_layout=cga)
    a, b = numbers(64, 64), np.zeros((64, 64), np.float16)
    pair[(1,)](
        describe(a, (64, 64), layout), describe(b, (64, 64), layout), layout, multicast, num_ctas=2
    )
    np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(TRITON_VERSION != (3, 7), reason="of Triton 3.7")
def test_a_barrier_that_other_blocks_signal_too_early():
    layout = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])
    a = describe(numbers(64, 64), (64, 64), layout)
    with pytest.raises(BarrierError, match="before it is initialized"):
        pair[(1,)](a, a, layout, True, False, num_ctas=2)


# -- counted bytes --------------------------------------------------------------------------------


def test_profile_and_trace_count_copies():
    from gluon_sim.tools.profile import Profiler
    from gluon_sim.tools.trace import Tracer
    from gluon_sim.tools.watcher import watching

    a, b = numbers(100, 64), np.zeros((100, 64), np.float16)
    profiler, tracer = Profiler(), Tracer()
    with watching(profiler, tracer):
        copy_boxes[(2, 1)](describe(a, (64, 64)), describe(b, (64, 64)))
    np.testing.assert_array_equal(a, b)
    (kernel,) = profiler.report()
    lines = {line["source"].split("(")[0]: line for line in kernel["lines"]}
    load, store = lines["tma.async_load"], lines["tma.async_store"]
    assert load["global_read"] == store["global_written"] == 100 * 64 * 2
    assert load["shared_written"] == store["shared_read"] == 2 * 8192
    assert load["async_ops"] == store["async_ops"] == 2
    events = [e for e in tracer.document()["traceEvents"] if e.get("cat") == "async"]
    begun = [e for e in events if e["ph"] == "b"]
    assert [e["args"]["queue"] for e in begun] == ["tma loads", "bulk stores"]
    assert [e["name"].split(" (line")[0] for e in begun] == ["tma.async_load", "tma.async_store"]
    assert [e["args"]["bytes"] for e in events if e["ph"] == "e"] == [12800, 12800]


def test_padded_fp4(monkeypatch):
    """Each 8 bytes of packed fp4 stand at the start of 16: shared memory is twice as large."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    layout = gl.NVMMASharedLayout(128, 8, 2, fp4_padded=True)
    a, out = numbers(64, 64, dtype=np.uint8), np.zeros((64, 64), np.uint8)
    read_bytes[(1,)](describe(a, (64, 64), layout), out)
    np.testing.assert_array_equal(out, a)


@gluon.jit
def read_bytes(a, out):
    s = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 64 * 64)
    tma.async_load(a, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, s.load(REGISTERS))
    mbarrier.invalidate(bar)
