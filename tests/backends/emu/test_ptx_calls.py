"""Calls by address, recursion, stacks, the heap, and names in PTX that look alike."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gluon_core.errors import BackendError
from gluon_emu.errors import TrapError, UnknownInstructionError
from tests.backends.emu.cuda_programs import programs
from tests.backends.emu.ptx_fuzz import changed, kernel_alone, tried
from tests.backends.emu.test_cuda_programs import stored
from tests.backends.emu.test_ptx_machine import STORE, module, run

pytestmark = pytest.mark.once
RESULT = "(.param .b32 back)"
ONE = "{ .param .b32 in; .param .b32 got; st.param.b32 [in], %r4;"

FACTORIAL = f""".func {RESULT} factorial(.param .b32 n) {{
    .reg .b32 %r<9>; .reg .pred %p; .local .align 4 .b8 own[4];
    ld.param.u32 %r1, [n]; st.local.u32 [own], %r1; setp.le.u32 %p, %r1, 1; @%p bra LAST;
    sub.u32 %r2, %r1, 1;
    {{ .param .b32 in; .param .b32 got; st.param.b32 [in], %r2; call (got), factorial, (in); ld.param.b32 %r3, [got]; }}
    ld.local.u32 %r4, [own]; mul.lo.u32 %r5, %r4, %r3; st.param.b32 [back], %r5; ret;
    LAST: st.param.b32 [back], 1; ret; }}"""
TWO = f""".func {RESULT} twice(.param .b32 n) {{ .reg .b32 %r1; ld.param.u32 %r1, [n]; add.u32 %r1, %r1, %r1; st.param.b32 [back], %r1; }}
.func {RESULT} square(.param .b32 n) {{ .reg .b32 %r1; ld.param.u32 %r1, [n]; mul.lo.u32 %r1, %r1, %r1; st.param.b32 [back], %r1; ret; }}
.global .align 8 .u64 table[2] = {{twice, square}};"""
BY_ADDRESS = f"and.b32 %r5, %r0, 1; mul.wide.u32 %d2, %r5, 8; mov.u64 %d3, table; add.u64 %d3, %d3, %d2; mov.b32 %r4, %r0; {ONE}"


def test_recursion_keeps_registers_and_local_variables():
    body = f"and.b32 %r4, %r0, 7; {ONE} call (got), factorial, (in); ld.param.b32 %r10, [got]; }} {STORE}"
    wanted = np.array([1, 1, 2, 6, 24, 120, 720, 5040] * 8, np.uint32)
    np.testing.assert_array_equal(run(module(body, FACTORIAL)), wanted)


def test_a_register_that_a_function_never_writes_reads_as_zero():
    body = f"mov.b32 %r4, %r0; {ONE} call (got), twice, (in); ld.param.b32 %r10, [got]; }} {STORE}"
    unset = TWO.replace(".reg .b32 %r1;", ".reg .b32 %r<3>;", 1).replace("%r1, %r1, %r1;", "%r1, %r1, %r2;", 1)  # fmt: skip
    np.testing.assert_array_equal(run(module(body, unset)), np.arange(64, dtype=np.uint32))


def test_recursion_without_an_end_is_reported():
    body = f"mov.u32 %r4, 5; {ONE} call (got), factorial, (in); }} {STORE}"
    endless = FACTORIAL.replace("@%p bra LAST;", "")
    with pytest.raises(TrapError, match="the stack of a thread is at its end"):
        run(module(body, endless))


def test_functions_called_by_address():
    call = "ld.global.u64 %d4, [%d3]; KIND: .callprototype (.param .b32 _) _ (.param .b32 _); call (got), %d4, (in), KIND;"
    got = run(module(f"{BY_ADDRESS} {call} ld.param.b32 %r10, [got]; }} {STORE}", TWO))
    lane = np.arange(64, dtype=np.uint32)
    np.testing.assert_array_equal(got, np.where(lane % 2, lane * lane, lane * 2))


def test_an_address_that_is_no_function_is_reported():
    body = f"mov.u64 %d4, 4096; mov.u32 %r4, 0; {ONE} K: .callprototype (.param .b32 _) _ (.param .b32 _); call (got), %d4, (in), K; }}"
    with pytest.raises(TrapError, match="where no such function begins"):
        run(module(body, TWO))


def test_other_numbers_of_arguments_are_refused():
    with pytest.raises(
        UnknownInstructionError, match="takes 1 arguments and gives 1 results, and here are 0 and 1"
    ):
        run(module(f"mov.u32 %r4, 0; {ONE} call (got), factorial; }}", FACTORIAL))


def test_stacks_of_each_thread_s_own_size():
    body = """and.b32 %r4, %r0, 3; add.u32 %r4, %r4, 1; cvt.u64.u32 %d2, %r4; mul.lo.u64 %d2, %d2, 4;
    alloca.u64 %d3, %d2, 16; alloca.u64 %d4, %d2, 16; st.local.u32 [%d3], %r0; st.local.u32 [%d4], 9;
    ld.local.u32 %r10, [%d3];"""
    np.testing.assert_array_equal(run(module(f"{body} {STORE}")), np.arange(64))


@pytest.mark.parametrize(
    ("address", "words"), [("%d3", None), ("%d1", "which `malloc` did not return")]
)
def test_the_heap(address, words):
    declared = (
        ".extern .func (.param .b64 r) malloc (.param .b64 n); .extern .func free (.param .b64 p);"
    )
    body = f"""{{ .param .b64 n; .param .b64 r; st.param.b64 [n], 12; call (r), malloc, (n); ld.param.b64 %d3, [r]; }}
    st.u32 [%d3+8], %r0; ld.u32 %r10, [%d3+8]; {{ .param .b64 p; st.param.b64 [p], {address}; call free, (p); }} {STORE}"""
    text = module(body, declared)
    if words is None:
        np.testing.assert_array_equal(run(text), np.arange(64))
        return
    with pytest.raises(TrapError, match=words):
        run(text)


def test_a_register_and_a_parameter_of_one_name():
    text = module(
        f".reg .b32 %out; mov.u32 %out, 3; ld.param.u64 %d3, [out]; mov.u32 %r10, %out; {STORE}"
    )
    assert (run(text) == 3).all()


@pytest.mark.parametrize("line", [".reg .b32 %r<99999999999>;", ".shared .b8 big[99999999999999];", ".shared .align 3 .b8 odd[8];",
                                  ".global .u64 odd[2] = {1e400, 2};", ".local .b8 x[1_];"])  # fmt: skip
def test_declarations_that_cannot_be_are_errors(line):
    with pytest.raises(BackendError, match="line \\d+ of the PTX"):
        run(module(f"{line} mov.u32 %r10, 1; {STORE}"))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(64))
def test_texts_changed_at_random_end_in_a_result_or_an_error(seed):
    rng = random.Random(seed)
    texts = stored()["texts"]
    known = [p for p in programs() if p.name != "elected" and f"{p.file}.90" in texts]
    program = rng.choice(known)
    text = texts[f"{program.file}.90"]
    tried(changed(kernel_alone(text, program.name), rng), program)
