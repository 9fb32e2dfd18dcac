"""From statements to a program over registers of bits, and how it runs.

A register is an unsigned array (programs or 1, runs or 1); an instruction sees it as its type says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_core.plugin.reference import Machine
from gluon_core.simulation.assembly import NotModelled
from gluon_emu.ptx.numbers import decode, encode, rounded, uint
from gluon_emu.ptx.runs import Runs, Warps
from gluon_emu.ptx.special import SPECIAL, value_of
from gluon_emu.ptx.text import (
    Immediate,
    Operand,
    Part,
    Register,
    Sink,
    Statement,
    Vector,
    parse,
)

__all__ = ["OPCODES", "TYPES", "Call", "Frame", "Program", "Step", "Type", "opcode"]


@dataclass(frozen=True)
class Type:
    """A type of instructions.

    Args:
        kind: b (bits), u, s, f (one float that NumPy has), h (other floats, as bits), p (predicate).
        lanes: how many elements of `element` it packs.
    """

    name: str
    bits: int
    kind: str
    lanes: int = 1
    element: str = ""

    @property
    def dtype(self) -> np.dtype:
        if self.kind == "p":
            return np.dtype(np.bool_)
        if self.kind in "sf" and self.lanes == 1:
            return np.dtype(f"{'i' if self.kind == 's' else 'f'}{self.bits // 8}")
        return uint(self.bits)


TYPES: dict[str, Type] = {"pred": Type("pred", 1, "p")}
for _bits in (8, 16, 32, 64):
    for _kind in "bus":
        TYPES[f"{_kind}{_bits}"] = Type(f"{_kind}{_bits}", _bits, _kind)
for _bits in (16, 32, 64):
    TYPES[f"f{_bits}"] = Type(f"f{_bits}", _bits, "f", 1, f"f{_bits}")
TYPES["b128"] = Type("b128", 128, "b")
TYPES["bf16"] = Type("bf16", 16, "h", 1, "bf16")
TYPES["tf32"] = Type("tf32", 32, "h", 1, "tf32")
for _name, _lanes, _element, _bits in (
    ("f16x2", 2, "f16", 32), ("bf16x2", 2, "bf16", 32), ("f32x2", 2, "f32", 64),
    ("s16x2", 2, "s16", 32), ("u16x2", 2, "u16", 32), ("e4m3x2", 2, "e4m3", 16),
    ("e5m2x2", 2, "e5m2", 16), ("e2m3x2", 2, "e2m3", 16), ("e3m2x2", 2, "e3m2", 16),
    ("e2m1x2", 2, "e2m1", 8), ("ue8m0x2", 2, "ue8m0", 16),
):  # fmt: skip
    TYPES[_name] = Type(_name, _bits, "h", _lanes, _element)

# The capability that a type needs.
_NEEDS = {
    "f32x2": "nvidia.f32x2", "e2m1x2": "nvidia.fp4", "e2m3x2": "nvidia.fp4", "e3m2x2": "nvidia.fp4",
    "ue8m0x2": "nvidia.fp4", "e4m3x2": "nvidia.fp8", "e5m2x2": "nvidia.fp8",
}  # fmt: skip
Step = Callable[["Frame"], None]
Value = np.ndarray

# A letter of a constraint -> the bits of its register, which LLVM's back end for PTX says.
_CONSTRAINTS = {"r": 32, "f": 32, "h": 16, "c": 16, "l": 64, "d": 64, "b": 1, "N": 32}
CARRY = "the carry"
_INSTEAD = (
    "Write it in the language, or give the kernel another path where `gl.target` is simulated."
)
OPCODES: dict[str, Callable[["Call"], Step]] = {}


def opcode(*names: str) -> Callable[[Callable[["Call"], Step]], Callable[["Call"], Step]]:
    def mark(make: Callable[["Call"], Step]) -> Callable[["Call"], Step]:
        OPCODES.update(dict.fromkeys(names, make))
        return make

    return mark


@dataclass
class Frame:
    """The registers of one run."""

    machine: Machine
    threads: Callable[[], np.ndarray]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    mask: Optional[np.ndarray] = None  # where the guard of the statement holds

    def warps(self) -> Warps:
        """Return how its runs are those of warps."""
        return Runs(self)

    def write(self, name: str, bits: int, value: np.ndarray) -> None:
        if self.mask is not None and not self.mask.all():
            old = self.values.get(name)
            if old is None:  # its value elsewhere is unknown; as a float this is NaN
                filler = True if bits == 1 else np.iinfo(uint(bits)).max
                old = np.full((1, 1), filler, value.dtype)
            value = np.where(self.mask, value, old)
        self.values[name] = value


class Call:
    """An instruction that is being made into a step."""

    def __init__(self, program: "Program", statement: Statement):
        self.program = program
        self.statement = statement
        self.operands = statement.operands
        self.name = statement.name
        self.left = list(statement.modifiers)
        self.ftz = self.hinted = False
        self.order: Optional[str] = None  # of an access
        self.part: Optional[str] = None  # of a product
        self.modes = ("rn", False, False, False)  # rounding, ftz, sat, relu

    # -- modifiers --

    def flag(self, name: str) -> bool:
        """Take a modifier; return whether it is there."""
        present = name in self.left
        if present:
            self.left.remove(name)
        return present

    def one_of(self, *names: str) -> Optional[str]:
        """Return the first modifier of these, taken; None for none."""
        modifier = next((m for m in self.left if m in names), None)
        if modifier is not None:
            self.left.remove(modifier)
        return modifier

    def take_types(self, count: Optional[int] = None) -> list[Type]:
        """Return the types among the modifiers, taken; nothing else may be left."""
        types = [m for m in self.left if m in TYPES]
        rest = [m for m in self.left if m not in TYPES]
        if rest:
            raise self.refuse(f"`.{rest[0]}` of `{self.name}` is not known")
        if not types or count is not None and len(types) != count:
            raise self.refuse(f"`{self.name}` has {len(types) or 'no'} types here")
        self.left = []
        target = self.program.target
        for name in types:
            if name in _NEEDS and target is not None and not target.has(_NEEDS[name]):
                raise self.refuse(f"`.{name}` is not there on {target}", "See gl.target.has.")
        return [TYPES[m] for m in types]

    def type(self) -> Type:
        return self.take_types(1)[0]

    def refuse(self, words: str, remedy: Optional[str] = None) -> NotModelled:
        if remedy is None and words.endswith(("known", "known here", "simulated")):
            remedy = _INSTEAD
        return NotModelled(words, self.statement.text, remedy)

    def unknown_type(self, type: Type) -> NotModelled:
        return self.refuse(f"`{self.name}` of `.{type.name}` is not known")

    def count(self, *wanted: int) -> None:
        if len(self.operands) not in wanted:
            raise self.refuse(
                f"`{self.name}` takes {' or '.join(map(str, wanted))} operands, and here are "
                f"{len(self.operands)}"
            )

    # -- operands --

    def width(self, register: Register) -> int:
        name = register.name
        bits = self.program.widths.get(name)
        if bits is None:
            bits = self._special_width(name) if name.startswith("%") else None
        if bits is None:
            shown = name.partition("'")[0]
            hint = None
            if name.startswith("%%"):
                hint = "LLVM writes one percent sign."
            elif not name.startswith("%"):
                hint = f"Declare it: `.reg .b32 {shown};`."
            raise self.refuse(f"the register `{shown}` is not known", hint)
        return bits

    def _special_width(self, name: str) -> Optional[int]:
        """Return the width of a special register; None for any other name."""
        special = SPECIAL.get(name.removeprefix("%"))
        if special is None:
            return None
        target = self.program.target
        if target is not None and int(target.architecture.arch) < special.since:
            raise self.refuse(
                f"`{name}` needs sm_{special.since} or higher, and this is {target}",
                "Give the kernel another path for this target.",
            )
        return special.bits

    def _check(self, register: Register, type: Type, wider: bool) -> int:
        bits = self.width(register)
        special = SPECIAL.get(register.name.removeprefix("%"))
        if special is not None and register.name not in self.program.widths:
            wider = wider or type.bits == special.narrow
        if bits != type.bits and not (wider and bits > type.bits > 1):
            raise self.refuse(
                f"`{register.name.partition(chr(39))[0]}` has {_in_bits(bits)}, and `.{type.name}` of "
                f"`{self.name}` has {_in_bits(type.bits)}"
            )
        return bits

    def get(
        self, operand: Operand, type: Type, wider: bool = False
    ) -> Callable[[Frame], np.ndarray]:
        """Return a function that reads an operand as a type.

        Args:
            wider: the register may be, and its low bits count.
        """
        if isinstance(operand, Immediate):
            constant = self._constant(operand, type)
            return lambda frame: constant
        if isinstance(operand, Vector):
            return self._gathered(operand, type)
        if not isinstance(operand, Register):
            raise self.refuse(f"`{self.name}` has an operand that is not known")
        bits = self._check(operand, type, wider)
        name, dtype, narrow = operand.name, type.dtype, uint(max(8, type.bits))
        if name not in self.program.widths:
            special = self.program.special(name.removeprefix("%"), bits)
            if type.kind == "p":
                return lambda frame: special(frame) ^ operand.inverted
            return lambda frame: special(frame).astype(narrow).view(dtype)
        self.program.read(self, name)
        if type.kind == "p":
            if operand.inverted:
                return lambda frame: ~frame.values[name]
            return lambda frame: frame.values[name]
        if operand.inverted:
            raise self.refuse("only a predicate is inverted")
        if bits != type.bits:
            return lambda frame: frame.values[name].astype(narrow).view(dtype)
        return lambda frame: frame.values[name].view(dtype)

    def _constant(self, operand: Immediate, type: Type) -> np.ndarray:
        value = operand.value
        if type.kind == "p":
            return np.full((1, 1), bool(value))
        if operand.pattern:
            if type.kind in "us":
                raise self.refuse(f"a float where `.{type.name}` is expected")
            wide = uint(operand.pattern).type(value)
            if operand.pattern == type.bits:
                return np.full((1, 1), wide, uint(type.bits)).view(type.dtype)
            value = float(wide.view(np.float64 if operand.pattern == 64 else np.float32))
        if isinstance(value, float):
            if type.name not in ("f32", "f64"):
                raise self.refuse(f"a float where `.{type.name}` is expected")
            narrow = f"f{type.bits}"
            constant = np.full((1, 1), value)
            return encode(rounded(constant, narrow) if narrow == "f32" else constant, narrow).view(
                type.dtype
            )
        if type.kind == "f" and type.bits > 16:
            raise self.refuse(
                f"an integer where `.{type.name}` is expected",
                f"Write {value}.0, or 0f... for bits.",
            )
        masked = int(value) & ((1 << type.bits) - 1)
        return np.full((1, 1), masked, uint(type.bits)).view(type.dtype)

    def _gathered(self, vector: Vector, type: Type) -> Callable[[Frame], np.ndarray]:
        """Join neighbouring registers into one, the first lowest."""
        part = self._part(vector, type)
        reads = [self.get(item, part) for item in vector.items]
        wide = uint(type.bits)
        if type.bits == 128:
            return lambda frame: _pair(*(get(frame) for get in reads))

        def read(frame: Frame) -> np.ndarray:
            word: Any = np.zeros((1, 1), wide)
            for i, get in enumerate(reads):
                word = word | (get(frame).astype(wide) << wide.type(i * part.bits))
            return np.asarray(word).view(type.dtype)

        return read

    def _part(self, vector: Vector, type: Type) -> Type:
        part_type = TYPES.get(f"b{type.bits // max(1, len(vector.items))}")
        if type.bits == 128 and len(vector.items) != 2:
            part_type = None
        if part_type is None or part_type.bits * len(vector.items) != type.bits:
            raise self.refuse(
                f"{len(vector.items)} registers do not make the {_in_bits(type.bits)} of `.{type.name}`"
            )
        return part_type

    def put(
        self, operand: Operand, type: Type, wider: bool = False
    ) -> Callable[[Frame, np.ndarray], None]:
        """Return a function that writes a value of a type to an operand.

        Args:
            wider: the register may be; the value is extended as its type says.
        """
        if isinstance(operand, Sink):
            return lambda frame, value: None
        if isinstance(operand, Vector):
            return self._scattered(operand, type)
        if not isinstance(operand, Register) or operand.inverted:
            raise self.refuse(f"`{self.name}` has no register for its result")
        name = operand.name
        if name not in self.program.widths and name.startswith("%"):
            self.width(operand)
            raise self.refuse(f"`{name}` cannot be written to")
        bits = self._check(operand, type, wider)
        self.program.written.add(name)
        if type.kind == "p":
            return lambda frame, value: frame.write(name, 1, value)
        narrow, wide, dtype = uint(type.bits), uint(bits), type.dtype
        signed = np.dtype(f"i{bits // 8}") if type.kind == "s" else wide

        def write(frame: Frame, value: np.ndarray) -> None:
            value = value.astype(dtype, copy=False)
            if bits == type.bits:
                value = value.view(wide)
            elif type.kind == "s":
                value = value.astype(signed).view(wide)
            else:
                value = value.view(narrow).astype(wide)
            frame.write(name, bits, value)

        return write

    def _scattered(self, vector: Vector, type: Type) -> Callable[[Frame, np.ndarray], None]:
        part = self._part(vector, type)
        writes = [self.put(item, part) for item in vector.items]
        wide = uint(type.bits)
        if type.bits == 128:
            low, high = writes

            def part_it(frame: Frame, value: np.ndarray) -> None:
                low(frame, value["low"])
                high(frame, value["high"])

            return part_it

        def write(frame: Frame, value: np.ndarray) -> None:
            raw = value.view(wide)
            for i, put in enumerate(writes):
                put(frame, (raw >> wide.type(i * part.bits)).astype(uint(part.bits)))

        return write

    # -- whole instructions --

    def step(
        self,
        results: Sequence[tuple[Operand, Type]],
        arguments: Sequence[tuple[Operand, Type]],
        fn: Callable[..., Any],
        wider: bool = False,
    ) -> Step:
        """Read, compute, write; several results are a tuple."""
        gets = [self.get(operand, type, wider) for operand, type in arguments]
        puts = [self.put(operand, type, wider) for operand, type in results]
        if len(puts) == 1:
            (put,) = puts
            return lambda frame: put(frame, fn(*(get(frame) for get in gets)))

        def run(frame: Frame) -> None:
            for write, value in zip(puts, fn(*(get(frame) for get in gets))):
                write(frame, value)

        return run

    def plain(self, result: Type, arguments: Sequence[Type], fn: Callable[..., Any]) -> Step:
        """Return one result, then arguments of these types."""
        self.count(1 + len(arguments))
        return self.step([(self.operands[0], result)], list(zip(self.operands[1:], arguments)), fn)


def _pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return 128 bits of two words of 64."""
    word = np.zeros(np.broadcast_shapes(low.shape, high.shape), uint(128))
    word["low"], word["high"] = low, high
    return word


def _in_bits(count: int) -> str:
    return f"{count} bit{'s' * (count != 1)}"


def lanes_of(raw: np.ndarray, type: Type) -> list[np.ndarray]:
    """Return the elements of a packed value, as unsigned integers, the first lowest."""
    if type.lanes == 1:
        return [raw]
    size = type.bits // type.lanes
    wide = raw.dtype.type
    narrow = uint(size)
    mask = wide((1 << size) - 1)
    return [((raw >> wide(i * size)) & mask).astype(narrow) for i in range(type.lanes)]


def packed(lanes: Sequence[np.ndarray], type: Type) -> np.ndarray:
    if type.lanes == 1:
        return lanes[0]
    size = type.bits // type.lanes
    wide = uint(type.bits)
    word: Any = lanes[0].astype(wide)
    for i, lane in enumerate(lanes[1:], 1):
        word = word | (lane.astype(wide) << wide.type(i * size))
    return np.asarray(word)


def numbers(raw: np.ndarray, type: Type) -> list[np.ndarray]:
    """Return the elements of a value as float64."""
    if type.kind == "f":
        return [raw.astype(np.float64)]
    return [decode(lane, type.element) for lane in lanes_of(raw, type)]


class Program:
    """A text that can run; see `gluon_core.simulation.assembly.Assembly`."""

    def __init__(self, text: str, constraints: str, target: Any = None):
        self.target = target
        self.is_data = True
        self.each_thread = self.reaches_memory = False
        self.orders: tuple[str, ...] = ()
        self.looked = False  # whether an atomic or an ordered load has come
        self.released: Optional[str] = None  # the scope of a fence before the next write
        self.fence: Optional[NotModelled] = None  # the report of one without atomics
        self.widths: dict[str, int] = {CARRY: 1}
        self.written: set[str] = set()
        self.results: list[tuple[str, int]] = []
        self.arguments: list[tuple[str, int]] = []
        self._operands(constraints)
        self.steps: list[tuple[Optional[Callable[[Frame], np.ndarray]], Step]] = []
        for statement in parse(text):
            self._statement(statement)
        if self.fence is not None and not self.orders:
            raise self.fence
        for number, (name, _) in enumerate(self.results):
            if name not in self.written:
                raise NotModelled(f"nothing writes result ${number}", " ".join(text.split()))

    def _operands(self, constraints: str) -> None:
        pieces = [p.strip() for p in constraints.split(",") if p.strip()]
        pieces = [p for p in pieces if not p.startswith("~")]
        for number, piece in enumerate(pieces):
            body = piece.lstrip("=&%")
            if body.isdigit() and not piece.startswith("=") and int(body) < len(self.results):
                name, bits = self.results[int(body)]
                self.alias(f"${number}", name)
                self.arguments.append((name, bits))
                self.written.add(name)
                continue
            width = _CONSTRAINTS.get(body)
            if width is None:
                raise NotModelled(
                    f"the constraint {piece!r} is not known",
                    constraints,
                    "Registers of PTX are h (16 bits), r and f (32), l and d (64), b (predicate).",
                )
            name = f"${number}"
            self.widths[name] = width
            if piece.startswith("="):
                self.results.append((name, width))
            else:
                self.arguments.append((name, width))
                self.written.add(name)

    def alias(self, name: str, other: str) -> None:
        self._aliases = {**getattr(self, "_aliases", {}), name: other}

    _aliases: dict[str, str] = {}

    def _renamed(self, operand: Any) -> Any:
        """Operands that share a register as the one that they share."""
        if isinstance(operand, Register) and operand.name in self._aliases:
            return Register(self._aliases[operand.name], operand.inverted)
        if isinstance(operand, Vector):
            return Vector(tuple(map(self._renamed, operand.items)))
        if isinstance(operand, Part):
            return Part(self._renamed(operand.base), operand.selector)
        if hasattr(operand, "base"):
            return type(operand)(self._renamed(operand.base), operand.offset)
        if hasattr(operand, "first"):
            return type(operand)(self._renamed(operand.first), self._renamed(operand.second))
        return operand

    def _statement(self, statement: Statement) -> None:
        if statement.name == ".reg":
            for name, kind in statement.declared.items():
                if kind not in TYPES:
                    raise NotModelled(f"registers of `.{kind}` are not known", statement.text)
                self.widths[name] = TYPES[kind].bits
            return
        if self._aliases:
            statement.operands = tuple(map(self._renamed, statement.operands))
            statement.guard = self._renamed(statement.guard)
        call = Call(self, statement)
        make = OPCODES.get(statement.name)
        if make is None:
            raise call.refuse(f"`{statement.name}` of inline assembly is not simulated")
        guard = None
        if statement.guard is not None:
            guard = call.get(statement.guard, TYPES["pred"])
        step = make(call)
        self.steps.append((guard, step))

    def read(self, call: Call, name: str) -> None:
        """See that a register that is read has been written."""
        if name not in self.written:
            shown = "the carry" if name == CARRY else f"`{name.partition(chr(39))[0]}`"
            raise call.refuse(f"{shown} is read before anything is written to it")

    # -- architecture -----

    def special(self, name: str, bits: int) -> Callable[[Frame], np.ndarray]:
        self.is_data = False
        dtype = np.dtype(np.bool_) if bits == 1 else uint(bits)

        def read(frame: Frame) -> np.ndarray:
            return value_of(frame.machine, frame.threads(), name).astype(dtype)

        return read

    def __call__(
        self, machine: Machine, registers: Sequence[np.ndarray], threads: Callable[[], np.ndarray]
    ) -> list[np.ndarray]:
        frame = Frame(machine, threads)
        for (name, bits), value in zip(self.arguments, registers):
            frame.values[name] = value != 0 if bits == 1 else value.astype(uint(bits))
        with np.errstate(all="ignore"):
            for guard, step in self.steps:
                frame.mask = None
                if guard is not None:
                    frame.mask = guard(frame)
                    if not frame.mask.any() and not self._unknown(frame):
                        continue
                step(frame)
        outputs = [frame.values[name] for name, _ in self.results]
        return [f.view(np.uint8) if f.dtype == np.bool_ else f for f in outputs]

    def _unknown(self, frame: Frame) -> bool:
        """Is there a register that only a statement whose guard may fail writes?"""
        return len(frame.values) < len(self.written)
