import numpy as np
from show_error import show_error

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim import errors

LINE = gl.BlockedLayout([1], [32], [4], [0])
FLAT = gl.SwizzledSharedLayout(1, 1, 1, [0])
x = np.arange(128, dtype=np.float32)


def run(kernel, *arguments, grid=1, **options):
    kernel[(grid,)](*arguments, target="sim:hopper", **options)


# -- RaceError: wait for the copy before the load; the message says which wait, and how many may be pending
@gluon.jit
def early(x, out):
    i = gl.arange(0, 128, LINE)
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    gl.nvidia.ampere.async_copy.async_copy_global_to_shared(buffer, x + i)
    gl.nvidia.ampere.async_copy.commit_group()
    gl.store(out + i, buffer.load(LINE))


show_error(errors.RaceError, lambda: run(early, x, np.zeros_like(x)))
#> RaceError: race on byte 0 of `buffer`: the asynchronous write by `gl.nvidia.ampere.async_copy.async_copy_global_to_shared` at line 22 in the kernel, program (0, 0, 0), and the read by `buffer.load` at line 24 in the kernel, program (0, 0, 0), have no order. Put `gl.nvidia.ampere.async_copy.wait_group(0)` between line 22 and line 24.

# -- DeadlockError: somebody must arrive at the barrier, or the wait wants the other phase
@gluon.jit
def forever(out):
    done = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    gl.nvidia.hopper.mbarrier.init(done, count=1)
    gl.nvidia.hopper.mbarrier.wait(done, 0)
    gl.store(out, 1.0)


show_error(errors.DeadlockError, lambda: run(forever, x))
#> DeadlockError: every task waits and nothing can happen any more:

# -- OutOfBoundsError: mask the access: `mask=i < n`
@gluon.jit
def beyond(x):
    i = gl.arange(0, 256, LINE)
    gl.store(x + i, 1.0)


show_error(errors.OutOfBoundsError, lambda: run(beyond, x))
#> OutOfBoundsError: x: gl.store outside its argument's storage: element (128,) of program (0, 0, 0) is byte 512 of `x`, which has 512 (128 elements are outside). Mask the access, or pass a larger array.

# -- UninitialisedError: store before the load, or wait for the copy that fills the buffer
@gluon.jit
def empty(out):
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    gl.store(out + gl.arange(0, 128, LINE), buffer.load(LINE))


show_error(errors.UninitialisedError, lambda: run(empty, x, tolerated="error"))
#> UninitialisedError: `buffer.load` of `buffer`: element (0,) of program (0, 0, 0) was never written (128 elements were not). Write the buffer first, and wait for the write.

# -- MisalignedError: promise only alignment that holds, or leave the promise out
@gluon.jit
def promised(x):
    i = gl.arange(0, 128, LINE)
    gl.store(x + gl.multiple_of(i + 1, [16]), 1.0, mask=i < 64)


show_error(errors.MisalignedError, lambda: run(promised, x))
#> MisalignedError: multiple_of(16) does not hold for element (0,) of program (0, 0, 0), and the width of vector accesses may rely on it; got 1. Claim only facts that always hold.

# -- OffsetOverflowError: compute the offset in 64 bits: `row.to(gl.int64) * stride`
@gluon.jit
def wrapped(x, row, stride):
    gl.store(x + row * stride + gl.arange(0, 128, LINE), 1.0)


show_error(errors.OffsetOverflowError, lambda: run(wrapped, x, 65536, 65552))
#> OffsetOverflowError: the result of `mul` does not fit into 32 bits and becomes the address of element (0,) of program (0, 0, 0) in the `gl.store` of line 75. Compute the offset in 64 bits: x.to(gl.int64) before the product or the sum.

# -- CapacityError: free a buffer before the next one, or take smaller ones
@gluon.jit
def greedy(out):
    i = gl.arange(0, 128, LINE)
    first = gl.allocate_shared_memory(gl.float32, [32768], FLAT)
    second = gl.allocate_shared_memory(gl.float32, [32768], FLAT)
    first.slice(0, 128).store(gl.load(out + i))
    second.slice(0, 128).store(gl.load(out + i))
    gl.store(out + i, first.slice(0, 128).load(LINE) + second.slice(0, 128).load(LINE))


show_error(errors.CapacityError, lambda: run(greedy, x))
#> CapacityError: greedy needs too much shared memory; expected at most 232448 bytes on sim:sm_90, got 262144 bytes in use at once. Use smaller tiles or fewer stages.

# -- LeakError: wait for the copy before the kernel ends
@gluon.jit
def left_behind(x):
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    copy: gl.constexpr = gl.nvidia.ampere.async_copy
    copy.async_copy_global_to_shared(buffer, x + gl.arange(0, 128, LINE))
    copy.commit_group()


show_error(errors.LeakError, lambda: run(left_behind, x, tolerated="error"))
#> LeakError: the kernel ends while `copy.async_copy_global_to_shared` of the kernel may still be in flight: nobody waited for it. Put `gl.nvidia.ampere.async_copy.wait_group(0)` after line 100, before the end.

# -- BarrierError: initialize with the number of arrivals of each phase, or wait in between
@gluon.jit
def twice(out):
    done = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    gl.nvidia.hopper.mbarrier.init(done, count=1)
    gl.nvidia.hopper.mbarrier.arrive(done, count=2)
    gl.store(out, 1.0)


show_error(errors.BarrierError, lambda: run(twice, x))
#> BarrierError: more arrivals at a barrier than its phase expects; expected at most 1, got 2. Nobody waits for the barrier `done`, at which line 112 arrives: wait for it before line 112. Put `gl.nvidia.hopper.mbarrier.wait(done, phase)` there.

# -- PipelineError: fetch the steps of a pipeline one after the other, and wait for each of them, on every target alike
@gluon.jit
def first_alone(x, out):
    tiles = gl.portable.pipeline(gl.portable.descriptor(x, [128], [1], [32]), 2)
    tiles.fetch(0, [[0]])
    for step in range(4):
        tiles.fetch(step + 1, [[(step + 1) * 32]], pred=step < 3)
        (tile,) = tiles.wait(0, pending=1)
        gl.store(out + step * 32 + gl.arange(0, 32, LINE), tile.load(LINE))
    tiles.close()


show_error(errors.PipelineError, lambda: run(first_alone, x, np.zeros_like(x)))
#> PipelineError: step 0 is waited for, and its buffers hold step 2 by now. Wait for each step before the one that takes its buffers is fetched; in a loop over `step`: tiles.wait(step).

# -- DeviceAssertionError: look at the element that the message names
@gluon.jit
def positive(x):
    gl.device_assert(gl.load(x + gl.arange(0, 128, LINE)) > 0, "x must be positive")


show_error(errors.DeviceAssertionError, lambda: run(positive, np.arange(128, dtype=np.float32), debug=True))
#> DeviceAssertionError: device_assert failed in element (0,) of program (0, 0, 0): x must be positive

# -- TimeLimitError: the loop has no end, or `timeout=` is too short
@gluon.jit
def long(x, n):
    for i in range(n):
        gl.store(x, i.to(gl.float32))


show_error(errors.TimeLimitError, lambda: run(long, x, 1 << 30, timeout=0.2))
#> TimeLimitError: the launch is not over after 0.2 seconds. Look for a loop that does not end, or raise the timeout.

# -- ScopeError: atomics that programs of several devices meet at take `scope="sys"`, which is not the default
@gluon.jit
def add(x):
    gl.atomic_add(x.peers[0], 1.0)


def both(group):
    add[(1,)](group.empty(1, np.float32), target="sim:hopper")


show_error(errors.ScopeError, lambda: gluon.distributed.simulate(both, 2, "sim:hopper"))
#> ScopeError: `gl.atomic_add` at line 156 on rank 1 and atomics of rank 0 (line 156) meet in `x.peers of rank 0`, and the scope of those of rank 1 ends at its device. Give the atomic of line 156 scope="sys".

# -- SimulatorWarning: a warning: the manual forbids it, hardware is known to take it; see [tolerated accesses](../simulator.md)
import warnings

warning = errors.SimulatorWarning(errors.RaceError("race on element 0 of `x`"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn(warning)
print(caught[0].message)
#> race on element 0 of `x`

# -- LaunchInterrupted: Ctrl-C while a kernel ran; it says at which line, and `gluon run --timeout` ends it sooner
print(errors.LaunchInterrupted(None, 3, 8, ("the kernel waits",)))
#> the launch was interrupted; 3 of 8 programs are over
#>   the kernel waits

# -- SimulatorError: it is the base of all of these; catch it where any report of the simulator shall be caught
try:
    run(forever, x)
except errors.SimulatorError as error:
    print(type(error).__name__)
#> DeadlockError
