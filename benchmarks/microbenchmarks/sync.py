"""Barriers and launches: cycles from an arrival to the end of a wait, nanoseconds of launches and blocks."""

from __future__ import annotations

from typing import Any

from ptx import Loop

__all__ = ["barriers", "launches"]

Facts = dict[str, Any]


def _slope(device: Any, loop: Loop, short: int = 64, long: int = 192, **options: Any) -> float:
    few, many = (device.times(loop, rounds, **options).cycles for rounds in (short, long))
    return (many - few) / (long - short)


_INIT = """\
    mov.u32 %t0, memory;
    setp.ne.u32 %p3, %me, 0;
    @%p3 bra READY;
    mbarrier.init.shared.b64 [%t0], {count};
    mbarrier.init.shared.b64 [%t0+8], {count};
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
"""

# Warp 0 signals warp 1, which signals warp 0.
_PING = """\
    and.b32 %t11, %i, 1;
    setp.eq.u32 %p4, %warp, 0;
    @!%p4 bra OTHER;
    @%first mbarrier.arrive.shared.b64 _, [%t0];
W0:
    mbarrier.try_wait.parity.shared.b64 %p1, [%t0+8], %t11;
    @!%p1 bra W0;
    bra NEXT;
OTHER:
W1:
    mbarrier.try_wait.parity.shared.b64 %p1, [%t0], %t11;
    @!%p1 bra W1;
    @%first mbarrier.arrive.shared.b64 _, [%t0+8];
NEXT:
"""

# The blocks of a cluster signal each other.
_REMOTE_SETUP = """\
    mov.u32 %x7, %cluster_ctarank;
    xor.b32 %t1, %x7, 1;
    mapa.shared::cluster.u32 %t2, %t0, %t1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""
_REMOTE = """\
    and.b32 %t11, %i, 1;
    setp.eq.u32 %p4, %x7, 0;
    @!%p4 bra OTHER;
    @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%t2];
W0:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%t0], %t11;
    @!%p1 bra W0;
    bra NEXT;
OTHER:
W1:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%t0], %t11;
    @!%p1 bra W1;
    @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%t2];
NEXT:
"""


def barriers(device: Any) -> Facts:
    """Return cycles of barriers: of a passage that does not wait, and of a signal from warp to warp."""
    loops: dict[str, Loop] = {}
    for warps in (1, 4, 8, 12, 16):
        loops[f"bar.sync.of_{warps}_warps"] = Loop("    bar.sync 0;\n" * 8, warps=warps)
    loops["bar.named.pair_of_groups"] = Loop("    bar.sync 1, 256;\n" * 8, warps=8)
    loops["syncwarp"] = Loop("    bar.warp.sync 0xffffffff;\n" * 8)
    loops["fence.async"] = Loop("    fence.proxy.async.shared::cta;\n" * 8)
    loops["membar.cta"] = Loop("    fence.acq_rel.cta;\n" * 8)
    loops["membar.gpu"] = Loop("    fence.acq_rel.gpu;\n" * 8)
    counts = dict.fromkeys(loops, 8)
    if device.capability >= 90:
        # An arrival that completes the phase, and a wait that finds it complete.
        loops["mbarrier.passing"] = Loop(
            "    and.b32 %t11, %i, 1;\n    mbarrier.arrive.shared.b64 _, [%t0];\nW0:\n"
            "    mbarrier.try_wait.parity.shared.b64 %p1, [%t0], %t11;\n    @!%p1 bra W0;\n",
            _INIT.format(count=32), shared=1024,
        )  # fmt: skip
        loops["mbarrier.round_trip"] = Loop(_PING, _INIT.format(count=1), warps=2, shared=1024)
        loops["mbarrier.wait.passed"] = Loop(
            "    mbarrier.try_wait.parity.shared.b64 %p1, [%t0], 1;\n    @!%p1 bra OUT;\n" * 8 + "OUT:\n",
            _INIT.format(count=1), shared=1024,
        )  # fmt: skip
        counts["mbarrier.wait.passed"] = 8
        for cluster in (2, 4, 8):
            loops[f"cluster.barrier.of_{cluster}"] = Loop(
                "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n" * 8,
                warps=4, cluster=cluster, wide=True,
            )  # fmt: skip
            counts[f"cluster.barrier.of_{cluster}"] = 8
        loops["cluster.mbarrier.round_trip"] = Loop(
            _REMOTE, _INIT.format(count=1) + _REMOTE_SETUP,
            "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n",
            cluster=2, shared=1024, wide=True,
        )  # fmt: skip
    device.prepare(list(loops.values()))
    facts: Facts = {}
    for name, loop in loops.items():
        facts[name] = _slope(device, loop, blocks=loop.cluster) / counts.get(name, 1)
    return facts


def launches(device: Any) -> Facts:
    """Return nanoseconds that a launch adds to a graph of launches, by grid and block."""
    facts: Facts = {}
    units = device.multiprocessors
    for warps, room in ((1, 0), (4, 0), (8, 0), (12, 200 << 10)):
        loop = Loop("", warps=warps, shared=room)
        for blocks in (1, units, 8 * units, 64 * units):
            if room and blocks > 8 * units:
                continue
            kib = f".{room >> 10}_KiB" if room else ""
            facts[f"graph.{warps}_warps{kib}.{blocks}_blocks"] = device.graph_node(loop, blocks)
    # From the first block's begin to the last one's, one block on each SM.
    for warps in (4, 12):
        loop = Loop("", warps=warps, shared=200 << 10)
        facts[f"spread.{warps}_warps.{units}_blocks"] = device.times(loop, 1, units).nanoseconds
    return facts
