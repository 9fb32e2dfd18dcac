"""Numbers of four bits, two in a byte, on their own: unpacked to wider ones and multiplied."""

from __future__ import annotations

from typing import Callable

from tests.compat.hardware import _chance, _right
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import Setting, blocked, distributed, kernel

__all__ = ["FAMILIES"]


def unpacked(d: Draw) -> str:
    """`gl.fp4_to_fp`, whose result is in the place of its bytes."""
    s = Setting(d, clusters=False)
    rank = d.pick([1, 2, 2, 2, 3])
    shape = d.parts(1 << d.random.randint(5, 11), rank)
    layout = blocked(d, s, rank) if _chance(d, 0.5) else distributed(d, s, rank, shape)
    held = _right(
        d, d.pick(["uint8", "int8", "uint8"]), ["int16", "int32", "float8e5", "int1"], 0.94
    )
    wide = _right(
        d, d.pick(["float16", "bfloat16"]), ["float32", "float8e5", "float64", "int32"], 0.92
    )
    axis = _right(
        d, str(d.pick([*range(rank), -1, rank - 1])), ["None", str(rank), "n", "True"], 0.94
    )
    of = _right(d, "c", ["i", "n", "x", "s"], 0.97)
    body = [
        f"L: gl.constexpr = {layout}",
        f"i = gl.full({shape}, 0, gl.int32, L) + n",
        f"c = i.to(gl.{held})",
        "x = gl.load(p + i)",
        "s = 3",
        f"y = gl.fp4_to_fp({of}, gl.{wide}, {axis})",
    ]
    use = d.pick(["store", "store", "convert", "reduce", "twice"])
    if use == "convert":
        body.append(f"y = gl.convert_layout(y, {blocked(d, s, rank)})")
    elif use == "reduce":
        body.append(f"y = gl.max(y, {d.random.randrange(rank)})")
    elif use == "twice":
        body.append("y = y * y + 1")
    body += [
        "if y.type.is_block():",
        "    gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))",
        "else:",
        "    gl.store(p, y.to(gl.float32))",
    ]
    return kernel(body, s.end())


FAMILIES: dict[str, Callable[[Draw], str]] = {"fp4": unpacked}
