import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

LINE = gl.BlockedLayout([4], [32], [1], [0])


def run(kernel, *arguments, target="sim:sm_100"):
    """Launch one warp on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, target=target, num_warps=1)
    return arguments[-1]


x = np.arange(128, dtype=np.float32)


# -- nvidia.blackwell.add2, nvidia.blackwell.sub2, nvidia.blackwell.mul2, nvidia.blackwell.fma2, nvidia.blackwell.min2, nvidia.blackwell.max2: two elements to an instruction; from Triton 3.8 on
@gluon.jit
def in_pairs(x, out):
    b: gl.constexpr = gl.nvidia.blackwell
    i = gl.arange(0, 128, LINE)
    v = gl.load(x + i)
    once = b.sub2(b.add2(v, 1.0), v)
    short = b.mul2(v, 2.0).to(gl.float16)
    held = b.min2(b.max2(short, 3.0), 8.0)
    gl.store(out + i, b.fma2(once, held.to(gl.float32), 0.5))


print(run(in_pairs, x, np.zeros_like(x))[:6])
#> [3.5 3.5 4.5 6.5 8.5 8.5]

# -- nvidia.rubin.add4, nvidia.rubin.sub4, nvidia.rubin.mul4, nvidia.rubin.fma4: four elements to an instruction; from Triton 3.9 on
@gluon.jit
def in_fours(x, out):
    r: gl.constexpr = gl.nvidia.rubin
    i = gl.arange(0, 128, LINE)
    v = gl.load(x + i)
    gl.store(out + i, r.fma4(r.add4(v, 1.0), r.sub4(v, 1.0), r.mul4(v, 2.0)))


print(run(in_fours, x, np.zeros_like(x), target="sim:sm_107")[:4])
#> [-1.  2.  7. 14.]

# -- nvidia.blackwell.float2.Float2Tensor, nvidia.blackwell.float2.pack, nvidia.blackwell.float2.unpack, nvidia.blackwell.float2.fma, nvidia.blackwell.float2.full_like: neighbours along a dimension as pairs
@gluon.jit
def paired(x, out):
    pairs: gl.constexpr = gl.nvidia.blackwell.float2
    i = gl.arange(0, 128, LINE)
    v = pairs.pack(gl.load(x + i), axis=0)
    gl.static_print(v.type == pairs.Float2Tensor(v.value).type)
    twice = pairs.fma(v, pairs.full_like(v, 2.0), v * v)
    gl.store(out + i, pairs.unpack(twice, axis=0))


print(run(paired, x, np.zeros_like(x))[:4])
#> True
#> [ 0.  3.  8. 15.]

# -- nvidia.blackwell.float2.pack2, nvidia.blackwell.float2.unpack2: the elements of two tensors as pairs
@gluon.jit
def both(x, out):
    pairs: gl.constexpr = gl.nvidia.blackwell.float2
    i = gl.arange(0, 128, LINE)
    v = gl.load(x + i)
    first, second = pairs.unpack2(pairs.pack2(v, -v) + pairs.pack2(v, v))
    gl.store(out + i, first + second)


print(run(both, x, np.zeros_like(x))[:4])
#> [0. 2. 4. 6.]
