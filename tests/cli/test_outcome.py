"""Reports on machine code: instructions by line, lowerings kept or not, arguments to blame."""

from __future__ import annotations

import pytest

import gluon_core as gluon
from gluon_cli.emitted import by_line
from gluon_cli.outcome import outcome
from gluon_core import language as gl
from gluon_core.compiler.source import GluonASTSource
from gluon_core.plugin.machine_code import CodeLine, Instruction
from gluon_core.registry.load import registry
from tests.portable_kernels import TILES, products

pytestmark = pytest.mark.sampled(5)


@gluon.jit
def scale(x, y, out, n, m, B: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.arange(0, B, LAYOUT)
    value = gl.load(x + offsets + n)
    value += gl.load(y + offsets)
    gl.store(out + offsets * m, value)


TYPES = {"x": "*fp16", "y": "*fp16", "out": "*fp16", "n": "i32", "m": "i32"}


def of(target, aligned, size=8):
    lanes = registry().target(target).architecture.warp_size
    layout = gl.BlockedLayout([size], [lanes], [4], [0])
    source = GluonASTSource(
        scale, TYPES, {"B": size * lanes * 4, "LAYOUT": layout}, dict.fromkeys(aligned, 16)
    )
    return outcome(source, registry().target(target), {})


def notes(result):
    """Return the arguments to blame and note of each line, in order."""
    return [(line.arguments, line.note) for line in result.lines]


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_80", "sim:sm_90"])
def test_the_argument_that_is_to_blame_is_named(target):
    first, second, third = notes(of(target, ["x", "y", "out"]))
    assert first[0] == ("n",)
    assert "2-byte loads: n is not known to be divisible by 16" in first[1]
    assert "`i32:16`" in first[1] and "gl.multiple_of" in first[1]
    assert second == ((), None)  # it is wide
    assert third[0] == () and "where the layout permits 16" in third[1]  # strides of m stay so


@pytest.mark.once
def test_pointers_are_named_with_their_types():
    first, second, _ = notes(of("sm_80", ["x", "n"]))
    assert first == ((), None)
    assert second[0] == ("y",) and "`*fp16:16`" in second[1]


@pytest.mark.once
def test_several_arguments_are_named():
    first, *_ = notes(of("sm_80", ["y"]))
    assert first[0] == ("x", "n") and "x and n are not known" in first[1]


def test_a_layout_of_single_elements_is_to_blame_itself():
    first, *_ = notes(of("sm_80", ["x", "y", "out", "n", "m"], size=1))
    assert first[0] == () and "the layout gives each thread no more" in first[1]


TENSORS = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"}


def of_products(target, aligned):
    source = GluonASTSource(products, TENSORS, TILES, dict.fromkeys(aligned, 16))
    return outcome(source, registry().target(target), {})


@pytest.mark.sampled(2)
@pytest.mark.once
@pytest.mark.parametrize(
    "target, copy, unit",
    [("sm_80", "cp.async", "mma.sync"), ("gfx950", "buffer_load_to_lds", "mfma")],
)
def test_programs_that_the_compiler_rejects_are_refused(target, copy, unit):
    """Copies of 2 bytes cannot pass the registers: another lowering does them, and explain says so."""
    kept = {op.selection.chosen.name: op.kept for op in of_products(target, TENSORS).ops}
    assert kept[copy] is True and kept[unit] is True
    result = of_products(target, ["a", "b", "c"])
    ops = [op for op in result.ops if op.selection.op == "async_copy"]
    for op in ops:
        assert op.selection.chosen.name != copy
        refused = {low.name: why for low, why in op.selection.rejected}
        assert "the compiler refused" in refused[copy]
    blamed = {name for line in result.lines for name in line.arguments}
    assert blamed == {"N", "K"}


@pytest.mark.once
@pytest.mark.parametrize(
    "target, copy, unit", [("sm_90", "tma", "wgmma"), ("gfx1250", "tdm", "wmma")]
)
def test_units_for_tiles_are_kept(target, copy, unit):
    kept = {op.selection.chosen.name: op.kept for op in of_products(target, TENSORS).ops}
    assert kept[copy] is True and kept[unit] is True


def test_a_lowering_that_is_not_in_the_code_is_not_kept(monkeypatch):
    backend = registry().backend("amd")
    monkeypatch.setattr(
        type(backend.compiler),
        "emitted",
        lambda self, compiled: [one for one in original(self, compiled) if "lds" not in one.name],
    )
    ops = [op for op in of_products("gfx950", TENSORS).ops if op.selection.op == "async_copy"]
    assert ops and all(op.kept is False for op in ops)


original = type(registry().backend("amd").compiler).emitted

NVIDIA = """/*0000*/ @P0 LDG.E.128 R4, desc[UR4][R2.64] ;
/*0010*/ LDG.E.U16 R4, desc[UR4][R2.64] ;
/*0020*/ STG.E.64 desc[UR4][R2.64], R4 ;
/*0030*/ LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64] ;
/*0040*/ UTMALDG.2D [UR8], [UR4] ;
/*0050*/ HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ;
/*0060*/ LDS.128 R4, [R2] ;
/*0070*/ LDGDEPBAR ;"""
AMD = """	global_load_dwordx4 v[0:3], v4, s[0:1]
	buffer_load_ushort v0, v1, s[0:3], 0 offen
	buffer_store_b64 v[0:1], v1, s[0:3], 0 offen
	buffer_load_dwordx4 v1, s[0:3], 0 offen lds
	tensor_load_to_lds s[0:3], s[4:11]
	v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0
	ds_read_b128 v[0:3], v4
	s_load_dwordx4 s[0:3], s[4:5], 0x0"""
KINDS = [
    (Instruction.LOAD, 16),
    (Instruction.LOAD, 2),
    (Instruction.STORE, 8),
    (Instruction.COPY, 16),
    (Instruction.COPY, 0),
    (Instruction.PRODUCT, 0),
]


@pytest.mark.once
@pytest.mark.parametrize("vendor, text", [("nvidia", NVIDIA), ("amd", AMD)])
def test_instructions_are_distinguished(vendor, text):
    from gluon_core.plugin.paths import load_path

    read = load_path(f"gluon_{vendor}.inspect:emitted")
    emitted = read([CodeLine(line, "k.py", 7) for line in text.splitlines()])
    assert [(one.kind, one.width) for one in emitted] == KINDS
    (line,) = by_line(emitted).values()
    assert line.moves == 5 and line.narrowest == (Instruction.LOAD, 2)
