"""What compilers do wrong, seen in their machine code: docs/known-compiler-bugs.md. Fails when a bug is gone."""

from __future__ import annotations

import re

import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl


@gluon.jit
def largest(a, out):
    v = gl.load(a + gl.arange(0, 512, gl.BlockedLayout([1], [32], [4], [0])))
    gl.store(out, gl.max(v - v * 2, 0))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_maximum_of_three_forgets_a_sign(target):
    compiled = gluon.compile(largest, target, signature={"a": "*i32:16", "out": "*i32:16"})
    assert len(re.findall(r"neg\.s32", compiled.asm["ptx"])) == 4
    before = compiled.asm["sass"].split("SHFL")[0]
    negated = len(re.findall(r"-R\d+", before))
    wrong = target != "sm_80" and not _triton.at_least(3, 9)
    assert negated == (3 if wrong else 4), before
    assert ("VIMNMX3" in before) == (target != "sm_80")
