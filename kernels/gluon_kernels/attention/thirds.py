"""Products of float32 by a matrix unit of bfloat16.

A float32 number is the sum of three of bfloat16, its thirds, which have 8 bits each. Two numbers have nine products of thirds, of which the six
largest are added, the smallest first: those left out are below 2^-24 of the product.
"""

import gluon_core as gluon
from gluon_core import language as gl

__all__ = ["ORDER", "converted", "product_of_thirds", "thirds"]

LARGEST = gl.constexpr(3.3895313892515355e38)  # of bfloat16
ORDER = gl.constexpr(((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)))


@gluon.jit
def thirds(x):
    """Return the three bfloat16 numbers whose sum is x."""
    # Larger numbers would round to infinity.
    first = gl.minimum(gl.maximum(x, -LARGEST), LARGEST).to(gl.bfloat16)
    rest = x - first.to(gl.float32)
    second = rest.to(gl.bfloat16)
    third = (rest - second.to(gl.float32)).to(gl.bfloat16)
    return first, second, third


@gluon.jit
def converted(parts, LAYOUT: gl.constexpr):
    """Return thirds in another layout."""
    results = ()
    for i in gl.static_range(3):
        results = results + (gl.convert_layout(parts[i], LAYOUT),)
    return results


@gluon.jit
def product_of_thirds(a, b, zeros):
    """Return the product of two tiles of float32 from their thirds, on any device."""
    result = zeros
    for i in gl.static_range(6):
        result = gl.portable.mma(a[ORDER[i][0]], b[ORDER[i][1]], result)
    return result
