"""Every form that ptxas accepts, against the tables of the emulator: those that it does not know are listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gluon_emu.ptx.decode.module import parse_module
from gluon_emu.ptx.isa.families import find
from gluon_emu.ptx.machine.code import Code

pytestmark = pytest.mark.once
FORMS = Path(__file__).with_name("isa_forms.txt")
REGISTERS = (
    ".reg .b32 %r<20>; .reg .b64 %d<10>; .reg .pred %p<5>; .reg .f32 %f<12>; .reg .f64 %fd<6>; .reg .b16 %h<10>;"
    ".reg .b8 %b<4>; .reg .b128 %q<4>;"
)
UNKNOWN = {
    "90": "tex|txq|istypep|suld|sust|sured|multimem|vsub.*%r3$",
    "100": r"cvt\.rs|tcgen05\.mma\.sp|tcgen05\.mma\.ws.*%d2|tcgen05\.cp.*b8x16|"
    r"cp\.async\.bulk\.tensor.*im2col::w",
}


def forms(arch):
    lines = FORMS.read_text().splitlines()[1:]
    return [form for names, form in (line.split("\t") for line in lines) if arch in names.split()]


@pytest.mark.parametrize("arch", ["90", "100"])
def test_forms_that_ptxas_accepts_are_known(arch):
    listed = forms(arch)
    body = ";\n".join(listed)
    text = (
        f".version 9.0\n.target sm_{arch}a\n.address_size 64\n.global .texref texref; .global .surfref surf;\n"
        f".visible .entry k(.param .u64 a) {{ {REGISTERS}\n{body};\nret; }}\n"
    )
    module = parse_module(text)
    code = Code(module, module.functions["k"], find, lenient=True)
    unknown = [instruction.text for instruction, _ in code.unknown]
    lacking = re.compile("|".join(UNKNOWN.values()))
    assert len(listed) > 800
    assert [form for form in unknown if not lacking.match(form)] == []
    assert unknown  # the list above says which
