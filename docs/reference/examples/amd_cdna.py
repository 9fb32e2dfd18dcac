import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

TILE = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])


@gluon.jit
def offsets(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    """Return the offsets of a matrix's elements."""
    r = gl.arange(0, rows, gl.SliceLayout(1, layout))
    return r[:, None] * columns + gl.arange(0, columns, gl.SliceLayout(0, layout))[None, :]


def run(kernel, *arguments, target="sim:gfx950", **constants):
    """Launch one program of four warps on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, **constants, target=target, num_warps=4)
    return arguments[-1]


x = np.full((32, 64), 3, np.float32)


# -- amd.cdna3.scaled_upcast: packed fp4 and its scales; from Triton 3.8 on
@gluon.jit
def upcast(codes, scales, out):
    wide: gl.constexpr = gl.BlockedLayout([1, 16], [8, 8], [4, 1], [1, 0])
    x = gl.load(codes + offsets(32, 64, TILE))
    y = gl.amd.cdna3.scaled_upcast(x, gl.load(scales + offsets(32, 128, wide)), gl.bfloat16, axis=1)
    gl.store(out + offsets(32, 128, wide), y.to(gl.float32))


codes = np.full((32, 64), 0x42, np.uint8)  # 1.0 in the low halves, 2.0 in the high ones
scales = np.full((32, 128), 128, np.uint8)  # times two
print(run(upcast, codes, scales, np.zeros((32, 128), np.float32), target="sim:gfx942")[0, :4])
#> [2. 4. 2. 4.]

# -- amd.cdna3.get_scaled_upcast_fp4_scale_layout: the compiler's layout of the scales, a scale for 32 elements; from Triton 3.9 on
@gluon.jit
def scales_of(codes, scales):
    x = gl.load(codes + offsets(32, 64, TILE))
    few: gl.constexpr = gl.amd.cdna3.get_scaled_upcast_fp4_scale_layout(x, 32, gl.bfloat16, 1)
    gl.store(scales + offsets(32, 4, few), gl.full([32, 4], 127, gl.uint8, few))


compiled = gluon.compile(scales_of, "gfx942", signature={"codes": "*u8", "scales": "*u8"})
print("tensor<32x4xi8, #linear>" in compiled.asm["ttgir"])
#> True

# -- amd.cdna4.scaled_downcast: a narrow float for each element, a scale for each block; from Triton 3.9 on
@gluon.jit
def downcast(x, out):
    few: gl.constexpr = gl.DistributedLinearLayout(
        [], [[0, 0], [0, 0], [0, 1], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 2]
    )
    scale = gl.full([32, 2], 128, gl.uint8, few)
    y = gl.amd.cdna4.scaled_downcast(gl.load(x + offsets(32, 64, TILE)), scale, "e4m3")
    gl.store(out + offsets(32, 64, TILE), y.to(gl.float32))


print(run(downcast, x, np.zeros_like(x))[0, :2])
#> [1.5 1.5]

# -- amd.cdna4.load_shared_fp4_repacked: packed along N there, along K here; from Triton 3.9 on
@gluon.jit
def repacked(source, out):
    unit: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [4, 1])
    operand: gl.constexpr = gl.DotOperandLayout(1, unit, 16)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    buffer = gl.allocate_shared_memory(
        gl.uint8, [64, 64], plain, gl.load(source + offsets(64, 64, TILE))
    )
    gl.store(out + offsets(32, 128, operand), gl.amd.cdna4.load_shared_fp4_repacked(buffer, operand))


k, n = np.mgrid[:64, :128]
fp4 = ((k + n) % 16).astype(np.uint8)
came = run(repacked, fp4[:, ::2] | fp4[:, 1::2] << 4, np.zeros((32, 128), np.uint8))
print((came == fp4[::2] | fp4[1::2] << 4).all())
#> True

# -- amd.cdna4.compute_efficient_padded_shared_layout: a buffer that is filled and read without conflicts; from Triton 3.8 on
unit = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
operand = gl.DotOperandLayout(0, unit, 8)
padded = gl.amd.cdna4.compute_efficient_padded_shared_layout(operand, [128, 64], gl.bfloat16)
print(type(padded).__name__, padded.interval_padding_pairs)
#> PaddedSharedLayout [[512, 16]]

# -- amd.hint.sched_barrier: nothing moves past it; from Triton 3.9 on
@gluon.jit
def kept_apart(x, out):
    v = gl.load(x + offsets(32, 64, TILE))
    gl.amd.hint.sched_barrier(["mfma", "valu"])
    gl.store(out + offsets(32, 64, TILE), v + 1)


print(run(kept_apart, x, np.zeros_like(x))[0, :2])
#> [4. 4.]

# -- amd.warp_pipeline_stage: half of the warps load while the others compute; from Triton 3.7 on
@gluon.jit
def staged(x, out):
    total = gl.zeros([32, 64], gl.float32, TILE)
    for i in range(4):
        with gl.amd.warp_pipeline_stage("load", priority=1):
            v = gl.load(x + offsets(32, 64, TILE))
        with gl.amd.warp_pipeline_stage("add"):
            total += v
    gl.store(out + offsets(32, 64, TILE), total)


print(run(staged, x, np.zeros_like(x))[0, :2])
#> [12. 12.]
