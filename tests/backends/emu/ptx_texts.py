"""Texts of inline assembly with the formulas of their results, registers to try, and a module of kernels.

Approximate instructions may be so many units in the last place away on hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable

import numpy as np

from tests.backends.emu.ptx_formulas import (
    KINDS,
    M32,
    M64,
    arithmetic,
    both,
    byte,
    compare,
    convert,
    exponent,
    extreme,
    extreme64,
    field,
    fit,
    flush,
    inserted,
    integers,
    keeping,
    lanes,
    looked_up,
    near,
    neg_or_abs,
    number,
    pattern,
    permuted,
    power,
    s16,
    signed,
    small,
    to_integer,
    toward_zero,
    u8,
    whole,
    widened,
    words,
    xorsign,
)


@dataclass(frozen=True)
class Text:
    """`units`: how far results of type `like` may be off on hardware, 0 is bit for bit; where they are
    more, by no more than `absolute`."""

    text: str
    constraints: str
    formula: Callable[..., Any]
    arch: int = 90
    units: int = 0
    like: str = "f32"
    absolute: float = 0.0


TEXTS: list[Text] = []


def add(text: str, constraints: str, formula: Callable[..., Any], **more: Any) -> None:
    TEXTS.append(Text(text, constraints, formula, **more))


def _floats() -> None:
    for op, arity in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        names = ", ".join(f"${i}" for i in range(arity + 1))
        f, d, r, h, l = (",".join([f"={c}"] + [c] * arity) for c in "fdrhl")
        for mode in ("rn", "rz", "rm", "rp"):
            add(f"{op}.{mode}.f32 {names};", f, arithmetic(op, "f32", mode))
            add(f"{op}.{mode}.f64 {names};", d, arithmetic(op, "f64", mode))
        add(f"{op}.rn.ftz.f32 {names};", f, arithmetic(op, "f32", ftz=True))
        add(f"{op}.rz.ftz.sat.f32 {names};", f, arithmetic(op, "f32", "rz", True, True))
        add(f"{op}.rn.f16 {names};", h, arithmetic(op, "f16"))
        add(f"{op}.rn.ftz.sat.f16 {names};", h, arithmetic(op, "f16", ftz=True, sat=True))
        add(f"{op}.rn.f16x2 {names};", r, lanes(16, 2, arithmetic(op, "f16")))
        add(f"{op}.rn.bf16 {names};", h, arithmetic(op, "bf16"))
        add(f"{op}.rn.bf16x2 {names};", r, lanes(16, 2, arithmetic(op, "bf16")))
        for mode in ("rn", "rz"):
            add(
                f"{op}.{mode}.f32x2 {names};",
                l,
                lanes(32, 2, arithmetic(op, "f32", mode)),
                arch=100,
            )
        add(
            f"{op}.rn.ftz.f32x2 {names};",
            l,
            lanes(32, 2, arithmetic(op, "f32", ftz=True)),
            arch=100,
        )
    for kind, c in (("f16x2", "r"), ("bf16x2", "r"), ("f16", "h"), ("bf16", "h")):
        element = kind.removesuffix("x2")
        relu = arithmetic("fma", element, relu=True)
        add(f"fma.rn.relu.{kind} $0, $1, $2, $3;", f"={c},{c},{c},{c}",
            lanes(16, 2, relu) if c == "r" else relu)  # fmt: skip
    for mode in ("rn", "rz", "rm", "rp"):
        add(f"div.{mode}.f32 $0, $1, $2;", "=f,f,f", arithmetic("div", "f32", mode))
        add(f"rcp.{mode}.f32 $0, $1;", "=f,f", arithmetic("rcp", "f32", mode))
        add(f"sqrt.{mode}.f32 $0, $1;", "=f,f", arithmetic("sqrt", "f32", mode))
    add("div.rn.f64 $0, $1, $2;", "=d,d,d", arithmetic("div", "f64"))
    add("div.rn.ftz.f32 $0, $1, $2;", "=f,f,f", arithmetic("div", "f32", ftz=True))
    add("add.f32 $0, $1, 0f3F800000;", "=f,f", lambda a: arithmetic("add", "f32")(a, 0x3F800000))
    add("mul.f32 $0, $1, 1.5;", "=f,f", lambda a: arithmetic("mul", "f32")(a, pattern(1.5, "f32")))
    add(
        "mul.f64 $0, $1, 0d3FF8000000000000;",
        "=d,d",
        lambda a: arithmetic("mul", "f64")(a, pattern(1.5, "f64")),
    )
    add("{ add.rn.f32 $0, $2, $3; mul.rn.f32 $1, $2, $3; }", "=&f,=f,f,f",
        lambda a, b: (arithmetic("add", "f32")(a, b), arithmetic("mul", "f32")(a, b)))  # fmt: skip
    for kind, c in (("f32", "f"), ("f16", "h"), ("bf16", "h"), ("f16x2", "r"), ("bf16x2", "r")):
        element, packed = kind.removesuffix("x2"), kind.endswith("x2")
        for op in ("min", "max"):
            for dots, how in (
                ("", {}),
                (".NaN", {"nan": True}),
                *(((".ftz", {"ftz": True}),) * ("b" not in kind)),
            ):
                one = extreme(element, op == "min", **how)
                add(
                    f"{op}{dots}.{kind} $0, $1, $2;",
                    f"={c},{c},{c}",
                    lanes(16, 2, one) if packed else one,
                )
        for op in ("neg", "abs"):
            one = neg_or_abs(op, element)
            add(f"{op}.{kind} $0, $1;", f"={c},{c}", lanes(16, 2, one) if packed else one)
            if element != "bf16":
                one = neg_or_abs(op, element, True)
                add(f"{op}.ftz.{kind} $0, $1;", f"={c},{c}", lanes(16, 2, one) if packed else one)
    for op in ("min", "max"):
        add(f"{op}.f64 $0, $1, $2;", "=d,d,d", lambda a, b, op=op: extreme64(a, b, op == "min"))
        add(f"{op}.f32 $0, $1, $2, $3;", "=f,f,f,f", extreme("f32", op == "min"), arch=100)
    add("min.xorsign.abs.f32 $0, $1, $2;", "=f,f,f", lambda a, b: xorsign(a, b, True))
    add("max.xorsign.abs.f32 $0, $1, $2;", "=f,f,f", lambda a, b: xorsign(a, b, False))
    add("copysign.f32 $0, $1, $2;", "=f,f,f", lambda a, b: (a & 1 << 31) | (b & ~(1 << 31)))
    approximate: list[tuple[str, Callable[..., float], int]] = [
        ("ex2", np.exp2, 3), ("lg2", np.log2, 4), ("rcp", lambda a: 1 / a, 2), ("sqrt", np.sqrt, 3),
        ("rsqrt", lambda a: 1 / np.sqrt(a), 3), ("tanh", np.tanh, 1 << 14),
    ]  # fmt: skip
    for op, fn, units in approximate:
        # The ISA has 2^-22 for lg2: of the result, but between 0.5 and 2 as it is. Ours is rounded.
        off = {"units": units, "absolute": 2.0**-22 + 2.0**-25 if op == "lg2" else 0.0}
        if op != "tanh":
            add(f"{op}.approx.ftz.f32 $0, $1;", "=f,f", near(fn, "f32", True), **off)
        add(f"{op}.approx.f32 $0, $1;", "=f,f", near(fn, "f32"), **off)
    for op in ("ex2", "tanh"):
        fn = np.exp2 if op == "ex2" else np.tanh
        one = near(fn, "f16")
        add(f"{op}.approx.f16 $0, $1;", "=h,h", one, units=2, like="f16")
        add(f"{op}.approx.f16x2 $0, $1;", "=r,r", lanes(16, 2, one), units=2, like="f16")
        dots = ".ftz" if op == "ex2" else ""
        one = near(fn, "bf16", bool(dots))
        add(f"{op}.approx{dots}.bf16x2 $0, $1;", "=r,r", lanes(16, 2, one), units=2, like="bf16")
    add("div.full.f32 $0, $1, $2;", "=f,f,f", near(lambda a, b: a / b, "f32"), units=3)


def _integers() -> None:
    widths = {"16": ("h", 16), "32": ("r", 32), "64": ("l", 64)}
    for width, (c, bits) in widths.items():
        two, three = f"={c},{c},{c}", f"={c},{c},{c},{c}"
        add(f"add.u{width} $0, $1, $2;", two, integers(lambda a, b: a + b, bits, False))
        add(f"sub.s{width} $0, $1, $2;", two, integers(lambda a, b: a - b, bits, True))
        add(f"neg.s{width} $0, $1;", f"={c},{c}", integers(lambda a: -a, bits, True))
        add(f"abs.s{width} $0, $1;", f"={c},{c}", integers(abs, bits, True))
        for sign in "us":
            s = sign == "s"
            kind = f"{sign}{width}"
            add(f"mul.lo.{kind} $0, $1, $2;", two, integers(lambda a, b: a * b, bits, s))
            add(
                f"mul.hi.{kind} $0, $1, $2;",
                two,
                integers(lambda a, b, n=bits: a * b >> n, bits, s),
            )
            add(
                f"mad.lo.{kind} $0, $1, $2, $3;",
                three,
                integers(lambda a, b, x: a * b + x, bits, s),
            )
            add(f"mad.hi.{kind} $0, $1, $2, $3;", three,
                integers(lambda a, b, x, n=bits: (a * b >> n) + x, bits, s))  # fmt: skip
            if bits < 64:
                wide = {"h": "r", "r": "l"}[c]
                add(f"mul.wide.{kind} $0, $1, $2;", f"={wide},{c},{c}",
                    integers(lambda a, b: a * b, bits, s, 2 * bits))  # fmt: skip
                add(f"mad.wide.{kind} $0, $1, $2, $3;", f"={wide},{c},{c},{wide}",
                    lambda a, b, x, n=bits, s=s: ((signed(a, n) * signed(b, n) if s else a * b) + x)
                    & ((1 << 2 * n) - 1))  # fmt: skip
            add(f"min.{kind} $0, $1, $2;", two, integers(min, bits, s))
            add(f"max.{kind} $0, $1, $2;", two, integers(max, bits, s))
            add(
                f"div.{kind} $0, $1, $2;",
                two,
                integers(lambda a, b: toward_zero(a, b) if b else -1, bits, s),
            )
            add(
                f"rem.{kind} $0, $1, $2;",
                two,
                integers(lambda a, b: a - toward_zero(a, b) * b if b else -1, bits, s),
            )
            add(
                f"sad.{kind} $0, $1, $2, $3;",
                three,
                integers(lambda a, b, x: abs(a - b) + x, bits, s),
            )
            add(f"shr.{kind} $0, $1, $2;", f"={c},{c},r",
                lambda a, n, w=bits, s=s: ((signed(a, w) if s else a) >> min(n, w)) & ((1 << w) - 1))  # fmt: skip
        add(
            f"shl.b{width} $0, $1, $2;",
            f"={c},{c},r",
            lambda a, n, w=bits: a << min(n, w) & ((1 << w) - 1),
        )
        for op, fn in (
            ("and", lambda a, b: a & b),
            ("or", lambda a, b: a | b),
            ("xor", lambda a, b: a ^ b),
        ):
            add(f"{op}.b{width} $0, $1, $2;", two, fn)
        add(f"not.b{width} $0, $1;", f"={c},{c}", lambda a, w=bits: ~a & ((1 << w) - 1))
        add(f"cnot.b{width} $0, $1;", f"={c},{c}", lambda a: int(a == 0))
        if bits > 16:
            # The ISA takes eight bits of a place and a length; of b64 compilers make shifts by 32.
            all_of = 255 if bits == 32 else M32
            add(f"popc.b{width} $0, $1;", f"=r,{c}", lambda a: bin(a).count("1"))
            add(f"clz.b{width} $0, $1;", f"=r,{c}", lambda a, w=bits: w - a.bit_length())
            add(f"brev.b{width} $0, $1;", f"={c},{c}", lambda a, w=bits: int(f"{a:0{w}b}"[::-1], 2))
            for sign in "us":

                def top(a: int, w: int = bits, s: bool = sign == "s") -> int:
                    return ((~a & ((1 << w) - 1)) if s and a >> (w - 1) else a).bit_length() - 1

                add(f"bfind.{sign}{width} $0, $1;", f"=r,{c}", lambda a, top=top: top(a) & M32)
                add(f"bfind.shiftamt.{sign}{width} $0, $1;", f"=r,{c}",
                    lambda a, top=top, w=bits: (w - 1 - top(a) if top(a) >= 0 else -1) & M32)  # fmt: skip
                add(f"bfe.{sign}{width} $0, $1, $2, $3;", f"={c},{c},r,r",
                    lambda a, p, n, w=bits, s=sign == "s", m=all_of: field(a, p & m, n & m, w, s))  # fmt: skip
            add(f"bfi.b{width} $0, $1, $2, $3, $4;", f"={c},{c},{c},r,r",
                lambda a, b, p, n, w=bits, m=all_of: inserted(a, b, p & m, n & m, w))  # fmt: skip
    clip = lambda x: min(max(x, -(1 << 31)), (1 << 31) - 1)  # noqa: E731
    add("add.sat.s32 $0, $1, $2;", "=r,r,r", integers(lambda a, b: clip(a + b), 32, True))
    add("sub.sat.s32 $0, $1, $2;", "=r,r,r", integers(lambda a, b: clip(a - b), 32, True))
    add(
        "mad.hi.sat.s32 $0, $1, $2, $3;",
        "=r,r,r,r",
        integers(lambda a, b, c: clip((a * b >> 32) + c), 32, True),
    )
    add("mul24.lo.s32 $0, $1, $2;", "=r,r,r", lambda a, b: signed(a, 24) * signed(b, 24) & M32)
    add(
        "mul24.hi.u32 $0, $1, $2;",
        "=r,r,r",
        lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16 & M32,
    )
    add(
        "mad24.lo.u32 $0, $1, $2, $3;",
        "=r,r,r,r",
        lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c & M32,
    )
    for kind in ("u16x2", "s16x2"):
        s = kind[0] == "s"
        add(f"add.{kind} $0, $1, $2;", "=r,r,r", lanes(16, 2, lambda a, b: a + b))
        add(f"max.{kind} $0, $1, $2;", "=r,r,r", lanes(16, 2, integers(max, 16, s)))
    add(
        "max.relu.s16x2 $0, $1, $2;",
        "=r,r,r",
        lanes(16, 2, integers(lambda a, b: max(a, b, 0), 16, True)),
    )
    add("min.relu.s32 $0, $1, $2;", "=r,r,r", integers(lambda a, b: max(min(a, b), 0), 32, True))
    add("{ add.cc.u32 $0, $2, $4; addc.u32 $1, $3, $5; }", "=r,=r,r,r,r,r",
        lambda a, b, c, d: words((a | b << 32) + (c | d << 32)))  # fmt: skip
    add("{ sub.cc.u32 $0, $2, $4; subc.u32 $1, $3, $5; }", "=r,=r,r,r,r,r",
        lambda a, b, c, d: words((a | b << 32) - (c | d << 32)))  # fmt: skip
    add("{ mad.lo.cc.u32 $0, $2, $3, $4; madc.hi.u32 $1, $2, $3, $5; }", "=&r,=r,r,r,r,r",
        lambda a, b, c, d: words(a * b + (c | d << 32)))  # fmt: skip
    add("{ .reg .u32 t; add.cc.u32 t, $1, $2; addc.cc.u32 t, t, t; addc.u32 $0, $1, 0; }", "=r,r,r",
        lambda a, b: a + (2 * (a + b & M32) + (a + b >> 32) >> 32) & M32)  # fmt: skip
    for lut in (0x96, 0xE8, 0xCA, 0x1B):
        add(
            f"lop3.b32 $0, $1, $2, $3, {lut:#x};",
            "=r,r,r,r",
            lambda a, b, c, t=lut: looked_up(a, b, c, t),
        )
    add("{ .reg .pred p, q; setp.lt.u32 q, $3, 9; lop3.or.b32 $0|p, $1, $2, $3, 0x80, q; @p add.u32 $0, $0, 1; }",
        "=r,r,r,r", lambda a, b, c: (a & b & c) + (c < 9 or a & b & c != 0) & M32)  # fmt: skip
    add("prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16)
    add("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", lambda a, b, s: permuted(a, b, s))
    modes = {"f4e": "0123 1234 2345 3456", "b4e": "0765 1076 2107 3210", "rc8": "0000 1111 2222 3333",
             "ecl": "0123 1123 2223 3333", "ecr": "0000 0111 0122 0123", "rc16": "0101 2323 0101 2323"}  # fmt: skip
    for mode, rows in modes.items():
        add(f"prmt.b32.{mode} $0, $1, $2, $3;", "=r,r,r,r",
            lambda a, b, s, rows=rows.split(): permuted(a, b, int(rows[s & 3][::-1], 16)))  # fmt: skip
    for wraps, many in (("wrap", lambda n: n & 31), ("clamp", lambda n: min(n, 32))):
        add(f"shf.l.{wraps}.b32 $0, $1, $2, $3;", "=r,r,r,r",
            lambda a, b, n, many=many: ((b << 32 | a) << many(n)) >> 32 & M32)  # fmt: skip
        add(f"shf.r.{wraps}.b32 $0, $1, $2, $3;", "=r,r,r,r",
            lambda a, b, n, many=many: (b << 32 | a) >> many(n) & M32)  # fmt: skip
    for x in "us":
        for y in "us":
            add(f"dp4a.{x}32.{y}32 $0, $1, $2, $3;", "=r,r,r,r",
                lambda a, b, c, x=x, y=y: sum(byte(a, i, x) * byte(b, i, y) for i in range(4)) + c & M32)  # fmt: skip
    add("dp2a.hi.s32.u32 $0, $1, $2, $3;", "=r,r,r,r",
        lambda a, b, c: sum(signed(a >> 16 * i, 16) * (b >> 16 + 8 * i & 255) for i in range(2)) + c & M32)  # fmt: skip
    add(
        "bmsk.clamp.b32 $0, $1, $2;",
        "=r,r,r",
        lambda p, n: ((1 << min(n, 32)) - 1) << min(p, 32) & M32,
    )
    add("szext.clamp.s32 $0, $1, $2;", "=r,r,r",
        lambda a, n: signed(a, min(n, 32)) & M32 if n else 0)  # fmt: skip


def _moves() -> None:
    add("mov.b32 $0, $1;", "=r,f", lambda a: a)
    add("mov.b32 $0, $1;", "=r,0", lambda a: a)
    add("add.u32 $0, $2, 1;", "=r,r,0", lambda a, b: b + 1 & M32)
    add("mov.b64 $0, {$1, $2};", "=l,r,r", lambda a, b: a | b << 32)
    add("mov.b64 {$0, $1}, $2;", "=r,=r,l", lambda a: words(a))
    add(
        "{ .reg .b16 x, y; mov.b32 {x, y}, $1; mov.b32 $0, {y, x}; }",
        "=r,r",
        lambda a: a >> 16 | (a & 0xFFFF) << 16,
    )
    add("{ .reg .b16 %h<3>; mov.b64 {%h0, _, %h1, %h2}, $1; mov.b32 $0, {%h2, %h0}; }", "=r,l",
        lambda a: a >> 48 | (a & 0xFFFF) << 16)  # fmt: skip
    add("mov.u32 $0, 0b1011;", "=r", lambda: 11)
    add("add.s32 $0, $1, (1 << 4) - 017;", "=r,r", lambda a: a + 1 & M32)
    add("{ .reg .u32 t; { .reg .u32 t; add.u32 t, $1, 5; mov.u32 $0, t; } mov.u32 t, 7; add.u32 $0, $0, t; }", "=&r,r",
        lambda a: a + 12 & M32)  # fmt: skip
    add("// $1 is kept\nmov.b32 $0, $1; /* ; */", "=r,r", lambda a: a)
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        for kind, c in (
            ("s32", "r"),
            ("u32", "r"),
            ("s64", "l"),
            ("u16", "h"),
            ("f32", "f"),
            ("f64", "d"),
            ("f16", "h"),
            ("bf16", "h"),
        ):
            fn = compare(op, kind)
            add(f"{{ .reg .pred p; setp.{op}.{kind} p, $1, $2; selp.b32 $0, 7, 9, p; }}", f"=r,{c},{c}",
                lambda a, b, fn=fn: 7 if fn(a, b) else 9)  # fmt: skip
        fn = compare(op, "f32", True)
        add(f"{{ .reg .pred p, q; setp.{op}u.f32 p|q, $1, $2; selp.b32 $0, 7, 9, q; }}", "=r,f,f",
            lambda a, b, fn=fn: 9 if fn(a, b) else 7)  # fmt: skip
    add("{ .reg .pred p; setp.nan.ftz.f32 p, $1, $2; @p mov.b32 $0, 1; @!p mov.b32 $0, 0; }", "=r,f,f",
        lambda a, b: int(math.isnan(number(a, "f32") + 0) or math.isnan(number(b, "f32"))))  # fmt: skip
    add("{ .reg .pred p, q; setp.lt.s32 p, $1, 0; setp.gt.and.u32 q, $2, 9, !p; selp.f32 $0, 0f3F800000, 0.0, q; }",
        "=f,r,r", lambda a, b: 0x3F800000 if b > 9 and not a >> 31 else 0)  # fmt: skip
    add("{ .reg .pred p, q; setp.hi.u32 p, $1, 5; not.pred q, p; xor.pred p, p, q; and.pred q, q, p; selp.u32 $0, 1, 0, q; }",
        "=r,r", lambda a: int(a <= 5))  # fmt: skip
    add("{ .reg .pred p, q; setp.lt.f16x2 p|q, $1, $2; selp.u32 $0, 1, 0, p; @q add.u32 $0, $0, 2; }", "=r,r,r",
        lambda a, b: sum(compare("lt", "f16")(a >> 16 * i & 0xFFFF, b >> 16 * i & 0xFFFF) << i for i in range(2)))  # fmt: skip
    for kind, one in (("f16", 0x3C00), ("bf16", 0x3F80)):
        two = lambda fn, yes: lanes(16, 2, lambda a, b: yes * fn(a, b))  # noqa: E731
        add(f"set.ge.{kind}x2.{kind}x2 $0, $1, $2;", "=r,r,r", two(compare("ge", kind), one))
        add(f"set.neu.u32.{kind}x2 $0, $1, $2;", "=r,r,r", two(compare("ne", kind, True), 0xFFFF))
    add("set.lt.u32.f32 $0, $1, $2;", "=r,f,f", lambda a, b: M32 * compare("lt", "f32")(a, b))
    add(
        "set.ge.f32.s32 $0, $1, $2;", "=f,r,r", lambda a, b: 0x3F800000 * compare("ge", "s32")(a, b)
    )
    add("slct.b32.s32 $0, $1, $2, $3;", "=r,r,r,r", lambda a, b, c: b if c >> 31 else a)
    add("slct.ftz.u64.f32 $0, $1, $2, $3;", "=l,l,l,f",
        lambda a, b, c: a if flush(number(c, "f32"), "f32") >= 0 else b)  # fmt: skip
    add("{ .reg .pred p; testp.subnormal.f32 p, $1; selp.u32 $0, 1, 0, p; }", "=r,f",
        lambda a: int(a & 0x7F800000 == 0 and a & 0x7FFFFF != 0))  # fmt: skip


def _conversions() -> None:
    for source, c in (("f32", "f"), ("f64", "d"), ("f16", "h")):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            add(f"cvt.{mode}.s32.{source} $0, $1;", f"=r,{c}", to_integer(mode, 32, True, source))
        add(f"cvt.rzi.u32.{source} $0, $1;", f"=r,{c}", to_integer("rzi", 32, False, source))
        add(f"cvt.rzi.s64.{source} $0, $1;", f"=l,{c}", to_integer("rzi", 64, True, source))
        add(f"cvt.rni.u64.{source} $0, $1;", f"=l,{c}", to_integer("rni", 64, False, source))
        add(f"cvt.rni.s16.{source} $0, $1;", f"=h,{c}", to_integer("rni", 16, True, source))
    add("cvt.rni.sat.u8.f32 $0, $1;", "=r,f", to_integer("rni", 8, False, "f32"))
    add(
        "cvt.rzi.s8.f32 $0, $1;",
        "=r,f",
        lambda a: signed(to_integer("rzi", 8, True, "f32")(a), 8) & M32,
    )
    for kind, c, bits in (("32", "r", 32), ("64", "l", 64)):
        for sign in "su":
            for mode in ("rn", "rz", "rm", "rp"):
                for target, out in (("f32", "f"), ("f64", "d")):
                    if (target, kind) == ("f64", "32") and mode != "rn":
                        continue
                    add(f"cvt.{mode}.{target}.{sign}{kind} $0, $1;", f"={out},{c}",
                        lambda a, n=bits, s=sign == "s", t=target, m=mode:
                        pattern(fit(Fraction(signed(a, n) if s else a), t, m), t))  # fmt: skip
            add(f"cvt.rn.f16.{sign}{kind} $0, $1;", f"=h,{c}",
                lambda a, n=bits, s=sign == "s": pattern(fit(Fraction(signed(a, n) if s else a), "f16"), "f16"))  # fmt: skip
    add("cvt.s64.s32 $0, $1;", "=l,r", lambda a: signed(a, 32) & M64)
    add("cvt.u64.u32 $0, $1;", "=l,r", lambda a: a)
    add("cvt.s32.s8 $0, $1;", "=r,r", lambda a: signed(a, 8) & M32)
    add("cvt.u32.u16 $0, $1;", "=r,h", lambda a: a)
    add("cvt.u16.u32 $0, $1;", "=h,r", lambda a: a & 0xFFFF)
    add("cvt.s8.s32 $0, $1;", "=r,r", lambda a: signed(a, 8) & M32)
    add("cvt.sat.u8.s32 $0, $1;", "=r,r", lambda a: min(max(signed(a, 32), 0), 255))
    add(
        "cvt.sat.s16.s64 $0, $1;",
        "=h,l",
        lambda a: min(max(signed(a, 64), -(1 << 15)), (1 << 15) - 1) & 0xFFFF,
    )
    add("cvt.sat.s32.u32 $0, $1;", "=r,r", lambda a: min(a, (1 << 31) - 1))
    shorter = lambda a: a >> 63 << 31 | 0x7FC00000 | a >> 29 & 0x3FFFFF  # noqa: E731
    for mode in ("rn", "rz", "rm", "rp"):
        add(f"cvt.{mode}.f32.f64 $0, $1;", "=f,d", keeping(convert("f64", "f32", mode), "f64", shorter))  # fmt: skip
    for mode in ("rn", "rz"):
        add(f"cvt.{mode}.f16.f32 $0, $1;", "=h,f", convert("f32", "f16", mode))
        add(f"cvt.{mode}.bf16.f32 $0, $1;", "=h,f", convert("f32", "bf16", mode))
        for kind in ("f16", "bf16"):
            for relu in (False, True):
                add(f"cvt.{mode}{'.relu' * relu}.{kind}x2.f32 $0, $1, $2;", "=r,f,f",
                    both(convert("f32", kind, mode, relu=relu), 16))  # fmt: skip
    add("cvt.rn.relu.f16.f32 $0, $1;", "=h,f", convert("f32", "f16", relu=True))
    add("cvt.f64.f32 $0, $1;", "=d,f", convert("f32", "f64"))
    add("cvt.f32.f16 $0, $1;", "=f,h", convert("f16", "f32"))
    add("cvt.f32.bf16 $0, $1;", "=f,h", lambda a: a << 16)
    add("cvt.rn.sat.f32.f64 $0, $1;", "=f,d", convert("f64", "f32", sat=True))
    add("cvt.sat.f32.f32 $0, $1;", "=f,f", convert("f32", "f32", sat=True))
    add("cvt.ftz.f64.f32 $0, $1;", "=d,f", lambda a: pattern(flush(number(a, "f32"), "f32"), "f64"))
    for mode in ("rni", "rzi", "rmi", "rpi"):
        add(f"cvt.{mode}.f32.f32 $0, $1;", "=f,f", lambda a, m=mode: whole(a, "f32", m))
        add(f"cvt.{mode}.f64.f64 $0, $1;", "=d,d", lambda a, m=mode: whole(a, "f64", m))
    cut = lambda a: a & 0xFFFFE000  # noqa: E731
    add("cvt.rna.tf32.f32 $0, $1;", "=r,f", keeping(convert("f32", "tf32", "rna"), "f32", cut))
    add("cvt.rna.satfinite.tf32.f32 $0, $1;", "=r,f",
        keeping(convert("f32", "tf32", "rna", finite=True), "f32", lambda a: cut(a) - 0x2000))  # fmt: skip
    for mode in ("rn", "rz"):
        add(f"cvt.{mode}.tf32.f32 $0, $1;", "=r,f", convert("f32", "tf32", mode))
    add("cvt.rn.relu.tf32.f32 $0, $1;", "=r,f", convert("f32", "tf32", relu=True))
    for kind in ("e4m3", "e5m2"):
        for relu in (False, True):
            dots = ".relu" * relu
            add(
                f"cvt.rn.satfinite{dots}.{kind}x2.f32 $0, $1, $2;",
                "=h,f,f",
                both(small(kind, relu=relu), 8),
            )
            add(f"cvt.rn.satfinite{dots}.{kind}x2.f16x2 $0, $1;", "=h,r",
                lambda a, fn=small(kind, "f16", relu): fn(a >> 16) << 8 | fn(a & 0xFFFF))  # fmt: skip
        add(
            f"cvt.rn.f16x2.{kind}x2 $0, $1;",
            "=r,h",
            lambda a, fn=widened(kind, "f16", 8): fn(a >> 8) << 16 | fn(a),
        )
    for kind in ("e2m3", "e3m2"):
        if kind in KINDS:
            add(
                f"cvt.rn.satfinite.{kind}x2.f32 $0, $1, $2;",
                "=h,f,f",
                both(small(kind), 8),
                arch=100,
            )
            add(f"cvt.rn.f16x2.{kind}x2 $0, $1;", "=r,h",
                lambda a, fn=widened(kind, "f16", 6): fn(a >> 8) << 16 | fn(a), arch=100)  # fmt: skip
    if "e2m1" in KINDS:
        add("{ .reg .b8 x; cvt.rn.satfinite.e2m1x2.f32 x, $2, $1; mov.b32 $0, {x, x, x, x}; }",
            "=r,f,f", lambda a, b: (small("e2m1")(b) << 4 | small("e2m1")(a)) * 0x01010101, arch=100)  # fmt: skip
        add("{ .reg .b8 x, y; mov.b16 {x, y}, $1; cvt.rn.f16x2.e2m1x2 $0, y; }", "=r,h",
            lambda a, fn=widened("e2m1", "f16", 4): fn(a >> 12) << 16 | fn(a >> 8), arch=100)  # fmt: skip
    add(
        "cvt.rn.bf16x2.ue8m0x2 $0, $1;",
        "=r,h",
        lambda a: power(a >> 8) << 16 | power(a & 255),
        arch=100,
    )
    add(
        "cvt.rp.satfinite.ue8m0x2.f32 $0, $1, $2;",
        "=h,f,f",
        lambda a, b: exponent(a) << 8 | exponent(b),
        arch=100,
    )
    add("cvt.pack.sat.u8.s32.b32 $0, $1, $2, $3;", "=r,r,r,r",
        lambda a, b, c: (c << 16 | u8(a) << 8 | u8(b)) & M32)  # fmt: skip
    add("cvt.pack.sat.s16.s32 $0, $1, $2;", "=r,r,r", lambda a, b: s16(a) << 16 | s16(b))


_floats()
_integers()
_moves()
_conversions()


# ---- registers to try ---------------------------------------------------------------------------

_WIDTH = {"f": 32, "r": 32, "h": 16, "l": 64, "d": 64}
_SPECIAL = {
    32: [0, 1 << 31, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x007FFFFF, 0x00800000,
         0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000, 0x40200000, 0xC0200000, 0x4F000000, 0xCF000000, 0x7BFF7C00, 0xFC007E00,
         0x7F807F7F, 0x33800000, 0x477FE000, 0x477FF000, 31, 32, 33, 255, M32],
    16: [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0x3F80, 0x7F80, 0xFF80, 0xFFFF],
    64: [0, 1 << 63, 0x3FF0000000000000, 0xBFF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000,
         1, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0x41DFFFFFFFC00000, 0xC3E0000000000000, 0x47EFFFFFF0000000, M64, M32],
}  # fmt: skip


def registers(text: Text, count: int, seed: int = 0) -> list[list[int]]:
    """Patterns for each argument: special ones, anything, numbers near one, and counts of bits."""
    rng = np.random.default_rng(seed)
    kinds = [c for c in text.constraints.split(",") if not c.startswith("=")]
    outputs = [c.strip("=&") for c in text.constraints.split(",") if c.startswith("=")]
    lines = []
    for kind in kinds:
        letter = outputs[int(kind)] if kind.isdigit() else kind
        bits = _WIDTH[letter]
        special = rng.choice(np.array(_SPECIAL[bits], np.uint64), count)
        anything = rng.integers(0, M64, count, dtype=np.uint64) & np.uint64((1 << bits) - 1)
        usual = rng.standard_normal(count) * np.exp2(rng.integers(-4, 8, count))
        if letter in "rl":
            usual = rng.integers(0, 70, count).astype(np.float64)
            near_one = usual.astype(np.uint64)
        else:
            dtype = {"f": np.float32, "h": np.float16, "d": np.float64}[letter]
            near_one = usual.astype(dtype).view(np.dtype(f"u{bits // 8}")).astype(np.uint64)
        which = rng.integers(0, 3, count)
        lines.append([int(x) for x in np.choose(which, [special, anything, near_one])])
    return lines


def module(texts: list[Text], arch: int, entry: bool = True) -> str:
    """PTX in which the kernel `t<i>` applies text i to arrays of 64-bit words, an element a thread.

    Its parameters: the results, then the arguments.
    """
    version = "8.4" if arch < 100 else "8.8"
    out = [f".version {version}", f".target sm_{arch}a", ".address_size 64"]
    for number_, text in enumerate(texts):
        kinds = [c.strip() for c in text.constraints.split(",")]
        results = [c.strip("=&") for c in kinds if c.startswith("=")]
        letters = [results[int(c)] if c.isdigit() else c.strip("=&") for c in kinds]
        names = [f"%v{i}" for i in range(len(kinds))]
        for i, c in enumerate(kinds):
            if c.isdigit():
                names[i] = names[int(c)]
        body = text.text.replace("$$", "\x00")
        for i in reversed(range(len(kinds))):
            body = body.replace(f"${i}", names[i])
        out.append(
            f".visible .entry t{number_}({', '.join(f'.param .u64 p{i}' for i in range(len(kinds)))}) {{"
        )
        out.append(".reg .u64 %at, %off, %w; .reg .u32 %i, %b, %n;")
        for i, letter in enumerate(letters):
            kind = {"f": "f32", "d": "f64"}.get(letter, f"b{_WIDTH[letter]}")
            if names[i] == f"%v{i}":
                out.append(f".reg .{kind} %v{i};")
        out.append(
            "mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %i;"
        )
        out.append("mul.wide.u32 %off, %i, 8;")
        for i in range(len(results), len(kinds)):
            bits = _WIDTH[letters[i]]
            out.append(
                f"ld.param.u64 %at, [p{i}]; cvta.to.global.u64 %at, %at; add.u64 %at, %at, %off;"
            )
            out.append(f"ld.global.b{bits} {names[i]}, [%at];")
        out.append(body.replace("\x00", "$"))
        for i in range(len(results)):
            bits = _WIDTH[letters[i]]
            out.append(
                f"ld.param.u64 %at, [p{i}]; cvta.to.global.u64 %at, %at; add.u64 %at, %at, %off;"
            )
            out.append(f"st.global.b{bits} [%at], {names[i]};")
        out.append("ret; }")
    return "\n".join(out)
