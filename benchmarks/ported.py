"""Time every kernel of tests/write/triton_kernels as `gluon port` writes it against the same kernel in plain Triton.

The launch of a test case is repeated along the third axis of its grid, each time on operands of its own: a line
at the beginning of the kernel adds the distance to its pointers. Some cases are launched as they are. Both kernels
take the same operands, in one process, in CUDA graphs, in random order; before that their results are compared.
Kernels with one machine code are equal and have no ratio; with `--controls` theirs shows the error of the measurement.

  python benchmarks/ported.py [--only WORDS] [--first WORDS] [--seconds N] [--end N] [--workers N] [--seed N] [--controls] [--compile] [--lock FILE] [--json FILE]

With `--workers` that many processes compile, then time one after the other; with `--lock` they hold a lock on that
file while they time, as other runs on the GPU may do. `--ahead` fills the caches of both
compilers, and runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Iterator, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "tests" / "write" / "triton_kernels"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(KERNELS)]
PROGRAMS = 8448  # of a launch: 64 for each multiprocessor of an H100 or H200
BYTES = 1 << 29  # of the operands of a launch
LANGUAGE = re.compile(r"^import triton\.language as (\w+)", re.M)
THIRD = re.compile(r"tl\.program_id\((axis=)?2\)")
STEP = 256  # elements, which the distance of two operands is a multiple of
# `tuned`: its configurations are timed by the launch itself; `listed` has a constant, `higher_order` a nested
# unpacking, and `tile_residual_norm` a value of two types, that Triton 3.6 refuses; `assembly_clocks` stores times; functions or classes make the kernels of `factories`
# and `member`.
EXCLUDED = frozenset(
    [
        "tuned",
        "listed",
        "higher_order",
        "assembly_clocks",
        "factories",
        "member",
        "tile_residual_norm",
    ]
)
# Operands that hold addresses or are descriptors, tuples, results of a launch before, or counted by all programs:
# launched as they are.
ALONE = frozenset(
    "locked grouped_gemm host_descriptors tuples layer_norm_backward grouped lock_sum last_block constants "
    "lookback sorted_experts stream_k adam_list tutorial_full tutorial_causal named named_tuples multi_tensor fused_mlp staying exclusive_sums layered joined_sums "
    "tile_gathered tile_scanned tile_rotated tile_picked tile_counted tile_running".split()
)
# A launch counts in memory that it has to find as it was: restored before each, whose time is taken off.
RESTORED = frozenset(["lookback", "stream_k", "sorted_experts", "exclusive_sums", "joined_decode"])
TOLERANCE = 2e-2  # of results in float16 and less; the others have a tenth
MOST_APART = 1e-3  # share of a result's elements beyond it


KEPT: list[Any] = []


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


class Launch(NamedTuple):
    """A launch of a case: kernel, grid, arguments, and the tensors among them with their first content."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    words: dict[str, Any]
    first: list[tuple[Any, Any]]


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors that an argument holds."""
    import torch

    if isinstance(value, torch.Tensor):
        if all(step or size < 2 for size, step in zip(value.shape, value.stride())):
            yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "base"):
        yield from tensors_in(value.base)


class Recorder:
    """Record launches.

    Args:
        device: on which the operands are made.
        runs: run a launch once it is recorded, so that the next one finds its results.
    """

    def __init__(self, device: str, runs: bool) -> None:
        self.launches: list[Launch] = []
        self.device, self.runs = device, runs
        self.kept: list[
            Any
        ] = []  # variables of the cases, whose tensors operands have addresses of

    def __enter__(self) -> "Recorder":
        import torch
        from triton.runtime.jit import KernelInterface

        torch.set_default_device(self.device)
        self.generator = torch.Generator
        if self.device != "cpu":
            torch.Generator = lambda: self.generator(self.device)  # type: ignore[assignment, misc]
        self.before = KernelInterface.__getitem__
        KernelInterface.__getitem__ = lambda kernel, grid: self.recorded(kernel, grid)
        return self

    def recorded(self, kernel: Any, grid: Any) -> Any:
        def launch(*args: Any, **words: Any) -> None:
            size = grid(words) if callable(grid) else grid
            first = [(t, t.clone()) for t in tensors_in([*args, *words.values()]) if self.runs]
            self.launches.append(Launch(kernel, size, args, words, first))
            self.kept.append(sys._getframe(1).f_locals)
            if self.runs:
                self.before(kernel, grid)(*args, **words)

        return launch

    def __exit__(self, *_: object) -> None:
        import torch
        from triton.runtime.jit import KernelInterface

        torch.set_default_device("cpu")
        torch.Generator = self.generator  # type: ignore[misc]
        KernelInterface.__getitem__ = self.before


def launches(file: str, name: str, ahead: bool) -> list[Launch]:
    """Return the launches of a case."""
    module = imported(KERNELS / f"{file}.py", f"case_{file}")
    alone = name in ALONE
    with Recorder("cuda" if alone else "cpu", alone and not ahead) as recorder:
        try:
            getattr(module, name)()
        except Exception:
            pass  # it looks at results, which are not there
    KEPT.append(recorder.kept)
    return recorder.launches


def restore(contents: list[tuple[Any, Any]]) -> None:
    """Give tensors their first content again."""
    for tensor, first in contents:
        tensor.copy_(first)


def compared(runs: dict[str, Any], contents: list[tuple[Any, Any]]) -> str:
    """Run both kernels once and compare what they leave in their operands; return the differences."""
    import torch

    results: dict[str, list[Any]] = {}
    for kind, run in runs.items():
        restore(contents)
        run()
        torch.cuda.synchronize()
        results[kind] = [tensor.clone() for tensor, _ in contents]
    restore(contents)
    changed, worst = 0, 0.0
    for (_, first), plain, ours in zip(contents, results["triton"], results["ours"]):
        changed += not torch.equal(plain, first)
        atol = TOLERANCE if plain.element_size() < 4 else TOLERANCE / 10
        pair = (ours.float(), plain.float())
        same = torch.isclose(*pair, rtol=TOLERANCE / 2, atol=atol, equal_nan=True)
        worst = max(worst, 1 - same.float().mean().item())
    if worst > MOST_APART:
        return f"{worst:.2%} of a result differ"
    return "same" if changed else "writes nothing that its arguments hold"


def extent(tensor: Any) -> int:
    """Return the elements between two copies of a tensor."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return -(-(last + 1) // STEP) * STEP


def apart(text: str, kernel: str, steps: dict[str, int], third: int) -> str:
    """Return a file whose kernel adds a distance to its pointers for each program of the third axis.

    Args:
        third: programs of one launch along that axis.
    """
    node = next(
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == kernel
    )
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        first = node.body[1]
    lines = text.splitlines()
    language = LANGUAGE.search(text)
    name = language[1] if language else "tl"
    if third > 1:
        for number in range(node.lineno - 1, node.end_lineno or 0):
            lines[number] = THIRD.sub(f"({name}.program_id(2) % {third})", lines[number])
    indent = " " * first.col_offset
    own = [f"{indent}copy_number = ({name}.program_id(2) // {third}).to({name}.int64)"]
    own += [f"{indent}{one} = {one} + copy_number * {step}" for one, step in steps.items()]
    return "\n".join([*lines[: first.lineno - 1], *own, *lines[first.lineno - 1 :]]) + "\n"


Runs = tuple[dict[str, Any], list[tuple[Any, Any]]]


def launched(kernel: Any, grid: tuple[int, ...], words: dict[str, Any], ahead: bool) -> Any:
    """Launch a kernel, or only compile it."""
    return kernel.warmup(grid=grid, **words) if ahead else kernel[grid](**words)


def runs_alone(
    file: str,
    name: str,
    named: dict[str, Any],
    sizes: list[int],
    folder: Path,
    tag: str,
    ahead: bool,
) -> dict[str, Any]:
    """Return functions that launch a kernel of Triton, and the ported one, as a case does."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from gluon_write.porting.port import port

    source = KERNELS / f"{file}.py"
    path = folder / f"ours_{tag}.py"
    path.write_text(port(source.read_text(), str(source)).text)
    ported = imported(path, path.stem)
    own = {
        word: ported.TensorDescriptor(v.base, v.shape, v.strides, v.block_shape)
        if isinstance(v, TensorDescriptor)
        else v
        for word, v in named.items()
    }
    plain = getattr(sys.modules[f"case_{file}"], name)
    return {
        "triton": partial(launched, plain, tuple(sizes), named, ahead),
        "ours": partial(launched, getattr(ported, name), tuple(sizes), own, ahead),
    }


def runs_of(
    file: str,
    launch: Launch,
    folder: Path,
    tag: str,
    alone: bool,
    ahead: bool,
    device: str = "cuda",
) -> Runs:
    """Return functions that launch a kernel of Triton, and the ported one, on many operands.

    Args:
        ahead: the functions only compile; the operands are those of one copy.

    Returns:
        the functions, and the operands with their first content.
    """
    import torch

    from gluon_write.porting.port import port

    kernel, grid, args, words, first = launch
    inner = kernel
    while not hasattr(inner, "arg_names") or not hasattr(inner, "src"):
        inner = inner.fn
    named = dict(zip(inner.arg_names, args)) | words
    tensors = {n: v for n, v in named.items() if isinstance(v, torch.Tensor)}
    sizes = [*(grid if isinstance(grid, (tuple, list)) else (grid,)), 1, 1][:3]
    if alone:
        return runs_alone(file, inner.__name__, named, sizes, folder, tag, ahead), first
    bytes_of = sum(extent(t) * t.element_size() for t in tensors.values())
    copies = max(1, min(PROGRAMS // (sizes[0] * sizes[1] * sizes[2]), BYTES // bytes_of))
    copies = 1 if ahead else copies
    moved = {}
    for name, tensor in tensors.items():
        whole = torch.zeros(copies, extent(tensor), dtype=tensor.dtype, device=device)
        whole.as_strided((copies, *tensor.shape), (extent(tensor), *tensor.stride())).copy_(tensor)
        moved[name] = whole.view(-1)
    text = apart(
        (KERNELS / f"{file}.py").read_text(),
        inner.__name__,
        {name: extent(tensor) for name, tensor in tensors.items()},
        sizes[2],
    )
    texts = {"triton": text, "ours": port(text, str(KERNELS / f"{file}.py")).text}
    runs = {}
    for kind, own in texts.items():
        path = folder / f"{kind}_{tag}.py"
        path.write_text(own)
        module = imported(path, path.stem)
        one = getattr(module, inner.__name__)
        functions = {
            name: getattr(module, value.__name__)
            for name, value in named.items()
            if hasattr(value, "src") and hasattr(module, value.__name__)
        }
        passed = {name: moved.get(name, value) for name, value in named.items()} | functions
        size = (sizes[0], sizes[1], sizes[2] * copies)
        runs[kind] = partial(launched, one, size, passed, ahead)
    return runs, [(whole, whole.clone()) for whole in moved.values()]


class Compiled(NamedTuple):
    """A launch whose kernels ran once.

    Attributes:
        alike: both have one machine code.
    """

    label: str
    runs: dict[str, Any]
    contents: list[tuple[Any, Any]]
    restored: bool
    result: str
    alike: bool

    @property
    def words(self) -> str:
        """Say how the two results and codes compare."""
        return f"{self.result}, one code" if self.alike else self.result


def timed(case: Compiled, seed: int) -> dict[str, list[float]]:
    """Return seconds of a launch of each kernel in each round."""
    from paired import raced

    runs = {kind: case.runs[kind] for kind in ("ours", "triton")}
    if not case.restored:
        return raced(runs, seed)
    whole = {
        kind: lambda run=run: (restore(case.contents), run())  # type: ignore[misc]
        for kind, run in runs.items()
    }
    times = raced({**whole, "restore": lambda: restore(case.contents)}, seed)
    less = [
        {kind: times[kind][i] - restoring for kind in runs}
        for i, restoring in enumerate(times["restore"])
    ]
    rounds = [one for one in less if min(one.values()) > 0]
    if len(rounds) < len(less) / 2:
        raise ValueError("a launch takes less than its restoring varies")
    return {kind: [one[kind] for one in rounds] for kind in runs}


@contextmanager
def alone_on(file: Path) -> Iterator[None]:
    """Hold a lock that all workers ask for."""
    with open(file, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def all_wait(folder: Path, index: int, count: int, until: float) -> None:
    """Wait until each worker has compiled its cases, or until a time."""
    (folder / f"ready_{index}").touch()
    while len(list(folder.glob("ready_*"))) < count and time.time() < until:
        time.sleep(0.05)


def work_together(asked: argparse.Namespace) -> int:
    """Share the cases among processes."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--together", folder, "--only", asked.only]
        words += ["--lock", str(asked.lock or Path(folder, "lock"))]
        words += ["--first", asked.first, "--until", str(time.time() + asked.seconds)]
        words += ["--end", str(time.time() + asked.end), "--seed", str(asked.seed)]
        for word in ("ahead", "compile", "controls"):
            words += [f"--{word}"] * getattr(asked, word)
        workers = [
            subprocess.Popen([*words, "--part", f"{index}/{asked.workers}"])
            for index in range(1, asked.workers + 1)
        ]
        failed = max(worker.wait() for worker in workers)
        rows = [json.loads(file.read_text()) for file in Path(folder).glob("times_*")]
    if asked.json:
        Path(asked.json).write_text(json.dumps([row for table in rows for row in table]))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has one of these words, A;B")
    parser.add_argument("--first", default="", help="cases that come first, A;B")
    parser.add_argument("--seconds", type=float, default=600.0, help="compile no case later")
    parser.add_argument("--end", type=float, default=900.0, help="time no case later, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the order and of intervals")
    parser.add_argument("--controls", action="store_true", help="time those of one code, too")
    parser.add_argument("--workers", type=int, default=1, help="processes that compile")
    parser.add_argument("--compile", action="store_true", help="run each once, without times")
    parser.add_argument("--ahead", action="store_true", help="compile, and run nothing")
    parser.add_argument("--json", help="file for the table")
    parser.add_argument("--lock", type=Path, help="file that is locked while a launch is timed")
    for word in ("--part", "--together", "--until"):  # of a worker
        parser.add_argument(word, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not asked.together:
        return work_together(asked)
    import torch
    import triton

    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 3

    def allocated(size: int, align: int, stream: Any) -> Any:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    from machine_code import code_of
    from paired import ratio_of

    compiled: list[Compiled] = []
    table: list[dict[str, Any]] = []
    failed, until, end = 0, float(asked.until), asked.end
    folder, index, count = Path(asked.together), *map(int, asked.part.split("/"))
    words, early = asked.only.split(";"), [word for word in asked.first.split(";") if word]
    chosen = [c for c in cases() if c[1] not in EXCLUDED and any(w in ":".join(c) for w in words)]
    chosen.sort(key=lambda case: not any(word in ":".join(case) for word in early))
    for file, name in chosen[index - 1 :: count]:
        if time.time() > until:
            break
        for number, launch in enumerate(launches(file, name, asked.ahead)):
            label = f"{file}:{name}" + (f" {number + 1}" if number else "")
            try:
                triton.set_allocator(allocated)  # a case may set another
                tag, alone = f"{file}_{name}_{number}", name in ALONE
                runs, contents = runs_of(file, launch, folder, tag, alone, asked.ahead)
                if asked.ahead:
                    [run() for run in runs.values()]
                    continue
                result = compared(runs, contents)
                one, other = (
                    code_of(launched(*runs[kind].args[:3], True)) for kind in ("triton", "ours")
                )
            except Exception as error:
                print(f"| {label} | {type(error).__name__}: {str(error)[:200]} |", flush=True)
                failed += 1
                continue
            failed += "differ" in result
            if asked.compile:
                print(f"| {label} | {result} |", flush=True)
                continue
            restored = name in RESTORED
            kept = contents if restored else []
            compiled.append(Compiled(label, runs, kept, restored, result, one == other))
            del contents
            torch.cuda.empty_cache()
    all_wait(folder, index, count, until + 30)
    compiled.sort(key=lambda case: case.alike)
    for case in compiled:
        row = {"case": case.label, "result": case.result, "alike": case.alike}
        table.append(row)
        if case.alike and not asked.controls or time.time() > end:
            print(f"| {case.label} | | {case.words} |", flush=True)
            continue
        with alone_on(asked.lock):
            try:
                times = timed(case, asked.seed)
                ratio = ratio_of(times, "triton", "ours", asked.seed)
            except Exception as error:
                print(f"| {case.label} | {type(error).__name__}: {str(error)[:200]} |", flush=True)
                failed += 1
                continue
        ours = statistics.median(times["ours"])
        rounds = len(times["ours"])
        print(
            f"| {case.label} | {ours * 1e6:.1f} us | {ratio}, {rounds} rounds | {case.words} |",
            flush=True,
        )
        row |= {"ours": ours, "rounds": rounds, **ratio._asdict()}
    (folder / f"times_{index}").write_text(json.dumps(table))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
