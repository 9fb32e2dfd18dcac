"""Programs that were refused, aborted or reported once: each runs on the simulator, and compiles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gluon_core.testing import TRITON_VERSION

torch = pytest.importorskip("torch")

import gluon_core as gluon  # noqa: E402
from gluon_core import errors, testing  # noqa: E402
from gluon_core import language as gl  # noqa: E402
from gluon_core.nvidia.hopper import TensorDescriptor  # noqa: E402

pytestmark = pytest.mark.sampled(4)

RELEASE = TRITON_VERSION[:2]
hopper, blackwell = gl.nvidia.hopper, gl.nvidia.blackwell


def launch(kernel, *args, target="sim:sm_90", grid=(1,), **options):
    """Run on the simulator; then machine code of the same kernel."""
    handle = kernel[grid](*args, target=target, **options)
    kind = "hsaco" if "gfx" in target else "cubin"
    assert len(handle.asm[kind]) > 500
    return handle


# -- layouts that only some ops cannot have -----------------------------------------------------

# Made where the file is loaded, and not used: nothing to refuse.
UNUSED = [
    gl.NVMMADistributedLayout([2], [3, 1], [16, 24]),
    gl.SwizzledSharedLayout(0, 1, 1, [1, 0]),
    gl.BlockedLayout([3], [32], [4], [0]),
    gl.DistributedLinearLayout([[1, 1]], [[0, 1]], [], [], [2, 2]),
    blackwell.TensorMemoryLayout([32, 64], 1),
    gl.amd.AMDMFMALayout(3, [32, 32, 3], True, [4, 1]),
]


@gluon.jit
def _in_layout(
    src, dst, LAYOUT: gl.constexpr, PLAIN: gl.constexpr, M: gl.constexpr, N: gl.constexpr
):
    rows = gl.arange(0, M, gl.SliceLayout(1, PLAIN))
    columns = gl.arange(0, N, gl.SliceLayout(0, PLAIN))
    offsets = rows[:, None] * N + columns[None, :]
    x = gl.convert_layout(gl.load(src + offsets), LAYOUT)
    total = gl.sum(x * 2, 1)
    gl.store(dst + rows, gl.convert_layout(total, gl.SliceLayout(1, PLAIN)))


@pytest.mark.once
@pytest.mark.parametrize(
    "layout, target",
    [
        (gl.NVMMADistributedLayout([3, 0], [2, 2], [16, 32, 16]), "sm_90"),
        (gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), "sm_80"),
        (gl.SliceLayout(0, gl.NVMMADistributedLayout([2, 0], [1, 2, 2], [1, 16, 8])), "sm_80"),
        (gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [2, 2], element_bitwidth=64), "gfx942"),
        (gl.amd.AMDMFMALayout(3, [16, 16, 16], True, [2, 2], None, [2, 1, 4]), "gfx942"),
    ],
)
def test_a_tensor_has_any_layout_that_a_compiler_has(layout, target):
    lanes = 64 if "gfx" in target else 32
    plain = gl.BlockedLayout([1, 4], [lanes // 8, 8], [4, 1], [1, 0])
    x, out = torch.randn(64, 64), torch.zeros(64)
    launch(_in_layout, x, out, layout, plain, 64, 64, target=f"sim:{target}")
    torch.testing.assert_close(out, 2 * x.sum(1))


@pytest.mark.skipif(
    RELEASE == (3, 8), reason="the compiler of Triton 3.8 aborts on warps across dimensions"
)
def test_bases_of_several_bits():
    layout = gl.DistributedLinearLayout(
        [[0, 2], [4, 0]],
        [[0, 9], [2, 0], [0, 1], [1, 0], [0, 4]],
        [[14, 0], [0, 0]],
        [],
        [16, 16],
    )
    plain = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])

    @gluon.jit
    def kernel(src, dst, LAYOUT: gl.constexpr, PLAIN: gl.constexpr):
        rows = gl.arange(0, 16, gl.SliceLayout(1, PLAIN))
        offsets = rows[:, None] * 16 + gl.arange(0, 16, gl.SliceLayout(0, PLAIN))[None, :]
        x = gl.convert_layout(gl.load(src + offsets), LAYOUT)
        gl.store(dst + offsets, gl.convert_layout(x + 1, PLAIN))

    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    launch(kernel, x, out, layout, plain)
    assert torch.equal(out, x + 1)


# -- ops on shapes and layouts --------------------------------------------------------------------


def test_a_pair_is_split_into_scalars():
    @gluon.jit
    def kernel(src, dst):
        row: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 2], [32, 1], [4, 1], [1, 0]))
        pair = gl.load(src + gl.arange(0, 2, row))
        a, b = gl.split(pair)
        gl.store(dst, a - b)

    x, out = torch.tensor([5, 3], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch(kernel, x, out)
    assert out.item() == 2


@gluon.jit
def _slices_of_buffers(dst, START: gl.constexpr):
    row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffers = gl.allocate_shared_memory(gl.int32, [4, 128], flat)
    offsets = gl.arange(0, 128, row)
    for i in gl.static_range(4):
        buffers.index(i).store(offsets + 1000 * i)
    gl.thread_barrier()
    part = buffers.slice(START, 2, 0)
    gl.store(dst + offsets, part.index(1).load(row))


def test_buffers_are_sliced_where_the_compiler_can():
    out = torch.zeros(128, dtype=torch.int32)
    if RELEASE < (3, 9):
        with pytest.raises(errors.GluonError) as caught:
            _slices_of_buffers[(1,)](out, 1, target="sim:sm_90")
        assert "buffers.slice(START, 2, 0)" in caught.value.span.text
        return
    launch(_slices_of_buffers, out, 1)
    assert torch.equal(out, torch.arange(128, dtype=torch.int32) + 2000)


@gluon.jit
def _slices_of_tensor_memory(dst, START: gl.constexpr):
    layout: gl.constexpr = blackwell.TensorMemoryLayout([128, 32], col_stride=1)
    rows: gl.constexpr = gl.BlockedLayout([1, 32], [32, 1], [4, 1], [0, 1])
    buffers = blackwell.allocate_tensor_memory(gl.float32, [4, 128, 32], layout)
    offsets = gl.arange(0, 128, gl.SliceLayout(1, rows))[:, None] * 32
    offsets += gl.arange(0, 32, gl.SliceLayout(0, rows))[None, :]
    for i in gl.static_range(4):
        buffers.index(i).store((offsets + 10000 * i).to(gl.float32))
    part = buffers.slice(START, 3, 0).slice(1, 2, 0)
    gl.store(dst + offsets, part.index(1).load(rows))


@pytest.mark.skipif(RELEASE < (3, 9), reason="slices of copies came with Triton 3.9")
@pytest.mark.parametrize("start", [0, 1])
def test_copies_in_tensor_memory_are_sliced(start):
    out = torch.zeros(128, 32)
    launch(_slices_of_tensor_memory, out, start, target="sim:sm_100")
    want = torch.arange(128 * 32).reshape(128, 32) + 10000 * (start + 2)
    assert torch.equal(out, want.float())


@pytest.mark.parametrize("open_layout", ["AutoLayout", "CoalescedLayout"])
def test_a_conversion_may_leave_the_layout_open(open_layout):
    if open_layout == "CoalescedLayout" and RELEASE < (3, 7):
        pytest.skip("this Triton resolves no CoalescedLayout")

    @gluon.jit
    def kernel(src, dst, OPEN: gl.constexpr):
        row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        x = gl.convert_layout(gl.load(src + gl.arange(0, 256, row)), OPEN)
        offsets = gl.arange(0, 256, OPEN)
        if OPEN == gl.AutoLayout():
            offsets = gl.set_auto_layout(offsets, row)
        gl.store(
            dst + offsets, x + 1 if OPEN != gl.AutoLayout() else gl.set_auto_layout(x + 1, row)
        )

    x, out = torch.randn(256), torch.zeros(256)
    launch(kernel, x, out, getattr(gl, open_layout)())
    assert torch.equal(out, x + 1)


@pytest.mark.once
def test_a_permutation_of_registers_is_a_trivial_conversion():
    lanes, warps = [[1], [2], [4], [8], [16]], [[32], [64]]
    one = gl.DistributedLinearLayout([[128], [256]], lanes, warps, [], [512])
    other = gl.DistributedLinearLayout([[256], [128]], lanes, warps, [], [512])

    @gluon.jit
    def kernel(dst, ONE: gl.constexpr, OTHER: gl.constexpr):
        x = gl.convert_layout(gl.arange(0, 512, ONE), OTHER, assert_trivial=True)
        gl.store(dst + gl.arange(0, 512, OTHER), x)

    out = torch.zeros(512, dtype=torch.int32)
    launch(kernel, out, one, other)
    assert torch.equal(out, torch.arange(512, dtype=torch.int32))


# -- clusters, limits -----------------------------------------------------------------------------


def test_shared_memory_is_that_of_one_block():
    @gluon.jit
    def kernel(dst):
        rows: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0], [[1, 0]])
        flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0], [[1, 0]])
        buffer = gl.allocate_shared_memory(gl.float32, [512, 128], flat)
        buffer.store(gl.full([512, 128], 2.0, gl.float32, rows))
        gl.thread_barrier()
        offsets = gl.arange(0, 512, gl.SliceLayout(1, rows))
        gl.store(dst + offsets, gl.sum(buffer.load(rows), 1))

    out = torch.zeros(512)
    handle = launch(kernel, out, num_ctas=2)  # 256 KiB, 128 in each of two blocks
    assert torch.equal(out, torch.full((512,), 256.0))
    assert 256 * 128 * 4 <= handle.metadata.shared < 256 * 128 * 4 + 2048


TUNED = """\
import torch, triton
import gluon_core as gluon
from gluon_core import language as gl

@triton.autotune([triton.Config({"N": n}, num_warps=4) for n in (1 << 17, 256)], key=[])
@gluon.jit
def kernel(dst, N: gl.constexpr):
    row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    buffer = gl.allocate_shared_memory(gl.float32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    buffer.store(gl.full([N], 3.0, gl.float32, row))
    gl.thread_barrier()
    gl.store(dst + gl.arange(0, N, row), buffer.load(row))

out = torch.zeros(1 << 17)
kernel[(1,)](out)
assert out[:256].eq(3).all()
print(kernel.best_config.kwargs["N"])
"""


def _run(tmp_path, code, *options):
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "GLUON_TARGET": "sim:sm_90", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *options, str(script)],
        env=environment, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.once
def test_a_configuration_that_is_too_large_is_skipped(tmp_path):
    assert _run(tmp_path, TUNED) == ["256"]


# -- copies, memory, types ------------------------------------------------------------------------


@gluon.jit
def _copy_tile(source, dst, SHAPE: gl.constexpr):
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    barrier = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(barrier, 1)
    buffer = gl.allocate_shared_memory(source.dtype, SHAPE, source.layout)
    hopper.mbarrier.expect(barrier, source.block_type.nbytes)
    hopper.tma.async_copy_global_to_shared(source, [0, 0], barrier, buffer)
    hopper.mbarrier.wait(barrier, 0)
    offsets = gl.arange(0, 32, gl.SliceLayout(1, rows))[:, None] * 64
    offsets += gl.arange(0, 64, gl.SliceLayout(0, rows))[None, :]
    gl.store(dst + offsets, buffer.slice(0, 32, 0).load(rows))
    hopper.mbarrier.invalidate(barrier)


def test_a_buffer_of_the_message_box_of_its_descriptor():
    layout = gl.NVMMASharedLayout(128, 16, 2)
    x, out = torch.randn(512, 64).half(), torch.zeros(32, 64).half()
    # Boxes end at 256 elements: of 512 rows the descriptor moves 256, twice.
    desc = TensorDescriptor(x, list(x.shape), list(x.stride()), [512, 64], layout)
    launch(_copy_tile, desc, out, [512, 64])
    assert torch.equal(out, x[:32])


@gluon.jit
def _copy_bits(source, copy, out, SHAPE: gl.constexpr):
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    barrier = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(barrier, 1)
    buffer = gl.allocate_shared_memory(gl.int32, SHAPE, source.layout)
    hopper.mbarrier.expect(barrier, buffer.type.nbytes_per_cta)
    hopper.tma.async_load(source, [0, 0], barrier, buffer)
    hopper.mbarrier.wait(barrier, 0)
    hopper.tma.async_store(copy, [0, 0], buffer)
    hopper.tma.store_wait(0)
    offsets = gl.arange(0, SHAPE[0], gl.SliceLayout(1, rows))[:, None] * SHAPE[1]
    offsets += gl.arange(0, SHAPE[1], gl.SliceLayout(0, rows))[None, :]
    gl.store(out + offsets, buffer.load(rows))


def test_a_buffer_of_several_messages_of_other_elements():
    layout = gl.NVMMASharedLayout(64, 32, 2)
    x, y, out = torch.randn(512, 32), torch.zeros(512, 32), torch.zeros(512, 32, dtype=torch.int32)
    # A box of 256 rows of 64 bytes: four copies of the one that the descriptors move.
    boxes = [TensorDescriptor(t, [512, 32], [32, 1], [256, 16], layout) for t in (x, y)]
    if RELEASE >= (3, 7):
        with pytest.raises(errors.GluonError, match="result"):
            _copy_bits[(1,)](*boxes, out, [512, 32], target="sim:sm_90")
        return
    launch(_copy_bits, *boxes, out, [512, 32])
    assert torch.equal(x, y) and torch.equal(out, x.view(torch.int32))


def test_a_buffer_is_initialised_with_the_other_signedness():
    @gluon.jit
    def kernel(dst):
        row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        x = gl.arange(0, 128, row)
        buffer = gl.allocate_shared_memory(
            gl.uint32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]), x - 64
        )
        gl.thread_barrier()
        gl.store(dst + x, buffer.load(row).to(gl.int32))

    out = torch.zeros(128, dtype=torch.int32)
    launch(kernel, out)
    assert torch.equal(out, torch.arange(128, dtype=torch.int32) - 64)


@gluon.jit
def _buffer_ops(src, dst, counts, AUTO: gl.constexpr):
    row: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    offsets = gl.arange(0, 256, AUTO)
    other = gl.full([256], -1.0, gl.float32, row)
    mask = gl.arange(0, 256, row) < 200
    x = gl.amd.cdna3.buffer_load(src, offsets, mask=mask, other=other)
    gl.amd.cdna3.buffer_store(x, dst, offsets)
    own = gl.arange(0, 256, row)
    gl.amd.cdna3.buffer_atomic_add(counts, own, own.to(gl.int32), mask=own.to(gl.int8))


def test_buffer_ops_with_open_offsets_and_any_integer_as_a_mask():
    x, out, counts = torch.randn(256), torch.zeros(256), torch.zeros(256, dtype=torch.int32)
    launch(_buffer_ops, x, out, counts, gl.AutoLayout(), target="sim:gfx942")
    assert torch.equal(out[:200], x[:200]) and out[200:].eq(-1).all()
    assert torch.equal(counts, torch.arange(256, dtype=torch.int32))


def test_registers_of_64_rows_of_tensor_memory_are_stored():
    @gluon.jit
    def kernel(dst):
        layout: gl.constexpr = blackwell.TensorMemoryLayout([64, 64], col_stride=1)
        rows: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
        offsets = gl.arange(0, 64, gl.SliceLayout(1, rows))[:, None] * 64
        offsets += gl.arange(0, 64, gl.SliceLayout(0, rows))[None, :]
        held: gl.constexpr = blackwell.get_tmem_reg_layout(gl.float32, [64, 64], layout, 4)
        buffer = blackwell.allocate_tensor_memory(gl.float32, [64, 64], layout)
        buffer.store(gl.convert_layout(offsets.to(gl.float32), held))
        gl.store(dst + offsets, gl.convert_layout(buffer.load(held), rows))

    out = torch.zeros(64, 64)
    launch(kernel, out, target="sim:sm_100")
    assert torch.equal(out, torch.arange(64 * 64).reshape(64, 64).float())


@pytest.mark.once
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_view_is_larger_than_its_memory_only_where_no_compiler_minds(dtype):
    @gluon.jit
    def kernel(dst, DTYPE: gl.constexpr):
        row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        buffer = gl.allocate_shared_memory(gl.int32, [256], flat)
        buffer.store(gl.full([256], 0, gl.int32, row))
        gl.thread_barrier()
        view = buffer._reinterpret(DTYPE, [256], flat)
        offsets = gl.arange(0, 256, row)
        gl.store(dst + offsets, view.load(row).to(gl.int32))

    out = torch.ones(256, dtype=torch.int32)
    if dtype == "int32":
        launch(kernel, out, gl.int32)
        assert not out.any()
        return
    with pytest.raises(errors.GluonError):  # at the access before 3.8, at the view since
        kernel[(1,)](out, gl.int64, target="sim:sm_90")


def test_types_have_their_fields():
    @gluon.jit
    def kernel(desc, LAYOUT: gl.constexpr):
        gl.static_assert(desc.layout == LAYOUT and desc.type.layout == LAYOUT)
        gl.static_assert(desc.block_type.nbytes == 2048 and desc.type.block_type == desc.block_type)
        gl.static_assert(desc.block_shape[0] == 32 and desc.dtype == gl.float16)
        buffer = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
        gl.static_assert(buffer.rank == 2 and buffer.numel == 1024)
        gl.static_assert(len(desc.shape) == 2 and desc.handle is not None)
        gl.static_assert(len(desc.type.shape_type.types) == 2)
        gl.static_assert(buffer.type.alloc_shape[1] == 32 and buffer.type.layout == LAYOUT)

    layout = gl.NVMMASharedLayout(64, 16, 2)
    desc = TensorDescriptor.from_tensor(torch.zeros(64, 64).half(), [32, 32], layout)
    launch(kernel, desc, layout)


def test_a_file_with_a_filecheck_of_no_kernel_loads():
    @testing.filecheck_test
    def kernel():
        gl.arange(0, 64, gl.BlockedLayout([1], [32], [4], [0]))

    with pytest.raises(errors.GluonError, match="not a kernel"):
        kernel()


def test_both_orders_of_parameters_are_taken():
    padded = gl.PaddedSharedLayout([[64, 8]], [[0, 1], [1, 0]], [], [2, 2])
    assert padded == gl.PaddedSharedLayout(
        [[64, 8]], [[0, 1], [1, 0]], block_bases=[], shape=[2, 2]
    )
    old = gl.amd.AMDWMMALayout(3, True, [2, 2], [16, 16, 32], [1, 1])
    assert old == gl.amd.AMDWMMALayout(3, True, warps_per_cta=[2, 2])


# -- fences of the installed compiler -----------------------------------------------------------


def test_fences_that_the_compiler_inserts_are_known():
    @gluon.jit
    def kernel(desc):
        rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        buffer = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
        buffer.store(gl.full([32, 32], 7.0, gl.float32, rows))
        hopper.tma.async_copy_shared_to_global(desc, [0, 0], buffer)
        hopper.tma.store_wait(0)

    out = torch.zeros(32, 32)
    desc = TensorDescriptor.from_tensor(out, [32, 32], gl.NVMMASharedLayout(128, 32, 2))
    if RELEASE < (3, 7):
        with pytest.raises(errors.GluonError, match="race"):
            kernel[(1,)](desc, target="sim:sm_90")
        return
    handle = launch(kernel, desc)
    assert out.eq(7).all()
    assert "fence.proxy.async" in handle.asm["ptx"]


# -- host code without a GPU ----------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("target, texts", [
    ("sm_90", ["ttgir", "llir", "ptx"]),
    ("gfx942", ["ttgir", "llir", "amdgcn"]),
])  # fmt: skip
def test_a_simulated_launch_has_the_kernels_code(target, texts):
    plain = gl.BlockedLayout([1, 4], [256 // 32 if "gfx" in target else 4, 8], [4, 1], [1, 0])
    x, out = torch.randn(64, 64), torch.zeros(64)
    handle = launch(_in_layout, x, out, plain, plain, 64, 64, target=f"sim:{target}")
    for kind in texts:
        assert "_in_layout" in handle.asm[kind]
    assert "tt.func public @_in_layout" in handle.asm["source"] != handle.asm["ttgir"]
    assert ("glir" in handle.asm) == (RELEASE >= (3, 9))
    assert handle.n_regs > 0 and handle.n_spills == 0
    assert handle.metadata.num_warps == 4 and handle.metadata.name == "_in_layout"
    assert isinstance(handle.metadata.shared, int)


# -- later additions --------------------------------------------------------------------------------


@gluon.jit
def _packed_codes(a, b, c, product, total, both, HALF: gl.constexpr, FULL: gl.constexpr):
    packed = gl.arange(0, 32, gl.SliceLayout(1, HALF))[:, None] * 64
    packed += gl.arange(0, 64, gl.SliceLayout(0, HALF))[None, :]
    offsets = gl.arange(0, 32, gl.SliceLayout(1, FULL))[:, None] * 128
    offsets += gl.arange(0, 128, gl.SliceLayout(0, FULL))[None, :]
    x, y, z = gl.load(a + packed), gl.load(b + packed), gl.load(c + offsets).to(gl.float8e4nv)
    gl.store(product + offsets, blackwell.mul2(x, y, gl.float8e4nv).to(gl.float32))
    gl.store(total + offsets, blackwell.add2(x, z).to(gl.float32))
    gl.store(both + offsets, blackwell.fma2(x, y, z).to(gl.float32))


@pytest.mark.skipif(RELEASE < (3, 8), reason="packed arithmetic came with Triton 3.8")
def test_packed_arithmetic_takes_fp4():
    a, b = (torch.randint(0, 256, (32, 64), dtype=torch.uint8) for _ in range(2))
    c, outs = torch.randn(32, 128), [torch.zeros(32, 128) for _ in range(3)]
    half = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    full = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    handle = _packed_codes[(1,)](a, b, c, *outs, half, full, target="sim:sm_100")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    x, y = (torch.stack([values[(t & 15).long()], values[(t >> 4).long()]], -1) for t in (a, b))
    x, y, z = x.reshape(32, 128), y.reshape(32, 128), c.to(torch.float8_e4m3fn).float()
    for out, want in zip(outs, (x * y, x + z, x * y + z)):
        assert torch.equal(out, want.to(torch.float8_e4m3fn).float())
    if RELEASE >= (3, 9):  # the assembler of 3.8 has no such instructions
        assert "mul.e4m3x4.e2m1x4.e2m1x4" in handle.asm["ptx"]
        assert handle.asm["cubin"]


@gluon.jit
def _some_rows(src, index, dst, n, ROWS: gl.constexpr, COLUMN: gl.constexpr):
    tdm: gl.constexpr = gl.amd.gfx1250.tdm
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    plain: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    source = tdm.make_tensor_descriptor(src, [n, 64], [64, 1], [16, 64], flat)
    result = tdm.make_tensor_descriptor(dst, [n, 64], [64, 1], [16, 64], flat)
    buffer = gl.allocate_shared_memory(gl.float32, [16, 64], flat)
    buffer.store(gl.full([16, 64], 7.0, gl.float32, plain))
    gl.barrier()
    each: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([ROWS, 1], [1, 32], [1, 4], [1, 0]))
    rows = gl.load(index + gl.arange(0, ROWS, each))
    if COLUMN:
        tdm.async_gather(source, rows, 0, buffer)
    else:
        tdm.async_gather(source, rows, buffer)
    tdm.async_wait(0)
    gl.barrier()
    if COLUMN:
        tdm.async_scatter(result, gl.arange(0, ROWS, each), 0, buffer)
    else:
        tdm.async_scatter(result, gl.arange(0, ROWS, each), buffer)
    tdm.async_wait(0)


@pytest.mark.skipif(RELEASE < (3, 7), reason="gathers of the TDM came with Triton 3.7")
@pytest.mark.parametrize("rows", [8, 16])
def test_fewer_rows_than_the_box_has(rows):
    x, out = torch.randn(64, 64), torch.zeros(64, 64)
    index = torch.randperm(64, dtype=torch.int32)[:rows]
    launch(_some_rows, x, index, out, 64, rows, RELEASE == (3, 7), target="sim:gfx1250")
    assert torch.equal(out[:rows], x[index.long()]) and not out[rows:].any()
