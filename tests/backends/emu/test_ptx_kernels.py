"""Kernels whose PTX the emulator executes, against NumPy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_emu import settings
from gluon_emu.errors import AccessError

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::UserWarning")]
BOTH = pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90"])


@gluon.jit
def add(x, y, out, n, BLOCK: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.BlockedLayout([2], [32], [4], [0]))
    mask = offsets < n
    total = gl.load(x + offsets, mask=mask) + gl.load(y + offsets, mask=mask)
    gl.store(out + offsets, total, mask=mask)


@BOTH
def test_sums(target):
    x, y = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    out = np.zeros_like(x)
    add[(4,)](x, y, out, x.size, 256, target=target)
    np.testing.assert_array_equal(out, x + y)


@BOTH
def test_a_wrong_address_names_the_argument(target):
    x = np.zeros(100, np.float32)
    y, out = np.zeros((2, 512), np.float32)
    with pytest.raises(AccessError, match=r"past the end of x \(400 bytes\)") as caught:
        add[(2,)](x, y, out, 512, 256, target=target)
    assert caught.value.span.file.endswith("test_ptx_kernels.py")
    assert "ld.global" in caught.value.instruction


@gluon.jit
def filled(out, value, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + i, i * 0 + value)


def test_threads_launch_at_once():
    def work(value):
        for _ in range(5):
            out = np.zeros(1024, np.int32)
            filled[(8,)](out, value, 128, target="emu:sm_90")
            assert (out == value).all()
        return True

    filled[(8,)](np.zeros(1024, np.int32), 0, 128, target="emu:sm_90")
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(2, 10)))


def test_the_report_of_a_kernel_just_compiled(tmp_path, monkeypatch):
    """Its PTX is assembled for it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"out": "*i32", "value": "i32"}
    kernel = gluon.compile(filled, signature=types, constexprs={"BLOCK": 1024}, target="emu:sm_90")
    report = kernel.report()
    assert report.registers and report.instruction_mix["STG"]


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
@pytest.mark.parametrize("rows", [40, 200])
def test_sums_of_a_library(rows, schedule, monkeypatch):
    """Products in a row are added at once, and warpgroups that read one matrix share it."""
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("gluon_kernels")
    monkeypatch.setenv("GLUON_TARGET", "emu:sm_90")
    torch.manual_seed(0)
    a, b = torch.randn(rows, 328).bfloat16(), torch.randn(272, 328).bfloat16().T
    with settings.using(sums="float32", schedule=schedule):
        result = kernels.matmul(a, b, out_dtype=torch.float32)
    torch.testing.assert_close(result, a.float() @ b.float(), atol=1e-4, rtol=1e-5)
