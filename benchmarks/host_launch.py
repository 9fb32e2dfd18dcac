"""The host's part of a launch, on a machine without a GPU: the driver is a library that answers at once.

    python benchmarks/host_launch.py [--json]

The cost of a launch beyond the driver is the difference of these times to "one launch in C", which
calls
the same library from Python with everything ready. Needs a C compiler and `gluon-nvidia`.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("GLUON_TARGET", "nvidia:sm_90")

import torch  # noqa: E402

from benchmarks import launch_overhead  # noqa: E402
from benchmarks.fake_driver import library  # noqa: E402
from gluon_core.registry.load import registry  # noqa: E402
from gluon_nvidia import driver  # noqa: E402

BATCH, ROUNDS, GRID = 200, 400, (4,)


def times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Call -> nanoseconds, the least of many batches in turns."""
    best = dict.fromkeys(calls, float("inf"))
    rows = range(BATCH)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            for _ in rows:
                call()
            best[name] = min(best[name], (time.perf_counter_ns() - begin) / BATCH)
    return best


def use_fake_driver() -> tuple[Any, Any]:
    """Make NVIDIA's plugin and the runtime launch on the driver that does nothing, with CPU tensors.

    Returns: the target, and the runtime's driver.
    """
    from gluon_runtime.cuda import CudaDriver

    backend = registry().backend("nvidia")
    calls = library()
    driver._state = driver.Driver(calls)
    type(backend.device).tensor_device = CudaDriver.tensor_device = "cpu"
    # A function in C, as torch has one for the current stream: device 0 gives stream 0.
    driver.stream_getter = lambda: operator.index
    torch.version.cuda = None  # a build for CUDA would ask the real driver for its device
    CudaDriver.stream = staticmethod(operator.index)  # type: ignore[method-assign,assignment]
    return backend.device.target(), CudaDriver(calls)


def measure() -> dict[str, float]:
    from gluon_bundle import Bundle
    from gluon_runtime import open_bundle
    from tests.bundle import kernels

    target, runtime_driver = use_fake_driver()
    contents = Bundle()
    contents.add(
        kernels.scale, {**kernels.SCALE, "n": "i32:16"}, kernels.HOPPER, target=target, grid=4
    )
    path = Path(tempfile.mkdtemp()) / "kernels.glb"
    contents.write(path)
    bundle = open_bundle(path, driver=runtime_driver)
    kernel, ours, layout = bundle["scale"], kernels.scale, kernels.L32
    x = torch.randn(2048)
    y = torch.zeros_like(x)
    early = ours[GRID]
    prepared = ours.prepare(x, y, 2048, 2.0, 512, layout, grid=GRID)
    bundled = kernel.prepare(x, y, 2048, 2.0, grid=GRID)
    compiled = ours[GRID](x, y, 2048, 2.0, 512, layout)
    factor = int.from_bytes(struct.pack("<f", 2.0), "little")
    raw = launch_overhead.raw_loop(compiled, (x, y, 2048, factor), stream=0)
    assert raw is not None

    from gluon_core.nvidia import NVMMASharedLayout
    from gluon_core.nvidia.hopper import TensorDescriptor

    described, boxes = launch_overhead.ours_described, NVMMASharedLayout(128, 16, 2)
    tensors = [torch.zeros(256, 256, dtype=torch.float16) for _ in range(3)]

    def make() -> list[Any]:
        return [TensorDescriptor.from_tensor(each, [64, 64], boxes) for each in tensors]

    a, b, c = make()
    of_descriptors = described.prepare(a, b, c, x, 1000, grid=GRID)
    return times(
        {
            "an empty lambda": lambda: None,
            "one launch in C": lambda: raw(1),
            "prepared": lambda: prepared(x, y, 2048, 2.0, 512, layout),
            "kernel[grid](...)": lambda: ours[GRID](x, y, 2048, 2.0, 512, layout),
            "kernel[grid], kept from before the first launch": lambda: early(
                x, y, 2048, 2.0, 512, layout
            ),
            "bundled, prepared": lambda: bundled(x, y, 2048, 2.0),
            'bundle["scale"][grid](...)': lambda: bundle["scale"][GRID](x, y, 2048, 2.0),
            "the same, with the constant": lambda: bundle["scale"][GRID](x, y, 2048, 2.0, 512),
            "the same, named": lambda: bundle["scale"][GRID](x, y, n=2048, factor=2.0),
            "the same, its own grid": lambda: bundle["scale"](x, y, 2048, 2.0),
            "3 descriptors, prepared": lambda: of_descriptors(a, b, c, x, 1000),
            "3 descriptors, kernel[grid](...)": lambda: described[GRID](a, b, c, x, 1000),
            "3 descriptors, made anew": lambda: described[GRID](*make(), x, 1000),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="for machines")
    chosen = parser.parse_args()
    times = measure()
    if chosen.json:
        print(json.dumps(times))
        return
    print("| launch | ns | more than one in C | of the prepared |\n| --- | ---: | ---: | ---: |")
    raw, prepared = times["one launch in C"], times["prepared"]
    for name, spent in times.items():
        print(f"| {name} | {spent:.0f} | {spent - raw:+.0f} | {spent / prepared:.2f} |")


if __name__ == "__main__":
    main()
