"""Instructions too close to each other, and missing waits for their results, are reported."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_emu.errors import HazardError
from gluon_emu.settings import Settings
from tests.backends.emu.assembly import run

pytestmark = pytest.mark.once

HAZARDS = [
    ("v_cmp_gt_u32_e64 s[4:5], 3, v0\n{}v_cndmask_b32_e64 v1, 0, 1, s[4:5]", 2),
    ("v_exp_f32_e32 v1, v0\n{}v_add_f32_e32 v2, v1, v1", 1),
    ("v_mov_b32_e32 v1, v0\n{}v_mov_b32_dpp v2, v1 row_shr:1 row_mask:0xf bank_mask:0xf", 2),
    ("v_mfma_f32_32x32x8_f16 v[2:17], v[0:1], v[0:1], 0\n{}v_add_f32_e32 v20, v2, v2", 11),
    ("v_mov_b32_e32 v1, 0\n{}v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[0:1], 0", 2),
    ("v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[0:1], v[8:11]\n{}v_mov_b32_e32 v9, 0", 3),
    ("v_mfma_f32_32x32x8_f16 v[16:31], v[0:1], v[0:1], v[0:15]\n{}v_mov_b32_e32 v9, 0", 7),
]


@pytest.mark.parametrize("body, need", HAZARDS)
def test_distances(body, need):
    settings = Settings(uninitialised=False)
    run(body.format(f"s_nop {need - 1}\n"), settings=settings)
    less = f"s_nop {need - 2}\n" if need > 1 else ""
    with pytest.raises(HazardError, match=f"{need} wait states are needed.*s_nop 0"):
        run(body.format(less), settings=settings)


PRODUCTS = """
v_wmma_f32_16x16x16_f16 v[8:15], v[16:{n}], v[16:{n}], v[8:15]
s_nop 1
{between}
v_wmma_f32_16x16x16_f16 v[0:7], v[8:{m}], v[16:{n}], v[0:7]
"""


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_products_of_products(arch):
    count = 8 if arch == "gfx1100" else 4

    def products(between, arch=arch, text=PRODUCTS):
        body = text.format(between=between, n=15 + count, m=7 + count)
        first = "\n".join(f"v_mov_b32_e32 v{i}, 0" for i in range(24))
        run(first + body, np.zeros(64, np.uint32), arch=arch)

    products("v_nop")
    products("v_add_nc_u32_e32 v30, v23, v23")
    products("", text=PRODUCTS.replace("v[8:{m}], v[16", "v[16:{n}], v[16"))  # as the addend alone
    with pytest.raises(HazardError, match="v_nop before `v_wmma_f32_16x16x16_f16 v.0:7."):
        products("")
    with pytest.raises(HazardError, match="v_nop before"):
        products("s_cbranch_scc0 there\nv_nop\nthere:")


def test_transcendental_results_that_nothing_waits_for():
    def used(between, arch="gfx1100"):
        body = [
            "v_mov_b32_e32 v1, 1.0",
            "v_exp_f32_e32 v2, v1",
            *between,
            "v_add_f32_e32 v3, v2, v1",
        ]
        run("\n".join(body), np.zeros(64, np.uint32), arch=arch)

    used(["s_waitcnt_depctr depctr_va_vdst(0)"])
    used(["v_mov_b32_e32 v4, 1.0"] * 6)
    used([], "gfx1201")
    for between in ([], ["v_mov_b32_e32 v4, 1.0"] * 5, ["s_waitcnt_depctr depctr_vm_vsrc(0)"]):
        with pytest.raises(HazardError, match="missing s_waitcnt_depctr depctr_va_vdst.0. before"):
            used(between)


def test_loads_that_a_page_fault_replays():
    """No load writes registers that a load right next to it reads, where XNACK may be on."""
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 4
s_waitcnt lgkmcnt(0)
global_load_dword v3, v1, s[4:5]
{between}
global_load_dword v1, v2, s[4:5]
"""

    def loaded(between, arch="gfx942", xnack=True):
        run(body.format(between=between), np.zeros(8, np.float32), arch=arch, xnack=xnack)

    loaded("s_nop 0")
    loaded("v_mov_b32_e32 v4, 0")
    loaded("", xnack=False)
    with pytest.raises(HazardError, match="XNACK.*writes v1.*s_nop 0 before `global_load_dword v1"):
        loaded("")
    with pytest.raises(HazardError, match="XNACK"):
        loaded("global_load_dword v5, v2, s[4:5]")


EXPERT = """
s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 2
s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v2, 1.0
s_wait_kmcnt 0x0
{before}
global_store_b32 v1, v2, s[4:5]
{after}
v_mov_b32_e32 v2, 0
"""


def test_dependencies_that_code_of_gfx1250_keeps_by_itself():
    def stored(before, after, text=EXPERT):
        run(text.format(before=before, after=after), np.zeros(32, np.float32), arch="gfx1250")

    written, read = "s_wait_alu depctr_va_vdst(0)", "s_wait_alu depctr_vm_vsrc(0)"
    stored(written, read)
    stored(f"v_mov_b32_e32 v3, 0\n{written[:-2]}1)", read)
    stored("s_wait_alu 0xfff", "s_wait_alu 0xffe3")  # as numbers
    stored(written, "s_wait_storecnt 0x0")
    stored("v_mov_b32_e32 v3, 0\n" * 15, read)  # a full counter
    stored("", "", EXPERT.replace("SCHED_MODE, 0, 2), 2", "SCHED_MODE, 0, 2), 0"))
    with pytest.raises(HazardError, match=r"written v2 yet: missing s_wait_alu depctr_va_vdst.0."):
        stored("", read)
    with pytest.raises(HazardError, match=r"written v2 yet: missing s_wait_alu depctr_va_vdst.1."):
        stored("v_mov_b32_e32 v3, 0\ns_wait_alu depctr_va_vdst(2)", read)
    with pytest.raises(HazardError, match=r"read v2 yet: missing s_wait_alu depctr_vm_vsrc.0."):
        stored(written, "s_wait_loadcnt 0x0")
    product = "v_wmma_scale_f32_16x16x128_f8f6f4 v[50:57], v[18:33], v[34:49], 0, v1, v0\n"
    stored(product + "s_wait_alu depctr_va_vdst(2)", read)  # which is two for the counter
    with pytest.raises(HazardError, match=r"missing s_wait_alu depctr_va_vdst.2."):
        stored(product + "s_wait_alu depctr_va_vdst(3)", read)
    with pytest.raises(HazardError, match="va_vdst"):  # on one of two ways
        stored("s_cbranch_scc0 there\n" + written + "\nthere:", read)


def test_products_of_gfx1250_and_uses_of_their_registers():
    first = "\n".join(f"v_mov_b32_e32 v{i}, 0" for i in range(24))
    product = "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]"

    def used(between, use):
        run("\n".join([first, product, *between, use]), np.zeros(32, np.float32), arch="gfx1250")

    for use in ("v_add_f32_e32 v24, v3, v3", "v_mov_b32_e32 v3, 0", "v_mov_b32_e32 v12, 0"):
        used(["v_nop"] * 4, use)
        with pytest.raises(HazardError, match="4 vector instructions are needed.*: 1 v_nop before"):
            used(["v_nop"] * 3, use)
    used([], product)  # the addend
    used([], "v_mov_b32_e32 v24, 0")
    factor = "v_wmma_f32_16x16x32_f16 v[24:31], v[0:7], v[16:23], v[24:31]"
    with pytest.raises(HazardError, match="4 vector instructions"):
        used(["v_nop"] * 3, factor)


def test_scalar_registers_that_vector_instructions_have_read():
    """gfx12.0 may read once more what was in them, until `s_wait_alu` has waited for what writes them."""
    read = "s_mov_b32 s4, 1\ns_mov_b32 s5, 1\nv_add_nc_u32_e32 v1, s5, v0"
    again = "v_add_nc_u32_e32 v2, s4, v0"

    def used(*between, use=again, first=read):
        run("\n".join([first, *between, use]), np.zeros(32, np.float32), arch="gfx1201")

    others = ["s_mov_b32 s6, 1"] * 10
    load = "s_load_b32 s8, s[0:1], 0x0"
    for write, wait in (
        ("s_mov_b32 s4, 2", "sa_sdst"),
        ("v_cmp_lt_u32_e64 s4, v0, v1", "va_sdst"),
    ):
        for waited in (f"s_wait_alu depctr_{wait}(0)", load):
            used(write, waited)
        for other in ("s_wait_alu depctr_va_vcc(0)", "s_wait_alu 0xfffd", "v_nop"):
            with pytest.raises(
                HazardError, match=f"writes s4.*missing s_wait_alu depctr_{wait}.0. b"
            ):
                used(write, other)
        used(write, again, first="s_mov_b32 s5, 1")  # of which nothing was read
    used("s_mov_b32 s4, 2", "s_wait_alu 0xfffe")
    used("v_cmp_lt_u32_e64 s4, v0, v1", "s_wait_alu 0xf1ff")
    used("s_mov_b32 s4, 2", *others, "s_mov_b32 s6, 1")
    with pytest.raises(HazardError):
        used("s_mov_b32 s4, 2", *others)
    used("s_mov_b32 s4, 2", *others, use="s_mov_b32 s7, s4")
    with pytest.raises(HazardError, match="sa_sdst"):
        used("s_mov_b32 s4, 2", *others[1:], use="s_mov_b32 s7, s4")
    used("v_cmp_lt_u32_e64 s4, v0, v1", use="s_mov_b32 s7, s4")
    used("v_cmp_lt_u32_e64 s4, v0, v1", "s_mov_b32 s7, s4")  # which waits for vector instructions
    used("v_cmp_lt_u32_e64 s4, v0, v1", "s_mov_b32 s7, s5")  # a register that is kept: the same
    for adding in ("s_addk_co_i32 s5, 1", "s_cmovk_i32 s5, 1"):  # which read their result
        used("v_cmp_lt_u32_e64 s4, v0, v1", adding)
    with pytest.raises(HazardError):
        used("v_cmp_lt_u32_e64 s4, v0, v1", "s_mov_b32 s7, s0")
    vcc = ["v_cmp_lt_u32_e32 vcc_lo, v0, v1", "v_cndmask_b32_e32 v2, v0, v1, vcc_lo"]
    used(*vcc)
    used(*vcc, vcc[0], "s_wait_alu 0xfffd", use=vcc[1])
    with pytest.raises(HazardError, match="writes vcc_lo.*va_vcc.0. before `v_dual_cndmask"):
        used(*vcc, vcc[0], use="v_dual_cndmask_b32 v2, v0, v1 :: v_dual_mov_b32 v3, v1")
    with pytest.raises(HazardError, match="sa_sdst"):  # on one of two ways
        used("s_cmp_eq_u32 s0, 9", "s_cbranch_scc1 end", "s_mov_b32 s4, 2", "end:")
    used("v_cmpx_ne_u32_e32 s4, v0")  # which only reads it
