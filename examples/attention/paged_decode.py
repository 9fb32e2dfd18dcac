"""Decode one token against a paged KV cache.

    python examples/attention/paged_decode.py

The cache of a sequence is a list of pages anywhere in memory; a table names them. A program has one sequence and one
head, reads the table, and walks over the pages with an online softmax. `gluon_kernels.attention_decode` splits long
sequences over programs as well.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def decode_kernel(
    q, k_cache, v_cache, out, table, lengths, scale, pages, heads,
    PAGE: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    sequence, head = gl.program_id(0), gl.program_id(1)
    length = gl.load(lengths + sequence)
    depth = gl.arange(0, D)
    place = (sequence * heads + head) * D
    query = gl.load(q + place + depth).to(gl.float32) * scale
    largest = -float("inf")
    total = 0.0
    acc = gl.zeros([D], gl.float32)
    for start in range(0, length, PAGE):
        page = gl.load(table + sequence * pages + start // PAGE)
        position = gl.arange(0, PAGE)
        offsets = ((page * PAGE + position) * heads + head)[:, None] * D + depth[None, :]
        inside = start + position < length
        keys = gl.load(k_cache + offsets, mask=inside[:, None], other=0.0).to(gl.float32)
        scores = gl.where(inside, gl.sum(keys * query[None, :], 1), -float("inf"))
        higher = gl.maximum(largest, gl.max(scores, 0))
        kept, p = gl.exp(largest - higher), gl.exp(scores - higher)
        values = gl.load(v_cache + offsets, mask=inside[:, None], other=0.0).to(gl.float32)
        acc = acc * kept + gl.sum(p[:, None] * values, 0)
        total = total * kept + gl.sum(p, 0)
        largest = higher
    gl.store(out + place + depth, (acc / total).to(out.dtype.element_ty))


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    lengths, heads, depth, page = np.array([50, 7], np.int32), 2, 64, 16
    k, v = rng.standard_normal((2, 8, page, heads, depth)).astype(np.float16)
    table = np.array([[5, 0, 3, 6], [2, 0, 0, 0]], np.int32)
    q = rng.standard_normal((2, heads, depth)).astype(np.float16)
    out = place.empty(q.shape, np.float16)
    arrays = (*map(place.array, (q, k, v)), out, *map(place.array, (table, lengths)))
    decode_kernel[(2, heads)](
        *arrays, depth**-0.5, 4, heads, PAGE=page, D=depth, target=place.target
    )
    for sequence, length in enumerate(lengths):
        keys, values = (x[table[sequence]].reshape(-1, heads, depth)[:length] for x in (k, v))
        p = np.exp(np.einsum("hd,lhd->hl", q[sequence].astype(float), keys) * depth**-0.5)
        wanted = np.einsum("hl,lhd->hd", p / p.sum(1, keepdims=True), values)
        np.testing.assert_allclose(place.numpy(out)[sequence], wanted, rtol=0.01, atol=0.01)
    print(f"paged decoding on {place.target}: sequences of 50 and 7 tokens, pages of 16")


if __name__ == "__main__":
    main()
