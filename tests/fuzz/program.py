"""Whole kernels made at random, and their meaning in NumPy.

A program is a list of statements, of which some hold others: loops, branches. Their operands are
numbers of values; where one was taken out, the tile that was loaded first stands in.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Iterator, Sequence

import numpy as np

from tests.fuzz.statements import BLOCKS, KINDS, Scene

__all__ = ["Program", "Statement", "generate"]

PROGRAMS = 3
_ONCE = {"roles", "mma", "mma-shared", "pipe", "tma"}  # expensive, or of shared memory
_ATOMICS = ("add", "max", "min", "xor", "or", "and")


@dataclass(frozen=True)
class Statement:
    """One step of a program.

    Args:
        kind: which, a key of `KINDS` or of `BLOCKS`.
        number: of the value that it makes.
        one, other: numbers of the values that it takes.
        choice: what else was chosen: an operator, a layout, a bound.
        body: the statements within.
    """

    kind: str
    number: int
    one: int
    other: int
    choice: str = ""
    body: tuple[Statement, ...] = ()


def _walk(statements: Sequence[Statement]) -> Iterator[Statement]:
    for s in statements:
        yield s
        yield from _walk(s.body)


@dataclass(frozen=True)
class Program:
    """A kernel.

    Args:
        seed: that it was made of.
        size: elements of a tile.
        atomic: the kind of its atomics.
        statements: in order.
    """

    seed: int
    size: int
    atomic: str = "add"
    statements: tuple[Statement, ...] = field(default=())

    @property
    def all(self) -> list[Statement]:
        """Every statement, each before those within it."""
        return list(_walk(self.statements))

    def without(self, gone: Collection[int]) -> Program:
        """The program with statements at some positions of `all` left out, and what is within them."""
        numbers = {s.number for i, s in enumerate(self.all) if i in gone}

        def kept(statements: Sequence[Statement]) -> tuple[Statement, ...]:
            left = (s for s in statements if s.number not in numbers)
            return tuple(replace(s, body=kept(s.body)) for s in left)

        return replace(self, statements=kept(self.statements))

    def needs(self) -> set[str]:
        """Return the capabilities that it needs."""
        return {KINDS[s.kind].needs for s in self.all if s.kind in KINDS} - {""}

    # ---- as a kernel ----------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The text of a module with `kernel(a, out, bins, product, tiles, WARP)`."""
        known = {0}
        body = self._lines(self.statements, known)
        body.append(
            "gl.store(out + pid * N + o, " + " ^ ".join(f"v{n}" for n in sorted(known)) + ")"
        )
        tma = _TMA if "tma" in self.needs() else ""
        return _MODULE.format(N=self.size, tma=tma, body="\n".join("    " + line for line in body))

    def _lines(self, statements: Sequence[Statement], known: set[int]) -> list[str]:
        lines: list[str] = []
        for s in statements:
            block = s.kind in BLOCKS
            text = BLOCKS[s.kind] if block else KINDS[s.kind].text
            lines += text.format(
                v=f"v{s.number}", n=s.number, a=f"v{s.one if s.one in known else 0}",
                b=f"v{s.other if s.other in known else 0}", c=s.choice, N=self.size,
                atomic=self.atomic,
            ).splitlines()  # fmt: skip
            known.add(s.number)
            if block:
                within = set(known)
                inner = self._lines(s.body, within)
                inner.append(f"v{s.number} = v{s.number} * 3 + v{_last(s)}")
                if s.kind == "while":
                    inner.append(f"k{s.number} += 1")
                lines += ["    " + line for line in inner]
        return lines

    # ---- in NumPy -------------------------------------------------------------------------------

    def arguments(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        return {
            "a": rng.integers(-1000, 1000, (PROGRAMS + 1) * self.size + 8, np.int32),
            "out": np.zeros(PROGRAMS * self.size, np.int32),
            "bins": np.full(64, 5, np.int32),
            "product": np.zeros(PROGRAMS * 1024, np.float32),
            "tiles": np.zeros(PROGRAMS * self.size, np.int32),
        }

    def meaning(self) -> dict[str, np.ndarray]:
        """The arguments after a launch."""
        args = self.arguments()
        with np.errstate(over="ignore"):
            for pid in range(PROGRAMS):
                scene = Scene(args, pid, self.size, self.atomic)
                values: dict[int, Any] = {0: scene.source(0).copy()}
                _run(scene, self.statements, values)
                whole = np.bitwise_xor.reduce(list(values.values()))
                args["out"][pid * self.size :][: self.size] = whole
        return args


def _last(s: Statement) -> int:
    """The value that a block adds in each round."""
    return s.body[-1].number if s.body else s.number


def _run(scene: Scene, statements: Sequence[Statement], values: dict[int, Any]) -> None:
    for s in statements:
        one, other = (values.get(n, values[0]) for n in (s.one, s.other))
        if s.kind in KINDS:
            result = KINDS[s.kind].means(scene, one, other, s.choice)
            values[s.number] = np.asarray(result).astype(np.int32)
            continue
        values[s.number] = one
        for _ in range(_rounds(scene, s, other)):
            within = dict(values)
            _run(scene, s.body, within)
            values[s.number] = (within[s.number] * 3 + within[_last(s)]).astype(np.int32)


def _rounds(scene: Scene, s: Statement, other: np.ndarray) -> int:
    if s.kind == "while":
        return scene.pid + 1
    if s.kind == "branch":
        return int(scene.pid % 2 == int(s.choice))
    if s.kind == "inside":
        return int(np.add.reduce(other, dtype=np.int32) > 0)
    return int(s.choice)


_TMA = "from gluon_core.language.nvidia.hopper import mbarrier, tma\n"
_MODULE = """\
import gluon_core as gluon
from gluon_core import language as gl
{tma}

@gluon.jit
def twice(there, pid, o, M: gl.constexpr):
    gl.store(there + pid * M + o, 2 * gl.load(there + pid * M + o))


@gluon.jit
def idle(there):
    pass


@gluon.jit
def larger(a, b):
    return gl.where(a > b, a, b)


@gluon.jit
def both(a, b, c, d):
    return gl.maximum(a, c), gl.minimum(b, d)


@gluon.jit
def mixed(a, b, C: gl.constexpr):
    if C > 2:
        return a * 2 - b
    else:
        return a - b * 2


@gluon.jit(noinline=True)
def apart(a, b):
    return (a | 1) - b


@gluon.jit
def fill(a, ring, full, empty, pid, M: gl.constexpr, WARP: gl.constexpr, C: gl.constexpr):
    at = gl.arange(0, M, gl.BlockedLayout([1], [WARP], [4], [0]))
    for i in range(C):
        mbarrier.wait(empty.index(i % 2), (i // 2 & 1) ^ 1)
        ring.index(i % 2).store(gl.load(a + pid * M + i + at))
        mbarrier.arrive(full.index(i % 2))


@gluon.jit
def drain(out, ring, full, empty, pid, M: gl.constexpr, WARP: gl.constexpr, C: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [4], [0])
    at = gl.arange(0, M, layout)
    total = gl.load(out + pid * M + at)
    for i in range(C):
        mbarrier.wait(full.index(i % 2), i // 2 & 1)
        total = total * 3 + ring.index(i % 2).load(layout)
        mbarrier.arrive(empty.index(i % 2))
    gl.store(out + pid * M + at, total)


@gluon.jit
def kernel(a, out, bins, product, tiles, WARP: gl.constexpr):
    N: gl.constexpr = {N}
    L0: gl.constexpr = gl.BlockedLayout([1], [WARP], [4], [0])
    L1: gl.constexpr = gl.BlockedLayout([4], [WARP], [4], [0])
    L2: gl.constexpr = gl.BlockedLayout([2], [WARP], [4], [0])
    L3: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [WARP // 4, 4], [2, 2], [0, 1]))
    L4: gl.constexpr = gl.BlockedLayout([2], [WARP], [4], [0])
    P0: gl.constexpr = gl.BlockedLayout([1, 2], [WARP // 8, 8], [4, 1], [1, 0])
    P1: gl.constexpr = gl.BlockedLayout([2, 1], [8, WARP // 8], [1, 4], [0, 1])
    P2: gl.constexpr = gl.BlockedLayout([4, 4], [4, WARP // 4], [2, 2], [1, 0])
    P3: gl.constexpr = gl.BlockedLayout([1, 1], [WARP // 4, 4], [2, 2], [1, 0])
    P4: gl.constexpr = gl.BlockedLayout([1, 1], [WARP // 8, 8], [4, 1], [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [0])
    PADDED: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 4]], [N], [0])
    WIDE: gl.constexpr = gl.SwizzledSharedLayout(2, 2, 4, [1, 0])
    PLANE: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 4]], [16, N // 16], [1, 0])
    pid = gl.program_id(0)
    o = gl.arange(0, N, L0)
    v0 = gl.load(a + pid * N + o)
{body}
"""


def generate(
    seed: int, partitions: bool = True, products: bool = True, tma: bool = False
) -> Program:
    """A program of 3 to 14 statements, and those within loops and branches.

    Args:
        partitions: whether it may have `gl.warp_specialize`.
        products: whether it may have `gl.portable.mma`.
        tma: whether it may have copies of the TMA, and partitions that hand tiles on by barriers.
    """
    rng = random.Random(seed)
    size = rng.choice((128, 256, 512))
    held = {"": True, "partitions": partitions, "products": products, "tma": tma}
    kinds = [name for name, kind in KINDS.items() if held[kind.needs]]
    once: set[str] = set()
    numbers = iter(range(1, 1000))

    def draw(known: Sequence[int], depth: int) -> Statement:
        number = next(numbers)
        one, other = rng.choice(known), rng.choice(known)
        if depth < 2 and rng.random() < 0.2:
            kind = rng.choice(list(BLOCKS))
            choice = {"branch": "01", "unrolled": "12", "loop": "0123"}.get(kind, " ")
            seen = [*known, number]
            body: list[Statement] = []
            for _ in range(rng.randint(1, 3)):
                body.append(draw(seen, depth + 1))
                seen.append(body[-1].number)
            return Statement(kind, number, one, other, rng.choice(choice).strip(), tuple(body))
        banned = once | (_ONCE if depth else set())
        kind = rng.choice([k for k in kinds if k not in banned])
        if kind in _ONCE:
            once.update({kind} if kind not in ("roles", "pipe") else {"roles", "pipe"})
        return Statement(kind, number, one, other, KINDS[kind].chooses(rng, size))

    statements: list[Statement] = []
    atomic = rng.choice(_ATOMICS)
    known = [0]
    for _ in range(rng.randint(3, 14)):
        statements.append(draw(known, 0))
        known.append(statements[-1].number)
    return Program(seed, size, atomic, tuple(statements))
