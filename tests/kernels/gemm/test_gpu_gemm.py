"""Products, layers and mixtures of experts on a GPU: named and random shapes, CUDA graphs, several streams, and the host's way."""

from __future__ import annotations

import random

import pytest
import torch

import gluon_core as gluon
import gluon_kernels
from gluon_kernels.gemm import launches, tilings
from gluon_kernels.gemm import problem as gemm
from gluon_kernels.gemm.call import checked
from gluon_kernels.moe import problem as moe
from gluon_kernels.problem import error_of
from gluon_kernels.quant import problem as quant
from tests.kernels.sizes import repeated, sized

pytestmark = pytest.mark.gpu

PROBLEMS = [*gemm.PROBLEMS, *moe.PROBLEMS, *quant.PROBLEMS]
NAMED = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.named)]


def small_and_random(problem):
    draw = random.Random(7)
    return (*problem.small, *(problem.draw(draw) for _ in range(10)))


SMALL_AND_RANDOM = [
    pytest.param(p, shape, id=f"{p.name}-{i}")
    for p in PROBLEMS
    for i, shape in enumerate(small_and_random(p))
]


@pytest.fixture(autouse=True)
def device():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.mark.parametrize("problem, shape", NAMED)
def test_named_shapes(problem, shape):
    assert problem.check(sized(problem, shape), "cuda") is None


@pytest.mark.parametrize("problem, shape", SMALL_AND_RANDOM)
def test_small_and_random_shapes(problem, shape):
    assert problem.check(sized(problem, shape), "cuda") is None


@pytest.mark.parametrize(
    "tiling", [t for t in tilings.TILINGS.values() if t.blocks > 1][::6], ids=lambda t: t.name
)
def test_clusters_have_the_same_bits_each_time(tiling):
    """More tiles than clusters, an odd number of tiles, steps of which a block loads more than the other, and launches behind each other."""
    for m, n, k in ((136, 208, 392), (5000, 4104, 712), (8192, 320, 64)):
        a, b = (torch.randn(size, k, device="cuda").bfloat16() for size in (m, n))
        run = launches.plan(checked("matmul", a, b.T, None, None, None), None, tiling)
        results = [run(a, b.T, None, None) for _ in repeated(20, 2)]
        assert error_of(results[0], a.float() @ b.float().T) < 5e-3
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sides", [(8, 1000, 3864, 56), (24, 520, 2616, 128), (4, 8200, 8192, 64)])
def test_large_results_whose_rows_begin_anywhere_in_a_sector(sides, bias):
    batch, m, n, k = sides
    a, b = (torch.randn(batch, *x, device="cuda").bfloat16() for x in ((m, k), (k, n)))
    more = {"bias": torch.randn(n, device="cuda").bfloat16()} if bias else {}
    right = torch.bmm(a.float(), b.float()) + more.get("bias", 0)
    assert error_of(gluon_kernels.bmm(a, b, **more), right) < 5e-3


def test_a_graph_and_streams_share_a_plan_with_parts_of_k():
    a = torch.randn(16, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 64, device="cuda").bfloat16()
    right = a.float() @ b.float()
    first = gluon_kernels.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gluon_kernels.matmul(a, b)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(gluon_kernels.matmul(a, b))
    torch.cuda.synchronize()
    assert error_of(first, right) < 5e-3
    assert all(torch.equal(result, first) for result in (captured, *results))


@pytest.mark.parametrize("rows", [8, 200, 1000])
def test_a_chain_of_overlapping_launches_has_the_bits_of_single_ones(rows):
    """Each launch begins while the one before ends, reads its result and writes where the one before that has read."""
    x = torch.randn(rows, 1000, device="cuda").bfloat16()
    weights = [(torch.randn(1000, 1000, device="cuda") / 31.6).bfloat16() for _ in range(3)]

    def chain(x, wait):
        for step in repeated(30, 10):
            wait()
            x = gluon_kernels.matmul(x, weights[step % 3])
            wait()
            if step % 5 == 4:
                x = x * 1.0  # a kernel of torch
        return x

    right = chain(x, torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(x, lambda: None)
    for _ in repeated(10, 1):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, right)
        assert torch.equal(chain(x, lambda: None), right)


def test_a_graph_has_no_launch_that_clears_counters():
    a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((16, 8192), (8192, 64)))
    gluon_kernels.matmul(a, b)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        first = gluon_kernels.matmul(a, b)
        second = gluon_kernels.matmul(a, b)
    graph.instantiate()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 2 and all("gemm" in name for name in kernels), kernels
    assert torch.equal(first, second)


def test_plain_calls_pass_the_dispatcher_by_and_others_do_not():
    a, b = torch.randn(2, 64, 64, device="cuda").bfloat16()
    assert gluon.torch.is_plain(a, b)
    assert not gluon.torch.is_plain(a, b.cpu())
    assert not gluon.torch.is_plain(a.requires_grad_(), b)
    with torch.no_grad():
        assert gluon.torch.is_plain(a, b)
    with torch.autocast("cuda"):
        assert not gluon.torch.is_plain(b)
    (grad,) = torch.autograd.grad(gluon_kernels.matmul(a, b).float().sum(), a)
    assert error_of(grad, b.float().sum(1).expand(64, 64)) < 1e-2
