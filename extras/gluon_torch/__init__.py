"""Kernels as operators of PyTorch.

    import torch
    import gluon_core as gluon

    @gluon.torch.op("mylib::scale", mutates_args=("out",))
    def scale(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
        scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), factor, BLOCK=1024)

`torch.compile`, `torch.export`, autograd, autocast and vmap then know the kernel:
its parameters, the tensors it writes, the shapes of its results, its gradient. The first name that is taken
from this package imports torch; nothing else in the core does.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_torch.batch import one_by_one
    from gluon_torch.checks import debug
    from gluon_torch.launches import launch
    from gluon_torch.ops import Op, get, op
    from gluon_torch.sequences import planned, sequence

__all__ = [
    "Op",
    "debug",
    "get",
    "is_plain",
    "launch",
    "one_by_one",
    "op",
    "planned",
    "prepare",
    "route",
    "sequence",
    "signature",
    "with_gradient",
]

_MODULES = {
    "Op": "ops",
    "debug": "checks",
    "get": "ops",
    "launch": "launches",
    "one_by_one": "batch",
    "op": "ops",
    "is_plain": "prepared",
    "planned": "sequences",
    "prepare": "prepared",
    "route": "prepared",
    "sequence": "sequences",
    "signature": "prepared",
    "with_gradient": "gradients",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "gluon_core.torch makes kernels operators of PyTorch, and torch is not installed. "
            "Install it with `pip install torch`; kernel[grid](...) takes NumPy arrays without it."
        ) from error
    value = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
