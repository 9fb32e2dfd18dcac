import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [1, 1], [1, 0]))


def run(kernel, *arguments):
    """Launch one program of one warp on the simulator, and return the last array."""
    kernel[(1,)](*arguments, target="sim:hopper", num_warps=1)
    return next(array for array in reversed(arguments) if isinstance(array, np.ndarray))


# -- arange, full, zeros, full_like, zeros_like, to_tensor
@gluon.jit
def made(out):
    i = gl.arange(0, 32, ROW)
    v = gl.full([32], 2, gl.int32, ROW) + gl.zeros([32], gl.int32, ROW)
    v += gl.full_like(v, 5) + gl.zeros_like(v) + gl.to_tensor(1)
    gl.store(out + i, i * 10 + v)


print(run(made, np.zeros(32, np.int32))[:5])
#> [ 8 18 28 38 48]

# -- expand_dims, broadcast
@gluon.jit
def table(out):
    row = gl.arange(0, 8, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 16, gl.SliceLayout(0, TILE))
    r, c = gl.broadcast(gl.expand_dims(row, 1), gl.expand_dims(column, 0))
    gl.store(out + r * 16 + c, r * c)


print(run(table, np.zeros((8, 16), np.int32))[3, :6])
#> [ 0  3  6  9 12 15]

# -- reshape, ravel, permute
@gluon.jit
def transposed(out):
    v = gl.permute(gl.reshape(gl.arange(0, 32, ROW), [4, 8]), [1, 0])
    flat = gl.convert_layout(gl.ravel(v), ROW)
    gl.store(out + gl.arange(0, 32, ROW), flat)


print(run(transposed, np.zeros(32, np.int32))[:8])
#> [ 0  8 16 24  1  9 17 25]

# -- join, split
@gluon.jit
def pairs(out):
    i = gl.arange(0, 32, ROW)
    low, high = gl.split(gl.join(i, i + 100))
    gl.store(out + i, gl.convert_layout(high - low, ROW))


print(run(pairs, np.zeros(32, np.int32))[:4])
#> [100 100 100 100]

# -- convert_layout, to_linear_layout, set_auto_layout
@gluon.jit
def moved(out):
    FOUR: gl.constexpr = gl.to_linear_layout(gl.BlockedLayout([4], [32], [1], [0]), [128])
    v = gl.set_auto_layout(gl.arange(0, 128, gl.AutoLayout()), FOUR)
    i = gl.arange(0, 128, ROW)
    gl.store(out + i, gl.convert_layout(v, ROW))


print(run(moved, np.zeros(128, np.int32))[-3:])
#> [125 126 127]

# -- multiple_of, max_contiguous, max_constancy: facts that the compiler could not know
@gluon.jit
def hinted(x, out, start):
    i = gl.max_contiguous(gl.multiple_of(start + gl.arange(0, 32, ROW), 4), 4)
    mask = gl.max_constancy(i < start + 32, 4)
    gl.store(out + i, gl.load(x + i, mask=mask), mask=mask)


print(run(hinted, np.arange(64.0), np.zeros(64), 8)[6:12])
#> [ 0.  0.  8.  9. 10. 11.]

# -- fp4_to_fp: two e2m1 numbers to a byte, the low nibble first
FOURS = gl.constexpr(gl.BlockedLayout([4], [32], [1], [0]))  # four bytes or more to a thread


@gluon.jit
def unpacked(x, out):
    packed = gl.load(x + gl.arange(0, 32, FOURS))
    v = gl.fp4_to_fp(packed, gl.bfloat16, 0).to(gl.float32)
    v = gl.convert_layout(v, ROW)
    gl.store(out + gl.arange(0, 64, ROW), v)


print(run(unpacked, np.arange(32, dtype=np.uint8), np.zeros(64, np.float32))[2:12:2])
#> [0.5 1.  1.5 2.  3. ]

# -- tensor, tuple, base_value, base_type, block_type, pointer_type, tuple_type, distributed_type: values and their types
@gluon.jit
def asked(out):
    v = gl.arange(0, 32, ROW)
    gl.static_print(v.shape[0], v.dtype, v.type.layout == ROW)
    pair = gl.tuple([v, v + 1])
    gl.store(out + v, pair[0] + pair[1])


print(run(asked, np.zeros(32, np.int32))[:3])
print(issubclass(gl.distributed_type, gl.block_type), issubclass(gl.tensor, gl.base_value))
print(issubclass(gl.pointer_type, gl.dtype), issubclass(gl.tuple_type, gl.base_type))
#> 32 int32 True
#> [1 3 5]
#> True True
#> True True

# -- int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, void, dtype
for kind in (gl.int1, gl.int8, gl.int16, gl.int32, gl.int64, gl.uint8, gl.uint16, gl.uint32):
    assert isinstance(kind, gl.dtype) and kind.is_int()
for kind in (gl.uint64, gl.float16, gl.bfloat16, gl.float32, gl.float64):
    print(kind, kind.primitive_bitwidth, end="; ")
print(gl.void)
#> uint64 64; fp16 16; bf16 16; fp32 32; fp64 64; void

# -- float8e4nv, float8e5, float8e4b15, float8e4b8, float8e5b16: eight bits; which exist depends on the target
@gluon.jit
def narrow(x, out):
    i = gl.arange(0, 32, ROW)
    v = gl.load(x + i)
    gl.store(out + i, v.to(gl.float8e4nv).to(gl.float32) - v.to(gl.float8e5).to(gl.float32))


print(run(narrow, np.linspace(1, 2, 32, dtype=np.float32), np.zeros(32, np.float32))[:6])
print([kind.primitive_bitwidth for kind in (gl.float8e4b15, gl.float8e4b8, gl.float8e5b16)])
#> [ 0.     0.     0.125  0.125 -0.125 -0.125]
#> [8, 8, 8]
