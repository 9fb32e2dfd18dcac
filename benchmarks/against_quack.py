"""Kernels over rows against QuACK, forward and with gradients, in one process and in random order.

    python benchmarks/against_quack.py --seed 1 --jobs 15 [--limit 40] [--widths 131072 50304] [--ops rms_norm]
    python benchmarks/against_quack.py --shapes 1024x131072 16384x8192 [--compiled]

QuACK compiles for each width at the first call, which takes seconds, so a few widths have three numbers of rows each; `--jobs` processes
compile in advance, and `--compiled` leaves out what the cache of QuACK on disk does not have. The ratio is the time of QuACK over ours: in
CUDA graphs, eager, and of the host alone. Its top-k takes widths up to 4096 and `k` up to 128, powers of two.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import Any, Callable, Iterator, Sequence

import sweep
import torch
from ratios import geometric, ratio

import gluon_kernels as ours

try:
    from quack.cross_entropy import cross_entropy, cross_entropy_fwd
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm, rmsnorm_fwd
    from quack.softmax import softmax, softmax_fwd
    from quack.topk import topk_fwd
except ImportError as error:
    print(f"QuACK cannot be imported, so nothing was raced: {error}")
    raise SystemExit(3) from None

OPS = ("softmax", "rms_norm", "layer_norm", "cross_entropy", "topk")
WIDTHS = (131072, 50304, 32768, 12288, 8192, 5120, 4096, 1344, 640, 256)
SHORT = (256, 512, 1024, 4096)  # of top-k
ELEMENTS = 2**27
COMPILING = 0.5  # of the limit that compilation in advance may take
Call = Callable[[], Any]
RANDOM = torch.Generator(
    "cuda" if torch.cuda.is_available() else "cpu"
)  # that of the device stays with a graph whose capture fails


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=RANDOM)


def shapes(seed: int, ops: Sequence[str], widths: Sequence[int]) -> list[tuple[str, int, int, int]]:  # fmt: skip
    """Return `(op, rows, columns, k)` of all cases."""
    draw = random.Random(seed)
    cases = []
    for op in ops:
        for columns in widths if op != "topk" else ():
            most = min(ELEMENTS // columns, 2**17)
            cases += [(op, int(2 ** draw.uniform(6, most.bit_length())), columns, 0) for _ in "abc"]
    for columns in SHORT if "topk" in ops else ():
        for k in (8, 32, 128):
            cases += [("topk", int(2 ** draw.uniform(8, 17)), columns, k) for _ in "ab"]
    return cases


def with_gradient(call: Call, leaves: tuple[torch.Tensor, ...], grad: torch.Tensor) -> Call:
    return lambda: torch.autograd.grad(call(), leaves, grad)


def calls(op: str, rows: int, columns: int, k: int) -> Iterator[tuple[str, Call, Call]]:
    """Return `(way, our call, QuACK's call)`."""
    RANDOM.manual_seed(rows)
    x = normal(rows, columns).bfloat16()
    leaf, grad = x.clone().requires_grad_(), normal(rows, columns).bfloat16()
    w = normal(columns).bfloat16()
    labels = torch.randint(0, columns, (rows,), device="cuda", generator=RANDOM)
    if op == "softmax":
        yield "forward", lambda: ours.softmax(x), lambda: softmax_fwd(x)
        both = lambda: ours.softmax(leaf), lambda: softmax(leaf)  # noqa: E731
        yield "with gradients", *(with_gradient(call, (leaf,), grad) for call in both)
    elif op == "rms_norm":
        yield "forward", lambda: ours.rms_norm(x, w), lambda: rmsnorm_fwd(x, w)[0]
        weight = w.clone().requires_grad_()
        both = lambda: ours.rms_norm(leaf, weight), lambda: rmsnorm(leaf, weight)  # noqa: E731
        yield "with gradients", *(with_gradient(call, (leaf, weight), grad) for call in both)
    elif op == "layer_norm":
        w, b = normal(columns), normal(columns)
        yield "forward", lambda: ours.layer_norm(x, w, b), lambda: layernorm_fwd(x, w, b, 1e-5)
        weight, bias = w.clone().requires_grad_(), b.clone().requires_grad_()
        call = with_gradient(
            lambda: ours.layer_norm(leaf, weight, bias), (leaf, weight, bias), grad
        )

        def theirs() -> Any:
            y, scale, mean = layernorm_fwd(x, w, b, 1e-5, return_rstd=True, return_mean=True)
            return layernorm_bwd(x, w, grad, scale, mean)

        yield "with gradients", call, theirs
    elif op == "cross_entropy":
        yield (
            "forward",
            lambda: ours.cross_entropy(x, labels, reduction="none"),
            lambda: cross_entropy_fwd(x, labels),
        )
        both = (
            lambda: ours.cross_entropy(leaf, labels, reduction="none"),
            lambda: cross_entropy(leaf, labels, reduction="none"),
        )
        of_rows = normal(rows)
        yield "with gradients", *(with_gradient(call, (leaf,), of_rows) for call in both)
    else:
        yield "forward", lambda: ours.topk(x, k).values, lambda: topk_fwd(x, k)[0]


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [r for r in result if r is not None]


def raced(case: tuple[str, int, int, int]) -> Iterator[dict[str, Any]]:
    for way, mine, theirs in calls(*case):
        row: dict[str, Any] = {"case": case, "way": way}
        pairs = zip(tensors(mine()), tensors(theirs()))
        row["apart"] = max(sweep.error_of(one, other.float()) for one, other in pairs)
        both = {"ours": mine, "quack": theirs}
        about = {name: sweep.rough(call) for name, call in both.items()}
        loops = {name: sweep.eager(call, about[name]) for name, call in both.items()}
        row["eager"] = sweep.medians(loops)
        loops = {name: sweep.host(call, about[name]) for name, call in both.items()}
        row["host"] = sweep.medians(loops)
        graphs = {}
        for name, call in both.items():
            try:
                graphs[name] = sweep.graphed(call, row["eager"][name])
            except Exception as error:
                torch.cuda.synchronize()
                row["refused"] = f"{name} in a graph: {type(error).__name__}"
        row["graph"] = sweep.medians(graphs)
        yield row


def summary(rows: list[dict[str, Any]]) -> None:
    print(
        "\n| op | way | shapes | graph: mean, 5th, worst | eager | host | worst shape in a graph |"
    )
    print("| --- | --- | ---: | --- | --- | --- | --- |")
    for op, way in dict.fromkeys((row["case"][0], row["way"]) for row in rows):
        own = [row for row in rows if (row["case"][0], row["way"]) == (op, way)]
        cells = []
        for kind in ("graph", "eager", "host"):
            known = [ratio(row, kind) for row in own]
            ratios = sorted(one for one in known if one is not None)
            if not ratios:
                cells.append("-")
                continue
            fifth = ratios[int(0.05 * (len(ratios) - 1))]
            cells.append(f"{geometric(ratios):.3f}, {fifth:.3f}, {ratios[0]:.3f}")
        worst = min(own, key=lambda row: ratio(row, "graph") or 9)["case"]
        shape = f"{worst[1]}x{worst[2]}" + (f", k={worst[3]}" if worst[3] else "")
        print(f"| {op} | {way} | {len(own)} | {' | '.join(cells)} | {shape} |")


def ahead(number: int, end: float) -> None:
    """Compile in so many processes, until they are done or the time is over."""
    base = [sys.executable, *sys.argv]
    jobs = [subprocess.Popen([*base, "--warm", f"{i}/{number}"]) for i in range(number)]
    for job in jobs:
        try:
            job.wait(max(1.0, end - time.time()))
        except subprocess.TimeoutExpired:
            job.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", nargs="+", default=OPS, choices=OPS)
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--shapes", nargs="+", metavar="ROWSxCOLUMNS", help="instead of drawn ones")
    parser.add_argument("--compiled", action="store_true", help="only what QuACK has in its cache")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds, compilation included")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cases, started = shapes(chosen.seed, chosen.ops, chosen.widths), time.time()
    if chosen.shapes:
        sizes = [tuple(map(int, text.split("x"))) for text in chosen.shapes]
        cases = [(op, rows, columns, 0) for op in chosen.ops for rows, columns in sizes]
    if chosen.compiled:
        sweep.compiled_only()
    if chosen.warm:
        number, parts = map(int, chosen.warm.split("/"))
        kinds = list(dict.fromkeys((op, columns, k) for op, _, columns, k in cases))
        own = set(kinds[number::parts])
        for case in cases:
            if (case[0], *case[2:]) in own:
                try:
                    for _, mine, theirs in calls(*case):
                        mine(), theirs()
                except Exception as error:
                    print(f"{case}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return 0
    if chosen.jobs:
        ahead(chosen.jobs, started + COMPILING * chosen.limit)
        print(f"compiled in {time.time() - started:.0f} s", flush=True)
    print(f"seed {chosen.seed}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    random.Random(chosen.seed).shuffle(cases)
    rows, failed = [], 0
    for case in cases:
        if time.time() - started > chosen.limit:
            print("ended early")
            break
        try:
            for row in raced(case):
                rows.append(row)
                ratios = [ratio(row, kind) for kind in ("graph", "eager", "host")]
                cells = ["-" if one is None else f"{one:.3f}" for one in ratios]
                times = {name: round(t * 1e6, 1) for name, t in row["graph"].items()}
                print(
                    *case,
                    row["way"],
                    times,
                    *cells,
                    f"apart {row['apart']:.2g}",
                    row.get("refused", ""),
                    flush=True,
                )
        except Exception as error:
            failed += 1
            print(f"{case}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    if rows:
        summary(rows)
    print(f"{len(rows)} races, {failed} shapes failed")
    return 0 if rows and not failed else 3


if __name__ == "__main__":
    raise SystemExit(main())
