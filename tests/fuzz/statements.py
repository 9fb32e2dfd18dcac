"""The kinds of statements: the lines of a kernel that each is, and its meaning in NumPy.

A value is an int32 tile of N elements in layout L0, so that every result is exact. In a text, {v} is
the value that is made, {a} and {b} are those that are taken, {n} is its number and {c} what was chosen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable, Mapping

import numpy as np

__all__ = ["BLOCKS", "KINDS", "Kind", "Scene"]

Array = np.ndarray
_OPS: dict[str, Callable[..., Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce,
    "xor_sum": np.bitwise_xor.reduce,
}  # fmt: skip
_ATOMICS: dict[str, np.ufunc] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor,
    "or": np.bitwise_or, "and": np.bitwise_and,
}  # fmt: skip
_NARROW = {
    "int8": np.int8,
    "int16": np.int16,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint32": np.uint32,
}
_FLAT = ("FLAT", "SWIZZLED", "PADDED")
_PLANES = ("P0", "P1", "P2")


@dataclass(frozen=True)
class Scene:
    """The surroundings of a statement.

    Args:
        args: the kernel's arguments by name.
        pid: of the program.
        size: elements of a tile.
        atomic: the one kind of atomics of the kernel, for others would make the order matter.
    """

    args: Mapping[str, Array]
    pid: int
    size: int
    atomic: str = "add"

    def source(self, shift: int) -> Array:
        start = self.pid * self.size + shift
        values: Array = self.args["a"][start : start + self.size]
        return values


@dataclass(frozen=True)
class Kind:
    """A kind of statement.

    Args:
        text: its lines.
        means: (scene, a, b, choice) -> the value.
        chooses: (random, size) -> what {c} is.
        needs: what it asks of targets: "partitions", "products", "tma".
    """

    text: str
    means: Callable[[Scene, Array, Array, str], Array]
    chooses: Callable[[random.Random, int], str] = lambda rng, size: ""
    needs: str = ""


def _one_of(*choices: str) -> Callable[[random.Random, int], str]:
    return lambda rng, size: rng.choice(choices)


def _atomic(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    _ATOMICS[scene.atomic].at(scene.args["bins"], a & 31, b)
    return a


def _product(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    x = (a[:1].item() & 3) + np.arange(1024).reshape(32, 32) % 5
    scene.args["product"][scene.pid * 1024 :][:1024] += (x @ x.T).ravel()
    return a


def _shared_product(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    x = (a[:1].item() & 3) + np.arange(4096).reshape(64, 64) % 3
    product = (x @ x.T)[:32, :32]
    scene.args["product"][scene.pid * 1024 :][:1024] += product.ravel()
    return a


def _tile(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    tile = scene.source(int(choice))
    scene.args["tiles"][scene.pid * scene.size :][: scene.size] = tile
    result: Array = tile + b
    return result


def _rows(value: Array) -> Array:
    return value.reshape(16, -1)


def _histogram(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    counts = np.bincount(a & 63, minlength=64)
    counts_of: Array = a + counts[np.arange(scene.size) & 63]
    return counts_of


def _narrow(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    kind = _NARROW[choice]
    total: Array = a.astype(kind) + b.astype(kind)
    return total


_MMA = """\
{v} = {a}
LAYOUTS{n}: gl.constexpr = gl.portable.mma_layouts(32, 32, 32, gl.float16, gl.float16, gl.float32)
T{n}: gl.constexpr = gl.BlockedLayout([1, 4], [WARP // 8, 8], [4, 1], [1, 0])
r{n} = gl.arange(0, 32, gl.SliceLayout(1, T{n}))[:, None]
c{n} = gl.arange(0, 32, gl.SliceLayout(0, T{n}))[None, :]
base{n} = gl.sum(gl.where(o == 0, {a} & 3, 0), 0)
x{n} = (base{n} + (r{n} * 32 + c{n}) % 5).to(gl.float16)
d{n} = gl.portable.mma(
    gl.convert_layout(x{n}, LAYOUTS{n}.a),
    gl.convert_layout(gl.permute(x{n}, (1, 0)), LAYOUTS{n}.b),
    gl.zeros([32, 32], gl.float32, LAYOUTS{n}.accumulator),
)
e{n} = gl.convert_layout(d{n}, T{n})
p{n} = product + pid * 1024 + r{n} * 32 + c{n}
gl.store(p{n}, gl.load(p{n}) + e{n})"""
_MMA_SHARED = """\
{v} = {a}
LAYOUTS{n}: gl.constexpr = gl.portable.mma_layouts(
    64, 64, 64, gl.float16, gl.float16, operands="shared"
)
T{n}: gl.constexpr = gl.BlockedLayout([1, 4], [WARP // 8, 8], [4, 1], [1, 0])
r{n} = gl.arange(0, 64, gl.SliceLayout(1, T{n}))[:, None]
c{n} = gl.arange(0, 64, gl.SliceLayout(0, T{n}))[None, :]
base{n} = gl.sum(gl.where(o == 0, {a} & 3, 0), 0)
x{n} = (base{n} + (r{n} * 64 + c{n}) % 3).to(gl.float16)
one{n} = gl.allocate_shared_memory(gl.float16, [64, 64], LAYOUTS{n}.a_shared, x{n})
two{n} = gl.allocate_shared_memory(
    gl.float16, [64, 64], LAYOUTS{n}.b_shared, gl.permute(x{n}, (1, 0))
)
gl.portable.fence()
acc{n} = gl.portable.mma(one{n}, two{n}, gl.portable.accumulator(LAYOUTS{n}), is_async=True)
acc{n} = gl.portable.mma_wait(acc{n}, deps=[one{n}, two{n}])
e{n} = gl.convert_layout(gl.portable.read(acc{n}), T{n})
p{n} = product + pid * 1024 + r{n} * 32 + c{n}
inside{n} = (r{n} < 32) & (c{n} < 32)
gl.store(p{n}, gl.load(p{n}, mask=inside{n}) + e{n}, mask=inside{n})"""
_TMA = """\
S{n}: gl.constexpr = gl.NVMMASharedLayout(32, 32, 2)
f{n} = tma.make_tensor_descriptor(
    a + pid * N + {c}, [N // 8, 8], [8, 1], [N // 8, 8], S{n}
)
g{n} = tma.make_tensor_descriptor(tiles + pid * N, [N // 8, 8], [8, 1], [N // 8, 8], S{n})
s{n} = gl.allocate_shared_memory(gl.int32, [N // 8, 8], S{n})
w{n} = mbarrier.allocate_mbarrier()
mbarrier.init(w{n}, 1)
mbarrier.expect(w{n}, N * 4)
tma.async_load(f{n}, [0, 0], w{n}, s{n})
mbarrier.wait(w{n}, 0)
mbarrier.invalidate(w{n})
{v} = gl.convert_layout(gl.ravel(s{n}.load(P4)), L0) + {b}
tma.async_store(g{n}, [0, 0], s{n})
tma.store_wait(0)"""
_PIPE = """\
s{n} = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
full{n} = mbarrier.allocate_mbarrier(batch=2)
empty{n} = mbarrier.allocate_mbarrier(batch=2)
for i{n} in gl.static_range(2):
    mbarrier.init(full{n}.index(i{n}), 1)
    mbarrier.init(empty{n}.index(i{n}), 1)
gl.store(out + pid * N + o, {a})
gl.warp_specialize(
    [(drain, (out, s{n}, full{n}, empty{n}, pid, N, WARP, {c})),
     (fill, (a, s{n}, full{n}, empty{n}, pid, N, WARP, {c}))], [4], [48],
)
for i{n} in gl.static_range(2):
    mbarrier.invalidate(full{n}.index(i{n}))
    mbarrier.invalidate(empty{n}.index(i{n}))
{v} = gl.load(out + pid * N + o) + {b}"""


def _pipe(scene: Scene, a: Array, b: Array, choice: str) -> Array:
    values = a
    for i in range(int(choice)):
        values = values * 3 + scene.source(i)
    result: Array = values + b
    return result


KINDS: dict[str, Kind] = {
    "binary": Kind("{v} = {a} {c} {b}", lambda s, a, b, c: _OPS[c](a, b), _one_of(*_OPS)),
    "load": Kind(
        "{v} = gl.load(a + pid * N + {c} + o, mask={a} > 0, other=-1)",
        lambda s, a, b, c: np.where(a > 0, s.source(int(c)), -1),
        lambda rng, size: str(rng.randint(0, size)),
    ),
    "reduce": Kind(
        "{v} = {b} + gl.{c}({a}, 0)", lambda s, a, b, c: b + _REDUCTIONS[c](a),
        _one_of(*_REDUCTIONS),
    ),
    "combine": Kind(
        "{v} = {b} - gl.reduce({a}, 0, larger)", lambda s, a, b, c: b - np.max(a)
    ),
    "pair": Kind(
        "k{n}, l{n} = gl.reduce(({a}, {b}), 0, both)\n{v} = {a} + k{n} - l{n}",
        lambda s, a, b, c: a + np.max(a) - np.min(b),
    ),
    "scan": Kind("{v} = gl.cumsum({a}, 0)", lambda s, a, b, c: np.cumsum(a, dtype=np.int32)),
    "running": Kind(
        "{v} = gl.associative_scan({a}, 0, larger, reverse={c})",
        lambda s, a, b, c: np.maximum.accumulate(a[::-1])[::-1]
        if c == "True" else np.maximum.accumulate(a),
        _one_of("True", "False"),
    ),
    "select": Kind(
        "{v} = gl.where({a} > {b}, {a}, {b} - 1)", lambda s, a, b, c: np.where(a > b, a, b - 1)
    ),
    "clamp": Kind(
        "{v} = gl.minimum(gl.maximum({a}, {b}), 1000)",
        lambda s, a, b, c: np.minimum(np.maximum(a, b), 1000),
    ),
    "divide": Kind(
        "{v} = {a} // {c} + {b} % {c}",
        lambda s, a, b, c: np.trunc(a / int(c)).astype(np.int32) + np.fmod(b, int(c)),
        _one_of("2", "3", "7", "16", "1000"),
    ),
    "shift": Kind(
        "{v} = ({a} << {c}) ^ ({b} >> {c})", lambda s, a, b, c: (a << int(c)) ^ (b >> int(c)),
        _one_of("1", "5", "31"),
    ),
    "narrow": Kind(
        "{v} = ({a}.to(gl.{c}) + {b}.to(gl.{c})).to(gl.int32)", _narrow, _one_of(*_NARROW)
    ),
    "float": Kind(
        "{v} = (({a} & 1023).to(gl.{c}) * 2.0).to(gl.int32)", lambda s, a, b, c: (a & 1023) * 2,
        _one_of("float16", "float32", "float64"),
    ),
    "call": Kind("{v} = mixed({a}, {b}, {c})",
        lambda s, a, b, c: (a * 2 - b) if int(c) > 2 else (a - b * 2), _one_of("1", "5")),
    "apart": Kind(
        "{v} = {a} + apart(pid, {c})", lambda s, a, b, c: a + ((s.pid | 1) - int(c)),
        _one_of("0", "9"),
    ),
    "convert": Kind(
        "{v} = gl.convert_layout(gl.convert_layout({a}, {c}) + 0, L0)", lambda s, a, b, c: a,
        _one_of("L1", "L2", "L3"),
    ),
    "turn": Kind(
        "t{n} = gl.convert_layout(gl.reshape({a}, [16, N // 16]), {c})\n"
        "{v} = gl.convert_layout(gl.ravel(gl.permute(t{n}, (1, 0))), L0)",
        lambda s, a, b, c: _rows(a).T.ravel(), _one_of(*_PLANES),
    ),
    "rows": Kind(
        "t{n} = gl.convert_layout(gl.reshape({a}, [16, N // 16]), {c})\n"
        "k{n} = t{n} - gl.sum(t{n}, 1)[:, None] + gl.max(t{n}, 0)[None, :]\n"
        "{v} = gl.convert_layout(gl.ravel(k{n}), L0)",
        lambda s, a, b, c: (
            _rows(a) - _rows(a).sum(1, dtype=np.int32)[:, None] + _rows(a).max(0)[None, :]
        ).ravel(), _one_of(*_PLANES),
    ),
    "join": Kind(
        "t{n} = gl.convert_layout(gl.ravel(gl.join({a}, {b})), L4)\n"
        "k{n}, l{n} = gl.split(gl.reshape(t{n}, [N, 2]))\n"
        "{v} = gl.convert_layout(k{n} * 3 - l{n}, L0)",
        lambda s, a, b, c: a * 3 - b,
    ),
    "shared": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], {c}, {a})\n"
        "{v} = gl.convert_layout(s{n}.load(L1), L0)",
        lambda s, a, b, c: a, _one_of(*_FLAT),
    ),
    "ring": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [2, N], {c})\n"
        "s{n}.index(0).store({b})\n"
        "s{n}.index(1).store({a})\n"
        "{v} = s{n}.index(1).load(L0)",
        lambda s, a, b, c: a, _one_of("FLAT", "SWIZZLED"),
    ),
    "again": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], {c}, {a})\n"
        "{v} = gl.convert_layout(s{n}.load(L1), L0)\n"
        "s{n}.store({b})\n"
        "{v} += gl.convert_layout(s{n}.load(L2), L0)",
        lambda s, a, b, c: a + b, _one_of(*_FLAT),
    ),
    "sides": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [16, N // 16], {c})\n"
        "s{n}.store(gl.convert_layout(gl.reshape({a}, [16, N // 16]), P0))\n"
        "t{n} = s{n}.permute((1, 0)).load(P3)\n"
        "{v} = gl.convert_layout(gl.ravel(t{n}), L0)",
        lambda s, a, b, c: _rows(a).T.ravel(), _one_of("WIDE", "PLANE"),
    ),
    "slices": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], FLAT, {a})\n"
        "t{n} = s{n}.slice(N // 2, N // 2).load(L0)\n"
        "s{n}.slice(0, N // 2).store(t{n})\n"
        "{v} = s{n}.load(L0)",
        lambda s, a, b, c: np.concatenate([a[s.size // 2 :]] * 2),
    ),
    "gather": Kind(
        "{v} = gl.gather({a}, o ^ {c}, 0)", lambda s, a, b, c: a[np.arange(s.size) ^ int(c)],
        _one_of("1", "4", "33", "96"),
    ),
    "pick": Kind(
        "{v} = gl.gather({a}, {b} & (N - 1), 0)", lambda s, a, b, c: a[b & (s.size - 1)]
    ),
    "histogram": Kind(
        "h{n} = gl.histogram({a} & 63, 64, layout=L0)\n"
        "{v} = {a} + gl.gather(h{n}, o & 63, 0)", _histogram,
    ),
    "copy": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [N], FLAT)\n"
        "gl.portable.async_copy(s{n}, a, pid * N + {c} + o)\n"
        "gl.portable.commit()\n"
        "gl.portable.wait(0)\n"
        "{v} = s{n}.load(L0)",
        lambda s, a, b, c: s.source(int(c)), lambda rng, size: str(4 * rng.randint(0, size // 4)),
    ),
    "pipeline": Kind(
        "s{n} = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)\n"
        "gl.portable.async_copy(s{n}.index(0), a, pid * N + o)\n"
        "gl.portable.commit()\n"
        "{v} = {a}\n"
        "for i{n} in range({c}):\n"
        "    gl.portable.async_copy(s{n}.index((i{n} + 1) % 2), a, pid * N + i{n} + 1 + o)\n"
        "    gl.portable.commit()\n"
        "    gl.portable.wait(1)\n"
        "    {v} = {v} * 3 + s{n}.index(i{n} % 2).load(L0)\n"
        "gl.portable.wait(0)",
        lambda s, a, b, c: _pipe(s, a, np.int32(0), c), _one_of("1", "2", "3"),
    ),
    "atomic": Kind("{v} = {a}\ngl.atomic_{atomic}(bins + ({a} & 31), {b})", _atomic),
    "mma": Kind(_MMA, _product, needs="products"),
    "mma-shared": Kind(_MMA_SHARED, _shared_product, needs="products"),
    "tma": Kind(
        _TMA, _tile,
        lambda rng, size: str(4 * rng.randint(0, size // 4)), "tma",
    ),
    "pipe": Kind(_PIPE, _pipe, _one_of("2", "3", "5"), "tma"),
    "roles": Kind(
        "gl.store(out + pid * N + o, {a})\n"
        "gl.warp_specialize([(twice, (out, pid, o, N)), (idle, (out,))], [4], [24])\n"
        "{v} = gl.load(out + pid * N + o) + {b}",
        lambda s, a, b, c: a * 2 + b, needs="partitions",
    ),
}  # fmt: skip
# Statements with others within: the lines before those, and after.
BLOCKS = {
    "loop": "{v} = {a}\nfor i{n} in range({c}):",
    "unrolled": "{v} = {a}\nfor i{n} in gl.static_range({c}):",
    "while": "{v} = {a}\nk{n} = 0\nwhile k{n} <= pid:",
    "branch": "{v} = {a}\nif pid % 2 == {c}:",
    "inside": "{v} = {a}\nif gl.sum({b}, 0) > 0:",
}
