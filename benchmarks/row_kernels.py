"""Kernels over rows, against a copy of as many bytes and against torch, at four shapes in bfloat16.

Each shape gets the best of a sweep; then all run in turns, several times within one CUDA graph each,
so that launches hide nothing. `--check` compares every configuration with torch and measures none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from common import Result, device, example_module, write

from gluon_core._triton import VERSION
from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays, Example

SHAPES = ((32768, 1024), (8192, 8192), (4096, 32768), (1024, 131072))
ODD = ((1, 1), (7, 1023), (3, 33333))
WANTED = {"copy": (">=", 0.9)}

# Choices: (elements, warps) of a block; by the longest row, (rows, warps); (warps, depth) of a part;
# (elements, rows, warps) of a step of a running sum; (rows, elements, warps) of sums of columns; by the
# longest row, (rows, warps, programs) of kernels that walk over rows; (blocks of a cluster, warps) of a
# row too long for one block.
BLOCKS = ((1024, 4), (2048, 4), (4096, 8))
WHOLE = {
    1024: ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 8)),
    8192: ((1, 4), (1, 8), (1, 16), (1, 32)),
    65536: ((1, 16), (1, 32)),
}
PARTS = ((4, 4), (8, 2), (8, 4), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4))
STEPS = (
    *((1024, 1, 1), (1024, 2, 1), (1024, 2, 2), (1024, 4, 4), (1024, 8, 4), (1024, 16, 8)),
    *((2048, 1, 2), (2048, 1, 4), (4096, 1, 4), (4096, 1, 8), (4096, 1, 16), (8192, 1, 8)),
    *((8192, 1, 16), (8192, 1, 32), (16384, 1, 32)),
)
SUMS = ((16, 128, 4), (32, 256, 8), (16, 256, 4), (32, 512, 8), (8, 512, 4))
WALKED = {
    1024: tuple((1, w, p) for w in (1, 2) for p in (1056, 2112, 4224)) + ((2, 2, 1056),),
    8192: tuple((1, w, p) for w in (8, 16, 32) for p in (132, 264, 528)),
    65536: ((1, 32, 132),),
}
CLUSTERS = ((4, 16), (4, 32), (8, 8), (8, 16), (16, 4), (16, 8))
SHARED_MEMORY = 227 * 1024 - 2048  # of Hopper, less the need of reductions


@dataclass(frozen=True)
class Case:
    """Describe a measured kernel at each shape.

    Args:
        file: of the examples.
        whole: the index of its example for rows that registers hold, None where there is none.
        walks: the index of its example for rows of any length, None where there is none.
        torch: `f(args) -> result`, the reference for `output` of the examples.
        choices: of `whole`: "rows", "blocks", "steps", "sums", "top" or "walked".
        kept: rows that `walks` keeps parts of.
        tolerance: relative to the largest element.
    """

    name: str
    file: str
    whole: Optional[int]
    walks: Optional[int]
    torch: Callable[[Mapping[str, Any]], Any]
    choices: str = "rows"
    kept: int = 1
    tolerance: float = 8e-3

    def examples(self) -> Sequence[Example]:
        module = example_module(self.file)
        return [*module.EXAMPLES, *getattr(module, "MORE", ())]

    def candidates(self, columns: int) -> list[tuple[int, dict[str, Any]]]:
        """List indices of examples and choices for them."""
        listed = self.of_whole(columns) if self.whole is not None else []
        pairs = [(self.whole, choice) for choice in listed if self.whole is not None]
        if self.walks is not None and (columns > 8192 or self.whole is None):
            for warps, depth in PARTS:
                part = 8 * 32 * warps * depth
                most = min(-(-columns // part), SHARED_MEMORY // (2 * part * self.kept))
                for kept in sorted({1, most // 2, most} - {0} if most else ()):
                    choice = {"num_warps": warps, "depth": depth, "kept": kept}
                    pairs.append((self.walks, choice))
        return [(index, {"columns": columns, **choice}) for index, choice in pairs]

    def of_whole(self, columns: int) -> list[dict[str, Any]]:
        """Choices for `whole`."""
        if self.choices == "blocks":
            return [{"block": b, "num_warps": w} for b, w in BLOCKS]
        if self.choices == "sums":
            return [{"rows": r, "block": b, "num_warps": w} for r, b, w in SUMS]
        if self.choices == "top":
            return [{"num_warps": warps} for warps in (1, 2, 4, 8)]
        if self.choices == "steps":
            names = ("most", "rows", "num_warps")
            fitting = [step for step in STEPS if min(columns, 8192) // 2 <= step[0] <= columns]
            return [dict(zip(names, step)) for step in fitting or STEPS[:2]]
        if columns > 65536:  # older Triton does not reduce across the blocks of a cluster
            able = self.choices == "rows" and VERSION >= (3, 8)
            return [{"rows": 1, "num_warps": w, "num_ctas": c} for c, w in CLUSTERS if able]
        longest = next(most for most in WHOLE if columns <= most)
        if self.choices == "walked":
            return [{"rows": r, "num_warps": w, "programs": p} for r, w, p in WALKED[longest]]
        return [{"rows": r, "num_warps": w} for r, w in WHOLE[longest]]


def softmax(args: Mapping[str, Any]) -> Any:
    return args["src"].softmax(1)


def softmax_backward(args: Mapping[str, Any]) -> Any:
    import torch

    grad = args["grad"]
    return torch.ops.aten._softmax_backward_data(grad, args["result"], 1, grad.dtype)


def cross_entropy(args: Mapping[str, Any]) -> Any:
    import torch.nn.functional as F

    ignored = args["ignored"]
    return F.cross_entropy(
        args["src"].float(), args["labels"], reduction="none", ignore_index=ignored
    )


def cross_entropy_backward(args: Mapping[str, Any]) -> Any:
    import torch

    labels = args["labels"]
    result = (args["src"].float() - args["logsum"][:, None]).exp()
    result[torch.arange(len(labels), device=labels.device), labels] -= 1
    return result * (args["grad"] * (labels != args["ignored"]))[:, None]


def normalized(args: Mapping[str, Any]) -> Any:
    import torch.nn.functional as F

    x, weight = args["src"], args["weight"]
    if args["residual"] is not None:
        x = x + args["residual"]
    if args["bias"] is None:
        return F.rms_norm(x, x.shape[1:], weight, args["epsilon"])
    return F.layer_norm(x, x.shape[1:], weight, args["bias"], args["epsilon"])


def norm_backward(args: Mapping[str, Any]) -> Any:
    grad, x, weight = (args[name].float() for name in ("grad", "x", "weight"))
    scale = args["scale"][:, None]
    normal, g = (x - args["mean"][:, None]) * scale, grad * weight
    along = (g * normal).mean(1, keepdim=True)
    return (g - normal * along - g.mean(1, keepdim=True)) * scale


def quantized(args: Mapping[str, Any]) -> Any:
    x = args["src"].float()
    return (x / (x.abs().amax(1, keepdim=True) * (1 / 448))).to(args["dst"].dtype)


def quantized_blocks(args: Mapping[str, Any]) -> Any:
    x = args["src"].float().unflatten(1, (-1, 128))
    return (x / (x.abs().amax(2, keepdim=True) * (1 / 448))).flatten(1).to(args["dst"].dtype)


def quantized_mx(args: Mapping[str, Any]) -> Any:
    x = args["src"].float().unflatten(1, (-1, 32))
    scale = (x.abs().amax(2, keepdim=True).log2().floor() - 8).exp2()
    return (x / scale).clamp(-448, 448).flatten(1).to(args["dst"].dtype)


def largest(args: Mapping[str, Any]) -> Any:
    return args["src"].topk(args["count"]).values


def running_sum(args: Mapping[str, Any]) -> Any:
    import torch

    return args["src"].cumsum(1, dtype=torch.float32)


def swiglu(args: Mapping[str, Any]) -> Any:
    import torch.nn.functional as F

    return F.silu(args["gate"]) * args["up"]


def swiglu_backward(args: Mapping[str, Any]) -> Any:
    grad, gate, up = (args[name].float() for name in ("grad", "gate", "up"))
    sigmoid = gate.sigmoid()
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid))


def column_sums(args: Mapping[str, Any]) -> Any:
    import torch

    grad, x = args["grad"].float(), args["x"].float()
    product = grad * (x - args["mean"][:, None]) * args["scale"][:, None]
    return torch.stack([part.sum(0) for part in product.split(256)])


CASES = (
    Case("softmax", "row_softmax", 0, 1, softmax),
    Case("softmax backward", "row_softmax", 2, 3, softmax_backward, kept=2, tolerance=2e-2),
    Case("cross entropy", "row_cross_entropy", 0, 1, cross_entropy),
    Case("cross entropy backward", "row_cross_entropy", 2, None, cross_entropy_backward, "blocks"),
    Case("layer norm", "row_norm", 0, 4, normalized, tolerance=2e-2),
    Case("RMS norm", "row_norm", 1, 5, normalized, tolerance=2e-2),
    Case("RMS norm of a sum", "row_norm", 2, 6, normalized, tolerance=2e-2),
    Case("norm backward", "row_norm_backward", 0, 1, norm_backward, "walked", 2),
    Case("sums for the weight", "row_norm_backward", 2, None, column_sums, "sums", tolerance=1e-4),
    Case("quantize to fp8", "row_quantize", 2, 3, quantized, tolerance=1 / 14),
    Case("quantize to fp8 by 128", "row_quantize", 4, None, quantized_blocks, "blocks", 1, 1 / 14),
    Case("quantize to mxfp8", "row_quantize", 5, None, quantized_mx, "blocks", 1, 1 / 14),
    Case("top-8", "row_topk_bitonic", 0, None, largest, "top"),
    Case("running sum", "row_cumsum", 0, None, running_sum, "steps", tolerance=1e-4),
    Case("SwiGLU", "rows", 0, None, swiglu, "blocks"),
    Case("SwiGLU backward", "rows", 1, None, swiglu_backward, "blocks"),
)


def difference(got: Any, wanted: Any) -> float:
    """Return the largest, relative to the largest element."""
    got, wanted = got.float(), wanted.float()
    distance = ((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)).item()
    return float("inf") if distance != distance else float(distance)


def graph_of(run: Callable[[], Any], repeats: int) -> Callable[[], Any]:
    """Replays `repeats` calls."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph.replay


def in_turns(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int = 7,
    repeats: int = 10,
    graph: Callable[[Callable[[], Any], int], Callable[[], Any]] = graph_of,
) -> dict[str, float]:
    """Seconds of one call of each: medians of `rounds`, in turns, of graphs of `repeats` calls."""
    import torch

    graphs = {name: graph(run, repeats) for name, run in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, replay in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 1e3 / repeats)
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


@dataclass
class Attempt:
    """A configuration that gives the right result."""

    example: Example
    args: Mapping[str, Any]
    run: Callable[[], Any]
    error: float


def attempts(case: Case, shape: tuple[int, int], target: Target) -> dict[str, Attempt]:
    """Return by choice the configurations that run and are within tolerance."""
    examples, runs = case.examples(), {}
    arguments: dict[Any, tuple[Mapping[str, Any], Any]] = {}
    for index, choices in case.candidates(shape[1]):
        example, programs = examples[index], choices.pop("programs", None)
        if (index, programs) not in arguments:
            more = {"programs": programs} if programs else {}
            new = example.arguments(Arrays(target), True, shape, **more)
            arguments = {(index, programs): (new, case.torch(new))}
        args, wanted = arguments[index, programs]
        text = ", ".join(f"{k} {v}" for k, v in choices.items() if k != "columns")
        text = f"{'walks, ' if index == case.walks else ''}{text}"
        text += f", programs {programs}" if programs else ""
        if case.choices == "sums":
            del choices["columns"]
        try:
            run = example.launcher(args, example.configure(target, True, **choices))
            args[example.output].fill_(float("nan"))
            run()
            error = difference(args[example.output], wanted)
        except (GluonError, RuntimeError, ValueError) as problem:
            print(f"{case.name} {shape} {text}: {str(problem).splitlines()[0]}", file=sys.stderr)
            continue
        if error <= case.tolerance:
            runs[text] = Attempt(example, args, run, error)
        else:
            print(f"WRONG {case.name} {shape} {text}: {error}", flush=True)
    return runs


def measure(case: Case, shape: tuple[int, int], target: Target) -> Optional[Result]:
    import torch

    runs = attempts(case, shape, target)
    if not runs:
        return None
    seconds = in_turns({text: attempt.run for text, attempt in runs.items()}, 3, 5)
    best = min(seconds, key=lambda text: seconds[text])
    chosen = runs[best]
    assert chosen.example.bytes_moved is not None
    moved = chosen.example.bytes_moved(chosen.args)
    for text, time in seconds.items():
        print(f"{case.name} {shape} {text}: {moved / time / 1e12:.2f} TB/s", file=sys.stderr)
    source = torch.empty(moved // 8, dtype=torch.float32, device="cuda")
    into = torch.empty_like(source)
    contenders = {
        "ours": chosen.run,
        "copy": lambda: into.copy_(source),
        "copy by a kernel": lambda: torch.neg(source, out=into),
        "torch": lambda: case.torch(chosen.args),
    }
    rate = {name: moved / time / 1e12 for name, time in in_turns(contenders).items()}
    rate["copy"] = max(rate["copy"], rate.pop("copy by a kernel"))
    ours = rate.pop("ours")
    ratios = {name: ours / other for name, other in rate.items()}
    name = f"{case.name} {shape[0]}x{shape[1]}"
    return Result(name, "TB/s", ours, rate, ratios, WANTED, best, chosen.error)


def results(only: str = "", columns: int = 0) -> list[Result]:
    import torch

    target, results = device(), []
    shapes = [shape for shape in SHAPES if columns in (0, shape[1])]
    for case in CASES:
        for shape in shapes if only in case.name else ():
            line = measure(case, shape, target) if case.candidates(shape[1]) else None
            if line is not None:
                results.append(line)
            torch.cuda.empty_cache()
    return results


def check(only: str) -> int:
    """Return the number of cases without a configuration within tolerance at some shape."""
    import torch

    target, missing = device(), 0
    for case in CASES:
        for shape in (*ODD, *SHAPES) if only in case.name else ():
            if case.candidates(shape[1]):
                right = len(attempts(case, shape, target))
                print(f"{case.name} {shape}: {right} right", flush=True)
                missing += not right
                torch.cuda.empty_cache()
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--columns", type=int, default=0, help="shapes with rows so long")
    parser.add_argument("--check", action="store_true", help="compare with torch, measure nothing")
    chosen = parser.parse_args()
    if chosen.check:
        return 1 if check(chosen.only) else 0
    return write(results(chosen.only, chosen.columns), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
