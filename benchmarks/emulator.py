"""Measure the emulator: its coverage, the time of the examples, and the mistakes that it sees.

python benchmarks/emulator.py census           mnemonics of examples and conformance kernels
python benchmarks/emulator.py census FOLDER    and of all assembly in a folder, such as the cache of the tests
python benchmarks/emulator.py times            seconds per example, and the simulator's
python benchmarks/emulator.py mutants [N]      N waits, barriers, distances and fences taken away or weakened
python benchmarks/emulator.py registers FOLDER four waits for registers of each kernel in a folder, taken away
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from gluon_core.compiler import compile
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import GluonError
from gluon_core.registry.load import registry
from gluon_core.testing.conformance.kernels import KERNELS
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.machine.code import bind, unknown
from gluon_emu.settings import using
from gluon_report.example import Arrays
from tests.backends.emu.mutants import Subject, dependencies, distances, fences, mutants
from tests.kernels import cases

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
EXAMPLES = [e for e in cases.load_cases().values() if not hasattr(e.kernel, "configs")]
MUTATED = {
    "gfx90a": ("row softmax", "matmul", "matmul, split-K"),
    "gfx942": (
        "row softmax",
        "layer norm",
        "matmul, CDNA3, bf16",
        "attention",
        "matmul, split-K",
    ),
    "gfx950": ("matmul, CDNA4, bf16", "matmul, CDNA4, mxfp8"),
    "gfx1100": ("row softmax", "matmul", "matmul, split-K"),
    "gfx1201": ("layer norm", "matmul, RDNA4", "matmul, split-K"),
    "gfx1250": ("row softmax", "matmul by TDM", "matmul", "matmul, split-K"),
}


def texts(arch: str) -> Iterator[tuple[str, str]]:
    """(kernel, assembly) of examples and conformance kernels that compile for an architecture."""
    target = registry().target(arch)
    for example in EXAMPLES:
        if not example.lacks(target):
            for large in (False, True):
                yield example.name, example.compile(target, large).asm["amdgcn"]
    for name, chosen in KERNELS.items():
        source = GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": target.warp_size}, {})
        yield name, compile(source, target, {"num_warps": 4}).asm["amdgcn"]


def census_of(arch: str) -> tuple[Counter[str], Counter[str], int]:
    """(mnemonics, those without semantics, kernels) of an architecture."""
    warnings.simplefilter("ignore")
    return count(arch, texts(arch))


def count(
    label: str, assemblies: Iterator[tuple[str, str]]
) -> tuple[Counter[str], Counter[str], int]:
    counts: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    kernels, started = 0, time.perf_counter()
    for name, text in assemblies:
        program = parse(text)
        kernels += 1
        for ins in program.instructions:
            for half in (ins, ins.second):
                if half is not None:
                    counts[half.name] += 1
        missing = unknown(program)
        lacking.update(ins.name for ins in missing)
        if not missing:
            bind(program)
        seconds = time.perf_counter() - started
        print(f"  {seconds:5.1f} s {label}: {kernels}, {name}", file=sys.stderr, flush=True)
    return counts, lacking, kernels


def census(folders: list[str]) -> None:
    """Count the instructions of examples and conformance kernels, or of all assembly under folders such
    as a cache."""
    if folders:
        paths = [path for folder in folders for path in Path(folder).rglob("*.amdgcn")]
        results = [count("files", ((path.stem, path.read_text()) for path in paths))]
    else:
        with ProcessPoolExecutor(
            min(6, os.cpu_count() or 1), multiprocessing.get_context("spawn")
        ) as pool:
            results = list(pool.map(census_of, TARGETS))
    counts = sum((r[0] for r in results), Counter())
    lacking = sum((r[1] for r in results), Counter())
    for name in sorted(counts):
        print(f"{name:40} {counts[name]}")
    print(
        f"{sum(r[2] for r in results)} kernels, {counts.total()} instructions, "
        f"{len(counts)} mnemonics; without semantics: {dict(lacking) or 'none'}"
    )


def times() -> None:
    for example in EXAMPLES:
        for arch in TARGETS:
            if example.lacks(registry().target(arch)):
                continue
            results = []
            for kind in ("emu", "sim"):
                target = registry().target(f"{kind}:{arch}")
                args = example.arguments(Arrays(target), False)
                run = example.launcher(args, example.configure(target), target=target)
                try:
                    run()  # compiles
                    started = time.perf_counter()
                    run()
                    results.append(f"{kind} {time.perf_counter() - started:6.2f} s")
                except GluonError as error:
                    results.append(f"{kind} {type(error).__name__}")
            print(f"{example.name:24} {arch:8}", "   ".join(results), flush=True)


def see_one(arch: str, name: str, most: int) -> tuple[Counter[str], list[str]]:
    """Return (verdicts on at most so many mutants, mutants without one) of an example."""
    warnings.simplefilter("ignore")
    try:
        subject = Subject({e.name: e for e in EXAMPLES}[name], arch)
    except GluonError as error:  # docs/known-compiler-bugs.md
        return Counter(), [f"is reported as it is, {type(error).__name__}"]
    clean = subject.run(subject.text)
    assert clean is None, clean
    candidates: list[Any] = [m for f in (mutants, distances, fences) for m in f(subject.text)]
    candidates = [m for m in candidates if subject.counts.get(m.line)]
    random.Random(f"{arch} {name}").shuffle(candidates)
    seen: Counter[str] = Counter()
    silent = []
    with using(timeout=60, processes=1):
        for mutant in candidates[:most]:
            error = subject.run(mutant.text)
            same = np.array_equal(subject.result(), subject.wanted, equal_nan=True)
            kind = type(error).__name__ if error else "no report" if same else "wrong result"
            seen[kind] += 1
            if error is None:
                silent.append(str(mutant))
    return seen, silent


def see(count: int) -> None:
    pairs = [(arch, name) for arch, names in MUTATED.items() for name in names]
    total: Counter[str] = Counter()
    by_arch: dict[str, Counter[str]] = {}
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(pairs)), multiprocessing.get_context("spawn")) as pool:
        verdicts = pool.map(see_one, *zip(*pairs), [-(-count // len(pairs))] * len(pairs))
        for (arch, name), (seen, silent) in zip(pairs, verdicts):
            total += seen
            by_arch.setdefault(arch, Counter()).update(seen)
            print(arch, name, dict(seen), flush=True)
            for mutant in silent:
                print("   ", arch, name, mutant, flush=True)
    for arch, seen in by_arch.items():
        print(arch, seen.total(), dict(seen))
    print("all", total.total(), dict(total))


def registers(folder: str) -> None:
    """Count the known waits for registers when a program is bound; run nothing."""
    kernels: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for path in sorted(Path(folder).rglob("*.amdgcn")):
        text = path.read_text()
        program = parse(text)
        chains = list(dependencies(text))
        if not chains or unknown(program):
            continue
        arch = program.architecture
        kernels[arch] += 1
        assert not any(bind(program).hazards), f"{path} is reported as it is"
        for mutant in random.Random(program.name).sample(chains, min(4, len(chains))):
            waits[arch] += 1
            seen[arch] += any(bind(parse(mutant.text)).hazards)
    for arch, count in sorted(kernels.items()):
        print(
            f"{arch}: {count} kernels, {seen[arch]} of {waits[arch]} waits that are taken away are reported"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mode = sys.argv[1] if len(sys.argv) > 1 else "census"
    if mode == "registers":
        registers(sys.argv[2])
    elif mode == "mutants":
        see(int(sys.argv[2]) if len(sys.argv) > 2 else 300)
    else:
        times() if mode == "times" else census(sys.argv[2:])
