"""The addresses that launches pass, with a driver that records."""

import ctypes

import pytest
import torch

from gluon_core.errors import (
    DeviceError,
    RecompileError,
)
from gluon_core.registry.load import registry
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32
from tests.core.launching import OnDevice, compiled_count, fresh, plug_in, scaled  # noqa: F401

pytestmark = pytest.mark.once


@pytest.fixture
def cuda(monkeypatch):
    """An NVIDIA device that records launches and takes CPU tensors."""
    from tests.backends.fake_cuda import FakeCuda, plug_cuda

    fake = FakeCuda([8, 8, 4, 4])
    backend = plug_in(monkeypatch)
    plug_cuda(monkeypatch, fake)
    monkeypatch.setattr(type(backend.device), "tensor_device", "cpu")
    monkeypatch.setenv("GLUON_TARGET", "nvidia:sm_90")
    return fake


def read(launch):
    x, y, n, factor = launch.parameters
    return (
        int.from_bytes(x, "little"),
        int.from_bytes(y, "little"),
        ctypes.c_int32.from_buffer_copy(n).value,
        ctypes.c_float.from_buffer_copy(factor).value,
    )


def test_a_gpu_launch_passes_the_addresses_of_every_call(cuda):
    for n, factor in ((64, 1.5), (96, 2.5), (128, -1.0)):
        x, y = torch.ones(256), torch.zeros(256)
        kernels.scale[(2, 3)](x, y, n, factor, 64, L32)
        assert read(cuda.launches[-1]) == (x.data_ptr(), y.data_ptr(), n, factor)
        assert cuda.launches[-1].grid == (2, 3, 1)
    assert compiled_count(kernels.scale) == 1
    handle = kernels.scale.prepare(x, y, 64, 2.0, 64, L32, grid=5)
    handle(y, x, 32, 0.5, 64, L32)
    assert read(cuda.launches[-1]) == (y.data_ptr(), x.data_ptr(), 32, 0.5)
    assert cuda.launches[-1].grid == (5, 1, 1)


def test_the_simulator_and_a_gpu_take_turns_with_one_kernel(cuda, monkeypatch):
    x, y = torch.ones(64), torch.zeros(64)
    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    assert len(cuda.launches) == 1 and y.sum() == 0
    kernels.scale[1](x, y, 64, 2.0, 64, L32, target="sim:sm_90")
    kernels.scale[1](x, y, 64, 2.0, 64, L32, target="sim:sm_90")
    assert len(cuda.launches) == 1 and y.sum() == 128
    kernels.scale[1](x, y, 64, 3.0, 64, L32)
    kernels.scale[1](x, y, 64, 3.0, 64, L32)
    assert len(cuda.launches) == 3
    assert read(cuda.launches[-1]) == (x.data_ptr(), y.data_ptr(), 64, 3.0)


def test_facts_of_the_driver_are_on_the_compiled_kernel(cuda):
    x, y = torch.ones(64), torch.zeros(64)
    compiled = kernels.scale[1](x, y, 64, 2.0, 64, L32)
    assert (compiled.n_regs, compiled.n_spills, compiled.n_max_threads) == (40, 4, 1024)
    assert compiled.function == 0x30 and compiled.module == 0x20
    stages = list(compiled.asm)
    assert stages == ["ttgir", "llir", "ptx", "cubin"]


def test_strict_mode_takes_entries_on_disk(cuda, monkeypatch):
    x, y = torch.ones(64), torch.zeros(64)
    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    kernels.scale.forget()
    monkeypatch.setenv("GLUON_NO_JIT", "1")
    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    assert len(cuda.launches) == 2
    with pytest.raises(RecompileError, match="n: i32"):
        kernels.scale[1](x, y, 63, 2.0, 64, L32)


def test_two_devices_are_distinguished(cuda, monkeypatch):
    backend = registry().backend("nvidia")
    scopes, current = [], [0]

    class Scope:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            scopes.append(self.index)
            self.before, current[0] = current[0], self.index

        def __exit__(self, *details):
            current[0] = self.before

    monkeypatch.setattr(type(backend.device), "count", lambda self: 2)
    monkeypatch.setattr(type(backend.device), "current", lambda self: current[0])
    monkeypatch.setattr(type(backend.device), "scope", lambda self, index: Scope(index))
    monkeypatch.setattr(type(backend.device), "tensor_device", "cuda")
    # torch refuses the index of a device that this machine lacks.
    monkeypatch.setattr(type(backend.device), "stream_getter", lambda self: lambda index: 0)
    first, second = OnDevice("cuda", 0), OnDevice("cuda", 1)
    for _ in range(2):
        kernels.scale[1](first, first, 64, 2.0, 64, L32)
    assert scopes == [0]  # while loading
    for _ in range(2):
        kernels.scale[1](second, second, 64, 2.0, 64, L32)
    assert scopes == [0, 1, 1, 1] and current == [0]
    with pytest.raises(DeviceError, match="different devices"):
        kernels.scale[1](first, second, 64, 2.0, 64, L32)
    assert len(cuda.launches) == 4
