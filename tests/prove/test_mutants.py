"""Mutants of kernels in use: a mutant that the simulator reports is never proved."""

import importlib.util
import random
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_kernels.attention.problem import GRADIENTS, VARLEN
from gluon_kernels.gemm.problem import BMM, MATMUL, MATMUL_FP8
from gluon_kernels.moe.problem import GROUPED_MATMUL
from gluon_sim.errors import SimulatorError
from gluon_sim.settings import using
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.types import ScalarType
from tests.backends.sim.sanitizer.test_mutations import (
    CASES,
    SCALED,
    TILES,
    Case,
    Mutant,
    example_case,
    mutants,
    operator_case,
)

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

REPORTS = ("race.shared", "race.registers", "race.steps", "deadlock", "barrier.")
KINDS = [
    "add, TMA",
    "add, TMA, in roles",
    "three partitions",
    "copies tied to barriers",
    "matmul, in roles",
    "add, sm_80",
    "matmul, sm_80",
    "matmul, gfx950",
    "matmul, wgmma",
    "matmul, tcgen05",
    "matmul, tcgen05 in one role",
    "matmul, TDM",
    "matmul, CDNA4",
    "attention",
    "attention, causal",
]
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "few rows": ("matmul, split-K", "sm_90"),
    "stream-K": ("matmul, stream-K", "sm_90"),
    "batch-invariant": ("matmul, batch-invariant", "sm_90"),
    "walk by steps": ("matmul, Blackwell, static tile scheduler", "sm_100", TILES),
    "mxfp8": ("matmul, Blackwell, mxfp8", "sm_100", SCALED),
}
OPERATORS: dict[str, tuple[Any, ...]] = {
    "linear": (MATMUL, {"M": 384, "N": 512, "K": 160}),
    "batched": (BMM, {}),
    "fp8": (MATMUL_FP8, {"M": 384, "N": 512, "K": 400}),
    "groups": (GROUPED_MATMUL, {}),
    "gradients": (GRADIENTS, {}, 2),
    "packed": (VARLEN, {}),
}
WRITTEN_FILES = Path(__file__).parents[2] / "examples" / "written"
# File of examples/written -> depth, rows and keys of its tiles, and options.
WRITTEN: dict[str, tuple[tuple[int, int, int], dict[str, int]]] = {
    "attention_sm_90": ((64, 64, 64), {}),
    "attention_tiles_sm_90": ((128, 128, 128), {"num_warps": 8}),
}
MOST_GUARDS = 40  # of a kernel; most of them only mask data


def imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written_case(name: str) -> Case:
    """Return a launch of attention as `gluon write` writes it, with more steps than its rings have buffers."""
    (depth, rows, keys), options = WRITTEN[name]
    kernel = vars(imported(WRITTEN_FILES / f"{name}.py", name))["attention"]
    length, target = 4 * keys + keys // 2, registry().target("sim:sm_90")
    tensors = np.random.default_rng(0).standard_normal((3, 1, length, depth)).astype(np.float16)
    constants = length, 0.125, depth, rows, keys

    def fresh() -> dict[str, Any]:
        values = *(one.copy() for one in tensors), np.zeros_like(tensors[0]), *constants
        return dict(zip(kernel.arg_names, values))

    after = fresh()
    compiled = kernel[(1, 1)](*after.values(), **options, target=target)
    right = after["out"].copy()
    values = lambda args: list(args.values())  # noqa: E731
    return Case(compiled, (1, 1), fresh, values, "out", lambda args: right, 2e-2)


def made_of(case: str) -> Any:
    if case in WRITTEN:
        return written_case(case)
    if case in OPERATORS:
        problem, shape, *number = OPERATORS[case]
        return operator_case(problem, "sm_90", *number, **shape)
    return CASES[case]() if case in CASES else example_case(*EXAMPLES[case])


def guards(program: Any) -> Iterator[Mutant]:
    """Comparisons that take in one more or one less, without those of checks for overflow."""
    other = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT"}
    every = list(program.walk_ops())
    used: set[int] = set()
    for op in reversed(every):  # a check for overflow is a conjunction that nothing uses
        if not op.name.startswith(("icmp", "and")) or id(op.results[0].resolve()) in used:
            used.update(id(value.resolve()) for value in op.operands())
    for op in every:
        if not op.name.startswith("icmp") or op.name[-2:] not in other:
            continue
        if id(op.results[0].resolve()) not in used:
            continue
        if isinstance(op.results[0].type, ScalarType):
            yield named(op, op.name[:-2] + other[op.name[-2:]])


def named(op: Op, name: str) -> Mutant:
    old = op.name
    return Mutant(
        f"{old} as {name}", op, lambda: setattr(op, "name", name), lambda: setattr(op, "name", old)
    )


@pytest.fixture
def judge(monkeypatch):
    """The verdict on a case, without looking for the mistake again."""
    verdicts = []
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    monkeypatch.setattr(
        "gluon_sim.launcher.note", lambda *args, proved=None, **named: verdicts.append(proved)
    )

    def of(case):
        verdicts.clear()
        with using(prove="*", within=10):
            case.run()
        return next((one for one in verdicts if one is not None), None)

    return of


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.parametrize("case", [*KINDS, *EXAMPLES, *WRITTEN, *OPERATORS])
def test_reported_kernels_are_not_proved(case, judge):
    subject = made_of(case)
    counts, program = Counter(), subject.compiled.asm["program"].program
    some = list(guards(program))
    some = random.Random(case).sample(some, min(len(some), MOST_GUARDS))
    for mutant in [*mutants(program), *some]:
        mutant.apply()
        try:
            end = subject.run()
            wrong = isinstance(end, SimulatorError) and (end.report or "").startswith(REPORTS)
            verdict = judge(subject) if wrong else None
        finally:
            mutant.undo()
        counts["mutants"] += 1
        if verdict is None:
            assert not wrong, mutant.name
            other = isinstance(end, SimulatorError)
            counts["reported for other reasons" if other else "not reported"] += 1
            continue
        where = f"{mutant.name}, line {mutant.op.loc.line}"
        # what is promised of the order of steps may be doubted, and nothing else
        doubted = end.report == "race.steps" and "`race.steps`" in verdict.lines[-1]
        assert verdict.verdict != "proved" or doubted, (where, end)
        missed = "not looked for" in " ".join(verdict.lines)
        counts["found" if missed else "doubted" if doubted else "cannot say"] += 1
    judged = counts["found"] + counts["doubted"] + counts["cannot say"]
    assert judged, f"the simulator reports no mutant of {case}: {dict(counts)}"
    print(f"\n{case}: {dict(counts)}, as it is: {judge(subject).verdict}")


def test_deadlocks_stay_where_rings_are_walked_by_themselves(judge, monkeypatch):
    """The walk of one ring does not take the place of a mistake that the barriers have."""
    monkeypatch.setattr("gluon_prove.search._FEW", 0)  # as for kernels with more states
    subject = made_of("add, TMA, in roles")
    waits = [
        mutant
        for mutant in mutants(subject.compiled.asm["program"].program)
        if "wait of the other phase" in mutant.name
    ]
    assert waits
    for mutant in waits:
        mutant.apply()
        try:
            verdict = judge(subject)
        finally:
            mutant.undo()
        assert verdict.verdict != "proved", mutant.op.loc.line
    assert judge(subject).verdict == "proved"
