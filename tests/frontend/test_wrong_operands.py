"""Operands that upstream refuses are errors here, too, each with its remedy."""

from __future__ import annotations

import pytest

from gluon_core import errors as E
from gluon_core.testing import triton_at_least
from tests.frontend import oracle

pytestmark = pytest.mark.once

_HEAD = """\
L = gl.constexpr(gl.BlockedLayout([1], [{lanes}], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 2], [{rows}, 8], [4, 1], [1, 0]))
S2 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
hopper, blackwell = gl.nvidia.hopper, gl.nvidia.blackwell
@gluon.jit
def kernel(p, q, w, n):
    i = gl.arange(0, 256, L)
"""
_TAIL = """
ARGS = (ptr(gl.float32), ptr(gl.int32), ptr(gl.int64), 5)
TARGET = GPUTarget({target})
"""
_NVIDIA, _BLACKWELL, _CDNA3 = '"cuda", 90, 32', '"cuda", 100, 32', '"hip", "gfx942", 64'

_MMA = """\
a = gl.allocate_shared_memory(gl.float16, [128, 64], gl.NVMMASharedLayout(128, 16, 2))
b = gl.allocate_shared_memory(gl.float16, [64, 128], gl.NVMMASharedLayout(128, 16, 2))
t = blackwell.allocate_tensor_memory(gl.float32, [128, 128], blackwell.TensorMemoryLayout([128, 128], 1))
bar = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
hopper.mbarrier.init(bar, 1)
blackwell.tcgen05_mma(a, b, t, use_acc=False, mbarriers=bar)  # <--"""

# name: (target, body, class, words in the message ...)
CASES = {
    "swap-of-64-bits": (
        _NVIDIA,
        "gl.atomic_cas(q + i, i, i.to(gl.int64))  # <--",
        E.DtypeError,
        "val",
        "expected int32, got int64",
        "val.to(gl.int32)",
    ),
    "compared-with-floats": (
        _NVIDIA,
        "gl.atomic_cas(q + i, i.to(gl.float32), i)  # <--",
        E.DtypeError,
        "cmp",
        "expected int32, got fp32",
    ),
    "compared-with-a-fraction": (
        _NVIDIA,
        "gl.atomic_cas(q, 1.5, n)  # <--",
        E.DtypeError,
        "cmp",
        "expected int32, got 1.5",
    ),
    "compared-with-a-truth": (
        _NVIDIA,
        "gl.atomic_cas(q, n > 1, n)  # <--",
        E.DtypeError,
        "expected int32, got int1",
    ),
    "other-without-a-mask": (
        _NVIDIA,
        "gl.load(p + i, other=0.0)  # <--",
        E.ArgumentError,
        "other: needs a mask",
        "Pass mask=",
    ),
    "histogram-without-a-layout": (
        _NVIDIA,
        "gl.histogram(i, 128)  # <--",
        E.LayoutError,
        "layout: histogram needs the layout of its result",
        "gl.histogram(x, 128, layout=gl.AutoLayout())",
    ),
    "index-of-64-bits": (
        _NVIDIA,
        "s = gl.allocate_shared_memory(gl.float32, [2, 32, 32], S2)\n"
        "gl.store(p + gl.full([32, 32], 0, gl.int32, L2), s.index(n.to(gl.int64)).load(L2))  # <--",
        E.DtypeError,
        "index: must be a scalar integer of up to 32 bits; expected int32, got int64",
        "index.to(gl.int32)",
    ),
    "reordered": (
        _NVIDIA,
        "gl.reshape(i, [16, 16], can_reorder=True)  # <--",
        E.ArgumentError,
        "can_reorder: layouts are explicit",
        "Leave it out",
    ),
    "one-barrier": (
        _BLACKWELL,
        _MMA,
        E.ArgumentError,
        "mbarriers: takes a list of barriers",
        "mbarriers=[bar]",
    ),
    "matrix-unit-without-k": (
        _CDNA3,
        "M: gl.constexpr = gl.amd.AMDMFMALayout(3, [32, 32], True, [2, 2])\n"
        "gl.store(p + gl.full([64, 64], 0, gl.int32, M), 1.0)  # <--",
        E.LayoutError,
        "instr_shape: not an MFMA instruction; expected [M, N, K]",
    ),
    "size-as-a-shape": (
        _NVIDIA,
        "gl.full(256, 1.0, gl.float32, L)  # <--",
        E.ShapeError,
        "shape: a shape is a sequence of integers; expected [256], got 256",
    ),
    "size-as-a-buffer's-shape": (
        _NVIDIA,
        "gl.allocate_shared_memory(gl.float32, 256, gl.SwizzledSharedLayout(1, 1, 1, [0]))  # <--",
        E.ShapeError,
        "shape: a shape is a sequence of integers; expected [256], got 256",
    ),
    "precision-of-another-name": (
        _NVIDIA,
        "M: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])\n"
        "a = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(0, M, 1))\n"
        "b = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(1, M, 1))\n"
        "gl.nvidia.ampere.mma_v2(a, b, gl.zeros([64, 64], gl.float32, M), input_precision='tf23')  # <--",
        E.ArgumentError,
        "input_precision: no such precision",
        "got 'tf23'",
    ),
}


def _source(target, body):
    lanes = 64 if "hip" in target else 32
    text = _HEAD.format(lanes=lanes, rows=lanes // 8)
    text += "".join(f"    {line}\n" for line in body.split("\n"))
    return text + _TAIL.format(target=target)


@pytest.mark.parametrize("name", CASES)
def test_both_refuse_it(name):
    target, body, cls, *words = CASES[name]
    source = _source(target, body)
    with pytest.raises(cls) as caught:
        oracle.ours(source)
    shown = str(caught.value)
    for word in words:
        assert word in shown.split("\n")[0], shown
    assert "# <--" in caught.value.span.text or "M: gl.constexpr" in caught.value.span.text
    with pytest.raises(Exception) as refused:
        oracle.upstream(source)
    assert not isinstance(refused.value, (ImportError, NotImplementedError)), refused.value


ACCEPTED = {
    "literals of another width": "gl.atomic_cas(w, 0, 1)",
    "a number as a float": "gl.atomic_cas(p, 0, 1)",
    "the other signedness": "gl.atomic_cas(q, n.to(gl.uint32), n)",
    "an index of 16 bits": "s = gl.allocate_shared_memory(gl.float32, [2, 32, 32], S2)\n"
    "gl.store(p + gl.full([32, 32], 0, gl.int32, L2), s.index(n.to(gl.int16)).load(L2))",
    "dimensions one by one": "gl.store(p + gl.reshape(i, 16, 16), 1.0)\n"
    "gl.store(p + i.reshape(256), 1.0)",
    "a precision in capitals": "M: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])\n"
    "a = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(0, M, 1))\n"
    "b = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(1, M, 1))\n"
    "acc = gl.nvidia.ampere.mma_v2(a, b, gl.zeros([64, 64], gl.float32, M), input_precision='TF32')\n"
    "gl.store(p + gl.full([64, 64], 0, gl.int32, M), acc)",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_loses_nothing_is_accepted(name):
    assert "tt.func" in str(oracle.ours(_source(_NVIDIA, ACCEPTED[name])))


@pytest.mark.parametrize(
    "options, word",
    [
        (dict(num_stages="two"), "expected 0 or more, got 'two'"),
        (dict(num_stages=-1), "expected 0 or more, got -1"),
        (dict(num_stages=2.5), "expected 0 or more, got 2.5"),
        (dict(default_dot_input_precision="tf23"), "no such precision"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942", "sim:sm_90"])
def test_options_out_of_range(options, word, target):
    module = oracle.load(_source(_NVIDIA, "gl.store(p, 1.0)"), oracle.OURS)
    with pytest.raises(E.OptionError, match=word) as caught:
        module.kernel.warmup(*module.ARGS, grid=(1,), target=target, **options)
    assert caught.value.argument in options


def test_fewer_names_than_values_warn_or_fail():
    """Before Triton 3.9 upstream drops the rest; from then on it refuses."""
    source = _source(_NVIDIA, "a, b = (n, n, n)\ngl.store(q, a + b)")
    if triton_at_least(3, 9):
        with pytest.raises(E.ShapeError, match="not as many as"):
            oracle.ours(source)
    elif not triton_at_least(3, 8):
        with pytest.warns(E.KernelWarning, match="of 3 values the first 2"):
            oracle.ours(source)
