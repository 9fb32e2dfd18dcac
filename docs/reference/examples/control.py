import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.BlockedLayout([1], [32], [1], [0])


def run(kernel, *arguments, grid=1, **options):
    """Launch programs of one warp on the simulator, and return the last argument."""
    kernel[(grid,)](*arguments, target="sim:hopper", **{"num_warps": 1, **options})
    return arguments[-1]


# -- program_id, num_programs
@gluon.jit
def places(out):
    gl.store(out + gl.program_id(0), gl.num_programs(0) - gl.program_id(0))


print(run(places, np.zeros(4, np.int32), grid=4))
#> [4 3 2 1]

# -- num_warps, num_ctas: compile-time values
@gluon.jit
def sizes(out):
    gl.store(out, gl.num_warps())
    gl.store(out + 1, gl.num_ctas())


print(run(sizes, np.zeros(2, np.int32), num_warps=4))
#> [4 1]

# -- target: the target of the compilation; the branch not taken is not traced
@gluon.jit
def asked(out):
    if gl.target.has("nvidia.tma"):
        gl.store(out, gl.target.warp_size())


print(run(asked, np.zeros(1, np.int32)))
#> [32]

# -- static_range, static_assert, static_print: while the kernel is traced
@gluon.jit
def unrolled(out, N: gl.constexpr):
    gl.static_assert(N % 2 == 0, "N must be even")
    total = 0
    for i in gl.static_range(N):
        gl.static_print("step", i)
        total += i
    gl.store(out, total)


unrolled[(1,)](out := np.zeros(1, np.int32), N=2, target="sim:hopper", num_warps=1)
print(out)
#> step 0
#> step 1
#> [1]

# -- device_print, device_assert, assume
@gluon.jit
def told(n):
    gl.assume(n > 0)
    gl.device_assert(n < 10, "too many")
    gl.device_print("n is", n)


told[(1,)](3, target="sim:hopper", num_warps=1)
#> pid (0, 0, 0) n is: 3

# -- constexpr, constexpr_function: Python that runs while the kernel is traced
@gl.constexpr_function
def half(n):
    return n // 2


@gluon.jit
def shorter(out):
    N: gl.constexpr = half(64)
    i = gl.arange(0, N, ROW)
    gl.store(out + i, i)


print(run(shorter, np.zeros(32, np.int32))[-1])
#> 31

# -- barrier, thread_barrier: all threads of the block; earlier stores are visible after
@gluon.jit
def waited(scratch, out):
    i = gl.arange(0, 32, ROW)
    gl.store(scratch + i, i)
    gl.barrier()
    gl.store(out + i, gl.load(scratch + 31 - i))
    gl.thread_barrier()


print(run(waited, np.zeros(32, np.int32), np.zeros(32, np.int32))[:4])
#> [31 30 29 28]

# -- scope, scope_begin, scope_end: spans that a timeline shows
@gluon.jit
def spans(out):
    i = gl.arange(0, 32, ROW)
    with gl.scope("square"):
        value = i * i
    gl.scope_begin("store")
    gl.store(out + i, value)
    gl.scope_end("store")


print(run(spans, np.zeros(32, np.int32))[:4])
#> [0 1 4 9]

# -- aggregate, aggregate_replace: several values under one name, from Triton 3.8 on
@gl.aggregate
class Span:
    start: gl.tensor
    length: gl.constexpr

    @gluon.jit
    def offsets(self):
        return self.start + gl.arange(0, self.length, ROW)


@gluon.jit
def spans(out):
    span = Span(gl.to_tensor(0), gl.constexpr(32))
    later = gl.aggregate_replace(span, start=gl.to_tensor(32))
    gl.store(out + span.offsets(), 1)
    gl.store(out + later.offsets(), 2)


print(run(spans, np.zeros(64, np.int32))[30:34])
#> [1 1 2 2]

# -- warp_specialize: several functions at once, each with warps of its own
@gluon.jit
def doubles(x, out):
    FOUR: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, 128, FOUR)
    gl.store(out + i, 2 * gl.load(x + i))


@gluon.jit
def negates(x, out):
    i = gl.arange(0, 32, ROW)
    gl.store(out + 128 + i, -gl.load(x + i))


@gluon.jit
def both(x, out):
    gl.warp_specialize([(doubles, (x, out)), (negates, (x, out))], [1], [24])


x = np.arange(128, dtype=np.int32)
print(run(both, x, np.zeros(160, np.int32), num_warps=4)[[3, 127, 131]])
#> [  6 254  -3]

# -- inline_asm: run once by every thread; from Triton 3.9 on
@gluon.jit
def smid(out):
    gl.store(out, gl.inline_asm("mov.u32 $0, %smid;", "=r", (), gl.int32))


compiled = gluon.compile(smid, target="sm_90", signature={"out": "*i32"}, num_warps=1)
print("%smid" in compiled.asm["ptx"])
#> True
