"""Bundles on the emulated driver: NumPy arrays through `GLUON_DRIVER`, and `libcuda.so.1` for code in C."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.bundle import Bundle
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import GluonError
from gluon_runtime import Pointer, errors, open_bundle
from tests.bundle import kernels

pytestmark = pytest.mark.once

LAYOUT = gl.BlockedLayout([4], [32], [4], [0])
CONSTANTS = {"BLOCK": 512, "LAYOUT": LAYOUT}


def _bundle(target):
    bundle = Bundle()
    bundle.add(kernels.scale, kernels.SCALE, CONSTANTS, target=target, grid=4)
    return bundle


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("emulated") / "kernels.glb"
    _bundle("emu:sm_90").write(path)
    return path


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("GLUON_DRIVER", "emu:sm_90")


def _aligned(count):
    room = np.zeros(count + 4, np.float32)
    start = -room.ctypes.data % 16 // 4
    return room[start : start + count]


def test_arrays_of_the_host(path, emulated):
    x, y = _aligned(2048), _aligned(2048)
    x[:] = np.arange(2048)
    kernel = open_bundle(path)["scale"]
    kernel[4](x, y, 2000, 2.5, 512)
    assert (y[:2000] == x[:2000] * 2.5).all() and not y[2000:].any()
    kernel(x, y, 2048, 3.0)
    assert (y == x * 3).all()


def test_an_address_of_nothing_is_a_report(path, emulated):
    from gluon_emu.errors import AccessError

    y = _aligned(2048)
    with pytest.raises(AccessError, match="null pointer"):
        open_bundle(path)["scale"][4](Pointer(0, "fp32"), y, 2000, 2.5, 512)


def test_machine_code_is_refused_with_the_remedy(tmp_path, emulated, capsys):
    _bundle("nvidia:sm_90").write(tmp_path / "kernels.glb")
    x = _aligned(2048)
    with pytest.raises(errors.BundleDriverError, match="NO_BINARY_FOR_GPU"):
        open_bundle(tmp_path / "kernels.glb")["scale"][4](x, x, 2000, 2.5, 512)
    assert "--target emu:sm_90" in capsys.readouterr().err


def test_a_bundle_has_one_code_for_an_architecture():
    bundle = _bundle("nvidia:sm_90")
    with pytest.raises(GluonError, match="as nvidia:sm_90"):
        bundle.add(kernels.scale, kernels.SCALE, CONSTANTS, target="emu:sm_90", grid=4)


@pytest.mark.parametrize(
    "driver, words",
    [
        ("nowhere", "driver 'nowhere'"),
        ("emu:gfx942", "got emu:gfx942"),
        ("emu:sm_9000", "sm_9000"),
    ],
)
def test_an_unknown_driver(path, monkeypatch, driver, words):
    monkeypatch.setenv("GLUON_DRIVER", driver)
    with pytest.raises(errors.BundleDeviceError, match=words):
        open_bundle(path)["scale"][4](_aligned(16), _aligned(16), 16, 1.0, 512)


PROGRAM = """
import ctypes, struct, sys
from gluon_emu.cuda import serve
from gluon_runtime import open_bundle
serve("emu:sm_90")
cuda = ctypes.CDLL("libcuda.so.1")
form = open_bundle(sys.argv[1])["scale"].kernel.forms[0]
code = open_bundle(sys.argv[1]).member(form.code)
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
def out(name, kind, *arguments):
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value
call("cuInit", 0)
module = out("cuModuleLoadData", ctypes.c_void_p, code)
function = out("cuModuleGetFunction", ctypes.c_void_p, module, form.launch.entry.encode())
size = 2048 * 4
x, y = (out("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_uint64(size)) for _ in range(2))
values = (ctypes.c_float * 2048)(*range(2048))
call("cuMemcpyHtoD_v2", x, values, ctypes.c_uint64(size))
arguments = [x, y, ctypes.c_int(2048), ctypes.c_float(2.0), ctypes.c_uint64(0), ctypes.c_uint64(0)]
pointers = (ctypes.c_void_p * 6)(*[ctypes.addressof(one) for one in arguments])
config = ctypes.create_string_buffer(struct.pack("<3I3II4xQQI", 4, 1, 1, 128, 1, 1, 0, 0, 0, 0) + bytes(8))
call("cuLaunchKernelEx", config, function, pointers, None)
call("cuMemcpyDtoH_v2", values, y, ctypes.c_uint64(size))
assert list(values) == [2.0 * i for i in range(2048)]
arguments[1].value = 64
assert cuda.cuLaunchKernelEx(config, function, pointers, None) == 719
print("launched")
"""


@pytest.mark.once
def test_calls_of_libcuda_in_a_process(path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "launched", done.stderr
    assert "a store to 4 bytes at 0x40: a null pointer" in done.stderr


def test_the_report_of_a_kernel_is_that_of_the_assembled_code():
    source = GluonASTSource(kernels.scale, kernels.SCALE, CONSTANTS)
    ours, theirs = (gluon.compile(source, target=name).report() for name in ("emu:sm_90", "sm_90"))
    assert ours == theirs and ours.registers


STANDS_IN = """
import sys, torch
from gluon_emu.errors import AccessError
from gluon_runtime import open_bundle, errors
kernel = open_bundle(sys.argv[1])["scale"]
x, y = torch.randn(2048, device="cuda"), torch.zeros(2048, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kernel[4](x, y, 2048, 2.0, 512)
assert not y.any()
graph.replay()
assert torch.equal(y, x * 2)
for wrong, kind in ((x.cpu(), errors.BundleDeviceError), (x[:1024].clone(), AccessError)):
    try:
        kernel[4](wrong, y, 2048, 2.0, 512)
    except kind as error:
        print(kind.__name__)
"""


@pytest.mark.once
def test_tensors_of_the_stand_in(path, tmp_path):
    (tmp_path / "script.py").write_text(STANDS_IN)
    command = ["-m", "gluon_core.standin", "--target", "emu:sm_90", str(tmp_path / "script.py")]
    done = subprocess.run(
        [sys.executable, *command, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout.split() == ["BundleDeviceError", "AccessError"], done.stderr
