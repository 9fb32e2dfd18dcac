"""Tile schedulers: each tile once, in each partition, with any grid; what is needed for it; misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError
from gluon_core.language.nvidia.blackwell import clc
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import BarrierError, DeadlockError
from gluon_sim.settings import using
from tests.backends.sim.sanitizer.test_mutations import Case

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

CLC = TRITON_VERSION >= (3, 8)
with_clc = pytest.mark.skipif(not CLC, reason="needs Triton 3.8")
SIM = registry().target("sim:sm_100")


@gluon.jit
def visit(work, out, partition: gl.constexpr):
    """Record the program of each tile, one more than the program's number, and how often."""
    tile = work.first(partition)
    while work.has(tile):
        row, column = work.at(tile)
        counter = out + (partition * 56 + row // 4 * 8 + column // 2) * 2
        gl.atomic_add(counter, 1)
        gl.store(counter + 1, gl.program_id(0))
        tile = work.next(tile)


@gluon.jit
def visits(out, m, n, HOW: gl.constexpr, SLOTS: gl.constexpr = 3):
    tiles = gl.portable.swizzled_tiles([m, n], [4, 2], 2)
    if HOW == "static":
        work = gl.portable.static_tile_scheduler(tiles, partitions=2)
    elif HOW == "clc":
        work = clc.tile_scheduler(tiles, partitions=2, slots=SLOTS)
    else:
        work = gl.portable.tile_scheduler(tiles, 2, SLOTS)
    gl.warp_specialize([(visit, (work, out, 0)), (visit, (work, out, 1))], [1], [24])


def visited(grid, how, target=SIM, slots=3, **settings):
    out = np.full((2, 7, 8, 2), -1, np.int32)
    out[..., 0] = 0
    with using(**settings):
        visits[grid](out, 28, 16, how, slots, target=target, num_warps=4)
    assert (out[..., 0] == 1).all()
    assert (out[0, ..., 1] == out[1, ..., 1]).all()  # the partitions of a program go in step
    return len(np.unique(out[..., 1]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("grid", [(1,), (5,), (56,), (60,), (7, 2, 2)])
@pytest.mark.parametrize("how", ["static", "dynamic"])
def test_each_partition_visits_each_tile_once(grid, how):
    assert visited(grid, how, registry().target("sim:sm_90")) == min(56, grid[0])
    programs = visited(grid, how)
    # Where programs take over others, only those do something that are there at the same time.
    assert programs <= 4 if CLC and how == "dynamic" else programs == min(56, grid[0])


@pytest.mark.once
@with_clc
@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
@pytest.mark.parametrize("slots", [1, 2])
def test_programs_are_taken_over_in_any_order(schedule, slots):
    assert visited((56,), "clc", slots=slots, schedule=schedule, seed=3) < 20


@gluon.jit
def numbered(out, n):
    work = gl.portable.tile_scheduler(n)
    tile = work.first()
    while work.has(tile):
        gl.atomic_add(out + work.at(tile), 1)
        tile = work.next(tile)
    tile = work.next(tile)  # nothing comes after the end
    if work.has(tile):
        gl.store(out, 100)


@pytest.mark.parametrize("spec", ["sim:sm_100", "sim:gfx942"])
def test_tiles_may_be_mere_numbers(spec):
    out = np.zeros(17, np.int32)
    numbered[(16,)](out, 16, target=registry().target(spec))
    assert out.tolist() == [1] * 16 + [0]


@pytest.fixture
def every_fence(monkeypatch):
    """The compiler adds no fences between the proxies, and all that the letter asks for are wanted."""
    from gluon_nvidia.reference import proxy

    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)
    monkeypatch.setenv("GLUON_SIM_PROXY", "strict")


@gluon.jit
def doubled(work, x, out, partition: gl.constexpr):
    tile = work.first(partition)
    while work.has(tile):
        index = work.at(tile) * 2 + partition
        gl.store(out + index, gl.load(x + index) * 2)
        tile = work.next(tile)


@gluon.jit
def doubles(x, out, n):
    work = gl.portable.tile_scheduler(n, partitions=2, slots=1)
    gl.warp_specialize([(doubled, (work, x, out, 0)), (doubled, (work, x, out, 1))], [1], [24])


@pytest.mark.once
@with_clc
def test_each_inner_wait_arrival_and_fence_is_needed(every_fence):
    """Anything that is left out of a tile scheduler, or changed, is reported."""

    def fresh():
        x = np.arange(40, dtype=np.int32)
        return {"x": x, "out": np.full_like(x, -1)}

    compiled = doubles[(20,)](*fresh().values(), 20, target=SIM, num_warps=4)
    case = Case(
        compiled, (20,), fresh, lambda args: [*args.values(), 20], "out", lambda args: args["x"] * 2
    )
    assert case.run() is None
    kinds, missed = case.judged()
    assert not missed
    for op in ("mbarrier_wait", "mbarrier_arrive", "mbarrier_expect", "fence"):
        assert any(op in name and "deleted" in name for name in kinds), op
    assert case.run() is None


# -- misuse --------------------------------------------------------------------------------------


@gluon.jit
def stray(work, partition: gl.constexpr, ROUNDS: gl.constexpr):
    tile = work.first(partition)
    for _ in range(ROUNDS):
        tile = work.next(tile)


@gluon.jit
def misused(n, FIRST: gl.constexpr, SECOND: gl.constexpr, ROUNDS: gl.constexpr):
    work = gl.portable.tile_scheduler(n, partitions=2, slots=1)
    gl.warp_specialize([(stray, (work, FIRST, 5)), (stray, (work, SECOND, ROUNDS))], [1], [24])


@pytest.mark.once
@with_clc
def test_a_partition_too_many_or_too_few_is_reported_in_words_of_the_scheduler():
    misused[(4,)](4, 0, 1, 5, target=SIM, num_warps=4)
    with pytest.raises(DeadlockError, match="of the answers of line .*\n?.*Partition 0 asks"):
        misused[(4,)](4, 1, 1, 5, target=SIM, num_warps=4)
    with pytest.raises((DeadlockError, BarrierError), match="Partition 0 asks"):
        misused[(4,)](4, 0, 0, 5, target=SIM, num_warps=4)
    with pytest.raises(DeadlockError, match="Each of the 2 partitions of the tile scheduler"):
        misused[(40,)](40, 0, 1, 0, target=SIM, num_warps=4)


@gluon.jit
def wrong(out, WAY: gl.constexpr):
    work = gl.portable.static_tile_scheduler(8, partitions=2)
    if WAY == "no such partition":
        work.first(2)
    if WAY == "no tile":
        work.next(0)
    if WAY == "another scheduler":
        work.has(gl.portable.static_tile_scheduler(8, partitions=3).first(0))
    if WAY == "no partition":
        gl.portable.tile_scheduler(8, partitions=0)
    if WAY == "no slot":
        gl.portable.tile_scheduler(8, slots=0)
    if WAY == "not a number":
        gl.portable.tile_scheduler(out)


@pytest.mark.parametrize(
    "way, error, words",
    [
        ("no such partition", ArgumentError, "partition"),
        ("no tile", ArgumentError, "scheduler.first"),
        ("another scheduler", ArgumentError, "one of 2 partitions"),
        ("no partition", ArgumentError, "partitions"),
        ("no slot", ArgumentError, "slots"),
        ("not a number", DtypeError, "tiles"),
    ],
)
def test_misuse_is_an_error(way, error, words):
    with pytest.raises(error, match=words):
        wrong[(1,)](np.zeros(1, np.int32), way, target=SIM, num_warps=4)


@gluon.jit
def asking(n):
    clc.tile_scheduler(n)


@gluon.jit
def scheduled(out, n):
    work = gl.portable.tile_scheduler(n)
    tile = work.first()
    while work.has(tile):
        gl.store(out + work.at(tile), 1)
        tile = work.next(tile)


def test_a_target_without_it_takes_a_fixed_order():
    with pytest.raises(CapabilityError, match="nvidia.clc" if CLC else "needs Triton >= 3.8"):
        asking[(1,)](4, target="sim:sm_90", num_warps=4)
    if CLC:
        with pytest.raises(CapabilityError, match="static_tile_scheduler"):
            asking[(1,)](4, target=SIM, num_warps=4, num_ctas=4)
    kernel = scheduled.warmup(np.zeros(4, np.int32), 4, grid=(4,), target="sm_90", num_warps=1)
    assert "clusterlaunchcontrol" not in kernel.asm["ptx"]


@pytest.mark.parametrize("num_ctas", [1, 2])
def test_instructions(num_ctas):
    options = {"grid": (8,), "target": "sm_100", "num_warps": 4, "num_ctas": num_ctas}
    ptx = scheduled.warmup(np.zeros(8, np.int32), 8, **options).asm["ptx"]
    assert ptx.count("clusterlaunchcontrol.try_cancel") == (2 if CLC else 0)
    assert ("multicast::cluster::all" in ptx) == (CLC and num_ctas == 2)
