import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.amd.cdna5 import TensorDescriptor

TILE = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
PLAIN = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
PADDED = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
ROWS = gl.SliceLayout(1, gl.BlockedLayout([32, 1], [1, 32], [1, 4], [1, 0]))


@gluon.jit
def offsets(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    """Return the offsets of a matrix's elements."""
    r = gl.arange(0, rows, gl.SliceLayout(1, layout))
    return r[:, None] * columns + gl.arange(0, columns, gl.SliceLayout(0, layout))[None, :]


def run(kernel, *arguments, **constants):
    """Launch one program of four warps on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, **constants, target="sim:gfx1250", num_warps=4)
    return arguments[-1]


half = (np.arange(64 * 64).reshape(64, 64) // 8).astype(np.float16)


# -- amd.cdna5.async_copy.global_to_shared, amd.cdna5.async_copy.mbarrier_arrive: a copy that a barrier waits for
@gluon.jit
def waited(x, out):
    cdna5: gl.constexpr = gl.amd.cdna5
    done = gl.allocate_shared_memory(gl.int64, [1], cdna5.mbarrier.MBarrierLayout())
    cdna5.mbarrier.init(done, 128)
    buffer = gl.allocate_shared_memory(gl.float16, [32, 64], PLAIN)
    cdna5.async_copy.global_to_shared(buffer, x + offsets(32, 64, TILE))
    cdna5.async_copy.mbarrier_arrive(done)
    cdna5.mbarrier.wait(done, 0)
    gl.store(out + offsets(32, 64, TILE), buffer.load(TILE))


print((run(waited, half, np.zeros((32, 64), np.float16)) == half[:32]).all())
#> True

# -- amd.cdna5.async_copy.shared_to_global: and back, past the registers; from Triton 3.7 on
@gluon.jit
def returned(x, out):
    copy: gl.constexpr = gl.amd.cdna5.async_copy
    v = gl.load(x + offsets(32, 64, TILE))
    buffer = gl.allocate_shared_memory(gl.float16, [32, 64], PADDED, v)
    gl.barrier()
    copy.shared_to_global(out + offsets(32, 64, TILE), buffer)
    copy.commit_group()
    copy.wait_group(0)


print((run(returned, half, np.zeros((32, 64), np.float16)) == half[:32]).all())
#> True

# -- amd.cdna5.tdm.async_gather, amd.cdna5.tdm.async_scatter, amd.cdna5.tdm.prefetch: rows by number, there and back; from Triton 3.7 on
@gluon.jit
def reversed_rows(x, out):
    tdm: gl.constexpr = gl.amd.cdna5.tdm
    source = tdm.make_tensor_descriptor(x, [64, 64], [64, 1], [32, 64], PLAIN)
    sink = tdm.make_tensor_descriptor(out, [64, 64], [64, 1], [32, 64], PLAIN)
    rows = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    i = gl.arange(0, 32, ROWS)
    tdm.prefetch(source, [32, 0])
    tdm.async_gather(source, 63 - i, 0, rows)
    tdm.async_wait(0)
    tdm.async_scatter(sink, i, 0, rows)
    tdm.async_wait(0)


rotated = run(reversed_rows, half, np.zeros_like(half))
print((rotated[:32] == half[:31:-1]).all(), rotated[32:].any())
#> True False

# -- amd.cdna5.tdm.tensor_descriptor, amd.cdna5.tdm.tensor_descriptor_type: the kernel's value for a descriptor of the host
@gluon.jit
def described(source, out):
    tdm: gl.constexpr = gl.amd.cdna5.tdm
    gl.static_print(isinstance(source, tdm.tensor_descriptor))
    gl.static_print(isinstance(source.type, tdm.tensor_descriptor_type), source.block_shape)
    buffer = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    tdm.async_load(source, [32, 0], buffer)
    tdm.async_wait(0)
    gl.store(out + offsets(32, 64, TILE), buffer.load(TILE))


source = TensorDescriptor.from_tensor(half, [32, 64], PADDED)
print((run(described, source, np.zeros((32, 64), np.float16)) == half[32:]).all())
#> True
#> True ['32', '64']
#> True

# -- amd.cdna5.tdm.update_tensor_descriptor: a descriptor that moves; from Triton 3.9 on
@gluon.jit
def moved(x, out):
    tdm: gl.constexpr = gl.amd.cdna5.tdm
    source = tdm.make_tensor_descriptor(x, [64, 64], [64, 1], [32, 64], PLAIN)
    buffer = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    source = tdm.update_tensor_descriptor(source, add_offsets=[32, 0])
    tdm.async_load(source, [0, 0], buffer)
    tdm.async_wait(0)
    gl.store(out + offsets(32, 64, TILE), buffer.load(TILE))


print((run(moved, half, np.zeros((32, 64), np.float16)) == half[32:]).all())
#> True

# -- amd.cdna5.tdm.async_load_fused: two loads with one instruction; from Triton 3.9 on
@gluon.jit
def fused(x, out):
    tdm: gl.constexpr = gl.amd.cdna5.tdm
    first = tdm.make_tensor_descriptor(x, [64, 64], [64, 1], [32, 64], PLAIN)
    second = tdm.update_tensor_descriptor(first, add_offsets=[32, 0])
    left = gl.allocate_shared_memory(first.dtype, first.block_shape, first.layout)
    right = gl.allocate_shared_memory(first.dtype, first.block_shape, first.layout)
    tdm.async_load_fused([(first, left, 0b0011), (second, right, 0b1100)])
    tdm.async_wait(0)
    gl.store(out + offsets(32, 64, TILE), right.load(TILE) - left.load(TILE))


print(run(fused, half, np.zeros((32, 64), np.float16))[0, :2])
#> [256. 256.]

# -- amd.cdna5.wmma_scaled, amd.cdna5.get_wmma_scale_layout: fp8 times fp8, a scale for 32 elements; from Triton 3.7 on
WIDE = gl.amd.AMDWMMALayout(3, True, [[0, 1], [1, 0]], [], [16, 16, 128])


@gluon.jit
def scaled(a, scales, out):
    cdna5: gl.constexpr = gl.amd.cdna5
    left: gl.constexpr = gl.DotOperandLayout(0, WIDE, 16)
    right: gl.constexpr = gl.DotOperandLayout(1, WIDE, 16)
    x = gl.load(a + offsets(32, 128, left))
    y = gl.load(a + offsets(128, 32, right))
    few: gl.constexpr = cdna5.get_wmma_scale_layout(left, [32, 4])
    some: gl.constexpr = cdna5.get_wmma_scale_layout(right, [32, 4])
    u = gl.load(scales + offsets(32, 4, few))
    v = gl.load(scales + offsets(32, 4, some))
    acc = gl.zeros([32, 32], gl.float32, WIDE)
    acc = cdna5.wmma_scaled(x, u, "e4m3", y, v, "e4m3", acc)
    gl.store(out + offsets(32, 32, WIDE), acc)


ones = np.full(4096, 0x38, np.uint8)  # 1.0 as e4m3
twice = np.full((32, 4), 128, np.uint8)
print(run(scaled, ones, twice, np.zeros((32, 32), np.float32))[0, :2], 128 * 2 * 2)
#> [512. 512.] 512

# -- amd.cdna5.PartitionedSharedLayout, amd.cdna5.make_partitioned_dot_layouts: operands whose halves are read at once; from Triton 3.8 on
inner = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
cut = gl.amd.cdna5.PartitionedSharedLayout(2, 1, 0, inner)
print(cut.to_linear([64, 64]).in_dims)
left = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [256, 64], [1, 0])
right = gl.PaddedSharedLayout.with_identity_for([[256, 8]], [64, 256], [1, 0])
make = gl.amd.cdna5.make_partitioned_dot_layouts
a, b, acc = make(256, 256, left, right, 4, [16, 16, 32])
print(a.partition_dim, b.partition_dim, acc.instr_shape)
#> {'offset': 2048, 'block': 1, 'partition': 2}
#> 0 1 [16, 16, 32]
