"""Special registers of PTX in inline assembly, on the simulator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_emu.ptx.special import SPECIAL
from gluon_sim.errors import SimulatorError

pytestmark = pytest.mark.once
WARPS = 4
LAYOUTS = {
    1: gl.BlockedLayout([1], [32], [WARPS], [0]),
    2: gl.BlockedLayout([1], [32], [WARPS], [0], cga_layout=[[1]]),
}


@gluon.jit
def registers(out, ASM: gl.constexpr, L: gl.constexpr, N: gl.constexpr):
    i = gl.arange(0, N, L)
    x, y, z = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    program = (z * gl.num_programs(1) + y) * gl.num_programs(0) + x
    value = gl.inline_asm_elementwise(ASM, "=r,r", [i], gl.int32, False, 1)
    gl.store(out + program * N + i, value)


def read(name, blocks=1, grid=(3, 2, 2), target="sim:sm_90"):
    """Return the value of a register in [z, y, x, block, thread]."""
    threads = 32 * WARPS
    out = np.zeros((*grid[::-1], blocks, threads), np.int32)
    text = f"mov.u32 $0, %{name};"
    if SPECIAL[name].bits == 1:
        text = f"{{ .reg .pred p; mov.pred p, %{name}; selp.u32 $0, 1, 0, p; }}"
    if SPECIAL[name].bits == 64:
        text = f"{{ .reg .u64 t; mov.u64 t, %{name}; cvt.u32.u64 $0, t; }}"
    options = {"target": target, "num_warps": WARPS, "num_ctas": blocks}
    registers[grid](out, text, LAYOUTS[blocks], blocks * threads, **options)
    return out


def test_clusters_and_blocks():
    z, y, x, block, thread = np.indices((2, 2, 3, 2, 32 * WARPS))
    linear = ((z * 2 + y) * 3 + x) * 2 + block
    wanted = {
        "tid.x": thread, "tid.z": 0, "tid.w": 0, "ntid.x": 128, "ntid.y": 1, "laneid": thread % 32,
        "warpid": thread // 32, "nwarpid": 4, "ctaid.x": 2 * x + block, "ctaid.y": y, "ctaid.z": z,
        "nctaid.x": 6, "nctaid.y": 2, "clusterid.x": x, "clusterid.z": z, "nclusterid.x": 3,
        "cluster_ctaid.x": block, "cluster_ctaid.y": 0, "cluster_nctaid.x": 2, "cluster_nctaid.y": 1,
        "cluster_ctarank": block, "cluster_nctarank": 2, "is_explicit_cluster": 1,
        "smid": linear % 132, "nsmid": 132, "lanemask_lt": (1 << thread % 32) - 1,
    }  # fmt: skip
    for name, values in wanted.items():
        expected = np.broadcast_to(np.asarray(values, np.int64), z.shape).astype(np.int32)
        np.testing.assert_array_equal(read(name, 2), expected, name)
    alone = ("is_explicit_cluster", 0), ("cluster_ctarank", 0), ("cluster_nctarank", 1)
    for name, value in alone:
        assert (read(name, grid=(2, 1, 1)) == value).all(), name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted({n.rstrip("0123456789") for n in SPECIAL} & set(SPECIAL)))
def test_every_register_can_be_read(name):
    read(name, grid=(1, 1, 1))


PTX = """.version 8.4
.target {arch}
.address_size 64
.visible .entry k() {{ .reg .pred p; .reg .u16 h; .reg .u32 r; .reg .u64 l; {body} ret; }}
"""
HOLDERS = {1: ("pred", "p"), 16: ("u16", "h"), 32: ("u32", "r"), 64: ("u64", "l")}


def assembled(arch, names, folder):
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    if not tool.exists():
        pytest.skip("this Triton ships no ptxas")
    lines = [
        f"mov.{HOLDERS[bits][0]} {HOLDERS[bits][1]}, %{name};"
        for name in names
        for bits in {SPECIAL[name].bits, SPECIAL[name].narrow} - {0}
    ]
    source = folder / "registers.ptx"
    source.write_text(PTX.format(arch=arch, body=" ".join(lines)))
    command = [tool, "-arch", arch, source, "-o", folder / "registers.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ptxas_has_the_same_registers(tmp_path):
    done = assembled("sm_90", SPECIAL, tmp_path)
    assert done.returncode == 0, done.stderr
    old = [name for name, special in SPECIAL.items() if special.since <= 80]
    assert assembled("sm_80", old, tmp_path).returncode == 0
    done = assembled("sm_80", [name for name in SPECIAL if name not in old], tmp_path)
    assert all(name in done.stderr for name in ("clusterid", "cluster_nctarank", "aggr_smem_size"))


def test_registers_that_the_target_lacks_are_refused():
    with pytest.raises(SimulatorError, match="%cluster_ctarank` needs sm_90 or higher") as caught:
        read("cluster_ctarank", target="sim:sm_80")
    assert caught.value.span.file == __file__
    with pytest.raises(SimulatorError, match="`%nobody` is not known"):
        registers[(1,)](
            np.zeros(128, np.int32), "mov.u32 $0, %nobody;", LAYOUTS[1], 128, target="sim:sm_90"
        )


@gluon.jit
def slept(out):
    text: gl.constexpr = """{ .reg .u64 a, b; mov.u64 a, %globaltimer; nanosleep.u32 $1;
        mov.u64 b, %globaltimer; sub.u64 b, b, a; cvt.u32.u64 $0, b; }"""
    time = gl.inline_asm_elementwise(text, "=&r,r", [gl.program_id(0) * 5000], gl.int32, False, 1)
    gl.store(out + gl.program_id(0), time)


def test_timers_go_on_while_a_thread_sleeps():
    out = np.zeros(2, np.int32)
    slept[(2,)](out, target="sim:sm_90")
    assert 0 < out[0] and 5000 <= out[1] < 10000


@gluon.jit
def of_worker(out, L: gl.constexpr, N: gl.constexpr, AT: gl.constexpr):
    i = gl.arange(0, N, L)
    text: gl.constexpr = "mov.u32 $0, %tid.x;"
    gl.store(out + AT + i, gl.inline_asm_elementwise(text, "=r,r", [i], gl.int32, False, 1))


@gluon.jit
def in_partitions(out, ONE: gl.constexpr, TWO: gl.constexpr, FOUR: gl.constexpr):
    gl.warp_specialize(
        [
            (of_worker, (out, FOUR, 128, 0)),
            (of_worker, (out, ONE, 32, 128)),
            (of_worker, (out, TWO, 64, 160)),
        ],
        [1, 2],
        [24, 24],
    )


def test_threads_of_partitions_follow_the_others():
    out = np.zeros(224, np.int32)
    layouts = [gl.BlockedLayout([1], [32], [warps], [0]) for warps in (1, 2, 4)]
    in_partitions[(1,)](out, *layouts, target="sim:sm_90", num_warps=4)
    np.testing.assert_array_equal(out[:128], np.arange(128))
    np.testing.assert_array_equal(out[128:160], 192 + np.arange(32))  # the larger one comes first
    np.testing.assert_array_equal(out[160:], 128 + np.arange(64))
