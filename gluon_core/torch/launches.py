"""A launch that torch's tracers may look through."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_leaves

__all__ = ["launch"]


def launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> Any:
    """`kernel[grid](*args, **options)` in a function under `gluon_core.torch.op`.

    It differs where there is no memory to work on. While torch propagates shapes, nothing is launched,
    so that the function itself tells the shape of what it returns. In an op made with
    `transparent=True`, `torch.compile` is given the kernel in the place of the op.

    Args:
        kernel: a `gluon.jit` function, also autotuned.
        grid: as in `kernel[grid]`.
        args: arguments of the kernel.
        options: further arguments, and launch options such as `num_warps`.

    Returns:
        What `kernel[grid](...)` returns; None where nothing is launched.
    """
    if torch._C._len_torch_dispatch_stack():  # some mode of torch takes part in every call
        classes = set(map(type, tree_leaves((args, options))))
        if FunctionalTensor in classes:
            return torch.library.wrap_triton(kernel)[grid](*args, **options)
        if FakeTensor in classes:
            return None
    return kernel[grid](*args, **options)
