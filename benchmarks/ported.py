"""Time every kernel of tests/write/triton_kernels as `gluon port` writes it against the same kernel in plain Triton.

The launches of a test case are recorded, with its small operands. Each program of a launch runs many times at once, on a
grid that an axis the kernel does not read makes larger: the time is that of a full device that works from its
caches. Both run in one process, in CUDA graphs, in random order.

  python benchmarks/ported.py [--only WORDS] [--seconds N] [--part I/N] [--compile] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
KERNELS = ROOT / "tests" / "write" / "triton_kernels"
PROGRAMS = 8448  # of a launch: 64 for each multiprocessor of an H100 or H200
GRAPH = 4e-4  # seconds of one replay
# Cases that no replica may run twice at once, or whose operands hold addresses.
EXCLUDED = ("locked", "grouped_gemm", "host_descriptors", "tuned")


def imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def cases() -> list[tuple[str, str]]:
    """Return file and name of each case."""
    names = []
    for file in sorted(KERNELS.glob("*.py")):
        text = file.read_text()
        listed = text[text.index("CASES = [") :].partition("]")[0].partition("[")[2]
        names += [(file.stem, name.strip()) for name in listed.split(",") if name.strip()]
    return names


class Recorder:
    """Record launches in place of running them."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, list[Any], dict[str, Any]]] = []

    def __enter__(self) -> "Recorder":
        from triton.runtime.jit import KernelInterface

        from gluon_core.launch import jit as ours

        own = (v for v in vars(ours).values() if isinstance(v, type) and "gluon" in v.__module__)
        kinds = {KernelInterface, *own}
        self.before = [(k, vars(k)["__getitem__"]) for k in kinds if "__getitem__" in vars(k)]
        for kind, _ in self.before:
            kind.__getitem__ = lambda kernel, grid: self.recorded(kernel, grid)
        return self

    def recorded(self, kernel: Any, grid: Any) -> Any:
        def launch(*args: Any, **words: Any) -> None:
            size = grid(words) if callable(grid) else grid
            self.launches.append((kernel, size, [moved(a) for a in args], words))

        return launch

    def __exit__(self, *_: object) -> None:
        for kind, method in self.before:
            kind.__getitem__ = method


def moved(value: Any) -> Any:
    """Return a value with its tensors on the device."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone().cuda() if value.is_contiguous() else value.cuda()
    if type(value) is tuple:
        return tuple(moved(v) for v in value)
    return value


def replicated(grid: Any, source: str) -> tuple[int, ...]:
    """Return a grid of many programs, by an axis that the kernel does not read."""
    sizes = [*(grid if isinstance(grid, (tuple, list)) else (grid,)), 1, 1][:3]
    free = [a for a in (2, 1) if not re.search(rf"(program_id|num_programs)\((axis=)?{a}", source)]
    free = [a for a in free if sizes[a] == 1]
    if free:
        programs = sizes[0] * sizes[1] * sizes[2]
        sizes[free[0]] = max(1, PROGRAMS // programs)
    return tuple(int(size) for size in sizes)


def pairs(file: str, name: str, modules: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the launches of a case, each with the kernel of Triton and the ported one."""
    recorded = []
    for kind in ("triton", "ours"):
        with Recorder() as recorder:
            try:
                getattr(modules[f"{kind}_{file}"], name)()
            except Exception:
                pass  # the results are not there
        recorded.append(recorder.launches)
    return [dict(zip(("triton", "ours"), both)) for both in zip(*recorded)]


def runs_of(both: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return functions that launch both kernels on a grid of many programs."""
    name = getattr(both["triton"][0], "__name__", None) or both["triton"][0].fn.__name__
    text = path.read_text()
    source = text[text.index(f"def {name}(") :].partition("\n@")[0]
    runs = {}
    for kind, (kernel, grid, args, words) in both.items():
        size = replicated(grid, source)
        runs[kind] = lambda k=kernel, s=size, a=args, w=words: k[s](*a, **w)
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has one of these words, A;B")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no case later")
    parser.add_argument("--part", default="1/1", help="part of the cases, I/N")
    parser.add_argument("--compile", action="store_true", help="run each once, without times")
    parser.add_argument("--json", help="file for the table")
    asked = parser.parse_args()
    import torch
    import triton
    from layout_free import seconds_of

    from gluon_write.port import port

    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 3
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8)
    )
    began, table, failed = time.monotonic(), [], 0
    index, count = map(int, asked.part.split("/"))
    words = asked.only.split(";")
    chosen = [c for c in cases() if c[1] not in EXCLUDED and any(w in ":".join(c) for w in words)]
    modules = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in {file for file, _ in chosen}:
            path = Path(folder) / f"ours_{file}.py"
            path.write_text(port((KERNELS / f"{file}.py").read_text(), f"{file}.py").text)
            modules[f"ours_{file}"] = imported(path, f"ours_{file}")
            modules[f"triton_{file}"] = imported(KERNELS / f"{file}.py", f"triton_{file}")
        for file, name in chosen[index - 1 :: count]:
            for number, both in enumerate(pairs(file, name, modules)):
                if time.monotonic() - began > asked.seconds:
                    break
                label = f"{file}:{name}" + (f" {number + 1}" if number else "")
                try:
                    runs = runs_of(both, KERNELS / f"{file}.py")
                    for run in runs.values():
                        run()
                    torch.cuda.synchronize()
                    if asked.compile:
                        continue
                    start = time.perf_counter()
                    for _ in range(5):
                        runs["triton"]()
                    torch.cuda.synchronize()
                    once = (time.perf_counter() - start) / 5
                    repeats = max(1, min(40, int(GRAPH / once)))
                    times = seconds_of(runs, 5, repeats)
                except Exception as error:
                    print(f"| {label} | {type(error).__name__}: {str(error)[:200]} |", flush=True)
                    failed += 1
                    continue
                ratio = times["triton"] / times["ours"]
                print(f"| {label} | {times['ours'] * 1e6:.1f} us | {ratio:.3f} |", flush=True)
                table.append({"case": label, **times})
    if asked.json:
        Path(asked.json).write_text(json.dumps(table))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
