"""Measure kernels without layouts against Triton's own form of them, torch, and explicit kernels.

Each kernel of tests/write/triton_kernels runs as plain Triton and as `gluon port` writes it, with the
same configuration; GEMM, attention, transposes and rows also run against gluon_kernels and torch. All
in one process, in random order, in CUDA graphs.

  python benchmarks/layout_free.py [--only WORD] [--seconds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
Runs = dict[str, Callable[[], Any]]


def imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(file: str, folder: Path) -> tuple[Any, Any]:
    """Return a module of plain Triton, and its port."""
    from gluon_write.port import port

    source = ROOT / "tests" / "write" / "triton_kernels" / f"{file}.py"
    path = folder / f"{file}.py"
    path.write_text(port(source.read_text(), str(source)).text)
    return imported(source, f"plain_{file}"), imported(path, f"ported_{file}")


def rows_cases(folder: Path) -> Any:
    import torch

    plain, ported = both("rows", folder)
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.float16)
    w, y = torch.randn(4096, device="cuda", dtype=torch.float16), torch.empty_like(x)
    rstd = torch.empty(8192, device="cuda")

    def softmax(module: Any) -> Callable[[], Any]:
        return lambda: module.softmax_kernel[(8192,)](
            y, x, 4096, 4096, 4096, BLOCK=4096, num_warps=8
        )

    def rms(module: Any) -> Callable[[], Any]:
        return lambda: module.rms_norm_kernel[(8192,)](
            x, w, y, rstd, 4096, 1e-6, BLOCK=4096, num_warps=8
        )

    def layer(module: Any) -> Callable[[], Any]:
        return lambda: module.layer_norm_kernel[(8192,)](
            x, w, w, y, 4096, 1e-5, BLOCK=1024, num_warps=8
        )

    def swiglu(module: Any) -> Callable[[], Any]:
        return lambda: module.swiglu_kernel[(8192,)](x, x, y, 4096, 4096, BLOCK=4096, num_warps=8)

    def scan(module: Any) -> Callable[[], Any]:
        return lambda: module.linear_scan_kernel[(8192,)](x, x, y, 4096, BLOCK=4096, num_warps=8)

    def quantize(module: Any) -> Callable[[], Any]:
        q = torch.empty(8192, 4096, device="cuda", dtype=torch.int8)
        return lambda: module.quantize_kernel[(8192,)](x, q, rstd, 4096, BLOCK=4096, num_warps=8)

    for make in (softmax, rms, layer, swiglu, quantize, scan):
        yield make.__name__, {"ours": make(ported), "triton": make(plain)}
    yield "softmax, torch", {"ours": softmax(ported), "torch": lambda: torch.softmax(x, 1)}


def product_cases(folder: Path) -> Any:
    import torch

    plain, ported = both("products", folder)
    gemm, gemm_ported = both("matmul", folder)
    x, out = torch.randn(8192, 8192, device="cuda"), torch.empty(8192, 8192, device="cuda")
    written = imported(ROOT / "examples" / "written" / "gemm.py", "written_gemm")

    def transpose(module: Any) -> Callable[[], Any]:
        return lambda: module.transpose_kernel[(128, 128)](x, out, 8192, 8192, B=64, num_warps=8)

    yield "transpose", {"ours": transpose(ported), "triton": transpose(plain)}
    for size in (2048, 4096, 8192):
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
        c = torch.empty_like(a)

        def product(module: Any, a: Any = a, b: Any = b, c: Any = c, size: int = size) -> Any:
            grid = ((size // 128) * (size // 256),)
            return lambda: module.matmul_kernel[grid](
                a, b, c, size, size, size, size, 1, size, 1, size, 1,
                BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, ACTIVATION="", num_warps=8, num_stages=3,
            )  # fmt: skip

        def tiles(a: Any = a, b: Any = b, c: Any = c, size: int = size) -> Any:
            return written.matmul[(size // 128, size // 256)](
                a, b, c, size, size, size, 128, 256, 64, num_warps=8, num_stages=4
            )

        def library(a: Any = a, b: Any = b, c: Any = c) -> Any:
            return torch.matmul(a, b, out=c)

        yield f"gemm {size}, tiles", {"ours": tiles, "triton": product(gemm), "torch": library}
        yield f"gemm {size}, pointers", {"ours": product(gemm_ported), "triton": product(gemm)}
    q, k, v = (torch.randn(64, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    o = torch.empty_like(q)

    def attention(module: Any) -> Callable[[], Any]:
        return lambda: module.attention_kernel[(32, 64)](
            q, k, v, o, 0.125, 4096, HEAD=64, BLOCK_M=128, BLOCK_N=64, CAUSAL=False, num_warps=4
        )

    yield "attention", {"ours": attention(ported), "triton": attention(plain)}


def block_cases(folder: Path) -> Any:
    """Yield kernels with block pointers and with descriptors."""
    import torch

    plain, ported = both("blocks", folder)
    size = 4096
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)

    def product(module: Any) -> Callable[[], Any]:
        return lambda: module.block_matmul_kernel[((size // 128) * (size // 256),)](
            a, b, c, size, size, size, size, 1, size, 1, size, 1, 128, 256, 64, 8,
            num_warps=8, num_stages=3,
        )  # fmt: skip

    yield "gemm, blocks", {"ours": product(ported), "triton": product(plain)}
    q, k, v = (torch.randn(4, 16, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    o, m = torch.empty_like(q), torch.empty(64, 4096, device="cuda")

    def attention(module: Any, stage: int) -> Callable[[], Any]:
        return lambda: module.attention_kernel[(32, 64)](
            q, k, v, 0.125, m, o, *q.stride(), 16, 4096,
            HEAD=64, BLOCK_M=128, BLOCK_N=64, STAGE=stage, num_warps=4,
        )  # fmt: skip

    for stage, word in ((1, "full"), (3, "causal")):
        runs = {"ours": attention(ported, stage), "triton": attention(plain, stage)}
        yield f"attention, blocks, {word}", runs


def graphed(run: Callable[[], Any], repeats: int) -> Any:
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph


def seconds_of(runs: Runs, rounds: int = 7, repeats: int = 10) -> dict[str, float]:
    """Return medians of `rounds`, in random order."""
    import torch

    graphs = {name: graphed(run, repeats) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(rounds + 1):
        random.Random(number).shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 1e3 / repeats)
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="start no case later than this"
    )
    parser.add_argument("--json", help="file for the table")
    asked = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 3
    began, table, failed = time.monotonic(), [], 0
    print("| case | ours | ratio of triton | ratio of torch |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for cases in (rows_cases, product_cases, block_cases):
            for name, runs in cases(Path(folder)):
                if asked.only not in name or time.monotonic() - began > asked.seconds:
                    continue
                try:
                    times = seconds_of(runs)
                except Exception as error:
                    print(
                        f"| {name} | {type(error).__name__}: {str(error)[:200]} | | |", flush=True
                    )
                    failed += 1
                    continue
                ratios = [
                    f"{times[n] / times['ours']:.3f}" if n in times else ""
                    for n in ("triton", "torch")
                ]
                print(
                    f"| {name} | {times['ours'] * 1e6:.1f} us | {' | '.join(ratios)} |", flush=True
                )
                table.append({"case": name, **times})
    if asked.json:
        Path(asked.json).write_text(json.dumps(table))
    return 1 if failed or not table else 0


if __name__ == "__main__":
    raise SystemExit(main())
