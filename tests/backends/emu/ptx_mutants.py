"""PTX of pipelined kernels with one wait, fence, arrival or commit deleted or weakened, and the emulator's report.

    python -m tests.backends.emu.ptx_mutants FILE.json [--case CASE ...] [--most N] [--seconds N] [--processes N]

prints the table of docs/emulator-ptx.md, of at most N mutants of each kind, and the report on all that have none, at once. FILE keeps the report on each mutant: a run that `--seconds` ended goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterator, Optional
from unittest.mock import patch

import torch

import gluon_kernels
from gluon_core.errors import GluonError
from gluon_core.simulation.evidence import recording
from gluon_emu.settings import using

_PATTERNS = {
    "wait at an mbarrier": r"mbarrier\.try_wait\.\S+ complete, .*",
    "arrival at an mbarrier": r"(@\S+ )?(cp\.async\.)?mbarrier\.arrive\.(?!expect_tx).*",
    "bytes that an mbarrier expects": r"(@\S+ )?mbarrier\.arrive\.expect_tx.*",
    "barrier of warps": r"(bar|barrier)\.(sync|cluster)\S*.*",
    "barrier of a warp's lanes": r"bar\.warp\.sync.*",
    "proxy fence": r"fence\.proxy\.async.*",
    "fence of memory": r"(fence\.(acq_rel|sc)|membar).*",
    "wgmma.fence": r"wgmma\.fence.*",
    "wgmma.commit_group": r"wgmma\.commit_group.*",
    "wgmma.wait_group": r"wgmma\.wait_group.*",
    "tcgen05.commit": r"(@\S+ )?tcgen05\.commit.*",
    "tcgen05.wait": r"tcgen05\.wait.*",
    "cp.async.commit_group": r"cp\.async\.commit_group.*",
    "cp.async.wait_group": r"cp\.async\.wait_group.*",
    "bulk commit_group": r"cp\.async\.bulk\.commit_group.*",
    "bulk wait_group": r"cp\.async\.bulk\.wait_group.*",
}
_COUNTED = re.compile(r"(\.wait_group(?:\.read)?(?:\.sync\.aligned)?\s+)(\d+)")
_ORDERED = re.compile(r"\.(acq_rel|release|acquire)\b")


@dataclass(frozen=True)
class Mutant:
    """PTX in which `line` (from 1) has an instruction less, or a weaker one."""

    kind: str
    text: str
    line: int
    before: str

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: {self.before}"


def mutants(text: str) -> Iterator[Mutant]:
    """Yield each deletion and each weakening of an instruction that orders."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        code = line.strip().rstrip(";").strip()
        for kind, pattern in _PATTERNS.items():
            if re.fullmatch(pattern, code):
                instead = "setp.eq.u32 complete, 0, 0;" if kind == "wait at an mbarrier" else ""
                yield Mutant(kind, _with(lines, number, instead), number + 1, code)
        counted = _COUNTED.search(line)
        if counted is not None:
            weaker = f"{line[: counted.start(2)]}{int(counted[2]) + 1}{line[counted.end(2) :]}"
            yield Mutant(
                "one more group may be pending", _with(lines, number, weaker), number + 1, code
            )
        if re.match(r"(@\S+ )?(atom|red|ld|st|fence)\b.*(global|gpu)", code) and _ORDERED.search(
            code
        ):
            if not code.startswith("fence"):
                weaker = _ORDERED.sub(".relaxed", line, 1)
                yield Mutant("relaxed, not ordered", _with(lines, number, weaker), number + 1, code)
            narrow = line.replace(".gpu", ".cta", 1)
            yield Mutant("scope of the block", _with(lines, number, narrow), number + 1, code)


def _with(lines: list[str], number: int, instead: str) -> str:
    return "\n".join([*lines[:number], f"\t{instead}", *lines[number + 1 :]])


@dataclass(frozen=True)
class Case:
    """A launch of one kernel.

    Args:
        target: the emulator's.
        run: launches it; its result is compared by its bits.
        tiling: of the GEMM kernels; None for their own choice.
        units: the multiprocessors that a launch of these, and of kernels for other targets, counts on.
    """

    target: str
    run: Callable[[], Any]
    tiling: Optional[str] = None
    units: int = 3


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def _long() -> Any:
    return gluon_kernels.matmul(_bf16(16, 3584), _bf16(3584, 64))


def _aligned() -> Any:
    return gluon_kernels.matmul(_bf16(64, 512), _bf16(512, 128))


def _pair_of_tiles() -> Any:
    """Two tiles of one block, with more steps along K than the ring has slots."""
    return gluon_kernels.matmul(_bf16(128, 640), _bf16(640, 128))


def _wide_pair() -> Any:
    return gluon_kernels.matmul(_bf16(256, 384), _bf16(384, 256))


def _tiles_of_one_block() -> Any:
    """As many tiles as let one block use each of its accumulators again."""
    return gluon_kernels.matmul(_bf16(512, 128), _bf16(128, 128))


def _attention() -> Any:
    return gluon_kernels.attention(*(_bf16(1, 1, 256, 64) for _ in range(3)), causal=True)


def _attention_around() -> Any:
    """More tiles of keys than the ring has slots."""
    keys, values = (_bf16(1, 1, 512, 64) for _ in range(2))
    return gluon_kernels.attention(_bf16(1, 1, 128, 64), keys, values)


def _grouped() -> Any:
    offs = torch.tensor([40, 72, 150], dtype=torch.int32)
    return gluon_kernels.grouped_matmul(_bf16(150, 136), _bf16(3, 136, 208), offs)


CASES = {
    "gemm, ping-pong": Case("emu:sm_90", _pair_of_tiles, "pingpong 64x128x64 s8", 1),
    "gemm, cooperative": Case("emu:sm_90", _wide_pair, "cooperative 256x128x64 s4", 1),
    "gemm, split-K": Case("emu:sm_90", _long, "split_k 16x64x128 s6/4"),
    "attention": Case("emu:sm_90", _attention),
    "attention, wrapped": Case("emu:sm_90", _attention_around, units=1),
    "grouped GEMM": Case("emu:sm_90", _grouped),
    "gemm, cp.async": Case("emu:sm_80", _aligned),
    "gemm, tcgen05": Case("emu:sm_100", _tiles_of_one_block, units=1),
}


def _launched(case: Case) -> Any:
    from gluon_kernels.attention import launches as attention
    from gluon_kernels.gemm import choice, launches, ops, tilings, vendors

    ops.plans.forget()
    target = patch.dict(os.environ, {"GLUON_TARGET": case.target})
    modules = (vendors, attention)
    counts = [patch.object(module, "multiprocessors", lambda tensor: case.units) for module in modules]  # fmt: skip
    with target, counts[0], counts[1]:
        if case.tiling is None:
            return case.run()
        chosen = tilings.TILINGS[case.tiling]
        with patch.object(choice, "choose", lambda size: chosen), patch.object(launches, "choose", lambda size: chosen), patch.object(launches, "multiprocessors", lambda tensor: case.units):  # fmt: skip
            return case.run()


def code_of(case: Case) -> tuple[str, str]:
    """Return the name of the kernel of a case with most code, and its PTX; its launch has no race."""
    with recording() as record, using(search=True, timeout=100):
        _launched(case)
    kernel = max(record.kernels.values(), key=lambda one: len(one.asm["ptx"]))
    return kernel.metadata.name, kernel.asm["ptx"]


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "latest"}, {"schedule": "eager"}, {"schedule": "random", "seed": 0},
)  # fmt: skip


def report(
    case: Case, kernel: str, mutant: Mutant, right: Any = None, orders: Any = SCHEDULES
) -> Optional[str]:
    """Return the class of the report on a mutant, "other result", or None where nothing shows it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.ptx"
        path.write_text(mutant.text)
        for order in orders:
            try:
                with using(assembly=f"{kernel}={path}", search=True, timeout=600, **order):
                    result = _launched(case)
            except GluonError as error:
                return type(error).__name__
            if right is not None and not torch.equal(result, right):
                return "other result"
    return None


def executed_lines(case: Case, kernel: str) -> set[int]:
    """Return the lines of a kernel's PTX that its launches execute."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "counts"
        with using(trace=str(trace)):
            _launched(case)
        launches = [json.loads(line) for line in trace.read_text().splitlines()]
    own = [one for one in launches if one["kernel"] == kernel]
    return {line for one in own for line, count in zip(one["code_lines"], one["counts"]) if count}


def _sampled(mutants: list[Mutant], most: int) -> list[Mutant]:
    """Return at most so many of each kind, at even distances."""
    chosen = []
    for kind in dict.fromkeys(one.kind for one in mutants):
        every = [one for one in mutants if one.kind == kind]
        step = max(1.0, len(every) / most)
        chosen += [every[int(i * step)] for i in range(min(most, len(every)))]
    return chosen


@lru_cache(maxsize=1)
def _prepared(name: str) -> tuple[str, str, Any, set[int]]:
    """Return the kernel of a case, its PTX, its result, and the lines that its launches execute."""
    case = CASES[name]
    kernel, text = code_of(case)
    return kernel, text, _launched(case), executed_lines(case, kernel)


def listed(name: str, most: int) -> tuple[list[Mutant], list[Mutant]]:
    """Return the mutants of a case at executed lines, at most so many of each kind, and the others."""
    _, text, _, executed = _prepared(name)
    every = list(mutants(text))
    return (
        _sampled([one for one in every if one.line in executed], most),
        [one for one in every if one.line not in executed],
    )


def tried(name: str, most: int, number: int) -> tuple[str, float]:
    """Return the report on a mutant of `listed`, and the seconds."""
    torch.set_num_threads(1)
    kernel, _, right, _ = _prepared(name)
    begun = time.monotonic()
    verdict = report(CASES[name], kernel, listed(name, most)[0][number], right) or "no report"
    return verdict, round(time.monotonic() - begun, 1)


def together(name: str, lines: list[int]) -> str:
    """Return the report on all mutants at these lines in one text: each alone had none."""
    torch.set_num_threads(1)
    kernel, text, right, _ = _prepared(name)
    changed = text.splitlines()
    first = {one.line: one for one in reversed(list(mutants(text)))}
    for line in lines:
        changed[line - 1] = first[line].text.splitlines()[line - 1]
    one = Mutant("together", "\n".join(changed), 0, "")
    return report(CASES[name], kernel, one, right) or "no report"


def lines_of(kept: dict[str, Any]) -> Iterator[str]:
    """Yield the table: by kind and case, the reported deletions and all of them; below it those without a report."""
    columns = list(dict.fromkeys(key.split("|")[0] for key in kept))
    counts: dict[str, Counter[str]] = {}
    for key, (kind, verdict, _, _) in kept.items():
        name = key.split("|")[0]
        counts.setdefault(kind, Counter())[f"{name} all"] += verdict != "not executed"
        counts[kind][name] += verdict not in ("no report", "not executed")
    yield f"| deleted or weakened | {' | '.join(columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for kind, count in counts.items():
        cells = [f"{count[n]} of {count[f'{n} all']}" if count[f"{n} all"] else "" for n in columns]
        yield f"| {kind} | {' | '.join(cells)} |"
    yield ""
    for key, (kind, verdict, line, _) in kept.items():
        if verdict == "no report":
            yield f"{key.split('|')[0]}: {kind}: {line}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--case", dest="cases", action="append", choices=CASES)
    parser.add_argument("--most", type=int, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    kept = json.loads(options.file.read_text()) if options.file.exists() else {}
    left = 0
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        for name in options.cases or CASES:
            run, others = pool.submit(listed, name, options.most).result()
            for one in others:
                kept[f"{name}|{one.kind}|{one.line}"] = one.kind, "not executed", str(one), 0.0
            jobs = [n for n, one in enumerate(run) if f"{name}|{one.kind}|{one.line}" not in kept]
            waiting: dict[Any, Mutant] = {}
            while waiting or jobs and time.monotonic() < until:
                while jobs and len(waiting) < options.processes and time.monotonic() < until:
                    number = jobs.pop(0)
                    waiting[pool.submit(tried, name, options.most, number)] = run[number]
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    one = waiting.pop(future)
                    verdict, seconds = future.result()
                    kept[f"{name}|{one.kind}|{one.line}"] = one.kind, verdict, str(one), seconds
                    options.file.write_text(json.dumps(kept, indent=0))
            left += len(jobs)
        silent: dict[tuple[str, str], list[int]] = {}
        for key, (kind, verdict, _, _) in kept.items():
            if verdict == "no report":
                name, _, line = key.split("|")
                silent.setdefault((name, kind), []).append(int(line))
        groups = {one: pool.submit(together, one[0], lines) for one, lines in silent.items()}
        for (name, kind), group in groups.items():
            count = len(silent[name, kind])
            print(
                f"{name}: the {count} of {kind!r} without a report, all at once: {group.result()}"
            )
    print(*lines_of(kept), sep="\n")
    print(f"{left} left, {sum(entry[3] for entry in kept.values()):.0f} s", flush=True)


if __name__ == "__main__":
    main()
