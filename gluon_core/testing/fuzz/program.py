"""Whole kernels made at random, and what they mean in NumPy.

A program is a list of statements over int32 tiles, so that every result is exact: each says the
lines of a kernel that it is, and what it does to the values. Its operands are numbers of earlier
values; where one was taken out, the tile that was loaded first stands in.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Callable, Sequence

import numpy as np

__all__ = ["Program", "Statement", "generate"]

PROGRAMS = 3
_OPS: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce,
}  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """One step of a program.

    Args:
        kind: which, a key of `_TEXTS`.
        number: of the value that it makes.
        one, other: numbers of the values that it takes.
        choice: what else was chosen: an operator, a layout, a bound.
    """

    kind: str
    number: int
    one: int
    other: int
    choice: str = ""


@dataclass(frozen=True)
class Program:
    """A kernel.

    Args:
        seed: that it was made of.
        size: elements of a tile.
        statements: in order.
    """

    seed: int
    size: int
    statements: tuple[Statement, ...] = field(default=())

    def without(self, gone: Sequence[int]) -> Program:
        """The program with statements at some positions left out."""
        kept = [s for i, s in enumerate(self.statements) if i not in gone]
        return replace(self, statements=tuple(kept))

    # ---- as a kernel ----------------------------------------------------------------------------

    @property
    def partitions(self) -> bool:
        return any(s.kind == "roles" for s in self.statements)

    @property
    def source(self) -> str:
        """The text of a module with `kernel(a, out, bins, product, WARP)`."""
        known = {0}
        body: list[str] = []
        for s in self.statements:
            text = _TEXTS[s.kind].format(
                v=f"v{s.number}", n=s.number, a=f"v{s.one if s.one in known else 0}",
                b=f"v{s.other if s.other in known else 0}", c=s.choice, N=self.size,
            )  # fmt: skip
            body += text.splitlines()
            known.add(s.number)
        body.append(
            "gl.store(out + pid * N + o, " + " ^ ".join(f"v{n}" for n in sorted(known)) + ")"
        )
        return _MODULE.format(N=self.size, body="\n".join("    " + line for line in body))

    # ---- in NumPy -------------------------------------------------------------------------------

    def arguments(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        return {
            "a": rng.integers(-1000, 1000, (PROGRAMS + 1) * self.size, np.int32),
            "out": np.zeros(PROGRAMS * self.size, np.int32),
            "bins": np.zeros(64, np.int32),
            "product": np.zeros(PROGRAMS * 1024, np.float32),
        }

    def meaning(self) -> dict[str, np.ndarray]:
        """The arguments after a launch."""
        args = self.arguments()
        with np.errstate(over="ignore"):
            for pid in range(PROGRAMS):
                self._run(args, pid)
        return args

    def _run(self, args: dict[str, np.ndarray], pid: int) -> None:
        size, o = self.size, np.arange(self.size)
        a = args["a"]
        values = {0: a[pid * size :][:size].copy()}
        for s in self.statements:
            one, other = (values.get(n, values[0]) for n in (s.one, s.other))
            made = one
            if s.kind == "binary":
                made = _OPS[s.choice](one, other)
            elif s.kind == "load":
                made = np.where(one > 0, a[pid * size + int(s.choice) :][:size], -1)
            elif s.kind == "reduce":
                made = other + _REDUCTIONS[s.choice](one)
            elif s.kind == "scan":
                made = np.cumsum(one, dtype=np.int32)
            elif s.kind == "select":
                made = np.where(one > other, one, other - 1)
            elif s.kind == "loop":
                for i in range(int(s.choice)):
                    made = made * 3 + other + i
            elif s.kind == "branch":
                made = one + 7 if pid % 2 else other - 7
            elif s.kind == "while":
                made = one + 5 * (pid + 1)
            elif s.kind == "copy":
                made = a[pid * size + int(s.choice) :][:size]
            elif s.kind == "gather":
                made = one[o ^ 1]
            elif s.kind == "atomic":
                np.add.at(args["bins"], one & 31, other)
            elif s.kind == "mma":
                x = (one[:1].item() & 3) + np.arange(1024).reshape(32, 32) % 5
                args["product"][pid * 1024 :][:1024] += (x @ x.T).ravel()
            elif s.kind == "roles":
                made = one * 2 + other
            values[s.number] = made.astype(np.int32)
        whole = np.bitwise_xor.reduce(list(values.values()))
        args["out"][pid * size :][:size] = whole


_MODULE = """\
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def twice(there, pid, o, M: gl.constexpr):
    gl.store(there + pid * M + o, 2 * gl.load(there + pid * M + o))


@gluon.jit
def idle(there):
    pass


@gluon.jit
def kernel(a, out, bins, product, WARP: gl.constexpr):
    N: gl.constexpr = {N}
    L0: gl.constexpr = gl.BlockedLayout([1], [WARP], [4], [0])
    L1: gl.constexpr = gl.BlockedLayout([4], [WARP], [4], [0])
    L2: gl.constexpr = gl.BlockedLayout([2], [WARP], [4], [0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [0])
    pid = gl.program_id(0)
    o = gl.arange(0, N, L0)
    v0 = gl.load(a + pid * N + o)
{body}
"""

_TEXTS = {
    "binary": "{v} = {a} {c} {b}",
    "load": "{v} = gl.load(a + pid * N + {c} + o, mask={a} > 0, other=-1)",
    "reduce": "{v} = {b} + gl.{c}({a}, 0)",
    "scan": "{v} = gl.cumsum({a}, 0)",
    "select": "{v} = gl.where({a} > {b}, {a}, {b} - 1)",
    "convert": "{v} = gl.convert_layout(gl.convert_layout({a}, {c}) + 0, L0)",
    "shared": (
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], {c}, {a})\n"
        "{v} = gl.convert_layout(s{n}.load(L1), L0)"
    ),
    "ring": (
        "s{n} = gl.allocate_shared_memory(gl.int32, [2, N], {c})\n"
        "s{n}.index(0).store({b})\n"
        "s{n}.index(1).store({a})\n"
        "{v} = s{n}.index(1).load(L0)"
    ),
    "gather": "{v} = gl.gather({a}, o ^ 1, 0)",
    "loop": "{v} = {a}\nfor i{n} in range({c}):\n    {v} = {v} * 3 + {b} + i{n}",
    "branch": "if pid % 2 == 1:\n    {v} = {a} + 7\nelse:\n    {v} = {b} - 7",
    "while": "{v} = {a}\nk{n} = 0\nwhile k{n} <= pid:\n    {v} += 5\n    k{n} += 1",
    "copy": (
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], FLAT)\n"
        "gl.portable.async_copy(s{n}, a, pid * N + {c} + o)\n"
        "gl.portable.commit()\n"
        "gl.portable.wait(0)\n"
        "{v} = s{n}.load(L0)"
    ),
    "atomic": "{v} = {a}\ngl.atomic_add(bins + ({a} & 31), {b})",
    "mma": (
        "{v} = {a}\n"
        "LAYOUTS{n}: gl.constexpr = gl.portable.mma_layouts(32, 32, 32, gl.float16, gl.float16, gl.float32)\n"
        "T{n}: gl.constexpr = gl.BlockedLayout([1, 4], [WARP // 8, 8], [4, 1], [1, 0])\n"
        "r{n} = gl.arange(0, 32, gl.SliceLayout(1, T{n}))[:, None]\n"
        "c{n} = gl.arange(0, 32, gl.SliceLayout(0, T{n}))[None, :]\n"
        "base{n} = gl.sum(gl.where(o == 0, {a} & 3, 0), 0)\n"
        "x{n} = (base{n} + (r{n} * 32 + c{n}) % 5).to(gl.float16)\n"
        "d{n} = gl.portable.mma(\n"
        "    gl.convert_layout(x{n}, LAYOUTS{n}.a),\n"
        "    gl.convert_layout(gl.permute(x{n}, (1, 0)), LAYOUTS{n}.b),\n"
        "    gl.zeros([32, 32], gl.float32, LAYOUTS{n}.accumulator),\n"
        ")\n"
        "e{n} = gl.convert_layout(d{n}, T{n})\n"
        "p{n} = product + pid * 1024 + r{n} * 32 + c{n}\n"
        "gl.store(p{n}, gl.load(p{n}) + e{n})"
    ),
    "roles": (
        "gl.store(out + pid * N + o, {a})\n"
        "gl.warp_specialize([(twice, (out, pid, o, N)), (idle, (out,))], [4], [24])\n"
        "{v} = gl.load(out + pid * N + o) + {b}"
    ),
}


def generate(seed: int, partitions: bool = True, products: bool = True) -> Program:
    """A program of 3 to 14 statements.

    Args:
        partitions: whether it may have `gl.warp_specialize`.
        products: whether it may have `gl.portable.mma`.
    """
    rng = random.Random(seed)
    size = rng.choice((128, 256, 512))
    kinds = [kind for kind in _TEXTS if kind not in ("roles", "mma")]
    kinds += ["roles"] * partitions + ["mma"] * products
    choices: dict[str, Callable[[], str]] = {
        "binary": lambda: rng.choice(list(_OPS)),
        "load": lambda: str(rng.randint(0, size)),
        "copy": lambda: str(4 * rng.randint(0, size // 4)),
        "reduce": lambda: rng.choice(list(_REDUCTIONS)),
        "convert": lambda: rng.choice(("L1", "L2")),
        "shared": lambda: rng.choice(("FLAT", "SWIZZLED")),
        "ring": lambda: rng.choice(("FLAT", "SWIZZLED")),
        "loop": lambda: str(rng.randint(0, 3)),
    }
    statements: list[Statement] = []
    once: set[str] = set()
    for number in range(1, rng.randint(3, 14) + 1):
        kind = rng.choice([k for k in kinds if k not in once])
        once |= {kind} & {"roles", "mma"}
        choice = choices.get(kind, lambda: "")()
        one, other = rng.randrange(number), rng.randrange(number)
        statements.append(Statement(kind, number, one, other, choice))
    return Program(seed, size, tuple(statements))
