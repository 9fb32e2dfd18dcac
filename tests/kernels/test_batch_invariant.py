"""The same bits for a row, whatever other rows there are: products, norms, attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gluon_core as gluon
import gluon_kernels
from gluon_core.registry.load import registry
from gluon_report.example import Arrays, device_target
from gluon_tune import numpy_of
from tests.kernels import cases
from tests.kernels.launched import on_target

pytestmark = [pytest.mark.once, pytest.mark.sampled(24)]
SIMULATED = ["sim:sm_90", "sim:gfx942"]


def module(name):
    return cases.module(name)


def bits(array):
    array = np.ascontiguousarray(numpy_of(array))
    return array.view(f"u{array.itemsize}")


def same(one, other):
    return bool((bits(one) == bits(other)).all())


@pytest.fixture(params=[*SIMULATED, pytest.param("gpu", marks=pytest.mark.gpu)])
def target(request):
    """Simulated ones, and the device."""
    if request.param != "gpu":
        return registry().target(request.param)
    resolved = device_target()
    if resolved is None:
        pytest.skip("no GPU")
    return resolved


def product(target, a, b, c_type="float32", chunk=64, **choices):
    """`a @ b`: all rows of the simulator's arguments may be given."""
    example = module("matmul_batch_invariant").EXAMPLES[0]
    sizes = (a.shape[0], b.shape[1], b.shape[0])
    args = example.arguments(Arrays(target), False, sizes, chunk=chunk)
    args.update(a=a, b=b, c=Arrays(target).empty(sizes[:2], c_type))
    config = example.configure(target, chunk=chunk, **choices)
    example.launch(args, config, target=target)
    return args["c"]


@pytest.mark.sampled(8)
def test_products_of_one_row_and_of_many(target):
    """Programs share tiles of few rows, and keep those of many for themselves."""
    new = Arrays(target)
    a, b = new.random((133, 200), "bfloat16"), new.random((200, 72), "bfloat16")
    many = product(target, a, b, shared=False)
    for rows in (slice(0, 1), slice(66, 67), slice(60, 133)):
        assert same(product(target, a[rows], b), many[rows])
        assert same(product(target, a[rows], b, shared=False), many[rows])
    wanted = numpy_of(a).astype(np.float64) @ numpy_of(b).astype(np.float64)
    assert np.abs(numpy_of(many) - wanted).max() < 1e-5 * np.abs(wanted).max()
    # Where a sum is cut does matter: this test can fail.
    assert not same(product(target, a, b, chunk=32), many)


@pytest.mark.parametrize("spec", [*SIMULATED, pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_operator(spec, monkeypatch):
    if spec != "gpu":
        monkeypatch.setenv("GLUON_TARGET", spec)
    elif device_target() is None:
        pytest.skip("no GPU")
    device = "cpu" if spec != "gpu" else "cuda"
    torch.manual_seed(0)
    b = torch.randn(1100, 72, device=device).bfloat16()
    a = torch.randn(100, 1100, device=device).bfloat16().requires_grad_()
    many = gluon_kernels.matmul_batch_invariant(a, b, out_dtype=torch.float32)
    wanted = a.double() @ b.double()
    assert (many - wanted).abs().max() < 1e-5 * wanted.abs().max()
    for rows in (slice(0, 1), slice(63, 66)):
        few = gluon_kernels.matmul_batch_invariant(a[rows], b, out_dtype=torch.float32)
        assert torch.equal(few, many[rows])
    torch.library.opcheck(torch.ops.gluon_kernels.matmul_batch_invariant, (a, b))
    (grad,) = torch.autograd.grad(many[:3].sum(), a)
    assert (grad[:3] - b.float().sum(1)).abs().max() < 0.01 * grad.abs().max()
    assert not grad[3:].any()
    empty = gluon_kernels.matmul_batch_invariant(a[:, :0].detach(), b[:0])
    assert empty.shape == (100, 72) and not empty.any()
    with pytest.raises(gluon.errors.ShapeError, match="multiplies matrices"):
        gluon_kernels.matmul_batch_invariant(a[None].detach(), b[None])


@pytest.fixture(params=[*SIMULATED, pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """The device of tensors whose operators run on a target."""
    if request.param == "gpu":
        if device_target() is None:
            pytest.skip("no GPU")
        yield "cuda"
        return
    with on_target(request.param):
        yield "cpu"


def normal(device, *shape):
    return torch.randn(shape, device=device).bfloat16()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("columns", [304, 9000])
def test_norms(device, columns):
    """Few rows have one configuration, if all are aligned alike."""
    x, weight = normal(device, 9, columns), normal(device, columns)
    for norm in (gluon_kernels.rms_norm, gluon_kernels.layer_norm):
        many = norm(x, weight)
        for rows in (slice(0, 1), slice(5, 8)):
            assert torch.equal(norm(x[rows], weight), many[rows])
    many = gluon_kernels.softmax(x)
    assert torch.equal(gluon_kernels.softmax(x[3:4]), many[3:4])


def test_latent_attention_of_one_token(device):
    """Alone, and among others whose longest sequence is longer."""
    q, cache = normal(device, 3, 16, 96), normal(device, 12, 16, 96)
    table = torch.arange(12, dtype=torch.int32, device=device).reshape(3, 4)
    lengths = torch.tensor([64, 7, 40], dtype=torch.int32, device=device)
    many = gluon_kernels.mla_decode(q, cache, table, lengths, latent=64, scale=0.1)
    one = gluon_kernels.mla_decode(q[2:], cache, table[2:, :3], lengths[2:], latent=64, scale=0.1)
    assert torch.equal(one, many[2:])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_packed_sequences(device, causal):
    ends = torch.tensor([0, 130, 170], dtype=torch.int32, device=device)
    q, k, v = (normal(device, 170, heads, 64) for heads in (4, 2, 2))
    many = gluon_kernels.attention_varlen(q, k, v, ends, causal=causal)
    alone = [x[130:] for x in (q, k, v)]
    one = gluon_kernels.attention_varlen(*alone, ends[1:] - 130, causal=causal)
    assert torch.equal(one, many[130:])
    whole = gluon_kernels.attention(
        *(x[None, 130:].transpose(1, 2) for x in (q, k, v)), causal=causal
    )
    again = gluon_kernels.attention(
        *(x[None, 130:].transpose(1, 2).expand(2, -1, -1, -1) for x in (q, k, v)), causal=causal
    )
    assert torch.equal(again[1], whole[0])
