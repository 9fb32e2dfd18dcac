"""Verdicts for every trip count: rings that are right, and the same with one mistake."""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from tests.prove.proofs import LAYOUT, TILE, describe, judged

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")


@gluon.jit
def fill(src, ring, full, empty, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr):
    DEPTH: gl.constexpr = STAGES + 1 if FAULT == "producer counts to more" else STAGES
    for i in range(tiles):
        slot = i % DEPTH % STAGES
        phase = i // DEPTH & 1
        if FAULT == "producer starts in the other phase":
            mbarrier.wait(empty.index(slot), phase)
        elif FAULT != "producer does not wait":
            mbarrier.wait(empty.index(slot), phase ^ 1)
        if FAULT == "too few bytes":
            mbarrier.expect(full.index(slot), src.block_type.nbytes // 2)
        elif FAULT != "no bytes are expected":
            mbarrier.expect(full.index(slot), src.block_type.nbytes)
        async_load(src, [0, i * 32], full.index(slot), ring.index(slot))


@gluon.jit
def drain(
    dst, ring, out, full, empty, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    if FAULT == "consumer takes one more":
        tiles += 1
    for i in range(tiles):
        slot = i % STAGES
        phase = i // STAGES & 1
        if FAULT == "phase turns too late":
            phase = i // (STAGES + 1) & 1
        if FAULT == "consumer starts in the other phase":
            phase = phase ^ 1
        if FAULT != "consumer does not wait":
            mbarrier.wait(full.index(slot), phase)
        if FAULT == "released before it is read":
            mbarrier.arrive(empty.index(slot), count=1)
        value = ring.index(slot).load(layout)
        if FAULT == "released by a fence":
            fence_async_shared()
        elif FAULT != "released before it is used":
            value = value * 1.0
        if FAULT == "released twice":
            mbarrier.arrive(empty.index(slot), count=1)
        if FAULT == "released but for every fifth":
            if i % 5 != 4:
                mbarrier.arrive(empty.index(slot), count=1)
        elif FAULT != "released before it is read" and FAULT != "never released":
            mbarrier.arrive(empty.index(slot), count=1)
        if FAULT != "the result leaves too late":
            store_wait(0)
        out.store(value * 1.0)
        fence_async_shared()
        async_store(dst, [0, i * 32], out)
    if FAULT != "nobody waits for the last":
        store_wait(0)


@gluon.jit
def ring_copy(src, dst, tiles, STAGES: gl.constexpr, FAULT: gl.constexpr, layout: gl.constexpr):
    shape: gl.constexpr = src.block_type.shape
    ring = gl.allocate_shared_memory(src.dtype, [STAGES] + shape, src.layout)
    out = gl.allocate_shared_memory(dst.dtype, shape, dst.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        if FAULT == "empty counts two":
            mbarrier.init(empty.index(i), count=2)
        else:
            mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (drain, (dst, ring, out, full, empty, tiles, STAGES, FAULT, layout)),
            (fill, (src, ring, full, empty, tiles, STAGES, FAULT)),
        ],
        [1],
        [24],
    )


def copying(stages, fault, tiles=4):
    src = np.arange(8 * TILE * tiles, dtype=np.float32).reshape(8, -1)
    dst = np.zeros_like(src)
    verdict, error = judged(
        ring_copy,
        (1,),
        describe(src),
        describe(dst),
        tiles,
        stages,
        fault,
        LAYOUT,
        target="sim:sm_90",
    )
    return verdict, error, (src == dst).all()


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_ring_is_right_for_every_trip_count(stages):
    verdict, error, same = copying(stages, "none")
    assert verdict.verdict == "proved", verdict
    assert error is None and same
    assert "every trip count" in " ".join(verdict.lines)


def test_a_fence_lets_a_load_that_nothing_has_used_go():
    verdict, error, same = copying(3, "released by a fence")
    assert verdict.verdict == "proved", verdict
    assert error is None and same


def test_a_load_that_nothing_has_used_may_be_on_its_way_at_the_arrival():
    verdict, error, _ = copying(3, "released before it is used")
    assert verdict.verdict == "counterexample", verdict
    assert type(error).__name__ == "RaceError"


FAULTS = {
    "producer starts in the other phase": "DeadlockError",
    "producer does not wait": None,
    "producer counts to more": None,
    "too few bytes": "BarrierError",
    "no bytes are expected": None,
    "consumer takes one more": "DeadlockError",
    "phase turns too late": None,
    "consumer starts in the other phase": None,
    "consumer does not wait": None,
    "released before it is read": "RaceError",
    "released twice": None,
    "released but for every fifth": "DeadlockError",
    "never released": "DeadlockError",
    "the result leaves too late": "RaceError",
    "nobody waits for the last": "LeakError",
    "empty counts two": "DeadlockError",
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_is_a_counterexample_that_the_simulator_reports(fault):
    verdict, error, _ = copying(3, fault)
    assert verdict.verdict == "counterexample", verdict
    assert error is not None and (FAULTS[fault] in (None, type(error).__name__)), error


def test_a_mistake_that_the_launch_itself_does_not_show():
    """Only from the fifth tile on something is missing, and two are launched."""
    verdict, error, _ = copying(3, "released but for every fifth", tiles=2)
    assert verdict.verdict == "counterexample", verdict
    assert "tiles=" in verdict.lines[0]
    assert type(error).__name__ == "DeadlockError"


# ---- the command ----------------------------------------------------------------------------------


def command(*words):
    """Return the output of `gluon prove`, and its exit code."""
    done = CliRunner().invoke(app, ["prove", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "file, target",
    [
        pytest.param("patterns/double_buffer.py", "sim:sm_80", id="add"),
        pytest.param("tutorials/step09_pipeline.py", "sim:sm_90", marks=pytest.mark.once),
        pytest.param("tutorials/step10_warp_specialized.py", "sim:sm_90", marks=pytest.mark.once),
        pytest.param("tutorials/step07_async.py", "sim:sm_80", marks=pytest.mark.once),
        pytest.param("hopper/warp_specialized_gemm.py", "sim:sm_90", marks=pytest.mark.campaign),
        pytest.param(
            "blackwell/warp_specialized_gemm.py", "sim:sm_100", marks=pytest.mark.campaign
        ),
    ],
)
def test_our_own_pipelines_are_proved(file, target, tmp_path):
    code, text = command(EXAMPLES / file, "--target", target, "--within", 110)
    assert code == 0, text
    assert "proved: " in text and "cannot say" not in text


GATHERED = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def gathered(x, n, layout: gl.constexpr):
    offsets = gl.arange(0, 64, layout=layout)
    buffer = gl.allocate_shared_memory(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for i in range(n):
        buffer.index(gl.load(x + i).to(gl.int32) % 4).store(gl.zeros([64], gl.float32, layout))

if __name__ == "__main__":
    gathered[(1,)](np.zeros(64, np.float32), 7, gl.BlockedLayout([1], [32], [2], [0]), target="sim:sm_80", num_warps=2)
"""


def test_an_untraceable_op_is_reported_with_its_line(tmp_path):
    file = tmp_path / "gathered.py"
    file.write_text(GATHERED)
    line = (
        GATHERED.splitlines().index(next(t for t in GATHERED.splitlines() if "buffer.index" in t))
        + 1
    )
    code, text = command(file)
    assert code == 3
    assert "cannot say: gathered" in text and f"(line {line})" in text
    code, text = command(f"{file}:another")
    assert code == 3
    assert "`another` is not launched, but gathered" in text
    code, text = command(file, "--json")
    document = json.loads(text)
    assert code == document["exit"] == 3
    assert [one["verdict"] for one in document["verdicts"]] == ["cannot say"]


@gluon.jit
def awaited(flag):
    before = gl.atomic_add(flag, 1)
    while before < 0:
        before = gl.atomic_add(flag, 0)


def test_a_value_of_too_many_unknowns_is_reported_with_its_line():
    verdict, _ = judged(awaited, (1,), np.ones(1, np.int32), target="sim:sm_90")
    line = inspect.getsourcelines(awaited.fn)[1] + 3  # the loop
    assert verdict.verdict == "cannot say", verdict
    assert "more than 24 conditions in a row" in verdict.lines[0]
    assert (
        f"(line {line})" in verdict.lines[0]
        and "waits for memory written by others" in verdict.lines[1]
    )


def test_without_the_solver_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    file = tmp_path / "gathered.py"
    file.write_text(GATHERED)
    code, text = command(file)
    assert code == 3
    assert "pip install" in text and "z3" in text
