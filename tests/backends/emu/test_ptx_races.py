"""The search for races in PTX: each program is right, and wrong without one part of it."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_emu.errors import MissingWaitError, OrderError, RaceError
from gluon_emu.settings import Settings
from tests.backends.emu.ptx_mutants import (
    CASES,
    SCHEDULES,
    code_of,
    listed,
    mutants,
    report,
    tried,
)
from tests.backends.emu.test_ptx_machine import STORE, module, run

pytestmark = [pytest.mark.once, pytest.mark.sampled(5)]

ROOM = ".shared .align 128 .b8 room[4096]; .shared .align 8 .b64 gate; .shared .align 8 .b64 empty;"
OWN = "mov.u32 %r4, room; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r4;"  # %r5: the thread's word
OTHER = (
    "xor.b32 %r6, %r0, 32; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r4;"  # a word of another warp
)
NEXT = "xor.b32 %r6, %r0, 1; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r4;"  # and of another lane
FIRST = "setp.eq.u32 %p0, %r0, 0;"
GATE = f"mov.u32 %r8, gate; {FIRST} @%p0 mbarrier.init.shared.b64 [%r8], 1; bar.sync 0;"
WAIT = "$W: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], 0; @!%p1 bra $W;"
BULK = """@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 256;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d0], 256, [%r8];"""
LAST = f"{STORE}"
WRITTEN = "st.shared.u32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0;"
# The flag is a word behind the threads' own: block 0 writes data and sets it, block 1 waits for it.
FLAG = "add.u64 %d4, %d0, 512; setp.ne.u32 %p2, %r1, 0;"


def flag(store, load, before="", after=""):
    """Block 0 stores %r0 + 5 and sets a flag; block 1 waits for the flag and copies."""
    return f"""{FLAG} @%p2 bra $READ;
    add.u32 %r10, %r0, 5; st.global.u32 [%d1], %r10; bar.sync 0; {before} {FIRST} @%p0 {store} bra $END;
    $READ: {load} setp.eq.u32 %p3, %r11, 0; @%p3 bra $READ; {after} mul.wide.u32 %d5, %r0, 4;
    add.u64 %d5, %d5, %d0; ld.global.u32 %r10, [%d5]; {STORE} $END: """


# name: (body with [[the part that is needed]], report, words of the report, blocks, blocks of a cluster)
PROGRAMS = {
    "barrier between warps": (
        f"{OWN}{OTHER} st.shared.u32 [%r5], %r0; [[bar.sync 0;]] ld.shared.u32 %r10, [%r6]; {LAST}",
        RaceError, "this read and the write by `st.shared", 1, 1),
    "barrier before the reuse": (
        f"{OWN}{OTHER} st.shared.u32 [%r5], %r0; bar.sync 0; ld.shared.u32 %r10, [%r6]; [[bar.sync 0;]]"
        f"st.shared.u32 [%r5], 7; {LAST}",
        RaceError, "this write and the read by `ld.shared", 1, 1),
    "barrier of a warp's lanes": (
        f"{OWN}{NEXT} st.shared.u32 [%r5], %r0; [[bar.warp.sync -1;]] ld.shared.u32 %r10, [%r6]; {LAST}",
        RaceError, "warp 0, lane", 1, 1),
    "arrival that releases": (
        f"{OWN}{GATE}{OTHER} setp.lt.u32 %p2, %r0, 32; @!%p2 bra $USE; st.shared.u32 [%r5], %r0;"
        f"bar.warp.sync -1; @%p0 mbarrier.arrive[[.release]].cta.shared.b64 _, [%r8]; bra $END;"
        f"$USE: {WAIT} ld.shared.u32 %r10, [%r6]; {STORE} $END:",
        RaceError, "have no order", 1, 1),
    "lane that signals for others": (
        f"{OWN}{GATE}{OTHER} setp.lt.u32 %p2, %r0, 32; @!%p2 bra $USE; st.shared.u32 [%r5], %r0;"
        f"[[bar.warp.sync -1;]] @%p0 mbarrier.arrive.shared.b64 _, [%r8]; bra $END;"
        f"$USE: {WAIT} ld.shared.u32 %r10, [%r6]; {STORE} $END:",
        RaceError, "Another lane of that warp signalled", 1, 1),
    "wait at an mbarrier": (
        f"{OWN}{GATE}{BULK} [[{WAIT}]] ld.shared.u32 %r10, [%r5]; {STORE}",
        MissingWaitError, "does not wait for the write by `@%p0 cp.async.bulk", 1, 1),
    "wait for cp.async": (
        f"{OWN} cp.async.ca.shared.global [%r5], [%d1], 4; cp.async.commit_group; [[cp.async.wait_group 0;]]"
        f"bar.sync 0; ld.shared.u32 %r10, [%r5]; {STORE}",
        MissingWaitError, "does not wait for the write by `cp.async.ca", 1, 1),
    "commit of cp.async": (
        f"{OWN} cp.async.ca.shared.global [%r5], [%d1], 4; [[cp.async.commit_group;]] cp.async.wait_group 0;"
        f"bar.sync 0; ld.shared.u32 %r10, [%r5]; {STORE}",
        MissingWaitError, "does not wait for the write by `cp.async.ca", 1, 1),
    "barrier behind the wait for cp.async": (
        f"{OWN}{OTHER} cp.async.ca.shared.global [%r5], [%d1], 4; cp.async.commit_group;"
        f"cp.async.wait_group 0; [[bar.sync 0;]] ld.shared.u32 %r10, [%r6]; {STORE}",
        RaceError, "cp.async.ca", 1, 1),
    "proxy fence of the writer": (
        f"{OWN} st.shared.u32 [%r5], %r0; [[fence.proxy.async.shared::cta;]] bar.sync 0; {FIRST}"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4], 256; @%p0 cp.async.bulk.commit_group;"
        "@%p0 cp.async.bulk.wait_group 0; mov.u32 %r10, 1;",
        RaceError, "between the generic and the async proxy", 1, 1),
    "barrier before the bulk store": (
        f"{OWN} st.shared.u32 [%r5], %r0; fence.proxy.async.shared::cta; [[bar.sync 0;]] {FIRST}"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4], 256; @%p0 cp.async.bulk.commit_group;"
        "@%p0 cp.async.bulk.wait_group 0; mov.u32 %r10, 1;",
        RaceError, "have no order", 1, 1),
    "wait for the reads of a bulk store": (
        f"{OWN} st.shared.u32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0; {FIRST}"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4], 256; @%p0 cp.async.bulk.commit_group;"
        "[[@%p0 cp.async.bulk.wait_group.read 0;]] bar.sync 0; st.shared.u32 [%r5], 3;",
        MissingWaitError, "this write does not wait for the read by", 1, 1),
    "use of a load before the arrival": (
        f"{OWN}{GATE} mov.u32 %r11, empty; @%p0 mbarrier.init.shared.b64 [%r11], 64; {WRITTEN}"
        "ld.shared.u32 %r10, [%r5]; [[add.u32 %r10, %r10, 1;]] mbarrier.arrive.shared.b64 _, [%r11];"
        f"$V: mbarrier.try_wait.parity.shared.b64 %p1, [%r11], 0; @!%p1 bra $V; {BULK}{WAIT} add.u32 %r10, %r10, 1; {STORE}",
        RaceError, "nothing used the value before its warp arrived", 1, 1),
    "use of a load before the barrier": (
        f"{OWN}{GATE} {WRITTEN} ld.shared.u32 %r10, [%r5]; [[add.u32 %r10, %r10, 1;]] bar.sync 0;"
        f"{BULK}{WAIT} add.u32 %r10, %r10, 1; {STORE}",
        RaceError, "nothing used the value before its warp arrived", 1, 1),
    "use of a load before the last barrier": (
        f"{OWN}{GATE} {WRITTEN} ld.shared.u32 %r10, [%r5]; bar.sync 0; add.u32 %r10, %r10, 1;"
        f"[[bar.sync 0;]] {BULK}{WAIT} {STORE}",
        RaceError, "nothing used the value before its warp arrived", 1, 1),
    "proxy fence behind a load": (
        f"{OWN}{GATE} {WRITTEN} ld.shared.u32 %r10, [%r5]; [[fence.proxy.async.shared::cta;]]"
        f"bar.sync 0; {BULK}{WAIT} add.u32 %r10, %r10, 1; {STORE}",
        RaceError, "nothing used the value before its warp arrived", 1, 1),
    "wait at the end": (
        f"{OWN} st.shared.u32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0; {FIRST}"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4], 256; @%p0 cp.async.bulk.commit_group;"
        "[[@%p0 cp.async.bulk.wait_group.read 0;]]",
        MissingWaitError, "a thread ends while a copy", 1, 1),
    "mbarrier that is waited for before the end": (
        f"{OWN}{GATE}{BULK} [[{WAIT}]]",
        MissingWaitError, "no thread waited for its mbarrier", 1, 1),
    "barrier of the cluster": (
        f"{OWN}{OTHER} mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1; st.shared.u32 [%r5], %r0;"
        "[[barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;]]"
        "mapa.shared::cluster.u32 %r9, %r5, %r7; ld.shared::cluster.u32 %r10, [%r9];"
        f"barrier.cluster.arrive; barrier.cluster.wait; {STORE}",
        RaceError, "this read and the write by `st.shared", 2, 2),
    "cluster's barrier that releases": (
        f"{OWN}{OTHER} mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1; st.shared.u32 [%r5], %r0;"
        "barrier.cluster.arrive[[.release]]; barrier.cluster.wait;"
        "mapa.shared::cluster.u32 %r9, %r5, %r7; ld.shared::cluster.u32 %r10, [%r9];"
        f"barrier.cluster.arrive; barrier.cluster.wait; {STORE}",
        RaceError, "this read and the write by `st.shared", 2, 2),
    "release of a flag": (
        flag("st.[[release]].gpu.global.u32 [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];"),
        OrderError, "out", 2, 1),
    "acquire of a flag": (
        flag("st.release.gpu.global.u32 [%d4], 1;", "ld.[[acquire]].gpu.global.u32 %r11, [%d4];"),
        OrderError, "out", 2, 1),
    "scope of a release": (
        flag("st.release.[[gpu]].global.u32 [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];"),
        OrderError, "both need .gpu", 2, 1),
    "scope of an acquire": (
        flag("st.release.gpu.global.u32 [%d4], 1;", "ld.acquire.[[gpu]].global.u32 %r11, [%d4];"),
        OrderError, "", 2, 1),
    "atomic that releases": (
        flag("atom.[[acq_rel]].gpu.global.add.u32 %r12, [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];"),
        OrderError, "out", 2, 1),
    "fence of the writer": (
        flag("st.relaxed.gpu.global.u32 [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];", "[[fence.acq_rel.gpu;]]"),
        OrderError, "out", 2, 1),
    "fence of the reader": (
        flag("st.release.gpu.global.u32 [%d4], 1;", "ld.relaxed.gpu.global.u32 %r11, [%d4];", after="[[fence.acq_rel.gpu;]]"),
        OrderError, "out", 2, 1),
    "scope of a fence": (
        flag("st.relaxed.gpu.global.u32 [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];", "fence.acq_rel.[[gpu]];"),
        OrderError, "out", 2, 1),
    "barrier before a flag": (
        flag("st.release.gpu.global.u32 [%d4], 1;", "ld.acquire.gpu.global.u32 %r11, [%d4];").replace("bar.sync 0;", "[[bar.sync 0;]]"),
        OrderError, "out", 2, 1),
    "multicast copy into reused bytes of a peer": (
        f"{OWN} mov.u32 %r7, %cluster_ctarank; mov.u32 %r8, gate; {FIRST} @%p0 mbarrier.init.shared.b64 [%r8], 1;"
        "barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p2, %r7, 0; and.pred %p2, %p2, %p0;"
        "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 256; mov.u16 %h0, 3;"
        "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%r4], [%d0], 256, [%r8], %h0;"
        f"[[{WAIT}]] barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r9, %r7, 1;"
        "mapa.shared::cluster.u32 %r9, %r5, %r9; st.shared::cluster.u32 [%r9], %r0;"
        "barrier.cluster.arrive; barrier.cluster.wait;",
        MissingWaitError, "this write does not wait for the write by", 2, 2),
}  # fmt: skip
WEAKER = {
    "release": "relaxed",
    "acquire": "relaxed",
    "acq_rel": "relaxed",
    "gpu": "cta",
    ".release": ".relaxed",
}


def executed(body, blocks, cluster, settings):
    text = module(body.replace("bra $W;", "bra $W;"), ROOM)
    text = text.replace(".reg .pred %p<10>;", ".reg .pred %p<10>; .reg .b16 %h<4>;")
    out = np.zeros(64 * blocks + 64, np.uint32)
    from gluon_emu.memory import Allocation
    from gluon_emu.ptx.launcher import execute, prepared
    from gluon_emu.ptx.loaded import code_of

    memory = [Allocation("out", out.view(np.uint8))]
    request = prepared(
        code_of(text), (blocks, 1, 1), [("out", "*", out.ctypes.data)], [], memory, 0, (cluster, 1, 1), (64, 1, 1)
    )  # fmt: skip
    execute(request, settings)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_right_and_wrong_without_a_part(name):
    body, kind, words, blocks, cluster = PROGRAMS[name]
    before, rest = body.split("[[")
    part, after = rest.split("]]")
    settings = Settings(search=True, timeout=20)
    executed(before + part + after, blocks, cluster, settings)
    with pytest.raises(kind) as caught:
        executed(before + WEAKER.get(part, "") + after, blocks, cluster, settings)
    assert words in str(caught.value) and "line " in str(caught.value)


def test_nobody_looks_without_the_setting():
    body = PROGRAMS["barrier between warps"][0].replace("[[bar.sync 0;]]", "")
    run(module(body, ROOM))


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_races_are_found_under_each_schedule(schedule):
    body = PROGRAMS["wait for cp.async"][0].replace("[[cp.async.wait_group 0;]]", "")
    with pytest.raises(MissingWaitError):
        executed(body, 1, 1, Settings(search=True, schedule=schedule, seed=1))


def test_the_command_checks_files(tmp_path):
    body = PROGRAMS["barrier between warps"][0]
    path = tmp_path / "kernel.ptx"
    options = ["--arg", "i32[64]", "--block", "64", "--schedules", "3", "--check"]
    path.write_text(module(body.replace("[[", "").replace("]]", ""), ROOM))
    done = CliRunner().invoke(app, ["emu", str(path), *options])
    assert done.exit_code == 0 and "no race and no other mistake under 3 schedules" in done.stdout
    path.write_text(module(body.replace("[[bar.sync 0;]]", ""), ROOM))
    done = CliRunner().invoke(app, ["emu", str(path), *options])
    assert done.exit_code == 1 and "under schedule latest" in done.output + str(done.stderr)


# Instructions whose deletion changes nothing that the ISA asks for, with the reason; see docs/emulator-ptx.md.
EXPLAINED = {
    "barrier of warps": "another barrier orders the same accesses",
    "barrier of a warp's lanes": "the lanes that follow read nothing that others wrote",
    "wait at an mbarrier": "the slot is empty since the start",
    "arrival at an mbarrier": "the ring does not wrap around after it, so nobody waits for that phase",
    "cp.async.wait_group": "nothing is pending",
    "tcgen05.wait": "a later wait covers the load, before the arrival that lets a product overwrite the sums",
    "bulk wait_group": "nothing is pending",
    "one more group may be pending": "nothing is pending",
    "wgmma.fence": "a fence before it orders the first product, and the registers did not change",
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_deleted_instructions_of_pipelined_kernels(name):
    every, _ = listed(name, 1 << 30)
    ends = [tried(name, 1 << 30, number)[0] for number in range(len(every))]
    silent = [mutant for mutant, end in zip(every, ends) if end == "no report"]
    assert not [str(mutant) for mutant in silent if mutant.kind not in EXPLAINED]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("gemm, split-K", "wait at an mbarrier"),
        ("gemm, cp.async", "cp.async.wait_group"),
        pytest.param("gemm, tcgen05", "tcgen05.wait", marks=pytest.mark.campaign),
    ],
)
def test_a_deletion_in_a_library_kernel_is_reported(name, kind):
    case = CASES[name]
    kernel, text = code_of(case)
    chosen = [mutant for mutant in mutants(text) if mutant.kind == kind]
    reports = (report(case, kernel, mutant, orders=SCHEDULES[:1]) for mutant in reversed(chosen))
    assert next(filter(None, reports)) in ("MissingWaitError", "RaceError")
