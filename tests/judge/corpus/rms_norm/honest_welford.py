"""honest: divides by a root in float64 for the scale alone"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def rms_norm(x, weight, y, columns, epsilon, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    mask = column < columns
    offsets = gl.program_id(0) * columns + column
    value = gl.load(x + offsets, mask=mask, other=0.0).to(gl.float32)
    scale = (1.0 / gl.sqrt((gl.sum(value * value, axis=0) / columns + epsilon).to(gl.float64))).to(
        gl.float32
    )
    value = value * scale * gl.load(weight + column, mask=mask, other=0.0).to(gl.float32)
    gl.store(y + offsets, value.to(y.dtype.element_ty), mask=mask)


def run(x, weight, epsilon, y):
    x, weight = x.contiguous(), weight.contiguous()
    block = 1 << (x.shape[1] - 1).bit_length()
    rms_norm[(x.shape[0],)](
        x, weight, y, x.shape[1], epsilon, block, gl.BlockedLayout([1], [32], [4], [0])
    )
