"""Random shapes of a family of kernels against rivals, in one process and in random order, eager and in CUDA graphs.

    python benchmarks/sweep.py gemm --seed 1 --count 200 [--op matmul] [--jobs 12] [--limit 300] [--out sweep.json]
    python benchmarks/sweep.py gemm quant --op matmul,linear --seed 1     # several families, one op after the other
    python benchmarks/sweep.py norm --gradients          # calls followed by their gradients
    python benchmarks/sweep.py gemm --named              # the shapes that tables list by themselves
    python benchmarks/sweep.py gemm --check              # without a GPU: the small shapes, simulated

A family is a package of `gluon_kernels` whose module `problem` has `PROBLEMS`. The ratio of a shape is the time of the fastest
rival over ours. "Eager" is the time per call of a loop of calls, host time included; "graph" is that of a CUDA graph of
calls. `--cold` adds graphs of calls on copies of the arguments that together exceed the L2 cache twice, as the layers of a model do.
Results are compared with the reference first, with `--by-rival` with those of the first rival that takes the shape. `--jobs` processes compile in advance, on processors that the measuring process then
leaves to them; a shape is measured as soon as its kernels are there. `--limit` ends a sweep after so many seconds, compilation
included; the table is of the shapes that were measured. Rivals in CuTe DSL (QuACK, FlashAttention) run the kernels that their
caches on disk have; `--compile-rivals` lets them compile, which takes them seconds per shape. `--warm I/N` compiles a share of the
shapes and measures none; with `--compile-rivals` it compiles those rivals' kernels, too.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from ratios import ratio, spread, text_of, worded  # noqa: E402

import gluon_core as gluon  # noqa: E402
from gluon_kernels.problem import Problem, Shape, error_of  # noqa: E402

GRAPH = 400e-6  # seconds that one graph takes
EAGER = 2e-3  # seconds that one loop of eager calls takes
ROUNDS = 5  # at least
MOST_ROUNDS = 20  # where times scatter
SCATTER = 0.04  # of the median, between the quartiles
NEAR = 1.5  # of the least time: those that are slower decide nothing
COLD = 1.2e8  # bytes of the copies of arguments that no cache keeps
COPIES = 16  # at most
IN_CUTE = ("FlashAttention", "quack")  # rivals that compile kernels with CuTe DSL
POOL = 2**31  # bytes of the arguments of a shape whose kernels are compiled in advance

Call = Callable[[], Any]


def problems_of(family: str, op: str | None, gradients: bool = False) -> list[Problem]:
    module = importlib.import_module(f"gluon_kernels.{family}.problem")
    problems = (*module.PROBLEMS, *getattr(module, "OF_HOPPER", ()))
    if gradients:
        problems = getattr(module, "WITH_GRADIENTS", ())
    return [problem for problem in problems if op in (None, problem.name)]


def listed(chosen: argparse.Namespace) -> list[Problem]:
    """Return the problems that the command line asks for, in the order of its ops."""
    ops = chosen.op.split(",") if chosen.op else [None]
    return [
        problem
        for op in ops
        for family in chosen.families
        for problem in problems_of(family, op, chosen.gradients)
    ]


def cases(problems: list[Problem], chosen: argparse.Namespace) -> list[tuple[Problem, Shape]]:
    """Return the shapes of each op in random order: one op after the other where several are listed, else a shape of each in turn."""
    if chosen.named:
        return [(problem, shape) for problem in problems for shape in problem.named]
    drawn = []
    for problem in problems:
        draw = random.Random(chosen.seed)
        of_op = [(problem, problem.draw(draw)) for _ in range(chosen.count)]
        random.Random(chosen.seed).shuffle(of_op)
        drawn.append(of_op[chosen.skip :])
    if chosen.op:
        return list(itertools.chain(*drawn))
    turns = [list(turn) for turn in zip(*drawn)]
    for number, turn in enumerate(turns):
        random.Random(f"{chosen.seed} {number}").shuffle(turn)
    return list(itertools.chain(*turns))


# -- times -----------------------------------------------------------------------------------------


def rough(call: Call) -> float:
    """Return about how many seconds a call takes on the device."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    torch.cuda.synchronize()
    begin.record()
    for _ in range(3):
        call()
    end.record()
    end.synchronize()
    return max(begin.elapsed_time(end) / 3e3, 2e-6)


def eager(call: Call, seconds: float) -> Call:
    count = max(5, min(400, int(EAGER / seconds)))

    def loop() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    return loop


def graphed(call: Call, seconds: float, *others: Call) -> Call:
    """Return the time per call of a graph that repeats the calls one after the other.

    ``seconds`` is the time of an eager call. The host may have taken most of it, so a first replay
    measures a call's time on the device, and a graph of too few calls is captured once more.
    """
    calls = (call, *others)

    def fitting(seconds: float) -> int:
        count = max(2, min(100, int(GRAPH / seconds)), len(calls))
        return -(-count // len(calls)) * len(calls)

    count = fitting(seconds)
    replay = captured(calls, count)
    replay()
    wanted = fitting(replay())
    return replay if wanted < 2 * count else captured(calls, wanted)


def captured(calls: Sequence[Call], count: int) -> Call:
    """Return the time per call of a graph of ``count`` calls, ``calls`` by turns."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            calls[i % len(calls)]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")

    def replay() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    return replay


def host(call: Call, seconds: float) -> Call:
    """Return the seconds that the host takes for a call, while the device is not waited for."""
    count = max(3, min(20, int(5 * EAGER / seconds)))

    def loop() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        spent = (time.perf_counter() - begin) / count
        torch.cuda.synchronize()
        return spent

    return loop


def medians(ways: dict[str, Call], most: int = MOST_ROUNDS) -> dict[str, float]:
    """Return the median seconds of each, measured by turns in random order.

    There are up to `most` rounds where the times of the fastest, or of one that is near, scatter.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(most):
        random.shuffle(names)
        for name in names:
            times[name].append(ways[name]())
        bound = NEAR * min(map(min, times.values()))
        near = [samples for samples in times.values() if min(samples) <= bound]
        if number + 1 >= ROUNDS and all(map(steady, near)):
            break
    return {name: statistics.median(samples) for name, samples in times.items()}


def steady(samples: Sequence[float]) -> bool:
    """Return True if half of the samples are near their median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return high - low <= SCATTER * middle


def copies(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments, and as many copies of their tensors as no cache keeps."""
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    size = sum(x.untyped_storage().nbytes() for x in tensors.values())
    number = min(COPIES, math.ceil(COLD / max(size, 1)))
    again = [{**arguments, **{n: copied(x) for n, x in tensors.items()}} for _ in range(number - 1)]
    return [arguments, *again]


def copied(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return result.copy_(x)


def measured(
    problem: Problem, shape: Shape, cold: bool = False, by_rival: bool = False
) -> dict[str, Any]:
    """Return the times of one shape, and the reason where ours failed or was wrong."""
    arguments = problem.arguments(shape, "cuda")
    row: dict[str, Any] = {"op": problem.name, "shape": {k: str(v) for k, v in shape.items()}}
    calls: dict[str, Call] = {"ours": lambda: problem.op(**arguments)}
    for name, rival in problem.rivals.items():
        try:
            rival(**arguments)
            calls[name] = lambda rival=rival: rival(**arguments)
        except Exception as error:  # a rival may refuse a shape
            row.setdefault("refused", {})[name] = str(error)[:100]
    judges = list(calls.values())[1:] if by_rival and problem.compared is None else []
    try:
        results = problem.results(arguments)
        right = judges[0]() if judges else problem.reference(**arguments)
        pairs = zip(results, right) if isinstance(results, tuple) else [(results, right)]
        row["error"] = max(error_of(one, other) for one, other in pairs)
        if not row["error"] <= problem.tolerance:
            row["wrong"] = f"off by {row['error']:.2g}"
        del results, right, pairs
    except Exception as error:
        row["wrong"] = f"{type(error).__name__}: {str(error)[:300]}"
        return row
    about = {name: rough(call) for name, call in calls.items()}
    loops = {name: eager(call, about[name]) for name, call in calls.items()}
    row["eager"] = medians(loops)
    hosts = {name: host(call, about[name]) for name, call in calls.items()}
    row["host"] = medians(hosts, ROUNDS)  # no goal, and the longest loops
    try:
        graphs = {name: graphed(call, row["eager"][name]) for name, call in calls.items()}
        row["graph"] = medians(graphs)
        if cold:
            again = copies(arguments)
            ops = {"ours": problem.op, **problem.rivals}
            for name in graphs:
                first, *others = (partial(ops[name], **one) for one in again)
                for call in (first, *others):
                    call()
                graphs[name] = graphed(first, row["graph"][name], *others)
            row["cold"] = medians(graphs)
    except Exception as error:
        row["wrong"] = f"in a graph: {type(error).__name__}: {str(error)[:300]}"
    return row


def compiled_only() -> None:
    """Let rivals in CuTe DSL refuse shapes whose kernels they have not compiled before."""
    try:
        cute: Any = importlib.import_module("cutlass.cute")
    except ImportError:
        return

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError("not compiled before")

    cute.compile = refuse


# -- tables ----------------------------------------------------------------------------------------


def shown(row: dict[str, Any], problem: Problem, shape: Shape) -> str:
    text = " ".join(f"{k}={v}" for k, v in worded(shape).items())
    if "graph" not in row:
        return f"| {row['op']} | {text} | {row.get('wrong')} |"
    seconds = row["graph"]["ours"]
    rate = f"{problem.flops(shape) / seconds / 1e12:.0f} TFLOP/s, " if problem.flops(shape) else ""
    ratios = [ratio(row, way) for way in ("graph", "eager", "host")]
    cells = " | ".join("-" if r is None else f"{r:.3f}" for r in ratios)
    return (
        f"| {row['op']} | {text} | {seconds * 1e6:.1f} us, {rate}"
        f"{problem.bytes(shape) / seconds / 1e12:.2f} TB/s | {cells} | {row['host']['ours'] * 1e6:.1f} us |"
        f"{' ' + row['wrong'] if 'wrong' in row else ''}"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| op | shapes | way | geometric mean | 5th percentile | worst | its shape |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for op in dict.fromkeys(row["op"] for row in rows):
        for way in ("graph", "cold", "eager", "host"):
            pairs = [(ratio(row, way), row) for row in rows if row["op"] == op]
            ratios = sorted((r, i) for i, (r, _) in enumerate(pairs) if r is not None)
            if not ratios:
                continue
            mean, fifth, worst = spread([r for r, _ in ratios])
            shape = text_of(pairs[ratios[0][1]][1])
            lines.append(
                f"| {op} | {len(ratios)} | {way} | {mean:.3f} | {fifth:.3f} | {worst:.3f} | {shape} |"
            )
    lines += rivals_of(rows)
    wrong = [row for row in rows if "wrong" in row]
    lines.append(f"\n{len(rows)} shapes, {len(wrong)} failed" + "".join(
        f"\n- {row['op']} {row['shape']}: {row['wrong']}" for row in wrong))  # fmt: skip
    return lines


def rivals_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each rival: how many shapes it took, and the first reason why it refused others."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for name in row.get("eager", ()):
            reasons.setdefault(name, [])
        for name, reason in row.get("refused", {}).items():
            reasons.setdefault(name, []).append(reason)
    reasons.pop("ours", None)
    lines = []
    for name, of_rival in reasons.items():
        line = f"\n{name}: {sum(name in row.get('eager', ()) for row in rows)} shapes"
        lines.append(line + f", {len(of_rival)} refused: {of_rival[0]}" if of_rival else line)
    return lines


class Ahead:
    """Processes that make the plans of shapes, so that the compiled kernels are on disk.

    Args:
        jobs: how many; the first processor stays free of them.
        count: shapes.
    """

    def __init__(self, jobs: int, count: int):
        self._folder = tempfile.TemporaryDirectory()
        first, *others = sorted(os.sched_getaffinity(0))
        base = [sys.executable, __file__, *sys.argv[1:], "--done", self._folder.name]
        os.sched_setaffinity(0, others or [first])
        self._jobs = [
            subprocess.Popen([*base, "--warm", f"{i}/{jobs}"], stdout=subprocess.DEVNULL)
            for i in range(jobs)
        ]
        os.sched_setaffinity(0, [first])

    def wait(self, number: int, seconds: float) -> None:
        """Wait until the kernels of a shape are there, its process has ended, or the time is over."""
        job, end = self._jobs[number % len(self._jobs)], time.time() + seconds
        file = Path(self._folder.name, str(number))
        while not file.exists() and job.poll() is None and time.time() < end:
            time.sleep(0.02)

    def end(self) -> None:
        for job in self._jobs:
            job.kill()
            job.wait()
        self._folder.cleanup()


def warm(todo: list[tuple[Problem, Shape]], chosen: argparse.Namespace) -> None:
    """Make the plans of a share of the shapes, on tensors without contents, and launch nothing of ours."""
    number, parts = map(int, chosen.warm.split("/"))
    os.nice(19)
    pool = Pool(POOL)
    torch.randn, torch.randint = pool.empty, pool.integers
    compile_only()
    for place in range(number, len(todo), parts):
        problem, shape = todo[place]
        calls = [problem.op]
        if chosen.compile_rivals:
            calls += [problem.rivals[name] for name in IN_CUTE if name in problem.rivals]
        for call in calls:
            try:
                pool.begin()
                call(**problem.arguments(shape, "cuda"))
            except Exception as error:
                print(f"{problem.name} {shape}: {error}", file=sys.stderr)
        if chosen.done is not None:
            (chosen.done / str(place)).touch()


def compile_only() -> None:
    """Let launches be prepared, and nothing launched."""
    prepare = gluon.torch.prepare

    def prepared(*arguments: Any, **options: Any) -> Callable[..., None]:
        prepare(*arguments, **options)
        return lambda *tensors: None

    known = [m for name, m in sys.modules.items() if name.startswith("gluon_")]
    for module in known:
        for name, value in list(vars(module).items()):
            if value is prepare:
                setattr(module, name, prepared)


class Pool:
    """Memory from which tensors without contents come, so that processes that compile neither allocate nor launch next to one that measures.

    Args:
        size: bytes.
    """

    def __init__(self, size: int):
        self._size, self._left = size, 0
        self._memory: torch.Tensor | None = None

    def begin(self) -> None:
        """Give out the memory again."""
        self._left = self._size

    def empty(self, *size: Any, device: Any = None, **more: Any) -> torch.Tensor:
        """Return a tensor of the arguments of `torch.randn`, of bfloat16 by default."""
        shape = tuple(size[0]) if size and not isinstance(size[0], int) else size
        dtype = more.get("dtype", torch.bfloat16)
        bytes_of = math.prod(shape) * dtype.itemsize
        self._left -= -(-bytes_of // 512) * 512
        if self._left < 0:
            raise MemoryError(f"{shape} is too large to be made in advance")
        if self._memory is None:  # of zeros: a rival may read lengths and indices from it
            self._memory = torch.zeros(self._size, dtype=torch.uint8, device=device)
        return self._memory[self._left : self._left + bytes_of].view(dtype).view(shape)

    def integers(self, low: int, high: int, size: Any, **more: Any) -> torch.Tensor:
        """Return a tensor of the arguments of `torch.randint`."""
        return self.empty(size, **{"dtype": torch.int64, **more})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="+", metavar="family")
    parser.add_argument("--op", help="one, or several with commas between them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="so many of the shapes of each op")
    parser.add_argument("--gradients", action="store_true", help="calls with gradients: norm, topk")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--warm", metavar="I/N", help="compile a share only")
    parser.add_argument("--done", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds, then the rest is left")
    parser.add_argument("--by-rival", action="store_true", help="compare with a rival's results")
    parser.add_argument("--cold", action="store_true", help="also with operands in no cache")
    parser.add_argument("--compile-rivals", action="store_true", help="in CuTe DSL: seconds each")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    problems = listed(chosen)
    if chosen.check:
        wrong = [p.check(shape, "cpu") for p in problems for shape in p.small]
        for text in filter(None, wrong):
            print(text)
        print(f"{len(wrong)} shapes, {sum(map(bool, wrong))} failed")
        return int(any(wrong)) if wrong else 3
    todo = cases(problems, chosen)
    if chosen.warm:
        warm(todo, chosen)
        return 0
    started = time.time()
    if not chosen.compile_rivals:
        compiled_only()
    ahead = Ahead(chosen.jobs, len(todo)) if chosen.jobs else None
    print(f"seed {chosen.seed}, {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| op | shape | ours in a graph | of the best rival: graph | eager | host | host time |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    rows = []
    try:
        for number, (problem, shape) in enumerate(todo):
            if ahead is not None:
                ahead.wait(number, started + chosen.limit - time.time())
            if time.time() - started > chosen.limit:
                print(
                    f"\nended after {chosen.limit:.0f} s with {len(todo) - len(rows)} shapes left"
                )
                break
            rows.append(measured(problem, shape, chosen.cold, chosen.by_rival))
            print(shown(rows[-1], problem, shape), flush=True)
            if chosen.out and number % 50 == 49:  # a sweep that is killed leaves them
                chosen.out.write_text(json.dumps(rows))
    except KeyboardInterrupt:
        print(f"\ninterrupted with {len(todo) - len(rows)} shapes left")
    if ahead is not None:
        ahead.end()
    print("", *summary(rows), sep="\n")
    if chosen.out:
        chosen.out.write_text(json.dumps(rows))
    return int(any("wrong" in row for row in rows)) if rows else 3


if __name__ == "__main__":
    raise SystemExit(main())
