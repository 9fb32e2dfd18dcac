"""Loops of machine code, by the assembly of two vendors."""

from __future__ import annotations

import gluon_amd.inspect as amd
import gluon_nvidia.inspect as nvidia
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.machine_code import Instruction, find_loops
from gluon_core.registry.load import registry

UNKNOWN = {"registers": None, "spills": None, "shared_memory": 0}
NESTED = [
    Instruction("a"),
    Instruction("b", ("outer",)),
    Instruction("c", ("inner", "also_inner")),
    Instruction("c"),
    Instruction("branch", target="inner"),
    Instruction("branch", target="after"),
    Instruction("d"),
    Instruction("branch", target="outer"),
    Instruction("end", ("after",)),
    Instruction("branch", ("self",), "self"),
]


def test_nested_loops():
    outer, inner = find_loops(NESTED)
    assert (outer.label, outer.depth, outer.instruction_count) == ("outer", 1, 4)
    assert outer.instruction_mix == {"branch": 2, "b": 1, "d": 1}
    assert (inner.label, inner.depth, inner.instruction_count) == ("inner", 2, 3)
    assert inner.instruction_mix == {"c": 2, "branch": 1}


def test_a_loop_with_two_ways_back_is_one():
    ways = [Instruction("a", ("top",)), *(Instruction("branch", target="top") for _ in range(2))]
    (loop,) = find_loops(ways)
    assert loop.instruction_count == 3


def test_no_loops():
    assert find_loops([]) == ()
    assert find_loops([Instruction("a"), Instruction("branch", target="elsewhere")]) == ()


AMDGCN = """\
kernel:
; %bb.0:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
	buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen
	buffer_load_dwordx4 v4, s[0:3], 0 offen lds
	v_add_u32_e32 v0, v1, v2
	v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
	s_cbranch_scc1 .LBB0_1
; %bb.2:
	s_endpgm
; Occupancy: 3
	.amdgpu_metadata
  - .agpr_count:     16
    .private_segment_fixed_size: 0
    .sgpr_count:     12
    .vgpr_count:     44
    .vgpr_spill_count: 0
"""


def test_amdgcn():
    (loop,) = find_loops(amd.instructions(AMDGCN))
    assert (loop.label, loop.instruction_count) == (".LBB0_1", 5)
    assert loop.instruction_mix == {
        "buffer_load_dwordx4": 1,
        "buffer_load_dwordx4 lds": 1,
        "v_add_u32": 1,
        "v_mfma_f32_32x32x8_f16": 1,
        "s_cbranch_scc1": 1,
    }
    mix = Report.of(amd.instructions(AMDGCN), amd.unit, **UNKNOWN).instruction_mix
    assert mix["buffer_load"] == 2
    assert amd.note(AMDGCN, "agpr_count") == 16 and amd.note(AMDGCN, "vgpr_count") == 44


def test_waves_of_a_compute_unit():
    gfx942 = registry().target("gfx942").architecture
    assert amd.occupancy(AMDGCN, gfx942, num_warps=4, shared=0) == 12
    assert amd.occupancy(AMDGCN, gfx942, num_warps=8, shared=0) == 8  # a block and a half fit
    assert amd.occupancy(AMDGCN, gfx942, num_warps=4, shared=40 * 1024) == 4
    assert amd.occupancy("", gfx942, num_warps=4, shared=0) is None


SASS = """\
        /*0000*/                   MOV R1, c[0x0][0x28] ;          /* 0x00000a0000017a02 */
        /*0010*/                   LDGSTS.E.BYPASS.LTC128B.128 [R2], [R4.64], P1 ;  /* 0x0 */
        /*0020*/                   LDSM.16.MT88.4 R4, [R8+UR4] ;   /* 0x0 */
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ; /* 0x0 */
        /*0040*/              @!P0 BRA 0x10 ;                      /* 0x0 */
        /*0050*/                   EXIT ;                          /* 0x0 */
        /*0060*/                   BRA 0x60;                       /* 0x0 */
        /*0070*/                   NOP;                            /* 0x0 */
"""


def test_sass():
    (loop,) = find_loops(nvidia.instructions(SASS))
    assert (loop.label, loop.instruction_count) == ("0x10", 4)
    assert list(loop.instruction_mix) == ["LDGSTS.128", "LDSM.16.MT88.4", "HGMMA.64x128x16", "BRA"]
    assert Report.of(nvidia.instructions(SASS), nvidia.unit, **UNKNOWN).instruction_mix == {
        "BRA": 2, "MOV": 1, "LDGSTS": 1, "LDSM": 1, "HGMMA": 1, "EXIT": 1
    }  # fmt: skip


def test_warps_of_a_multiprocessor():
    sm_90, sm_89 = (registry().target(name).architecture for name in ("sm_90", "sm_89"))
    assert nvidia.occupancy(sm_90, 32, 4, 0) == 64
    assert nvidia.occupancy(sm_89, 32, 4, 0) == 48
    assert nvidia.occupancy(sm_90, 168, 8, 0) == 8
    assert nvidia.occupancy(sm_90, 32, 4, 200 * 1024) == 4
    assert nvidia.occupancy(sm_90, 64, 4, 75 * 1024) == 12
