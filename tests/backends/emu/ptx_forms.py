"""Forms of PTX instructions as kernels: each thread executes the instruction once, on operands of its own.

`measure_ptx` runs them on a GPU and stores the results; `test_ptx_measured` compares the emulator with these.
"""

from __future__ import annotations

import itertools
import lzma
import re
import zlib
from dataclasses import dataclass, replace

import numpy as np

THREADS = 256
BLOCKS = 1
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
_BITS = {"pred": 1}
_BITS.update({f"{k}{n}": n for k in "busf" for n in (8, 16, 32, 64)})
_BITS.update({"bf16": 16, "f16x2": 32, "bf16x2": 32, "tf32": 32, "e4m3x2": 16, "e5m2x2": 16})
_BITS.update({"u16x2": 32, "s16x2": 32})


@dataclass(frozen=True)
class Form:
    """An instruction.

    Args:
        results, operands: their types.
        text: of the instruction; `%d0`, `%a0`, ... are results and operands.
        bound: units in the last place that a result may differ by, for approximations.
        absolute: the difference that is within the bound in any case.
        blocks: each with operands of its own.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    bound: int = 0
    absolute: float = 0.0
    threads: int = THREADS
    blocks: int = BLOCKS
    body: str = ""  # before the instruction

    @property
    def kernel(self) -> str:
        return "k_" + re.sub(r"\W", "_", self.name)


def expanded(pattern):
    """The texts of a pattern with alternatives: `{,.ftz}`."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(one) for one in itertools.product(*choices)]


def plain(pattern, results, operands, bound=0, more=""):
    results, operands = tuple(results.split()), tuple(operands.split())
    for opcode in expanded(pattern):
        names = [f"%d{i}" for i in range(len(results))]
        shown = ["|".join(names)] + [f"%a{i}" for i in range(len(operands))]
        yield Form(opcode + more.replace(", ", "_"), results, operands,
                   f"{opcode} {', '.join(shown)}{more};", bound)  # fmt: skip


def _integers():
    for kind, n in itertools.product("us", (16, 32, 64)):
        t = f"{kind}{n}"
        yield from plain(f"{{add,sub,mul.lo,mul.hi,div,rem,min,max}}.{t}", t, f"{t} {t}")
        yield from plain(f"{{mad.lo,mad.hi,sad}}.{t}", t, f"{t} {t} {t}")
        yield from plain(f"shr.{t}", t, f"{t} u32")
        if n < 64:
            wide = f"{kind}{2 * n}"
            yield from plain(f"mul.wide.{t}", wide, f"{t} {t}")
            yield from plain(f"mad.wide.{t}", wide, f"{t} {t} {wide}")
        if kind == "s":
            yield from plain(f"{{abs,neg}}.{t}", t, t)
        if n > 16:
            yield from plain(f"bfe.{t}", t, f"{t} u32 u32")
            yield from plain(f"bfind{{,.shiftamt}}.{t}", "u32", t)
        yield from plain(f"setp.{{eq,ne,lt,le,gt,ge}}.{t}", "pred", f"{t} {t}")
    yield from plain("{add,sub}.sat.s32", "s32", "s32 s32")
    yield from plain("mad.hi.sat.s32", "s32", "s32 s32 s32")
    yield from plain("mul24.{lo,hi}.{s32,u32}", "u32", "u32 u32")
    for n in (16, 32, 64):
        b = f"b{n}"
        yield from plain(f"{{and,or,xor}}.{b}", b, f"{b} {b}")
        yield from plain(f"{{not,cnot}}.{b}", b, b)
        yield from plain(f"shl.{b}", b, f"{b} u32")
        yield from plain(f"selp.{b}", b, f"{b} {b} pred")
        if n > 16:
            yield from plain(f"{{popc,clz}}.{b}", "u32", b)
            yield from plain(f"brev.{b}", b, b)
            yield from plain(f"bfi.{b}", b, f"{b} {b} u32 u32")
    yield from plain("shf.{l,r}.{wrap,clamp}.b32", "b32", "b32 b32 u32")
    yield from plain("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "b32", "b32 b32 b32")
    yield from plain("dp4a.{u32,s32}.{u32,s32}", "b32", "b32 b32 b32")
    yield from plain("dp2a.{lo,hi}.{u32,s32}.{u32,s32}", "b32", "b32 b32 b32")
    yield from plain("{bmsk.clamp,bmsk.wrap}.b32", "b32", "u32 u32")
    yield from plain("szext.{clamp,wrap}.{u32,s32}", "b32", "b32 u32")
    yield from plain("{min,max}.{u16x2,s16x2}", "b32", "b32 b32")
    yield from plain("{min,max}.relu.{s16x2,s32}", "b32", "b32 b32")
    yield from plain("add.{u16x2,s16x2}", "b32", "b32 b32")
    for table in (0x96, 0xE8, 0xCA, 0x1D):
        yield from plain("lop3.b32", "b32", "b32 b32 b32", 0, f", {table:#x}")


def _floats():
    yield from plain("{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32", "f32", "f32 f32")
    yield from plain("fma{.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32", "f32", "f32 f32 f32")
    yield from plain("{add,mul}{.rn,.rz,.rm,.rp}.f64", "f64", "f64 f64")
    yield from plain("fma{.rn,.rz,.rm,.rp}.f64", "f64", "f64 f64 f64")
    yield from plain("div{.rn,.rz,.rm,.rp}{,.ftz}.f32", "f32", "f32 f32")
    yield from plain("{rcp,sqrt}{.rn,.rz,.rm,.rp}{,.ftz}.f32", "f32", "f32")
    yield from plain("div.rn.f64", "f64", "f64 f64")
    yield from plain("{rcp,sqrt}.rn.f64", "f64", "f64")
    yield from plain("div.{full,approx}{,.ftz}.f32", "f32", "f32 f32", 2)
    yield from plain("{rcp,sqrt,rsqrt}.approx{,.ftz}.f32", "f32", "f32", 2)
    yield from plain("ex2.approx{,.ftz}.f32", "f32", "f32", 2)
    for form in plain("lg2.approx{,.ftz}.f32", "f32", "f32", 2):
        yield replace(form, absolute=2.0**-22)
    yield from plain("tanh.approx.f32", "f32", "f32", 1 << 13)
    for t, n in (("f16", 16), ("bf16", 16), ("f16x2", 32), ("bf16x2", 32)):
        half = t.startswith("f")
        yield from plain(f"{{add,sub,mul}}{'{,.sat}' if half else ''}.{t}", t, f"{t} {t}")
        yield from plain(f"fma.rn{'{,.sat,.relu}' if half else '{,.relu}'}.{t}", t, f"{t} {t} {t}")
        if half:
            yield from plain(f"{{add,sub,mul}}.ftz.{t}", t, f"{t} {t}")
        yield from plain(f"{{min,max}}{{,.NaN}}{{,.xorsign.abs}}.{t}", t, f"{t} {t}")
        yield from plain(f"{{abs,neg}}.{t}", t, t)
        if n == 16:
            yield from plain(
                f"setp.{{eq,ne,lt,le,gt,ge,equ,neu,ltu,num,nan}}.{t}", "pred", f"{t} {t}"
            )
    yield from plain("ex2.approx.f16", "f16", "f16", 1)
    yield from plain("tanh.approx.f16", "f16", "f16", 2)
    yield from plain("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.f32", "f32", "f32 f32")
    yield from plain("{min,max}.f64", "f64", "f64 f64")
    yield from plain("{abs,neg}{,.ftz}.f32", "f32", "f32")
    yield from plain("copysign.{f32}", "f32", "f32 f32")
    yield from plain(
        "testp.{finite,infinite,number,notanumber,normal,subnormal}.f32", "pred", "f32"
    )
    yield from plain(
        "setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.ftz}.f32", "pred", "f32 f32"
    )
    yield from plain("set.{lt,neu}.{u32,f32}.f32", "u32", "f32 f32")


def _conversions():
    whole = [f"{k}{n}" for k in "us" for n in (16, 32, 64)]
    for a, b in itertools.product(whole, whole):
        holds = int(a[1:]) > int(b[1:]) and (a[0] == b[0] or a[0] == "s")
        if a != b:
            sat = "" if holds or (a[0], b[0]) == ("u", "u") and a[1:] >= b[1:] else "{,.sat}"
            yield from plain(f"cvt{sat}.{a}.{b}", a, b)
    for t in whole:
        yield from plain(f"cvt{{.rn,.rz,.rm,.rp}}.f32.{t}", "f32", t)
        yield from plain(f"cvt{{.rn,.rz}}.f64.{t}", "f64", t)
        yield from plain(f"cvt.rn.f16.{t}", "f16", t)
        yield from plain(f"cvt{{.rni,.rzi,.rmi,.rpi}}{{,.ftz}}.{t}.f32", t, "f32")
        yield from plain(f"cvt{{.rni,.rzi}}.{t}.{{f64}}", t, "f64")
        yield from plain(f"cvt{{.rni,.rzi}}.{t}.{{f16}}", t, "f16")
    yield from plain("cvt{.rni,.rzi,.rmi,.rpi}{,.ftz}.f32.f32", "f32", "f32")
    yield from plain("cvt{.rn,.rz}{,.relu}.{f16,bf16}.f32", "f16", "f32")
    yield from plain("cvt{.rn,.rz,.rm,.rp}.f32.f64", "f32", "f64")
    yield from plain("cvt.f64.f32", "f64", "f32")
    yield from plain("cvt.f32.{f16,bf16}", "f32", "f16")
    yield from plain("cvt.{rna,rn,rz}.tf32.f32", "b32", "f32")
    yield from plain("cvt.rn{,.relu}.{f16x2,bf16x2}.f32", "b32", "f32 f32")
    yield from plain("cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f32", "b16", "f32 f32")
    yield from plain("cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f16x2", "b16", "f16x2")
    yield from plain("cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2}", "b32", "b16")
    yield from plain("cvt.pack.sat.{u16,s16}.s32", "b32", "s32 s32")
    yield from plain("cvt.pack.sat.{u8,s8}.s32.b32", "b32", "s32 s32 b32")


def _warps():
    for mode, clamp in (
        ("up", 0),
        ("down", 31),
        ("bfly", 31),
        ("idx", 31),
        ("idx", 0x181F),
        ("down", 0xC1F),
    ):
        text = f"shfl.sync.{mode}.b32 %d0|%d1, %a0, %a1, {clamp}, -1;"
        yield Form(f"shfl.sync.{mode}.b32 {clamp:#x}", ("b32", "pred"), ("b32", "u32"), text)
    for kind in ("all", "any", "uni"):
        yield Form(
            f"vote.sync.{kind}.pred", ("pred",), ("pred",), f"vote.sync.{kind}.pred %d0, %a0, -1;"
        )
    yield Form("vote.sync.ballot.b32", ("b32",), ("pred",), "vote.sync.ballot.b32 %d0, %a0, -1;")
    few = "and.b32 %a0, %a0, 3;"
    yield Form("match.any.sync.b32", ("b32",), ("b32",), f"{few} match.any.sync.b32 %d0, %a0, -1;")
    yield Form(
        "match.all.sync.b32",
        ("b32", "pred"),
        ("b32",),
        f"{few} match.all.sync.b32 %d0|%d1, %a0, -1;",
    )
    for kind, t in (
        ("add", "s32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ):
        yield Form(
            f"redux.sync.{kind}.{t}", ("b32",), ("b32",), f"redux.sync.{kind}.{t} %d0, %a0, -1;"
        )
    text = "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;"
    yield Form("movmatrix.sync.aligned.m8n8.trans.b16", ("b32",), ("b32",), text)


def _atomics():
    """On a word of each thread's own, which holds its first operand."""
    cases = [("add", "u32"), ("add", "s32"), ("add", "u64"), ("add", "f32"), ("add", "f64"),
             ("add.noftz", "f16"), ("add.noftz", "f16x2"), ("add.noftz", "bf16"), ("add.noftz", "bf16x2"),
             ("inc", "u32"), ("dec", "u32"), ("min", "s32"), ("max", "u32"), ("min", "s64"), ("max", "u64"),
             ("and", "b32"), ("or", "b32"), ("xor", "b64"), ("exch", "b32"), ("exch", "b64")]  # fmt: skip
    for (kind, t), space in itertools.product(cases, ("global", "shared")):
        n = _BITS[t]
        store = f"st.{space}.b{n} [%w], %a0; bar.sync 0;"
        text = f"atom.{space}.{kind}.{t} %d0, [%w], %a1; bar.sync 0; ld.volatile.{space}.b{n} %d1, [%w];"
        yield Form(f"atom.{space}.{kind}.{t}", (t, t), (t, t), text, body=_WORD[space] + store)
    text = "atom.global.cas.b32 %d0, [%w], %a1, %a0; ld.volatile.global.b32 %d1, [%w];"
    body = _WORD["global"] + "st.global.b32 [%w], %a0;"
    yield Form("atom.global.cas.b32", ("b32", "b32"), ("b32", "b32"), text, body=body)


_WORD = {
    "global": ".reg .b64 %w; mul.wide.u32 %w, %t, 8; add.s64 %w, %w, %out; add.s64 %w, %w, 65536;",
    "shared": ".shared .align 8 .b8 room[2048]; .reg .b32 %w; .reg .b32 %v; and.b32 %v, %t, 255; shl.b32 %v, %v, 3; mov.u32 %w, room; add.s32 %w, %w, %v;",
}


# ---- matrices: registers are operands; `kinds` says how they are filled ---------------------------


_EACH = {
    "f16": 2,
    "bf16": 2,
    "tf32": 1,
    "e4m3": 4,
    "e5m2": 4,
    "s8": 4,
    "u8": 4,
    "s4": 8,
    "u4": 8,
    "quads": 8,
    "pairs": 8,
}
_MMA = [
    ("m16n8k16", "f32", "f16", "f16", "f32"), ("m16n8k16", "f16", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "f16", "f16", "f32"), ("m16n8k8", "f32", "bf16", "bf16", "f32"),
    ("m16n8k16", "f32", "bf16", "bf16", "f32"), ("m16n8k4", "f32", "tf32", "tf32", "f32"),
    ("m16n8k8", "f32", "tf32", "tf32", "f32"), ("m16n8k16", "s32", "s8", "s8", "s32"),
    ("m16n8k32", "s32", "s8", "s8", "s32"), ("m16n8k32", "s32", "u8", "s8", "s32"),
    ("m8n8k16", "s32", "s8", "s8", "s32"), ("m16n8k32", "f32", "e4m3", "e4m3", "f32"),
    ("m16n8k32", "f32", "e5m2", "e4m3", "f32"), ("m8n8k4", "f64", "f64", "f64", "f64"),
    ("m16n8k8", "f64", "f64", "f64", "f64"),
]  # fmt: skip
_WGMMA = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"), ("f32", "e5m2", "e5m2"), ("f32", "e4m3", "e5m2"), ("f16", "e4m3", "e4m3"),
    ("s32", "s8", "s8"), ("s32", "u8", "u8"),
]  # fmt: skip
CASES = 8  # warps of a product, filled in different ways


def _mma():
    for shape, result, left, right, before in _MMA:
        m, n, k = map(int, re.findall(r"\d+", shape))
        each = _EACH.get(left, 1)
        word = "f64" if left == "f64" else "b32"
        counts = m * k // 32 // each, n * k // 32 // each
        sums = m * n // 32 // (2 if result == "f16" else 1)
        lists, first = [], 0
        for count in (*counts, sums):
            lists.append("{" + ", ".join(f"%a{first + i}" for i in range(count)) + "}")
            first += count
        d = "{" + ", ".join(f"%d{i}" for i in range(sums)) + "}"
        opcode = f"mma.sync.aligned.{shape}.row.col.{result}.{left}.{right}.{before}"
        kinds = (f"m:{left}",) * counts[0] + (f"m:{right}",) * counts[1] + (f"m:{before}",) * sums
        yield Form(opcode, (word if result == "f64" else "b32",) * sums, kinds,
                   f"{opcode} {d}, {', '.join(lists)};", threads=32 * CASES)  # fmt: skip


def _wgmma():
    """The left operand in registers, the right one in shared memory: two 8x16-byte matrices."""
    for result, left, right in _WGMMA:
        depth = 32 * 8 // {"f16": 16, "bf16": 16, "tf32": 32}.get(left, 8)
        sums = 2 if result == "f16" else 4
        d = "{" + ", ".join(f"%d{i}" for i in range(sums)) + "}"
        a = "{" + ", ".join(f"%a{i}" for i in range(4)) + "}"
        opcode = f"wgmma.mma_async.sync.aligned.m64n8k{depth}.{result}.{left}.{right}"
        scales = "" if result == "s32" else ", 1, 1" + (", 0" if left in ("f16", "bf16") else "")
        body = (
            ".shared .align 1024 .b8 room[1024]; .reg .b32 %w; .reg .b32 %v; .reg .b64 %x; .reg .pred %q;"
            "and.b32 %v, %t, 127; shl.b32 %v, %v, 2; mov.u32 %w, room; add.s32 %w, %w, %v;"
            "st.shared.b32 [%w], %a4; fence.proxy.async.shared::cta; bar.sync 0;"
            "mov.u32 %w, room; shr.u32 %w, %w, 4; cvt.u64.u32 %x, %w;"
            f"or.b64 %x, %x, {(128 >> 4) << 16 | (256 >> 4) << 32:#x}; setp.eq.u32 %q, 0, 0;"
            + "".join(f"mov.b32 %d{i}, %a{5 + i};" for i in range(sums))
            + "wgmma.fence.sync.aligned;"
        )
        text = (
            f"{opcode} {d}, {a}, %x, %q{scales}; wgmma.commit_group.sync.aligned; "
            "wgmma.wait_group.sync.aligned 0;"
        )
        kinds = (f"m:{left}",) * 4 + (f"m:{right}",) + (f"m:{result}",) * sums
        yield Form(opcode, ("b32",) * sums, kinds, text, threads=128, blocks=CASES, body=body)


_SPARSE = [
    ("m16n8k16", "f32", "f16", "f32"), ("m16n8k32", "f32", "f16", "f32"), ("m16n8k32", "f16", "f16", "f16"),
    ("m16n8k32", "f32", "bf16", "f32"), ("m16n8k8", "f32", "tf32", "f32"), ("m16n8k16", "f32", "tf32", "f32"),
    ("m16n8k32", "s32", "s8", "s32"), ("m16n8k64", "s32", "s8", "s32"), ("m16n8k64", "s32", "u4", "s32"),
    ("m16n8k128", "s32", "s4", "s32"), ("m16n8k64", "f32", "e4m3", "f32"),
]  # fmt: skip


def _mma_sparse():
    for shape, result, kind, before in _SPARSE:
        m, n, k = map(int, re.findall(r"\d+", shape))
        each, unit = _EACH.get(kind, 1), {"s4": 8, "u4": 8, "tf32": 2}.get(kind, 4)
        counts = m * k // 64 // each, n * k // 32 // each
        sums = m * n // 32 // (2 if result == "f16" else 1)
        lists, first = [], 0
        for count in (*counts, sums):
            lists.append("{" + ", ".join(f"%a{first + i}" for i in range(count)) + "}")
            first += count
        d = "{" + ", ".join(f"%d{i}" for i in range(sums)) + "}"
        opcode = (
            f"mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.{result}.{kind}.{kind}.{before}"
        )
        kinds = (f"m:{kind}",) * counts[0] + (f"m:{kind}",) * counts[1] + (f"m:{before}",) * sums
        kinds += ("m:pairs" if kind == "tf32" else "m:quads",)
        for selector in range(4 // max(1, k // unit // 4)):
            text = f"{opcode} {d}, {', '.join(lists)}, %a{first}, {selector};"
            yield Form(f"{opcode} {selector}", ("b32",) * sums, kinds, text, threads=32 * CASES)


def _wgmma_sparse():
    for form in _wgmma():
        result, left, right = form.name.rsplit(".", 3)[1:]
        depth = int(form.name.partition("n8k")[2].partition(".")[0])
        opcode = form.name.replace("mma_async", "mma_async.sp").replace(
            f"n8k{depth}", f"n8k{2 * depth}"
        )
        pairs = left == "tf32"
        number = len(form.operands)
        kinds = (*form.operands, "m:pairs" if pairs else "m:quads")
        for selector in range(1 if left in ("e4m3", "e5m2", "s8", "u8") else 2):
            text = form.text.replace(f"{form.name} ", f"{opcode} ", 1).replace(
                "%x, %q", f"%x, %a{number}, {selector}, %q", 1
            )
            yield Form(
                f"{opcode} {selector}",
                form.results,
                kinds,
                text,
                threads=128,
                blocks=CASES,
                body=form.body,
            )


def sparse_forms():
    return [*_mma_sparse(), *_wgmma_sparse()]


def forms():
    return [*_integers(), *_floats(), *_conversions(), *_warps(), *_atomics(), *_mma(), *_wgmma()]


# ---- texts and operands --------------------------------------------------------------------------


def _width(kind):
    if kind.startswith("m:"):
        return 64 if kind == "m:f64" else 32
    return _BITS[kind]


def kernel_of(form):
    """The PTX of a form: operand i of a thread is at src + (i * all + thread) * 8, results so at dst."""
    total = form.threads * form.blocks
    lines = [f".visible .entry {form.kernel}(.param .u64 src, .param .u64 dst) {{",
             ".reg .b32 %t; .reg .b32 %u; .reg .b64 %in; .reg .b64 %out; .reg .b64 %far; .reg .b32 %p32;",
             f"mov.u32 %t, %tid.x; mov.u32 %u, %ctaid.x; mad.lo.u32 %t, %u, {form.threads}, %t;",
             "ld.param.u64 %in, [src]; ld.param.u64 %out, [dst]; mul.wide.u32 %far, %t, 8;",
             "add.s64 %in, %in, %far;"]  # fmt: skip
    for i, kind in enumerate(form.operands):
        bits, offset = _width(kind), i * total * 8
        if bits == 1:
            lines.append(f".reg .pred %a{i}; ld.global.b32 %p32, [%in+{offset}]; and.b32 %p32, %p32, 1; setp.ne.u32 %a{i}, %p32, 0;")  # fmt: skip
        else:
            lines.append(f".reg .b{bits} %a{i}; ld.global.b{bits} %a{i}, [%in+{offset}];")
    for i, kind in enumerate(form.results):
        bits = _width(kind)
        lines.append(f".reg .{'pred' if bits == 1 else f'b{bits}'} %d{i};")
    lines += [form.body, form.text, "add.s64 %out, %out, %far;"]
    for i, kind in enumerate(form.results):
        bits, offset = _width(kind), i * total * 8
        if bits == 1:
            lines.append(f"selp.u32 %p32, 1, 0, %d{i}; st.global.b32 [%out+{offset}], %p32;")
        else:
            lines.append(f"st.global.b{bits} [%out+{offset}], %d{i};")
    return "\n".join([*lines, "ret;", "}"])


_SPECIAL = {
    16: [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x3C00, 0x3F80, 0x7C00, 0x7F80, 0xFC00, 0x0400, 0x03FF, 0x7BFF, 0x7E00],
    32: [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0x7F800000, 0xFF800000, 0x00800000, 0x007FFFFF,
         0x7F7FFFFF, 0x7FC00000, 0x4B000000, 0x3F000000, 0xBFC00000, 0x477FE000, 31, 32, 33],
    64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x3FF0000000000000, 0x7FF0000000000000, 0x10000000000000,
         0xFFF0000000000000, 0x41DFFFFFFFC00000, 0x7FF8000000000000, 0x3FE0000000000000, 0xC008000000000000],
}  # fmt: skip


def inputs(form, salt=""):
    """The operands, (operands, threads) of uint64, always the same ones for a salt."""
    rng = np.random.default_rng(zlib.crc32((form.name + salt).encode()))
    total = form.threads * form.blocks
    return np.stack([_operand(rng, kind, total) for kind in form.operands])


def _operand(rng, kind, total):
    if kind.startswith("m:"):
        return _elements(rng, kind[2:], total)
    bits = _BITS[kind]
    if bits == 1:
        return rng.integers(0, 2, total).astype(np.uint64)
    size = 16 if "16" in kind and bits == 32 else bits
    parts = [_numbers(rng, kind, size, total) for _ in range(bits // size)]
    word = np.zeros(total, np.uint64)
    for i, part in enumerate(parts):
        word |= part << np.uint64(i * size)
    return word


def _numbers(rng, kind, bits, total):
    raw = rng.integers(0, 1 << 63, total, dtype=np.uint64) * np.uint64(2) + rng.integers(
        0, 2, total
    ).astype(np.uint64)
    raw >>= np.uint64(64 - bits)
    dtype = {16: np.float16, 32: np.float32, 64: np.float64}[bits]
    near = (rng.standard_normal(total) * 2.0 ** rng.integers(-6, 7, total)).astype(dtype)
    near = near.view(f"u{bits // 8}").astype(np.uint64)
    if kind.startswith("bf16"):
        wide = (rng.standard_normal(total) * 2.0 ** rng.integers(-6, 7, total)).astype(np.float32)
        near = (wide.view(np.uint32) >> 16).astype(np.uint64)
    if kind[0] in "us":
        near = rng.integers(0, 70, total).astype(np.uint64)
    special = rng.choice(np.array(_SPECIAL[bits], np.uint64), total)
    which = rng.integers(0, 4, total)
    return np.where(which == 0, special, np.where(which == 1, raw, near))


def _elements(rng, kind, total):
    """Elements of matrices by the eighth of the threads: numbers, wide ones, small whole ones, ..., anything."""
    each, bits = _EACH.get(kind, 1), 32 // _EACH.get(kind, 1)
    if kind in ("f32", "s32", "f64"):
        each, bits = 1, 64 if kind == "f64" else 32
    if kind == "f16":
        each, bits = 2, 16
    case = np.arange(total) * CASES // total
    word = np.zeros(total, np.uint64)
    for i in range(each):
        word |= _element(rng, kind, bits, case) << np.uint64(i * bits)
    return word


def _element(rng, kind, bits, case):
    import ml_dtypes

    total = case.size
    raw = rng.integers(0, 1 << 62, total, dtype=np.uint64) & np.uint64((1 << bits) - 1)
    if kind in ("s8", "u8", "s32", "s4", "u4"):
        return raw
    if kind in ("quads", "pairs"):  # metadata: which two of four, or one of two, are kept
        places = [4, 8, 12, 9, 13, 14] if kind == "quads" else [4, 14]
        return rng.choice(np.array(places, np.uint64), total)
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
             "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "f64": np.float64}[kind]  # fmt: skip
    span = {"f16": 6, "e4m3": 3, "e5m2": 6}.get(kind, 12)
    normal = rng.standard_normal(total)
    wide = normal * 2.0 ** rng.integers(-span, span + 1, total)
    whole = rng.integers(-8, 9, total).astype(float)
    sparse = np.where(rng.integers(0, 4, total) == 0, wide, 0.0)
    signs = np.where(rng.integers(0, 2, total) == 0, 1.0, -1.0) * (
        1 + rng.integers(0, 2, total) * 2.0**-3
    )
    tiny = normal * 2.0**-14 if kind in ("f16", "e5m2") else normal * 2.0**-6
    values = np.choose(case, [normal, wide, whole, sparse, signs, tiny, wide * 2.0, normal])
    numbers = values.astype(dtype).view(f"u{bits // 8}").astype(np.uint64)
    return np.where(case == 7, raw, numbers)


# ---- files of results ----------------------------------------------------------------------------


def save(path, device, results):
    """Write results by name: words of one width one after the other, which compress better together."""
    names, parts = [], {"u1": [], "u2": [], "u4": [], "u8": [], "bits": []}
    for name, words in results.items():
        top = int(words.max())
        kind = (
            "bits"
            if top < 2
            else next(k for k in ("u1", "u2", "u4", "u8") if top < 1 << 8 * int(k[1]))
        )
        names.append(f"{name}|{kind}|{words.shape[0]}|{words.shape[1]}")
        parts[kind].append(words.ravel().astype("u1" if kind == "bits" else kind))
    kinds = {"bits": "u1"}
    whole = {k: np.concatenate([np.zeros(0, kinds.get(k, k)), *v]) for k, v in parts.items()}
    whole["bits"] = np.packbits(whole["bits"])
    raw = b"".join(whole[k].tobytes() for k in sorted(whole))
    sizes = " ".join(str(whole[k].nbytes) for k in sorted(whole))
    head = "\n".join([device, sizes, *names]).encode()
    path.write_bytes(lzma.compress(len(head).to_bytes(4, "little") + head + raw, preset=9))


def load(path):
    """Return the device, and the results by name."""
    content = lzma.decompress(path.read_bytes())
    start = int.from_bytes(content[:4], "little") + 4
    device, sizes, *names = content[4:start].decode().split("\n")
    offset, whole = start, {}
    for kind, size in zip(("bits", "u1", "u2", "u4", "u8"), map(int, sizes.split())):
        dtype = "u1" if kind == "bits" else kind
        whole[kind] = np.frombuffer(content[offset : offset + size], dtype)
        offset += size
    whole["bits"] = np.unpackbits(whole["bits"])
    results, taken = {}, dict.fromkeys(whole, 0)
    for entry in names:
        name, kind, rows, columns = entry.rsplit("|", 3)
        count = int(rows) * int(columns)
        first = taken[kind]
        taken[kind] = first + count
        words = whole[kind][first : first + count].reshape(int(rows), int(columns))
        results[name] = words.astype(np.uint64)
    return device, results
