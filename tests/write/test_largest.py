"""Products are scaled behind their maximum, with the sign of a scale in an operand."""

import runpy

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_sim.settings import using
from gluon_write.command import written
from gluon_write.preferred import preferred_form
from gluon_write.writing.short_text import forced_texts
from tests.write.online import END, agree

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

KERNEL = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def attention(q, k, v, out, logs, scale, rows, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, CAUSAL: gl.constexpr):
    block, head = gl.program_id(0), gl.program_id(1)
    depth = gl.arange(0, D)
    along = gl.arange(0, BN)
    row = block * BM + gl.arange(0, BM)
    query = gl.load(q + head * rows * D + row[:, None] * D + depth[None, :], mask=row[:, None] < rows, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    twice = scale * 2
    if CAUSAL:
        last = (block + 1) * BM
    else:
        last = length
    for start in range(0, last, BN):
        keys = start + along
        key = gl.load(k + head * length * D + keys[None, :] * D + depth[:, None], mask=keys[None, :] < length, other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        {scaled}
        score = gl.where({inside}, score, -1e30)
"""
KERNEL += END.replace(
    "        value =", "        acc = acc * kept[:, None]\n        value ="
).replace("acc * kept[:, None])", "acc)")


def right(
    folder, scale, length, BN=64, causal=False, scaled="score = score * twice", D=64, warps=4,
    rows=None,
):  # fmt: skip
    """Return True if results and logarithms of sums are those of NumPy."""
    path = folder / "scaled.py"
    inside = "keys[None, :] < length"
    if causal:
        inside = f"({inside}) & (row[:, None] >= keys[None, :])"
    path.write_text(KERNEL.format(scaled=scaled, inside=inside))
    kernel = runpy.run_path(str(path))["attention"]
    heads, rows = 1, rows or length
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((heads, n, D)).astype(np.float16) for n in (rows, length, length)
    )
    out, logs = np.full_like(q, 7), np.full((heads, rows), 7, np.float32)
    with using(schedule="latest"):
        kernel[(-(-rows // 128), heads)](
            q, k, v, out, logs, scale, rows, length, D, 128, BN, causal,
            num_warps=warps, num_stages=2 + (D > 64), target="sim:hopper",
        )  # fmt: skip
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * scale * 2
    if causal:
        score = np.where(np.tril(np.ones((rows, rows), bool)), score, -1e30)
    return agree(out, logs, score, v, 5e-3, 2e-2)


LARGEST = "gl.max(score, 1) * size)"


def test_units_read_queries_whose_sign_changed_in_place(tmp_path, chosen_sources):
    """The last step has a mask and scales each product; there are too many keys for the pipelined form."""
    assert right(tmp_path, -0.1, 1030, rows=130) and right(tmp_path, 0.1, 1030, rows=40)
    text = max(chosen_sources, key=len)
    assert "consumers=3" in text and LARGEST in text and "weight = gl.exp2(score * size - " in text
    assert "query.store(-query.load())\n" in text and "score = score * size\n" in text


def test_registers_hold_queries_under_a_causal_mask(tmp_path, chosen_sources):
    assert right(tmp_path, -0.1, 150, causal=True, scaled="score *= twice")
    assert "consumers=2" in chosen_sources[-1] and LARGEST in chosen_sources[0]
    assert "query = query * gl.where(" in chosen_sources[-1]


def test_queries_that_have_no_ring(tmp_path, chosen_sources):
    """Shared memory is full of keys and values of 128 columns, and three groups have no registers for queries; two have.

    Next to these, scores and sums weights have 16 bits from one step to the next. The masked step comes first: products of
    the next one overlap its exponentials.
    """
    assert right(tmp_path, -0.1, 150, D=128, rows=40)
    text = chosen_sources[-1]
    assert "consumers=2" in text and "range(gl.where(masked_from < last, 0, 128), " in text
    rounds = text.split("next_slot = slot.next()")[1]
    converted, issued = rounds.index("weight_operand = weight.to("), rounds.index("query_operand, ")
    assert issued < rounds.index("warpgroup_mma_wait(1, ") < converted


@pytest.mark.campaign("one more attention on the simulator")
def test_queries_that_have_no_ring_and_no_masked_step(tmp_path):
    assert right(tmp_path, 0.1, 128, D=128, rows=40)


@pytest.mark.campaign("one more attention on the simulator")
def test_threads_with_room_for_their_sums_keep_pointers(tmp_path, chosen_sources):
    """A thread of eight warps holds 64 sums of heads of 128, and one of four twice as many."""
    assert right(tmp_path, -0.1, 70, D=128, warps=8)
    assert "consumers=" not in chosen_sources[-1] and "async_load(" in chosen_sources[0]


@pytest.mark.campaign  # two forms, and one in partitions alone
def test_few_programs_with_few_steps_are_pipelined(tmp_path, all_sources):
    """Such a launch is over before partitions have their descriptors; results without them are the same."""
    assert right(tmp_path, -0.1, 150)
    special, pipelined = all_sources
    assert "tma_ring(" in special and "async_load(" not in special
    assert "async_load(" in pipelined and "warp_specialize(" not in pipelined
    all_sources.clear()
    with preferred_form("specialized"):
        assert right(tmp_path, -0.1, 150)
    assert [text == special for text in all_sources] == [True]


MAIN = """

if __name__ == "__main__":
    import numpy as np

    q, k, v = (np.random.default_rng(i).standard_normal((1, 150, 64)).astype(np.float16) for i in range(3))
    out, logs = np.zeros_like(q), np.zeros((1, 150), np.float32)
    attention[(2, 1)](q, k, v, out, logs, 0.1, 150, 150, 64, 128, 64, False, num_stages=2)
    weights = np.exp2(q[0].astype(np.float64) @ k[0].astype(np.float64).T * 0.2)
    assert np.abs(out[0] - weights @ v[0] / weights.sum(1, keepdims=True)).max() < 5e-3
"""


@pytest.mark.campaign  # it is written in two forms, and each runs
def test_written_files_choose_between_two_forms(tmp_path, monkeypatch):
    path = tmp_path / "scaled.py"
    path.write_text(KERNEL.format(scaled="score *= twice", inside="keys[None, :] < length") + MAIN)
    text, _ = written(str(path), registry().target("sm_90"))
    for line in (
        "def few_steps(args):",
        "        attention_pipelined(",
        "        attention_specialized(",
    ):
        assert line in text
    forms = forced_texts(text)
    assert len(forms) == 2 and all(one != text for one in forms)
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for number, one in enumerate([text, *forms]):
        explicit = tmp_path / f"explicit_{number}.py"
        explicit.write_text(one)
        runpy.run_path(str(explicit), run_name="__main__")


OTHERS = {
    "of a step": "score = score * (twice + 0 * start)",
    "of a row": "score = score * gl.full([BM], twice, gl.float32)[:, None]",
    "after a sum": "score = score * twice + score * 0",
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", OTHERS)
def test_other_scales_stay(name, tmp_path, chosen_sources):
    assert right(tmp_path, 0.1, 150, scaled=OTHERS[name])
    assert "gl.max(score, 1))" in chosen_sources[-1] and "size" not in chosen_sources[0]
