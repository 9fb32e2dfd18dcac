"""Three groups of warps share the tiles of a step, each with a part of the rows of consecutive blocks."""

import ast
import inspect
import runpy
from types import SimpleNamespace

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.explicit
import gluon_write.partitions.walk
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_sim.settings import using
from gluon_write.command import written
from gluon_write.loops.single_step import follows_whole_steps, has_one_step
from gluon_write.partitions.shared_walk import Grid, Sharing, shared_walk
from gluon_write.text.form import Form

pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]


@gluon.jit(layouts="auto")
def attention(
    q, k, v, out, logs, scale, rows, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Attention of heads along the second axis of the grid, with a logarithm of the sum of each row."""
    block, head = gl.program_id(0), gl.program_id(1)
    heads = gl.num_programs(1)
    q_tiles = gl.portable.descriptor(q, [heads * rows, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [heads * length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [heads * length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [heads * rows, D], [D, 1], [BM, D])
    row = block * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [head * rows + block * BM, 0])
    if CAUSAL:
        last = (block + 1) * BM
    else:
        last = length
    for start in range(0, last, BN):
        key = gl.portable.load(k_tiles, [head * length + start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32)) * scale
        if CAUSAL:
            score = gl.where(row[:, None] >= (start + gl.arange(0, BN))[None, :], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.portable.load(v_tiles, [head * length + start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    gl.store(logs + head * rows + row, largest + gl.log2(total))
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [head * rows + block * BM, 0], result.to(out.dtype.element_ty))


@gluon.jit(layouts="auto")
def ragged(
    q, k, v, out, logs, scale, rows, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    _: gl.constexpr,
):  # fmt: skip
    """The same over keys whose last tile may have a part of its rows."""
    block, head = gl.program_id(0), gl.program_id(1)
    heads = gl.num_programs(1)
    q_tiles = gl.portable.descriptor(q, [heads * rows, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [heads, length, D], [length * D, D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [heads, length, D], [length * D, D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [heads * rows, D], [D, 1], [BM, D])
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [head * rows + block * BM, 0])
    for start in range(0, length, BN):
        key = gl.portable.load(k_tiles, [head, start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32)) * scale
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.portable.load(v_tiles, [head, start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    gl.store(logs + head * rows + block * BM + gl.arange(0, BM), largest + gl.log2(total))
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [head * rows + block * BM, 0], result.to(out.dtype.element_ty))


@gluon.jit(layouts="auto")
def plain(q, k, v, out, rows, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Attention whose only result is a tile."""
    block = gl.program_id(0)
    first = gl.program_id(1) * rows
    q_tiles = gl.portable.descriptor(q, [rows, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [rows, D], [D, 1], [BM, D])
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [first + block * BM, 0])
    for start in range(0, length, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32))
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.portable.load(v_tiles, [start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [block * BM, 0], result.to(out.dtype.element_ty))


@pytest.fixture
def sources(monkeypatch, chosen_sources):
    """Collect the sources of the kernels that get layouts; a device has one multiprocessor."""
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "1")
    return chosen_sources


def right(
    blocks,
    heads=1,
    warps=4,
    causal=False,
    length=256,
    schedule="latest",
    kernel=attention,
    unseen=0,
):
    """Return True if outputs are those of NumPy, after a launch of a program for each block."""
    length = blocks * 128 if causal else length
    rows, D = blocks * 128, 64
    q, k, v = (
        np.random.default_rng(s).standard_normal((heads, n, D)).astype(np.float16)
        for s, n in enumerate((rows, length, length))
    )
    out, logs = np.zeros_like(q), np.zeros((heads, rows), np.float32)
    with using(schedule=schedule):
        kernel[(blocks, heads)](
            q, k, v, out, logs, 0.125, rows, length, D, 128, 128, causal,
            num_warps=warps, num_stages=2, target="sim:hopper",
        )  # fmt: skip
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * 0.125
    if kernel is not attention:
        score[..., length - unseen :] = -1e30
    elif causal:
        score = np.where(np.tril(np.ones((rows, rows), bool)), score, -1e30)
    weight = np.exp2(score - score.max(-1, keepdims=True))
    total = weight.sum(-1)
    wanted = weight @ v.astype(np.float64) / total[..., None]
    return np.abs(out - wanted).max() < 5e-3 and np.allclose(
        logs, score.max(-1) + np.log2(total), atol=2e-2
    )


def test_three_groups(sources):
    """Rows for two rounds of three groups, for one and a single group, and for two groups alone."""
    for blocks, heads, schedule in ((3, 2, "eager"), (2, 1, "latest"), (1, 2, "latest")):
        assert right(blocks, heads, schedule=schedule)
    assert "consumers=3" in sources[0] and "attention_passes(" in sources[0]
    assert "query = query_ring.wait(query_slot)\n" in sources[0]  # the unit reads it there


class Number(float):
    """Behave as a scalar of a kernel."""

    def __mul__(self, other):
        return Number(float(self) * other)

    def __add__(self, other):
        return Number(float(self) + other)

    __rmul__, __radd__ = __mul__, __add__

    def to(self, _):
        return int(self)


def groups_of(shares, heads, programs, units):
    """Execute the list of groups; return (head, part) of each, and the parts that each program computes in each round."""
    space = SimpleNamespace(
        int32=int, minimum=min, maximum=max, static_range=range, cdiv=lambda a, b: -(-a // b),
        where=lambda holds, one, other: one if holds else other,
        num_programs=lambda axis: (programs // heads, heads)[axis],
    )  # fmt: skip
    grid = Grid("gl", "units", "first", {0: "block", 1: "head_index"},
                {0: "gl.num_programs(0)", 1: "gl.num_programs(1)"})  # fmt: skip
    walk = shared_walk(grid, Sharing(0, "part", 2, 3, 130), "program", str(shares), {"units"})
    *before, head = walk.before
    text = "\n".join(before).replace("1.0 / units", "Number(1 / units)")
    names = {"gl": space, "Number": Number, "units": units}
    exec(text.replace("1.0 / heads", "Number(1 / heads)"), names)
    body = "\n".join(f"    {line}" for line in walk.indices)
    done, rounds = [], []
    for first in range(min(programs, units)):
        taken = {}
        for member in range(3):
            names |= {"first": first, "member": member, "done": [], "passes": []}
            exec(f"for program in range({walk.rows}):\n{body}\n"
                 "    done.append((program, head_index, block * 2 + part, share < shares))", names)  # fmt: skip
            exec(f"{walk.passed[0]}\npasses = list(range({walk.passed[2]}))", names)
            for program, head_index, part, inside in names["done"]:
                assert program not in names["passes"]
                taken.setdefault(program, []).append(member)
                done += [(head_index, part)] if inside else []
            every = {program for program, *_ in names["done"]} | set(names["passes"])
            assert member == 0 or every == set(taken)
        rounds.append([len(members) for members in taken.values()])
    return done, rounds


@pytest.mark.sampled(1)
def test_groups_have_each_part_once():
    """Many programs and few; the last programs end together: those without a large group in its last round take two single ones."""
    totals = {}
    for shares, heads, units in ((40, 48, 132), (16, 64, 132), (94, 17, 132), (1, 5, 132), (7, 3, 4),
                                 (33, 12, 132), (2, 1, 1), (16, 24, 132), (13, 100, 132)):  # fmt: skip
        programs = -(-shares // 2) * heads
        done, rounds = groups_of(shares, heads, programs, units)
        assert sorted(done) == [(h, p) for h in range(heads) for p in range(shares)]
        spent = [sum((62, 100, 130)[members - 1] for members in one) for one in rounds]
        pairs = -(-programs // units) * 100
        totals[shares, heads] = max(spent)
        assert max(spent) <= pairs and all(one == sorted(one, reverse=True) for one in rounds)
    assert max(spent) < 0.9 * pairs
    assert totals[16, 24] == 130 and totals[40, 48] == 650


def test_parts_without_rows_are_left_out(sources):
    """The kernel stores one tile, of rows whose number it knows."""
    rows, length = 320, 256
    q, k = (
        np.random.default_rng(s).standard_normal((n, 64)).astype(np.float16)
        for s, n in enumerate((rows, length))
    )
    out = np.zeros_like(q)
    plain[(3, 1)](q, k, k, out, rows, length, 64, 128, 128, num_stages=2, target="sim:hopper")
    score = q.astype(np.float64) @ k.astype(np.float64).T
    weight = np.exp2(score - score.max(-1, keepdims=True))
    wanted = weight @ k.astype(np.float64) / weight.sum(-1, keepdims=True)
    assert np.abs(out - wanted).max() < 5e-3
    assert "gl.minimum(gl.num_programs(0) * 2, gl.cdiv(rows, 64))" in sources[0]


def test_two_groups(sources):
    """With a causal mask blocks have other tiles."""
    assert right(1, causal=True, length=128)
    assert "consumers=2" in sources[0]


def test_three_groups_take_the_last_step_apart(sources):
    """The step with a mask has no loop, and queries in registers: ptxas leaves descriptors out behind the first loop."""
    for blocks, heads, length in ((3, 1, 288), (1, 2, 256), (3, 1, 96)):
        assert right(blocks, heads, length=length, kernel=ragged)
    functions = {text.partition("(")[0]: text for text in sources[0].split("def ")}
    consumer, producer = functions["ragged_rows"], functions["ragged_copies"]
    assert "consumers=3" in sources[0] and "if masked_from < length:" in consumer
    assert "range(masked_from" in producer and "range(masked_from" not in consumer
    tail = consumer.partition("if masked_from < length:")[2]
    assert "query_again = query_ring.wait(query_slot.next().before())" in tail
    assert "warpgroup_mma(query_again, " in tail
    # Threads compare their columns with one bound.
    assert (
        "bound = length - start - 2 * gl.arange(0, 4" in tail and "gl.where(place < bound, " in tail
    )
    assert "(start + gl.arange(0, BN" not in tail


def test_several_masked_steps_keep_their_loop(sources, tmp_path):
    path = tmp_path / "ragged.py"
    path.write_text(IMPORTS + inspect.getsource(ragged.fn).replace("< length,", "< length - 200,"))
    kernel = runpy.run_path(str(path))["ragged"]
    assert right(1, length=288, kernel=kernel, unseen=200)
    assert "consumers=2" in sources[0] and "range(masked_from + BN, length, BN)" in sources[0]


@gluon.jit(layouts="auto")
def two_loops(out, length, BN: gl.constexpr):
    one, other = out, out
    end, place = length, one
    masked_from = gl.cdiv(max(min(end, length - BN + 1), 0), BN) * BN
    for start in range(0, masked_from, BN):
        more = BN
        gl.store(place + start, more)
    for start in range(masked_from, length, BN):
        gl.store(other + start, 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, single", [("more", True), ("length", False)])
def test_an_end_that_a_loop_moves_leaves_several_steps(name, single, tmp_path):
    path = tmp_path / "loops.py"
    path.write_text(IMPORTS + inspect.getsource(two_loops.fn).replace("more", name))
    form = Form(runpy.run_path(str(path))["two_loops"])
    whole, masked = (node for node in ast.walk(form.tree) if isinstance(node, ast.For))
    assert has_one_step(form, masked) == single and not has_one_step(form, whole)
    assert follows_whole_steps(form, masked) == single and not follows_whole_steps(form, whole)


@gluon.jit(layouts="auto")
def last_tile(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Products of the last keys alone; the first loop reads none."""
    block = gl.program_id(0)
    q_tiles = gl.portable.descriptor(q, [gl.num_programs(0) * BM, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [gl.num_programs(0) * BM, D], [D, 1], [BM, D])
    acc = gl.zeros([BM, D], gl.float32)
    query = gl.portable.load(q_tiles, [block * BM, 0])
    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    for passed in range(0, masked_from, BN):
        acc += 1
    for start in range(masked_from, length, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32))
        value = gl.portable.load(v_tiles, [start, 0])
        acc = gl.portable.mma(score.to(value.dtype), value, acc)
    gl.portable.store(out_tiles, [block * BM, 0], acc.to(out.dtype.element_ty))


def test_no_loop_of_several_steps(sources):
    """Three groups pay by the time of a round: here there is none."""
    q, k, v = (
        np.random.default_rng(s).standard_normal((n, 64)).astype(np.float16) * 0.25
        for s, n in enumerate((128, 160, 160))
    )
    out = np.zeros_like(q)
    last_tile[(1,)](q, k, v, out, 160, 64, 128, 128, num_stages=2, target="sim:hopper")
    score = (q.astype(np.float32) @ k[128:].astype(np.float32).T).astype(np.float16)
    wanted = 1 + score.astype(np.float32) @ v[128:].astype(np.float32)
    assert np.allclose(out, wanted, atol=2e-2) and "warp_specialize" in sources[0]


def test_eight_warps_become_four(sources):
    """The groups of rows need the registers of warps that would only copy."""
    assert right(1, heads=2, warps=8, length=128)
    assert "consumers=3" in sources[0]


IMPORTS = (
    "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n\n\n"
)
LAUNCH = """
if __name__ == "__main__":
    q, out = np.ones((256, 64), np.float16), np.zeros((256, 64), np.float16)
    attention[(2, 1)](q, q, q, out, np.zeros(256, np.float32), 0.1, 256, 256, 64, 128, 128, False, num_warps=8, num_stages=2)
    assert np.abs(out - 1).max() < 1e-2
"""


@pytest.mark.campaign
@pytest.mark.parametrize("launch, warps", [(LAUNCH, 4), (LAUNCH.replace("=8,", "=int('8'),"), 8)])
def test_written_launches_ask_for_four_warps(tmp_path, monkeypatch, launch, warps):
    """Files that compute the number of warps keep it."""
    path = tmp_path / "attention.py"
    path.write_text(f"{IMPORTS}{inspect.getsource(attention.fn)}\n{launch}")
    text, _ = written(str(path), registry().target("sm_90"))
    assert ("num_warps=4, num_stages=2" in text) == (warps == 4)
    assert ("consumers=3" in text) == (warps == 4)
    path.write_text(text)
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    runpy.run_path(str(path), run_name="__main__")
