"""A launch in a function that also tells the shapes of its results."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from gluon_core.errors import DeviceError

__all__ = ["launch"]


def launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> Any:
    """`kernel[grid](*args, **options)` in a function under `gluon_core.torch.op`.

    It differs where there is no memory to work on. While torch propagates shapes, and where all
    tensors are on the device "meta", nothing is launched, so that the function itself gives the shape
    of its results.

    Args:
        kernel: a `gluon.jit` function, also autotuned.
        grid: as in `kernel[grid]`.
        args: arguments of the kernel.
        options: further arguments, and launch options such as `num_warps`.

    Returns:
        The result of `kernel[grid](...)`; None where nothing is launched.
    """
    if torch._C._len_torch_dispatch_stack():  # some mode of torch takes part in every call
        if FakeTensor in set(map(type, tree_leaves((args, options)))):
            return None
    try:
        return kernel[grid](*args, **options)
    except DeviceError:
        leaves = tree_leaves((args, options))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and all(tensor.is_meta for tensor in tensors):
            return None
        raise
