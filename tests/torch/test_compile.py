"""A launch without an op under torch's tracers, tensors without memory, arrays of other libraries."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
import triton
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, TensorError
from tests.torch.ops_for_tests import BLOCK, blocks, scale_kernel

pytestmark = [
    pytest.mark.once,
    pytest.mark.sampled(2),
]  # PyTorch decides here, and it is the same one


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def launch(x, out, factor=2.0):
    scale_kernel[(blocks(x.numel(), BLOCK),)](x, out, x.numel(), factor, BLOCK=BLOCK)


def bare(x):
    out = torch.empty_like(x)
    launch(x + 1, out)
    return out.sin()


def written_in_place(x):
    y = x.clone()
    launch(y, y)
    launch(y[2:], y[2:])
    return y * 1


def in_autograd(x):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = torch.empty_like(x)
            launch(x, out)
            return out

    return Scale.apply(x) + 1


def two_outputs(x):
    first, second = torch.empty_like(x), torch.empty_like(x)
    launch(x, first)
    launch(x, second, 3.0)
    return first, second


def through_run(x):
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel.run(x, out, n, 2.0, grid=(blocks(n, BLOCK),), warmup=False, BLOCK=BLOCK)
    return out + 1


def calls_of(graphs):
    """Return the targets of the calls in graphs; their text also names the folder of this file."""
    modules = [part for graph in graphs for part in graph.modules() if hasattr(part, "graph")]
    nodes = [node for part in modules for node in part.graph.nodes]
    return [str(node.target) for node in nodes if node.op.startswith("call_")]


@pytest.mark.parametrize(
    "function, warm",
    [
        (bare, True),
        (bare, False),
        (written_in_place, True),
        (in_autograd, False),
        (two_outputs, True),
        (through_run, False),
    ],
)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("triton_has", ["nothing", "a GPU"])
def test_the_graph_ends_at_a_launch(function, warm, triton_has, monkeypatch):
    if triton_has == "a GPU":  # then torch looks for kernels that Inductor may copy
        monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    scale_kernel.forget()
    if warm:
        function(torch.randn(300))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter)
    counts = []
    for n in (300, 301, 1000, 77):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), function(x), atol=0, rtol=0)
        counts.append(counter.frame_count)
    called = calls_of(counter.graphs)
    assert called and not any("gluon" in call or "triton" in call for call in called)
    assert counts[1] == counts[3] > 1  # one size, then any


def test_a_launch_is_one_break_that_names_the_remedy():
    explanation = torch._dynamo.explain(bare)(torch.randn(300))
    assert explanation.graph_break_count == 1 and explanation.graph_count == 2
    assert "gluon_core.torch.op" in explanation.break_reasons[0].reason
    assert explanation.break_reasons[0].user_stack[-1].name == "launch"
    with pytest.raises(torch._dynamo.exc.Unsupported, match="gluon_core.torch.op"):
        torch.compile(bare, backend="aot_eager", fullgraph=True)(torch.randn(300))


@pytest.mark.parametrize("triton_has", ["nothing", "a GPU"])
def test_the_graph_ends_at_a_tuned_launch(triton_has, monkeypatch):
    if triton_has == "a GPU":
        monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    tuned = triton.autotune([triton.Config({"BLOCK": BLOCK})], key=["n"])(scale_kernel)

    def function(x):
        out = torch.empty_like(x)
        tuned[(blocks(x.numel(), BLOCK),)](x + 1, out, x.numel(), 2.0)
        return out * 1

    x = torch.randn(300)
    counter = CompileCounterWithBackend("aot_eager")
    assert torch.equal(torch.compile(function, backend=counter)(x), (x + 1) * 2)
    called = calls_of(counter.graphs)
    assert called and not any("triton" in call for call in called)


def test_triton_knows_its_own_kernels_as_before(monkeypatch):
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)

    @triton.jit
    def theirs(x):
        pass

    def function(x):
        theirs[(1,)](x)
        return x * 1

    tuned = triton.autotune([triton.Config({})], key=[])(theirs)

    def function_tuned(x):
        tuned[(1,)](x)
        return x * 1

    graphs = []

    def keep(gm, inputs):
        graphs.append(gm.print_readable(print_output=False))
        return lambda *args: args

    for compiled in (function, function_tuned):
        torch.compile(compiled, backend=keep, fullgraph=True)(torch.randn(4))
    assert all("triton_kernel_wrapper_mutation" in text for text in graphs) and len(graphs) == 2


def test_a_prepared_launch_ends_the_graph():
    x, out = torch.randn(256), torch.empty(256)
    handle = scale_kernel.prepare(x, out, 256, 2.0, BLOCK=BLOCK, grid=(1,))

    def function(x):
        out = torch.empty_like(x)
        handle(x + 1, out, 256, 2.0, BLOCK=BLOCK)
        return out * 1

    counter = CompileCounterWithBackend("aot_eager")
    assert torch.equal(torch.compile(function, backend=counter)(x), (x + 1) * 2)
    assert counter.frame_count == 2


def test_torch_imported_after_the_kernel_ran(tmp_path, monkeypatch):
    """The core imports no torch, which could be notified of nothing when the kernel was made."""
    monkeypatch.delenv("GLUON_TARGET")  # Triton's stand-in driver imports torch
    monkeypatch.setenv("GLUON_TORCH_DEBUG", "1")
    file = tmp_path / "late.py"
    file.write_text(LATE)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


LATE = """
import sys
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def double(x, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(x + i, gl.load(x + i) * 2)

double[1](np.ones(128, np.float32), 128, target="sim:sm_90")
assert "torch" in dir(gluon) and "torch" not in sys.modules
assert gluon.torch.op.__name__ == "op" and gluon.torch.checks.enabled()
import torch

def function(x):
    y = x + 1
    double[1](y, 128, target="sim:sm_90")
    return y.sin()

x = torch.randn(128)
assert torch.equal(torch.compile(function, backend="aot_eager")(x), ((x + 1) * 2).sin())
"""


# ---- tensors without memory ---------------------------------------------------------------------


def fake():
    with FakeTensorMode() as mode:
        return mode.from_tensor(torch.randn(8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize(
    "value, message",
    [
        (fake, "no memory.*gluon_core.torch.launch"),
        (lambda: torch.eye(8).to_sparse(), "torch.strided, got torch.sparse_coo"),
        (lambda: torch.eye(8).to_sparse_csr(), "torch.sparse_csr"),
        (lambda: torch.randn(8, dtype=torch.complex64).conj().imag, r"resolve_neg\(\)"),
        (lambda: torch.randn(8, dtype=torch.complex64).conj(), r"resolve_conj\(\)"),
    ],
    ids=["fake", "sparse", "csr", "negative", "conjugate"],
)
def test_a_tensor_without_memory(value, message, warm):
    scale_kernel.forget()
    if warm:
        launch(torch.randn(8), torch.empty(8))
    with pytest.raises(TensorError, match=rf"scale_kernel\(x\): .*{message}"):
        launch(value(), torch.empty(8))
    with pytest.raises(TensorError, match=r"scale_kernel\(out\)"):
        launch(torch.randn(8), value())


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.unsqueeze(-1)], ids=["apart", "one-column"]
)
def test_a_negative_of_memory_after_a_launch_of_the_same_key(view):
    """An axis of one element may have any stride, so its stride of 1 proves no contiguity."""
    numbers = torch.randn(8, dtype=torch.complex64)
    launch(view(numbers.imag), torch.empty(8))
    with pytest.raises(TensorError, match=r"scale_kernel\(x\): .*resolve_neg\(\)"):
        launch(view(numbers.conj().imag), torch.empty(8))


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize(
    "transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())], ids=["vmap", "grad"]
)
def test_a_tensor_of_torch_func(transform, warm):
    scale_kernel.forget()
    if warm:
        launch(torch.randn(8), torch.empty(8))

    def function(x):
        out = torch.empty_like(x)
        launch(x, out)
        return out

    with pytest.raises(TensorError, match=r"scale_kernel\(x\).*torch.func.*vmap= and backward="):
        transform(function)(torch.randn(3, 8))


def test_a_tensor_on_many_devices(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        spread = distribute_tensor(
            torch.randn(8), init_device_mesh("cpu", (1,)), placements=[Replicate()]
        )
        with pytest.raises(TensorError, match=r"scale_kernel\(x\).*DTensor.*to_local"):
            launch(spread, torch.empty(8))
        out = torch.empty(8)
        launch(spread.to_local(), out)
        assert torch.equal(out, spread.to_local() * 2)
    finally:
        distributed.destroy_process_group()


# ---- DLPack -------------------------------------------------------------------------------------


class Array:
    """The interface of an array of CuPy and JAX: DLPack alone."""

    def __init__(self, owner):
        self.owner = owner

    def __dlpack__(self, **options):
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.owner.__dlpack_device__()


@pytest.mark.parametrize("own", [torch.Tensor.clone, torch.Tensor.numpy], ids=["torch", "numpy"])
def test_an_array_of_another_library_is_not_copied(own):
    scale_kernel.forget()
    x = own(torch.randn(300))
    for _ in range(3):
        out = own(torch.zeros(300))
        n = 300
        scale_kernel[(2,)](Array(x), Array(out), n, 2.0, BLOCK=BLOCK)
        assert np.array_equal(np.asarray(out), np.asarray(x) * 2)
    mixed = torch.zeros(300)
    scale_kernel[(2,)](x=Array(x), out=mixed, n=300, factor=3.0, BLOCK=BLOCK, num_warps=4)
    assert np.array_equal(mixed.numpy(), np.asarray(x) * np.float32(3))


@gluon.jit
def scale_both(pairs, n, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    for index in gl.static_range(2):
        x, out = pairs[index]
        gl.store(out + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)


@pytest.mark.parametrize("own", [torch.Tensor.clone, torch.Tensor.numpy], ids=["torch", "numpy"])
def test_arrays_of_another_library_within_tuples(own):
    scale_both.forget()
    x = own(torch.randn(100))

    class Pair(NamedTuple):
        x: object
        out: object

    for _ in range(3):
        first, second = own(torch.zeros(100)), own(torch.zeros(100))
        scale_both[(1,)]((Pair(Array(x), Array(first)), Pair(x, Array(second))), 100, BLOCK=128)
        for out in (first, second):
            assert np.array_equal(np.asarray(out), np.asarray(x) * 2)
    whole = torch.zeros(100)
    pairs = ((Array(x), Array(whole)), (x, own(torch.zeros(100))))
    handle = scale_both.prepare(pairs, 100, BLOCK=128, grid=(1,))
    whole.zero_()
    handle(pairs, 100, BLOCK=128)
    assert np.array_equal(whole.numpy(), np.asarray(x) * 2)
    with pytest.raises(ArgumentError, match="object"):
        scale_both[(1,)](((object(), x), (x, x)), 100, BLOCK=128)


def test_an_array_of_another_library_in_a_prepared_launch():
    x, out = torch.randn(256), torch.zeros(256)
    handle = scale_kernel.prepare(Array(x), Array(out), 256, 2.0, BLOCK=BLOCK, grid=(1,))
    handle(Array(x), Array(out), 256, 2.0, BLOCK=BLOCK)
    assert torch.equal(out, x * 2)


def test_an_array_that_cannot_be_taken():
    class Locked(Array):
        def __dlpack__(self, **options):
            raise BufferError("not now")

    with pytest.raises(ArgumentError, match="DLPack.*Locked: not now"):
        launch_with(Locked(torch.ones(8)))


def launch_with(x):
    scale_kernel[(1,)](x, torch.empty(8), 8, 2.0, BLOCK=BLOCK)
