"""Launching on a real GPU: results, streams, graphs, threads, contexts, limits."""

import threading

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import DeviceError, LaunchError
from gluon_core.registry.load import registry
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        registry().backend("nvidia").device.target() is None, reason="no NVIDIA GPU"
    ),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    for kernel in vars(kernels).values():
        if isinstance(kernel, gluon.GluonJITFunction):
            kernel.forget()


def tensors(n=1000):
    return torch.arange(n, dtype=torch.float32, device="cuda"), torch.zeros(n, device="cuda")


def test_results_over_specializations():
    for n in (1, 16, 255, 256, 1000):
        x, y = tensors(n)
        for factor in (2.0, -3.5):
            compiled = kernels.scale[((n + 255) // 256,)](x, y, n, factor, 256, L32)
            torch.testing.assert_close(y, x * factor)
    assert compiled.n_regs > 0 and compiled.n_spills == 0 and compiled.function


def test_a_prepared_handle():
    x, y = tensors()
    handle = kernels.scale.prepare(x, y, 1000, 2.0, 256, L32, grid=(4,))
    handle(x, y, 1000, 4.0, 256, L32)
    torch.testing.assert_close(y, x * 4)


def test_the_current_stream_is_used():
    x, y = tensors()
    kernels.scale[4](x, y, 1000, 2.0, 256, L32)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.zero_()
        torch.cuda._sleep(10_000_000)
        kernels.scale[4](x, y, 1000, 3.0, 256, L32)
        assert not side.query()
    side.synchronize()
    torch.testing.assert_close(y, x * 3)


def test_a_graph_may_capture_even_the_first_launch():
    x, y = tensors()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.scale[4](x, y, 1000, 2.0, 256, L32)
    assert y.sum() == 0
    for factor in (1, 2):
        x.fill_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert (y == 2 * factor).all()


def test_threads_launch_at_once_and_without_a_context_of_their_own():
    results = {}

    def work(which):
        x, y = tensors()
        for _ in range(200):
            kernels.scale[4](x, y, 1000, float(which), 256, L32)
        torch.cuda.synchronize()
        results[which] = bool((y == x * which).all())

    threads = [threading.Thread(target=work, args=(which,)) for which in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {which: True for which in range(1, 5)}

    x, y = tensors()
    handle = kernels.scale.prepare(x, y, 1000, 5.0, 256, L32, grid=(4,))
    bare = threading.Thread(target=handle, args=(x, y, 1000, 5.0, 256, L32))
    bare.start()
    bare.join()
    torch.testing.assert_close(y, x * 5)


def test_more_shared_memory_than_the_default():
    @gluon.jit
    def through_shared(x, y, N: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr):
        buffer = gl.allocate_shared_memory(gl.float32, [N], SHARED)
        offsets = gl.arange(0, N, layout=LAYOUT)
        buffer.store(gl.load(x + offsets))
        gl.store(y + offsets, buffer.load(LAYOUT))

    x, y = tensors(16384)
    compiled = through_shared[1](x, y, 16384, L32, gl.SwizzledSharedLayout(1, 1, 1, [0]))
    assert compiled.metadata.shared >= 65536
    torch.testing.assert_close(y, x)


def test_cpu_tensors_are_refused_with_the_remedy():
    x, y = (t.cpu() for t in tensors())
    with pytest.raises(DeviceError, match=r"\.cuda\(\)"):
        kernels.scale[4](x, y, 1000, 2.0, 256, L32)
    kernels.scale[4](x, y, 1000, 2.0, 256, L32, target="sim:hopper")
    torch.testing.assert_close(y, x * 2)


def test_a_grid_that_the_device_refuses():
    x, y = tensors()
    with pytest.raises(LaunchError):
        kernels.scale[(1, 70000)](x, y, 1000, 2.0, 256, L32)
    kernels.scale[0](x, y, 1000, 2.0, 256, L32)
    assert y.sum() == 0


def test_compiling_in_a_child_leaves_the_parents_context_alone():
    x, y = tensors()
    for block in (64, 128, 256, 512):
        kernels.scale[(1000 + block - 1) // block,](x, y, 1000, float(block), block, L32)
        torch.testing.assert_close(y, x * block)
