"""Shared by tests of launches: a fresh start, a call with its result, and a device that is plugged in."""

import numpy as np
import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core.registry.load import registry
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing remembered, nothing on disk, no GPU and no wish for a target."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    monkeypatch.delenv("GLUON_NO_JIT", raising=False)
    for backend in registry().backends.values():
        if not backend.simulates:
            monkeypatch.setattr(type(backend.device), "target", lambda self, index=0: None)
            monkeypatch.setattr(type(backend.device), "count", lambda self: 0)
    for kernel in vars(kernels).values():
        if isinstance(kernel, gluon.GluonJITFunction):
            kernel.forget()


def scaled(n=1000, factor=2.0, x=None, **options):
    x = torch.arange(n, dtype=torch.float32) if x is None else x
    y = torch.zeros_like(x) if isinstance(x, torch.Tensor) else np.zeros_like(x)
    compiled = kernels.scale[(triton.cdiv(n, 256),)](x, y, n, factor, 256, LAYOUT=L32, **options)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x) * factor)
    return compiled


def plug_in(monkeypatch, name="nvidia", spelling="sm_90", count=1):
    backend = registry().backend(name)
    target = registry().target(spelling)
    monkeypatch.setattr(type(backend.device), "target", lambda self, index=0: target)
    monkeypatch.setattr(type(backend.device), "count", lambda self: count)
    monkeypatch.setattr(type(backend.device), "current", lambda self: 0)
    return backend


def compiled_count(kernel):
    return len(kernel.dispatcher.forms)


class OnDevice:
    """Says it is a tensor on some device."""

    dtype = torch.float32

    def __init__(self, kind, index=0):
        self.device = torch.device(kind, index)

    def data_ptr(self):
        return 256
