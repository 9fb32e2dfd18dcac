"""The emulator in numbers: what it models, how long the examples take, and which mistakes it sees.

python benchmarks/emulator.py census           mnemonics of all examples and conformance kernels, by architecture
python benchmarks/emulator.py times            seconds per example, and the simulator's
python benchmarks/emulator.py mutants [N]      N waits, barriers and distances taken away or weakened
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from typing import Any, Iterator

import numpy as np

from gluon_core.cli.demo import load_examples
from gluon_core.cli.example import Arrays
from gluon_core.compiler import compile
from gluon_core.compiler.source import GluonASTSource
from gluon_core.contract.registry import registry
from gluon_core.errors import GluonError
from gluon_core.testing.conformance.kernels import KERNELS
from gluon_emu.decode.text import parse
from gluon_emu.machine.code import unknown
from gluon_emu.settings import using
from tests.backends.emu.mutants import Subject, distances, mutants

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
EXAMPLES = [e for e in load_examples()[0].values() if not hasattr(e.kernel, "configs")]
MUTATED = {
    "gfx90a": ("row softmax", "matmul"),
    "gfx942": ("row softmax", "layer norm", "matmul, CDNA3, bf16", "attention"),
    "gfx950": ("matmul, CDNA4, bf16", "matmul, CDNA4, mxfp8"),
    "gfx1100": ("row softmax", "matmul"),
    "gfx1201": ("layer norm", "matmul, RDNA4"),
    "gfx1250": ("row softmax", "matmul by TDM", "matmul"),
}


def texts(arch: str) -> Iterator[tuple[str, str]]:
    """(kernel, assembly) of everything that compiles for an architecture."""
    target = registry().target(arch)
    for example in EXAMPLES:
        if not example.lacks(target):
            for large in (False, True):
                yield example.name, example.compile(target, large).asm["amdgcn"]
    for name, chosen in KERNELS.items():
        source = GluonASTSource(chosen.kernel, chosen.signature(), {"lanes": target.warp_size}, {})
        yield name, compile(source, target, {"num_warps": 4}).asm["amdgcn"]


def census() -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    lacking: dict[str, Counter[str]] = defaultdict(Counter)
    for arch in TARGETS:
        for _, text in texts(arch):
            program = parse(text)
            for ins in program.instructions:
                for half in (ins, ins.second):
                    if half is not None:
                        counts[half.name][arch] += 1
            for ins in unknown(program):
                lacking[ins.name][arch] += 1
    for name in sorted(counts):
        print(f"{name:40}", "  ".join(f"{a} {n}" for a, n in counts[name].items()))
    total = sum(sum(c.values()) for c in counts.values())
    print(f"{total} instructions, {len(counts)} mnemonics; without semantics: {len(lacking)}")
    for name, where in sorted(lacking.items()):
        print("   ", name, dict(where))


def times() -> None:
    for example in EXAMPLES:
        for arch in TARGETS:
            if example.lacks(registry().target(arch)):
                continue
            found = []
            for kind in ("emu", "sim"):
                target = registry().target(f"{kind}:{arch}")
                args = example.arguments(Arrays(target), False)
                run = example.launcher(args, example.configure(target), target=target)
                try:
                    run()  # compiles
                    started = time.perf_counter()
                    run()
                    found.append(f"{kind} {time.perf_counter() - started:6.2f} s")
                except GluonError as error:
                    found.append(f"{kind} {type(error).__name__}")
            print(f"{example.name:24} {arch:8}", "   ".join(found), flush=True)


def see(count: int) -> None:
    random.seed(0)
    by_name = {e.name: e for e in EXAMPLES}
    pairs = [(arch, name) for arch, names in MUTATED.items() for name in names]
    total: Counter[str] = Counter()
    for arch, name in pairs:
        subject = Subject(by_name[name], arch)
        clean = subject.run(subject.text)
        assert clean is None, clean
        made: list[Any] = [m for m in (*mutants(subject.text), *distances(subject.text))]
        made = [m for m in made if subject.counts.get(m.line)]
        random.shuffle(made)
        seen: Counter[str] = Counter()
        with using(timeout=60):
            for mutant in made[: -(-count // len(pairs))]:
                error = subject.run(mutant.text)
                same = np.array_equal(subject.result(), subject.wanted, equal_nan=True)
                kind = type(error).__name__ if error else "no report" if same else "wrong result"
                seen[kind] += 1
                if error is None:
                    print("   ", arch, name, mutant)
        total += seen
        print(arch, name, dict(seen), flush=True)
    print("all", dict(total))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what = sys.argv[1] if len(sys.argv) > 1 else "census"
    if what == "mutants":
        see(int(sys.argv[2]) if len(sys.argv) > 2 else 300)
    else:
        {"census": census, "times": times}[what]()
