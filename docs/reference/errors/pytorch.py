import os

os.environ["GLUON_TARGET"] = "sim:hopper"

import torch
from show_error import show_error
from torch import Tensor

import gluon_core as gluon
import gluon_core.torch as gluon_torch
from gluon_core import errors
from gluon_core import language as gl


@gluon.jit
def ones(x):
    gl.store(x + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), 1.0)


# -- TensorError: pass `x.to_dense()`; of a FakeTensor, a subclass, or under vmap, register an op (`gluon_core.torch.op`)
show_error(errors.TensorError, lambda: ones[(1,)](torch.ones(128).to_sparse()))
#> TensorError: ones(x): kernels take strided tensors; expected torch.strided, got torch.sparse_coo. Pass its parts, such as x.values() and x.indices(), or x.to_dense().

# -- OpNameError: ops are called `namespace::name`
show_error(errors.OpNameError, lambda: gluon_torch.op("ones")(torch.clone))
#> OpNameError: name: not the name of an op; expected "library::name", both identifiers, got 'ones'

# -- OpSchemaError: annotate every parameter and the result
def untyped(x: Tensor, y) -> Tensor: ...


show_error(errors.OpSchemaError, lambda: gluon_torch.op("docs::untyped")(untyped))
#> OpSchemaError: untyped(y): an op needs the type of each parameter; expected an annotation such as torch.Tensor, int, float or list[torch.Tensor]. Write y: torch.Tensor.

# -- MutationError: declare it: `op("docs::silent", mutates_args=("out",))`; looked for under `gluon_core.torch.debug()`
@gluon_torch.op("docs::silent")
def silent(out: Tensor) -> None:
    ones[(1,)](out)


with gluon_torch.debug():
    show_error(errors.MutationError, lambda: silent(torch.zeros(128)))
#> MutationError: out: docs::silent wrote an argument that it does not declare; expected mutates_args to name 'out', got mutates_args=(). Without it torch reorders and removes calls wrongly.

# -- FakeResultError: let `fake=` tell the shape, dtype and device of the real result
@gluon_torch.op("docs::halved", fake=lambda x: x.new_empty(x.shape[0] // 2))
def halved(x: Tensor) -> Tensor:
    return x.clone()


with gluon_torch.debug():
    show_error(errors.FakeResultError, lambda: halved(torch.zeros(128)))
#> FakeResultError: result 0 of docs::halved: the fake's result differs from the kernel's; expected float32[128] with strides [1] on cpu, got float32[64] with strides [1] on cpu. Correct fake= or shape=: torch.compile allocates and indexes by it.

# -- MissingGradientError: detach what the op takes, or give it `backward=`
@gluon_torch.op("docs::counted")
def counted(x: Tensor) -> Tensor:
    return x.abs()


show_error(errors.MissingGradientError, lambda: counted(torch.ones(4, requires_grad=True)).sum().backward())
#> MissingGradientError: docs::counted has no gradient, and one of its results was differentiated. Detach the tensors that it takes, or call it under torch.no_grad(); an op of your own takes backward=.

# -- TangentError: call `doubled` itself; for a Hessian, `torch.func.jacrev` twice
@gluon_torch.op("docs::doubled", backward=lambda ctx, grad: grad * 2)
def doubled(x: Tensor) -> Tensor:
    return x * 2


with torch.autograd.forward_ad.dual_level():
    dual = torch.autograd.forward_ad.make_dual(torch.ones(4), torch.ones(4))
    show_error(errors.TangentError, lambda: torch.ops.docs.doubled(dual))
#> TangentError: docs::doubled(x): forward mode has no way through torch.ops, and none through torch.func.grad; got a tensor with a tangent. Call the op that gluon_core.torch.op returned, or gluon_core.torch.get(name); for a Hessian take torch.func.jacrev twice.

# -- NondeterministicError: leave deterministic mode, or take another op
@gluon_torch.op("docs::by_chance", deterministic=False)
def by_chance(x: Tensor) -> Tensor:
    return x.clone()


torch.use_deterministic_algorithms(True)
show_error(errors.NondeterministicError, lambda: by_chance(torch.zeros(4)))
torch.use_deterministic_algorithms(False)
#> NondeterministicError: docs::by_chance is declared deterministic=False, and torch.use_deterministic_algorithms(True) is in force. Take another op, or warn_only=True.
