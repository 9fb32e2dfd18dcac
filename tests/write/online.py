"""The parts that the tests of online softmaxes share: how a step of their kernels ends, and the results of NumPy."""

import numpy as np

# The kernel has `score` in its loop, [BM, BN], whose elements outside are -1e30.
END = """        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + head * length * D + keys[:, None] * D + depth[None, :], mask=keys[:, None] < length, other=0.0)
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    gl.store(logs + head * rows + row, largest + gl.log2(total), mask=row < rows)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.store(out + head * rows * D + row[:, None] * D + depth[None, :], result, mask=row[:, None] < rows)
"""


def agree(out, logs, score, v, tolerance, of_logs):
    """Return True if results and logarithms of sums are those of NumPy; `score` is float64 [heads, rows, length]."""
    weight = np.exp2(score - score.max(-1, keepdims=True))
    total = weight.sum(-1)
    return np.allclose(logs, score.max(-1) + np.log2(total), atol=of_logs) and np.allclose(
        out, weight @ v.astype(np.float64) / total[..., None], rtol=0, atol=tolerance
    )
