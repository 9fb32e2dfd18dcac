"""Certificates of the operators of `gluon_kernels` and of ported kernels, as one table.

    python -m tests.certify.programs FILE.json [--kind KIND ...] [--target TARGET ...] [--sample N] [--seed N] [--seconds N]

KIND is operators (their small problems) or ports (`gluon port` of tests/write/triton_kernels), TARGET sm_90 and gfx942 by default. `--sample` draws
so many programs of each kind. FILE keeps each verdict: a run that `--seconds` ended goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

from tests.backends.emu.whole_programs import shared

OPERATOR = """
from tests.kernels.test_targets import SMALL

problem, shape = next(case.values for case in SMALL if case.id == {name!r})
wrong = problem.check(shape, "cpu")
assert wrong is None, wrong
"""
PORT = """
if __name__ == "__main__":
    result, wanted = {name}()
    torch.testing.assert_close(result.float(), wanted.float(), atol=2e-2 if result.dtype == torch.float16 else 2e-3, rtol=1e-2)
"""


def operators() -> list[str]:
    from tests.kernels.test_targets import SMALL

    return [case.id for case in SMALL]


def ports() -> list[str]:
    from tests.write.test_port import cases

    return list(cases())


KINDS = {"operators": operators, "ports": ports}


def text_of(kind: str, name: str) -> str:
    """Return the program that certify runs."""
    if kind == "operators":
        return OPERATOR.format(name=name)
    from gluon_write.porting.port import port
    from tests.write.test_port import FOLDER

    file, _, case = name.partition(":")
    path = FOLDER / f"{file}.py"
    return port(path.read_text(), str(path)).text + PORT.format(name=case)


def certified(kind: str, name: str, target: str) -> tuple[str, str, float, int]:
    """Return the verdict on a program, its reason, the seconds and the number of launches that were examined."""
    import warnings

    import torch

    from gluon_certify import Plan, certify

    torch.set_num_threads(1)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "program.py"
        try:
            path.write_text(text_of(kind, name))
            certificate = certify(str(path), [target], plan=Plan(schedules=2, launches=1))
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"[:700], time.monotonic() - begun, 0
    (part,) = certificate.targets
    reasons = [f"{one.of}: {one.error} {one.message}" for kernel in part.kernels for one in kernel.findings]  # fmt: skip
    reason = "; ".join([*reasons, *part.elsewhere, part.problem])[:700]
    launches = sum(len(kernel.launches) for kernel in part.kernels)
    return certificate.verdict, reason, round(time.monotonic() - begun, 1), launches


def lines_of(kept: dict[str, Any]) -> Iterator[str]:
    """Yield the table, and below it each program that is not certified."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for key, (verdict, _, _, launches) in kept.items():
        kind, _, target = key.split("|")
        count = counts.setdefault((kind, target), Counter())
        count[verdict] += 1
        count["launches"] += launches
    words = "certified", "incomplete", "wrong", "failed", "launches"
    yield f"| programs | target | {' | '.join(words)} |"
    yield f"| --- | --- |{' --- |' * len(words)}"
    for (kind, target), count in sorted(counts.items()):
        yield f"| {kind} | {target} | {' | '.join(str(count[word]) for word in words)} |"
    yield ""
    for key, (verdict, reason, seconds, _) in sorted(kept.items()):
        if verdict != "certified":
            yield f"{key} {verdict} ({seconds} s): {reason}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", dest="kinds", action="append", choices=KINDS)
    parser.add_argument("--target", dest="targets", action="append")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    kept = json.loads(options.file.read_text()) if options.file.exists() else {}
    draw = random.Random(options.seed)
    jobs = []
    for kind in options.kinds or KINDS:
        names = KINDS[kind]()
        if options.sample is not None:
            names = draw.sample(names, min(options.sample, len(names)))
        jobs += [(kind, name, target) for name in names for target in options.targets or ("sm_90", "gfx942")]  # fmt: skip
    jobs = [job for job in jobs if "|".join(job) not in kept]
    draw.shuffle(jobs)  # a run that `--seconds` ends has some of each kind
    until = time.monotonic() + options.seconds
    for job, end in shared(certified, jobs, until, options.processes, each=8):
        kept["|".join(job)] = end or ("failed", "the process crashed", 0.0, 0)
        options.file.write_text(json.dumps(kept, indent=0))
    print(*lines_of(kept), sep="\n")
    print(f"{len(jobs)} programs left")


if __name__ == "__main__":
    main()
