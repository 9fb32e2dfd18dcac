import re

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_emu import errors

LINE = gl.BlockedLayout([1], [64], [4], [0])
x = np.arange(256, dtype=np.float32)


def said(kind, wrong):
    """What an error of this class says, without the place and the instructions."""
    try:
        wrong()
    except kind as error:
        print(f"{type(error).__name__}: {re.sub('0x[0-9a-f]+', '0x...', str(error).splitlines()[0])}")


def run(kernel, *arguments, **options):
    kernel[(1,)](*arguments, target="emu:gfx942", **options)


# -- AccessError: mask the access: `mask=i < n`
@gluon.jit
def beyond(x):
    gl.store(x + 4096 + gl.arange(0, 256, LINE), 1.0)


said(errors.AccessError, lambda: run(beyond, x))
#> AccessError: a store to 4 bytes at 0x...: 15364 bytes past the end of x (1024 bytes)

# -- UninitialisedError: store before the load
@gluon.jit
def empty(out):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffer = gl.allocate_shared_memory(gl.float32, [256], flat)
    gl.store(out + gl.arange(0, 256, LINE), buffer.load(LINE))


said(errors.UninitialisedError, lambda: run(empty, x))
#> UninitialisedError: reads LDS byte 0, which nobody has written
