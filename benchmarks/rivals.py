"""Measure Hopper's kernels against the libraries that one would pick instead: cuBLAS, cuDNN, and those
in CuTe DSL, QuACK (`quack-kernels`) and FlashAttention (`flash-attn-4`). All in one process, in random
order.

GEMMs and norms get the best configuration of ours and of QuACK's for each shape. Calls below 100 us are
measured in CUDA graphs.

  python benchmarks/rivals.py [--only launches|products|forward|backward|rows]
"""

import math
import random
import statistics
import sys
from typing import Any, Callable, Mapping, Optional

import row_kernels
from attention_backward import SHAPE as HEADS
from common import Result, device, difference, example_module, parse_arguments, write

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import VERSION
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays, Example

PRODUCTS = (
    *((8192, 8192, k) for k in (512, 1024, 2048, 4096, 8192, 16384)),
    (4096, 4096, 4096),
    (2048, 2048, 8192),
)
Runs = dict[str, Callable[[], Any]]


def timed(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of one of `repeats` calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / repeats


def in_any_order(runs: Mapping[str, Callable[[], Any]], rounds: int, repeats: int) -> Any:
    """Return medians of `rounds`. The first call after a pause runs on a cool chip: the order is drawn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(order)
        for name in order:
            times[name].append(timed(runs[name], repeats))
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def fastest(runs: Mapping[str, Callable[[], Any]]) -> str:
    seconds = in_any_order(runs, 3, 5)
    return min(seconds, key=lambda name: seconds[name])


def attempted(what: str, run: Callable[[], Any], error: Callable[[], float]) -> Optional[float]:
    """Return the error of a run within tolerance; else None, and print the reason."""
    import torch

    try:
        run()
        torch.cuda.synchronize()
        distance = error()
    except Exception as problem:
        print(f"{what}: {type(problem).__name__}: {str(problem)[:200]}", file=sys.stderr)
        return None
    if distance < 2e-2:
        return distance
    print(f"{what}: wrong, by {distance}", file=sys.stderr)
    return None


def line(case: str, work: float, seconds: Mapping[str, float], wanted: Any, **more: Any) -> Result:
    """`seconds` of "ours" and of rivals, as rates of `work`."""
    unit = more.pop("unit", "TFLOP/s")
    rate = {who: work / s / 1e12 for who, s in seconds.items()}
    ours = rate.pop("ours")
    ratios = {who: ours / other for who, other in rate.items()}
    return Result(
        case, unit, ours, rate, ratios, {w: b for w, b in wanted.items() if w in rate}, **more
    )


def quack_products(a: Any, b: Any, into: Any) -> Runs:
    """Return QuACK's runs by configuration: those of its own search for Hopper, without the transposed
    ones."""
    from quack.gemm_config import get_all_configs
    from quack.gemm_interface import gemm_tuned

    runs: Runs = {}
    for c in get_all_configs():
        if c.device_capacity == 9 and not c.swap_ab and c.split_k == 1:
            kind = "in turns" if c.pingpong else "together"
            name = f"{c.tile_m}x{c.tile_n} {kind}, cluster {c.cluster_m}x{c.cluster_n}"
            runs[name] = lambda c=c: gemm_tuned.fn(a, b, into, config=c)
    return runs


def our_products(args: Any, target: Target) -> Runs:
    runs: Runs = {}
    for name, example, choice in our_choices():
        config = example.configure(target, True, **choice)
        runs[name] = example.launcher(args, config)
    return runs


def our_choices() -> list[tuple[str, Example, dict[str, Any]]]:
    """Tiles, slots, and groups of rows in the order of tiles; clusters of two where Triton has them."""
    plain = example_module("matmul_cooperative_hopper").EXAMPLES[0]
    (turns,) = example_module("matmul_pingpong_hopper").EXAMPLES
    results = [(f"128x256 together, order {g}", plain, {"group": g}) for g in (8, 16)]
    tiles = ((128, 192, 64, 4), (128, 192, 32, 8), (128, 128, 64, 6), (64, 256, 64, 5))
    for m, n, k, stages in tiles:
        for ctas in (1, 2) if VERSION >= (3, 8) else (1,):
            for group in (8, 16):
                choice = {"block": (m, n, k), "stages": stages, "group": group, "ctas": ctas}
                pairs = ", pairs" if ctas > 1 else ""
                results.append((f"{m}x{n}x{k} in turns{pairs}, order {group}", turns, choice))
    return results


def product(shape: tuple[int, int, int], target: Target) -> Result:
    import torch

    plain = example_module("matmul_cooperative_hopper").EXAMPLES[0]
    args = plain.arguments(Arrays(target), True, shape)
    a, b, into = args["a"], args["b"], torch.empty_like(args["c"])
    wanted = a.float() @ b.float()

    def right(kind: str, runs: Runs, result: Any) -> dict[str, float]:
        errors = {}
        for name, run in runs.items():
            result.fill_(float("nan"))
            error = attempted(f"{kind} {name}", run, lambda: difference(result, wanted))
            if error is not None:
                errors[name] = error
        return errors

    ours = our_products(args, target)
    errors = right("ours", ours, args["c"])
    best = config = fastest({name: ours[name] for name in errors})
    runs: Runs = {"ours": ours[best], "cuBLAS": lambda: torch.matmul(a, b, out=into)}
    try:
        theirs = quack_products(a, b, into)
        able = right("QuACK", theirs, into)
        chosen = fastest({name: theirs[name] for name in able})
        runs["QuACK"], config = theirs[chosen], f"{best}; QuACK {chosen}"
    except ImportError as problem:
        print(problem, file=sys.stderr)
    seconds = in_any_order(runs, 21, 10)
    name = f"product {'x'.join(map(str, shape))}"
    bounds = {who: (">=", 0.98) for who in runs}
    flops = 2 * shape[0] * shape[1] * shape[2]
    return line(name, flops, seconds, bounds, config=config, error=errors[best])


def products(target: Target) -> list[Result]:
    results = [product(shape, target) for shape in PRODUCTS]
    mean = statistics.geometric_mean
    rates = {who: mean(one.rivals[who] for one in results) for who in results[0].rivals}
    better = mean(one.ours / max(one.rivals.values()) for one in results)
    ours, wanted = mean(one.ours for one in results), {"the better": (">=", 1.03)}
    name = "product, geometric mean"
    return [*results, Result(name, "TFLOP/s", ours, rates, {"the better": better}, wanted)]


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """torch's, by cuDNN."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def forward_of(example: Example, target: Target) -> Result:
    args = example.arguments(Arrays(target), True)
    config = example.configure(target, True)
    causal, depth = bool(config["CAUSAL"]), args["q"].shape[-1]
    q, k, v = (args[name].reshape(*HEADS[:2], -1, depth) for name in "qkv")
    wanted = attention(q, k, v, causal).reshape(args["out"].shape).float()
    ours = example.launcher(args, config)
    args["out"].fill_(float("nan"))
    error = attempted("ours", ours, lambda: difference(args["out"], wanted))
    runs: Runs = {"ours": ours, "cuDNN": lambda: attention(q, k, v, causal)}
    theirs = flash(q, k, v, causal)
    if theirs is not None:
        runs["FlashAttention"] = theirs
    flops = 4 * HEADS[0] * HEADS[1] * q.shape[2] ** 2 * depth / (2 if causal else 1)
    seconds = in_any_order(runs, 25, 4)
    bounds = {"FlashAttention": (">=", 1.0), "cuDNN": (">=", 1.1)}
    name = f"attention, {'causal' if causal else 'full'}, head {depth}"
    return line(name, flops, seconds, bounds, error=error)


def forward(target: Target) -> list[Result]:
    return [forward_of(e, target) for e in example_module("attention_hopper").EXAMPLES]


def flash(q: Any, k: Any, v: Any, causal: bool) -> Optional[Callable[[], Any]]:
    """FlashAttention's, with its layout [batch, rows, heads, depth]; None where it is not installed or does
    not run."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError as problem:
        print(problem, file=sys.stderr)
        return None
    transposed_leaves = [
        t.transpose(1, 2).contiguous().requires_grad_(t.requires_grad) for t in (q, k, v)
    ]

    def run() -> Any:
        result = flash_attn_func(*transposed_leaves, causal=causal)
        return result[0] if isinstance(result, tuple) else result

    run.leaves = transposed_leaves  # type: ignore[attr-defined]
    return run if attempted("FlashAttention", run, lambda: 0.0) is not None else None


def gradients(depth: int, causal: bool) -> Result:
    import torch

    adding = example_module("attention_backward_atomic_hopper")
    q, k, v, grad = (
        torch.randn(*HEADS, depth, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
    flat = {"q": q, "k": k, "v": v, "grad": grad, "out": out.contiguous()}
    arguments = {name: t.flatten(0, 1) for name, t in flat.items()}
    arguments["logsums"] = (sums.flatten(0, 1) / math.log(2)).float().contiguous()
    names = ("for_queries", "for_keys", "for_values")
    gradients = {name: torch.full_like(arguments["q"], float("nan")) for name in names}
    room = adding.kept(arguments["q"].shape).items()
    arguments |= {**gradients, **{name: torch.empty(shape, device="cuda") for name, shape in room}}

    def of(forward: Callable[[], Any], leaves: Any, grad: Any) -> Callable[[], Any]:
        result = forward()
        return lambda: torch.autograd.grad(result, leaves, grad, retain_graph=True)

    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    runs: Runs = {
        "ours": lambda: adding.launch(arguments, causal),
        "cuDNN": of(lambda: attention(*leaves, causal), leaves, grad),
    }
    wanted = [t.flatten(0, 1).float() for t in runs["cuDNN"]()]
    error = attempted(
        "ours",
        runs["ours"],
        lambda: max(difference(gradients[n], w) for n, w in zip(names, wanted)),
    )
    theirs = flash(*leaves, causal)
    if theirs is not None:
        back = of(theirs, theirs.leaves, grad.transpose(1, 2).contiguous())  # type: ignore[attr-defined]
        if attempted("FlashAttention's gradients", back, lambda: 0.0) is not None:
            runs["FlashAttention"] = back
    flops = 10 * HEADS[0] * HEADS[1] * HEADS[2] ** 2 * depth / (2 if causal else 1)
    seconds = in_any_order(runs, 15, 2)
    bounds = {"FlashAttention": (">=", 0.97), "cuDNN": (">=", 1.05)}
    name = f"gradients, {'causal' if causal else 'full'}, head {depth}"
    return line(name, flops, seconds, bounds, error=error)


def backward(target: Target) -> list[Result]:
    return [gradients(depth, causal) for depth in (64, 128) for causal in (False, True)]


QUACK_ROWS = ("softmax", "RMS norm", "cross entropy", "top-8")


def quack_row(name: str, args: Mapping[str, Any]) -> Callable[[], Any]:
    """QuACK's form of a case of `row_kernels.py`, of `QUACK_ROWS`."""
    x = args["src"]
    if name == "softmax":
        from quack.softmax import softmax_fwd

        return lambda: softmax_fwd(x)
    if name == "RMS norm":
        from quack.rmsnorm import rmsnorm_fwd

        return lambda: rmsnorm_fwd(x, args["weight"], eps=args["epsilon"])
    if name == "cross entropy":
        from quack.cross_entropy import cross_entropy_fwd

        labels = args["labels"].long()
        return lambda: cross_entropy_fwd(x, labels, ignore_index=args["ignored"])
    from quack.topk import topk_fwd

    return lambda: topk_fwd(x, 8)


def row(case: row_kernels.Case, shape: tuple[int, int], target: Target) -> Optional[Result]:
    import torch

    able = row_kernels.attempts(case, shape, target) if case.candidates(shape[1]) else {}
    if not able:
        return None
    best = fastest({text: attempt.run for text, attempt in able.items()})
    chosen = able[best]
    assert chosen.example.bytes_moved is not None
    moved = chosen.example.bytes_moved(chosen.args)
    source = torch.empty(moved // 8, dtype=torch.float32, device="cuda")
    into = torch.empty_like(source)
    runs: Runs = {"ours": chosen.run, "copy": lambda: into.copy_(source)}
    name = f"{case.name} {shape[0]}x{shape[1]}"
    try:
        theirs = quack_row(case.name, chosen.args)
        if attempted(f"QuACK {name}", theirs, lambda: 0.0) is not None:
            runs["QuACK"] = theirs
    except ImportError as problem:
        print(problem, file=sys.stderr)
    seconds = row_kernels.in_turns(runs)
    bounds = {"QuACK": (">=", 1.0), "copy": (">=", 0.9)}
    return line(name, moved, seconds, bounds, unit="TB/s", config=best, error=chosen.error)


def rows(target: Target) -> list[Result]:
    listed = [case for case in row_kernels.CASES if case.name in QUACK_ROWS]
    rows = (row(case, shape, target) for case in listed for shape in row_kernels.SHAPES)
    return [one for one in rows if one is not None]


@gluon.jit
def nothing(a, b, c, n, BLOCK: gl.constexpr):
    pass


def launches(target: Target) -> list[Result]:
    """Microseconds until the call of an empty kernel returns; CuTe DSL's with arguments through tvm-ffi."""
    import time

    import torch

    tensors = [torch.empty(1024, device="cuda") for _ in range(3)]
    prepared = nothing.prepare(*tensors, 1024, 64, num_warps=4, grid=(1,))
    runs: Runs = {
        "kernel[grid]": lambda: nothing[(1,)](*tensors, 1024, 64, num_warps=4),
        "prepared": lambda: prepared(*tensors, 1024),
    }
    try:
        runs["CuTe DSL"] = cute_launch(tensors)
    except ImportError as problem:
        print(problem, file=sys.stderr)
        return []
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(12):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(1000):
                run()
            if turn > 1:
                times[name].append((time.perf_counter() - start) / 1000)
            torch.cuda.synchronize()
    rate = {name: statistics.median(samples) * 1e6 for name, samples in times.items()}
    theirs = rate.pop("CuTe DSL")
    bound = {"CuTe DSL": ("<=", 1.05)}
    return [
        Result(
            f"a launch, {name}",
            "us",
            ours,
            {"CuTe DSL": theirs},
            {"CuTe DSL": ours / theirs},
            bound,
        )
        for name, ours in rate.items()
    ]


def cute_launch(arguments: Any) -> Callable[[], Any]:
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    @cute.kernel
    def empty(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: cutlass.Int32) -> None:
        pass

    @cute.jit
    def host(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: cutlass.Int32) -> None:
        empty(x, y, z, n).launch(grid=[1, 1, 1], block=[128, 1, 1])

    tensors = [from_dlpack(t, enable_tvm_ffi=True) for t in arguments]
    compiled = cute.compile(host, *tensors, cutlass.Int32(1024), options="--enable-tvm-ffi")
    return lambda: compiled(*arguments, 1024)


PARTS = {
    "launches": launches,
    "products": products,
    "forward": forward,
    "backward": backward,
    "rows": rows,
}


def main() -> int:
    chosen, target = parse_arguments(__doc__), device()
    results: list[Result] = []
    for name, run in PARTS.items():
        if chosen.only in name:
            results += run(target)
    return write(results, chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
