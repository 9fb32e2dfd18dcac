"""Graphs: captures of kernels and tensor operations, and their replays."""

import pytest
import torch
from rowlib.kernels import double_kernel, scale_kernel

DEVICE = "cuda"


def test_a_capture_computes_nothing_and_a_replay_does():
    static, out = torch.randn(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    count = torch.zeros(1, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        halves = static / 2
        double_kernel[(1,)](halves, out, BLOCK=16)
        scale_kernel[(1,)](out, out, 16, 3.0, BLOCK=128)
        total = out.sum()
        count += 1
    assert count.item() == 0 and not out.any()
    for _ in range(3):
        static.copy_(torch.randn(16))
        graph.replay()
        torch.testing.assert_close(out, static * 3)
        torch.testing.assert_close(total, out.sum())
    assert count.item() == 3


@pytest.mark.parametrize(
    "illegal",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
    ],
)
def test_work_that_waits_cannot_be_captured(illegal):
    x = torch.ones(4, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        illegal(x)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert not torch.cuda.is_current_stream_capturing()


def test_values_of_the_host_can_be_read_in_a_capture():
    host, graph = torch.ones(4), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert host.sum().item() == 4


def test_pools():
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x = torch.zeros(1, device=DEVICE)
    with torch.cuda.graph(first, pool=pool):
        x += 1
    with torch.cuda.graph(second, pool=first.pool()):
        x *= 10
    assert first.pool() == second.pool() == pool
    first.replay()
    second.replay()
    assert x.item() == 10
    first.reset()
    with pytest.raises(RuntimeError):
        first.replay()


def test_graphed_callables_train():
    module = torch.nn.Linear(4, 4).cuda()
    sample = torch.randn(2, 4, device=DEVICE, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(module, (sample,))
    x = torch.randn(2, 4, device=DEVICE, requires_grad=True)
    out = graphed(x)
    torch.testing.assert_close(out, torch.nn.functional.linear(x, module.weight, module.bias))
    out.sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(2, 4))
