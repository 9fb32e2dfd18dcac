"""Kernels without layouts: right on every architecture, with the layouts that one would write."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, LayoutError

pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]

SIMULATED = ["sim:sm_80", "sim:hopper", "sim:sm_100", "sim:gfx942", "sim:gfx950", "sim:gfx1250"]


@gluon.jit(layouts="auto")
def scale(x, out, n, BLOCK: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    inside = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=inside) * 2.0, mask=inside)


@gluon.jit
def scale_by_hand(x, out, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    inside = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=inside) * 2.0, mask=inside)


@gluon.jit(layouts="auto")
def transpose(x, out, M, N, BLOCK: gl.constexpr):
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    gl.store(out + column * M + row, gl.load(x + row * N + column))


@gluon.jit(layouts="auto")
def softmax(x, out, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    column = gl.arange(0, BLOCK)
    inside = column[None, :] < N
    place = row[:, None] * N + column[None, :]
    values = gl.load(x + place, mask=inside, other=-float("inf"))
    values = gl.exp(values - gl.max(values, 1)[:, None])
    gl.store(out + place, values / gl.sum(values, axis=1)[:, None], mask=inside)


@gluon.jit(layouts="auto")
def row_sums(x, out, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    acc = gl.zeros([ROWS], gl.float32)
    for start in range(0, N, BLOCK):
        column = start + gl.arange(0, BLOCK)
        values = gl.load(
            x + row[:, None] * N + column[None, :], mask=column[None, :] < N, other=0.0
        )
        acc += gl.sum(values, 1)
    gl.store(out + row, acc)


@gluon.jit(layouts="auto")
def matmul(a, b, c, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr, unit: gl.constexpr):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    along = gl.arange(0, STEP)
    acc = gl.zeros([BLOCK, BLOCK], gl.float32)
    for k in range(0, K, STEP):
        left = gl.load(a + rows * K + k + along[None, :])
        right = gl.load(b + (k + along[:, None]) * N + columns)
        if unit:
            acc = gl.portable.mma(left, right, acc)
        else:
            acc = gl.dot_fma(left.to(gl.float32), right.to(gl.float32), acc)
    gl.store(c + rows * N + columns, acc)


@gluon.jit
def halved(values):
    return values * 0.5


@gluon.jit(layouts="auto")
def reshaped(x, out, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    square = halved(gl.load(x + i)).reshape([BLOCK // 8, 8])
    gl.store(out + i, gl.permute(square, (1, 0)).reshape([BLOCK]))


def test_elementwise_on_every_architecture():
    x = np.arange(3000, dtype=np.float32)
    for target in SIMULATED:
        out = np.zeros_like(x)
        scale[(3,)](x, out, 3000, 1024, target=target)
        assert (out == x * 2).all(), target


@pytest.mark.parametrize("target", SIMULATED)
def test_transpose(target):
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    out = np.zeros((96, 64), np.float32)
    transpose[(2, 3)](x, out, 64, 96, 32, target=target)
    assert (out == x.T).all()


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_rows(target):
    x = np.random.default_rng(0).standard_normal((16, 100)).astype(np.float32)
    out, sums = np.zeros_like(x), np.zeros(16, np.float32)
    softmax[(2,)](x, out, 100, 8, 128, target=target)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(out, powers / powers.sum(1, keepdims=True), atol=1e-6)
    row_sums[(2,)](x, sums, 100, 8, 32, target=target)
    assert np.allclose(sums, x.sum(1), atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942", "sim:gfx1250"])
def test_matmul(target, unit):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    matmul[(2, 2)](a, b, c, 64, 64, 32, 32, unit, target=target)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


@gluon.jit(layouts="auto")
def joined(x, out, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    values = gl.load(x + i)
    first, second = gl.split(gl.join(values, values + 1))
    gl.store(out + i, first + second)


@gluon.jit(layouts="auto")
def middle(x, out, B: gl.constexpr):
    i = gl.arange(0, B)
    cube = gl.load(x + i[:, None, None] * B * B + i[None, :, None] * B + i[None, None, :])
    gl.store(out + i[:, None] * B + i[None, :], gl.sum(cube, 1))


@gluon.jit(layouts="auto")
def largest(x, out, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row = gl.arange(0, ROWS)
    values = gl.load(x + row[:, None] * BLOCK + gl.arange(0, BLOCK)[None, :])
    gl.store(out + row, gl.argmax(values, 1))


@gluon.jit(layouts="auto")
def stepped(x, out, flag, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    if flag > 0:
        values = gl.load(x + i)
    else:
        values = gl.zeros([BLOCK], gl.float32)
    k = 0
    while k < 3:
        values = gl.where(values > 2.0, values - 1.0, values)
        k += 1
    gl.atomic_add(out + i % 16, values)


def test_joins_cubes_pairs_and_control_flow():
    target = "sim:gfx942"
    x = np.random.default_rng(0).standard_normal((16, 16, 16)).astype(np.float32)
    flat, out = x.reshape(-1)[:256].copy(), np.zeros(256, np.float32)
    joined[(1,)](flat, out, 256, target=target)
    assert np.allclose(out, 2 * flat + 1)
    sums = np.zeros((16, 16), np.float32)
    middle[(1,)](x, sums, 16, target=target)
    assert np.allclose(sums, x.sum(1), atol=1e-5)
    places = np.zeros(16, np.int32)
    largest[(1,)](flat, places, 16, 16, target=target)
    assert (places == flat.reshape(16, 16).argmax(1)).all()
    wanted, bins = flat * 4, np.zeros(16, np.float32)
    stepped[(1,)](wanted, bins, 1, 256, target=target)
    for _ in range(3):
        wanted = np.where(wanted > 2, wanted - 1, wanted)
    assert np.allclose(bins, wanted.reshape(16, 16).sum(0), atol=1e-4)


def test_shapes_and_functions():
    x = np.arange(256, dtype=np.float32)
    out = np.zeros_like(x)
    reshaped[(1,)](x, out, 256, target="sim:hopper")
    assert (out == (x * 0.5).reshape(32, 8).T.reshape(-1)).all()


def code(kernel, target, key, **constants):
    compiled = gluon.compile(
        kernel,
        target=target,
        signature={"x": "*fp32:16", "out": "*fp32:16", "n": "i32:16"},
        constexprs={"BLOCK": 1024, **constants},
    )
    lines = compiled.asm[key].splitlines()
    return [line for line in lines if ".loc" not in line and ".file" not in line]


@pytest.mark.parametrize("target, key, lanes", [("sm_90", "ptx", 32), ("gfx942", "amdgcn", 64)])
def test_choice_is_the_one_by_hand(target, key, lanes):
    chosen = "\n".join(code(scale, target, key))
    wide = gl.BlockedLayout([4], [lanes], [4], [0])
    by_hand = "\n".join(code(scale_by_hand, target, key, layout=wide))
    for word in ("ld.global.v4", "global_load_dwordx4", "buffer_load_dwordx4"):
        assert chosen.count(word) == by_hand.count(word)
    assert any(word in chosen for word in ("v4", "dwordx4"))


@gluon.jit(layouts="auto")
def large_transpose(x, out, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    values = gl.load(x + i[:, None] * BLOCK + i[None, :])
    gl.store(out + i[:, None] * BLOCK + i[None, :], values.T)


def test_no_conversion_is_larger_than_shared_memory():
    """A tile of 256 KiB, whose conversion sm_90 cannot hold, is stored as it was loaded."""
    types = {"x": "*fp32:16", "out": "*fp32:16"}
    sizes = {"BLOCK": 256}
    compiled = gluon.compile(
        large_transpose, "sm_90", signature=types, constexprs=sizes, num_warps=8
    )
    assert compiled.metadata.shared < 227 * 1024


def test_layout_by_hand_stays():
    @gluon.jit(layouts="auto")
    def narrow(x, out, n, BLOCK: gl.constexpr):
        i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(out + i, gl.load(x + i))

    assert not any("v4" in line for line in code(narrow, "sm_90", "ptx"))


def test_refusals():
    with pytest.raises(ArgumentError, match="layouts"):
        gluon.jit(layouts="automatic")(differences.fn)
    x = np.zeros(1024, np.float32)
    with pytest.raises(LayoutError, match="cluster"):
        scale[(1,)](x, x, 1024, 1024, num_ctas=2, target="sim:hopper")


@gluon.jit
def differences(values):
    return values[:, None] - values[None, :]


@gluon.jit(layouts="auto")
def table(x, out, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    gl.store(out + i, gl.sum(differences(gl.load(x + i)), 1))


def test_conversions_within_functions():
    x = np.arange(64, dtype=np.float32)
    out = np.zeros_like(x)
    table[(1,)](x, out, 64, target="sim:hopper")
    assert np.allclose(out, (x[:, None] - x[None, :]).sum(1))


@gluon.jit(layouts="auto")
def two_dtypes(x, y, out, B: gl.constexpr):
    i = gl.arange(0, B)
    place = i[:, None] * B + i[None, :]
    half, byte = gl.load(x + place), gl.load(y + place)
    first = gl.portable.mma(half, half, gl.zeros([B, B], gl.float32))
    second = gl.portable.mma(byte, byte, gl.zeros([B, B], gl.int32))
    gl.store(out + place, first + second.to(gl.float32))


def test_products_with_layouts_of_their_own_share_a_sum():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 64)).astype(np.float16), rng.integers(-9, 9, (64, 64), np.int8)
    out = np.zeros((64, 64), np.float32)
    two_dtypes[(1,)](x, y, out, 64, target="sim:gfx942")
    whole = y.astype(np.int32)
    assert np.allclose(out, x.astype(np.float32) @ x.astype(np.float32) + whole @ whole, atol=1e-2)


@gluon.jit
def places_of(row, N, BLOCK: gl.constexpr):
    column = gl.arange(0, BLOCK)
    return row[:, None] * N + column[None, :], (column < N)[None, :]


@gluon.jit
def normalized(values):
    values = gl.exp(values - gl.max(values, 1)[:, None])
    return values / gl.sum(values, 1)[:, None]


@gluon.jit(layouts="auto")
def softmax_with_functions(x, out, wide, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    place, inside = places_of(row, N, BLOCK)
    values = gl.load(x + place, mask=inside, other=-float("inf"))
    gl.store(out + place, normalized(values), mask=inside)
    place, inside = places_of(row, 2 * N, 2 * BLOCK)
    gl.store(wide + place, place.to(gl.float32), mask=inside)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_functions_make_tensors_of_their_own(target):
    x = np.random.default_rng(0).standard_normal((16, 100)).astype(np.float32)
    out, wide = np.zeros_like(x), np.zeros((16, 200), np.float32)
    softmax_with_functions[(2,)](x, out, wide, 100, 8, 128, target=target)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(out, powers / powers.sum(1, keepdims=True), atol=1e-6)
    assert (wide.ravel() == np.arange(3200)).all()
    assert places_of.fn.__name__ == "places_of"  # the copies with layouts are others


@gluon.jit(layouts="auto")
def counted(x, out, n, BINS: gl.constexpr, BLOCK: gl.constexpr):
    place = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    values = gl.load(x + place, mask=place < n, other=0)
    gl.atomic_add(out + gl.arange(0, BINS), gl.histogram(values, BINS, mask=place < n))


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_bins_have_a_layout_of_their_own(target):
    x = np.random.default_rng(0).integers(0, 16, 300).astype(np.int32)
    out = np.zeros(16, np.int32)
    counted[(3,)](x, out, 300, 16, 128, target=target)
    assert (out == np.bincount(x, minlength=16)).all()
    signature = {"x": "*i32:16", "out": "*i32:16", "n": "i32"}
    asked = gluon.compile(
        counted, target=target[4:], signature=signature, constexprs={"BINS": 16, "BLOCK": 128}
    )
    assert "tt.histogram" in asked.asm["ttgir"]


@gluon.jit(layouts="auto")
def moved(x, out, M, N, B: gl.constexpr, MASKED: gl.constexpr):
    i = gl.program_id(0) * B + gl.arange(0, B)
    j = gl.program_id(1) * B + gl.arange(0, B)
    place = i[:, None] * N + j[None, :]
    if MASKED:
        inside = (i < M)[:, None] & (j < M)[None, :]
        gl.store(out + place, gl.load(x + place, mask=inside), mask=inside)
    else:
        gl.store(out + place, gl.load(x + place))


@pytest.mark.parametrize(
    "sizes, masked, bits",
    [
        (("i32:16", "i32:16"), True, 128),
        (("i32", "i32:16"), False, 128),
        (("i32", "i32:16"), True, 16),  # the mask ends anywhere
        (("i32:16", "i32"), False, 16),  # rows begin anywhere
    ],
)
def test_threads_move_as_much_as_is_surely_aligned(sizes, masked, bits):
    """One instruction moves the elements of a thread: a vector in parts would leave gaps between lanes."""
    signature = {"x": "*fp16:16", "out": "*fp16:16", "M": sizes[0], "N": sizes[1]}
    constants = {"B": 64, "MASKED": masked}
    asked = gluon.compile(moved, target="sm_90", signature=signature, constexprs=constants)
    assert f"sizePerThread = [1, {bits // 16}]" in asked.asm["ttgir"]
    wide = "ld.global.v4.b32" in asked.asm["ptx"]
    assert wide == (bits == 128)


@gluon.jit(layouts="auto")
def strips(x, out, M, N, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    i = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    j = gl.program_id(1) * COLUMNS + gl.arange(0, COLUMNS)
    inside = (i < M)[:, None] & (j < N)[None, :]
    place = (i * N)[:, None] + j[None, :]
    gl.store(out + place, gl.load(x + place, mask=inside), mask=inside)


def test_lanes_move_neighbours_where_threads_cannot():
    """Bytes of lanes four apart would be parts of four sectors, which each of four instructions moves."""
    signature = {"x": "*i8:16", "out": "*i8:16", "M": "i32", "N": "i32"}
    constants = {"ROWS": 8, "COLUMNS": 256}
    asked = gluon.compile(strips, target="sm_90", signature=signature, constexprs=constants)
    assert "sizePerThread = [1, 1]" in asked.asm["ttgir"]


@gluon.jit(layouts="auto")
def wrapped(x, out, N, B: gl.constexpr, CLAIMED: gl.constexpr):
    j = (gl.program_id(0) * B + gl.arange(0, B)) % N
    if CLAIMED:
        j = gl.max_contiguous(gl.multiple_of(j, B), B)
    gl.store(out + j, gl.load(x + j))


@pytest.mark.parametrize("claimed, size", [(False, 1), (True, 4)])
def test_claims_of_the_source_count(claimed, size):
    asked = gluon.compile(
        wrapped,
        target="sm_90",
        signature={"x": "*fp32:16", "out": "*fp32:16", "N": "i32"},
        constexprs={"B": 1024, "CLAIMED": claimed},
    )
    assert f"sizePerThread = [{size}]" in asked.asm["ttgir"]
    assert ("v4.b32" in asked.asm["ptx"]) == claimed


@gluon.jit
def doubled(pointers, inside):
    """Double elements, at places that the caller has bounded."""
    gl.store(pointers, gl.load(pointers, mask=inside) * 2, mask=inside)


@gluon.jit(layouts="auto")
def bounded(x, N, WHOLE: gl.constexpr, B: gl.constexpr):
    i = gl.program_id(0) * B + gl.arange(0, B)
    doubled(x + i, i < N // WHOLE * WHOLE)


@pytest.mark.parametrize("whole", [1, 4])
def test_functions_know_the_bounds_of_masks_that_they_are_given(whole):
    signature, constants = {"x": "*fp32:16", "N": "i32"}, {"WHOLE": whole, "B": 1024}
    asked = gluon.compile(bounded, target="sm_90", signature=signature, constexprs=constants)
    assert f"sizePerThread = [{whole}]" in asked.asm["ttgir"]


@gluon.jit(layouts="auto")
def printing(x, N: gl.constexpr):
    gl.static_print("elements:", N)
    gl.store(x + gl.arange(0, N), 1.0)


def test_static_prints_once(capsys):
    """Choosing layouts traces a kernel several times; only compiling it prints."""
    printing[(1,)](np.zeros(64, np.float32), 64, target="sim:hopper")
    assert capsys.readouterr().out.count("elements: 64") == 1


@gluon.jit(layouts="auto")
def repeated(x, out, N: gl.constexpr):
    """Take the first column for each column; the zeros have a row's layout."""
    places = gl.arange(0, N)
    zeros, ones = gl.zeros_like(places), gl.full_like(places, 1)
    first = gl.load(x + places[:, None] * N + zeros[None, :])
    gl.store(out + places[:, None] * N + places[None, :], first * ones[:, None])


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_like_another_tensor_but_for_its_layout(target):
    x = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    out = np.zeros_like(x)
    repeated[(1,)](x, out, 32, target=target)
    assert np.array_equal(out, np.repeat(x[:, :1], 32, 1))


@gluon.jit(layouts="auto")
def paired(x, y, z, out, M: gl.constexpr, N: gl.constexpr):
    """Broadcast a column and a row, and a row to a tile whose columns are neighbours."""
    row, column = gl.arange(0, M)[:, None], gl.arange(0, N)[None, :]
    one, other = gl.broadcast(gl.load(x + row), gl.load(y + column))
    again, tile = gl.broadcast(gl.load(y + column), gl.load(z + column * M + row))
    gl.store(out + row * N + column, one * other + again * tile)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_broadcast_operands_have_one_layout(target):
    x, y = np.arange(32, dtype=np.float32), np.arange(64, dtype=np.float32)
    z, out = np.arange(64 * 32, dtype=np.float32).reshape(64, 32), np.zeros((32, 64), np.float32)
    paired[(1,)](x, y, z, out, 32, 64, target=target)
    assert np.array_equal(out, x[:, None] * y + y * z.T)


@gluon.jit(layouts="auto")
def small_sums(x, out, B: gl.constexpr):
    i = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    gl.store(out + i, gl.associative_scan(gl.load(x + i), 0, _added))


@gluon.jit
def _added(a, b):
    return a + b


def test_the_last_warps_repeat_others():
    """Two warps have all elements of the tile: scans and stores leave out the others by one bit."""
    signature = {"x": "*fp32:16", "out": "*fp32:16"}
    compiled = gluon.compile(small_sums, target="sm_90", signature=signature, constexprs={"B": 8})
    assert "warpsPerCTA = [4, 1]" in compiled.asm["ttgir"]
    assert "warpsPerCTA = [2, 2]" not in compiled.asm["ttgir"]


@gluon.jit(layouts="auto")
def of_any_depth(a, b, c, K, stride, B: gl.constexpr):
    """A product whose mask ends anywhere, so that elements are loaded one by one."""
    rows, k = gl.arange(0, B), gl.arange(0, B)
    acc = gl.zeros((B, B), gl.float32)
    for first in range(0, K, B):
        inside = first + k < K
        x = gl.load(a + rows[:, None] * stride + first + k[None, :], inside[None, :], 0.0)
        y = gl.load(b + (first + k[:, None]) * B + rows[None, :], inside[:, None], 0.0)
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@pytest.mark.parametrize("target, each", [("sm_90", 2), ("gfx942", 1)])
def test_elements_loaded_one_by_one_lie_in_pairs(target, each):
    """Half the addresses in a loop: measured on NVIDIA's GPUs alone."""
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32", "stride": "i32"}
    asked = gluon.compile(of_any_depth, target=target, signature=signature, constexprs={"B": 32})
    loads = re.findall(r"tt.load .*x!tt.ptr<f16>, (#\w+)>", asked.asm["ttgir"])
    layout = re.search(rf"{loads[0]} = .*sizePerThread = \[1, (\d)\]", asked.asm["ttgir"])
    assert int(layout[1]) == each
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float16) for s in ((32, 70), (70, 32)))
    out = np.zeros((32, 32), np.float32)
    twin = f"sim:{target}"
    of_any_depth[(1,)](x, y, out, 70, 70, 32, target=twin)
    assert np.allclose(out, x.astype(np.float32) @ y.astype(np.float32), atol=1e-2)


@gluon.jit(layouts="auto")
def two_of_a_row(x, out, M: gl.constexpr, N: gl.constexpr):
    """Store the sum of each row and its largest element."""
    row, which = gl.arange(0, M), gl.arange(0, 2)
    tile = gl.load(x + row[:, None] * N + gl.arange(0, N)[None, :])
    both = gl.where(which[None, :] == 0, gl.sum(tile, 1)[:, None], gl.max(tile, 1)[:, None])
    gl.store(out + row[:, None] * 2 + which[None, :], both)


def test_no_thread_stores_copies_of_its_elements():
    """A thread of the tile's layout holds each of the two elements twice, and would store both copies."""
    signature, sizes = {"x": "*fp32:16", "out": "*fp32:16"}, {"M": 32, "N": 64}
    compiled = gluon.compile(two_of_a_row, target="sm_90", signature=signature, constexprs=sizes)
    assert compiled.asm["ptx"].count("st.global") == 1


@gluon.jit(layouts="auto")
def numbered(x, counts, ranks, out, N: gl.constexpr, BINS: gl.constexpr):
    """Number the elements of each bin, and store them far apart."""
    i = gl.arange(0, N)
    one = (gl.load(x + i)[:, None] == gl.arange(0, BINS)[None, :]).to(gl.int32)
    first = gl.atomic_add(counts + gl.arange(0, BINS), gl.sum(one, 0))
    before = gl.associative_scan(one, 0, _added) - one
    gl.store(ranks + i, gl.sum((before + first[None, :]) * one, 1))
    gl.store(out + i * 16, i.to(gl.float16))


def test_lanes_share_atomic_ops():
    """An atomic op waits for memory: one of a warp does for all bins."""
    signature = {"x": "*i32:16", "counts": "*i32:16", "ranks": "*i32:16", "out": "*fp16:16"}
    sizes = {"N": 256, "BINS": 64}
    compiled = gluon.compile(numbered, target="sm_90", signature=signature, constexprs=sizes)
    assert compiled.asm["ptx"].count("atom.global") == 1
