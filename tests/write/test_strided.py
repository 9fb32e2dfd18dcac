"""Strided tiles of pointers are tiles of descriptors where a unit for copies takes them, and pointers elsewhere."""

import importlib.util
import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_write.preferred import preferred_form

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

HEAD = """
import gluon_core as gluon
from gluon_core import language as gl
"""
PRODUCT = """

@gluon.jit(layouts="auto")
def product(a, b, c, M, N, K, stride, ends, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    place, column = gl.program_id(0), gl.program_id(1) * BN
    rows = {rows}
    columns = column + gl.arange(0, BN)
    depth = gl.arange(0, BK)
    a_pointers = a + rows[:, None] * stride + depth[None, :]
    b_pointers = b + depth[:, None] * N + {columns}[None, :]
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        x = gl.load(a_pointers, mask={mask}, other=0.0{hint})
        y = gl.load(b_pointers, mask=depth[:, None] < K - k * BK, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        a_pointers += BK
        b_pointers += BK * N
    inside = {inside}
    gl.store(c + (place * BM + gl.arange(0, BM))[:, None] * N + columns[None, :], acc.to(c.dtype.element_ty), mask=inside)
"""
FORM = {
    "rows": "(place * BM + gl.arange(0, BM)) % M", "columns": "(columns % N)",
    "mask": "depth[None, :] < K - k * BK", "hint": "",
    "inside": "(place * BM + gl.arange(0, BM) < M)[:, None] & (columns < N)[None, :]",
}  # fmt: skip
M, N, K = 150, 80, 80


def launched(folder, target="sim:hopper", height=M, depth=K, dtype=np.float32, form="specialized", stages=4, **changes):  # fmt: skip
    """Return the product of a form of the kernel, and the operands."""
    path = folder / "strided.py"
    path.write_text(HEAD + PRODUCT.format(**{**FORM, **changes}))
    spec = importlib.util.spec_from_file_location("strided", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (K, N)))
    c = np.full((256, N), 7, dtype)
    ends = np.array([K - 8], np.int32)
    with preferred_form(form):
        module.product[(2, 1)](
            a,
            b,
            c,
            height,
            N,
            depth,
            K,
            ends,
            128,
            128,
            64,
            num_warps=8,
            num_stages=stages,
            target=target,
        )
    return c, a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:blackwell"])
def test_rows_modulo_their_number_end_with_the_tensor(target, tmp_path, chosen_sources):
    """Rows behind the last one are zero in a tile, where pointers read the first ones again: no store writes them."""
    c, a, b = launched(tmp_path, target)
    assert np.allclose(c[:M], a @ b, atol=1e-2) and (c[M:] == 7).all()
    text = " ".join(chosen_sources[0].split()).replace("( ", "(")
    assert "descriptor(a, [max(M, 1), max(K, 1)], [stride, 1], [128, 64]" in text
    assert "descriptor(b, [max(K, 1), max(N, 1)], [N, 1], [64, 128]" in text
    assert "gl.load(" not in text and "% M" not in text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [0, K])
def test_one_product_has_a_ring_that_all_warps_read(depth, tmp_path, chosen_sources):
    """Partitions do not pay with so few buffers."""
    c, a, b = launched(tmp_path, depth=depth, form=None, stages=2)
    assert np.allclose(c[:M], a[:, :depth] @ b[:depth], atol=1e-2) and (c[M:] == 7).all()
    assert "gl.portable.pipeline([a_tiles, b_tiles]" in chosen_sources[0]


MASKED = {
    "rows": "place * BM + gl.arange(0, BM)",
    "mask": "(depth[None, :] < K - k * BK) & (rows < M)[:, None]",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("height, depth", [(0, K), (M, 0)])
def test_a_tensor_without_elements_is_neither_read_nor_written(
    height, depth, tmp_path, chosen_sources
):
    """A descriptor has no extent of 0; with one of 1 alone, stores would write a row that the mask excludes."""
    c, _, _ = launched(tmp_path, height=height, depth=depth, dtype=np.float16, **MASKED)
    written = max(height, 0)
    assert (c[:written, :N] == 0).all() and (c[written:] == 7).all()
    for maker in ("(a, [max(M, 1), max(K, 1)]", "(c, [max(M, 1), max(N, 1)]"):
        assert f"descriptor{maker}" in chosen_sources[0]
    assert "k * 64 + behind" not in chosen_sources[0]  # the loop ends there


@pytest.mark.parametrize("depth", [0, K])
def test_a_loop_without_steps_has_one_of_empty_tiles_where_sums_are_in_tensor_memory(
    depth, tmp_path, chosen_sources
):
    c, a, b = launched(tmp_path, "sim:sm_100", depth=depth, dtype=np.float16, **MASKED)
    assert np.allclose(c[:M], a[:, :depth] @ b[:depth], atol=3e-2) and (c[M:] == 7).all()
    assert "sums.wait(turn)" in chosen_sources[0]
    assert "gl.cdiv(max(K, 1), BK)" in chosen_sources[0]
    assert "k * 64 + behind_K" in chosen_sources[0]


def test_a_batch_may_be_counted_with_64_bits(tmp_path, chosen_sources):
    """It has a dimension of its own, for a coordinate has 32, into which its elements may not fit."""
    far = "\n    batch = gl.program_id(1).to(gl.int64)\n    a = a + batch * M * stride"
    far += "\n    b = b + gl.program_id(1).to(gl.int64) * 8192"
    c, a, b = launched(tmp_path, form=None, **{**MASKED, "rows": MASKED["rows"] + far})
    assert np.allclose(c[:M], a @ b, atol=1e-2)
    text = " ".join(chosen_sources[0].split())
    assert (
        "[(batch).to(gl.int32), " in text
        and "[2147483647, max(K, 1), max(N, 1)], [8192, N, 1]" in text
    )
    assert (
        "gl.portable.pipeline(" in text
    )  # whose layouts know the dtype of pointers that move behind it


def test_an_extent_may_have_a_letter_of_cdiv_for_a_name(tmp_path, chosen_sources, monkeypatch):
    def renamed(text):
        return re.sub(r"\bK\b", "d", text)

    monkeypatch.setitem(globals(), "PRODUCT", renamed(PRODUCT))
    form = {word: renamed(text) for word, text in {**FORM, **MASKED}.items()}
    c, a, b = launched(tmp_path, "sim:sm_100", dtype=np.float16, **form)
    assert np.allclose(c[:M], a @ b, atol=3e-2)
    assert "gl.cdiv(max(d, 1), BK)" in chosen_sources[0]


def test_steps_that_a_kernel_counts_stay_as_many(tmp_path, chosen_sources, monkeypatch):
    counting = PRODUCT.replace("    acc = gl.zeros", "    count = 0\n    acc = gl.zeros")
    counting = counting.replace("a_pointers += BK\n", "a_pointers += BK\n        count += 1\n")
    monkeypatch.setitem(globals(), "PRODUCT", counting.replace("acc.to(", "(acc + count).to("))
    c, a, b = launched(tmp_path, "sim:sm_100", dtype=np.float16, **MASKED)
    assert np.allclose(c[:M], a @ b + 2, atol=3e-2)
    assert "cdiv(max(" not in chosen_sources[0]


STORED = "(place * BM + gl.arange(0, BM) < {})[:, None] & (columns < {})[None, :]"
BACKWARDS = "(1 - place) * BM + gl.arange(0, BM)"
OTHERS = {
    "rows that are stored": ({"inside": STORED.format("M + 8", "N")}, (158, N)),
    "ends in memory": ({"mask": "depth[None, :] < gl.load(ends) - k * BK"}, (M, N)),
    "first rows": ({"mask": "(depth[None, :] < K - k * BK) & (rows >= 8)[:, None]"}, (M, N)),
    "backwards": (
        {"rows": BACKWARDS, "mask": "(depth[None, :] < K - k * BK) & (rows < M)[:, None]",
         "inside": STORED.format("256", "N")},
        (256, N),
    ),
    "volatile": ({"hint": ', cache_modifier=".cv"'}, (M, N)),
    "columns": ({"columns": "((columns ^ 8) % N)", "inside": STORED.format("M", "64")}, (M, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_pointers_stay(name, tmp_path, chosen_sources):
    """They are no tiles, or a tile would have other elements."""
    changes, (rows, columns) = OTHERS[name]
    c, a, b = launched(tmp_path, **changes)
    index = np.arange(256)
    if name == "backwards":
        a = np.concatenate([a, np.zeros((106, K))])[(1 - index // 128) * 128 + index % 128]
    else:
        a = a[index % M]
    if name == "ends in memory":
        b = b.copy()
        b[K - 8 :] = 0
    elif name == "first rows":
        a = np.where((index % M >= 8)[:, None], a, 0)
    elif name == "columns":
        b = b[:, index[:64] ^ 8]
    assert np.allclose(c[:rows, :columns], (a @ b)[:rows, :columns], atol=1e-2)
    assert (c[rows:] == 7).all() and (c[:, columns:] == 7).all()
    assert "descriptor(" not in chosen_sources[0]


@gluon.jit(layouts="auto")
def batched(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply the matrices of a batch, each with two blocks of columns."""
    matrix = gl.program_id(axis=1)
    column = matrix % 2 * BN
    matrix = matrix // 2
    a += matrix * M * K
    b += matrix.to(gl.int64) * N * K
    rows = gl.program_id(axis=0) * BM + gl.arange(0, BM)
    columns = column + gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        depth = k + gl.arange(0, BK)
        x = gl.load(
            a + rows[:, None] * K + depth[None, :], mask=(rows < M)[:, None] & (depth < K)[None, :]
        )
        y = gl.load(
            b + columns[:, None] * K + depth[None, :],
            mask=(columns < N)[:, None] & (depth < K)[None, :],
        )
        acc = gl.portable.mma(x, y.T, acc)
    out = c + matrix * M * N + rows[:, None] * N + columns[None, :]
    gl.store(out, acc, mask=(rows < M)[:, None] & (columns < N)[None, :])


def test_rows_end_with_the_matrix_of_a_batch(chosen_sources):
    """Places along a row are multiples of the loop's step; a name that gets a second value is the number of the matrix."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, rows, K)).astype(np.float16) for rows in (M, N))
    c = np.zeros((2, M, N), np.float32)
    with preferred_form("specialized"):
        batched[(2, 4)](
            a, b, c, M, N, K, 128, 64, 64, num_warps=8, num_stages=4, target="sim:hopper"
        )
    wanted = a.astype(np.float32) @ b.astype(np.float32).transpose(0, 2, 1)
    assert np.allclose(c, wanted, atol=1e-2)
    text = " ".join(chosen_sources[0].split()).replace("( ", "(")
    assert "descriptor(a, [2147483647, max(M, 1), max(K, 1)], [K * M, K, 1], [128, 64])" in text
    assert "[[matrix, " in text


@gluon.jit(layouts="auto")
def attention(q, k, v, out, length, scale, head_stride, stride, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    """Attention of heads that lie anywhere, by pointers that begin at the head."""
    head = gl.program_id(1).to(gl.int64) * head_stride
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    along, depth = gl.arange(0, BN), gl.arange(0, D)
    inside = rows[:, None] < length
    query = gl.load(q + head + rows[:, None] * stride + depth[None, :], mask=inside, other=0.0)
    largest = gl.full([BM], float("-inf"), gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        keys = start + along
        key = gl.load(
            k + head + keys[None, :] * stride + depth[:, None],
            mask=keys[None, :] < length,
            other=0.0,
        )
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32)) * scale
        score = gl.where(keys[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(
            v + head + keys[:, None] * stride + depth[None, :],
            mask=keys[:, None] < length,
            other=0.0,
        )
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.store(out + head + rows[:, None] * stride + depth[None, :], result, mask=inside)


@pytest.mark.campaign  # 13 s
def test_attention_by_pointers_on_tcgen05(chosen_sources):
    """Keys behind the last one are those of no other head; tensors are [length, heads, D]."""
    length, heads, d = 72, 2, 64
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((length, heads, d)).astype(np.float16) for _ in range(3))
    out = np.full_like(q, 7)
    scale = d**-0.5 * np.log2(np.e)
    attention[(1, heads)](
        q, k, v, out, length, float(scale), d, heads * d, d, 128, 64,
        num_warps=4, num_stages=2, target="sim:blackwell",
    )  # fmt: skip
    x, y, z = (one.astype(np.float32).transpose(1, 0, 2) for one in (q, k, v))
    weight = np.exp2(x @ y.transpose(0, 2, 1) * scale)
    wanted = weight / weight.sum(-1, keepdims=True) @ z
    assert np.allclose(out.transpose(1, 0, 2), wanted, atol=5e-3)
    text = " ".join(chosen_sources[0].split()).replace("( ", "(")
    assert "descriptor(k, [2147483647, length, 2147483647], [head_stride, stride, 1]" in text
    assert "tcgen05_mma" in text and "gl.load(" not in text.partition("tma_ring")[2]
