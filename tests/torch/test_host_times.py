"""Parts of the time of the host in traces of torch's profiler, as the script for misses reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import miss_hosts  # noqa: E402


def event(cat: str, name: str, begin: float, end: float, thread: int = 1) -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": begin, "dur": end - begin, "tid": thread}


def a_call(begin: float) -> list[dict[str, Any]]:
    """Return events of 100 us, in which a thread of autograd works while the caller waits."""
    times = (
        ("user_annotation", miss_hosts.CALL, 0, 100),
        ("cpu_op", "aten::empty_like", 5, 10),
        ("cpu_op", "aten::relu", 20, 40),
        ("cuda_runtime", "cudaLaunchKernel", 30, 36),
        ("user_annotation", miss_hosts.GRADIENTS, 50, 100),
        ("cpu_op", "autograd::engine::evaluate_function: OpBackward", 60, 90, 2),
        ("cpu_op", "OpBackward", 62, 88, 2),
        ("cuda_driver", "cuLaunchKernelEx", 70, 73, 2),
        ("cuda_runtime", "cudaStreamIsCapturing", 80, 82, 2),
        ("kernel", "k", 95, 115),
    )
    events = [event(cat, name, a, b, *thread) for cat, name, a, b, *thread in times]
    return [{**one, "ts": one["ts"] + begin} for one in events]


def test_each_moment_of_a_call_is_a_part_of_it() -> None:
    events = [*a_call(0), *a_call(1000), *a_call(2000)]
    parts = miss_hosts.host_parts(events)
    assert parts == {
        "launches": 9,
        "other calls of CUDA": 2,
        "allocation": 5,
        "torch's operators": 14,
        "autograd": 24,  # before and after its node, and around the node's own code
        "the op's own code": 46,
    }
    assert miss_hosts.device_time(events) == 20


def test_the_reason_is_the_part_that_differs_most() -> None:
    ours = miss_hosts.host_parts(a_call(0))
    theirs = {**ours, "allocation": 4.0, "the op's own code": 6.0}
    text = miss_hosts.host_reason(ours, theirs, (20.0, 25.0), (90.0, 50.0))
    assert text.endswith("+41.0 us, most: the op's own code, 46.0 us, theirs 6.0")
    text = miss_hosts.host_reason(ours, theirs, (200.0, 150.0), (90.0, 50.0))
    assert text.startswith("the device's time, not the host's: kernels take 200.0 us, theirs 150.0")


def test_calls_are_traced_with_their_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    events = miss_hosts.traced(lambda: torch.autograd.grad(x.exp().sum(), x), calls=3)
    names = [one["name"] for one in events]
    assert names.count(miss_hosts.CALL) == names.count(miss_hosts.GRADIENTS) == 3
    parts = miss_hosts.host_parts(events)
    assert parts["torch's operators"] > 0 and parts["autograd"] > 0
