"""Kernels that walks.py follows; launches read their source, so they have a file of their own."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def scale(x, y, n, factor, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = offsets < n
    gl.store(y + offsets, gl.load(x + offsets, mask=inside) * factor, mask=inside)


@gluon.jit
def load_tile(described):
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], described.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    tma.async_load(described, [0, 0], ready, tile)
