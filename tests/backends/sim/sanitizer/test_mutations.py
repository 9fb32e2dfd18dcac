"""Delete or change one synchronization of a kernel at a time: the simulator must report it.

Mutants are made on recorded programs: an op is left out, or one of its numbers changes. One that is
not reported must be in `HARMLESS`, with the reason why it is no mistake. By default some of them are
made; `pytest -m campaign -s` makes all of them and prints the score.
"""

from __future__ import annotations

import linecache
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_kernels.attention.problem import ATTENTION
from gluon_kernels.problem import Problem
from gluon_report.example import Arrays
from gluon_sim.errors import SimulatorError, TimeLimitError
from gluon_sim.executor.lookup import prepare
from gluon_sim.executor.models import models_for
from gluon_sim.launcher import make_launcher
from gluon_sim.settings import using
from gluon_sim.tracing.ir import Op
from tests.kernels import cases
from tests.kernels.launched import launches_of

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


# ---- kernels with partitions, added to the examples --------------------------------------------


@gluon.jit
def load_part(a, s, full, empty, N: gl.constexpr, ROUNDS: gl.constexpr, STAGES: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    for i in range(ROUNDS):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES + 1) % 2)
        cp.async_copy_global_to_shared(s.index(stage), a + i * N + o)
        cp.mbarrier_arrive(full.index(stage), increment_count=False)


@gluon.jit
def scale_part(
    s, t, full, empty, done, N: gl.constexpr, ROUNDS: gl.constexpr, STAGES: gl.constexpr
):
    for i in range(ROUNDS):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES % 2)
        x = s.index(stage).load(L1) * 2
        mbarrier.arrive(empty.index(stage))
        mbarrier.wait(done.index(1), (i + 1) % 2)
        t.store(x)
        mbarrier.arrive(done.index(0))


@gluon.jit
def store_part(t, out, done, N: gl.constexpr, ROUNDS: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    for i in range(ROUNDS):
        mbarrier.wait(done.index(0), i % 2)
        gl.store(out + i * N + o, t.load(L1))
        mbarrier.arrive(done.index(1))


@gluon.jit
def three_partitions(a, out, N: gl.constexpr, ROUNDS: gl.constexpr, STAGES: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [STAGES, N], FLAT)
    t = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), 128)
        mbarrier.init(empty.index(i), 1)
    mbarrier.init(done.index(0), 1)
    mbarrier.init(done.index(1), 1)
    gl.warp_specialize(
        [
            (scale_part, (s, t, full, empty, done, N, ROUNDS, STAGES)),
            (load_part, (a, s, full, empty, N, ROUNDS, STAGES)),
            (store_part, (t, out, done, N, ROUNDS)),
        ],
        [4, 4],
        [64, 64],
    )


@gluon.jit
def tied_to_barriers(a, out, N: gl.constexpr, ROUNDS: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bars.index(0), 1)
    mbarrier.init(bars.index(1), 1)
    cp.async_copy_global_to_shared(s.index(0), a + o)
    cp.mbarrier_arrive(bars.index(0))
    mbarrier.arrive(bars.index(0))
    for i in range(ROUNDS):
        ahead = (i + 1) % 2
        cp.async_copy_global_to_shared(s.index(ahead), a + (i + 1) * N + o, mask=o + i * 0 < N)
        cp.mbarrier_arrive(bars.index(ahead))
        mbarrier.arrive(bars.index(ahead))
        mbarrier.wait(bars.index(i % 2), i // 2 % 2)
        gl.store(out + i * N + o, s.index(i % 2).load(L1))
    mbarrier.wait(bars.index(ROUNDS % 2), ROUNDS // 2 % 2)
    mbarrier.invalidate(bars.index(0))
    mbarrier.invalidate(bars.index(1))


@gluon.jit
def through_global(a, out, N: gl.constexpr, ROUNDS: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    for i in range(ROUNDS):
        gl.store(out + i * N + (N - 1 - o), gl.load(a + i * N + o))
        gl.thread_barrier()
        x = gl.load(out + i * N + o)
        gl.thread_barrier()
        gl.store(out + i * N + (N - 1 - o), x)


# ---- mutants --------------------------------------------------------------------------------


@dataclass
class Mutant:
    name: str
    op: Op
    apply: Callable[[], None]
    undo: Callable[[], None]

    @property
    def text(self) -> str:
        """Its line in the kernel."""
        return linecache.getline(self.op.loc.file, self.op.loc.line).strip()


def _deleted(op: Op) -> Mutant:
    block = op.block
    position = block.ops.index(op)
    return Mutant(
        f"{op.name} deleted",
        op,
        lambda: block.ops.pop(position) and None,
        lambda: block.ops.insert(position, op),
    )


def _changed(op: Op, position: int, value: Any, change: str) -> Mutant:
    old = op.args
    new = (*old[:position], value, *old[position + 1 :])
    return Mutant(
        f"{op.name} {change}",
        op,
        lambda: setattr(op, "args", new),
        lambda: setattr(op, "args", old),
    )


def _flipped(op: Op, position: int) -> Mutant:
    """The other phase."""
    block, old = op.block, op.args
    kind = old[position].type
    one = Op("constant", (1,), {}, [kind], 0, op.loc)
    other = Op("xor", (old[position], one.results[0]), {}, [kind], 0, op.loc)
    one.block = other.block = block

    def apply() -> None:
        first = block.ops.index(op)
        block.ops[first:first] = [one, other]
        op.args = (*old[:position], other.results[0], *old[position + 1 :])

    def undo() -> None:
        op.args = old
        block.ops.remove(one)
        block.ops.remove(other)

    return Mutant(f"{op.name} of the other phase", op, apply, undo)


SYNCHRONIZES = (
    "async_commit", "async_wait", "async_tma_store_wait", "async_tdm_wait", "mbarrier", "lds_barrier",
    "fence", "barrier", "warpgroup_mma_wait", "tcgen05_commit",
)  # fmt: skip
# Ops that wait until so many pieces of work are left -> the position of that number.
PENDING = {
    "async_wait_group": 0,
    "async_tma_store_wait": 0,
    "async_tdm_wait": 0,
    "warpgroup_mma_wait": 1,
}


def mutants(program: Any) -> Iterator[Mutant]:
    """Yield the mutants of a program; what the simulator found in one is not kept for another."""

    def changing(change: Callable[[], None]) -> Callable[[], None]:
        def changed() -> None:
            change()
            program.findings = type(program.findings)()

        return changed

    for mutant in _mutants(program):
        yield replace(mutant, apply=changing(mutant.apply), undo=changing(mutant.undo))


def _mutants(program: Any) -> Iterator[Mutant]:
    for op in list(program.walk_ops()):
        if not op.name.startswith(SYNCHRONIZES) and "mbarrier_arrive" not in op.name:
            continue
        if not op.results:
            yield _deleted(op)
        if op.name in PENDING:
            position = PENDING[op.name]
            pending = int(op.args[position])
            yield _changed(op, position, pending + 1, "with one more pending")
            if pending:
                yield _changed(op, position, pending - 1, "with one less pending")
        elif op.name == "mbarrier_expect":
            yield _changed(op, 1, int(op.args[1]) + 16, "of more bytes")
            yield _changed(op, 1, int(op.args[1]) - 16, "of fewer bytes")
        elif op.name == "mbarrier_init":
            count = int(op.args[1])
            yield _changed(op, 1, count + 1, "with one more arrival")
            if count > 1:
                yield _changed(op, 1, count - 1, "with one less arrival")
        elif op.name == "mbarrier_wait":
            yield _flipped(op, 1)
        elif op.name == "async_copy_mbarrier_arrive":
            yield _changed(op, 1, not op.args[1], "with the count the other way")


# Mutants that are not reported, and why they are no mistakes.
HARMLESS = {
    **{f"{op} with one less pending": "waits for more than it must" for op in PENDING},
    "mbarrier_inval deleted": "nothing uses the memory afterwards, unless it is initialized again",
}


# The same, of one line of one case.
HARMLESS_LINES = {
    ("matmul, CDNA4", "async_copy.wait_group(0)"): "the copies it waits for are all masked off",
    ("matmul, gfx950", "tiles.close()"): "the copies it waits for are all masked off",
    **{
        (f"matmul{stages}, sm_80", "tiles.close()"): "the copies it waits for are all masked off"
        for stages in ("", " in 5 stages")
    },
    (
        "matmul, tcgen05 in one role",
        "acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)",
    ): "the fourth multiplication before this one was already waited for",
    **{
        (case, "queries.wait(query)"): "these rows came before the first tile of keys"
        for case in ("attention", "attention, causal")
    },
    **{
        (case, "queries[i].fetch(query, [[head, row + i * 64, 0]])"): (
            "with as many keys, their rings wait until the rows two tiles before were used"
        )
        for case in ("attention", "attention, causal")
    },
}


# The same, of the statements of one block of one case.
HARMLESS_BLOCKS = {
    (
        "attention, causal",
        "for _ in range(seen, count):",
    ): "the last rows see all tiles of keys and pass none; others read none here, and who does waits",
}


def header(op: Op) -> str:
    """The line that begins the block in which an op is."""
    lines = linecache.getlines(op.loc.file)[: op.loc.line]
    depth = len(lines[-1]) - len(lines[-1].lstrip())
    above = (line for line in reversed(lines) if line.strip())
    return next((t.strip() for t in above if len(t) - len(t.lstrip()) < depth), "")


@dataclass
class Case:
    """A kernel with how to launch its program."""

    compiled: Any
    grid: tuple
    fresh: Callable[[], dict]
    values: Callable[[dict], list]
    output: str
    wanted: Callable[[dict], Any]
    tolerance: float = 0.0

    def run(self) -> Any:
        """The error that the launch ends with, "wrong", "no end", or None.

        A launch that ends at its limit is not reported, be the mutant or a busy machine to blame.
        """
        text = self.compiled.asm["program"]
        text.compiled = prepare(text.program, models_for(self.compiled.target))
        args = self.fresh()
        try:
            with using(timeout=60, tolerated="error"):
                make_launcher(self.compiled)(self.grid, None, *self.values(args))
        except TimeLimitError:
            return "no end"
        except SimulatorError as error:
            return error
        got, wanted = args[self.output], self.wanted(args)
        if isinstance(got, torch.Tensor):
            got, wanted = got.double().numpy(), wanted.double().numpy()
        near = np.abs(got.astype(np.float64) - wanted) <= self.tolerance * np.abs(wanted).max()
        return None if near.all() else "wrong"

    def of(self, mutant: Mutant) -> Any:
        """Return the result of `run` while the program is changed."""
        mutant.apply()
        try:
            return self.run()
        finally:
            mutant.undo()

    def judged(self, parts: int = 1) -> tuple[set, list]:
        """Names of the mutants that are reported; (name, end) of those that are not, but are to be.

        For each kind of mutant one in `parts` is made, the first of them always.
        """
        reported, missed, seen = set(), [], Counter[str]()
        for mutant in list(mutants(self.compiled.asm["program"].program)):
            seen[mutant.name] += 1
            if (seen[mutant.name] - 1) % parts:
                continue
            end = self.of(mutant)
            if isinstance(end, SimulatorError):
                reported.add(mutant.name)
            elif mutant.name not in HARMLESS:
                missed.append((mutant.name, end))
        return reported, missed


def example_case(
    name: str, architecture: str, sizes: Optional[dict] = None, **choices: Any
) -> Case:
    """An example; `sizes` are arguments of its `arguments`, `choices` of its `config`."""
    (example,) = (e for e in cases.load_cases().values() if e.name == name)
    target = registry().target(f"sim:{architecture}")
    config = example.configure(target, **choices)

    def fresh() -> dict:
        return example.arguments(Arrays(target), False, **(sizes or {}))

    args = fresh()
    compiled = example.launch(args, config, target=target)
    names = compiled.src.fn.arg_names

    def values(args: dict) -> list:
        operands = example.values(args, config)
        return [*operands, *(config.get(name) for name in names[len(operands) :])]

    return Case(
        compiled,
        example.grid(args, config),
        fresh,
        values,
        example.output,
        example.reference,
        example.tolerance,
    )


def operator_case(
    problem: Problem, spec: str, number: int = 0, programs: int = 3, **shape: Any
) -> Case:
    """A launch of an operator; `shape` replaces parts of its first small one, `number` counts its launches.

    A persistent kernel runs as `programs`, so that each has several tiles and uses its buffers again.

    A result is right where it is that of the launch as it is.
    """
    torch.manual_seed(0)
    arguments = problem.arguments({**problem.small[0], **shape}, "cpu")
    launch = launches_of(lambda: problem.op(**arguments), f"sim:{spec}")[number]
    names, grid = launch.kernel.arg_names, launch.grid
    if len(grid) == 1:
        grid = (min(programs, *grid),)

    def fresh() -> dict:
        return dict(zip(names, launch.fresh()))

    target = registry().target(f"sim:{spec}")
    before, after = fresh(), fresh()
    compiled = launch.kernel[grid](*after.values(), **launch.options, target=target)
    changed = [
        name
        for name, value in after.items()
        if isinstance(value, torch.Tensor) and not torch.equal(value, before[name])
    ]
    output = max(changed, key=lambda name: after[name].numel())
    right = after[output].clone()
    values = lambda args: list(args.values())  # noqa: E731
    return Case(compiled, grid, fresh, values, output, lambda args: right, 2e-2)


def kernel_case(kernel: Any, rounds: int, *constants: int) -> Case:
    names = ["a", "out", *kernel.arg_names[2:]]

    def fresh() -> dict:
        a = np.arange((rounds + 1) * 128, dtype=np.int32)
        return dict(zip(names, (a, np.zeros(rounds * 128, np.int32), 128, rounds, *constants)))

    compiled = kernel[(1,)](*fresh().values())
    factor = 2 if kernel is three_partitions else 1
    return Case(
        compiled,
        (1,),
        fresh,
        lambda args: list(args.values()),
        "out",
        lambda args: args["a"][: rounds * 128] * factor,
    )


SMALL = {"sizes": (72, 40, 112)}
ALIGNED = {"sizes": (136, 272, 176)}
# Large enough that every buffer of every ring is used at least three times.
TILES = {"sizes": (384, 512, 160)}
ROWS = {"shape": (900, 40)}
SCALED = {"sizes": (384, 768, 160)}
PAIRED = {"sizes": (768, 768, 96)}
KEYS = {"batch": 1, "heads": 6, "length": 320, "width": 64, "causal": False}
# Below the diagonal, too, the buffers of both rings are used again for the same rows.
SEEN_KEYS = {"batch": 1, "heads": 4, "length": 576, "width": 64}
CASES: dict[str, Callable[[], Case]] = {
    "add, sm_80": lambda: example_case("add, double-buffered", "sm_80"),
    "matmul, sm_80": lambda: example_case("matmul", "sm_80", SMALL),
    "matmul in 5 stages, sm_80": lambda: example_case("matmul", "sm_80", SMALL, stages=5),
    "matmul, wgmma": lambda: example_case("matmul", "sm_90", ALIGNED),
    "matmul, tcgen05 in one role": lambda: example_case("matmul", "sm_100", ALIGNED),
    "matmul, mma.sync fed by TMA": lambda: example_case("matmul", "sm_120", ALIGNED),
    "matmul, gfx950": lambda: example_case("matmul", "gfx950", ALIGNED),
    "add, TMA": lambda: example_case("add, TMA", "sm_90", ROWS),
    "add, TMA, in roles": lambda: example_case("add, TMA, warp-specialized", "sm_90", ROWS),
    "matmul, in roles": lambda: example_case("matmul, warp-specialized", "sm_90", TILES),
    "attention": lambda: operator_case(ATTENTION, "sm_90", **KEYS),
    "attention, causal": lambda: operator_case(ATTENTION, "sm_90", causal=True, **SEEN_KEYS),
    "matmul, tcgen05": lambda: example_case("matmul, Blackwell, warp-specialized", "sm_100", TILES),
    "matmul, mxfp8": lambda: example_case("matmul, Blackwell, mxfp8", "sm_100", SCALED),
    "matmul, nvfp4": lambda: example_case("matmul, Blackwell, nvfp4", "sm_100", SCALED),
    "matmul, CDNA4": lambda: example_case("matmul, CDNA4, bf16", "gfx950"),
    "scaled matmul, CDNA4": lambda: example_case("matmul, CDNA4, mxfp4", "gfx950"),
    "matmul, TDM": lambda: example_case("matmul by TDM", "gfx1250"),
    "three partitions": lambda: kernel_case(three_partitions, 7, 3),
    "copies tied to barriers": lambda: kernel_case(tied_to_barriers, 5),
    "barriers of the block": lambda: kernel_case(through_global, 3),
}


if TRITON_VERSION >= (3, 8):
    CASES["matmul, pairs of blocks"] = lambda: example_case(
        "matmul, Blackwell, pairs of blocks", "sm_100", PAIRED
    )

LEAST = {"barriers of the block": 2, "matmul, TDM": 2, "matmul, CDNA4": 4}


def check(case, parts):
    """One in `parts` mutants of a kernel, but five at least, is reported, or is known to be harmless."""
    subject = CASES[case]()
    assert subject.run() is None
    program = subject.compiled.asm["program"].program
    reported, harmless, missed, alarms = [], [], [], []
    every = list(mutants(program))
    some = random.Random(case).sample(every, min(len(every), max(5, len(every) // parts)))
    for mutant in some:
        end = subject.of(mutant)
        if isinstance(end, SimulatorError):
            assert end.span is not None, mutant.name
            reported.append(mutant.name)
            if mutant.name in HARMLESS and mutant.name != "mbarrier_inval deleted":
                alarms.append((mutant.name, type(end).__name__, str(end)))
        elif end is None and (case, header(mutant.op)) in HARMLESS_BLOCKS:
            harmless.append(mutant.name)
        elif end is None and (mutant.name in HARMLESS or (case, mutant.text) in HARMLESS_LINES):
            harmless.append(mutant.name)
        else:
            missed.append((f"{mutant.name}, line {mutant.op.loc.line}", end))
    assert subject.run() is None
    wrong = len(reported) + len(missed)
    assert wrong >= (LEAST.get(case, 5) if parts == 1 else 1)
    print(f"\n{case}: {len(reported)} of {wrong} mutants reported, {len(harmless)} harmless")
    assert not missed
    assert not alarms


@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES)
def test_mutants_are_reported(case):
    check(case, parts=4)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.parametrize("case", CASES)
def test_every_mutant_is_reported(case):
    check(case, parts=1)
