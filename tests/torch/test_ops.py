"""Ops of torch that launch kernels: torch's own checks of them, gradients, graphs, export."""

import subprocess
import sys
import warnings
from typing import Optional

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import gluon_torch
from gluon_core.errors import ArgumentError, DeviceError, NondeterministicError
from tests.torch import ops_for_tests as ops
from tests.torch.attention_op import attention, attention_backward

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


def tensors(name, device, n=24):
    half = torch.float16
    return {
        "scale": lambda: (torch.randn(n, device=device, requires_grad=True), 2.0),
        "scale_into": lambda: (torch.randn(n, device=device), torch.empty(n, device=device), 2.0),
        "norm": lambda: (
            torch.randn(3, n, device=device, requires_grad=True),
            torch.randn(n, device=device, requires_grad=True),
            1e-6,
        ),
        "norm_backward": lambda: (
            torch.randn(3, n, device=device),
            torch.randn(3, n, device=device),
            torch.randn(n, device=device),
            torch.rand(3, device=device),
        ),
        "matmul": lambda: (
            torch.randn(n, 40, device=device, dtype=half, requires_grad=True),
            torch.randn(40, 17, device=device, dtype=half, requires_grad=True),
        ),
    }[name]()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["scale", "scale_into", "norm", "norm_backward", "matmul"])
def test_torch_finds_nothing_wrong_with_it(name, device):
    op = gluon_torch.get(f"gluon_tests::{name}")
    outcome = torch.library.opcheck(op.overload, tensors(name, device), atol=2e-2, rtol=2e-2)
    assert len(outcome) == 4 and set(outcome.values()) == {"SUCCESS"}


def test_results(device):
    x, factor = tensors("scale", device)
    assert torch.equal(ops.scale(x, factor), x * factor)
    assert torch.equal(torch.ops.gluon_tests.scale(x, factor), x * factor)
    assert torch.equal(ops.scale_seen(x.detach(), factor), x * factor)
    assert torch.equal(ops.scale(x, factor=3.0), x * 3)
    x, weight, eps = tensors("norm", device)
    torch.testing.assert_close(ops.norm(x, weight, eps)[0], ops.norm_reference(x, weight, eps))
    a, b = tensors("matmul", device)
    torch.testing.assert_close(ops.matmul(a, b), a @ b, atol=1e-2, rtol=1e-2)


def test_gradients(device):
    double = dict(dtype=torch.float64, device=device, requires_grad=True)
    x, weight = torch.randn(2, 5, **double), torch.randn(5, **double)
    assert torch.autograd.gradcheck(lambda x: ops.scale(x, 2.5), (x,))
    assert torch.autograd.gradcheck(lambda x, w: ops.norm(x, w, 1e-6)[0], (x, weight))
    a, b = tensors("matmul", device)
    gradients = torch.autograd.grad(ops.matmul(a, b).float().sum(), (a, b))
    wanted = torch.autograd.grad((a @ b).float().sum(), (a, b))
    torch.testing.assert_close(gradients, wanted, atol=2e-2, rtol=2e-2)


def test_an_op_that_writes_marks_its_results(device):
    x, out, factor = tensors("scale_into", device)
    version = out._version
    ops.scale_into(x, out, factor)
    assert out._version == version + 1 and x._version == 0
    assert torch.equal(out, x * factor)


GRAPHS = {
    "scale": lambda x: ops.scale(x.sin(), 2.0).cos(),
    "scale_seen": lambda x: ops.scale_seen(x.sin(), 2.0).cos(),
    "norm": lambda x: ops.norm(x[None] + 1, x, 1e-6)[0].square(),
    "matmul": lambda x: ops.matmul(x[:, None].half(), x[None, :].half()),
}


def into(x):
    out = torch.empty(2, x.numel(), device=x.device)
    ops.scale_into(x, out[1], 2.0)  # a view
    ops.scale_into(out[1], out[0], 2.0)
    return out + 1


GRAPHS["scale_into"] = into


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(GRAPHS))
def test_twenty_shapes_one_graph(name, device):
    """No graph break (fullgraph raises at one) and no compilation after the first."""
    function = GRAPHS[name]
    counter = CompileCounterWithBackend("aot_eager" if device == "cpu" else "inductor")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for n in range(3, 203, 10):
        x = torch.randn(n, device=device)
        torch.testing.assert_close(compiled(x), function(x), atol=1e-3, rtol=1e-3)
    assert counter.frame_count == 1


def test_training_in_one_graph(device):
    def loss(x, weight):
        return ops.norm(x, weight, 1e-6)[0].square().sum()

    x, weight, _ = tensors("norm", device)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    gradients = torch.autograd.grad(compiled(x, weight), (x, weight))
    wanted = torch.autograd.grad(ops.norm_reference(x, weight, 1e-6).square().sum(), (x, weight))
    torch.testing.assert_close(gradients, wanted, atol=1e-4, rtol=1e-4)


class Normed(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, n))

    def forward(self, x):
        return ops.norm(ops.scale(x, 2.0), self.weight, 1e-6)[0]


def exported(device):
    model = Normed(24).to(device)
    x = torch.randn(4, 24, device=device)
    rows = torch.export.Dim("rows", min=2, max=64)
    return model, torch.export.export(model, (x,), dynamic_shapes=({0: rows},))


def test_export(device, tmp_path):
    model, program = exported(device)
    torch.export.save(program, tmp_path / "normed.pt2")
    loaded = torch.export.load(tmp_path / "normed.pt2").module()
    for rows in (2, 5, 9):
        x = torch.randn(rows, 24, device=device)
        assert torch.equal(loaded(x), model(x))
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"gluon_tests.scale.default", "gluon_tests.norm.default"} <= targets


PLAIN = """
import sys, torch

@torch.library.custom_op("plain::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.ops.plain.twice(x)

program = torch.export.export(Twice(), (torch.ones(4, device=sys.argv[1]),))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
torch._inductor.aoti_load_package(package)
"""


def skip_without_packages(device, folder):
    """Skip where torch itself cannot make and load a package of an op of Python's: 2.11 ends with a
    segmentation fault on a GPU."""
    plain = [sys.executable, "-c", PLAIN, device, str(folder / "plain.pt2")]
    try:
        done = subprocess.run(plain, capture_output=True, timeout=100)
    except subprocess.TimeoutExpired:
        pytest.skip("torch's own package of an op of Python's takes too long here")
    if done.returncode:
        pytest.skip("this torch loads no package with an op of Python's on a GPU")


class Everything(torch.nn.Module):
    """Elementwise, norm and its gradient, matmul, attention and its gradient."""

    def forward(self, x, a, b, q):
        y = ops.scale(x, 2.0)
        weight = x[0].contiguous()
        normed, rstd = ops.norm(y, weight, 1e-6)
        back = ops.norm_backward(normed, y, weight, rstd)[0]
        attended, lse = attention(q, q + 1, q, True)
        grads = attention_backward(attended, q, q + 1, q, lse, (attended * attended).sum(-1), True)
        return normed, back, ops.matmul(a, b), attended, *grads


def quick_to_build():
    """Inductor's C++ is compiled once here: no probes for vector units, no headers made ahead."""
    wanted = {
        "cpp.vec_isa_ok": False,
        "aot_inductor.precompile_headers": False,
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }
    config = torch._inductor.config
    return config.patch({name: value for name, value in wanted.items() if name in config._config})


@pytest.mark.once
@pytest.mark.parametrize(
    "library",
    [False, pytest.param(True, marks=pytest.mark.campaign)],  # a compiler of C++ takes ten seconds
    ids=["exported", "library"],
)
def test_ahead_of_time(device, library, tmp_path):
    """Exported programs of torch hold the ops, read from a file as well; AOTInductor's library calls them."""
    if device != "cpu":
        skip_without_packages(device, tmp_path)
    model = Everything().to(device)

    def inputs(rows):
        half = dict(device=device, dtype=torch.half)
        return (
            torch.rand(rows, 24, device=device) + 0.5,
            torch.randn(20, 40, **half),
            torch.randn(40, 17, **half),
            torch.randn(1, 2, 6, 8, device=device),
        )

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "a": None, "b": None, "q": None}
    program = torch.export.export(model, inputs(4), dynamic_shapes=shapes)
    file = str(tmp_path / "all.pt2")
    if library:
        with quick_to_build():
            path = torch._inductor.aoti_compile_and_package(program, package_path=file)
        loaded = torch._inductor.aoti_load_package(path)
    else:
        torch.export.save(program, file)
        loaded = torch.export.load(file).module()
    for count in (4, 7):
        tensors = inputs(count)
        torch.testing.assert_close(tuple(loaded(*tensors)), tuple(model(*tensors)))


@pytest.mark.parametrize("mode", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}])
def test_a_launch_without_an_op_ends_the_graph(mode, device):
    kernel = ops.scale_kernel

    def function(x):
        y = x + 1
        kernel[(ops.blocks(y.numel(), ops.BLOCK),)](y, y, y.numel(), 2.0, BLOCK=ops.BLOCK)
        return y.view(-1) * 3

    compiled = torch.compile(function, **({"backend": "aot_eager"} if device == "cpu" else mode))
    for n in (100, 100, 40, 70):
        x = torch.randn(n, device=device)
        torch.testing.assert_close(compiled(x), (x + 1) * 2 * 3)


def test_inductor_keeps_the_op(device):
    """Inductor's own code calls it; nothing is there for it to compile."""
    x, out, factor = tensors("scale_into", device)
    torch.compile(ops.scale_into, fullgraph=True)(x, out, factor)
    assert torch.equal(out, x * factor)


def test_modes(device):
    x, factor = tensors("scale", device)
    with torch.inference_mode():
        assert torch.equal(ops.scale(x, factor), x * factor)
    with torch.no_grad():
        assert not ops.scale(x, factor).requires_grad
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(ops.scale(x, factor), x * factor)
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_op_may_refuse_deterministic_mode(device):
    @gluon_torch.op("gluon_tests::by_chance", deterministic=False)
    def by_chance(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(x)

    x = torch.randn(4, device=device)
    by_chance(x)
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(NondeterministicError, match="by_chance"):
            by_chance(x)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="by_chance"):
            by_chance(x)
    finally:
        torch.use_deterministic_algorithms(False)


def test_autocast(device):
    x, factor = tensors("scale", device)
    with torch.autocast(device):
        result = ops.scale(x, factor)
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result, x.bfloat16() * factor)


def test_vmap_one_by_one(device):
    x = torch.randn(5, 3, device=device)
    assert torch.equal(torch.vmap(ops.scale, in_dims=(1, None))(x, 2.0), (x * 2).t())
    out = torch.empty(3, 5, device=device)

    def into(x, out):
        ops.scale_into(x, out, 3.0)
        return out

    torch.vmap(into, in_dims=(1, 0))(x, out)
    assert torch.equal(out, (x * 3).t())


def test_vmap_of_lists_and_of_several_results():
    @gluon_torch.op("gluon_tests::several", vmap="one_by_one")
    def several(
        xs: list[torch.Tensor], bias: Optional[torch.Tensor], factor: float
    ) -> tuple[torch.Tensor, list[torch.Tensor], float]:
        shapes.append([tuple(x.shape) for x in xs])
        assert all(x.is_contiguous() for x in xs)
        total = sum(xs) * factor
        return total if bias is None else total + bias, [x + 1 for x in xs], factor

    shapes: list = []
    x, y, bias = torch.randn(3, 4), torch.randn(4, 3), torch.randn(3)
    in_dims = ([0, 1], None, None)
    total, added, factor = torch.vmap(
        lambda xs, bias, factor: several(xs, bias, factor), in_dims, (0, 0, None)
    )([x, y], None, 2.0)
    assert shapes == [[(4,), (4,)]] * 3 and factor == 2.0
    torch.testing.assert_close(total, (x + y.t()) * 2)
    torch.testing.assert_close(added, [x + 1, y.t() + 1])
    in_dims = ([0, None], 0, None)
    total, added, _ = torch.vmap(
        lambda xs, bias, factor: several(xs, bias, factor), in_dims, (0, 0, None)
    )([x, y[:, 0]], bias, 2.0)
    torch.testing.assert_close(total, (x + y[:, 0]) * 2 + bias[:, None])
    torch.testing.assert_close(added[1], (y[:, 0] + 1).expand(3, 4))


def test_vmap_of_a_list_that_is_written():
    @gluon_torch.op("gluon_tests::fill", mutates_args=("outs",), vmap="one_by_one")
    def fill(x: torch.Tensor, outs: list[torch.Tensor]) -> None:
        for index, out in enumerate(outs):
            out.copy_(x + index)

    x = torch.randn(4, 3)
    outs = [torch.empty(3, 4), torch.empty(4, 3)]  # the first is not contiguous along the batch

    def call(x, first, second):
        fill(x, [first, second])
        return x

    torch.vmap(call, in_dims=(1, 0, 1))(x, *outs)
    assert torch.equal(outs[0], x.t()) and torch.equal(outs[1], x + 1)
    with pytest.raises(ArgumentError, match=r"fill\(outs\).*same tensor"):
        torch.vmap(call, in_dims=(1, 0, None))(x, outs[0], torch.empty(4))


def test_a_rule_for_vmap(device):
    @gluon_torch.op(
        "gluon_tests::batched",
        vmap=lambda info, in_dims, x, factor: (batched(x, factor), in_dims[0]),
    )
    def batched(x: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(x.shape)
        return x * factor

    calls = []
    x = torch.randn(5, 3, device=device)
    assert torch.equal(torch.vmap(batched, in_dims=(1, None))(x, 2.0), (x * 2).t())
    assert calls == [(5, 3)]


def test_a_kernel_per_device(device):
    op = gluon_torch.op("gluon_tests::per_device", vmap=None)(_everywhere)
    x = torch.randn(4, device=device)
    assert torch.equal(op(x), x + 1)

    @op.register_kernel("cpu")
    def on_cpu(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    assert torch.equal(op(x), x + (2 if device == "cpu" else 1))


def _everywhere(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("mode", ["cuda graph", "reduce-overhead", "stream", "device"])
@pytest.mark.gpu
def test_on_a_gpu_alone(mode):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    ops.scale_into(x, out, 2.0)
    if mode == "cuda graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.scale_into(x, out, 2.0)
        x.copy_(torch.randn_like(x))
        graph.replay()
    elif mode == "reduce-overhead":
        compiled = torch.compile(
            lambda x: ops.scale(x + 1, 2.0), mode="reduce-overhead", fullgraph=True
        )
        for _ in range(4):
            x = torch.randn_like(x)
            torch.testing.assert_close(compiled(x).clone(), (x + 1) * 2)
        return
    elif mode == "stream":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ops.scale_into(x, out, 2.0)
        stream.synchronize()
    else:
        if torch.cuda.device_count() < 2:
            pytest.skip("one GPU")
        x = x.to("cuda:1")
        out = torch.empty_like(x)
        ops.scale_into(x, out, 2.0)
    torch.cuda.synchronize()
    assert torch.equal(out, x * 2)


def test_torch_warns_of_nothing(device):
    x, factor = tensors("scale", device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.scale(x, factor).sum().backward()


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gluon_torch.launch(ops.scale_kernel, (1,), x, out, x.numel(), 2.0, BLOCK=ops.BLOCK)
    return out


twice_launched = gluon_torch.op("gluon_tests::twice_launched", doubled)


@pytest.mark.parametrize("name", ["scale", "norm"])
def test_shapes_on_the_meta_device(name):
    arguments = tensors(name, "meta")
    result = getattr(ops, name)(*arguments)
    first = result[0] if isinstance(result, tuple) else result
    assert first.device.type == "meta" and first.shape == arguments[0].shape


def test_an_op_without_a_fake_has_a_shape_on_the_meta_device():
    x = torch.randn(3, 5, device="meta")
    assert twice_launched(x).shape == (3, 5) and twice_launched(x).is_meta
    with torch.device("meta"):
        assert twice_launched(torch.randn(7)).shape == (7,)
    with pytest.raises(DeviceError):  # one tensor on it alone is a mistake
        gluon_torch.launch(ops.scale_kernel, (1,), x, torch.empty(15), 15, 2.0, BLOCK=ops.BLOCK)
