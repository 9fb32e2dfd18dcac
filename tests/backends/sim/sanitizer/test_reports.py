"""One kernel for every kind of report: it comes with its line, and not when its check is off."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import numpy as np
import pytest

import gluon_core as gluon
import gluon_distributed as distributed
import gluon_sim
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.blackwell import TensorMemoryLayout, allocate_tensor_memory
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.layouts import dialect
from gluon_core.testing import triton_at_least
from gluon_nvidia import reference
from gluon_sim import errors
from gluon_sim.errors import REPORTS, SimulatorError
from gluon_sim.settings import Settings, using
from tests.backends.sim.hardware.boxes import F16_, describe, numbers

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
WIDE = gl.constexpr(TensorMemoryLayout([128, 512], 1))
PADDED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[32, 8]], [128], [0]))


@pytest.fixture(autouse=True)
def _all_are_errors(monkeypatch):
    monkeypatch.setenv("GLUON_SIM_TOLERATED", "error")


# ---- kernels, each with one mistake -----------------------------------------------------------


@gluon.jit
def programs_overlap(a, out):
    o = gl.program_id(0) * 96 + gl.arange(0, 128, layout=L1)
    gl.store(out + o, gl.load(a + o))


@gluon.jit
def writes(where, value, IN_GLOBAL: gl.constexpr):
    o = gl.arange(0, 128, layout=L1)
    if IN_GLOBAL:
        gl.store(where + o, o + value)
    else:
        where.store(o + value)


@gluon.jit
def partitions_overlap(a, out, IN_GLOBAL: gl.constexpr):
    where = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    if IN_GLOBAL:
        gl.warp_specialize(
            [(writes, (out, 1, True)), (writes, (out, 2, True))], [4], [64]
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [(writes, (where, 1, False)), (writes, (where, 2, False))], [4], [64]
        )  # fmt: skip


ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
TILE = gl.constexpr(gl.NVMMASharedLayout(32, 16, 2))


@gluon.jit
def reads_an_accumulator_in_flight(a, out):
    x = gl.allocate_shared_memory(gl.float16, [64, 16], TILE, gl.zeros([64, 16], gl.float16, ACC))
    fence_async_shared()
    y = x.slice(0, 8).permute((1, 0))
    acc = warpgroup_mma(x, y, gl.zeros([64, 8], gl.float32, ACC), is_async=True)
    early = warpgroup_mma_wait(1, deps=(acc,)) + 1
    warpgroup_mma_wait(0, deps=(early,))


@gluon.jit
def takes_the_place_of_a_copy(a, out):
    o = gl.arange(0, 128, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    cp.async_copy_global_to_shared(s, a + o)
    cp.commit_group()
    later = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    later.store(o)
    cp.wait_group(0)


@gluon.jit
def turns(a, out):
    o = gl.arange(0, 128, layout=L1)
    gl.store(a + o, o)
    gl.store(out + o, gl.load(a + (127 - o)))


@gluon.jit
def runs_over(a, out):
    o = gl.arange(0, 128, layout=L1)
    gl.store(out + o, gl.load(a + 4096 + o))


@gluon.jit
def indexes_outside(a, out):
    ring = gl.allocate_shared_memory(gl.int32, [2, 128], FLAT)
    o = gl.arange(0, 128, layout=L1)
    ring.index(0).store(o)
    ring.index(1).store(o)
    gl.store(out + o, ring.index(gl.load(a) + 2).load(L1))


@gluon.jit
def sees_more_than_there_is(a, out):
    o = gl.arange(0, 128, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    wider = s.reinterpret(gl.int32, [128], PADDED)
    wider.store(o)
    gl.store(out + o, wider.load(L1))


@gluon.jit
def begins_before(a, out):
    tile = gl.portable.descriptor(out, [256], [1], [128])
    gl.portable.store(tile, [gl.load(a) - 128], gl.arange(0, 128, layout=L1))


@gluon.jit
def stores_again(a, out):
    o = gl.arange(0, 128, layout=L1)
    gl.store(a + o, gl.load(out + o))


@gluon.jit
def stores(a, out):
    o = gl.arange(0, 128, layout=L1)
    gl.store(a + o, o)


@gluon.jit
def reads_unwritten(a, out):
    s = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    gl.store(out + gl.arange(0, 128, layout=L1), s.load(L1))


@gluon.jit
def off_by_a_byte(a, out):
    o = gl.arange(0, 128, layout=L1)
    address = a.to(gl.int64) + 1 + 4 * o.to(gl.int64)
    gl.store(out + o, gl.load(address.to(gl.pointer_type(gl.int32))))


@gluon.jit
def promises(a, out):
    o = gl.arange(0, 128, layout=L1)
    place = gl.multiple_of(o + 1, 16)
    gl.store(out + o, gl.load(a + place))


@gluon.jit
def copies(a, out):
    o = gl.arange(0, 128, layout=L1)
    gl.store(out + o, gl.load(a + o))


@gluon.jit
def wraps(a, out):
    o = gl.arange(0, 128, layout=L1)
    far = (gl.load(a) + 65536) * 65536
    gl.store(out + o, gl.load(a + (far + o)))


@gluon.jit
def hoards(a, out):
    o = gl.arange(0, 32768, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [32768], FLAT)
    t = gl.allocate_shared_memory(gl.int32, [32768], FLAT)
    s.store(o)
    t.store(o)
    gl.store(out + o, s.load(L1) + t.load(L1), mask=o < 128)


@gluon.jit
def hoards_columns(a, out):
    o = gl.arange(0, 128, layout=L1)
    first = allocate_tensor_memory(gl.float32, [128, 512], WIDE)
    second = allocate_tensor_memory(gl.float32, [128, 512], WIDE)
    x = gl.full([128, 512], 1.0, gl.float32, layout=first.get_reg_layout())
    first.store(x)
    second.store(x)
    gl.store(out + o, o)
    first.store(x)


@gluon.jit
def misuses_a_barrier(a, out, HOW: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    if HOW != "uninitialised":
        mbarrier.init(bar, 1)
    if HOW == "initialised":
        mbarrier.init(bar, 1)
    if HOW == "overwritten":
        bar.store(gl.zeros((1,), gl.int64, L1))
    if HOW == "invalidated":
        mbarrier.invalidate(bar)
    mbarrier.arrive(bar)


@gluon.jit
def answers(go, bar):
    mbarrier.wait(go, 0)
    mbarrier.arrive(bar)


@gluon.jit
def asks(go, bar):
    mbarrier.arrive(go)
    mbarrier.arrive(bar)
    mbarrier.wait(bar, 0)  # too late, if the answer has come


@gluon.jit
def asks_and_answers(a, out):
    go = mbarrier.allocate_mbarrier()
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(go, 1)
    mbarrier.init(bar, 1)
    gl.warp_specialize([(asks, (go, bar)), (answers, (go, bar))], [4], [64])


@gluon.jit
def uses_a_barrier_in_each_round(a, out):
    for _ in range(2):
        bar = mbarrier.allocate_mbarrier()
        mbarrier.init(bar, 1)
        mbarrier.arrive(bar)


@gluon.jit
def makes_a_spare_barrier(a, out):
    spare = mbarrier.allocate_mbarrier()
    mbarrier.init(spare, 1)
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 64 * 64 * 2)
    tma.async_load(a, [0, 0], bar, tile)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)


@gluon.jit
def leaves_a_copy(a, out):
    s = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    cp.async_copy_global_to_shared(s, a + gl.arange(0, 128, layout=L1))
    cp.commit_group()


@gluon.jit
def asserts(a, out):
    gl.device_assert(gl.load(a) == 1, "a starts with 1")


@gluon.jit
def waits_for_nobody(a, out):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.wait(bar, 0)


@gluon.jit
def never_ends(a, out):
    for i in range(0, 4, gl.load(a)):
        gl.store(out + i, 1)


@gluon.jit
def takes_long(a, out, ROUNDS: gl.constexpr):
    o = gl.arange(0, 128, layout=L1)
    x = gl.load(a + o)
    for i in range(ROUNDS):
        x = x ^ i
    gl.store(out + o, x)


# ---- the table --------------------------------------------------------------------------------


@dataclass
class Case:
    """A launch with a mistake.

    Args:
        line: part of the kernel line that the report must name.
        arguments: behind `a` and `out`.
        other: settings of both launches, with the check and without.
        on: the setting's value that brings the report.
        off: the one that does not.
        patch: models of ops to use, by name, where an op cannot make the mistake by itself.
    """

    kernel: Any
    line: str
    arguments: tuple = ()
    grid: int = 1
    other: dict = field(default_factory=dict)
    on: Any = True
    off: Any = False
    patch: dict = field(default_factory=dict)
    launch: Optional[Callable] = None

    def run(self) -> None:
        if self.launch is not None:
            self.launch(self)
            return
        a, out = np.zeros(256, np.int32), np.zeros(256, np.int32)
        self.kernel[(self.grid,)](a, out, *self.arguments)


def read_only(case: Case) -> None:
    a, out = np.zeros(256, np.int32), np.zeros(256, np.int32)
    compiled = case.kernel[(1,)](a, out)
    a.setflags(write=False)
    compiled[(1,)](a, out)


def marked(case: Case) -> None:
    a, out = np.zeros(256, np.int32), gluon.uninitialised(np.zeros(256, np.int32))
    case.kernel[(1,)](a, out)


def compiled_for_aligned(case: Case) -> None:
    big = np.zeros(1024, np.int32)
    start = -big.ctypes.data // 4 % 4
    aligned, other = big[start : start + 256], big[start + 257 : start + 513]
    copies[(1,)](aligned, aligned)[(1,)](other, aligned)


def with_debug(case: Case) -> None:
    case.kernel[(1,)](np.zeros(1, np.int32), np.zeros(1, np.int32), debug=True)


def on_blackwell(case: Case) -> None:
    case.kernel[(1,)](np.zeros(256, np.int32), np.zeros(256, np.int32), target="sim:sm_100")


def before_views_were_checked(case: Case) -> None:
    if triton_at_least(3, 8):
        pytest.skip("Triton 3.8 refuses such views")
    case.kernel[(1,)](np.zeros(256, np.int32), np.zeros(256, np.int32), target="sim:sm_90")


def with_an_older_triton(case: Case) -> None:
    dialect.set_compiler_version((3, 8))
    try:
        boxes = describe(numbers(64, 64), [64, 64], F16_.value)
        case.kernel[(1,)](boxes, np.zeros(1, np.int32), target="sim:sm_90")
    finally:
        dialect.set_compiler_version(None)


@gluon.jit
def forgets_a_fence(desc, a):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    s.store(gl.full([64, 64], 1, gl.float16, gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])))
    tma.async_store(desc, [0, 0], s)
    tma.store_wait(0)


def with_a_newer_triton(case: Case) -> None:
    dialect.set_compiler_version((3, 8))
    try:
        boxes = describe(np.zeros((64, 64), np.float16), [64, 64], F16_.value)
        case.kernel[(1,)](boxes, np.zeros(1, np.int32), target="sim:sm_90")
    finally:
        dialect.set_compiler_version(None)


HALVES = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]]))
WHOLE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[0]]))
OF_BLOCKS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=[[1]]))


@gluon.jit
def reads_the_other_block(a, out):
    s = gl.allocate_shared_memory(gl.int32, [256], OF_BLOCKS)
    s.store(gl.load(a + gl.arange(0, 256, HALVES)))
    gl.store(out + gl.arange(0, 256, WHOLE), s.load(WHOLE))


def in_a_cluster(case: Case) -> None:
    case.kernel[(1,)](
        np.zeros(256, np.int32), np.zeros(256, np.int32), num_ctas=2, target="sim:sm_90"
    )


def arrives_twice(machine: Any, barrier: Any, *rest: Any, **named: Any) -> None:
    machine.barrier_arrive(barrier, 2)


def completes_too_much(machine: Any, barrier: Any, *rest: Any, **named: Any) -> None:
    machine.barrier_complete(barrier, 48)
    machine.barrier_expect(barrier, 40)
    machine.barrier_arrive(barrier, 1)


@gluon.jit
def counts_for_its_device(x):
    gl.atomic_add(x.peers[0], 1)


@gluon.jit
def lets_too_much_be_under_way(a, out):
    tiles = gl.portable.pipeline(gl.portable.descriptor(a, [256], [1], [128]), 2)
    tiles.fetch(0, [[0]])
    for step in range(2):
        tiles.fetch(step + 1, [[(step + 1) * 128]], pred=step < 1)
        (tile,) = tiles.wait(step, 3)
        gl.store(out + step * 128 + gl.arange(0, 128, layout=L1), tile.load(L1))
    tiles.close()


@gluon.jit
def signals_for_nobody(x):
    gl.portable.signal(x.signals[0])


def on_two_ranks(case: Case) -> None:
    def body(group: Any) -> None:
        case.kernel[(1,)](group.empty(4, np.int32))

    distributed.simulate(body, 2, "sim:hopper")


def barrier(how: str, line: str, **more: Any) -> Case:
    return Case(misuses_a_barrier, line, (how,), **more)


CASES = {
    "race.programs": Case(programs_overlap, "gl.store(out + o", grid=2),
    "race.global": Case(partitions_overlap, "gl.store(where", (True,)),
    "race.threads": Case(turns, "gl.load(a + (127 - o))"),
    "race.blocks": Case(reads_the_other_block, "s.load(WHOLE)", launch=in_a_cluster),
    "race.shared": Case(partitions_overlap, "where.store(", (False,)),
    "race.lifetime": Case(takes_the_place_of_a_copy, "later.store(o)"),
    "race.registers": Case(reads_an_accumulator_in_flight, "early ="),
    "race.steps": Case(lets_too_much_be_under_way, "tiles.wait(step, 3)"),
    "race.fence": Case(
        forgets_a_fence, "tma.async_store", launch=with_a_newer_triton, on="error", off="ignore"
    ),
    "race.scope": Case(counts_for_its_device, "gl.atomic_add(x.peers[0], 1)", launch=on_two_ranks),
    "bounds.global": Case(runs_over, "gl.load(a + 4096 + o)"),
    "bounds.index": Case(indexes_outside, "ring.index(gl.load(a) + 2)"),
    "bounds.view": Case(sees_more_than_there_is, "s.reinterpret", launch=before_views_were_checked),
    "bounds.before": Case(begins_before, "gl.portable.store(tile"),
    "bounds.readonly": Case(stores, "gl.store(a + o, o)", launch=read_only),
    "uninitialised.shared": Case(reads_unwritten, "s.load(L1)"),
    "uninitialised.global": Case(stores_again, "gl.load(out + o)", launch=marked),
    "alignment.address": Case(off_by_a_byte, "gl.load(address"),
    "alignment.promise": Case(promises, "o + 1"),
    "alignment.argument": Case(copies, "def copies", launch=compiled_for_aligned),
    "overflow.offset": Case(wraps, "(gl.load(a) + 65536) * 65536"),
    "capacity.shared": Case(hoards, "gl.allocate_shared_memory"),
    "capacity.tensor": Case(hoards_columns, "allocate_tensor_memory", launch=on_blackwell),
    "barrier.initialised": barrier("initialised", "mbarrier.init(bar, 1)"),
    "barrier.invalidated": barrier("invalidated", "mbarrier.arrive(bar)"),
    "barrier.uninitialised": barrier("uninitialised", "mbarrier.arrive(bar)"),
    "barrier.arrivals": barrier(
        "arrivals", "mbarrier.arrive(bar)", patch={"mbarrier_arrive": arrives_twice}
    ),
    "barrier.bytes": barrier(
        "bytes", "mbarrier.arrive(bar)", patch={"mbarrier_arrive": completes_too_much}
    ),
    "barrier.missed": Case(asks_and_answers, "mbarrier.wait(bar, 0)  # too late"),
    "barrier.reused": Case(uses_a_barrier_in_each_round, "mbarrier.init(bar, 1)"),
    "barrier.overwritten": barrier("overwritten", "bar.store("),
    "barrier.unused": Case(
        makes_a_spare_barrier, "mbarrier.init(spare, 1)", launch=with_an_older_triton
    ),
    "leak.copy": Case(leaves_a_copy, "cp.async_copy_global_to_shared"),
    "leak.signal": Case(signals_for_nobody, "gl.portable.signal(", launch=on_two_ranks),
    "assertion.device": Case(asserts, "gl.device_assert", launch=with_debug),
    "deadlock.tasks": Case(waits_for_nobody, "mbarrier.wait(bar, 0)"),
    "deadlock.loop": Case(never_ends, "for i in range("),
    "time.limit": Case(takes_long, "", (40_000,), on=0.05, off=None),
}
SCHEDULES = ({}, {"schedule": "eager"}, {"schedule": "random", "seed": 1})


@contextmanager
def switched(case: Case, kind: str, value: Any, schedule: dict) -> Iterator[None]:
    with using(**{**case.other, **schedule, REPORTS[kind]: value}):
        yield


def caught(case: Case) -> SimulatorError:
    with pytest.raises(SimulatorError) as error:
        case.run()
    return error.value


@pytest.mark.filterwarnings("default::gluon_core.errors.KernelWarning")  # tracing sees some races
@pytest.mark.parametrize("kind", CASES)
def test_a_report_comes_with_its_line_and_only_while_its_check_is_on(kind, monkeypatch):
    case = CASES[kind]
    for name, model in case.patch.items():
        monkeypatch.setattr(reference, name, model)
    for schedule in SCHEDULES:
        with switched(case, kind, case.on, schedule):
            error = caught(case)
        assert error.report == kind
        assert error.span is not None and error.span.file == __file__
        start = case.kernel.fn.__code__.co_firstlineno
        assert case.line in error.span.text and error.span.line >= start - 60
        assert error.as_dict()["report"] == kind and error.as_dict()["line"] == error.span.line
        with switched(case, kind, case.off, schedule):
            case.run()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CASES)
def test_its_variable_switches_a_report_off(kind, monkeypatch):
    case = CASES[kind]
    for name, model in case.patch.items():
        monkeypatch.setattr(reference, name, model)
    name = f"GLUON_SIM_{REPORTS[kind].upper()}"
    monkeypatch.setenv(name, "1" if case.on is True else str(case.on))
    assert caught(case).report == kind
    monkeypatch.setenv(name, "0" if case.off is False else "")
    case.run()
    monkeypatch.delenv(name)
    if case.off is False:
        monkeypatch.setenv("GLUON_SIM_CHECKS", "0")
        case.run()


# ---- nothing is missing -----------------------------------------------------------------------


def raised() -> Iterator[tuple[str, str, Any]]:
    """(class, file, the node of `report=` or None) wherever the simulator raises one of its errors."""
    for path in sorted(Path(gluon_sim.__file__).parent.glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node if isinstance(node, ast.Call) else None
            name = getattr(getattr(call, "func", None), "id", None)
            kind = getattr(errors, str(name), None)
            if isinstance(kind, type) and issubclass(kind, SimulatorError):
                report = [k.value for k in call.keywords if k.arg == "report"]
                yield name, f"{path.name}:{node.lineno}", report[0] if report else None


def test_the_table_holds_every_kind_of_report():
    assert set(CASES) == set(REPORTS)
    assert set(REPORTS.values()) <= set(Settings.__dataclass_fields__)
    used, classes = set(), set()
    for name, place, report in raised():
        # Without a kind: the simulator at its limits, no mistake of the kernel.
        assert (report is None) == (name == "SimulatorError"), f"{name} in {place}"
        classes.add(name)
        if report is not None:
            constants = {c.value for c in ast.walk(report) if isinstance(c, ast.Constant)}
            assert constants <= set(REPORTS), f"{constants} in {place}"
            used |= constants
    assert used == set(REPORTS)
    own = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, SimulatorError)
    }
    assert classes == own


def test_every_switch_has_a_report():
    switches = {f.name for f in Settings.__dataclass_fields__.values() if f.default is True}
    assert switches | {"timeout", "fences"} == set(REPORTS.values())
