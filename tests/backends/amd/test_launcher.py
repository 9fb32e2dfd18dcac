"""Calls that reach the HIP driver: Triton's own launcher with a driver that records."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

import gluon_core as gluon
from gluon_amd.launcher import make_launcher
from gluon_core import language as gl
from gluon_core.amd.gfx1250 import TensorDescriptor
from gluon_core.compiler import compile
from gluon_core.errors import DeviceError, LaunchError, LimitError
from gluon_core.language.amd.gfx1250 import tdm
from gluon_core.registry.load import registry
from gluon_core.testing import bind, triton_at_least

PADDED = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
PLAIN = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])


class FakeHip:
    """Replace Triton's HIP driver, and keep the arguments of the launch in C.

    Args:
        monkeypatch: pytest's.
        shared: most bytes of LDS of a block.
        fails: what a launch raises.
    """

    def __init__(self, monkeypatch, shared=320 * 1024, fails=None, backend="hip"):
        from triton.backends.amd import driver as hip
        from triton.runtime import driver

        self.launches = []
        self.descriptors = []
        self.fails = fails
        active = hip.HIPDriver.__new__(hip.HIPDriver)
        active.utils = SimpleNamespace(
            launch=self._launch,
            build_signature_metadata=self._signature,
            create_tdm_descriptor=self._descriptor,
            get_device_properties=lambda device: {"max_shared_mem": shared},
            load_binary=lambda *args: ("module", "function", 40, 0, 1024),
        )
        active.launcher_cls = hip.HIPLauncher
        active.get_current_target = lambda: SimpleNamespace(backend=backend)
        active.get_current_device = lambda: 0
        if hasattr(hip, "annotate_arguments"):  # 3.7 on; classes that its module in C has
            monkeypatch.setattr(hip, "PyKernelArg", lambda **fields: SimpleNamespace(**fields))
            for index, name in enumerate(("ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE")):
                monkeypatch.setattr(hip, name, index)
        else:
            monkeypatch.setattr(hip, "compile_module_from_src", self._compiled)
            monkeypatch.setattr(hip, "_get_path_to_hip_runtime_dylib", lambda: "libamdhip64.so")
        monkeypatch.setattr(driver, "_active", active, raising=False)
        if driver.active is not active:
            monkeypatch.setattr(driver, "active", active)

    def _signature(self, kinds):
        self.kinds = list(kinds)
        return b""

    def _compiled(self, src, name, **rest):
        # The parameters of the kernel in the order of the launcher's `void *params[]`.
        self.source = src
        return SimpleNamespace(launch=self._launch)

    def _descriptor(self, *args):
        self.descriptors.append(args)
        return f"D#{len(self.descriptors)}"

    def _launch(self, *args):
        if self.fails:
            raise RuntimeError(self.fails)
        if isinstance(args[-1], (list, tuple)):
            head, arguments = args[:-1], args[-1]
        else:
            head, arguments = args[:11], args[11:]
        self.launches.append((head[1:5], head[5], list(arguments)))


@gluon.jit
def copy(desc, out, n, LAYOUT: gl.constexpr):
    _copy(desc, out, n, LAYOUT)


@gluon.jit
def copy_pair(pair, out, n, LAYOUT: gl.constexpr):
    _copy(pair[0], out, n * pair[1], LAYOUT)


@gluon.jit
def _copy(desc, out, n, LAYOUT: gl.constexpr):
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
    tdm.async_load(desc, [0, 0], smem)
    tdm.async_wait(0)
    row = gl.arange(0, 32, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    gl.store(out + row[:, None] * n + column[None, :], smem.load(LAYOUT))


X = torch.zeros(100, 128, dtype=torch.float16)[:, :120]
OUT = torch.zeros(32, 64, dtype=torch.float16)
BLOCKED = gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0])


def compiled(kernel, *arguments):
    source, options = bind(kernel, (*arguments, BLOCKED), {"num_warps": 4}, 32)
    return compile(source, registry().target("gfx1250"), options)


@pytest.mark.once
@pytest.mark.parametrize("layout, pad", [(PADDED, (64, 8)), (PLAIN, (0, 0))])
def test_a_descriptor_is_expanded_as_the_kernel_takes_it(monkeypatch, layout, pad):
    hip = FakeHip(monkeypatch)
    desc = TensorDescriptor.from_tensor(X, [32, 64], layout)
    kernel = compiled(copy, desc, OUT, 64)
    make_launcher(kernel)((2, 3, 1), 77, desc, OUT, 64, None)
    # Bits, box, warps, gaps, shape, strides, address.
    box = [32, 64]
    assert hip.descriptors == [(16, box, 4, *pad, [100, 120], [128, 1], X.data_ptr())]
    ((place, function, arguments),) = hip.launches
    assert (place, function) == ((2, 3, 1, 77), "function")
    expected = ["D#1", 100, 120, 128, 1, OUT, 64, None]
    assert len(arguments) == len(expected)
    assert all(a is b or a == b for a, b in zip(arguments, expected) if a is not OUT)
    assert arguments[5] is OUT
    _as_the_machine_code_wants(kernel, hip)


@pytest.mark.once
def test_a_descriptor_in_a_tuple(monkeypatch):
    hip = FakeHip(monkeypatch)
    desc = TensorDescriptor.from_tensor(X, [32, 64], PADDED)
    kernel = compiled(copy_pair, (desc, 2), OUT, 64)
    make_launcher(kernel)((1, 1, 1), 0, (desc, 2), OUT, 64, None)
    ((_, _, arguments),) = hip.launches
    flat = [leaf for a in arguments for leaf in (a if isinstance(a, (tuple, list)) else [a])]
    assert flat[:6] == ["D#1", 100, 120, 128, 1, 2] and flat[6] is OUT and flat[7] == 64
    _as_the_machine_code_wants(kernel, hip)


def _as_the_machine_code_wants(values, hip):
    """The types that the launcher packs are those of the kernel's parameters."""
    (line,) = re.findall(r"^define amdgpu_kernel .*$", values.asm["llir"], re.MULTILINE)
    wanted = re.findall(r"[(,] ?(\{[ i32,]+\}|i64|i32|ptr addrspace\(1\))", line.split("@", 1)[1])
    assert wanted[0].count("i32") == 12 and wanted[1:5] == ["i32", "i32", "i64", "i64"]
    if triton_at_least(3, 7):
        kinds = {"tensordesc": wanted[0], "i32": "i32", "i64": "i64"}
        packed = [kinds.get(kind, "ptr addrspace(1)") for kind in hip.kinds]
        assert packed == wanted[: len(packed)]
    else:
        # The fixed arguments of the launch end with `O`s; the kernel's follow.
        assert re.search(r'"piiiKKOOOOO[OilLKkIfd]*"', hip.source)


def test_refusals_of_the_driver(monkeypatch):
    FakeHip(monkeypatch, fails="out of memory")
    desc = TensorDescriptor.from_tensor(X, [32, 64], PADDED)
    launch = make_launcher(compiled(copy, desc, OUT, 64))
    with pytest.raises(LaunchError, match="out of memory"):
        launch((1, 1, 1), 0, desc, OUT, 64, None)


def test_too_much_lds_is_refused_before_loading(monkeypatch):
    FakeHip(monkeypatch, shared=1024)
    desc = TensorDescriptor.from_tensor(X, [32, 64], PADDED)
    with pytest.raises(LimitError, match="at most 1024 bytes"):
        make_launcher(compiled(copy, desc, OUT, 64))


def test_another_driver_is_no_amd_device(monkeypatch):
    FakeHip(monkeypatch, backend="cuda")
    desc = TensorDescriptor.from_tensor(X, [32, 64], PADDED)
    with pytest.raises(DeviceError, match="not HIP"):
        make_launcher(compiled(copy, desc, OUT, 64))
