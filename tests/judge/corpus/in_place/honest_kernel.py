"""honest: changes its input, as the problem says"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def scaled(x, y, scale, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + offsets, gl.load(x + offsets, mask=offsets < count) * scale, mask=offsets < count)


def launch(x, y, scale):
    if x.numel():
        layout = gl.BlockedLayout([1], [32], [4], [0])
        scaled[(-(-x.numel() // 256),)](x, y, scale, x.numel(), 256, layout)


def run(x, scale):
    if x.is_contiguous():
        launch(x, x, scale)
    else:
        y = x.contiguous()
        launch(y, y, scale)
        x.copy_(y)
