"""Every example op in captured graphs of a GPU, in torch's own graphs, and in AOTInductor's packages."""

import pytest
import torch

from tests.torch import ops_for_tests as ops
from tests.torch.attention_op import attention, attention_backward
from tests.torch.test_ops import skip_without_packages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def randn(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


def attended(width=16, n=24):
    return [randn(1, 2, n, width) for _ in range(3)]


def backward_inputs():
    q, k, v = attended()
    out, lse = attention(q, k, v, True)
    upper = randn(*q.shape)
    return upper, q, k, v, lse, (upper * out).sum(-1)


# Name -> the function of the tensors, and the one that runs on them.
WORK = {
    "elementwise": (lambda: [randn(300)], lambda x: ops.scale(x, 2.0)),
    "norm": (lambda: [randn(5, 24), randn(24)], lambda x, w: ops.norm(x, w, 1e-6)[0]),
    "norm_backward": (
        lambda: [randn(5, 24), randn(5, 24), randn(24), torch.rand(5, device="cuda")],
        lambda *args: ops.norm_backward(*args)[0],
    ),
    "matmul": (
        lambda: [randn(40, 64, dtype=torch.half), randn(64, 24, dtype=torch.half)],
        ops.matmul,
    ),
    "attention": (attended, lambda q, k, v: attention(q, k, v, True)[0]),
    "attention_backward": (
        backward_inputs,
        lambda *args: torch.cat([part.flatten() for part in attention_backward(*args, True)]),
    ),
}


@pytest.mark.parametrize("name", list(WORK))
def test_a_captured_graph_works_on_the_values_of_its_tensors(name):
    make, work = WORK[name]
    tensors = make()
    work(*tensors)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(*tensors)
    for _ in range(2):
        for tensor, other in zip(tensors, make()):
            tensor.copy_(other)
        graph.replay()
        torch.testing.assert_close(result, work(*tensors), rtol=0, atol=0)


@pytest.mark.parametrize("name", list(WORK))
def test_a_launch_compiled_while_capturing(name):
    """The first call of all: loading a module is legal in a capture."""
    make, work = WORK[name]
    tensors = make()
    for kernel in vars(ops).values():
        if hasattr(kernel, "forget"):
            kernel.forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(*tensors)
    graph.replay()
    torch.testing.assert_close(result, work(*tensors), rtol=0, atol=0)


@pytest.mark.parametrize("name", list(WORK))
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_graph_of_torch(name, mode):
    make, work = WORK[name]
    compiled = torch.compile(lambda *args: work(*args) + 1, mode=mode, fullgraph=True)
    for _ in range(4):
        tensors = make()
        torch.testing.assert_close(compiled(*tensors).clone(), work(*tensors) + 1)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Skips where torch itself cannot load one."""
    skip_without_packages("cuda", tmp_path_factory.mktemp("aot"))


class Work(torch.nn.Module):
    def __init__(self, work):
        super().__init__()
        self.work = work

    def forward(self, *args):
        return self.work(*args)


@pytest.mark.parametrize("name", list(WORK))
def test_ahead_of_time(name, packages, tmp_path):
    make, work = WORK[name]
    tensors = make()
    program = torch.export.export(Work(work), tuple(tensors))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "w.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*tensors), work(*tensors))
