"""Inline assembly: random texts, constraints, arguments, results and packs."""

from __future__ import annotations

from typing import Callable

from tests.compat.hardware import _chance, _right
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import CUDA, HIP, RELEASE, kernel

__all__ = ["FAMILIES"]

# A letter of a register -> what is moved with it on NVIDIA, and dtypes that it holds one of.
_NVIDIA = {
    "r": (
        "mov.b32 {0}, {1};",
        ["i", "x", "i.to(gl.uint32)", "n", "f"],
        ["int32", "float32", "uint32"],
    ),
    "f": ("add.f32 {0}, {1}, {1};", ["x", "f"], ["float32"]),
    "l": (
        "mov.b64 {0}, {1};",
        ["i.to(gl.int64)", "q + i", "x.to(gl.float64)"],
        ["int64", "uint64", "float64"],
    ),
    "d": ("add.f64 {0}, {1}, {1};", ["x.to(gl.float64)"], ["float64"]),
    "h": ("mov.b16 {0}, {1};", ["i.to(gl.int16)", "x.to(gl.float16)"], ["int16", "float16"]),
}
_AMD = {"v": ("v_mov_b32 {0}, {1}", ["i", "x", "n"], ["int32", "float32"])}
_NARROW = [
    "i.to(gl.int8)",
    "x.to(gl.float16)",
    "x.to(gl.bfloat16)",
    "x.to(gl.float8e5)",
    "i.to(gl.int16)",
]
_SMALL = ["int8", "float16", "bfloat16", "float8e5", "int16"]
_ODD = ["=&r", "r", "=*m", "*m", "m", "0", "1", "", "=", "~{memory}", "~{}", "~memory", "=r|r", "r|f", "rf", "=rm", "i",
        "n", "{eax}", "=%r", "%r", "=@ccz", "#", "!r", "X", "g", " r ", "+r", "=r*", "v", "s", "a", "=0"]  # fmt: skip


def _pieces(d: Draw, results: list[str], arguments: list[str]) -> str:
    """The constraints of these letters; seldom others."""
    pieces = [("=&" if d.chance(0.1) else "=") + letter for letter in results]
    pieces += [
        str(d.random.randrange(len(results))) if results and d.chance(0.06) else letter
        for letter in arguments
    ]
    if d.chance(0.1):
        pieces.append("~{memory}")
    if not _chance(d, 0.85):
        if pieces and d.chance(0.7):
            pieces[d.random.randrange(len(pieces))] = d.pick(_ODD)
        else:
            pieces.insert(d.random.randint(0, len(pieces)), d.pick(_ODD))
    elif not _chance(d, 0.95):
        d.random.shuffle(pieces)
    return d.pick([",", ",", ",", ", "]).join(pieces)


def _text(d: Draw, table: dict, results: list[str], arguments: list[str]) -> str:
    """Moves of the first argument of its kind to each result; comments name the others."""
    lines = []
    for index, letter in enumerate(results):
        fit = [k for k, other in enumerate(arguments) if other == letter] or [0]
        source = f"${len(results) + fit[0]}" if arguments else "0"
        lines.append(table[letter][0].format(f"${index}", source))
    if not _chance(d, 0.93):
        lines.append(d.pick(["// $9", "// $$", "// ${0}", "// ${7:x}", "// $", "nop;", "bad $0;"]))
    return " ".join(lines) or "nop;"


def assembly(d: Draw) -> str:
    """`inline_asm_elementwise` and `inline_asm`."""
    nvidia = d.chance(0.75)
    table = _NVIDIA if nvidia else _AMD
    scalars = RELEASE >= (3, 8) and d.chance(0.25)
    results = [
        d.pick([*table]) for _ in range(d.pick([1, 1, 1, 2, 0] if scalars else [1, 1, 1, 2, 3]))
    ]
    arguments = [*results, *(d.pick([*table]) for _ in range(d.pick([0, 0, 1])))]
    arguments = [*dict.fromkeys(arguments)] if d.chance(0.5) else arguments
    values = [d.pick(table[letter][1]) for letter in arguments]
    dtypes = [f"gl.{d.pick(table[letter][2])}" for letter in results]
    pack, count = "1", 1
    if not scalars and d.chance(0.3):
        # Narrow elements share registers, wide ones have one each.
        count = d.pick([2, 4])
        pack = str(count)
        if d.chance(0.7):
            values, dtypes = [d.pick(_NARROW)], [f"gl.{d.pick(_SMALL)}"]
            letter = "r" if nvidia else "v"
            bits = [8 if "8" in text else 16 for text in (dtypes[0], values[0])]
            results, arguments = ([letter] * max(1, count * b // 32) for b in bits)
        else:
            results = [letter for letter in results for _ in range(count)]
            arguments = [letter for letter in arguments for _ in range(count)]
    asm = _text(d, table, results, arguments)
    constraints = _pieces(d, results, arguments)
    if not _chance(d, 0.95):
        values.append(d.pick(["i", "2", "None", "True", "2.5"]))
    inputs = f"[{', '.join(values)}]"
    kinds = dtypes[0] if len(dtypes) == 1 else f"({', '.join(dtypes)})"
    pure = d.pick(["True", "False"])
    if scalars:
        one = {"i": "n", "x": "f"}
        values = [text.replace("q + i", "q") for text in values]
        values = [
            one.get(text.split(".")[0], "n") + text[1:] if text[0] in "ix" else text
            for text in values
        ]
        inputs = f"[{', '.join(values)}]"
        call = f"gl.inline_asm({asm!r}, {constraints!r}, {inputs}, [{', '.join(dtypes)}], is_pure={pure})"
    else:
        pack = _right(d, pack, ["1", "2", "4", "3", "0", "8", "n"], 0.95)
        call = f"gl.inline_asm_elementwise({asm!r}, {constraints!r}, {inputs}, {kinds}, {pure}, {pack})"
    lanes = 32 if nvidia else 64
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, 4], [{lanes // 8}, 8], [4, 1], [1, 0])",
        "i = gl.full([32, 64], 0, gl.int32, L) + n",
        "x = gl.load(p + i)",
        f"y = {call}" if results else call,
    ]
    if results:
        body.append("sink(p, q, y)")
    arch = d.pick([80, 90, 90, 100])
    target = (
        CUDA.format(arch=arch)
        if nvidia
        else HIP.format(arch=d.pick(["gfx942", "gfx950"]), lanes=64)
    )
    source = kernel(body, f"TARGET = {target}\n", _SINK)
    source = source.replace("def kernel(p, q, h, n):", "def kernel(p, q, h, n, f):")
    return source.replace("gl.float16), 5)", "gl.float16), 5, 2.5)")


_SINK = """@gluon.jit
def sink(p, q, y):
    if isinstance(y, gl.tuple):
        for k in gl.static_range(len(y)):
            sink(p, q, y[k])
    elif y.type.is_block():
        gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))
    elif y.dtype.is_ptr():
        gl.store(y, 1)
    else:
        gl.store(p, y.to(gl.float32))
"""

FAMILIES: dict[str, Callable[[Draw], str]] = {"assembly": assembly}
