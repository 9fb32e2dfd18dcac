import numpy as np
from gluon_emu import errors
from gluon_emu.settings import using
from show_error import show_error

import gluon_core as gluon
from gluon_core import language as gl

LINE = gl.BlockedLayout([1], [64], [4], [0])
x = np.arange(256, dtype=np.float32)


def run(kernel, *arguments, target="emu:gfx942", **options):
    kernel[(1,)](*arguments, target=target, **options)


# -- AccessError: mask the access: `mask=i < n`
@gluon.jit
def beyond(x):
    gl.store(x + 4096 + gl.arange(0, 256, LINE), 1.0)


show_error(errors.AccessError, lambda: run(beyond, x))
#> AccessError: a store to 4 bytes at ...: 15364 bytes past the end of x (1024 bytes)

# -- UninitialisedError: store before the load
@gluon.jit
def empty(out):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffer = gl.allocate_shared_memory(gl.float32, [256], flat)
    gl.store(out + gl.arange(0, 256, LINE), buffer.load(LINE))


show_error(errors.UninitialisedError, lambda: run(empty, x))
#> UninitialisedError: reads LDS byte 0, which nobody has written

# -- EmulatorError: it is the base of all of these; catch it where any report of the emulator shall be caught
try:
    run(beyond, x)
except errors.EmulatorError as error:
    print(type(error).__name__, "at", error.instruction.split()[0])
#> AccessError at global_store_dword

# -- MissingWaitError: end assembly with `s_waitcnt vmcnt(0)`; the compiler knows of no load in it
@gluon.jit
def early(x):
    i = gl.arange(0, 256, LINE)
    load: gl.constexpr = "global_load_dword $0, $1, off"
    v = gl.inline_asm_elementwise(load, "=v,v", [x + i], gl.float32, False, 1)
    gl.store(x + i, v + 1.0)


show_error(errors.MissingWaitError, lambda: run(early, x))
#> MissingWaitError: missing s_waitcnt vmcnt(0) before `v_add_f32_e32 v1, 1.0, v1`, which writes v1: `global_load_dword v1, v[2:3], off` (emulator.py:49) may still write it

# -- RaceError: put `gl.barrier()` between; the compiler, which puts barriers where it sees loads and stores, sees none in assembly
@gluon.jit
def crossed(out):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    i = gl.arange(0, 256, LINE)
    buffer = gl.allocate_shared_memory(gl.int32, [256], flat)
    buffer.store(i)
    load: gl.constexpr = "ds_read_b32 $0, $1\ns_waitcnt lgkmcnt(0)"
    v = gl.inline_asm_elementwise(load, "=v,v", [(255 - i) * 4], gl.int32, False, 1)
    gl.store(out + i, v + buffer.load(LINE))


show_error(errors.RaceError, lambda: run(crossed, np.zeros(256, np.int32)))
#> RaceError: reads what wave 3 writes by `ds_write_b32 v2, v0` (emulator.py:62), LDS byte 1020, with no barrier between that orders them, or no wait before the barrier

# -- OrderError: store the flag with `sem="release"`, the default
@gluon.jit
def hasty(x, flag):
    if gl.program_id(0) == 0:
        gl.store(x, 1.0)
        gl.atomic_xchg(flag, 1, sem="relaxed")
    else:
        while gl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        gl.store(x + 1, gl.load(x))


show_error(errors.OrderError, lambda: hasty[(2,)](x, np.zeros(1, np.int32), target="emu:gfx942"))
#> OrderError: loads what wave 0 of workgroup (0, 0, 0) stored by `global_store_dword v0, v1, s[2:3]` (emulator.py:75), which may not be there yet: missing s_waitcnt vmcnt(0) before the flag is stored by `global_atomic_swap v0, v1, s[4:5]` (emulator.py:76)

# -- HazardError: put the `s_nop` there that the message names; the compiler adds them to its own code
@gluon.jit
def hurried(x):
    i = gl.arange(0, 256, LINE)
    twice: gl.constexpr = "v_exp_f32 $0, $1\nv_add_f32 $0, $0, $0"
    v = gl.inline_asm_elementwise(twice, "=&v,v", [gl.load(x + i)], gl.float32, True, 1)
    gl.store(x + i, v)


show_error(errors.HazardError, lambda: run(hurried, x))
#> HazardError: 1 wait states are needed behind `v_exp_f32 v2, v1` (the result of a transcendental instruction), there are 0: s_nop 0 before `v_add_f32 v2, v2, v2`

# -- DeadlockError: let every wave signal the barrier that others wait for
@gluon.jit
def unheard(x):
    wait: gl.constexpr = "s_barrier_wait -1\nv_mov_b32 $0, $1"
    gl.store(x, gl.inline_asm_elementwise(wait, "=v,v", [gl.load(x)], gl.float32, False, 1))


show_error(errors.DeadlockError, lambda: run(unheard, x, target="emu:gfx1201", num_warps=2))
#> DeadlockError: no wave of unheard can go on

# -- TrapError: look at the path to it; a compiler puts traps where it takes a place for unreachable
@gluon.jit
def trapped(x):
    trap: gl.constexpr = "s_trap 2\nv_mov_b32 $0, $1"
    gl.store(x, gl.inline_asm_elementwise(trap, "=v,v", [gl.load(x)], gl.float32, False, 1))


show_error(errors.TrapError, lambda: run(trapped, x))
#> TrapError: the kernel trapped (2)

# -- TimeLimitError: store to the flag; where the launch only takes long, raise `GLUON_EMU_TIMEOUT`
@gluon.jit
def waits(flag):
    while gl.load(flag, volatile=True) == 0:
        pass


with using(timeout=0.2):
    show_error(errors.TimeLimitError, lambda: run(waits, np.zeros(1, np.int32)))
#> TimeLimitError: waits did not end in 0.2 s

# -- UnknownInstructionError: run the kernel on the simulator; the emulator does not know this instruction yet
@gluon.jit
def cleared(x):
    clear: gl.constexpr = "v_clrexcp\nv_mov_b32 $0, $1"
    gl.store(x, gl.inline_asm_elementwise(clear, "=v,v", [gl.load(x)], gl.float32, False, 1))


show_error(errors.UnknownInstructionError, lambda: run(cleared, x))
#> UnknownInstructionError: cleared has 1 instructions that the emulator cannot execute:
