"""Every portable name of Triton's own Gluon, with its parameters, and the text of its layouts' names."""

from __future__ import annotations

import inspect

import pytest

from gluon_core import _triton
from gluon_core import language as ours

theirs = pytest.importorskip("triton.experimental.gluon").language
NAMES = sorted(n for n in vars(theirs) if not n.startswith("_") and n not in ("amd", "nvidia"))
# Ours has more: parameters that another version has.
HIDDEN = {"_semantic", "_generator", "_builder", "args", "kwargs"}


def _parameters(value):
    if isinstance(value, _triton.JITCallable):
        return list(value.arg_names)
    try:
        parameters = inspect.signature(
            getattr(value, "__init__", value) if inspect.isclass(value) else value
        )
    except (TypeError, ValueError):
        return None
    return [p for p in parameters.parameters if p not in HIDDEN and p != "self"]


@pytest.mark.once
@pytest.mark.parametrize("name", NAMES)
def test_name_is_there_with_its_parameters(name):
    value, mine = getattr(theirs, name), getattr(ours, name)
    if not callable(value):
        return
    want, have = _parameters(value), _parameters(mine)
    if want is None or have is None:
        return
    if name == "PaddedSharedLayout" and "block_bases" in want:
        ours.PaddedSharedLayout([[16, 4]], [[1]], block_bases=[], shape=[2])  # 3.6's spelling
        return
    positional = [p for p in want if p in have]
    assert not set(want) - set(have), f"{name}{tuple(have)} lacks {set(want) - set(have)}"
    assert [p for p in have if p in want] == positional, f"{name}: another order"


DESCRIPTOR = sorted(n for n in vars(theirs.shared_memory_descriptor) if not n.startswith("_"))


@pytest.mark.parametrize("name", DESCRIPTOR)
def test_descriptor_member(name):
    mine = getattr(ours.shared_memory_descriptor, name)
    value = getattr(theirs.shared_memory_descriptor, name)
    if callable(value):
        want, have = _parameters(value), _parameters(mine)
        assert have[: len(want)] == want


LAYOUTS = [
    "gl.AutoLayout()",
    "gl.CoalescedLayout()",
    "gl.BlockedLayout([1], [32], [4], [0])",
    "gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])",
    "gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [[0, 1], [1, 0]])",
    "gl.SliceLayout(0, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))",
    "gl.DotOperandLayout(1, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]), 0)",
    "gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2)",
    "gl.DistributedLinearLayout([[1]], [[2], [4], [8], [16], [32]], [[64], [128]], [], [256])",
    "gl.SwizzledSharedLayout(1, 2, 4, [1, 0])",
    "gl.SwizzledSharedLayout(1, 2, 4, [1, 0], [[1, 0], [0, 1]])",
    "gl.PaddedSharedLayout.with_identity_for([[32, 4]], [64, 64], [1, 0])",
    "gl.SharedLinearLayout([[0, 1], [0, 2], [1, 0]], [], 32)",
    "gl.NVMMASharedLayout(128, 16, 2)",
    "gl.NVMMASharedLayout(64, 8, 2, transposed=True)",
    "gl.NVMMASharedLayout(128, 16, 2, False, False, [[0, 1], [1, 0]])",
    "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])",
    "gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [4, 1])",
    "gl.amd.AMDMFMALayout(4, [16, 16, 16], False, [2, 2], 64, [2, 1])",
]


@pytest.mark.parametrize("text", LAYOUTS)
def test_mangled_layout(text):
    want, have = (eval(text, {"gl": gl}) for gl in (theirs, ours))
    assert have.mangle() == want.mangle()
    if "Padded" not in text:  # a field has another name in 3.6
        assert repr(have) == repr(want)


@pytest.mark.parametrize(
    "text",
    [
        "gl.distributed_type(gl.float32, [128], gl.BlockedLayout([1], [32], [4], [0]))",
        "gl.shared_memory_descriptor_type(gl.int8, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]), [2, 128])",
        "gl.tuple_type([gl.int32, gl.distributed_type(gl.bfloat16, [1, 64], gl.AutoLayout())])",
        "gl.pointer_type(gl.float16)",
    ],
)
def test_mangled_type(text):
    want, have = (eval(text, {"gl": gl}) for gl in (theirs, ours))
    assert have.mangle() == want.mangle()
