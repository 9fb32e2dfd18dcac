"""Random kernels with their meaning in NumPy: tiles of int32 and float32, reductions, products.

Floats hold small whole numbers, so that every result is exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Callable

import numpy as np

SIZE = 64
HEAD = """
@gluon.jit
def kernel(ints, floats, out_ints, out_floats):
    D: gl.constexpr = gl.portable.mma_layouts({size}, {size}, {size}, gl.float16, gl.float16)
{layouts}
    row = gl.arange(0, {size}, gl.SliceLayout(1, L0))
    column = gl.arange(0, {size}, gl.SliceLayout(0, L0))
    at = row[:, None] * {size} + column[None, :]
    i0 = gl.load(ints + at)
    f0 = gl.load(floats + at)
"""
TAIL = """
    gl.store(out_ints + at, {i})
    gl.store(out_floats + at, {f})
"""
_INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "{a} + {b}": lambda a, b: a + b,
    "{a} - {b}": lambda a, b: a - b,
    "{a} * {b}": lambda a, b: a * b,
    "{a} & {b}": lambda a, b: a & b,
    "{a} | {b}": lambda a, b: a | b,
    "{a} ^ {b}": lambda a, b: a ^ b,
    "{a} << ({b} & 31)": lambda a, b: a << (b & 31),
    "{a} >> ({b} & 31)": lambda a, b: a >> (b & 31),
    "gl.minimum({a}, {b})": np.minimum,
    "gl.maximum({a}, {b})": np.maximum,
    "gl.where({a} < {b}, {b}, {a} + 1)": lambda a, b: np.where(a < b, b, a + np.int32(1)),
    "{a} // (({b} & 15) + 1)": lambda a, b: (a / ((b & 15) + 1)).astype(np.int32),
}
_FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "{a} + {b}": lambda a, b: a + b,
    "{a} * {b} - {a}": lambda a, b: a * b - a,
    "gl.maximum({a}, -{b})": lambda a, b: np.maximum(a, -b),
    "gl.where({a} != {b}, {a}, 2.0)": lambda a, b: np.where(a != b, a, np.float32(2)),
    "gl.abs({a} - {b})": lambda a, b: np.abs(a - b),
    "({a}.to(gl.float16) + {b}.to(gl.float16)).to(gl.float32)": lambda a, b: a + b,
    "{a} + gl.sqrt({b} * {b})": lambda a, b: a + np.abs(b),
}
_REDUCED = {"sum": lambda x, axis: x.sum(axis, x.dtype), "max": lambda x, axis: x.max(axis)}


@dataclass
class Program:
    """A kernel being written, with the values of its variables.

    Args:
        lanes: of a wave.
    """

    random: Random
    lanes: int
    lines: list[str] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, kind: str) -> str:
        return self.random.choice([name for name in self.values if name[0] == kind])

    def put(self, kind: str, text: str, value: np.ndarray) -> None:
        name = f"{kind}{sum(n[0] == kind for n in self.values)}"
        self.lines.append(f"    {name} = {text}")
        if kind == "f":  # stays small and whole
            self.lines.append(f"    {name} = ({name}.to(gl.int32) & 31).to(gl.float32)")
            value = (value.astype(np.int32) & 31).astype(np.float32)
        assert value.shape == (SIZE, SIZE) and value.dtype == {"i": np.int32, "f": np.float32}[kind]
        self.values[name] = value

    def step(self) -> None:
        getattr(
            self, self.random.choice(["_binary", "_binary", "_reduced", "_moved", "_product"])
        )()

    def _binary(self) -> None:
        kind = self.random.choice("if")
        text, meaning = self.random.choice(list((_INTEGER if kind == "i" else _FLOAT).items()))
        a, b = self.pick(kind), self.pick(kind)
        self.put(kind, text.format(a=a, b=b), meaning(self.values[a], self.values[b]))

    def _reduced(self) -> None:
        kind, axis = self.random.choice("if"), self.random.randrange(2)
        name, other = self.pick(kind), self.pick(kind)
        how, meaning = self.random.choice(list(_REDUCED.items()))
        shown = "[:, None]" if axis else "[None, :]"
        values = np.expand_dims(meaning(self.values[name], axis), axis)
        self.put(
            kind, f"gl.{how}({name}, axis={axis}){shown} + {other}", values + self.values[other]
        )

    def _moved(self) -> None:
        """To another layout, through LDS and transposed, or both."""
        kind = self.random.choice("if")
        name, layout = self.pick(kind), f"L{self.random.randrange(1, 4)}"
        dtype = "gl.int32" if kind == "i" else "gl.float32"
        if self.random.random() < 0.5:
            text = f"gl.convert_layout(gl.convert_layout({name}, {layout}) * 3, L0)"
            self.put(kind, text, self.values[name] * self.values[name].dtype.type(3))
            return
        number = len(self.lines)
        self.lines.append(
            f"    s{number} = gl.allocate_shared_memory({dtype}, [{SIZE}, {SIZE}], "
            f"gl.SwizzledSharedLayout(4, 1, 8, [1, 0]), {name})"
        )
        self.put(kind, f"s{number}.permute((1, 0)).load(L0)", self.values[name].T.copy())

    def _product(self) -> None:
        a, b, number = self.pick("f"), self.pick("f"), len(self.lines)
        for letter, name in (("a", a), ("b", b)):
            self.lines.append(
                f"    {letter}{number} = gl.allocate_shared_memory(gl.float16, [{SIZE}, {SIZE}], "
                f"D.{letter}_shared, {name}.to(gl.float16)).load(D.{letter})"
            )
        zeros = f"gl.zeros([{SIZE}, {SIZE}], gl.float32, D.accumulator)"
        text = f"gl.convert_layout(gl.portable.mma(a{number}, b{number}, {zeros}), L0)"
        self.put("f", text, self.values[a] @ self.values[b])


def _layout(random: Random, lanes: int) -> str:
    across = 2 ** random.randrange(lanes.bit_length())
    warps = random.choice([(1, 4), (2, 2), (4, 1)])
    each = [random.choice([1, 2, 4]), random.choice([1, 2, 4])]
    order = random.choice([[0, 1], [1, 0]])
    return f"gl.BlockedLayout({each}, [{across}, {lanes // across}], {list(warps)}, {order})"


def generate(
    seed: int, lanes: int, steps: int = 8
) -> tuple[str, list[np.ndarray], np.ndarray, Any]:
    """(source, inputs, int32 result, float32 result) of a random kernel."""
    random = Random(seed)
    numbers = np.random.default_rng(seed)
    ints = numbers.integers(-(2**31), 2**31, (SIZE, SIZE)).astype(np.int32)
    floats = numbers.integers(0, 32, (SIZE, SIZE)).astype(np.float32)
    program = Program(random, lanes, values={"i0": ints, "f0": floats})
    with np.errstate(all="ignore"):
        for _ in range(steps):
            program.step()
    layouts = "\n".join(
        f"    L{i}: gl.constexpr = {_layout(random, lanes)}" for i in range(4)
    )  # every reduction and store is in L0
    i = [name for name in program.values if name[0] == "i"][-1]
    f = [name for name in program.values if name[0] == "f"][-1]
    source = HEAD.format(size=SIZE, layouts=layouts) + "\n".join(program.lines)
    source += TAIL.format(i=i, f=f)
    return source, [ints, floats], program.values[i], program.values[f]
