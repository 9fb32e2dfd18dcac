"""Operands that upstream refuses are errors here, too, each with its remedy."""

from __future__ import annotations

import pytest

from gluon_core import errors as E
from gluon_core.testing import triton_at_least
from tests.frontend import oracle
from tests.tables import mistakes

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
_TARGETS = {
    "sm_90": '"cuda", 90, 32',
    "sm_100": '"cuda", 100, 32',
    "gfx942": '"hip", "gfx942", 64',
}


def _source(target, body):
    lanes = 64 if target == "gfx942" else 32
    text = _HEAD.format(lanes=lanes, rows=lanes // 8)
    text += "".join(f"    {line}\n" for line in body.split("\n"))
    return text + _TAIL.format(target=_TARGETS[target])


@mistakes("""
id | error | target | words | code
swap-of-64-bits | DtypeError | sm_90 | val && expected int32, got int64 && val.to(gl.int32) | gl.atomic_cas(q + i, i, i.to(gl.int64))  # <--
compared-with-floats | DtypeError | sm_90 | cmp && expected int32, got fp32 | gl.atomic_cas(q + i, i.to(gl.float32), i)  # <--
compared-with-a-fraction | DtypeError | sm_90 | cmp && expected int32, got 1.5 | gl.atomic_cas(q, 1.5, n)  # <--
compared-with-a-truth | DtypeError | sm_90 | expected int32, got int1 | gl.atomic_cas(q, n > 1, n)  # <--
other-without-a-mask | ArgumentError | sm_90 | other: needs a mask && Pass mask= | gl.load(p + i, other=0.0)  # <--
histogram-without-a-layout | LayoutError | sm_90 | layout: histogram needs the layout of its result && gl.histogram(x, 128, layout=gl.AutoLayout()) | gl.histogram(i, 128)  # <--
index-of-64-bits | DtypeError | sm_90 | index: must be a scalar integer of up to 32 bits; expected int32, got int64 && index.to(gl.int32) |
    s = gl.allocate_shared_memory(gl.float32, [2, 32, 32], S2)
    gl.store(p + gl.full([32, 32], 0, gl.int32, L2), s.index(n.to(gl.int64)).load(L2))  # <--
reordered | ArgumentError | sm_90 | can_reorder: layouts are explicit && Leave it out | gl.reshape(i, [16, 16], can_reorder=True)  # <--
one-barrier | ArgumentError | sm_100 | mbarriers: takes a list of barriers && mbarriers=[bar] |
    a = gl.allocate_shared_memory(gl.float16, [128, 64], gl.NVMMASharedLayout(128, 16, 2))
    b = gl.allocate_shared_memory(gl.float16, [64, 128], gl.NVMMASharedLayout(128, 16, 2))
    t = blackwell.allocate_tensor_memory(gl.float32, [128, 128], blackwell.TensorMemoryLayout([128, 128], 1))
    bar = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(bar, 1)
    blackwell.tcgen05_mma(a, b, t, use_acc=False, mbarriers=bar)  # <--
matrix-unit-without-k | LayoutError | gfx942 | instr_shape: not an MFMA instruction; expected [M, N, K] |
    M: gl.constexpr = gl.amd.AMDMFMALayout(3, [32, 32], True, [2, 2])
    gl.store(p + gl.full([64, 64], 0, gl.int32, M), 1.0)  # <--
size-as-a-shape | ShapeError | sm_90 | shape: a shape is a sequence of integers; expected [256], got 256 | gl.full(256, 1.0, gl.float32, L)  # <--
size-as-a-buffer's-shape | ShapeError | sm_90 | shape: a shape is a sequence of integers; expected [256], got 256 | gl.allocate_shared_memory(gl.float32, 256, gl.SwizzledSharedLayout(1, 1, 1, [0]))  # <--
precision-of-another-name | ArgumentError | sm_90 | input_precision: unsupported precision && got 'tf23' |
    M: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    a = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(0, M, 1))
    b = gl.full([64, 64], 1.0, gl.float32, gl.DotOperandLayout(1, M, 1))
    gl.nvidia.ampere.mma_v2(a, b, gl.zeros([64, 64], gl.float32, M), input_precision='tf23')  # <--
""")
def test_both_refuse_it(error, target, words, code):
    source = _source(target, code)
    with pytest.raises(error) as caught:
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
def test_lossless_conversions_are_accepted(name):
    assert "tt.func" in str(oracle.ours(_source("sm_90", ACCEPTED[name])))


@pytest.mark.parametrize(
    "options, word",
    [
        (dict(num_stages="two"), "expected 0 or more, got 'two'"),
        (dict(num_stages=-1), "expected 0 or more, got -1"),
        (dict(num_stages=2.5), "expected 0 or more, got 2.5"),
        (dict(default_dot_input_precision="tf23"), "unsupported precision"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942", "sim:sm_90"])
def test_options_out_of_range(options, word, target):
    module = oracle.load(_source("sm_90", "gl.store(p, 1.0)"), oracle.OURS)
    with pytest.raises(E.OptionError, match=word) as caught:
        module.kernel.warmup(*module.ARGS, grid=(1,), target=target, **options)
    assert caught.value.argument in options


def test_fewer_names_than_values_warn_or_fail():
    """Before Triton 3.9 upstream drops the rest; from then on it refuses."""
    source = _source("sm_90", "a, b = (n, n, n)\ngl.store(q, a + b)")
    if triton_at_least(3, 9):
        with pytest.raises(E.ShapeError, match="not as many as"):
            oracle.ours(source)
    elif not triton_at_least(3, 8):
        with pytest.warns(E.KernelWarning, match="of 3 values the first 2"):
            oracle.ours(source)
