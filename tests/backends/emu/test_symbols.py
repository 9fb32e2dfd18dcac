"""Symbols in assembly: data, addresses, functions, expressions, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.expressions import evaluate
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.errors import AccessError
from tests.backends.emu.assembly import program, run

pytestmark = pytest.mark.once
DATA = """
.section .rodata,"a",@progbits
.p2align 4, 0x0
table:
.long 10, 0x14, 30          ; a comment
.asciz "a; \\"b\\" // \\n\\101"
.p2align 3
pointer:
.quad table+4
.quad k
.section .debug_info,"",@progbits
.long .Lnowhere
.text
"""


def loaded(address, count=1, width="dword"):
    """Return a body: words from `address` code go to the first array, lane by lane."""
    return f"""
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    {address}
    v_lshlrev_b32_e32 v1, 2, v0
    global_load_{width} v2, v1, s[6:7]
    s_waitcnt vmcnt(0) lgkmcnt(0)
    v_cmp_gt_u32_e32 vcc, {count}, v0
    s_and_saveexec_b64 s[8:9], vcc
    global_store_dword v1, v2, s[4:5]
    """


def relative(symbol, lead=""):
    return f"""
    s_getpc_b64 s[6:7]
    {lead}
    s_add_u32 s6, s6, {symbol}@rel32@lo+{8 if lead else 4}
    s_addc_u32 s7, s7, {symbol}@rel32@hi+{16 if lead else 12}
    """


def first(body, count=8, **options):
    out = np.zeros(64, np.uint32)
    lane = "v_min_u32_e32 v0, 7, v0\n"  # a table is read up to its end, and no further
    run(DATA + lane + body, out, **options)
    return out[:count]


def test_tables_and_strings_are_memory():
    words = first(loaded(relative("table"), 7)).view(np.uint8)
    assert words[:12].view(np.uint32).tolist() == [10, 20, 30]
    assert bytes(words[12:]).startswith(b'a; "b" // \nA\0')


def test_offsets_into_a_symbol_and_instructions_between():
    assert first(loaded(relative("table", "s_nop 0"), 3))[0] == 10
    text = relative("table").replace("@lo+4", "@lo+12").replace("@hi+12", "@hi+20")
    assert first(loaded(text, 1))[0] == 30


def test_addresses_that_are_read_from_memory():
    through_table = """
    s_getpc_b64 s[6:7]
    s_add_u32 s6, s6, table@gotpcrel32@lo+4
    s_addc_u32 s7, s7, table@gotpcrel32@hi+12
    s_load_dwordx2 s[6:7], s[6:7], 0x0
    s_waitcnt lgkmcnt(0)
    """
    assert first(loaded(through_table), 1)[0] == 10
    through_pointer = (
        relative("pointer")
        + """
    s_load_dwordx2 s[6:7], s[6:7], 0x0
    s_waitcnt lgkmcnt(0)
    """
    )
    assert first(loaded(through_pointer), 1)[0] == 20
    absolute = "s_mov_b32 s6, table@abs32@lo\ns_mov_b32 s7, table@abs32@hi"
    assert first(loaded(absolute), 1)[0] == 10


CALLS = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    {call}
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5]
    s_endpgm
twice:
    v_add_u32_e32 v2, v0, v0
    s_setpc_b64 s[30:31]
"""


@pytest.mark.parametrize(
    "call",
    [
        relative("twice") + "s_swappc_b64 s[30:31], s[6:7]",
        "s_call_b64 s[30:31], twice",
        "s_getpc_b64 s[6:7]\n.Lhere:\ns_add_u32 s6, s6, (twice-.Lhere)&4294967295\n"
        "s_addc_u32 s7, s7, (twice-.Lhere)>>32\ns_swappc_b64 s[30:31], s[6:7]",
    ],
    ids=["swappc", "call", "difference"],
)  # fmt: skip
def test_calls(call):
    out = np.zeros(1, np.uint32)
    run("v_mov_b32_e32 v0, 21\n" + CALLS.format(call=call), out)
    assert out[0] == 42


def test_variables_stay_and_constants_are_read_only():
    text = (
        ".data\ncounter:\n.long 5\n.comm room,8,8\n.text\n"
        + relative("counter")
        + """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    global_load_dword v2, v1, s[6:7]
    s_waitcnt vmcnt(0) lgkmcnt(0)
    v_add_u32_e32 v2, 1, v2
    global_store_dword v1, v2, s[6:7]
    global_store_dword v1, v2, s[4:5]
    """
    )
    out = np.zeros(1, np.uint32)
    run(text, out)
    assert out[0] == 6
    constant = text.replace(".data\n", '.section .rodata,"a"\n').replace(".comm room,8,8\n", "")
    with pytest.raises(AccessError, match="in the constants of the kernel, which is read-only"):
        run(constant, out)


def test_numbered_labels():
    out = np.zeros(1, np.uint32)
    run(
        """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_mov_b32 s6, 0
1:
    s_add_u32 s6, s6, 3
    s_cmp_lt_u32 s6, 10
    s_cbranch_scc1 1b
    s_branch 1f
    s_mov_b32 s6, 77
1:
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, s6
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5]
    """,
        out,
    )
    assert out[0] == 12


@pytest.mark.parametrize(
    "text, value",
    [
        ("2+3*4-1", 13), ("(2+3)*4", 20), ("-1&255", 255), ("~0>>60", 15), ("1<<4|1", 17),
        ("max(3, a, 0x10)", 16), ("or(1, 4)", 5), ("a==7", -1), ("a<7", 0), ("!a", 0), ("-7/2", -3),
        ("-7%2", -1), ("alignto(9, 8)", 16), ("totalnumvgprs(4, 10)", 16), ("010", 8),
    ],
)  # fmt: skip
def test_expressions(text, value):
    assert evaluate(text, {"a": 7}.__getitem__) == value


@pytest.mark.parametrize("text", ["1+", "(1", "1 2", "b", "f(1)", "1/0", "1)", "@"])
def test_values_that_are_no_expression(text):
    with pytest.raises(BackendError):
        evaluate(text, {"a": 7}.__getitem__)


@pytest.mark.parametrize(
    "body, message",
    [
        (relative("nobody"), r"`s_add_u32 s6, s6, nobody@rel32@lo\+4` at line \d+ .*nobody is not defined"),
        ("s_add_u32 s6, s6, k@rel32@lo+4", "no s_getpc comes before"),
        ("s_branch .Lnowhere", "there is no label .Lnowhere"),
        (".data\n.quad nobody\n.text", "nobody is not defined, in the data at line"),
        (".macro twice a\n.endm", "has left of macros"),
        (".set a, b\n.set b, a\ns_mov_b32 s6, a", "the symbol a is defined by itself"),
        ("frobnicate s0", r"`frobnicate s0` at line \d+"),
    ],
)  # fmt: skip
def test_refusals_name_the_line(body, message):
    with pytest.raises(BackendError, match=message):
        program(body)


def test_code_that_ends_without_an_end():
    with pytest.raises(AccessError, match="runs past the end of the code, which is `s_nop 1`"):
        run("s_branch .Lover\n.Lback:\ns_endpgm\n.Lover:\ns_cbranch_scc1 .Lback\ns_nop 1", end="")


def test_kernels_by_their_names():
    text = '\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n\t.text\nk:\n\ts_endpgm\n'
    text += "\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n\t.amdgpu_metadata\n---\namdhsa.kernels:\n"
    text += "  - .args:\n    .name: k\n...\n\t.end_amdgpu_metadata\n"
    assert parse(text).name == "k"
    with pytest.raises(BackendError, match="expected k, got other"):
        parse(text, "other")
