"""Copies through host-side and in-kernel TMA descriptors: on the simulator, and on a real GPU."""

import itertools
import re

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia import NVMMASharedLayout
from gluon_core.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


def has_tma():
    target = registry().backend("nvidia").device.target()
    return target is not None and target.has("nvidia.tma")


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not has_tma(), reason="no NVIDIA GPU with TMA"),
            ],
        ),
    ]
)
def device(request, monkeypatch, tmp_path):
    """Return the device of the tensors; those on the CPU go to the simulator."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if request.param == "cpu":
        monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    else:
        monkeypatch.delenv("GLUON_TARGET", raising=False)
    for kernel in globals().values():
        if isinstance(kernel, gluon.GluonJITFunction):
            kernel.forget()
    return request.param


gpu_only = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_tma(), reason="no NVIDIA GPU with TMA"),
]


@gluon.jit
def load_box(desc, coords, smem, bar, phase):
    mbarrier.expect(bar, desc.nbytes_per_cta)
    tma.async_load(desc, coords, bar, smem)
    mbarrier.wait(bar, phase)


@gluon.jit
def copy_boxes(src, dst, COUNTS: gl.constexpr, REPEAT: gl.constexpr = 1):
    """Program p loads box p of `src` some times and stores it to the same place of `dst`."""
    smem = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    left = gl.program_id(0)
    coords = ()
    for dim in gl.static_range(len(COUNTS) - 1, -1, -1):
        coords = ((left % COUNTS[dim]) * src.block_type.shape[dim],) + coords
        left = left // COUNTS[dim]
    for turn in range(REPEAT):
        load_box(src, coords, smem, bar, turn % 2)
    fence_async_shared()
    tma.async_store(dst, coords, smem)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


@gluon.jit
def copy_pairs(pairs, n, COUNTS: gl.constexpr):
    """The same for descriptors in nested tuples."""
    copy_boxes(pairs[0][0], pairs[0][1], COUNTS)
    copy_boxes(pairs[1][0], pairs[1][1], COUNTS, n)


@gluon.jit
def read_box(desc, out, y, x, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """A box at (y, x), which may lie outside, to the plain tensor `out`."""
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    load_box(desc, [y, x], smem, bar, 0)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out + rows[:, None] * COLUMNS + columns[None, :], smem.load(LAYOUT))
    mbarrier.invalidate(bar)


@gluon.jit
def copy_own(
    src, dst, rows, columns, SHAPE: gl.constexpr, LAYOUT: gl.constexpr, ROWS: gl.constexpr = True
):
    """Descriptors of each program's ROWS, which live in scratch memory, or of all rows, which launches on a GPU make."""
    y = gl.program_id(0) * SHAPE[0]
    if ROWS:
        src, dst, rows, y = src + y * columns, dst + y * columns, rows - y, 0
    a = tma.make_tensor_descriptor(src, [rows, columns], [columns, 1], SHAPE, LAYOUT)
    b = tma.make_tensor_descriptor(dst, [rows, columns], [columns, 1], SHAPE, LAYOUT)
    smem = gl.allocate_shared_memory(a.dtype, SHAPE, LAYOUT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    for x in range(0, columns, SHAPE[1]):
        load_box(a, [y, x], smem, bar, (x // SHAPE[1]) % 2)
        fence_async_shared()
        tma.async_store(b, [y, x], smem)
        tma.store_wait(0)
    mbarrier.invalidate(bar)


@gluon.jit
def fetch(desc, smem, bar):
    mbarrier.expect(bar, desc.nbytes_per_cta)
    tma.async_load(desc, [0, 0], bar, smem)


@gluon.jit
def use(out, smem, bar, LAYOUT: gl.constexpr):
    mbarrier.wait(bar, 0)
    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out + rows[:, None] * 64 + columns[None, :], smem.load(LAYOUT))


@gluon.jit
def copy_by_partitions(desc, out, LAYOUT: gl.constexpr, WARPS: gl.constexpr):
    """One partition loads, the other stores: the block has more threads than the kernel."""
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    gl.warp_specialize([(use, (out, smem, bar, LAYOUT)), (fetch, (desc, smem, bar))], [WARPS], [24])


@gluon.jit
def gather_pixels(desc, out, n, y, x, OFFSETS: gl.constexpr, LAYOUT: gl.constexpr):
    """64 pixels of 64 channels, from pixel (y, x) of image n on, moved by the offsets."""
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, desc.nbytes_per_cta)
    tma.async_load_im2col(desc, [n, y, x, 0], OFFSETS, bar, smem)
    mbarrier.wait(bar, 0)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out + rows[:, None] * 64 + columns[None, :], smem.load(LAYOUT))
    mbarrier.invalidate(bar)


DTYPES = {
    "float16": gl.float16,
    "bfloat16": gl.bfloat16,
    "float32": gl.float32,
    "int8": gl.int8,
    "uint8": gl.uint8,
    "int16": gl.int16,
    "int32": gl.int32,
    "float8_e5m2": gl.float8e5,
    "float8_e4m3fn": gl.float8e4nv,
}


def random(shape, dtype, device):
    kind = getattr(torch, dtype)
    if kind.itemsize == 1:
        return torch.randint(0, 100, shape, dtype=torch.uint8).view(kind).to(device)
    if kind.is_floating_point:
        return torch.randn(shape).to(kind).to(device)
    return torch.randint(-1000, 1000, shape, dtype=kind).to(device)


def described(tensor, block, swizzle=None, **more):
    name = str(tensor.dtype).rpartition(".")[2]
    layout = NVMMASharedLayout.get_default_for(block, DTYPES[name])
    if swizzle is not None:
        layout = NVMMASharedLayout(swizzle, layout.element_bitwidth, len(block))
    return TensorDescriptor.from_tensor(tensor, block, layout, **more)


def equal(a, b):
    return torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


def counts(shape, block):
    return tuple(-(-extent // size) for extent, size in zip(shape, block))


BOXES = {
    1: ([300 - 300 % 8], [64]),
    2: ([40, 136], [16, 64]),
    3: ([3, 20, 72], [1, 16, 64]),
    4: ([2, 3, 12, 64], [2, 1, 8, 32]),
    5: ([2, 1, 3, 10, 64], [1, 1, 2, 8, 64]),
}


@pytest.mark.parametrize("rank", BOXES)
def test_copies_of_every_rank_leave_out_elements_outside(device, rank):
    shape, block = BOXES[rank]
    src = random(shape, "float16", device)
    dst = torch.zeros_like(src)
    tiles = counts(shape, block)
    grid = torch.tensor(tiles).prod().item()
    copy_boxes[(grid,)](described(src, block), described(dst, block), tiles)
    assert equal(src, dst)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(device, dtype):
    src = random([32, 128], dtype, device)
    dst = torch.zeros_like(src)
    copy_boxes[(4,)](described(src, [16, 64]), described(dst, [16, 64]), (2, 2))
    assert equal(src, dst)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("block", [[16, 64], [8, 128], [256, 64]])
def test_every_swizzle_and_wide_boxes(device, swizzle, block):
    src = random([256, 256], "float16", device)
    dst = torch.zeros_like(src)
    tiles = counts(src.shape, block)
    a, b = (described(t, block, swizzle=swizzle) for t in (src, dst))
    copy_boxes[(tiles[0] * tiles[1],)](a, b, tiles)
    assert equal(src, dst)


def test_a_box_higher_than_one_message(device):
    src = random([512, 32], "float16", device)
    dst = torch.zeros_like(src)
    copy_boxes[(1,)](described(src, [512, 32]), described(dst, [512, 32]), (1, 1))
    assert equal(src, dst)


def test_strided_tensors(device):
    room = random([64, 256], "float16", device)
    out = torch.zeros_like(room)
    src, dst = room[8:40:2, 64:128], out[8:40:2, 64:128]
    copy_boxes[(1,)](described(src, [16, 64]), described(dst, [16, 64]), (1, 1))
    expected = torch.zeros_like(room)
    expected[8:40:2, 64:128] = src
    assert equal(out, expected)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("y, x", [(0, 0), (24, 96), (-3, -8), (100, 0)])
def test_outside_of_the_tensor(device, padding, dtype, y, x):
    src = random([30, 100], dtype, device)
    padded = torch.zeros(30, 104, dtype=src.dtype, device=device)
    padded[:, :100] = src
    block = [16, 64]
    desc = described(padded[:, :100], block, padding=padding)
    out = torch.zeros(block, dtype=src.dtype, device=device)
    layout = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    read_box[(1,)](desc, out, y, x, 16, 64, layout)
    fill = 0.0 if padding == "zero" else float("nan")
    expected = torch.full(block, fill, dtype=src.dtype)
    for i, j in itertools.product(range(16), range(64)):
        if 0 <= y + i < 30 and 0 <= x + j < 100:
            expected[i, j] = src[y + i, x + j]
    torch.testing.assert_close(out.cpu(), expected, equal_nan=True, rtol=0, atol=0)


def test_rounding_to_tf32(device):
    src = random([16, 32], "float32", device)
    out = torch.zeros_like(src)
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0])
    read_box[(1,)](described(src, [16, 32], round_f32_to_tf32=True), out, 0, 0, 16, 32, layout)
    bits = out.cpu().view(torch.int32)
    assert not (bits & 0x1FFF).any()
    torch.testing.assert_close(out.cpu(), src.cpu(), rtol=2**-10, atol=0)
    assert not equal(out, src)


def test_descriptors_in_tuples(device):
    a, b = random([32, 64], "float16", device), random([32, 64], "float32", device)
    c, d = torch.zeros_like(a), torch.zeros_like(b)
    pairs = tuple(tuple(described(t, [16, 32]) for t in two) for two in ((a, c), (b, d)))
    for _ in range(2):
        copy_pairs[(4,)](pairs, 3, (2, 2))
        assert equal(a, c) and equal(b, d)
        c.zero_()
        d.zero_()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("allocator", ["own", "user's"])
def test_descriptors_that_a_kernel_makes(device, allocator, rows):
    from triton.runtime import _allocation

    asked = []

    def allocate(size, alignment, stream):
        asked.append(size)
        return torch.empty(size, dtype=torch.int8, device=device)

    src = random([48, 192], "float16", device)
    dst = torch.zeros_like(src)
    layout = NVMMASharedLayout(128, 16, 2)
    token = _allocation._allocator.set(allocate) if allocator != "own" else None
    try:
        for _ in range(3):
            copy_own[(3,)](src, dst, 48, 192, [16, 64], layout, rows)
    finally:
        if token is not None:
            _allocation._allocator.reset(token)
    assert equal(src, dst)
    assert bool(asked) == (allocator != "own" and device == "cuda" and rows)


def test_one_kernel_for_many_tensors_and_one_descriptor_for_many_boxes(device):
    tensors = [random([32, 64], "float16", device) for _ in range(5)]
    out = torch.zeros_like(tensors[0])
    for _ in range(2):
        for tensor in tensors:
            copy_boxes[(4,)](described(tensor, [16, 32]), described(out, [16, 32]), (2, 2))
            assert equal(tensor, out)
    a, b = described(tensors[0], [16, 32]), described(out, [16, 32])
    for rows in (8, 16, 32):
        out.zero_()
        a.block_shape = b.block_shape = [rows, 32]
        copy_boxes[(64 // rows,)](a, b, (32 // rows, 2))
        assert equal(tensors[0], out)
    b.base = other = torch.zeros_like(out)
    copy_boxes[(2,)](a, b, (1, 2))
    assert equal(tensors[0], other)


@pytest.mark.skipif(not triton_at_least(3, 8), reason="Triton 3.8 brings im2col")
@pytest.mark.parametrize("offsets", list(itertools.product(range(3), range(3))))
@pytest.mark.parametrize("first", [0, 14 * 16, 5 * 16 + 3])
def test_pixels_of_a_convolution(device, offsets, first):
    """A 3x3 filter over images padded by one pixel: the pixels that one of its taps sees."""
    images = random([2, 16, 16, 64], "float16", device)
    layout = NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    desc = TensorDescriptorIm2Col.from_tensor(
        images, [64, 64], layout, pixel_box_lower_corner=[-1, -1], pixel_box_upper_corner=[-1, -1]
    )
    out = torch.zeros(64, 64, dtype=torch.float16, device=device)
    y, x = divmod(first, 16)
    wide = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    gather_pixels[(1,)](desc, out, 0, y - 1, x - 1, offsets, wide)
    padded = torch.nn.functional.pad(images.cpu(), (0, 0, 1, 1, 1, 1))
    for pixel in range(64):
        n, rest = divmod(first + pixel, 256)
        y, x = divmod(rest, 16)
        assert equal(out[pixel], padded[n, y + offsets[0], x + offsets[1]]), pixel


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_partitions_get_their_warps(device, warps):
    src = random([16, 64], "float16", device)
    out = torch.zeros_like(src)
    args = (described(src, [16, 64]), out, gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]), warps)
    copy_by_partitions[(1,)](*args)
    assert equal(src, out)
    compiled = copy_by_partitions.warmup(*args, grid=1, target="sm_90")
    (threads,) = re.findall(r"\.reqntid (\d+)", compiled.asm["ptx"])
    assert int(threads) == 32 * compiled.metadata.num_warps >= 32 * (4 + warps)


def test_a_prepared_handle(device):
    src = random([32, 64], "float16", device)
    out = torch.zeros_like(src)
    a, b = described(src, [16, 32]), described(out, [16, 32])
    handle = copy_boxes.prepare(a, b, (2, 2), grid=(4,))
    handle(a, b, (2, 2), 1)
    assert equal(src, out)


# ---- a real GPU only --------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    for kernel in globals().values():
        if isinstance(kernel, gluon.GluonJITFunction):
            kernel.forget()


class TestOnGpu:
    pytestmark = gpu_only

    def test_launches_with_descriptors_made_anew(self, gpu):
        src = random([32, 64], "float16", "cuda")
        out = torch.zeros_like(src)
        for _ in range(3):
            copy_boxes[(4,)](described(src, [16, 32]), described(out, [16, 32]), (2, 2))
        assert equal(src, out)

    @pytest.mark.parametrize("own", [None, False, True])
    def test_a_graph_captures_and_replays(self, gpu, own):
        src = random([48, 192], "float16", "cuda")
        out = torch.zeros_like(src)
        layout = NVMMASharedLayout(128, 16, 2)

        def launch():
            if own is not None:
                copy_own[(3,)](src, out, 48, 192, [16, 64], layout, own)
            else:
                copy_boxes[(9,)](described(src, [16, 64]), described(out, [16, 64]), (3, 3))

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        for _ in range(2):
            src.copy_(random([48, 192], "float16", "cuda"))
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert equal(src, out)

    def test_own_descriptors_on_a_side_stream(self, gpu):
        src = random([48, 192], "float16", "cuda")
        out = torch.zeros_like(src)
        layout = NVMMASharedLayout(128, 16, 2)
        streams = [torch.cuda.Stream() for _ in range(4)]
        torch.cuda.synchronize()
        for turn in range(40):
            with torch.cuda.stream(streams[turn % 4]):
                copy_own[(3,)](src, out, 48, 192, [16, 64], layout)
        torch.cuda.synchronize()
        assert equal(src, out)

    def test_clusters(self, gpu):
        src = random([64, 64], "float16", "cuda")
        out = torch.zeros_like(src)
        layout = NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])
        a, b = (TensorDescriptor.from_tensor(t, [32, 64], layout) for t in (src, out))
        for cooperative in (False, True):
            out.zero_()
            copy_clusters[(2,)](a, b, num_ctas=2, launch_cooperative_grid=cooperative)
            assert equal(src, out)

    def test_a_tensor_elsewhere_is_refused(self, gpu):
        from gluon_core.errors import DeviceError

        src = random([32, 64], "float16", "cpu")
        with pytest.raises(DeviceError, match=r"\.cuda\(\)"):
            copy_boxes[(4,)](described(src, [16, 32]), described(src, [16, 32]), (2, 2))


@gluon.jit
def copy_clusters(src, dst):
    """Each of two blocks copies its half of a box."""
    smem = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    y = gl.program_id(0) * src.block_type.shape[0]
    load_box(src, [y, 0], smem, bar, 0)
    fence_async_shared()
    tma.async_store(dst, [y, 0], smem)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


# ---- the simulator only -----------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("store", [False, True])
def test_a_descriptor_of_more_than_its_tensor_is_found_out(device, store):
    src, out = random([32, 64], "float16", device), torch.zeros(64, 64, dtype=torch.float16)
    layout = NVMMASharedLayout.get_default_for([16, 64], gl.float16)
    small = TensorDescriptor(src, [64, 64], [64, 1], [16, 64], layout)
    large = described(out, [16, 64])
    args = (large, small) if store else (small, large)
    copy_boxes[(2,)](*args, (2, 1))
    with pytest.raises(GluonError, match=r"src\.base|dst\.base"):
        copy_boxes[(3,)](*args, (3, 1))


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_numpy_arrays(device):
    src = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    out = np.zeros_like(src)
    layout = NVMMASharedLayout.get_default_for([16, 32], gl.float32)
    a, b = (TensorDescriptor.from_tensor(t, [16, 32], layout) for t in (src, out))
    copy_boxes[(4,)](a, b, (2, 2))
    assert (src == out).all()
