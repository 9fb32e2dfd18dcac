"""More forms of PTX instructions, measured apart from `ptx_forms`: matrices in shared memory, reductions of bulk
copies, vectors and 128 bits of atomics, and the rest of the arithmetic."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from tests.backends.emu.ptx_forms import _BITS, _EACH, CASES, Form, plain, sparse_forms

__all__ = ["more_forms"]

_INTEGERS = [f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64)]


def _carries():
    for t in ("u32", "s32", "u64", "s64"):
        for low, high in (("add.cc", "addc"), ("sub.cc", "subc")):
            text = (
                f"{low}.{t} %d0, %a0, %a1; {high}.cc.{t} %d1, %a2, %a3; {high}.{t} %d2, %a0, %a2;"
            )
            yield Form(f"{low}.{t} chain", (t,) * 3, (t,) * 4, text)
        text = f"mad.lo.cc.{t} %d0, %a0, %a1, %a2; madc.hi.cc.{t} %d1, %a0, %a1, %a3; addc.{t} %d2, %a3, 0;"
        yield Form(f"mad.lo.cc.{t} chain", (t,) * 3, (t,) * 4, text)
        text = f"mad.hi.cc.{t} %d0, %a0, %a1, %a2; madc.lo.{t} %d1, %a0, %a1, %a3; mov.b{t[1:]} %d2, 0;"
        yield Form(f"mad.hi.cc.{t} chain", (t,) * 3, (t,) * 4, text)
    yield from plain("mad24.{lo,hi}.{s32,u32}", "u32", "u32 u32 u32")
    yield from plain("mad24.hi.sat.s32", "s32", "s32 s32 s32")
    yield from plain("{min,max}.{s16x2,u16x2}", "b32", "b32 b32")


def _choices():
    for t in ("b16", "b32", "b64", "f32", "f64", "s32"):
        yield from plain(f"slct.{t}.s32", t, f"{t} {t} s32")
        yield from plain(f"slct{{,.ftz}}.{t}.f32", t, f"{t} {t} f32")
    for t in ("s32", "u64", "f32", "f64", "f16", "bf16"):
        two = ("%d0", "pred") if "f16" in t else ("%d0|%d1", "pred pred")
        for op in ("and", "or", "xor"):
            results = tuple(two[1].split())
            text = f"setp.lt.{op}.{t} {two[0]}, %a0, %a1, %a2;"
            yield Form(f"setp.lt.{op}.{t}", results, (t, t, "pred"), text)
            text = f"setp.ne.{op}.{t} {two[0]}, %a0, %a1, !%a2;"
            yield Form(f"setp.ne.{op}.{t} inverted", results, (t, t, "pred"), text)
    for t in ("f16x2", "bf16x2"):
        for kind in ("eq", "lt", "ge", "neu", "gtu", "num", "nan"):
            text = f"setp.{kind}.{t} %d0|%d1, %a0, %a1;"
            yield Form(f"setp.{kind}.{t}", ("pred", "pred"), (t, t), text)
    yield from plain("setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.f64", "pred", "f64 f64")  # fmt: skip
    yield from plain("setp.{eq,lt,geu}.ftz.f16", "pred", "f16 f16")
    yield from plain("set.{eq,lt,ge}.{u32,s32,f32}.s32", "u32", "s32 s32")
    yield from plain("set.{eq,lt,geu}.{u32,f32}.f64", "u32", "f64 f64")
    yield from plain("set.{lo,ls,hi,hs}.u32.u32", "u32", "u32 u32")
    yield from plain("set.{eq,ltu}.{f16,u16}.f16", "u16", "f16 f16")
    yield from plain("set.{eq,ltu}.f16x2.f16x2", "f16x2", "f16x2 f16x2")
    yield from plain("set.{eq,ltu}.{bf16,u16}.bf16", "u16", "bf16 bf16")
    yield from plain("set.{gt,nan}.bf16x2.bf16x2", "bf16x2", "bf16x2 bf16x2")
    for op in ("and", "xor"):
        yield from plain(f"set.lt.{op}.u32.s32", "u32", "s32 s32 pred")


def _doubles():
    yield from plain("sub{.rn,.rz,.rm,.rp}.f64", "f64", "f64 f64")
    yield from plain("div{.rz,.rm,.rp}.f64", "f64", "f64 f64")
    yield from plain("{rcp,sqrt}{.rz,.rm,.rp}.f64", "f64", "f64")
    yield from plain("{abs,neg}.f64", "f64", "f64")
    yield from plain("copysign.f64", "f64", "f64 f64")
    yield from plain(
        "testp.{finite,infinite,number,notanumber,normal,subnormal}.f64", "pred", "f64"
    )
    yield from plain("{rcp,rsqrt}.approx.ftz.f64", "f64", "f64", 1 << 32)
    yield from plain("rsqrt.approx.f64", "f64", "f64", 1)


def _small_floats():
    for t in ("f16", "f16x2"):
        yield from plain(f"fma.rn{{.ftz,.ftz.sat,.ftz.relu}}.{t}", t, f"{t} {t} {t}")
        yield from plain(f"{{add,sub,mul}}{{.rn,.ftz.sat}}.{t}", t, f"{t} {t}")
        yield from plain(f"{{min,max}}.ftz{{,.NaN}}.{t}", t, f"{t} {t}")
        yield from plain(f"{{abs,neg}}.ftz.{t}", t, t)
    for t in ("bf16", "bf16x2"):
        yield from plain(f"{{add,sub,mul}}.rn.{t}", t, f"{t} {t}")
    yield from plain("ex2.approx.f16x2", "f16x2", "f16x2", 1)
    yield from plain("tanh.approx.f16x2", "f16x2", "f16x2", 2)
    yield from plain("ex2.approx.ftz.bf16", "bf16", "bf16", 1)
    yield from plain("ex2.approx.ftz.bf16x2", "bf16x2", "bf16x2", 1)
    yield from plain("tanh.approx.bf16", "bf16", "bf16", 1)
    yield from plain("tanh.approx.bf16x2", "bf16x2", "bf16x2", 1)
    for form in plain("{sin,cos}.approx{,.ftz}.f32", "f32", "f32", 1):
        yield replace(form, absolute=2.0**-21.5)


def _conversions():
    for t in _INTEGERS:
        yield from plain(f"cvt{{.rn,.rz,.rm,.rp}}.bf16.{t}", "bf16", t)
        yield from plain(f"cvt{{.rz,.rm,.rp}}.f16.{t}", "f16", t)
        yield from plain(f"cvt{{.rm,.rp}}.f64.{t}", "f64", t)
        yield from plain(f"cvt{{.rni,.rzi,.rmi,.rpi}}.{t}.bf16", t, "bf16")
        yield from plain(f"cvt{{.rmi,.rpi}}.{t}.{{f16}}", t, "f16")
        yield from plain(f"cvt{{.rmi,.rpi}}.{t}.{{f64}}", t, "f64")
        yield from plain(f"cvt.rzi.sat.{t}.f32", t, "f32")
        for narrow in ("u8", "s8"):
            yield from plain(f"cvt{{,.sat}}.{narrow}.{t}", "u16", t)
            yield from plain(f"cvt.{t}.{narrow}", t, "u16")
    for narrow in ("u8", "s8"):
        yield from plain(f"cvt.rzi.{narrow}.{{f32}}", "u16", "f32")
        yield from plain(f"cvt.rni.{narrow}.{{f16}}", "u16", "f16")
        yield from plain(f"cvt.rn.{{f16}}.{narrow}", "u16", "u16")
        yield from plain(f"cvt.rn.f32.{narrow}", "f32", "u16")
    for whole in ("rni", "rzi", "rmi", "rpi"):
        yield from plain(f"cvt.{whole}.f16.f16", "f16", "f16")
        yield from plain(f"cvt.{whole}.bf16.bf16", "bf16", "bf16")
        yield from plain(f"cvt.{whole}.f64.f64", "f64", "f64")
    yield from plain("cvt.sat.f32.f32", "f32", "f32")
    yield from plain("cvt.ftz.f32.f32", "f32", "f32")
    yield from plain("cvt{.rn,.rz,.rm,.rp}.sat.f32.f64", "f32", "f64")
    yield from plain("cvt{.rn,.rz,.rm,.rp}.ftz.f32.f64", "f32", "f64")
    yield from plain("cvt{.rm,.rp}.f16.f32", "f16", "f32")
    yield from plain("cvt.rn{.ftz,.sat,.ftz.sat}.f16.f32", "f16", "f32")
    yield from plain("cvt{.rm,.rp}.bf16.f32", "bf16", "f32")
    yield from plain("cvt{.rn,.rz,.rm,.rp}.{f16,bf16}.f64", "f16", "f64")
    yield from plain("cvt.f64.{f16,bf16}", "f64", "f16")
    yield from plain("cvt{.rn,.rz}.bf16.f16", "bf16", "f16")
    yield from plain("cvt{.rn,.rz,.rm,.rp}.f16.bf16", "f16", "bf16")
    yield from plain("cvt.rz{,.relu}.{f16x2,bf16x2}.f32", "b32", "f32 f32")
    yield from plain("cvt{.rn,.rz}.relu.tf32.f32", "b32", "f32")
    yield from plain("cvt.pack.sat.{u4,s4,u2,s2}.s32.b32", "b32", "s32 s32 b32")


def _warps():
    for t in ("s32", "u32"):
        yield from plain(f"redux.sync.{{min,max,add}}.{t}", "b32", "b32", 0, ", -1")
    few = "and.b64 %a0, %a0, 3;"
    yield Form("match.any.sync.b64", ("b32",), ("b64",), f"{few} match.any.sync.b64 %d0, %a0, -1;")
    text = f"{few} match.all.sync.b64 %d0|%d1, %a0, -1;"
    yield Form("match.all.sync.b64", ("b32", "pred"), ("b64",), text)
    odd = ".reg .pred %odd; and.b32 %t, %t, 1; setp.ne.u32 %odd, %t, 0;"
    mov = "mov.b32 %d0, 0; mov.b32 %d1, 0;"
    for name, text in (
        ("vote.sync.ballot", "@%odd vote.sync.ballot.b32 %d0, %a1, 0xaaaaaaaa;"),
        ("redux.sync.add", "@%odd redux.sync.add.s32 %d0, %a0, 0xaaaaaaaa;"),
        ("shfl.sync.bfly", "@%odd shfl.sync.bfly.b32 %d0, %a0, 2, 31, 0xaaaaaaaa;"),
        ("match.any.sync", "@%odd match.any.sync.b32 %d0, %t, 0xaaaaaaaa;"),
        ("activemask", "@%odd activemask.b32 %d0;"),
    ):
        yield Form(
            f"{name} of odd lanes", ("b32", "b32"), ("b32", "pred"), f"{mov} {text}",
            body=".reg .b32 %keep; mov.b32 %keep, %t;" + odd,
        )  # fmt: skip
    text = ".reg .pred %e; elect.sync %d0|%e, -1; selp.u32 %d1, 1, 0, %e;"
    yield Form("elect.sync", ("b32", "b32"), ("b32",), text)


# ---- atomics and bulk reductions -----------------------------------------------------------------

_WORD = ".reg .b64 %w; mul.wide.u32 %w, %t, 16; add.s64 %w, %w, %out; add.s64 %w, %w, 65536;"
_ROOM = (
    ".shared .align 128 .b8 room[4096]; .reg .b32 %w; .reg .b32 %v; and.b32 %v, %t, 255;"
    "shl.b32 %v, %v, 4; mov.u32 %w, room; add.s32 %w, %w, %v;"
)


def _atomics():
    cases = [("min", "u32"), ("max", "s32"), ("min", "u64"), ("max", "s64"), ("and", "b64"), ("or", "b64"), ("xor", "b32")]  # fmt: skip
    for (kind, t), (space, body) in itertools.product(
        cases, (("global", _WORD), ("shared", _ROOM))
    ):
        n = _BITS[t]
        store = f"st.{space}.b{n} [%w], %a0; bar.sync 0;"
        text = f"atom.{space}.{kind}.{t} %d0, [%w], %a1; bar.sync 0; ld.volatile.{space}.b{n} %d1, [%w];"
        yield Form(f"atom.{space}.{kind}.{t}", (t, t), (t, t), text, body=body + store)
    for t, (space, body) in itertools.product(("b16", "b32", "b64"), (("global", _WORD), ("shared", _ROOM))):  # fmt: skip
        if (t, space) == ("b32", "global"):
            continue
        text = f"atom.{space}.cas.{t} %d0, [%w], %a0, %a1; ld.volatile.{space}.{t} %d1, [%w];"
        yield Form(f"atom.{space}.cas.{t}", (t, t), (t, t), text, body=f"{body} st.{space}.{t} [%w], %a0;")  # fmt: skip
        text = f"atom.{space}.cas.{t} %d0, [%w], %a1, %a0; ld.volatile.{space}.{t} %d1, [%w];"
        yield Form(f"atom.{space}.cas.{t} other", (t, t), (t, t), text, body=f"{body} st.{space}.{t} [%w], %a0;")  # fmt: skip
    yield from _wide_atomics()
    vectors = [("v2", "f32", "add"), ("v4", "f32", "add"), ("v2", "f16", "add.noftz"), ("v4", "f16", "add.noftz"),
               ("v8", "f16", "add.noftz"), ("v4", "bf16", "add.noftz"), ("v8", "bf16", "add.noftz"),
               ("v2", "f16x2", "add.noftz"), ("v4", "bf16x2", "add.noftz"), ("v2", "bf16", "add.noftz"),
               ("v2", "f16", "min.noftz"), ("v4", "f16x2", "max.noftz"), ("v4", "bf16", "max.noftz"), ("v2", "bf16x2", "min.noftz")]  # fmt: skip
    for vector, t, kind in vectors:
        count, n = int(vector[1]), _BITS[t]
        lists = [
            "{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}"
            for letter, first in (("a", 0), ("a", count), ("d", 0))
        ]
        stores = "".join(f"st.global.b{n} [%w+{i * n // 8}], %a{i};" for i in range(count))
        after = "".join(f"ld.volatile.global.b{n} %d{count + i}, [%w+{i * n // 8}];" for i in range(count))  # fmt: skip
        opcode = f"atom.global.{vector}.{t}.{kind}"
        text = f"{opcode} {lists[2]}, [%w], {lists[1]}; {after}"
        yield Form(opcode, (t,) * (2 * count), (t,) * (2 * count), text, body=_WORD + stores)


def _wide_atomics():
    pair = ".reg .b128 %x; .reg .b128 %y; .reg .b128 %z; mov.b128 %x, {%a0, %a1}; mov.b128 %y, {%a2, %a3};"
    after = "mov.b128 {%d0, %d1}, %z; ld.volatile.global.v2.b64 {%d2, %d3}, [%w];"
    words = ("b64",) * 4
    put = "st.global.v2.b64 [%w], {%a0, %a1};"
    yield Form("atom.global.exch.b128", words, words,
               f"atom.global.exch.b128 %z, [%w], %y; {after}", body=_WORD + pair + put)  # fmt: skip
    yield Form("atom.global.cas.b128", words, words,
               f"atom.global.cas.b128 %z, [%w], %x, %y; {after}", body=_WORD + pair + put)  # fmt: skip
    yield Form("atom.global.cas.b128 other", words, words,
               f"atom.global.cas.b128 %z, [%w], %y, %x; {after}", body=_WORD + pair + put)  # fmt: skip
    yield Form("ld.global.b128", words, words,
               f"ld.relaxed.gpu.global.b128 %z, [%w]; st.relaxed.gpu.global.b128 [%w], %y; {after}",
               body=_WORD + pair + put)  # fmt: skip


def _bulk_reductions():
    cases = [("add", t) for t in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")]
    cases += [
        (kind, t) for kind in ("min", "max") for t in ("u32", "s32", "u64", "s64", "f16", "bf16")
    ]
    cases += [(kind, "u32") for kind in ("inc", "dec")]
    cases += [(kind, t) for kind in ("and", "or", "xor") for t in ("b32", "b64")]
    for kind, t in cases:
        n = _BITS[t]
        size = n // 8
        noftz = ".noftz" if (kind, n) == ("add", 16) else ""
        body = (
            f".shared .align 128 .b8 room[{256 * size}]; .reg .b32 %w; .reg .b32 %v; .reg .b64 %x; .reg .pred %q;"
            f"mul.lo.u32 %v, %t, {size}; mov.u32 %w, room; add.s32 %w, %w, %v; st.shared.b{n} [%w], %a1;"
            f"mul.wide.u32 %x, %t, {size}; add.s64 %x, %x, %out; st.global.b{n} [%x+65536], %a0;"
            "fence.proxy.async; bar.sync 0; setp.eq.u32 %q, %t, 0; mov.u32 %v, room;"
        )
        opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{kind}{noftz}.{t}"
        text = (
            f"@%q {opcode} [%x+65536], [%v], {256 * size}; @%q cp.async.bulk.commit_group;"
            f"@%q cp.async.bulk.wait_group 0; fence.proxy.async; bar.sync 0; ld.volatile.global.b{n} %d0, [%x+65536];"
        )
        yield Form(opcode, (t,), (t, t), text, body=body)


# ---- matrices ------------------------------------------------------------------------------------


def _list(letter, first, count):
    return "{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}"


def _fragments():
    body = (
        ".shared .align 128 .b8 room[16384]; .reg .b32 %w; .reg .b32 %v; .reg .b32 %x; and.b32 %v, %t, 224;"
        "shl.b32 %v, %v, 4; mov.u32 %x, room; add.s32 %x, %x, %v; and.b32 %v, %t, 31; shl.b32 %v, %v, 4;"
        "add.s32 %w, %x, %v;"
    )
    fill = "st.shared.v4.b32 [%w], {%a0, %a1, %a2, %a3}; bar.warp.sync -1;"
    # The rows of a matrix in another order: 5 * lane modulo 32.
    order = "mul.lo.u32 %v, %v, 5; and.b32 %v, %v, 511; add.s32 %w, %x, %v;"
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        text = f"{opcode} {_list('d', 0, count)}, [%w];"
        yield Form(opcode, ("b32",) * count, ("b32",) * 4, text, body=body + fill + order)
        opcode = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        last = "and.b32 %v, %t, 31; shl.b32 %v, %v, 4; add.s32 %w, %x, %v; ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%w];"
        text = f"{opcode} [%w], {_list('a', 4, count)}; bar.warp.sync -1; {last}"
        yield Form(opcode, ("b32",) * 4, ("b32",) * (4 + count), text, body=body + fill + order)


_MMA = [
    ("m8n8k32", "s32", "s4", "s4", "s32", ""), ("m16n8k32", "s32", "u4", "s4", "s32", ""),
    ("m16n8k64", "s32", "s4", "u4", "s32", ""), ("m16n8k32", "s32", "u8", "u8", "s32", ".satfinite"),
    ("m8n8k16", "s32", "u8", "s8", "s32", ".satfinite"), ("m8n8k128", "s32", "b1", "b1", "s32", ".xor.popc"),
    ("m16n8k128", "s32", "b1", "b1", "s32", ".and.popc"), ("m16n8k256", "s32", "b1", "b1", "s32", ".xor.popc"),
    ("m16n8k256", "s32", "b1", "b1", "s32", ".and.popc"), ("m16n8k4", "f64", "f64", "f64", "f64", ""),
    ("m16n8k16", "f64", "f64", "f64", "f64", ""), ("m16n8k8", "f16", "f16", "f16", "f16", ""),
    ("m16n8k32", "f32", "e4m3", "e5m2", "f32", ""), ("m16n8k32", "f16", "e4m3", "e4m3", "f16", ""),
    ("m16n8k16", "f32", "e4m3", "e4m3", "f32", ""), ("m16n8k16", "f16", "e5m2", "e4m3", "f16", ""),
]  # fmt: skip


def _mma():
    for shape, result, left, right, before, suffix in _MMA:
        m, n, k = map(int, re.findall(r"\d+", shape))
        each = 32 if left == "b1" else _EACH.get(left, 1)
        word = "f64" if left == "f64" else "b32"
        counts = m * k // 32 // each, n * k // 32 // each
        sums = m * n // 32 // (2 if result == "f16" else 1)
        lists = [_list("a", 0, counts[0]), _list("a", counts[0], counts[1]), _list("a", sum(counts), sums)]  # fmt: skip
        kind = ".satfinite" if suffix == ".satfinite" else ""
        opcode = f"mma.sync.aligned.{shape}.row.col{kind}.{result}.{left}.{right}.{before}"
        opcode += "" if kind else suffix
        kinds = tuple(f"m:{'s8' if t == 'b1' else t}" for t in (left,) * counts[0] + (right,) * counts[1])  # fmt: skip
        yield Form(opcode, (word if result == "f64" else "b32",) * sums, kinds + (f"m:{before}",) * sums,
                   f"{opcode} {_list('d', 0, sums)}, {', '.join(lists)};", threads=32 * CASES)  # fmt: skip


def _mma_of_quads():
    """Four products of 8x8x4, each of eight threads."""
    for a, b, d, c in itertools.product(("row", "col"), ("row", "col"), ("f16", "f32"), ("f16", "f32")):  # fmt: skip
        if d != c and (a, b) != ("row", "col"):
            continue
        if (d, c) == ("f16", "f32"):
            continue
        sums, before = (4 if t == "f16" else 8 for t in (d, c))
        opcode = f"mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c}"
        lists = f"{_list('a', 0, 2)}, {_list('a', 2, 2)}, {_list('a', 4, before)}"
        yield Form(opcode, ("b32",) * sums, ("m:f16",) * 4 + (f"m:{c}",) * before,
                   f"{opcode} {_list('d', 0, sums)}, {lists};", threads=32 * CASES)  # fmt: skip


# A type -> (bits that a pseudo-random word keeps, bits that it gets): small numbers of one exponent.
_FILL = {
    "f16": (0x83008300, 0x3C003C00), "bf16": (0x80608060, 0x3F803F80), "tf32": (0x80600000, 0x3F800000),
    "e4m3": (0x86868686, 0x38383838), "e5m2": (0x83838383, 0x3C3C3C3C), "s8": (0x83838383, 0), "u8": (0x07070707, 0),
}  # fmt: skip
_ROOM_BYTES = 32768


def _wgmma_from_memory():
    """Both operands in shared memory, by each swizzle and each direction that the type has."""
    kinds = [("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("s8", "s32")]
    for kind, result in kinds:
        both = ((0, 0), (0, 1), (1, 0), (1, 1)) if kind in ("f16", "bf16") else ((0, 0),)
        for mode, (a, b) in itertools.product(range(4), both):
            if kind == "bf16" and mode != 3:
                continue
            yield _from_memory(kind, result, mode, a, b, n=32 if b else 16)
    for step in (32, 64, 96):
        yield _from_memory("f16", "f32", 1, 0, 0, step)
    yield _from_memory("f16", "f32", 2, 0, 0, 32)
    for n in (24, 128):
        yield _from_memory("bf16", "f32", 1, 0, int(n > 24), n=n)
    for sign_a, sign_b in ((-1, 1), (-1, -1)):
        yield _from_memory("f16", "f32", 1, 0, 0, signs=(sign_a, sign_b))
    yield _from_memory("f16", "f32", 1, 0, 0, keeps=0)
    yield _from_memory("s8", "s32", 1, 0, 0, saturates=True)


def _from_memory(kind, result, mode, a, b, step=0, n=16, signs=(1, 1), keeps=1, saturates=False):
    """
    Args:
        mode: of swizzling, as descriptors have it.
        a, b: 1 for an operand whose rows, or columns, are contiguous.
        step: bytes from the start of the atom to the operand.
        n: columns.
    """
    bits = {"f16": 16, "bf16": 16, "tf32": 32}.get(kind, 8)
    keep, get = _FILL[kind]
    sums = n // 2
    fill = (
        f".shared .align 1024 .b8 room[{_ROOM_BYTES}]; .reg .b32 %w; .reg .b32 %v; .reg .b32 %x; .reg .b32 %y;"
        ".reg .b64 %p; .reg .b64 %r; .reg .pred %q; mov.u32 %w, room; shl.b32 %v, %t, 2; add.s32 %w, %w, %v;"
        "mad.lo.u32 %y, %a0, 0, %t; mad.lo.u32 %y, %y, 747796405, 2891336453;"
    )
    for number in range(_ROOM_BYTES // 4 // 128):
        fill += (
            "mad.lo.u32 %y, %y, 1664525, 1013904223; shr.u32 %x, %y, 11; xor.b32 %x, %x, %y;"
            f"lop3.b32 %x, %x, {keep:#x}, {get:#x}, 0xEA; st.shared.b32 [%w+{number * 512}], %x;"
        )
    leading, stride = (2048, 1024) if mode else (1280, 2304)
    descriptor = (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62
    start = "".join(
        f"mov.u32 %w, room; add.u32 %w, %w, {first + step}; shr.u32 %w, %w, 4; cvt.u64.u32 %{name}, %w;"
        f"or.b64 %{name}, %{name}, {descriptor:#x};"
        for name, first in (("p", 0), ("r", 16384))
    )
    sign = "" if result == "s32" else f", {signs[0]}, {signs[1]}"
    across = f", {a}, {b}" if bits == 16 else ""
    satfinite = ".satfinite" if saturates else ""
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{256 // bits}.{result}.{kind}.{kind}{satfinite}"
    body = (
        fill + "fence.proxy.async.shared::cta; bar.sync 0;" + start
        + f"setp.eq.u32 %q, 1, {keeps};"
        + "".join(f"mov.b32 %d{i}, {'0x7ffffff0' if saturates else '%a1' if sum(signs) < 2 else '0'};" for i in range(sums))
        + "wgmma.fence.sync.aligned;"
    )  # fmt: skip
    text = (
        f"{opcode} {_list('d', 0, sums)}, %p, %r, %q{sign}{across}; wgmma.commit_group.sync.aligned;"
        "wgmma.wait_group.sync.aligned 0;"
    )
    name = f"{opcode} swizzle {mode} major {a}{b} start {step} scale {keeps} {signs[0]} {signs[1]}"
    return Form(name, ("b32",) * sums, ("b32", f"m:{'s8' if result == 's32' else result}"), text,
                threads=128, body=body)  # fmt: skip


def more_forms():
    """Return all of them, the products of matrices first."""
    return [
        *sparse_forms(), *_mma_of_quads(), *_mma(), *_wgmma_from_memory(), *_fragments(), *_atomics(),
        *_bulk_reductions(), *_warps(), *_doubles(), *_small_floats(), *_carries(), *_choices(), *_conversions(),
    ]  # fmt: skip
