import os

os.environ["GLUON_TARGET"] = "sim:hopper"

import torch

import gluon_core as gluon
import gluon_core.torch
from gluon_core import language as gl


@gluon.jit
def twice(x, out, N: gl.constexpr):
    i = gl.arange(0, N, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + i, 2 * gl.load(x + i))


# -- gluon.torch.op, gluon.torch.launch, gluon.torch.Op: a function that launches kernels, as an operator
@gluon.torch.op("examples::doubled")
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gluon.torch.launch(twice, (1,), x, out, 128)
    return out


print(doubled(torch.ones(128)).sum().item(), isinstance(doubled, gluon.torch.Op))
#> 256.0 True

# -- gluon.torch.get: an operator by its name
print(gluon.torch.get("examples::doubled") is doubled)
#> True

# -- gluon.torch.one_by_one: a rule for `vmap`: call the operator for each
@gluon.torch.op("examples::plus", vmap="one_by_one")  # `one_by_one(overload)` makes the rule
def plus(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


print(torch.vmap(plus)(torch.ones(3, 128)).sum().item())
print(gluon.torch.one_by_one(torch.ops.examples.doubled.default).__name__)
#> 768.0
#> rule

# -- gluon.torch.debug: compare the declaration of an operator with its kernels
with gluon.torch.debug():
    print(doubled(torch.ones(128)).sum().item())
#> 256.0

# -- gluon.torch.prepare, gluon.torch.signature, gluon.torch.is_plain, gluon.torch.route: a launch whose tensors are those of each call
x, out = torch.ones(128), torch.empty(128)
launch = gluon.torch.prepare(twice, (1,), (x, out, 128), (x, out))
other, result = torch.full((128,), 3.0), torch.empty(128)
if gluon.torch.signature(other, result) == gluon.torch.signature(x, out):
    launch(other, result)
print(result[0].item(), gluon.torch.is_plain(x), gluon.torch.route(x))  # tensors of a CPU take torch's dispatcher
#> 6.0 False 0

# -- gluon.torch.with_gradient: a function with a gradient, past torch's dispatcher
def forward(ctx, x):
    ctx.to_save = (x,)
    return x * x


def gradient(ctx, grad):
    (x,) = ctx.saved_tensors
    return 2 * x * grad


squared = gluon.torch.with_gradient(forward, gradient, gradient)
x = torch.tensor([3.0], requires_grad=True)
print(torch.autograd.grad(squared(x), x)[0].item())
#> 6.0

# -- gluon.torch.sequence, gluon.torch.planned: launches without Python between them, one plan for each signature of tensors
def plan_of(*tensors):  # of the tensors of a call, or of `needs`, the gradient and what is kept
    x = tensors[-1]
    new = torch.empty_like(x)
    launch = gluon.torch.prepare(twice, (1,), (x, new, 128), (x, new))
    return gluon.torch.sequence(1, (lambda: torch.empty(128),), [(launch, (0, 1))], 1)


doubled_by_plans = gluon.torch.planned(plan_of, plan_of)
x = torch.ones(128, requires_grad=True)
print(torch.autograd.grad(doubled_by_plans(x), x, torch.ones(128))[0].sum().item())
#> 256.0
