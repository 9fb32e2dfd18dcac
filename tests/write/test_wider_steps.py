"""Online softmaxes with few columns in a step take several steps at once, where that computes the same."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import gluon_write.descriptors.tiles_of_pointers
from gluon_sim.settings import using
from gluon_write.porting.port import port
from tests.write.online import END, agree

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

KERNEL = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.constexpr_function
def kind_of(dtype):
    return gl.float32


@gluon.jit(layouts="auto")
def attention(q, k, v, out, logs, weights, scale, rows, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    block, head = gl.program_id(0), gl.program_id(1)
    depth = gl.arange(0, D)
    along = gl.arange(0, BN)
    row = block * BM + gl.arange(0, BM)
    query = gl.load(q + head * rows * D + row[:, None] * D + depth[None, :], mask=row[:, None] < rows, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    count = 0
    if CAUSAL:
        first, last = 0, min(length, (block + 1) * BM)
    else:
        first, last = 0, length
    for start in range(first, last, BN):
        keys = start + along
        key = gl.load(k + head * length * D + keys[None, :] * D + depth[:, None], mask=keys[None, :] < length, other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], kind_of(query.dtype)))
        score = score * scale
        inside = keys[None, :] < length
        if CAUSAL:
            inside = inside & (row[:, None] >= keys[None, :])
        score = gl.where(inside, score, -1e30)
"""
KERNEL += END


def right(folder, scale, length, BN, causal, text=KERNEL, BM=128):
    """Return True if results and logarithms of sums are those of NumPy."""
    path = folder / "steps.py"
    path.write_text(text)
    kernel = runpy.run_path(str(path))["attention"]
    heads, rows, D = 1, length, 64
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((heads, length, D)).astype(np.float16) for _ in range(3))
    out, logs = np.full_like(q, 7), np.full((heads, rows), 7, np.float32)
    with using(schedule="latest"):
        kernel[(-(-rows // BM), heads)](
            q, k, v, out, logs, np.ones((rows, length), np.float32), scale, rows, length, D, BM, BN, causal,
            num_warps=4, num_stages=2, target="sim:hopper",
        )  # fmt: skip
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * scale
    if causal:
        score = np.where(np.tri(rows, length, dtype=bool), score, -np.inf)
    return agree(out, logs, score, v, 3e-3, 3e-3)


@pytest.mark.campaign("several attentions on the simulator take a minute")
@pytest.mark.parametrize(("BN", "length", "causal"), [(64, 200, False), (32, 40, True), (16, 300, True)])  # fmt: skip
def test_several_steps_at_once(tmp_path, chosen_sources, BN, length, causal):
    """No step is whole, two are, and one with a part behind it."""
    assert right(tmp_path, -0.1 if causal else 0.1, length, BN, causal)
    assert f"# {128 // BN} steps of BN columns at once." in chosen_sources[-1]
    assert "tma_ring(" in chosen_sources[-1]


PRODUCTS = Path(__file__).parent / "triton_kernels" / "products.py"


@pytest.mark.campaign("two attentions on the simulator")
@pytest.mark.parametrize(("keys", "D"), [("N_CTX", 64), ("N_KEYS", 64), ("N_CTX", 128)])
def test_steps_before_the_diagonal(keys, D, tmp_path, chosen_sources):
    """Those that the end masks are rare, and each ends its products: a block has them if all its rows are behind the end.

    Such a block stores nothing, and needs no mask, where rows and keys have the same end. The step on the diagonal comes
    first where sums are wide, in blocks that store anything."""
    path = tmp_path / "products.py"
    text = port(PRODUCTS.read_text(), str(PRODUCTS)).text
    own = "sm_scale, N_CTX,\n    HEAD: gl.constexpr, BLOCK_M"
    assert text.count(own) == 1 and text.count("sm_scale * SCALE, N_CTX,") == 3
    text = text.replace("sm_scale * SCALE, N_CTX,", f"sm_scale * SCALE, {keys},")
    path.write_text(text.replace(own, own.replace("N_CTX,", "N_CTX, N_KEYS,")))
    kernel = runpy.run_path(str(path))["attention_kernel"]
    for length in (300, 40):
        q, k, v = torch.randn(3, 1, length, D, generator=torch.Generator().manual_seed(1)).half()
        out = torch.full_like(q, 7)
        blocks = -(-length // 128) + 1  # the last one has no rows
        with using(schedule="latest"):
            kernel[(blocks, 1)](
                q, k, v, out, -0.1, length, length, D, 128, 64, True, num_warps=4, target="sim:hopper"
            )  # fmt: skip
        score = q.float() @ k.float().mT * -0.1
        score = score.masked_fill(torch.ones_like(score).triu(1) > 0, -torch.inf)
        assert torch.allclose(out.float(), torch.softmax(score, -1) @ v.float(), atol=3e-3)
    consumer = chosen_sources[-1].partition("def attention_kernel_rows(")[2]
    rare = consumer.partition("in range(masked_from, hi_2, 128):\n")[2].partition("l_i = ")[0]
    waits = 2 if keys == "N_KEYS" else 0
    assert rare.count("warpgroup_mma_wait(0, ") == rare.count("is_async=True") == waits
    assert ("masked_from" in consumer) == (keys == "N_KEYS")
    assert ("range(lo, hi, 128)" in consumer) == (D == 64)
    if D == 128:
        masked, _, whole = consumer.partition("for start_n_2 in range(lo_2, hi_2, 128):")
        assert "if lo < hi:" in masked and "start_n_2 = lo" in masked and "where(" not in whole
    assert "acc * (1.0 / l_i)[:, None]" in consumer


class Read(Exception):
    """Say that the steps of a kernel have been read."""


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Return a function that says which text the first steps of a kernel have, and launches no further."""

    def of(text, BN=64, causal=False, BM=128):
        def read(fn, drawn, steps=False):
            raise Read(fn.src)

        monkeypatch.setattr(gluon_write.descriptors.tiles_of_pointers, "strided", read)
        with pytest.raises(Read) as caught:
            right(tmp_path, 0.1, 200, BN, causal, text, BM)
        return str(caught.value)

    return of


def other(*lines):
    """Return the kernel with other lines: an old one, the new one, and so on."""
    text = KERNEL
    for old, new in zip(lines[::2], lines[1::2]):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


SUM = "        total = total * kept + gl.sum(weight, 1)\n"
SAME = {
    "another order": ("total * kept + gl.sum(weight, 1)", "gl.sum(weight, axis=1) + kept * total"),
    "in place": (SUM, "        total *= kept\n        total += gl.sum(weight, 1)\n"),
    "one name": ("higher = gl.maximum(largest, gl.max(score, 1))\n        kept = gl.exp2(largest - higher)",
                 "before = largest\n        higher = gl.maximum(before, gl.max(score, 1))\n        kept = gl.exp2(before - higher)"),
    "scaled largest": ("gl.max(score, 1)", "gl.max(score, 1) * 1.0"),
    "shifted scores": ("weight = gl.exp2(score - higher[:, None])", "score = score - higher[:, None]\n        weight = gl.exp2(score)"),
    "scaled shifts": ("kept = gl.exp2(largest - higher)\n        weight = gl.exp2(score - higher[:, None])",
                      "kept = gl.exp2((largest - higher) * 0.5)\n        weight = gl.exp2((score - higher[:, None]) * 0.5)"),
    "scaled masks": ("score = gl.where(inside, score, -1e30)", "score = gl.where(inside, score, -1e30) * 2.0 - 1.0"),
    "masked weights": (SUM, "        weight = gl.where(inside, weight, 0.0)\n" + SUM),
    "a bias": ("score = score * scale", "score = score * scale + gl.load(weights + keys, mask=keys < length, other=0.0)[None, :]"),
    "infinite": ("gl.where(inside, score, -1e30)", 'gl.where(inside, score, -float("inf"))'),
    "numbers of columns left": ("inside = keys[None, :] < length", "inside = along[None, :] < length - start"),
    "a product of its own": ("acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])",
                             "acc = acc * kept[:, None] + gl.portable.mma(weight.to(value.dtype), value, gl.zeros([BM, D], gl.float32))"),
}  # fmt: skip


def test_steps_that_are_taken_at_once(steps):
    for causal in (False, True):
        text = steps(KERNEL, causal=causal)
        assert "along = gl.arange(0, 128)" in text and "range(first, last, 128)" in text
        assert "# 2 steps of BN columns at once." in text and "gl.zeros([BM, 128]" in text
    assert "# 8 steps of BN columns at once." in steps(KERNEL, BN=16, causal=True)
    assert "# 2 steps" in steps(other("first, last = 0, length", "first, last = 0, block * 128"))


@pytest.mark.parametrize("name", SAME)
def test_online_softmaxes_in_other_words(steps, name):
    assert "# 2 steps of BN columns at once." in steps(other(*SAME[name]), causal=True)


OTHERS = {
    "the end is no multiple": ("first, last = 0, length", "first, last = 0, length + 1"),
    "keys have no mask": ("depth[:, None], mask=keys[None, :] < length, other=0.0", "depth[:, None]"),
    "values have no mask": ("mask=keys[:, None] < length, other=0.0", "mask=depth[None, :] < D, other=0.0"),
    "another mask": ("mask=keys[:, None] < length, other=0.0", "mask=keys[:, None] < rows, other=0.0"),
    "masks of another sign": ("score = gl.where(inside, score, -1e30)", "score = gl.where(inside, score, -1e30) * scale"),
    "masks that are subtracted": ("score = gl.where(inside, score, -1e30)", "score = 0.0 - gl.where(inside, score, -1e30)"),
    "masks that are divided": ("score = gl.where(inside, score, -1e30)", "score = gl.where(inside, score, -1e30) / scale"),
    "shifts of another sign": ("kept = gl.exp2(largest - higher)\n        weight = gl.exp2(score - higher[:, None])",
                               "kept = gl.exp2((largest - higher) * scale)\n        weight = gl.exp2((score - higher[:, None]) * scale)"),
    "a mask of either": ("inside = keys[None, :] < length", "inside = (keys[None, :] < length) | (row[:, None] < 1)"),
    "a mask that leaves a weight": ("gl.where(inside, score, -1e30)", "gl.where(inside, score, -1.0)"),
    "a number for each step": ("score = score * scale", "score = score * (scale + 0 * start)"),
    "a number for a column of a step": ("score = score * scale", "score = score * scale * (along * 0 + 1).to(gl.float32)[None, :]"),
    "steps are counted": (SUM, SUM + "        count = count + 1\n"),
    "the size of a step": ("score = score * scale", "score = score * (scale * BN / 64)"),
    "the shape of a step": ("score = score * scale", "score = score * (scale * key.shape[1] / 64)"),
    "columns of the last step": ("logs + head * rows + row, largest", "logs + head * rows + row, gl.sum(along, 0) * 0 + largest"),
    "a number that leaves the loop": ("    count = 0\n", "    count = 0\n    kept = total\n", "row, largest +", "row, kept * 0 + largest +"),
    "another exponential": ("kept = gl.exp2(", "kept = gl.exp("),
    "another shift": ("kept = gl.exp2(largest - higher)", "kept = gl.exp2((largest - higher) * scale)"),
    "a sum that is not rescaled": ("total * kept + gl.sum(weight, 1)", "total + gl.sum(weight, 1)"),
    "a sum of scores": ("total * kept + gl.sum(weight, 1)", "total * kept + gl.sum(score, 1)"),
    "a sum along rows": ("total * kept + gl.sum(weight, 1)", "total * kept + gl.sum(weight, 1) + gl.max(gl.sum(weight, 0), 0) * 0"),
    "columns before others": ("score = score * scale", "score = gl.associative_scan(score * scale, 1, added)"),
    "a maximum of the step": ("        largest = higher\n", "        largest = gl.max(score, 1)\n"),
    "a store of the step": (SUM, SUM + "        gl.store(weights + row, total)\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_steps_that_stay(steps, name):
    text = other(*OTHERS[name]).replace(
        "@gluon.jit(layouts",
        "@gluon.jit\ndef added(a, b):\n    return a + b\n\n\n@gluon.jit(layouts",
    )
    assert "range(first, last, BN)" in steps(text)


def test_half_a_block_stays(steps):
    """Blocks of 64 rows end at an odd number of 64 columns."""
    text = KERNEL.replace("min(length, (block + 1) * BM)", "(block + 1) * BM")
    assert "range(first, last, BN)" in steps(text, causal=True, BM=64)
    assert "# 2 steps" in steps(text, causal=True, BM=128)
