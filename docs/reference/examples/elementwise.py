import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.BlockedLayout([1], [32], [1], [0])  # one warp, one element per lane
N = gl.constexpr(32)


def run(kernel, *arguments):
    """Launch one program of one warp on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, target="sim:hopper", num_warps=1)
    return arguments[-1]


def zeros(dtype=np.float32, n=32):
    return np.zeros(n, dtype)


# -- add, sub, mul: the functions of `+`, `-` and `*`, with a check against overflow for debug builds
@gluon.jit
def arithmetic(out):
    i = gl.arange(0, N, ROW)
    gl.store(out + i, gl.sub(gl.mul(i, i), gl.add(i, 1)))


print(run(arithmetic, zeros(np.int32))[:6])
#> [-1 -1  1  5 11 19]

# -- abs, ceil, floor
@gluon.jit
def rounding(x, up, down, size):
    i = gl.arange(0, N, ROW)
    v = gl.load(x + i)
    gl.store(up + i, gl.ceil(v))
    gl.store(down + i, gl.floor(v))
    gl.store(size + i, gl.abs(v))


x = np.linspace(-1.5, 14, 32, dtype=np.float32)
up, down = zeros(), zeros()
print(run(rounding, x, up, down, zeros())[:3], up[:3], down[:3])
#> [1.5 1.  0.5] [-1. -1. -0.] [-2. -1. -1.]

# -- exp, exp2, log, log2
@gluon.jit
def powers(x, out):
    i = gl.arange(0, N, ROW)
    v = gl.load(x + i)
    gl.store(out + i, gl.log(gl.exp(v)) + gl.log2(gl.exp2(v)))


print(run(powers, x, zeros())[:4].round(3))
#> [-3. -2. -1.  0.]

# -- sin, cos, erf
@gluon.jit
def waves(x, out):
    i = gl.arange(0, N, ROW)
    v = gl.load(x + i)
    one = gl.sin(v) * gl.sin(v) + gl.cos(v) * gl.cos(v)
    gl.store(out + i, gl.where(v < 0, gl.erf(v), one))


print(run(waves, x, zeros())[:6].round(4))
#> [-0.9661 -0.8427 -0.5205  1.      1.      1.    ]

# -- sqrt, sqrt_rn, rsqrt: `sqrt` may be approximate, `sqrt_rn` rounds to nearest
@gluon.jit
def roots(out):
    v = gl.arange(0, N, ROW).to(gl.float32) + 1
    gl.store(out + gl.arange(0, N, ROW), gl.sqrt(v) * gl.rsqrt(v) * gl.sqrt_rn(v))


print(run(roots, zeros())[:4].round(4))
#> [1.     1.4142 1.7321 2.    ]

# -- div_rn, fdiv, fma
@gluon.jit
def divisions(out):
    i = gl.arange(0, N, ROW)
    v = i.to(gl.float32)
    three = gl.full([N], 3.0, gl.float32, ROW)
    gl.store(out + i, gl.fma(gl.div_rn(v, three), three, gl.fdiv(v, three)))


print(run(divisions, zeros())[:5].round(4))
#> [0.     1.3333 2.6667 4.     5.3333]

# -- maximum, minimum, clamp
@gluon.jit
def limits(out):
    v = gl.arange(0, N, ROW).to(gl.float32)
    between = gl.maximum(gl.minimum(v, 5.0), 2.0)
    gl.store(out + gl.arange(0, N, ROW), between - gl.clamp(v, 0.0, 1.0))


print(run(limits, zeros())[:8])
#> [2. 1. 1. 2. 3. 4. 4. 4.]

# -- where, cast
@gluon.jit
def choice(out):
    i = gl.arange(0, N, ROW)
    gl.store(out + i, gl.where(i % 2 == 0, gl.cast(i, gl.float32) / 2, -1.0))


print(run(choice, zeros())[:6])
#> [ 0. -1.  1. -1.  2. -1.]

# -- cdiv, umulhi
@gluon.jit
def integers(out):
    i = gl.arange(0, N, ROW)
    big = gl.full([N], 1 << 31, gl.uint32, ROW)
    gl.store(out + i, gl.cdiv(i, 4) + gl.umulhi(big, i.to(gl.uint32)).to(gl.int32))


print(run(integers, zeros(np.int32))[:10])
#> [0 1 2 2 3 4 5 5 6 7]

# -- expect_zero: elements outside of a mask are known to be zero
@gluon.jit
def padded(x, out):
    i = gl.arange(0, N, ROW)
    v = gl.load(x + i, mask=i < 8, other=0.0)
    gl.store(out + i, gl.expect_zero(v, i >= 8))


print(run(padded, x, zeros())[6:10])
#> [1.5 2.  0.  0. ]

# -- map_elementwise: scalar code, run for each element
@gluon.jit
def collatz(n):
    if n % 2 == 0:
        return n // 2
    else:
        return 3 * n + 1


@gluon.jit
def mapped(out):
    i = gl.arange(0, N, ROW)
    gl.store(out + i, gl.map_elementwise(collatz, i))


print(run(mapped, zeros(np.int32))[:6])
#> [ 0  4  1 10  2 16]

# -- inline_asm_elementwise: PTX is run by the simulator, too; two elements of 16 bits share a register
@gluon.jit
def reversed_bits(out):
    i = gl.arange(0, N, ROW)
    r = gl.inline_asm_elementwise("brev.b32 $0, $1;", "=r,r", [i], gl.int32, True, 1)
    gl.store(out + i, r)


PAIRS = gl.BlockedLayout([2], [32], [1], [0])


@gluon.jit
def doubled_pairs(x, out):
    i = gl.arange(0, N, PAIRS)
    twice = gl.inline_asm_elementwise(
        "add.rn.bf16x2 $0, $1, $1;", "=r,r", [gl.load(x + i)], gl.bfloat16, is_pure=True, pack=2
    )
    gl.store(out + i, twice.to(gl.float32))


print(run(reversed_bits, zeros(np.int32))[:4])
print(run(doubled_pairs, np.arange(32).astype(ml_dtypes.bfloat16), zeros())[:5])

compiled = gluon.compile(reversed_bits, target="sm_90", signature={"out": "*i32"}, num_warps=1)
print("brev.b32" in compiled.asm["ptx"])
#> [          0 -2147483648  1073741824 -1073741824]
#> [0. 2. 4. 6. 8.]
#> True

# -- extra.libdevice: functions of the vendors' mathematics libraries
@gluon.jit
def hyperbolic(x, out):
    i = gl.arange(0, N, ROW)
    gl.store(out + i, gl.extra.libdevice.tanh(gl.load(x + i)))


kinds = {"x": "*fp32", "out": "*fp32"}
print(gluon.compile(hyperbolic, target="sm_90", signature=kinds, num_warps=1).n_regs > 0)
#> True
