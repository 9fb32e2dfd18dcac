"""A module for the body of a kernel: its operands, layouts and arguments."""

from __future__ import annotations

import textwrap

CASES: dict[str, tuple[str, tuple[int, int]]] = {}

# Names that bodies use: pointers to each dtype family, a size, layouts, and 1-d and 2-d operands.
_HEAD = """
L1: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
L2: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
ROW: gl.constexpr = gl.SliceLayout(1, L2)
COL: gl.constexpr = gl.SliceLayout(0, L2)
SH1: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
SH2: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
"""
PRELUDE = {
    "o": "o = gl.arange(0, 128, layout=L1)",
    "m": "m = o < n",
    "x": "x = gl.load(fp + o)",
    "y": "y = gl.load(fp + 128 + o)",
    "h": "h = gl.load(hp + o)",
    "bf": "bf = gl.load(bp + o)",
    "i": "i = gl.load(ip + o)",
    "j": "j = gl.load(ip + 128 + o)",
    "u": "u = gl.load(up + o)",
    "l": "l = gl.load(lp + o)",
    "c": "c = gl.load(cp + o)",
    "d": "d = gl.load(dp + o)",
    "rows": "rows = gl.arange(0, 32, layout=ROW)",
    "cols": "cols = gl.arange(0, 16, layout=COL)",
    "oo": "oo = rows[:, None] * 16 + cols[None, :]",
    "xx": "xx = gl.load(fp + oo)",
    "ii": "ii = gl.load(ip + oo)",
}
_NEEDS = {
    **{name: ("o",) for name in ("m", "x", "y", "h", "bf", "i", "j", "u", "l", "c", "d")},
    "oo": ("rows", "cols"),
    "xx": ("oo",),
    "ii": ("oo",),
}
_ARGS = (
    "ARGS = (ptr(gl.float32), ptr(gl.float16), ptr(gl.bfloat16), ptr(gl.int32), ptr(gl.uint32), "
    "ptr(gl.int64), ptr(gl.int8), ptr(gl.float64), 100, 2.5)\n"
)


def _operands(uses: str) -> list[str]:
    ordered: list[str] = []

    def need(name: str) -> None:
        for other in _NEEDS.get(name, ()):
            need(other)
        if name not in ordered:
            ordered.append(name)

    for name in uses.split():
        need(name)
    return [PRELUDE[name] for name in ordered]


def source_of(uses: str, body: str, before: str = "") -> str:
    """A module whose `kernel` runs `body` after loading the operands named in `uses`."""
    lines = _operands(uses) + textwrap.dedent(body).strip().split("\n")
    kernel = "@gluon.jit\ndef kernel(fp, hp, bp, ip, up, lp, cp, dp, n, f):\n"
    text = kernel + textwrap.indent("\n".join(lines), "    ") + "\n"
    head = "\n".join(
        line.replace(": gl.constexpr = ", " = gl.constexpr(") + ")"
        for line in _HEAD.strip().split("\n")
    )
    return f"{head}\n{textwrap.dedent(before)}\n{text}{_ARGS}"


def case(
    name: str, uses: str, body: str, before: str = "", since: tuple[int, int] = (3, 6)
) -> None:
    """Add the kernel `body`."""
    assert name not in CASES, name
    CASES[name] = (source_of(uses, body, before), since)


def each(
    name: str, uses: str, *bodies: str, since: tuple[int, int] = (3, 6), before: str = ""
) -> None:
    """One kernel for each of `bodies`."""
    for number, body in enumerate(bodies):
        case(f"{name}-{number}" if len(bodies) > 1 else name, uses, body, before, since)
