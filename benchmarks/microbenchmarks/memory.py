"""Shared memory, global memory through threads, `cp.async`, atomics: latencies, rates and bandwidths."""

from __future__ import annotations

from typing import Any

import numpy as np
from ptx import Loop

__all__ = ["asynchronous", "atomics", "bandwidths", "latencies", "shared"]

Facts = dict[str, Any]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _slope(device: Any, loop: Loop, short: int, long: int, **options: Any) -> float:
    few, many = (device.times(loop, rounds, **options).cycles for rounds in (short, long))
    return (many - few) / (long - short)


# ---- shared memory ----------------------------------------------------------------------------------


def _addresses(width: int, stride: int) -> str:
    """Thread t of a warp accesses the word t * stride; warps start 4 KiB apart."""
    return f"""\
    mov.u32 %t0, memory;
    mul.lo.u32 %t1, %lane, {width * stride};
    and.b32 %t1, %t1, 8191;
    add.u32 %t2, %t0, %t1;
    shl.b32 %t3, %warp, 4;
    and.b32 %t3, %t3, 0;
    add.u32 %t2, %t2, %t3;
    mov.b32 %x300, %clock;
"""


def _vector(width: int, first: int) -> str:
    count = width // 4
    names = ", ".join(f"%x{first + i}" for i in range(count))
    return f"{{{names}}}" if count > 1 else names


def _shared_loop(kind: str, width: int, stride: int, warps: int) -> Loop:
    form = {4: "b32", 8: "v2.b32", 16: "v4.b32"}[width]
    lines, kept = [], []
    for i in range(8):
        if kind == "ld":
            # Each load's result is folded into one that is kept: no load can be left out.
            lines.append(
                f"    ld.volatile.shared.{form} {_vector(width, 4 * i)}, [%t2+{16384 * (i % 2)}];"
            )
            kept += [f"%x{4 * i}"]
        else:
            value = (
                _vector(width, 300)
                if width == 4
                else "{" + ", ".join(["%x300"] * (width // 4)) + "}"
            )
            lines.append(f"    st.volatile.shared.{form} [%t2+{16384 * (i % 2)}], {value};")
    setup = _addresses(width, stride) + "\n".join(f"    mov.b32 {r}, 0;" for r in kept)
    return Loop("\n".join(lines), setup, kept=tuple(kept), warps=warps, shared=48 << 10)


def _matrix_loop(kind: str, warps: int) -> Loop:
    lines, kept = [], []
    for i in range(8):
        names = ", ".join(f"%x{4 * i + k}" for k in range(4))
        if kind == "ldmatrix":
            lines.append(
                f"    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{names}}}, [%t2+{4096 * i}];"
            )
            kept.append(f"%x{4 * i}")
        else:
            lines.append("    stmatrix.sync.aligned.m8n8.x4.shared.b16 "
                         f"[%t2+{16384 * (i % 2)}], {{%x300, %x300, %x300, %x300}};")  # fmt: skip
    # A store that may change the matrices keeps the assembler from loading each but once.
    lines.append("    st.shared.b32 [%t2], %x300;")
    setup = _addresses(16, 1) + "\n".join(f"    mov.b32 {r}, 0;" for r in kept)
    return Loop("\n".join(lines), setup, kept=tuple(kept), warps=warps, shared=48 << 10)


def shared(device: Any) -> Facts:
    """Return latencies in cycles, and cycles of the SM's pipe for an access of a warp, by width and stride."""
    chase = Loop(
        "\n".join(["    ld.shared.b32 %t2, [%t2];"] * 16),
        """\
    mov.u32 %t0, memory;
    shl.b32 %t1, %me, 2;
    add.u32 %t2, %t0, %t1;
    st.shared.b32 [%t2], %t2;
""",
        kept=("%x0",), warps=1, shared=48 << 10,
    )  # fmt: skip
    chase = Loop(chase.body, chase.setup, "    mov.b32 %x0, %t2;", ("%x0",), 1, 1, 48 << 10)
    loops: dict[Any, Loop] = {"latency": chase}
    for kind in ("ld", "st"):
        for width in (4, 8, 16):
            loops[kind, width, 1] = _shared_loop(kind, width, 1, 8)
        for stride in (2, 4, 8, 16, 32):
            loops[kind, 4, stride] = _shared_loop(kind, 4, stride, 8)
        loops[kind, 16, 2] = _shared_loop(kind, 16, 2, 8)
        loops[kind, 16, 8] = _shared_loop(kind, 16, 8, 8)
    loops["ldmatrix"] = _matrix_loop("ldmatrix", 8)
    if device.capability >= 90:
        loops["stmatrix"] = _matrix_loop("stmatrix", 8)
    device.prepare(list(loops.values()))
    facts: Facts = {}
    for key, loop in loops.items():
        cycles = _slope(device, loop, 64, 192)
        if key == "latency":
            facts["latency"] = cycles / 16
        else:
            name = key if isinstance(key, str) else f"{key[0]}.{key[1]}_bytes.stride_{key[2]}"
            facts[f"{name}.pipe"] = cycles / 8 / 8  # eight accesses of eight warps
    return facts


# ---- global memory ----------------------------------------------------------------------------------


def latencies(device: Any) -> Facts:
    """Return cycles of one dependent load that hits L1, hits L2, and misses both."""
    facts: Facts = {}
    for name, modifier, size, stride in (
        ("L1", "ca", 16 * KIB, 128),
        ("L2", "cg", 4 * MIB, 4096 + 128),
        ("HBM", "cg", 768 * MIB, 64 * KIB + 128 + 4096),
    ):
        count = size // stride
        words = np.zeros(size // 8, np.int64)
        places = np.arange(count) * (stride // 8)
        words[places] = np.roll(places, -1) * 8
        memory = device.array(words)
        loop = Loop(
            "\n".join(
                [f"    ld.global.{modifier}.u64 %d0, [%d1];", "    add.u64 %d1, %a, %d0;"] * 4
            ),
            "    mov.u64 %d1, %a;",
            kept=("%d0",),
        )
        rounds = min(count // 4, 1024)
        times = device.times(loop, rounds, pointers=[memory], flush=name == "HBM")
        facts[f"{name}.latency"] = times.cycles / rounds / 4
        facts[f"{name}.latency_ns"] = times.nanoseconds / rounds / 4
        del memory
    return facts


def _stream(kind: str, unroll: int = 8, warps: int = 16) -> Loop:
    """Blocks stream over memory in 16-byte accesses: `%b` is the bytes of a round of all blocks, `%c` a mask."""
    setup = f"""\
    mad.lo.u32 %t0, %block, {32 * warps}, %me;
    mul.wide.u32 %d0, %t0, 16;
    mov.u32 %t1, %nctaid.x;
    mul.wide.u32 %d1, %t1, {32 * warps * 16};
    mov.b32 %x0, 1; mov.b32 %x1, 2; mov.b32 %x2, 3; mov.b32 %x3, 4;
    mov.b32 %x200, 0;
"""
    lines = []
    for i in range(unroll):
        lines.append(
            "    and.b64 %d2, %d0, %c;\n    add.u64 %d3, %a, %d2;\n    add.u64 %d4, %b, %d2;"
        )
        names = "{" + ", ".join(f"%x{4 * i + k}" for k in range(4)) + "}"
        if kind in ("read", "copy"):
            lines.append(f"    ld.global.L1::no_allocate.v4.b32 {names}, [%d3];")
        if kind == "write":
            lines.append("    st.global.v4.b32 [%d3], {%x0, %x1, %x2, %x3};")
        lines.append("    add.u64 %d0, %d0, %d1;")
        if kind == "copy":
            lines.append(f"    mov.u64 %d{8 + i}, %d4;")
    if kind == "read":
        lines += [f"    xor.b32 %x200, %x200, %x{k};" for k in range(4 * unroll)]
    if kind == "copy":
        for i in range(unroll):
            names = "{" + ", ".join(f"%x{4 * i + k}" for k in range(4)) + "}"
            lines.append(f"    st.global.v4.b32 [%d{8 + i}], {names};")
    return Loop("\n".join(lines), setup, kept=("%x200",), warps=warps)


def bandwidths(device: Any) -> Facts:
    """Return bytes per nanosecond that threads read, write and copy: within L2, from HBM, by one SM and by all."""
    facts: Facts = {}
    loops = {kind: _stream(kind) for kind in ("read", "write", "copy")}
    device.prepare(list(loops.values()))
    first, second = device.zeros(GIB), device.zeros(GIB)
    units = device.multiprocessors
    for kind, loop in loops.items():
        for place, mask in (("L2", 16 * MIB - 1), ("HBM", GIB - 1)):
            blocks = 4 * units
            each = 8 * 512 * 16  # bytes of a round of a block
            rounds = max(1, GIB // (each * blocks))
            nanoseconds = device.bandwidth(loop, rounds, blocks, [first, second, mask])
            total = each * rounds * blocks * (2 if kind == "copy" else 1)
            facts[f"{kind}.{place}"] = total / nanoseconds
        for count in (1, 16, 66):
            rounds = 64
            times = device.times(loop, rounds, 2 * count, [first, second, 16 * MIB - 1])
            moved = 8 * 512 * 16 * rounds * 2 * count * (2 if kind == "copy" else 1)
            facts[f"{kind}.L2.of_{count}_SMs.per_cycle"] = moved / times.cycles / count
    return facts


def asynchronous(device: Any) -> Facts:
    """Return cycles of groups of `cp.async` that are waited for one by one, and bytes per cycle of an SM."""
    facts: Facts = {}
    memory = device.zeros(64 * MIB)

    def loop(bytes_each: int, pending: int) -> Loop:
        copies = bytes_each // (128 * 16)
        lines = []
        for i in range(copies):
            lines.append(f"    cp.async.cg.shared.global [%t2+{2048 * i}], [%d3+{2048 * i}], 16;")
        lines += [
            "    cp.async.commit_group;",
            f"    cp.async.wait_group {pending};",
            f"    add.u64 %d3, %d3, {bytes_each};",
        ]
        setup = """\
    mov.u32 %t0, memory;
    shl.b32 %t1, %me, 4;
    add.u32 %t2, %t0, %t1;
    cvt.u64.u32 %d0, %t1;
    mul.wide.u32 %d1, %block, 262144;
    add.u64 %d3, %a, %d0;
    add.u64 %d3, %d3, %d1;
"""
        return Loop("\n".join(lines), setup, "    cp.async.wait_all;", warps=4, shared=66 << 10)

    loops = {(size, pending): loop(size, pending) for size in (2048, 16384) for pending in (0, 3)}
    device.prepare(list(loops.values()))
    for (size, pending), one in loops.items():
        cycles = _slope(device, one, 8, 16, pointers=[memory])
        key = "latency" if pending == 0 else "stream"
        facts[f"{size}_bytes.{key}"] = cycles
    return facts


def atomics(device: Any) -> Facts:
    """Return cycles of a dependent atomic, and additions per nanosecond of all SMs: one address, many addresses."""
    memory = device.zeros(64 * MIB)
    chain = Loop(
        "\n".join(["    atom.global.add.u32 %x0, [%a], %x0;"] * 4),
        "    mov.b32 %x0, 0;",
        kept=("%x0",),
    )
    same = Loop("\n".join(["    red.global.add.u32 [%a], 1;"] * 4), warps=4)
    apart = Loop(
        "\n".join(f"    red.global.add.f32 [%d3+{65536 * i}], %f0;" for i in range(4)),
        """\
    mad.lo.u32 %t0, %block, 128, %me;
    mul.wide.u32 %d0, %t0, 4;
    add.u64 %d3, %a, %d0;
    mov.f32 %f0, 0f3F800000;
""",
        warps=4,
    )
    device.prepare([chain, same, apart])
    units = device.multiprocessors
    facts: Facts = {"atom.latency": _slope(device, chain, 16, 48, pointers=[memory]) / 4}
    for name, loop in (("one_address", same), ("own_addresses", apart)):
        times = device.times(loop, 64, units, [memory])
        facts[f"red.{name}.per_ns"] = 64 * 4 * 128 * units / times.nanoseconds
    return facts
