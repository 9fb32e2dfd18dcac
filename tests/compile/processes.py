"""Kernels for processes that compile, and a look at these."""

import gluon_core as gluon
from gluon_core.compiler import stages
from tests.core import kernels_for_runtime as kernels


def put(value, target="sm_80", **more):
    return gluon.compile(
        kernels.put, target=target, signature={"y": "*fp32"}, constexprs={"VALUE": value}, **more
    )


def workers_now():
    return stages._pool.pids()


def stage_of(monkeypatch, name, act):
    """Let `act` run before NVIDIA's stage `name`."""
    from triton.backends.nvidia.compiler import CUDABackend

    real = getattr(CUDABackend, f"make_{name}")

    def replaced(self, *args, **kwargs):
        act()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(CUDABackend, f"make_{name}", replaced)
