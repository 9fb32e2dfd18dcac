"""Tasks that the tests of the search work on, in processes of their own."""

import os
import signal
import time

import gluon_core as gluon
import gluon_tune as tune
from gluon_core import language as gl


@gluon.jit
def scale(x, y, n, BLOCK: gl.constexpr, VECTOR: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)


def arguments(new, n=1000):
    return {"x": new.random(n), "y": new.empty(n), "n": n}


def grid(args, config):
    return (-(-args["n"] // config["BLOCK"]),)


SCALE = tune.Task(
    kernel=scale,
    space=tune.space(
        BLOCK=[128, 256, 512, 1024],
        VECTOR=[1, 2, 4],
        num_warps=[1, 2, 4],
        when=lambda BLOCK, VECTOR, num_warps: BLOCK == 32 * VECTOR * num_warps,
    ),
    arguments=arguments,
    grid=grid,
    default={"BLOCK": 256, "VECTOR": 4, "num_warps": 2},
    reference=lambda args: args["x"] * 2,
    output="y",
)


WIDE = tune.Task(  # of 100; a file of its own would compile them
    kernel=scale,
    space=tune.space(BLOCK=[2**n for n in range(5, 15)], VECTOR=[2**n for n in range(10)]),
    fixed={"num_warps": 1},
    arguments=arguments,
    grid=grid,
    default={"BLOCK": 256, "VECTOR": 4},
)


def trouble(args, config):
    """Arguments, if all goes well."""
    if config["BLOCK"] == 256:
        time.sleep(600)
    if config["BLOCK"] == 512:
        os.kill(os.getpid(), signal.SIGSEGV)
    return tuple(args.values())


TROUBLED = tune.Task(
    kernel=scale,
    space=tune.space(BLOCK=[128, 256, 512, 100]),
    fixed={"VECTOR": 1, "num_warps": 4},
    arguments=arguments,
    grid=grid,
    operands=trouble,
)


def wrong_for_some(args):
    """A task that only configurations with several warps are marked as right for."""
    return args["x"] * 3


WRONG = tune.Task(
    kernel=scale,
    space=tune.space(BLOCK=[128]),
    fixed={"VECTOR": 1, "num_warps": 4},
    arguments=arguments,
    grid=grid,
    reference=wrong_for_some,
    output="y",
)


@gluon.jit
def copied(x, y, BLOCK: gl.constexpr, PAD: gl.constexpr):
    """Through shared memory, with conflicts where rows are not padded."""
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    columns: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, gl.num_warps()], [0, 1])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, PAD, [1, 0])
    r = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, rows))[:, None]
    c = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, rows))[None, :]
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK], shared)
    buffer.store(gl.load(x + r * BLOCK + c))
    gl.thread_barrier()
    transposed = gl.convert_layout(buffer.load(columns), rows)
    gl.store(y + r * BLOCK + c, transposed)


CONFLICTS = tune.Task(
    kernel=copied,
    space=tune.space(PAD=[1, 32]),
    fixed={"BLOCK": 32, "num_warps": 1},
    arguments=lambda new: {"x": new.random((32, 32)), "y": new.empty((32, 32))},
    grid=lambda args, config: (1,),
)


@gluon.jit
def misbehaves(x, flag, HOW: gl.constexpr):
    """Well for 0; waits for what never comes for 1; stores where nothing is for 2."""
    i = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    if HOW == 1:
        seen = gl.load(flag, volatile=True)
        while seen == 0:
            seen = gl.load(flag, volatile=True)
    far: gl.constexpr = 2**40 if HOW == 2 else 0
    gl.store(x + i.to(gl.int64) * far + i, 1.0)


def zero(new):
    x = new.random(128)
    flag = new.integers(1, 0, 1, "int32")
    return {"x": x, "flag": flag}


MISBEHAVES = tune.Task(
    kernel=misbehaves,
    space=tune.space(HOW=[1, 2, 0]),
    fixed={"num_warps": 4},
    arguments=zero,
    grid=lambda args, config: (1,),
)
