"""Ops under `torch.func`: gradients of gradients, batches of either, forward mode."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import gluon_kernels as kernels
from gluon_core.errors import TangentError
from tests.torch import ops_for_tests as ops

pytestmark = [pytest.mark.once]
func = torch.func

PAIRS = {
    "scale": (lambda x: ops.scale(x, 2.5), lambda x: x * 2.5),
    "softmax": (kernels.softmax, lambda x: x.softmax(-1)),
    "rms_norm": (kernels.rms_norm, lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)),
}  # fmt: skip


def squares(f):
    return lambda x: f(x).square().sum()


TRANSFORMS = {
    "grad": lambda f, x: func.grad(squares(f))(x),
    "vmap of grad": lambda f, x: func.vmap(func.grad(squares(f)))(x),
    "grad of vmap": lambda f, x: func.grad(squares(func.vmap(f)))(x),
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacrev of jacrev": lambda f, x: func.jacrev(func.jacrev(squares(f)))(x),
    "jvp": lambda f, x: func.jvp(f, (x,), (x.sin(),)),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "grad of jvp": lambda f, x: func.grad(lambda x: func.jvp(f, (x,), (x.sin(),))[1].square().sum())(x),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore:.*batching rule")
def test_transforms(name, transform, device):
    torch.manual_seed(0)
    x = torch.randn(2, 5, device=device)
    mine, right = (TRANSFORMS[transform](f, x) for f in PAIRS[name])
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def test_dual_tensors(device):
    x, tangent = torch.randn(2, 5, device=device), torch.randn(2, 5, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        values, indices = kernels.topk(dual, 3)
        torch.testing.assert_close(
            forward_ad.unpack_dual(values).tangent, tangent.gather(-1, indices)
        )
        assert torch.equal(ops.scale(x, 2.0), x * 2)  # no tangent, no other way
        with pytest.raises(TangentError, match=r"gluon_tests::scale\(x\).*torch\.ops"):
            torch.ops.gluon_tests.scale(dual, 2.0)


def test_forward_mode_of_a_gradient_is_refused(device):
    x = torch.randn(1, 4, device=device)
    with pytest.raises(TangentError, match="jacrev twice"):
        func.hessian(squares(kernels.softmax))(x)
