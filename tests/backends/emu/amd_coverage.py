"""Forms of AMD's instructions that the installed Triton emits for examples, cases and operators, and those that the emulator does not know.

    python -m tests.backends.emu.amd_coverage FILE.json [--target TARGET ...] [--sample N] [--seed N] [--seconds N]

The programs run on the simulator without its checks, and the kernels that they launch are compiled. `--sample` draws so many problems of operators.
FILE keeps the forms by Triton's version and target: runs with other releases add to the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Iterator


def forms_of(kind: str, name: str, target: str) -> Iterator[tuple[Counter[str], dict[str, str]]]:
    """Yield the forms of each kernel that a program launches, and the unknown ones with the reason."""
    import gluon_sim.settings
    from gluon_core.errors import GluonError
    from gluon_core.simulation.evidence import recording
    from gluon_emu.command.coverage import of_amd
    from tests.backends.emu.whole_programs import KINDS

    os.environ["GLUON_TARGET"] = target
    with (
        recording() as record,
        gluon_sim.settings.using(checks=False, timeout=60),
        warnings.catch_warnings(),
        contextlib.suppress(Exception),  # units that the target lacks; earlier launches count
    ):
        warnings.simplefilter("ignore")
        KINDS[kind][1](name, target)
    for kernel in record.kernels.values():
        with contextlib.suppress(GluonError):
            coverage = of_amd(str(kernel.hardware.kernel().asm["amdgcn"]))
            yield sum(coverage.groups.values(), Counter()), coverage.unknown


def lines_of(kept: dict[str, Any]) -> Iterator[str]:
    yield "| Triton | target | programs | kernels | instructions | forms | unknown |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for key, one in sorted(kept.items()):
        version, target = key.split("|")
        numbers = len(one["done"]), one["kernels"], sum(one["forms"].values()), len(one["forms"])
        yield f"| {version} | {target} | {' | '.join(map(str, numbers))} | {len(one['unknown'])} |"
    for key, one in sorted(kept.items()):
        yield from (f"{key}: {form}: {reason}" for form, reason in one["unknown"].items())


def main() -> None:
    import triton

    from tests.backends.emu.whole_programs import KINDS

    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", dest="targets", action="append")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    names = {kind: list(KINDS[kind][0]()) for kind in ("examples", "cases", "operators")}
    if options.sample is not None:
        names["operators"] = random.Random(options.seed).sample(names["operators"], options.sample)
    jobs = [(kind, name) for kind in names for name in names[kind]]
    kept = json.loads(options.file.read_text()) if options.file.exists() else {}
    for target in options.targets or ("gfx950", "gfx1250"):
        empty: dict[str, Any] = {"done": [], "kernels": 0, "forms": {}, "unknown": {}}
        one = kept.setdefault(f"{triton.__version__}|{target}", empty)
        for kind, name in jobs:
            if f"{kind} {name}" in one["done"] or time.monotonic() > until:
                continue
            for forms, unknown in forms_of(kind, name, f"sim:{target}"):
                one["kernels"] += 1
                one["forms"] = dict(Counter(one["forms"]) + forms)
                one["unknown"].update(unknown)
            one["done"].append(f"{kind} {name}")
            options.file.write_text(json.dumps(kept))
    print(*lines_of(kept), sep="\n")


if __name__ == "__main__":
    main()
