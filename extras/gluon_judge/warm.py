"""A first launch and first operations of torch in the host, for the processes of candidates to inherit their imports."""

from __future__ import annotations

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_judge.operations import Operations

__all__ = ["warm_up"]


@gluon.jit
def _add_one(x, BLOCK: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    pointers = x + gl.arange(0, BLOCK, layout=layout)
    gl.store(pointers, gl.exp(gl.load(pointers)) + 1.0)


def warm_up(warp_size: int, device: str = "cpu") -> None:
    """Launch a kernel on tensors of a device, and call operations of torch under observation."""
    x = torch.zeros(128, device=device)
    _add_one[(1,)](x, 128, gl.BlockedLayout([1], [warp_size], [4], [0]))
    with Operations(0xFF):
        y = torch.empty_like(x).copy_(x)
        torch.mm(y[:16].view(4, 4), x[:16].view(4, 4))
