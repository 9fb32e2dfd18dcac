"""Layer norm of rows: mean and variance in float32, then scale and shift.

    python examples/reductions/layer_norm.py

The row is in registers once: the variance is that of the values less their mean, which loses no digits.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def layer_norm_kernel(x, weight, bias, out, columns, epsilon, BLOCK: gl.constexpr):
    column = gl.arange(0, BLOCK)
    inside = column < columns
    offsets = gl.program_id(0) * columns + column
    values = gl.load(x + offsets, mask=inside, other=0.0).to(gl.float32)
    mean = gl.sum(values, 0) / columns
    centered = gl.where(inside, values - mean, 0.0)
    variance = gl.sum(centered * centered, 0) / columns
    scale = gl.load(weight + column, mask=inside, other=0.0) * gl.rsqrt(variance + epsilon)
    result = centered * scale + gl.load(bias + column, mask=inside, other=0.0)
    gl.store(out + offsets, result.to(out.dtype.element_ty), mask=inside)


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((19, 1000)).astype(np.float16)
    weight, bias = rng.standard_normal((2, 1000), np.float32)
    out = place.empty(x.shape, np.float16)
    arrays = map(place.array, (x, weight, bias))
    layer_norm_kernel[(19,)](*arrays, out, 1000, 1e-5, BLOCK=1024, target=place.target)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(place.numpy(out), wanted, rtol=0.01, atol=0.01)
    print(f"layer norm on {place.target}: 19 rows of 1000 in float16")


if __name__ == "__main__":
    main()
