"""The library's own suite, written for a GPU."""

import pytest
import rowlib
import torch
import triton

DEVICE = "cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax(dtype):
    x = torch.randn(3, 20, device=DEVICE, dtype=dtype)
    expected = torch.softmax(x.float().cpu(), -1).to(dtype)
    torch.testing.assert_close(rowlib.fused_softmax(x).cpu(), expected)


def test_scaled_leaves_its_input():
    host = torch.randn(300)
    x = host.to(DEVICE)
    y = rowlib.scaled(x, 3.0)
    x.zero_()
    torch.testing.assert_close(y.cpu(), host * 3)


def test_the_profiler_lists_the_kernels():
    x = torch.randn(300, device=DEVICE)
    rowlib.scaled(x, 3.0)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        rowlib.scaled(x, 3.0)
        torch.cuda.synchronize()
    kernels = [
        event
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and "scale_kernel" in event.name
    ]
    assert len(kernels) == 1 and kernels[0].time_range.elapsed_us() > 0
    assert "scale_kernel" in profile.key_averages().table()


@pytest.mark.parametrize("columns", [32, 50])
def test_row_sum_is_tuned(columns):
    x = torch.randn(2, columns, device=DEVICE)
    torch.testing.assert_close(rowlib.row_sum(x), x.sum(1))


def test_module_in_a_graph():
    module = rowlib.RowNorm(32).to(DEVICE)
    static = torch.rand(2, 32, device=DEVICE)
    module(static)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = rowlib.scaled(module(static), 2.0)
    new = torch.rand(2, 32, device=DEVICE)
    static.copy_(new)
    graph.replay()
    torch.testing.assert_close(out, 2 * new / new.sum(1, keepdim=True))


def test_operator_compiles():
    x = torch.randn(16, device=DEVICE)
    compiled = torch.compile(lambda x: rowlib.double(x) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * x + 1)


def test_timing():
    x = torch.randn(2, 32, device=DEVICE)
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    rowlib.fused_softmax(x)
    ended.record()
    torch.cuda.synchronize()
    assert started.elapsed_time(ended) > 0
    assert triton.testing.do_bench(lambda: rowlib.fused_softmax(x), warmup=1, rep=1) > 0
