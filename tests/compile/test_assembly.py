"""Inline assembly that is wrong ends in an error on its line, not with the process."""

from __future__ import annotations

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, StageError

L32 = gl.BlockedLayout([4], [32], [4], [0])
L64 = gl.BlockedLayout([4], [64], [4], [0])


@gluon.jit
def runs(out, ASM: gl.constexpr, REGISTERS: gl.constexpr, PACK: gl.constexpr, layout: gl.constexpr):
    x = gl.arange(0, 1024, layout)
    narrow = x.to(out.dtype.element_ty)
    y = gl.inline_asm_elementwise(ASM, REGISTERS, [narrow], out.dtype.element_ty, True, PACK)
    gl.store(out + x, y)


def compiled(text, registers, target="sm_90", dtype="i32", pack=1):
    constants = {"ASM": text, "REGISTERS": registers, "PACK": pack}
    constants["layout"] = L64 if target.startswith("gfx") else L32
    return gluon.compile(runs, target, signature={"out": f"*{dtype}"}, constexprs=constants)


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize(
    "text, registers, argument, words",
    [
        ("mov.b32 $0, $1;", "=r", "constraints", "expected 1, got 0 in '=r'"),
        ("mov.b32 $0, $1;", "=r,r,r", "constraints", "expected 1, got 2"),
        ("mov.b32 $0, $1;", "r,r", "constraints", "begin with '='"),
        ("mov.b32 $0, $1;", "", "constraints", "expected 1, got 0 in ''"),
        ("mov.b32 $0, $1;", "=r,,r", "constraints", "a constraint is empty"),
        ("mov.b32 $0, $1;", "=r,%", "constraints", "a constraint is empty"),
        ("mov.b32 $0, $1;", "+r,r", "constraints", r"not a constraint.*got '\+r' in '\+r,r'"),
        ("mov.b32 $0, $1;", "=r,[a]", "constraints", "not a constraint"),
        ("mov.b32 $0, $1;", "=r,{", "constraints", "not a constraint"),
        ("mov.b32 $0, $1;", "=r,r,~memory", "constraints", "not a constraint.*'~{memory}'"),
        ("mov.b32 $0, $1;", "r,=r", "constraints", "comes after an argument.*results first"),
        ("mov.b32 $0, $1;", "=r,1", "constraints", "register of result 1.*There is 1 result"),
        ("mov.b32 $0, $1;", "=r,*m", "constraints", "a star marks.*the pointer as an argument"),
        ("mov.b32 $0, $1;", "=m,r", "constraints", "'m' is memory, and results are values"),
        ("mov.b32 $0, $1;", "=r,V", "constraints", "'V' is memory, and operands are values"),
        ("mov.b32 $0, $9;", "=r,r", "asm", r"not there: \$9; expected \$0 to \$1"),
        ("mov.b32 ${2:x}, $1;", "=r,r", "asm", "not there"),
    ],
)
def test_operands_that_do_not_match(target, text, registers, argument, words):
    with pytest.raises(ArgumentError, match=words) as error:
        compiled(text, registers, target)
    assert error.value.argument == argument
    assert "inline_asm_elementwise" in error.value.span.text


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text, registers, dtype, pack",
    [
        ("mov.b32 $0, $1;", "=r,r", "i32", 1),
        (
            "{ .reg .pred p; setp.eq.s32 p, $1, 0; selp.b32 $0, 1, 2, p; }",
            "=r,r,~{memory}",
            "i32",
            1,
        ),
        ("mov.b32 $0, $2; mov.b32 $1, $3;", "=&r,=r,r,r", "i32", 2),
        ("mov.b32 $0, $1;", "=r,r", "i16", 2),
        ("mov.b32 $0, $2; mov.b32 $1, $3;", "=r,=r,r,r", "i16", 4),
        ("mov.b32 $0, $1;", "=r,r", "i8", 4),
        ("mov.b64 $0, $1;", "=l,l", "i64", 1),
        ("mov.b32 $0, 1; // $$", "=r,0", "i32", 1),
        ("ld.local.b32 $0, $1;", "=&r,m", "i32", 1),
    ],
)
def test_operands_that_match(text, registers, dtype, pack):
    assert compiled(text, registers, dtype=dtype, pack=pack).asm["cubin"]


def test_narrow_elements_share_registers():
    with pytest.raises(ArgumentError, match="expected 2, got 4"):
        compiled("mov.b32 $0, $4;", "=r,=r,=r,=r,r,r,r,r", dtype="i16", pack=4)


@pytest.mark.once
@pytest.mark.parametrize(
    "text, registers, words",
    [
        ("frobnicate.b32 $0, $1;", "=r,r", "instruction: 'frobnicate'"),
        ("mov.b32 $0, $1;", "=l,r", "Arguments mismatch for instruction 'mov'"),
    ],
)
@pytest.mark.parametrize("isolation", ["0", "1"])
def test_the_assemblers_messages_are_under_the_kernels_line(
    monkeypatch, text, registers, words, isolation
):
    monkeypatch.setenv("GLUON_COMPILE_ISOLATION", isolation)
    with pytest.raises(StageError, match=words) as error:
        compiled(text, registers)
    message = str(error.value)
    assert "compiling runs for nvidia:sm_90 failed in stage cubin: the assembler says" in message
    assert "ptxas" not in message and "Repro" not in message and ".ptx" not in message
    assert "inline_asm_elementwise" in error.value.span.text
    assert error.value.got.startswith(text.split()[0])


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "target, text, registers, words, got",
    [
        ("sm_90", "mov.b32 $0, $1;", "=r,w", "asm constraint 'w'|left it out", "=r,w"),
        ("sm_90", "mov.b32 $0, $1;", "=r,i", "asm constraint 'i'|left it out", "=r,i"),
        ("gfx942", "v_mov_b32 $0, $1;", "=v,w", "asm constraint 'w'|left it out", "=v,w"),
        ("gfx942", "v_mvov_b32 $0, $1;", "=v,v", "says: invalid instruction", "v_mvov_b32"),
    ],
)
def test_llvms_complaints_are_reported_under_the_kernels_line(target, text, registers, words, got):
    with pytest.raises(StageError, match=words) as error:
        compiled(text, registers, target)
    assert "failed in stage" in str(error.value) and "LLD" not in str(error.value)
    assert "inline_asm_elementwise" in error.value.span.text and got in error.value.got


def test_memory_is_no_operand_on_amd():
    with pytest.raises(
        ArgumentError, match="'m' is memory.* on amd:gfx942.*'m' in '=v,m'"
    ) as error:
        compiled("v_mov_b32 $0, $1", "=v,m", "gfx942")
    assert "inline_asm_elementwise" in error.value.span.text


@gluon.jit
def twice(out, REGISTERS: gl.constexpr, layout: gl.constexpr):
    x = gl.arange(0, 1024, layout)
    y = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], gl.int32, True, 1)
    z = gl.inline_asm_elementwise("mov.b32 $0, $1;", REGISTERS, [y], gl.int32, True, 1)
    gl.store(out + x, z)


@pytest.mark.once
def test_where_llvm_ends_the_process_over_one_of_several_all_are_named():
    with pytest.raises(StageError, match="LLVM ended over inline assembly") as error:
        constants = {"REGISTERS": "=r,q", "layout": L32}  # 128 bits are no 32
        gluon.compile(twice, "sm_90", signature={"out": "*i32"}, constexprs=constants)
    assert "inline_asm_elementwise" in error.value.span.text
    assert "'=r,r' or '=r,q'" in str(error.value)
    assert f"may be another one, of line {error.value.span.line + 1}." in str(error.value)
