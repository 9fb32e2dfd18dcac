"""Inline PTX: results of instructions, texts that ptxas takes, and refused texts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from gluon_core.simulation.assembly import NotModelled
from gluon_emu.ptx import assemble
from tests.backends.emu.ptx_texts import TEXTS, Text, module, number, registers

pytestmark = pytest.mark.once
_WIDTHS = {"f": 32, "r": 32, "h": 16, "l": 64, "d": 64}


def kinds_of(text: Text) -> tuple[list[str], list[str]]:
    """The letters of results and arguments."""
    pieces = [c.strip() for c in text.constraints.split(",")]
    outputs = [c.strip("=&") for c in pieces if c.startswith("=")]
    return outputs, [outputs[int(c)] if c.isdigit() else c for c in pieces if not c.startswith("=")]


def simulated(text: Text, inputs: list[list[int]]) -> list[list[int]]:
    """The registers of each result."""
    outputs, read = kinds_of(text)
    count = len(inputs[0]) if inputs else 1
    words = [
        np.array(g, np.uint64).astype(f"u{_WIDTHS[c] // 8}")[None] for g, c in zip(inputs, read)
    ]
    results = assemble(text.text, text.constraints)(None, words, lambda: np.zeros((1, 1), int))
    return [[int(x) for x in np.broadcast_to(f, (1, count))[0]] for f in results]


def same(have: int, want: int, letter: str) -> bool:
    if letter == "d" and np.isnan(number(have, "f64")):  # whose NaN it is, is not said
        return bool(np.isnan(number(want, "f64")))
    return have == want


def differing(text: Text, count: int) -> list[str]:
    outputs, _ = kinds_of(text)
    inputs = registers(text, count)
    results = simulated(text, inputs)
    bad = []
    for i, have in enumerate(zip(*results)):
        arguments = [g[i] for g in inputs]
        want = text.formula(*arguments)
        want = want if isinstance(want, tuple) else (want,)
        if not all(map(same, have, want, outputs)):
            shown = " ".join(map(hex, arguments))
            bad.append(f"{text.text}: of {shown} {[*map(hex, have)]}, not {[*map(hex, want)]}")
    return bad


@pytest.mark.parametrize("part", range(4))
def test_instructions_agree_with_their_formulas(part):
    bad = [line for text in TEXTS[part::4] for line in differing(text, 30)[:1]]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    "text, constraints, words, want",
    [
        ("fma.rn.f64", "=d,d,d,d", (0xFE031C77E66D1150, 0x47EFFFFFF0000000, 0x7FF0000000000000), 0x7FF0000000000000),
        ("neg.f32", "=f,f", (0x7F807F7F,), 0x7FFFFFFF),
        ("abs.f16", "=h,h", (0x7F80,), 0x7FFF),
        ("neg.bf16", "=h,h", (0xFF90,), 0x7FFF),
        ("neg.f16x2", "=r,r", (0x7F7FFFFF,), 0x7FFF7FFF),
        ("neg.bf16x2", "=r,r", (0x7FC00000,), 0x7FFF8000),
        ("abs.bf16x2", "=r,r", (0x7FC00000,), 0x7FFF0000),
        ("rem.s16", "=h,h,h", (0xB800, 0), 0xFFFF),
        ("rem.u32", "=r,r,r", (0x1820B739, 0), 0xFFFFFFFF),
        ("rem.s64", "=l,l,l", (0x401ABB411820B739, 0), 0xFFFFFFFFFFFFFFFF),
        ("bfe.u64", "=l,l,r,r", (0x775984436EF349C5, 0x1D, 0x477FF000), 0x3BACC221B),
        ("bfe.s64", "=l,l,r,r", (0x775984436EF349C5, 0x1D, 0x477FF000), 0x3BACC221B),
        ("bfi.b64", "=l,l,l,r,r", (1, 0x24, 0xBF800000, 0x9DD6987A), 0x24),
        ("cvt.rn.f32.f64", "=f,d", (0xFFFFFFFFFFFFFFFF,), 0xFFFFFFFF),
        ("cvt.rn.f16.f64", "=h,d", (0xFFFFFFFFFFFFFFFF,), 0xFFFF),
        ("cvt.rn.f16.f64", "=h,d", (0x7FF8000000000000,), 0x7E00),
        ("cvt.rn.bf16.f64", "=h,d", (0xFFFFFFFFFFFFFFFF,), 0xFFFF),
        ("cvt.rn.bf16.f64", "=h,d", (0x7FF8000000000000,), 0x7FC0),
        ("cvt.f32.bf16", "=f,h", (0xFFFF,), 0xFFFF0000),
        ("cvt.bf16.f16", "=h,h", (0x3C07,), 0x3F81),  # 1 + 7/1024, to the nearest 1/128
        ("cvt.f16.bf16", "=h,h", (0x3F81,), 0x3C08),
        ("cvt.rna.tf32.f32", "=r,f", (0xFFFFFFFF,), 0xFFFFE000),
        ("cvt.rn.relu.tf32.f32", "=r,f", (0xFFFFFFFF,), 0x7FFFE000),
    ],
)  # fmt: skip
def test_open_cases_of_the_isa_are_as_on_an_h200(text, constraints, words, want):
    names = ", ".join(f"${i}" for i in range(len(words) + 1))
    results = simulated(Text(f"{text} {names};", constraints, len), [[w] for w in words])
    assert results == [[want]]


@pytest.mark.campaign
def test_instructions_on_many_registers():
    bad = [line for text in TEXTS for line in differing(text, 3000)[:1]]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("arch", [pytest.param(90, marks=pytest.mark.campaign), 100])
def test_the_assembler_takes_the_texts(arch):
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    if not tool.exists():
        pytest.skip("this Triton ships no ptxas")
    texts = [text for text in TEXTS if text.arch <= arch]
    command = [str(tool), "--gpu-name", f"sm_{arch}a", "-O0", "-", "-o", "/dev/null"]
    done = subprocess.run(command, input=module(texts, arch), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize(
    "text, constraints, words",
    [
        ("frobnicate.b32 $0, $1;", "=r,r", "`frobnicate` of inline assembly is not simulated"),
        ("shfl.bfly.b32 $0, $1, 1, 31;", "=r,r", "`shfl` is there with `.sync` alone"),
        ("redux.sync.add.f32 $0, $1, -1;", "=f,f", "`redux.sync` of `.f32` is not known"),
        ("{ .reg .pred p; setp.eq.u32 p, $1, 0; bar.red.popc.u32 $0, 0, p; }", "=r,r", "this barrier"),
        ("barrier.cluster.arrive; mov.b32 $0, $1;", "=r,r", "this barrier of inline assembly"),
        ("membar.gl; mov.b32 $0, $1;", "=r,r", "`membar` .* only together with atomics"),
        ("add.wide.s32 $0, $1, $1;", "=r,r", "`.wide` of `add` is not known"),
        ("add.s32 $0, $1;", "=r,r", "`add` takes 3 operands, and here are 2"),
        ("add.s32 $0, $1, 1.5;", "=r,r", "a float where `.s32` is expected"),
        ("add.f32 $0, $1, 1;", "=f,f", "an integer where `.f32` is expected"),
        ("mov.b64 $0, $1;", "=r,r", r"`\$1` has 32 bits, and `.b64` of `mov` has 64 bits"),
        ("mov.b32 $0, {$1, $1};", "=r,r", r"`\$1` has 32 bits"),
        ("mov.b32 $0, t;", "=r,r", "the register `t` is not known"),
        ("mov.b32 $0, %r1;", "=r,r", "the register `%r1` is not known"),
        ("{ .reg .b32 t; mov.b32 $0, t; }", "=r,r", "`t` is read before anything is written"),
        ("addc.u32 $0, $1, $1;", "=r,r", "the carry is read before"),
        ("mov.b32 $0, %1;", "=r,r", r"operands of inline assembly are \$0, \$1"),
        ("mov.b32 $0, %%laneid;", "=r,r", "one percent sign is enough"),
        ("mov.b32 %laneid, $1;", "=r,r", "`%laneid` cannot be written to"),
        ("mov.b32 $0, $1", "=r,r", "a statement of inline assembly does not end"),
        ("{ mov.b32 $0, $1;", "=r,r", "a brace is not closed"),
        ("mov.b32 $0, $1; }", "=r,r", "a brace is closed that was not opened"),
        (".reg .v3 .f32 v; mov.b32 $0, $1;", "=r,r", "a declaration that is not known"),
        (".reg .b32 t; mov.b32 t, $1;", "=r,r", r"nothing writes result \$0"),
        ("cvt.f16.f32 $0, $1;", "=h,f", "becomes `.f16` by a rounding"),
        ("cvt.s32.f32 $0, $1;", "=r,f", "becomes an integer by .rni"),
        ("cvt.rn.e4m3x2.f32 $0, $1, $1;", "=h,f", "wants `.satfinite`"),
        ("div.f32 $0, $1, $1;", "=f,f", "needs a rounding mode"),
        ("ex2.f32 $0, $1;", "=f,f", "is there with `.approx` alone"),
        ("ld.shared.b32 $0, [$1];", "=r,l", "`ld.shared` .* is not simulated"),
        ("ld.global.b32 $0, [$1];", "=r,r", "`.s64` of `ld` has 64 bits"),
        ("mov.b32 $0, $1;", "=x,r", "the constraint '=x' is not known"),
        ("L: bra L;", "=r,r", "`bra` of inline assembly is not simulated"),
    ],
)  # fmt: skip
def test_unknown_names_are_reported(text, constraints, words):
    with pytest.raises(NotModelled, match=words) as error:
        assemble(text, constraints)
    assert error.value.got


def test_reads_after_a_failed_guard_are_no_numbers():
    """Registers that nothing wrote hold any value."""
    program = assemble("{ .reg .pred p; setp.eq.u32 p, $1, 1; @p mov.b32 $0, $1; }", "=r,r")
    (result,) = program(None, [np.array([[0, 1]], np.uint32)], lambda: np.zeros((1, 1), int))
    assert result.tolist() == [[0xFFFFFFFF, 1]]
