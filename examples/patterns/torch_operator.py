"""Make a kernel an operator of PyTorch, with a gradient, under `torch.compile`.

    python examples/patterns/torch_operator.py

`gluon.torch.op` takes the schema from the annotations. The fake function gives shapes to the compiler, the backward
function is made of operators again.
"""

import os

import torch

import gluon_core as gluon
from gluon_core import language as gl

PLACE = gluon.testing.place()
os.environ["GLUON_TARGET"] = str(PLACE.target)  # of the launches below, and of those in the graph


@gluon.jit(layouts="auto")
def silu_kernel(x, out, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    values = gl.load(x + i, mask=i < n, other=0.0)
    gl.store(out + i, values / (1.0 + gl.exp(-values)), mask=i < n)


def fake(x):
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(x)
    return grad * (gate + silu(x) * (1 - gate))


@gluon.torch.op("school::silu", fake=fake, backward=backward, setup_context=keep)
def silu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gluon.torch.launch(silu_kernel, (gluon.cdiv(x.numel(), 512),), x, out, x.numel(), 512)
    return out


def main():
    x = torch.randn(3, 700, device=PLACE.device, requires_grad=True)
    y = torch.compile(lambda x: silu(x * 2).sum(), backend="aot_eager", fullgraph=True)(x)
    (grad,) = torch.autograd.grad(y, x)
    wanted = torch.nn.functional.silu(x * 2).sum()
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(grad, *torch.autograd.grad(wanted, x))
    print(
        f"SiLU as an operator on {PLACE.target}: value and gradient as torch's, compiled in one graph"
    )


if __name__ == "__main__":
    main()
