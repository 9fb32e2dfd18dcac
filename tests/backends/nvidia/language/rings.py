"""Descriptors of arrays, and compilers without fences, for the tests of rings."""

from __future__ import annotations

from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_nvidia.reference import proxy


def described(array, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float32)
    return TensorDescriptor.from_tensor(array, block, layout)


def remove_implied_fences(monkeypatch):
    """Let the compiler add no fences between the proxies."""
    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)
