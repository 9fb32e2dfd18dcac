"""The instructions that two checkouts of this project execute, counted by Valgrind: launches, simulated kernels, the import.

    python benchmarks/instructions.py OLD [NEW] [--only launch,simulator,import]

OLD and NEW are as in before_after.py, whose launches and driver are counted here, and so is the Python that this needs. Load on
the machine changes no count; the kind of memory accesses and of branches, which change times, is not seen. Needs Valgrind with
its headers and a C compiler; a launch takes some fifty times as long as without. Ends with 1 where a ratio is above 1.02.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator

import before_after
from before_after import HERE, Checkout, files_of, judged

REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
TRIGGER = "desc: Trigger: Client Request: "
LAUNCHES, MISSES = 500, 3
Case = tuple[str, int, Callable[[], Any]]  # name, calls, call


# -- in a process of one checkout --------------------------------------------------------------------


def launches() -> Iterator[Case]:
    import before_after_kernels as kernels
    import torch

    for name, call in before_after.launches().items():
        yield name, LAUNCHES, call
    x, y = torch.zeros(4096), torch.zeros(4096)

    def miss() -> None:
        kernels.scale.forget()
        kernels.scale[before_after.GRID](x, y, 2048, 2.0, 256, kernels.LAYOUT)

    yield "launch, miss", MISSES, miss


def simulated() -> Iterator[Case]:
    """Yield launches of simulator.py, by the examples of this checkout: with all checks, and without."""
    from simulator import CASES
    from upstream import our_example

    from gluon_core.registry.load import registry
    from gluon_report.example import Arrays
    from gluon_sim.settings import Settings, using

    target = registry().target("sim:sm_90")
    modes = {"all checks": Settings(workers=1), "checks off": Settings.without_checks(workers=1)}
    for case in CASES[: before_after.SIMULATED]:
        example = our_example(case.example).EXAMPLES[0]
        config = example.configure(target, **case.choices)
        arguments = example.arguments(Arrays(target), False, case.shape)
        for mode, settings in modes.items():

            def launch() -> None:
                with using(settings):  # noqa: B023 - it is called before the next
                    example.launch(arguments, config, target=target)  # noqa: B023

            yield f"{case.label}, {mode}", 1, launch


def imported() -> Iterator[Case]:
    yield "import", 1, before_after.imported


KINDS: dict[str, Callable[[], Iterator[Case]]] = {
    "launch": launches,
    "simulator": simulated,
    "import": imported,
}


def child(kind: str, site: str, requests: str) -> None:
    library = ctypes.CDLL(requests)
    if kind != "import":
        before_after.check_site(site)  # first: examples bring this checkout into the path
    for name, count, call in KINDS[kind]():
        for _ in range(0 if kind == "import" else 2):
            call()
        gc.collect()
        gc.disable()
        calls = range(count)
        library.begin()
        for _ in calls:
            call()
        library.end(f"{name}|{count}".encode())
        gc.enable()


# -- both checkouts ------------------------------------------------------------------------------------


def counted(checkout: Checkout, kind: str) -> dict[str, float]:
    """Return the instructions of a call by its name."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "requests.c").write_text(REQUESTS)
        compiler = shutil.which("cc") or shutil.which("gcc") or sys.exit("needs a C compiler")
        library = folder / "requests.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", library, folder / "requests.c"]
        subprocess.run(command, check=True)
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        tool.append(f"--callgrind-out-file={folder / 'counts'}")
        known = checkout.environment(
            str(checkout.cache), "nvidia:sm_90" if kind == "launch" else ""
        )
        done = subprocess.run(
            [*tool, sys.executable, "-W", "ignore", __file__, "--child", kind, str(checkout.site), str(library)],
            env={**known, "PYTHONHASHSEED": "0"},
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{kind} in {checkout.copy}:\n{done.stdout}{done.stderr}")
        return dict(sorted(filter(None, map(read, folder.glob("counts.*")))))


def read(counts: Path) -> Any:
    """Return the name and the instructions of a call, None for the file of the end of the process."""
    lines = counts.read_text().splitlines()
    names = [line.removeprefix(TRIGGER) for line in lines if line.startswith(TRIGGER)]
    name, _, count = names[0].partition("|") if names else ("", "", "")
    total = next(line for line in lines if line.startswith(("totals:", "summary:")))
    return (name, float(total.split()[1]) / int(count)) if count else None


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", help="a folder or a commit")
    parser.add_argument("new", nargs="?", default=str(HERE.parent), help="the same")
    parser.add_argument("--only", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    chosen = parser.parse_args()
    counts: dict[str, dict[str, float]] = {"old": {}, "new": {}}
    with tempfile.TemporaryDirectory() as folder:
        for side, place in (("old", chosen.old), ("new", chosen.new)):
            files = Path(place)
            if not files.is_dir():
                files = files_of(place, Path(folder) / side / "files")
            checkout = Checkout(files.resolve(), Path(folder) / side)
            for kind in chosen.only.split(","):
                counts[side] |= counted(checkout, kind)
                print(f"{kind}: {side}", file=sys.stderr, flush=True)
    return judged(counts)


if __name__ == "__main__":
    sys.exit(main())
