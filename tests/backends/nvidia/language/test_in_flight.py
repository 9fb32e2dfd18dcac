"""Accumulators in tensor memory that are read while they are written: found while a kernel is traced."""

from __future__ import annotations

import warnings

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import KernelWarning
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    tcgen05_commit,
    tcgen05_mma,
)

pytestmark = pytest.mark.once

SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
L = gl.constexpr(gl.BlockedLayout([1, 64], [32, 1], [4, 1], [0, 1]))


@gluon.jit
def waits(bar):
    mbarrier.wait(bar, 0)


@gluon.jit
def product(out, HOW: gl.constexpr):
    a = gl.allocate_shared_memory(gl.float16, [128, 64], SHARED)
    b = gl.allocate_shared_memory(gl.float16, [64, 64], SHARED)
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], col_stride=1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    fence_async_shared()
    if HOW == "in a loop, read first":
        for i in range(4):
            gl.store(out + i, gl.sum(gl.sum(acc.load(L), 0), 0))
            tcgen05_mma(a, b, acc)
    tcgen05_mma(a, b, acc, use_acc=False)
    tcgen05_commit(bar)
    if HOW == "waited for":
        mbarrier.wait(bar, 0)
    if HOW == "by a function":
        waits(bar)
    tcgen05_mma(a, b, acc, pred=HOW != "not done")
    if HOW == "waited for once more":
        mbarrier.wait(bar, 0)
    value = acc.load(L)  # here
    gl.store(out, gl.sum(gl.sum(value, 0), 0))


@gluon.jit
def straight(out, WAITS: gl.constexpr):
    a = gl.allocate_shared_memory(gl.float16, [128, 64], SHARED)
    b = gl.allocate_shared_memory(gl.float16, [64, 64], SHARED)
    acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], col_stride=1))
    tcgen05_mma(a, b, acc, use_acc=False)
    value = acc.load(L)  # here
    gl.store(out, gl.sum(gl.sum(value, 0), 0))


def warned(kernel, target, constant):
    constexprs = {kernel.arg_names[1]: constant}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gluon.compile(kernel, target, signature={"out": "*fp32"}, constexprs=constexprs)
    return [w for w in caught if w.category is KernelWarning]


@pytest.mark.parametrize("target", ["sm_100", "sim:sm_100"])
def test_an_accumulator_without_a_wait_is_reported_while_tracing(target):
    (warning,) = warned(straight, target, False)
    lines = open(__file__).read().splitlines()
    assert "# here" in lines[warning.lineno - 1]
    where = lines.index("    tcgen05_mma(a, b, acc, use_acc=False)", warning.lineno - 3) + 1
    assert f"the multiplication of line {where} writes it" in str(warning.message)
    assert "wait for it before" in str(warning.message)


def test_a_kernel_from_the_cache_warns_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    first, again = (warned(straight, "sm_100", False) for _ in range(2))
    assert len(first) == 1
    assert [(str(w.message), w.filename, w.lineno) for w in again] == [
        (str(w.message), w.filename, w.lineno) for w in first
    ]


@pytest.mark.parametrize(
    "how", ["waited for once more", "in a loop, read first", "not done", "by a function"]
)
def test_uncertain_waits_are_left_to_the_run(how):
    assert not warned(product, "sim:sm_100", how)
