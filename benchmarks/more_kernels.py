"""Measure further kernels against torch: products that are the same for every batch, shared along K,
grouped, with weights of few bits; attention of other widths and over latent vectors; top-k of many;
cross entropy of a linear layer. All in turns, in CUDA graphs; errors in the Frobenius norm."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any, Callable, Iterator, Mapping, Sequence

from common import Result, device, example_module, parse_arguments, write
from row_kernels import graph_of, in_turns

from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_report.example import Arrays


def replayed(run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    """Return `calls` calls as a CUDA graph, or one by one where a library does work that no graph can
    hold."""
    try:
        return graph_of(run, calls)
    except RuntimeError as problem:
        print(f"not in a graph: {str(problem).splitlines()[0]}", file=sys.stderr)
        return lambda: [run() for _ in range(calls)]


def seconds(
    contenders: Mapping[str, Callable[[], Any]], calls: int = 5, rounds: int = 5
) -> dict[str, float]:
    """Return medians of one call of each, in rounds in turns."""
    return in_turns(contenders, rounds, calls, replayed)


def error(got: Any, wanted: Any) -> float:
    wanted = wanted.float()
    return float((got.float() - wanted).norm() / wanted.norm())


def rates(
    case: str, unit: str, work: float, ours: Mapping[str, Callable[[], Any]],
    rivals: Mapping[str, Callable[[], Any]], wrong: float,
) -> Result:  # fmt: skip
    """`work` per second, of the best of `ours`, and of the rivals."""
    times = seconds({**{f"ours {name}": run for name, run in ours.items()}, **rivals})
    best = min(ours, key=lambda name: times[f"ours {name}"])
    mine = times[f"ours {best}"]
    return Result(
        f"{case}, {mine * 1e6:.1f} us",
        unit,
        work / mine,
        {name: work / times[name] for name in rivals},
        {name: times[name] / mine for name in rivals},
        {},
        best,
        wrong,
    )


def run_of(example: Any, args: Any, config: Any) -> Callable[[], Any]:
    run: Callable[[], Any] = example.launcher(args, config)
    run()
    run()  # with counters as the first has left them
    return run


def config_text(config: Mapping[str, Any]) -> str:
    names = {"BLOCK_M", "BLOCK_N", "BLOCK_K", "STAGES", "SPLITS", "BLOCK", "CHUNK", "num_warps"}
    return ", ".join(f"{name} {value}" for name, value in config.items() if name in names)


def invariant(target: Target) -> Iterator[Result]:
    import torch

    files, new, side = example_module("matmul_batch_invariant"), Arrays(target), 4096
    a, b = new.random((4096, side), "bfloat16"), new.random((side, side), "bfloat16")
    first = None
    for m, block, shared, warps in (
        (1, (64, 128, 64), True, 4),
        (64, (64, 128, 64), True, 4),
        (256, (64, 128, 64), False, 4),
        (4096, (128, 256, 64), False, 8),
    ):
        config = files.config(32, block, 1024, shared, 3 if block[1] == 256 else 4, warps)
        args = files.arguments(new, True, (m, side, side), block[:2], 1024)
        args.update(a=a[:m], b=b)
        run = run_of(files.EXAMPLES[0], args, config)
        first = args["c"][0].clone() if first is None else first
        same = "the same bits" if bool((args["c"][0] == first).all()) else "OTHER BITS"
        into = torch.empty_like(args["c"])
        rival = {"cuBLAS": lambda into=into, m=m: torch.matmul(a[:m], b, out=into)}
        wrong = error(args["c"], a[:m].float() @ b.float())
        work = 2 * m * side * side / 1e12
        yield rates(
            f"invariant {m}x{side}x{side}, {same}",
            "TFLOP/s",
            work,
            {config_text(config): run},
            rival,
            wrong,
        )


def shared(target: Target) -> Iterator[Result]:
    import torch

    files, plain, new = example_module("matmul_stream_k"), example_module("matmul"), Arrays(target)
    for sizes in ((4096, 4352, 4096), (2048, 2304, 8192), (1024, 1280, 8192)):
        runs = {}
        for block, stages in (((128, 256, 64), 4), ((128, 128, 64), 4)):
            args = files.arguments(new, True, sizes, 132, block[:2])
            config = files.config(32, block, stages, 8)
            runs[config_text(config)] = run_of(files.EXAMPLES[0], args, config)
        a, b, into = args["a"], args["b"], torch.empty_like(args["c"])
        wrong = error(args["c"], a.float() @ b.float())
        values = {name: args[name] for name in ("a", "b", "c", "M", "N", "K")}
        alone = run_of(plain.EXAMPLES[0], values, {**config, "GROUP": 8})
        rivals = {"cuBLAS": lambda a=a, b=b, into=into: torch.matmul(a, b, out=into)}
        rivals["matmul.py"] = alone
        work = 2 * math.prod(sizes) / 1e12
        yield rates(f"stream-K {'x'.join(map(str, sizes))}", "TFLOP/s", work, runs, rivals, wrong)


def batched(target: Target) -> Iterator[Result]:
    import torch

    files, new = example_module("matmul_batched"), Arrays(target)
    for sizes in ((64, 1024, 1024, 1024), (256, 512, 512, 512), (16, 2048, 2048, 2048)):
        args, runs = files.arguments(new, True, sizes), {}
        for block, stages in (((128, 256, 64), 3), ((128, 256, 64), 4), ((128, 128, 64), 4)):
            config = files.config(32, block, stages, 8)
            runs[config_text(config)] = run_of(files.EXAMPLES[0], args, config)
        a, b, into = args["a"], args["b"], torch.empty_like(args["c"])
        wrong = error(args["c"], a.float() @ b.float())
        rival = {"cuBLAS": lambda a=a, b=b, into=into: torch.bmm(a, b, out=into)}
        work = 2 * math.prod(sizes) / 1e12
        yield rates(f"batched {'x'.join(map(str, sizes))}", "TFLOP/s", work, runs, rival, wrong)


def few_bits(target: Target) -> Iterator[Result]:
    import torch

    files, new, side = example_module("matmul_weight_only"), Arrays(target), 8192
    whole = new.random((side, side), "bfloat16")
    for example in (*files.EXAMPLES, *files.MORE):
        whole_args = example.arguments(new, True, (64, side, side), (64, 128), 4)
        for m, blocks in (
            (16, (((16, 128, 64), 4), ((16, 128, 128), 4))),
            (64, (((64, 128, 64), 4), ((64, 128, 64), 2))),
        ):
            args = {**whole_args, "a": whole_args["a"][:m], "c": whole_args["c"][:m], "M": m}
            runs = {}
            for block, splits in blocks:
                config = example.config(32, block, 4, splits, 4)
                runs[config_text(config)] = run_of(example, args, config)
            kind, weights, scales = example.name.split()[-1], args["weights"], args["scales"]
            some = weights[:256].cpu().numpy(), scales[:256].cpu()
            plain = some[1].numpy() if scales.dtype == torch.uint8 else some[1].float().numpy()
            exact = files.restored(some[0], plain, kind, config["GROUP"])
            wanted = args["a"].float() @ torch.from_numpy(exact).to("cuda").bfloat16().float().T
            a, into = args["a"], torch.empty_like(args["c"])
            rival = {"cuBLAS in bf16": lambda a=a, into=into: torch.matmul(a, whole.T, out=into)}
            moved = (weights.numel() + scales.numel() * scales.element_size()) / 1e12
            wrong = error(args["c"][:, :256], wanted)
            yield rates(f"{kind} weights {m}x{side}x{side}", "TB/s", moved, runs, rival, wrong)


def widths(target: Target) -> Iterator[Result]:
    import torch.nn.functional as F

    packed, hooks, new = (
        example_module("attention_varlen_hopper"),
        example_module("attention_score_mod"),
        Arrays(target),
    )
    for depth, width, causal in ((192, 128, True), (256, 256, False), (256, 256, True)):
        example = packed.example("", depth, (None, 0 if causal else None), None, 1, width)
        args = example.arguments(new, True, [4096] * 4, 16)
        config = example.config(32)
        runs = {f"packed, {config_text(config)}": run_of(example, args, config)}
        q, k, v = (args[n].reshape(4, 4096, 16, -1).transpose(1, 2) for n in "qkv")
        heads = [t.reshape(64, 4096, -1).contiguous() for t in (q, k, v)]
        parts = (128, 64) if depth == 192 else (256, 0)
        portable = hooks.example("", parts, width, 1, causal)
        arguments = portable.arguments(new, True, (64, 4096, 4096))
        arguments.update(zip("qkv", heads))
        choice = {"block": (64, 64), "num_warps": 4} if width == 128 else {"block": (128, 64)}
        settings = portable.config(32, **{"num_warps": 8, **choice})
        one_source = run_of(portable, arguments, settings)

        def library(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        wanted = library()
        wrong = error(args["out"].reshape(4, 4096, 16, -1).transpose(1, 2), wanted)
        assert error(arguments["out"].reshape(wanted.shape), wanted) < 1e-2
        rivals = {"SDPA of torch": library, "one source": one_source}
        name = f"attention {depth}/{width}, {'causal' if causal else 'full'}, 4x16x4096"
        yield rates(name, "TFLOP/s", example.flops(args) / 1e12, runs, rivals, wrong)


def latent(target: Target) -> Iterator[Result]:
    import torch

    files, new = example_module("attention_mla"), Arrays(target)
    for batch, length, chunk in ((64, 8192, 2048), (16, 8192, 1024)):
        args = files.arguments(new, True, (batch, 128, 512, 64, 64, length), chunk)
        config = files.config(32, 512, 64, chunk, (64, 64), 2, 8)
        keys = args["cache"][args["table"].long()].reshape(batch, length, 576)
        scale = args["scale"] * math.log(2)

        def run(args: Any = args, config: Any = config, programs: int = 64 // batch) -> Any:
            return files.decode(args, config, programs)

        def composed(args: Any = args, keys: Any = keys, scale: float = scale) -> Any:
            score = torch.bmm(args["q"], keys.transpose(1, 2)) * scale
            return torch.bmm(score.softmax(-1), keys[..., :512])

        exact = torch.einsum("bhd,bld->bhl", args["q"].float(), keys.float()) * scale
        exact = torch.einsum("bhl,bld->bhd", exact.softmax(-1), keys[..., :512].float())
        wrong = error(run(), exact)
        name, work = (
            f"latent decode, {batch} x {length} tokens, 128 heads",
            files.flops(args) / 1e12,
        )
        rival = {"bmm, softmax, bmm": composed}
        yield rates(name, "TFLOP/s", work, {config_text(config): run}, rival, wrong)


def config_of(make: Any, piece: int, warps: int, columns: int, count: int) -> Any:
    """`warps` for rows or their pieces; the largest of the pieces' largest are few."""
    return make(columns, count, warps if columns == piece else None)


def largest(target: Target) -> Iterator[Result]:
    import torch

    files, new = example_module("row_topk_radix"), Arrays(target)
    for shape, pieces, choices in (
        ((32768, 1024), 1, (1, 2, 4)),
        ((8192, 8192), 1, (4, 8, 16)),
        ((4096, 32768), 1, (16, 32)),
        ((1024, 131072), 4, (16, 32)),
    ):
        args, runs = files.arguments(new, True, shape, "bfloat16", 64), {}
        for warps in choices:
            piece = -(-shape[1] // pieces)
            config = functools.partial(config_of, files.config_of(16, 32), piece, warps)
            first = files.between(args, pieces, new) if pieces > 1 else None
            run = functools.partial(files.top_k, args, config, first)
            runs[f"pieces {pieces}, num_warps {warps}"] = run
        values, indices = next(iter(runs.values()))()
        wanted = torch.topk(args["src"], 64, dim=1).values
        assert bool((values == wanted).all())
        assert bool((args["src"].gather(1, indices.long()) == wanted).all())
        rival = {"torch": lambda args=args: torch.topk(args["src"], 64, dim=1)}
        moved = 2 * math.prod(shape) / 1e12
        yield rates(f"top-64 of {shape[0]}x{shape[1]}", "TB/s", moved, runs, rival, 0.0)


def linear(target: Target) -> Iterator[Result]:
    import torch
    import torch.nn.functional as F

    files, new, sizes = (
        example_module("fused_linear_cross_entropy"),
        Arrays(target),
        (8192, 32768, 4096),
    )
    args = files.arguments(new, True, sizes, 256)
    config = files.config(32, (128, 256, 64), 3, 8)
    x, w = (args[name].clone().requires_grad_() for name in "xw")
    factor = torch.rand(sizes[0], device="cuda")

    def library() -> Any:
        return F.cross_entropy((x @ w.T).float(), args["labels"], reduction="none")

    wanted = library()
    (wanted * factor).sum().backward()
    with torch.no_grad():
        loss, logsum = files.forward(args, config, new)
        to_x, to_w = files.backward(args, config, new, logsum, factor)
        wrong = max(error(loss, wanted), error(to_x, x.grad), error(to_w, w.grad))
        work, here = 2 * math.prod(sizes) / 1e12, "linear cross entropy, 8192x32768x4096"
        run = {config_text(config): lambda: files.forward(args, config, new)}
        yield rates(f"{here}, forward", "TFLOP/s", work, run, {"torch": library}, wrong)
        del wanted
        back = {config_text(config): lambda: files.backward(args, config, new, logsum, factor)}
        times = seconds({"cuBLAS": lambda: torch.matmul(x, w.T)}, 2, 3)
        yield rates(
            f"{here}, backward (three products; cuBLAS does one in {times['cuBLAS'] * 1e3:.2f} ms)",
            "TFLOP/s", 3 * work, back, {}, wrong,
        )  # fmt: skip


CASES = (invariant, shared, batched, few_bits, widths, latent, largest, linear)


def results(only: str = "") -> list[Result]:
    import torch

    target, results = device(), []
    for case in CASES:
        if only not in case.__name__:
            continue
        try:
            for result in case(target):
                results.append(result)
                print(result.case, f"{result.ours:.4g} {result.unit}", result.ratios, flush=True)
        except (GluonError, RuntimeError, AssertionError) as problem:
            print(f"{case.__name__}: {type(problem).__name__}: {problem}", flush=True)
        torch.cuda.empty_cache()
    return results


def main(arguments: Sequence[str] = ()) -> int:
    chosen: Any = parse_arguments(__doc__)
    return write(results(chosen.only), chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
