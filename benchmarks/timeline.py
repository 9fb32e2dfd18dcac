"""Time inside kernels on an NVIDIA GPU: the cost of recording, the machine's latencies and rates, and kernel times.

    python benchmarks/timeline.py --to FOLDER

prints tables and writes `facts.json`, and the recorded timelines of the Hopper attention and GEMM kernels. The machine's
facts are read from recorded scopes around one instruction or a chain of them: latencies of chains and rates are
differences of two lengths; the others contain the cost of the scope.
`--dry` runs what a CPU can: the same kernels on the emulator, whose times say nothing.
"""

# ruff: noqa: B023 -- each closure is called within its round

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

import gluon_core as gluon  # noqa: E402
from gluon_core import language as gl  # noqa: E402
from gluon_core.errors import GluonError  # noqa: E402
from gluon_core.language.nvidia.hopper import (  # noqa: E402
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor  # noqa: E402
from gluon_core.timeline import record  # noqa: E402

ROUNDS = 32


@gluon.jit
def empty_scopes(out, rounds):
    for _ in range(rounds):
        with gl.scope("empty"):
            pass
        with gl.scope("barrier"):
            gl.barrier()
    gl.store(out, rounds)


@gluon.jit
def products(out, rounds, N: gl.constexpr, K: gl.constexpr):
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, K], gl.bfloat16)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([K, N], gl.bfloat16)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    a = gl.allocate_shared_memory(gl.bfloat16, [64, K], a_layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [K, N], b_layout)
    acc = gl.zeros([64, N], gl.float32, layout)
    for _ in range(rounds):
        with gl.scope("product"):
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, N, layout=gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * N + columns[None, :], acc)


@gluon.jit
def boxes(descriptor, out, rounds, apart, DEEP: gl.constexpr):
    """Copy DEEP boxes at a time and wait for them."""
    shape: gl.constexpr = descriptor.block_type.shape
    buffers = gl.allocate_shared_memory(descriptor.dtype, [DEEP] + shape, descriptor.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    for i in range(rounds):
        with gl.scope("boxes"):
            mbarrier.expect(ready, DEEP * descriptor.block_type.nbytes)
            for j in gl.static_range(DEEP):
                at = ((gl.program_id(0) * rounds + i) * DEEP + j) * shape[0] * apart
                tma.async_copy_global_to_shared(descriptor, [at, 0], ready, buffers.index(j))
            mbarrier.wait(ready, i & 1)
    mbarrier.invalidate(ready)
    gl.store(out, rounds)


@gluon.jit
def chains(out, rounds, KIND: gl.constexpr, LENGTH: gl.constexpr, layout: gl.constexpr):
    """One float32 of each thread through LENGTH dependent operations a round."""
    i = gl.arange(0, 128, layout=layout)
    x = gl.load(out + i)
    for _ in range(rounds):
        with gl.scope(KIND):
            for _ in gl.static_range(LENGTH):
                if KIND == "fma":
                    x = x * 1.0001 + 0.5
                elif KIND == "exp2":
                    x = gl.exp2(x)
                else:
                    x = gl.load(out + (x.to(gl.int32) & 127))
    gl.store(out + i, x)


class Device:
    """Arrays on the GPU, or of NumPy for a dry run."""

    def __init__(self, dry: bool):
        self.dry = dry

    def zeros(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        if self.dry:
            import ml_dtypes

            return np.zeros(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")


def median_span(launch: Callable[[], Any], scope: str) -> float:
    """Return nanoseconds: the median passage of all warps, the first quarter of each warp's left out."""
    launch()
    with record(events=2048) as timeline:
        launch()
    spans: dict[tuple[int, int], list[float]] = {}
    for span in timeline.launches[0].spans:
        if span.scope == scope:
            spans.setdefault((span.block, span.warp), []).append(span.end - span.begin)
    return statistics.median(t for times in spans.values() for t in times[len(times) // 4 :])


def machine(device: Device) -> dict[str, float]:
    """Return the facts of the machine, in nanoseconds unless the name says another unit."""
    rounds = 4 if device.dry else ROUNDS
    out = device.zeros((128,))
    layout = gl.BlockedLayout([1], [32], [4], [0])
    facts = {"scope.empty": median_span(lambda: empty_scopes[(1,)](out, rounds), "empty")}
    for kind, short, long in (("fma", 32, 96), ("exp2", 32, 96), ("load", 8, 24)):
        one, more = (
            median_span(lambda: chains[(1,)](out, rounds, kind, length, layout), kind)
            for length in (short, long)
        )
        facts[f"{kind}.latency"] = (more - one) / (long - short)
    for n in (64, 128, 256):
        result = device.zeros((64, n))
        one, four = (
            median_span(lambda: products[(1,)](result, rounds, n, k), "product")
            for k in (64, 256 if n < 256 else 128)
        )
        more = (256 if n < 256 else 128) // 64 - 1
        facts[f"wgmma.64x{n}x64.latency"] = one
        facts[f"wgmma.64x{n}x16.issue"] = (four - one) / more / 4
    for rows in (16, 64, 128):
        for blocks, deep, kind in ((1, 1, "latency"), (132, 4 if rows > 64 else 8, "bandwidth")):
            if device.dry and blocks > 1:
                blocks = 2
            count = blocks * rounds * deep * rows
            source = device.zeros((count, 64), "bfloat16")
            shared = gl.NVMMASharedLayout.get_default_for([rows, 64], gl.bfloat16)
            descriptor = TensorDescriptor.from_tensor(source, [rows, 64], shared)
            taken = median_span(
                lambda: boxes[(blocks,)](descriptor, out, rounds, 1, deep, num_warps=4),
                "boxes",
            )
            if kind == "latency":
                facts[f"tma.{rows}x64.latency"] = taken
            else:
                facts[f"tma.{rows}x64.bytes_per_ns_of_{blocks}_blocks"] = (
                    blocks * deep * rows * 128 / (taken)
                )
    return facts


def kernels() -> dict[str, tuple[Any, list[Any], str]]:
    """Return name -> (example, sizes, their axis)."""
    from common import example_module

    def first(module: str) -> Any:
        return example_module(module).EXAMPLES[0]

    return {
        "GEMM": (
            first("matmul_cooperative_hopper"),
            [(8192, 8192, k) for k in (512, 1024, 2048, 4096, 8192)],
            "K",
        ),
        "attention": (
            first("attention_hopper"),
            [(32, n, 64) for n in (512, 1024, 2048, 4096, 8192)],
            "length",
        ),
        "softmax": (first("softmax"), [], ""),
        "copy": (first("memcpy_1d"), [], ""),
    }


def measured() -> list[dict[str, Any]]:
    """Return seconds of each kernel and size: plain, recorded, recorded with automatic scopes; and the timelines."""
    from common import device as gpu
    from common import in_turns

    from gluon_report.example import Arrays, measure

    target = gpu()
    lines = []
    for name, (example, sizes, _) in kernels().items():
        for size in sizes or [None]:
            args = example.arguments(Arrays(target), True, *([size] if size else []))
            config = example.configure(target, True)
            run = example.launcher(args, config)

            def timed(auto: bool) -> float:
                with record(auto=auto, launches=1):
                    again = example.launcher(args, config)
                    return float(measure(again, target, 10))

            line: dict[str, Any] = {"kernel": name, "size": size}
            if size == (sizes[-1] if sizes else None) and name in ("GEMM", "attention"):
                rounds = [(measure(run, target, 10), timed(False), timed(True)) for _ in range(5)]
                line["seconds"], line["scopes"], line["auto"] = map(statistics.median, zip(*rounds))
                # Recording makes no kernel faster: such a ratio says that the two ran under other conditions.
                line["comparable"] = min(line["scopes"], line["auto"]) >= 0.99 * line["seconds"]
            else:
                line["seconds"] = in_turns({"ours": run}, target, rounds=3, repeats=10)["ours"]
            lines.append(line)
            print(line, flush=True)
    return lines


def recorded(to: Path) -> None:
    """Write the timelines of the GEMM and attention kernels at a size that shows a few tiles of each program."""
    from common import device as gpu

    from gluon_report.example import Arrays

    target = gpu()
    for name, size in (("GEMM", (4096, 4096, 2048)), ("attention", (32, 2048, 64))):
        example = kernels()[name][0]
        args = example.arguments(Arrays(target), True, size)
        for auto in (False, True):
            with record(auto=auto, events=1024, launches=1) as timeline:
                run = example.launcher(args, example.configure(target, True))
                run()
            print(timeline.table())
            timeline.write_html(to / f"{name}{'_auto' if auto else ''}.html")
            (to / f"{name}{'_auto' if auto else ''}.json").write_text(
                json.dumps({"traceEvents": [], "gluon": timeline.perfetto()["gluon"]})
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("."))
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if options.dry:
        os.environ["GLUON_TARGET"] = "emu:sm_90"
    facts: dict[str, Any] = {}
    parts: list[tuple[str, Callable[[], Any]]] = [("machine", lambda: machine(Device(options.dry)))]
    if not options.dry:
        parts += [("recorded", lambda: recorded(options.to)), ("kernels", measured)]
    failures = 0
    for name, part in parts:
        started = time.perf_counter()
        try:
            facts[name] = part()
        except (GluonError, RuntimeError, ValueError) as error:  # the other parts go on
            failures += 1
            print(f"{name} failed: {type(error).__name__}: {error}")
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        (options.to / "facts.json").write_text(json.dumps(facts, indent=1))
    for name, value in facts.get("machine", {}).items():
        print(f"| {name} | {value:.4g} |")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
