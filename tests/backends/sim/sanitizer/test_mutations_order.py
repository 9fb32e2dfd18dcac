"""Mutants of the order of programs, partitions and blocks: weaker atomics, narrower scopes, barriers left out.

As in `test_mutations`; each mutant runs once with copies that land late and once with copies that
land early, and is reported either way. `pytest -s` prints the score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from gluon_core.features import ATOMIC_BARRIERS, CLUSTER_ENDS
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia.features import MULTICAST_WAITS, SHARED_STORE_WAITS
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.lookup import prepare
from gluon_sim.executor.models import models_for
from gluon_sim.launcher import make_launcher
from gluon_sim.settings import using
from gluon_sim.tracing.ir import Op
from tests.backends.sim.hardware import test_blocks as blocks
from tests.backends.sim.sanitizer import test_program_order as order
from tests.backends.sim.sanitizer import test_races as races
from tests.backends.sim.sanitizer.test_mutations import HARMLESS, Mutant, _deleted, mutants

pytestmark = pytest.mark.once
WEAKER = {
    "acq_rel": ("acquire", "release", "relaxed"),
    "acquire_release": ("acquire", "release", "relaxed"),
}
WEAKER.update(dict.fromkeys(("acquire", "release"), ("relaxed",)))


def reordered(op: Op, sem: str, scope: str, change: str) -> Mutant:
    old = op.attrs["order"]

    def put(new: tuple) -> None:
        op.attrs["order"] = new
        op.orders = None

    return Mutant(f"{op.name} {change}", op, lambda: put((sem, scope)), lambda: put(old))


def every_mutant(program: Any) -> Iterator[Mutant]:
    yield from mutants(program)
    for op in list(program.walk_ops()):
        if op.name.startswith("cluster"):
            yield _deleted(op)
        for sem in WEAKER.get(str(op.attrs.get("order", ("",))[0]).lower(), ()):
            yield reordered(op, sem, op.attrs["order"][1], f"that is {sem}")
        if "order" in op.attrs:
            yield reordered(op, op.attrs["order"][0], "cta", "of scope cta")


@dataclass
class Case:
    """A launch: its kernel, its grid, fresh arguments, and which of those holds what is wanted."""

    kernel: Any
    grid: int
    fresh: Callable[[], list]
    wanted: Callable[[], np.ndarray]
    output: int = 1
    blocks: int = 1
    since: tuple[int, int] = (3, 6)

    def compile(self) -> Any:
        return self.kernel[(self.grid,)](
            *self.fresh(), num_ctas=self.blocks, target="sim:sm_90", races=False, leaks=False
        )

    def run(self, compiled: Any, schedule: str) -> Any:
        """The error that the launch ends with, the word "wrong", or None."""
        text = compiled.asm["program"]
        text.compiled = prepare(text.program, models_for(compiled.target))
        args = self.fresh()
        try:
            with using(timeout=30, tolerated="error", schedule=schedule):
                compiled.metadata.simulation.clear()
                make_launcher(compiled)((self.grid,), None, *args)
        except SimulatorError as error:
            return error
        return None if (args[self.output] == self.wanted()).all() else "wrong"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def boxed() -> list:
    a, out = blocks.matrix()
    box = TensorDescriptor.from_tensor(a, [64, 128], blocks.EVERYWHERE.value)
    return [box, out, 3, "one barrier for both"]


def matrix() -> np.ndarray:
    return blocks.matrix()[0]


COLUMNS, ROWS = blocks.COLUMNS.value, blocks.ROWS.value
CASES = {
    "a chain of flags": Case(
        races.chained,
        6,
        lambda: [zeros(128), zeros(6), 128, "release"],
        lambda: np.full(128, 15),
        output=0,
    ),
    "who comes last writes": Case(
        order.counted,
        4,
        lambda: [zeros(128), zeros(1), 128, True, True],
        lambda: np.ones(128),
        output=0,
    ),
    "from hand to hand": Case(
        order.hands,
        4,
        lambda: [zeros(512), zeros(4), zeros(512), 128],
        lambda: np.repeat(np.arange(4), 128),
        output=2,
    ),
    "flags of partitions": Case(
        order.in_roles,
        2,
        lambda: [zeros(128), zeros(1), zeros(128), 128, True, True],
        lambda: np.arange(128),
        output=2,
    ),
    "loads of another block": Case(
        blocks.exchange,
        1,
        lambda: [*blocks.matrix(), COLUMNS, ROWS, "cluster", True],
        matrix,
        blocks=2,
        since=(3, 8),
    ),
    "copies to all blocks": Case(
        blocks.hand_over_all, 1, boxed, matrix, blocks=2, since=(3, 7)
    ),
    "stores to another block": Case(
        blocks.send, 1, lambda: [*blocks.matrix(), 3, True], matrix, blocks=2, since=(3, 8)
    ),
}  # fmt: skip

# (case, line of the kernel, which of those with this text) -> why its absence is no mistake, since
# which release.
ADDED = "the compiler puts one there itself"
FINE = {
    ("a chain of flags", "gl.thread_barrier()", 0): (ATOMIC_BARRIERS, ADDED),
    ("who comes last writes", "gl.thread_barrier()", 0): (ATOMIC_BARRIERS, ADDED),
    ("from hand to hand", "gl.thread_barrier()", 0): (ATOMIC_BARRIERS, ADDED),
    ("flags of partitions", "gl.thread_barrier()", 0): (None, "one thread waits and releases"),
    ("loads of another block", "gl.barrier(cluster=True)", 1): (CLUSTER_ENDS, ADDED),
    ("copies to all blocks", "gl.barrier(cluster=True)", 0): (MULTICAST_WAITS, ADDED),
    ("stores to another block", "gl.barrier(cluster=True)", 0): (SHARED_STORE_WAITS, ADDED),
}


def is_fine(case: str, mutant: Mutant, nth: int) -> bool:
    if mutant.name in HARMLESS:
        return True
    fine = FINE.get((case, mutant.text, nth))
    return fine is not None and (fine[0] is None or fine[0].held_by(TRITON_VERSION))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_reported_however_copies_land(name):
    case = CASES[name]
    if TRITON_VERSION < case.since:
        pytest.skip(f"needs Triton {case.since[0]}.{case.since[1]}")
    compiled = case.compile()
    for schedule in ("latest", "eager"):
        assert case.run(compiled, schedule) is None
    reported, harmless, missed = [], [], []
    lines: dict[str, list[int]] = {}
    for mutant in every_mutant(compiled.asm["program"].program):
        alike = lines.setdefault(mutant.text, [])
        alike += [mutant.op.loc.line] if mutant.op.loc.line not in alike else []
        nth = sorted(alike).index(mutant.op.loc.line)
        mutant.apply()
        try:
            ends = [case.run(compiled, schedule) for schedule in ("latest", "eager")]
        finally:
            mutant.undo()
        if all(isinstance(end, SimulatorError) for end in ends):
            reported.append((mutant.name, mutant.text))
        elif ends == [None, None] and is_fine(name, mutant, nth):
            harmless.append(mutant.name)
        else:
            missed.append((f"{mutant.name}, line {mutant.op.loc.line}: {mutant.text}", ends))
    print(
        f"\n{name}: {len(reported)} of {len(reported) + len(missed)} reported, {len(harmless)} harmless"
    )
    assert not missed
    assert reported
