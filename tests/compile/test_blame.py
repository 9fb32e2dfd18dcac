"""Programs on which compilers end the process: refused before, and with the kernel's line where it happens all the same."""

from __future__ import annotations

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, LayoutError, StageError
from gluon_core.frontend.located import complaint, places_of_op
from gluon_core.semantic import reduce, shape
from gluon_core.testing import triton_at_least


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def unpacks(x, out, layout: gl.constexpr):
    r = gl.arange(0, 1, gl.SliceLayout(1, layout))
    c = gl.arange(0, 256, gl.SliceLayout(0, layout))
    y = gl.fp4_to_fp(gl.load(x + r[:, None] + c[None, :]), gl.float16, 1)  # <--
    gl.store(out, gl.sum(gl.sum(y.to(gl.float32), 1), 0))


@gluon.jit
def reduces(x, out, layout: gl.constexpr):
    v = gl.load(x + gl.arange(0, 256, layout))
    gl.store(out, gl.max(v, 0))  # <--


@gluon.jit
def scans(x, out, layout: gl.constexpr):
    o = gl.arange(0, 256, layout)
    gl.store(out + o, gl.associative_scan(gl.load(x + o), 0, add))  # <--


ROW = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
SHARED = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[(1,)])
WHOLE = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[(0,)])
CASES = {  # kernel, type, layout that ends the process, why it is refused, layout that does not
    "fp4": (unpacks, "*u8", ROW, "each thread has 4 elements", gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])),
    "reduction": (reduces, "*fp32", SHARED, "the blocks of a cluster share", WHOLE),
    "scan": (scans, "*fp32", SHARED, "the blocks of a cluster share", WHOLE),
}  # fmt: skip


def compiled(kernel, kind, layout, target="sm_90"):
    signature = {"x": kind, "out": "*fp32"}
    constants = {"layout": layout}
    blocks = 2 if layout.cga_layout else 1
    return gluon.compile(
        kernel, target, {"num_ctas": blocks}, signature=signature, constexprs=constants
    )


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_90", "sim:sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_programs_that_end_the_compiler_are_refused(name, target):
    kernel, kind, bad, words, good = CASES[name]
    assert compiled(kernel, kind, good, target)
    if name == "reduction" and triton_at_least(3, 8):
        assert compiled(kernel, kind, bad, target)
        return
    with pytest.raises((LayoutError, CapabilityError), match=words) as error:
        compiled(kernel, kind, bad, target)
    assert "# <--" in error.value.span.text


@pytest.mark.once
@pytest.mark.parametrize("name", CASES)
def test_a_remaining_abort_is_reported_under_its_line(name, monkeypatch):
    kernel, kind, bad, _, _ = CASES[name]
    if name == "reduction" and triton_at_least(3, 8):
        pytest.skip("compiled by this Triton")
    monkeypatch.setattr(shape, "_check_packs", lambda *_: None)
    monkeypatch.setattr(reduce.ReduceOps, "_split_dims", lambda *_: [])
    with pytest.raises(StageError, match="failed in stage llir") as error:
        compiled(kernel, kind, bad)
    assert "# <--" in error.value.span.text
    assert "PassManager" not in str(error.value).splitlines()[0]


LIBRARY = gl.sum.fn.__code__.co_filename
MODULE = """
#loc = loc("k.py":3:0)
module {
  tt.func public @k(%x: !tt.ptr<i8> loc("x"(#loc))) {
    %a = ttg.fp4_to_fp %x {axis = 1 : i32} : tensor<16xi8> -> tensor<32xf16> loc(#loc4)
    %b = tt.call @"lib.sum__(1,)c"(%a) : (tensor<32xf16>) -> f16 loc(#loc2)
    tt.return loc(#loc)
  } loc(#loc)
  tt.func private @"lib.sum__(1,)c"(%v: tensor<32xf16> loc("v"(#loc3))) -> f16 {
    %0 = "tt.reduce"(%v) <{axis = 0 : i32}> ({
    ^bb0(%arg1: f32 loc(unknown), %arg2: f32 loc(unknown)):
      tt.reduce.return %2 : f32 loc(#loc3)
    }) : (tensor<32xf16>) -> f16 loc(#loc3)
    tt.return %0 : f16 loc(#loc3)
  } loc(#loc3)
} loc(#loc)
#loc1 = loc("k.py":7:9)
#loc2 = loc("k.py":8:5)
#loc3 = loc("LIBRARY":293:36)
#loc4 = loc("a"(#loc1))
""".replace("LIBRARY", LIBRARY)


def test_an_op_of_a_library_function_is_of_the_line_that_calls_it():
    assert [(s.file, s.line) for s in places_of_op(MODULE, "fp4tofp")] == [("k.py", 7)]
    assert [(s.file, s.line) for s in places_of_op(MODULE, "reduce")] == [("k.py", 8)]
    assert places_of_op(MODULE, "dot") == []


def test_the_line_of_mlirs_complaint_is_found():
    complaint_text = f"{LIBRARY}:3:1: error: no such layout: \n{__file__}:1:2: note: called from\n"
    words, span = complaint(complaint_text)
    assert words == "no such layout" and (span.file, span.line) == (__file__, 1)
    assert complaint("Failures have been detected") is None
