import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.BlockedLayout([1], [32], [1], [0])


# -- gluon.jit, gluon.GluonJITFunction: a kernel, and its launch
@gluon.jit
def scale(x, out, factor, N: gl.constexpr):
    i = gl.arange(0, N, ROW)
    gl.store(out + i, factor * gl.load(x + i))


x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
scale[(1,)](x, out, 0.5, N=32, target="sim:hopper", num_warps=1)
print(out[:4], isinstance(scale, gluon.GluonJITFunction))
#> [0.  0.5 1.  1.5] True

# -- gluon.compile, gluon.CompiledKernel: for any target, with no device
kinds = {"x": "*fp32:16", "out": "*fp32:16", "factor": "fp32"}
for target in ("sm_90", "gfx942"):
    layout = gl.BlockedLayout([1], [32 if target == "sm_90" else 64], [1], [0])
    try:
        compiled = gluon.compile(scale, target, signature=kinds, constexprs={"N": 32}, num_warps=1)
    except gluon.errors.LayoutError as error:
        print(target, str(error).split(";")[0])
        continue
    print(target, sorted(compiled.asm)[:3], isinstance(compiled, gluon.CompiledKernel))
#> sm_90 ['cubin', 'llir', 'ptx'] True
#> gfx942 layout: the layout and the target have different numbers of threads per warp

# -- gluon.GluonASTSource: the source that `gluon.compile` builds from a kernel and its types
source = gluon.GluonASTSource(scale, kinds, {"N": 32})
print(gluon.compile(source, "sm_90", num_warps=1).metadata.name)
#> scale

# -- gluon.constexpr_function, gluon.must_use_result
@gluon.constexpr_function
def lanes():
    return 32


@gluon.must_use_result
@gluon.jit
def twice(v):
    return v + v


@gluon.jit
def doubled(out):
    i = gl.arange(0, lanes(), ROW)
    gl.store(out + i, twice(i))


doubled[(1,)](whole := np.zeros(32, np.int32), target="sim:hopper", num_warps=1)
print(whole[:4])
#> [0 2 4 6]

# -- gluon.aggregate, gluon.aggregate_replace: `gl.aggregate`, under the name that host code has, from Triton 3.8 on
@gluon.aggregate
class Pair:
    a: gl.tensor
    b: gl.tensor


@gluon.jit
def summed(out):
    pair = Pair(gl.to_tensor(1), gl.to_tensor(2))
    pair = gluon.aggregate_replace(pair, b=gl.to_tensor(5))
    gl.store(out, pair.a + pair.b)


summed[(1,)](total := np.zeros(1, np.int32), target="sim:hopper", num_warps=1)
print(total)
#> [6]

# -- gluon.ArgumentKind, gluon.register_argument_kind: pass objects of another class to kernels
class Meters(float):
    """A number with a unit."""


kind = gluon.ArgumentKind(Meters, describe=lambda value: ("fp32", ""))
gluon.register_argument_kind(kind)
scale[(1,)](x, out, Meters(2.0), N=32, target="sim:hopper", num_warps=1)
print(out[:4])
#> [0. 2. 4. 6.]

# -- gluon.errors: one class per mistake, with the expected and the actual value, and the remedy
try:
    gluon.compile(scale, "sm_91", signature=kinds, constexprs={"N": 32})
except gluon.errors.TargetError as error:
    print(type(error).__name__, str(error).split(".")[0])
#> TargetError target: unknown target 'sm_91'

# -- gluon.layouts: the layouts and their algebra, without Triton
print(gluon.layouts.equal(ROW, gl.BlockedLayout([1], [32], [1], [0]), [32]))
#> True

# -- gluon.cdiv, gluon.next_power_of_2: sizes of grids and blocks
print(gluon.cdiv(1000, 128), gluon.next_power_of_2(100))
#> 8 128

# -- gluon.multiprocessors: programs of a persistent kernel; None in host memory
print(gluon.multiprocessors(x) or 3)
#> 3

# -- gluon.compile_many: several kernels at once, on all cores
wanted = [dict(fn=scale, signature=kinds, constexprs={"N": n}) for n in (32, 64)]
print([kernel.metadata.name for kernel in gluon.compile_many(wanted, "sm_90", {"num_warps": 1})])
#> ['scale', 'scale']

# -- gluon.uninitialised: an output that a kernel is not to read before it writes it
fresh = gluon.uninitialised(np.zeros(32, np.float32))
scale[(1,)](x, fresh, 2.0, N=32, target="sim:hopper", num_warps=1)
print(fresh[:4])
#> [0. 2. 4. 6.]

# -- gluon.bundle: compiled kernels in one file, which is launched without a compiler
bundle = gluon.bundle.Bundle()
bundle.add(scale, kinds, {"N": 32}, target="sm_90", num_warps=1)
print(list(bundle.inspect()["kernels"]))
#> ['scale']

# -- gluon.tune: the search for the best configuration of a kernel
space = gluon.tune.space(
    BLOCK=[64, 128], num_warps=[1, 2], when=lambda BLOCK, num_warps: BLOCK // num_warps == 64
)
print(space.size, list(space))
#> 4 [{'BLOCK': 64, 'num_warps': 1}, {'BLOCK': 128, 'num_warps': 2}]

# -- gluon.timeline: when each warp passed the scopes of a launch; the emulator executes the PTX here
@gluon.jit
def timed(x, N: gl.constexpr):
    i = gl.arange(0, N, gl.BlockedLayout([1], [32], [1], [0]))
    with gl.scope("double"):
        gl.store(x + i, 2 * gl.load(x + i))


with gluon.timeline.record() as timeline:
    timed[(2,)](np.ones(32, np.float32), N=32, target="emu:sm_90", num_warps=1)
print([(span.block, span.scope) for span in timeline.launches[0].spans])
#> [(0, 'double'), (1, 'double')]

# -- gluon.distributed: ranks whose kernels reach each other's memory, here two simulated ones
def body(group):
    x = group.empty(32, np.float32)
    own = np.full(32, group.rank + 1, np.float32)
    scale[(1,)](own, x.local, 2.0, N=32, num_warps=1)
    group.barrier()
    scale[(1,)](x.peers[1 - group.rank], own, 1.0, N=32, num_warps=1)
    return own[0].item()


print(gluon.distributed.simulate(body, world=2, target="sim:hopper"))
#> [4.0, 2.0]
