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

pytestmark = pytest.mark.once
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


@pytest.mark.parametrize("index", [0, 1, 4])
def test_norms(target, index):
    """The configuration comes from the columns alone."""
    row_norm = module("row_norm")
    example = [*row_norm.EXAMPLES, *row_norm.MORE][index]
    many = example.arguments(Arrays(target), False, (9, 300))
    config = example.configure(target, False, columns=300)
    example.launch(many, config, target=target)
    for rows in (slice(0, 1), slice(5, 8)):
        few = example.arguments(Arrays(target), False, (rows.stop - rows.start, 300))
        few.update(src=many["src"][rows], weight=many["weight"], bias=many["bias"])
        example.launch(few, config, target=target)
        assert same(few["dst"], many["dst"][rows]) and same(few["scale"], many["scale"][rows])


def sequences_of(args, chosen, *names):
    """Arguments of some of the sequences only, with results that nobody has written."""
    subset = {**args, **{name: args[name][chosen] for name in names}}
    subset["parts"] = subset["parts"] * float("nan")
    return subset


def test_attention_of_one_token(target):
    paged = module("attention_paged")
    args = paged.arguments(Arrays(target), False)
    config = paged.config(target.warp_size)
    many = paged.decode(args, config, target=target)
    queries = args["heads"] * 3
    chosen = slice(1, 2)
    alone = sequences_of(args, chosen, "q", "table", "lengths")
    alone.update(parts=args["parts"][queries : 2 * queries] * 0)
    assert same(paged.decode(alone, config, target=target)[0], many[1])


def test_latent_attention_of_one_token(target):
    """Alone, with one program for all of its parts, and among others with two."""
    latent = module("attention_mla")
    args = latent.arguments(Arrays(target), False)
    config = latent.config(target.warp_size)
    many = latent.decode(args, config, target=target)
    alone = sequences_of(args, slice(2, 3), "q", "table", "lengths", "parts", "logsums")
    assert same(latent.decode(alone, config, 1, target=target)[0], many[2])
    # A batch whose longest sequence is longer has room for more parts.
    longer = {**alone, "parts": np.empty((1, 5, 9, 64), np.float32), "most": 9}
    longer["logsums"] = np.empty((1, 5, 9), np.float32)
    if target.simulated:
        assert same(latent.decode(longer, config, target=target)[0], many[2])
        wanted = latent.attention(args)
        assert np.abs(many.astype(np.float64) - wanted).max() < 1e-2 * np.abs(wanted).max()


def test_attention_forward(target):
    example = module("attention").EXAMPLES[0]
    args = example.arguments(Arrays(target), False)
    example.launch(args, example.configure(target), target=target)
    alone = {name: args[name][1:] for name in ("q", "k", "v")}
    alone = {**args, **alone, "out": args["out"][1:] * 0}
    example.launch(alone, example.configure(target), target=target)
    assert same(alone["out"][0], args["out"][1])


@pytest.mark.parametrize("spec", ["sim:sm_90", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_attention_of_packed_sequences(spec):
    target = registry().target(spec) if spec != "gpu" else device_target()
    packed = module("attention_varlen_hopper")
    example = packed.EXAMPLES[0]
    if target is None or example.lacks(target):
        pytest.skip("no Hopper")
    args = example.arguments(Arrays(target), False, [130, 40], 4, [130, 50])
    config = example.configure(target)
    example.launch(args, config, target=target)
    alone = example.arguments(Arrays(target), False, [40], 4, [50])
    alone.update({name: args[name][130:] for name in "qkv"})
    example.launch(alone, config, target=target)
    assert same(alone["out"], args["out"][130:])
