"""Copies of TMA: latency and bandwidth per box, loads, stores and multicast."""

from __future__ import annotations

from typing import Any

from ptx import Loop

__all__ = ["copies"]

Facts = dict[str, Any]
MIB, GIB = 1 << 20, 1 << 30
COLUMNS = 64  # bf16: rows of 128 bytes
ROOM = 192 << 10


def _load(rows: int, depth: int, cluster: int = 1) -> Loop:
    """Keep `depth` boxes of rows x 64 under way. `%c` is a mask of the row, `%b` rows between blocks."""
    size = rows * 128
    where = "tile.mbarrier::complete_tx::bytes"
    mask = ""
    if cluster > 1:
        where = "tile.mbarrier::complete_tx::bytes.multicast::cluster"
        mask = ", %h0"
    issue = f"""\
    mbarrier.arrive.expect_tx.shared.b64 _, [%t4], {size};
"""
    copy = f"""\
    and.b32 %t7, %t6, %x9;
    cp.async.bulk.tensor.2d.shared::cluster.global.{where} [%t5], [%map, {{%x8, %t7}}], [%t4]{mask};
"""
    if cluster > 1:
        # Each block brings its part of the box to all blocks of the cluster.
        part = rows // cluster
        copy = f"""\
    mad.lo.u32 %t8, %x7, {part}, %t6;
    and.b32 %t7, %t8, %x9;
    mad.lo.u32 %t9, %x7, {part * 128}, %t5;
    cp.async.bulk.tensor.2d.shared::cluster.global.{where} [%t9], [%map, {{%x8, %t7}}], [%t4]{mask};
"""
    setup = f"""\
    setp.ne.u32 %p3, %me, 0;
    mov.u32 %t0, memory;
    add.u32 %t1, %t0, {ROOM};
    mov.u32 %x8, 0;
    cvt.u32.u64 %x9, %c;
    cvt.u32.u64 %t10, %b;
    mul.lo.u32 %t6, %block, %t10;
    mov.u32 %x7, %cluster_ctarank;
    mov.u16 %h0, {(1 << cluster) - 1};
    @%p3 bra READY;
"""
    for slot in range(depth):
        setup += f"    mbarrier.init.shared.b64 [%t1+{8 * slot}], 1;\n"
    setup += "    fence.mbarrier_init.release.cluster;\n    fence.proxy.async;\n"
    if cluster > 1:
        setup += "READY:\n    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n    @%p3 bra GO;\n"
    for slot in range(depth):
        setup += f"""\
    add.u32 %t4, %t1, {8 * slot};
    add.u32 %t5, %t0, {size * slot};
{issue}{copy}    add.u32 %t6, %t6, {rows};
"""
    setup += "GO:\n" if cluster > 1 else "READY:\n"
    # Slots in order; a round passes all of them once.
    body = "    @%p3 bra SKIP;\n    and.b32 %t11, %i, 1;\n"
    for slot in range(depth):
        body += f"""\
    add.u32 %t4, %t1, {8 * slot};
    add.u32 %t5, %t0, {size * slot};
WAIT{slot}:
    mbarrier.try_wait.parity.shared.b64 %p1, [%t4], %t11;
    @!%p1 bra WAIT{slot};
{issue}"""
        body += f"{copy}    add.u32 %t6, %t6, {rows};\n"
    body += "SKIP:\n"
    if cluster > 1:
        # A block may not refill the slots of another one before that has seen them full.
        body += "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n"
    drain = "    @%p3 bra DONE;\n    and.b32 %t11, %n, 1;\n"
    for slot in range(depth):
        drain += f"""\
LAST{slot}:
    mbarrier.try_wait.parity.shared.b64 %p1, [%t1+{8 * slot}], %t11;
    @!%p1 bra LAST{slot};
"""
    drain += "DONE:\n"
    if cluster > 1:
        drain += "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n"
    return Loop(body, setup, drain, warps=1, cluster=cluster, shared=ROOM + 256, wide=True)


def _store(rows: int, depth: int) -> Loop:
    """Store boxes by one thread; `depth` groups may read shared memory at a time, 0: each is waited for to its end."""
    wait = f"cp.async.bulk.wait_group.read {depth}" if depth else "cp.async.bulk.wait_group 0"
    setup = """\
    setp.ne.u32 %p3, %me, 0;
    mov.u32 %t0, memory;
    mov.u32 %x8, 0;
    cvt.u32.u64 %x9, %c;
    cvt.u32.u64 %t10, %b;
    mul.lo.u32 %t6, %block, %t10;
"""
    body = f"""\
    @%p3 bra SKIP;
    and.b32 %t7, %t6, %x9;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {{%x8, %t7}}], [%t0];
    cp.async.bulk.commit_group;
    {wait};
    add.u32 %t6, %t6, {rows};
SKIP:
"""
    drain = "    @%p3 bra DONE;\n    cp.async.bulk.wait_group 0;\nDONE:\n"
    return Loop(body, setup, drain, warps=1, shared=ROOM + 256, wide=True)


def copies(device: Any) -> Facts:
    """Return cycles and bytes per cycle and SM of boxes of rows x 64 bf16, one SM or all, from L2 or HBM."""
    if device.capability < 90:
        return {}
    facts: Facts = {}
    memory = device.zeros(GIB)
    total = GIB // 128
    units = device.multiprocessors
    sizes = (8, 16, 32, 64, 128, 256)
    depths = {rows: [d for d in (1, 2, 4, 8) if d * rows * 128 <= ROOM] for rows in sizes}
    loops: dict[Any, Loop] = {
        ("load", rows, depth): _load(rows, depth) for rows in sizes for depth in depths[rows]
    }
    loops |= {
        ("store", rows, depth): _store(rows, depth)
        for rows in (16, 64, 128, 256)
        for depth in (0, 2)
    }
    loops |= {("multicast", cluster): _load(128, 4, cluster) for cluster in (2, 4)}
    device.prepare(list(loops.values()))
    maps = {rows: device.map(memory, total, COLUMNS, rows, COLUMNS) for rows in sizes}
    near, far = 16 * MIB // 128 - 1, total - 1

    def run(loop: Loop, rows: int, blocks: int, mask: int, apart: int, rounds: int) -> Any:
        # Where the boxes are to come from HBM, no launch may leave them in L2 for the next one.
        flush = mask == far
        return device.times(loop, rounds, blocks, [0, apart, mask], maps[rows], flush=flush)

    for rows in sizes:
        loop = loops["load", rows, 1]
        for place, mask in (("L2", near), ("HBM", far)):
            facts[f"load.{rows}_rows.latency.{place}"] = run(loop, rows, 1, mask, 0, 64).cycles / 64
        for depth in depths[rows]:
            loop = loops["load", rows, depth]
            rounds = max(8, (2 << 20) // (depth * rows * 128))
            each = rows * 128 * depth * rounds
            one = run(loop, rows, 1, near, 0, rounds)
            facts[f"load.{rows}_rows.depth_{depth}.one_SM.bytes_per_cycle"] = each / one.cycles
            if depth in (1, depths[rows][-1]):
                everybody = run(loop, rows, units, near, near // units + 1, rounds)
                facts[f"load.{rows}_rows.depth_{depth}.all_SMs.L2.bytes_per_ns"] = (
                    each * units / everybody.nanoseconds
                )
                shared = run(loop, rows, units, near, 0, rounds)
                facts[f"load.{rows}_rows.depth_{depth}.all_SMs.same_boxes.bytes_per_ns"] = (
                    each * units / shared.nanoseconds
                )
                cold = run(loop, rows, units, far, total // units + 1, rounds)
                facts[f"load.{rows}_rows.depth_{depth}.all_SMs.HBM.bytes_per_ns"] = (
                    each * units / cold.nanoseconds
                )
    for rows in (16, 64, 128, 256):
        rounds = 128
        waited = run(loops["store", rows, 0], rows, 1, near, 0, rounds)
        facts[f"store.{rows}_rows.latency"] = waited.cycles / rounds
        one = run(loops["store", rows, 2], rows, 1, near, 0, rounds)
        facts[f"store.{rows}_rows.one_SM.bytes_per_cycle"] = rows * 128 * rounds / one.cycles
        everybody = run(loops["store", rows, 2], rows, units, far, total // units + 1, rounds)
        facts[f"store.{rows}_rows.all_SMs.bytes_per_ns"] = (
            rows * 128 * rounds * units / everybody.nanoseconds
        )
    for cluster in (2, 4):
        rounds = 64
        part = device.map(memory, total, COLUMNS, 128 // cluster, COLUMNS)
        blocks = units // cluster * cluster
        times = device.times(loops["multicast", cluster], rounds, blocks, [0, 0, near], part)
        facts[f"multicast.of_{cluster}.arriving_bytes_per_ns"] = (
            128 * 128 * 4 * rounds * blocks / times.nanoseconds
        )
    return facts
