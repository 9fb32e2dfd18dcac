import numpy as np
from show_error import show_error

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl

LINE = gl.BlockedLayout([1], [32], [4], [0])
x = np.arange(128, dtype=np.float32)


def run(kernel, *arguments, target="sim:hopper", **options):
    kernel[(1,)](*arguments, target=target, **options)
    return arguments[-1]


# -- ShapeError: shapes broadcast as in NumPy; give one of them a dimension of 1, or the same size
@gluon.jit
def two_sizes(x):
    i = gl.arange(0, 128, LINE)
    gl.store(x + i, gl.load(x + i) + gl.arange(0, 64, LINE))


show_error(errors.ShapeError, lambda: run(two_sizes, x))
#> ShapeError: cannot broadcast: dimension 0 is 128 and 64; got [128] and [64]

# -- DtypeError: convert one of them with .to(...)
@gluon.jit
def float_index(x):
    gl.store(x + gl.arange(0, 128, LINE).to(gl.float32), 1.0)


show_error(errors.DtypeError, lambda: run(float_index, x))
#> DtypeError: a pointer moves by whole elements: x + gl.arange(0, 128, LINE).to(gl.float32); expected an integer offset, got float32. Convert the offset: gl.arange(0, 128, LINE).to(gl.float32).to(gl.int32).

# -- LayoutError: take the layout of the target (`gl.portable.blocked_layout`), or launch with the warps of the layout
@gluon.jit
def ones(x):
    gl.store(x + gl.arange(0, 128, LINE), 1.0)


show_error(errors.LayoutError, lambda: run(ones, x, num_warps=8))
#> LayoutError: layout: the layout and the kernel have different numbers of warps; expected 8 warps, got 4: BlockedLayout(size_per_thread=[1], threads_per_warp=[32], warps_per_cta=[4], order=[0], cga_layout=[]). Change the layout, or launch with num_warps=4.

# -- ArgumentError: the message says which values there are
@gluon.jit
def modified(x):
    gl.store(x + gl.arange(0, 128, LINE), 1.0, cache_modifier=".often")


show_error(errors.ArgumentError, lambda: run(modified, x))
#> ArgumentError: cache_modifier: unknown choice; expected '.wb', '.cg', '.cs', '.wt', got '.often'

# -- GlobalVariableError: write `SIZE = gl.constexpr(128)`, or pass it
SIZE = 128


@gluon.jit
def sized(x):
    gl.store(x + gl.arange(0, SIZE, LINE), 1.0)


show_error(errors.GlobalVariableError, lambda: run(sized, x))
#> GlobalVariableError: a kernel reads the global variable 'SIZE', which is not a constexpr; got SIZE = 128. Write SIZE = gl.constexpr(128) where it is defined, or pass it as an argument.

# -- HostFunctionError: decorate the function with @gluon.jit, or take the language's own, here `gl.exp`
@gluon.jit
def grown(x):
    i = gl.arange(0, 128, LINE)
    gl.store(x + i, np.exp(gl.load(x + i)))


show_error(errors.HostFunctionError, lambda: run(grown, x))
#> HostFunctionError: 'np.exp' is a function of numpy, which cannot run in a kernel. Use gl.exp. Compute values that are known before the launch there, and pass them.

# -- KernelSyntaxError: kernels have `if`, `for`, `while` and functions; the message names the replacement
@gluon.jit
def broken_off(x):
    for i in range(4):
        if i == 2:
            break
        gl.store(x + i, 1.0)


show_error(errors.KernelSyntaxError, lambda: run(broken_off, x))
#> KernelSyntaxError: `break` is not supported in kernels. Put the end of the loop into the test of a `while` loop.

# -- StaticAssertionError: launch with constants that the kernel is for
@gluon.jit
def even(x, N: gl.constexpr):
    gl.static_assert(N % 2 == 0, "N must be even")
    gl.store(x, N)


show_error(errors.StaticAssertionError, lambda: run(even, x, N=3))
#> StaticAssertionError: N must be even

# -- TraceError: whatever else keeps a kernel from being compiled; the line says where
@gluon.jit
def misspelt(x):
    gl.store(x + gl.arrange(0, 128, LINE), 1.0)


show_error(errors.TraceError, lambda: run(misspelt, x))
#> TraceError: gl has no 'arrange'. Did you mean 'arange', 'static_range' or 'target'?

# -- NotInKernelError: call it in a function with @gluon.jit; host code has NumPy, and `gluon.cdiv`
show_error(errors.NotInKernelError, lambda: gl.arange(0, 128, LINE))
#> NotInKernelError: gl.arange was called outside a kernel. Call it from a function decorated with @gluon.jit.

# -- CapabilityError: ask the target (`if gl.target.has("nvidia.wgmma"):`), or use `gl.portable`
@gluon.jit
def fenced(x):
    gl.nvidia.hopper.fence_async_shared()
    gl.store(x, 1.0)


show_error(errors.CapabilityError, lambda: run(fenced, x, target="sim:ampere"))
#> CapabilityError: gl.nvidia.hopper.fence_async_shared needs nvidia.fence_async (sm_90, sm_100, sm_103, sm_107, sm_110, sm_120, sm_121); target is sim:sm_80

# -- LimitError: take smaller tiles or fewer stages
@gluon.jit
def large(x):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffer = gl.allocate_shared_memory(gl.float32, [131072], flat)
    gl.store(x + gl.arange(0, 128, LINE), buffer.slice(0, 128).load(LINE))


show_error(errors.LimitError, lambda: run(large, x))
#> LimitError: shape: one allocation needs 524288 bytes of shared memory; expected at most 232448 bytes on sim:sm_90, got 524288. Use a smaller tile or fewer stages.

# -- KernelWarning: a warning, not an error: legal and hardly meant; follow it, or filter it
import warnings


@gluon.jit
def cut_off(x):
    gl.atomic_add(x, 1.5)


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", errors.KernelWarning)
    run(cut_off, np.zeros(1, np.int32))
print(*(str(one.message).splitlines()[0] for one in caught))
#> gl.atomic_add: a fp32 is cut to int32 on its way to memory. Convert it where that is meant: value.to(gl.int32).
