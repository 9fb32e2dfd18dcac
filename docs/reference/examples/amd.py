import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

LINE = gl.BlockedLayout([4], [64], [1], [0])
TILE = gl.BlockedLayout([1, 4], [4, 16], [4, 1], [1, 0])


def run(kernel, *arguments, target="sim:gfx942", num_warps=1, **constants):
    """Launch one program on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, **constants, target=target, num_warps=num_warps)
    return arguments[-1]


# -- amd.cdna3.buffer_load, amd.cdna3.buffer_store: a base and 32-bit offsets; the hardware checks the mask
@gluon.jit
def doubled(x, out):
    i = gl.arange(0, 256, LINE)
    v = gl.amd.cdna3.buffer_load(x, i, mask=i < 200, other=0.0)
    gl.amd.cdna3.buffer_store(2 * v, out, i)


x = np.arange(256, dtype=np.float32)
print(run(doubled, x, np.zeros_like(x))[[1, 199, 200]])
#> [  2. 398.   0.]

# -- amd.cdna3.buffer_atomic_add, amd.cdna3.buffer_atomic_max, amd.cdna3.buffer_atomic_min: from Triton 3.8 on
@gluon.jit
def met(out):
    i = gl.arange(0, 256, LINE)
    gl.amd.cdna3.buffer_atomic_add(out, i % 4, i)
    gl.amd.cdna3.buffer_atomic_max(out, 4 + i % 4, i)
    gl.amd.cdna3.buffer_atomic_min(out, 8 + i % 4, -i)


print(run(met, np.zeros(12, np.int32)))
#> [8064 8128 8192 8256  252  253  254  255 -252 -253 -254 -255]

# -- amd.cdna3.buffer_atomic_and, amd.cdna3.buffer_atomic_or, amd.cdna3.buffer_atomic_xor, amd.cdna3.buffer_atomic_xchg: from Triton 3.9 on
@gluon.jit
def flags(out):
    i = gl.arange(0, 256, LINE)
    gl.amd.cdna3.buffer_atomic_and(out, i, i)
    gl.amd.cdna3.buffer_atomic_or(out, i, 256 + i * 0)
    gl.amd.cdna3.buffer_atomic_xor(out, i, 1 + i * 0)
    gl.store(out + 256 + i, gl.amd.cdna3.buffer_atomic_xchg(out, i, i * 0))


print(run(flags, np.full(512, 255, np.int32))[[0, 255, 256, 511]])
#> [  0   0 257 510]

# -- amd.cdna3.mfma: the matrix unit of CDNA
@gluon.jit
def multiplied(a, b, c):
    acc: gl.constexpr = gl.amd.AMDMFMALayout(3, [16, 16, 16], True, [4, 1])
    r = gl.arange(0, 64, gl.SliceLayout(1, TILE))[:, None] * 64
    index = r + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    left = gl.convert_layout(gl.load(a + index), gl.DotOperandLayout(0, acc, 4))
    right = gl.convert_layout(gl.load(b + index), gl.DotOperandLayout(1, acc, 4))
    out = gl.amd.cdna3.mfma(left, right, gl.zeros([64, 64], gl.float32, acc))
    gl.store(c + index, gl.convert_layout(out, TILE))


a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)
c = run(multiplied, a, b, np.zeros((64, 64), np.float32), num_warps=4)
print(np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 1e-2)
#> True

# -- amd.cdna4.async_copy.buffer_load_to_shared, amd.cdna4.async_copy.global_load_to_shared, amd.cdna4.async_copy.commit_group, amd.cdna4.async_copy.wait_group, amd.cdna4.async_copy.load_shared_relaxed: past the registers into shared memory
@gluon.jit
def staged(x, out):
    copy: gl.constexpr = gl.amd.cdna4.async_copy
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    i = gl.arange(0, 256, LINE)
    first = gl.allocate_shared_memory(gl.float32, [256], flat)
    second = gl.allocate_shared_memory(gl.float32, [256], flat)
    copy.buffer_load_to_shared(first, x, i)
    copy.global_load_to_shared(second, x + i)
    copy.commit_group()
    copy.wait_group(0)
    both = copy.load_shared_relaxed(first, LINE) + copy.load_shared_relaxed(second, LINE)
    gl.store(out + i, both)


print(run(staged, x, np.zeros_like(x), target="sim:gfx950")[:4])
#> [0. 2. 4. 6.]
