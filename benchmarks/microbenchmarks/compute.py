"""Issue rates and latencies of instructions, of `mma.sync` and of `wgmma`.

Latencies are cycles of a dependent chain of one warp. Issue costs are cycles that one instruction of a warp occupies its
scheduler (an SM has four), measured with four warps on each.
"""

from __future__ import annotations

from typing import Any, Iterator

from ptx import Loop

__all__ = ["matrix", "scalar", "sustained"]

Facts = dict[str, Any]
UNROLL = 32

# name -> (instruction with {r}, the chain's register, and {k}, a constant of the kernel; kind of register)
INSTRUCTIONS = {
    "fma.f32": ("fma.rn.f32 {r}, {r}, %f300, %f301;", "%f"),
    "add.f32": ("add.rn.f32 {r}, {r}, %f300;", "%f"),
    "mul.f32": ("mul.rn.f32 {r}, {r}, %f300;", "%f"),
    "max.f32": ("max.f32 {r}, {r}, %f300;\n    min.f32 {r}, {r}, %f301;", "%f"),  # two
    "ex2": ("ex2.approx.ftz.f32 {r}, {r};", "%f"),
    "rsqrt": ("rsqrt.approx.ftz.f32 {r}, {r};", "%f"),
    "lg2": ("lg2.approx.ftz.f32 {r}, {r};", "%f"),
    "tanh": ("tanh.approx.f32 {r}, {r};", "%f"),
    "logic": ("lop3.b32 {r}, {r}, %x300, %x301, 0x6a;", "%x"),
    "mad.s32": ("mad.lo.s32 {r}, {r}, %x300, %x301;", "%x"),
    "add.s32": (
        "add.s32 {r}, {r}, %x300;\n    lop3.b32 {r}, {r}, %x300, %x301, 0x6a;",
        "%x",
    ),  # two
    "shift": ("shf.l.wrap.b32 {r}, {r}, {r}, 5;", "%x"),
    "permute": ("prmt.b32 {r}, {r}, %x300, %x301;", "%x"),
    "select": ("setp.lt.s32 %p1, {r}, %x300;\n    selp.b32 {r}, %x301, {r}, %p1;", "%x"),  # two
    "shuffle": ("shfl.sync.bfly.b32 {r}, {r}, 1, 31, 0xffffffff;", "%x"),
    "reduce": ("redux.sync.add.s32 {r}, {r}, 0xffffffff;", "%x"),
    "cvt.bf16x2": ("cvt.rn.bf16x2.f32 {r}, {r}, %f300;", "%x"),
    "cvt.f16x2": ("cvt.rn.f16x2.f32 {r}, {r}, %f300;", "%x"),
    "fma.f16x2": ("fma.rn.f16x2 {r}, {r}, %x300, %x301;", "%x"),
    "fma.bf16x2": ("fma.rn.bf16x2 {r}, {r}, %x300, %x301;", "%x"),
    "fma.f64": ("fma.rn.f64 {r}, {r}, %g10, %g11;", "%g"),
}
DOUBLE = ("max.f32", "add.s32", "select")  # two instructions each

_CONSTANTS = """\
    mov.f32 %f300, 0f3F7FFFFF;
    mov.f32 %f301, 0f34000000;
    mov.b32 %x300, %clock;
    mov.b32 %x301, %me;
    cvt.rn.f64.s32 %g10, %x301;
    cvt.rn.f64.s32 %g11, %x300;
"""


def _chain(name: str, chains: int) -> Loop:
    instruction, kind = INSTRUCTIONS[name]
    registers = [f"{kind}{i}" for i in range(chains)]
    start = {"%f": "cvt.rn.f32.s32 {r}, %x301;", "%x": "add.s32 {r}, %x301, {i};",
             "%g": "cvt.rn.f64.s32 {r}, %x301;"}[kind]  # fmt: skip
    setup = _CONSTANTS + "\n".join("    " + start.format(r=r, i=i) for i, r in enumerate(registers))
    body = "\n".join(
        "    " + instruction.format(r=r) for _ in range(UNROLL // chains) for r in registers
    )
    return Loop(body, setup, kept=tuple(registers), warps=1 if chains == 1 else 16)


def scalar(device: Any) -> Facts:
    """Return `latency` and `issue` of each instruction, in cycles."""
    loops = {(name, chains): _chain(name, chains) for name in INSTRUCTIONS for chains in (1, 4)}
    device.prepare(list(loops.values()))
    facts: Facts = {"latency": {}, "issue": {}}
    for name in INSTRUCTIONS:
        count = UNROLL * (2 if name in DOUBLE else 1)
        for key, chains in (("latency", 1), ("issue", 4)):
            cycles = _slope(device, loops[name, chains], 64, 192)
            per_scheduler = 1 if chains == 1 else 4  # warps that share one
            facts[key][name] = cycles / count / per_scheduler
    return facts


def _slope(device: Any, loop: Loop, short: int, long: int, **options: Any) -> float:
    """Return cycles of a round."""
    few, many = (device.times(loop, rounds, **options).cycles for rounds in (short, long))
    return (many - few) / (long - short)


# ---- mma.sync ---------------------------------------------------------------------------------------


def _mma(kind: str, chains: int, warps: int) -> Loop:
    shapes = {
        "bf16": ("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2),
        "f16": ("m16n8k16.row.col.f32.f16.f16.f32", 4, 2),
        "tf32": ("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2),
        "e4m3": ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 4, 2),
        "s8": ("m16n8k32.row.col.s32.s8.s8.s32", 4, 2),
    }
    form, a, b = shapes[kind]
    letter = "%x" if kind == "s8" else "%f"
    operands = (
        ", ".join(f"%x{280 + i}" for i in range(a)),
        ", ".join(f"%x{290 + i}" for i in range(b)),
    )
    lines = []
    for chain in [*range(chains)] * (8 // chains):
        sums = ", ".join(f"{letter}{4 * chain + i}" for i in range(4))
        lines.append(
            f"    mma.sync.aligned.{form} {{{sums}}}, {{{operands[0]}}}, {{{operands[1]}}}, {{{sums}}};"
        )
    zero = "mov.b32 {r}, 0;"
    setup = "\n".join(
        ["    " + zero.format(r=f"{letter}{i}") for i in range(4 * chains)]
        + [f"    mov.b32 %x{i}, 0;" for i in range(280, 292)]
    )
    return Loop("\n".join(lines), setup, kept=tuple(f"{letter}{i}" for i in range(4 * chains)),
                warps=warps)  # fmt: skip


# ---- wgmma ------------------------------------------------------------------------------------------

_WGMMA = {
    "bf16": ("k16.f32.bf16.bf16", "%p2, 1, 1, 0, 0", 16, 2),
    "f16": ("k16.f32.f16.f16", "%p2, 1, 1, 0, 0", 16, 2),
    "tf32": ("k8.f32.tf32.tf32", "%p2, 1, 1", 8, 4),
    "e4m3": ("k32.f32.e4m3.e4m3", "%p2, 1, 1", 32, 1),
    "s8": ("k32.s32.s8.s8", "%p2", 32, 1),
}


BY_REGISTERS = (32, 64, 96, 128)  # columns of products whose left operand is in registers


def _wgmma(kind: str, n: int, count: int, groups: int, registers: bool = False, pending: int = 0,
           random: bool = False) -> Loop:  # fmt: skip
    """Return rounds of `count` products of 64 x n, the operands in shared memory, or A in registers."""
    form, flags, _, _ = _WGMMA[kind]
    letter = "%x" if kind == "s8" else "%f"
    sums = ", ".join(f"{letter}{i}" for i in range(n // 2))
    left = "{%x300, %x301, %x302, %x303}" if registers else "{d}"
    lines = ["    wgmma.fence.sync.aligned;"]
    for step in range(count):
        a = left.replace("{d}", f"%d{step % 4}")
        lines.append(
            f"    wgmma.mma_async.sync.aligned.m64n{n}{form} {{{sums}}}, {a}, %d{4 + step % 4}, {flags};"
            if not registers or kind in ("tf32", "e4m3", "s8")
            else f"    wgmma.mma_async.sync.aligned.m64n{n}{form} {{{sums}}}, {a}, %d{4 + step % 4}, %p2, 1, 1, 0;"
        )
    lines += [
        "    wgmma.commit_group.sync.aligned;",
        f"    wgmma.wait_group.sync.aligned {pending};",
    ]
    # Rows of 128 bytes, swizzled, 8 rows in 1024 bytes; a step of K is 32 bytes in the row.
    setup = ["    setp.eq.u32 %p2, %n, %n;", "    mov.u32 %t0, memory;", "    shr.u32 %t1, %me, 7;",
             "    mad.lo.u32 %t2, %t1, 8192, %t0;",
             "    shr.u32 %t3, %t2, 4;"]  # fmt: skip
    for step in range(4):
        setup += [
            f"    add.u32 %t4, %t3, {2 * step};",
            "    cvt.u64.u32 %d10, %t4;",
            "    and.b64 %d10, %d10, 0x3fff;",
            f"    or.b64 %d{step}, %d10, 0x4000004000010000;",
        ]
    setup += ["    add.u32 %t5, %t0, 32768;", "    shr.u32 %t5, %t5, 4;"]
    for step in range(4):
        setup += [
            f"    add.u32 %t4, %t5, {2 * step};",
            "    cvt.u64.u32 %d10, %t4;",
            "    and.b64 %d10, %d10, 0x3fff;",
            f"    or.b64 %d{4 + step}, %d10, 0x4000004000010000;",
        ]
    setup += [f"    mov.b32 {letter}{i}, 0;" for i in range(n // 2)]
    # Fill 64 KiB: zeros, or bf16 of random signs and mantissas with exponents around 1.
    fill = (
        [
            "    mad.lo.u32 %t7, %t6, 0x9E3779B1, 0x7F4A7C15;",
            "    xor.b32 %t8, %t7, %block;",
            "    mad.lo.u32 %t7, %t8, 0x85EBCA6B, %t7;",
            "    shr.u32 %t8, %t7, 13;",
            "    xor.b32 %t7, %t7, %t8;",
            "    and.b32 %t7, %t7, 0x80FF80FF;",
            "    or.b32 %t7, %t7, 0x3F003F00;",
        ]
        if random
        else ["    mov.u32 %t7, 0;"]
    )
    setup += [
        "    shl.b32 %t6, %me, 2;",
        "FILL:",
        *fill,
        "    add.u32 %t9, %t0, %t6;",
        "    st.shared.b32 [%t9], %t7;",
        f"    add.u32 %t6, %t6, {4 * 128 * groups};",
        "    setp.lt.u32 %p0, %t6, 65536;",
        "    @%p0 bra FILL;",
        "    fence.proxy.async;",
    ]
    if registers:
        setup += [f"    mov.b32 %x{i}, 0x3f803f80;" for i in range(300, 304)]
    return Loop(
        "\n".join(lines), "\n".join(setup), "    wgmma.wait_group.sync.aligned 0;",
        kept=tuple(f"{letter}{i}" for i in range(n // 2)), warps=4 * groups, shared=66 << 10, wide=True,
    )  # fmt: skip


def _forms(capability: int) -> Iterator[tuple[str, int, bool]]:
    for kind in _WGMMA:
        for n in (8, 16, 32, 64, 96, 128, 192, 256) if kind == "bf16" else (64, 128, 256):
            yield kind, n, False
    for n in (32, 64, 96, 128, 256):
        yield "bf16", n, True


def matrix(device: Any) -> Facts:
    """Return cycles of `mma.sync` and of `wgmma`: of one that is waited for, and of each further one."""
    facts: Facts = {"mma": {}, "wgmma": {}}
    mma = {(kind, chains, warps): _mma(kind, chains, warps)
           for kind in ("bf16", "f16", "tf32", "e4m3", "s8")
           for chains, warps in ((1, 1), (4, 4), (4, 8))}  # fmt: skip
    loops: dict[Any, Loop] = dict(mma)
    if device.capability == 90:
        for kind, n, registers in _forms(90):
            for count in (1, 4, 16):
                loops["wgmma", kind, n, registers, count] = _wgmma(kind, n, count, 1, registers)
        for n in BY_REGISTERS:
            loops["registers", n] = _wgmma("bf16", n, 8, 2, registers=True, pending=1)
        for n in (64, 128, 192, 256):
            loops["two", n] = _wgmma("bf16", n, 8, 2, pending=1)
            loops["one", n] = _wgmma("bf16", n, 8, 1, pending=1)
    device.prepare(list(loops.values()))
    for kind in ("bf16", "f16", "tf32", "e4m3", "s8"):
        chain = _slope(device, loops[kind, 1, 1], 16, 48) / 8
        # One warp per scheduler, and two.
        one = _slope(device, loops[kind, 4, 4], 16, 48) / 8
        two = _slope(device, loops[kind, 4, 8], 16, 48) / 8 / 2
        facts["mma"][kind] = {"latency": chain, "issue": one, "issue.two_warps": two}
    if device.capability != 90:
        return facts
    for kind, n, registers in _forms(90):
        one, four, many = (
            _slope(device, loops["wgmma", kind, n, registers, count], 16, 48)
            for count in (1, 4, 16)
        )
        name = f"{kind}.n{n}" + (".registers" if registers else "")
        each = (many - four) / 12
        facts["wgmma"][name] = {"latency": one, "each": each, "round.of_4": four}
    for n in BY_REGISTERS:
        facts["wgmma"][f"bf16.n{n}.registers"]["stream.two_groups"] = (
            _slope(device, loops["registers", n], 16, 48) / 16
        )
    for n in (64, 128, 192, 256):
        # Without waiting for the last group: the rate of one group of warps, and of two that share the unit.
        facts["wgmma"][f"bf16.n{n}"]["stream"] = _slope(device, loops["one", n], 16, 48) / 8
        facts["wgmma"][f"bf16.n{n}"]["stream.two_groups"] = (
            _slope(device, loops["two", n], 16, 48) / 16
        )
    return facts


def sustained(device: Any) -> Facts:
    """Return the clock and the rate of `wgmma` on all SMs, for a moment and under the limit of power."""
    facts: Facts = {}
    if device.capability != 90:
        return facts
    idle = _chain("fma.f32", 4)
    for name, loop, seconds, rounds in (
        ("fma.f32", idle, 0.05, 4096),
        ("wgmma.zeros.short", _wgmma("bf16", 256, 4, 2, pending=1), 0.0, 256),
        ("wgmma.zeros", _wgmma("bf16", 256, 4, 2, pending=1), 1.0, 1024),
        ("wgmma.random.short", _wgmma("bf16", 256, 4, 2, pending=1, random=True), 0.0, 256),
        ("wgmma.random", _wgmma("bf16", 256, 4, 2, pending=1, random=True), 1.5, 1024),
        ("wgmma.random.n128", _wgmma("bf16", 128, 4, 2, pending=1, random=True), 1.0, 1024),
    ):
        cycles, nanoseconds = device.sustained(loop, rounds, device.multiprocessors, seconds)
        entry = {"clock.GHz": cycles / nanoseconds}
        if name.startswith("wgmma"):
            n = 128 if name.endswith("n128") else 256
            flops = 2 * 64 * n * 16 * 4 * 2 * rounds * device.multiprocessors
            entry["TFLOP/s"] = flops / nanoseconds / 1e3
        facts[name] = entry
    return facts
