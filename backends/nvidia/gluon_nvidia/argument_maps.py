"""Tensor maps that a launch makes in place of the kernel.

A kernel that describes a tensor writes a map into scratch memory, and waits until copies may read it: a microsecond on an H200. Where address, shape and
strides are arguments, or computed from arguments alone, the launch makes the map: the kernel is assembled once more, with each map as a parameter
behind the others. The engine in C computes its tensor by a program of a few steps, and encodes it. Bundles, the emulator and listings keep the
first machine code, and so does a launch whose tensor the driver refuses, such as an empty one.

`tensormap.replace` numbers dimensions from the fastest, and gives strides in bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Union

from gluon_nvidia.descriptor import MapKind
from gluon_nvidia.matrix_addresses import BLOCK, JUMP, functions_of, written

__all__ = ["Described", "assembled", "described"]

_MAP_BYTES = 128
_MOST_MAPS = 32  # of a launch, those of descriptors included
_DEPTH = 8  # of the engine's stack
_MOST_STEPS = 64
_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2)  # of an element, by PTX's number of its type

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_STATEMENT = re.compile(r"\s*([a-z][\w.:]*)\s+(.*)", re.S)  # without a condition
_FIELD = re.compile(
    r"\s*(?:@%p\d+ )?tensormap\.replace\.tile\.(\w+)\.shared::cta\.b1024\.b\d+ \[ ?%rd\d+ \+ 0 ?\], (?:(0x\d+), )?([^;]+);"
)
_CLEARED = re.compile(r"\s*@%p\d+ st\.shared(?:::cta)?\.b32 \[ ?%r\d+ \+ 0 ?\], (%r\d+);")
_PUBLISHED = re.compile(r"\s*(?:@%p\d+ )?tensormap\.cp_fenceproxy\.\S+ \[ ?(%rd\d+) \+ 0 ?\], ")
_ACQUIRED = re.compile(
    r"\s*(?:@%p\d+ )?fence\.proxy\.tensormap::generic\.acquire\.gpu \[ ?(%rd\d+) \+ 0 ?\]"
)
_DRAINED = re.compile(r"\s*(?:@%p\d+ )?cp\.async\.bulk\.(?:commit_group|wait_group\.read 0) ?;")
_GENERIC = re.compile(r"\s*cvta\.global\.u64 \t?(%rd\d+), (%rd\d+);")
_UNREACHED = re.compile(r"\s*\$L__(?:tmp|func)")  # labels of lines
_BEGIN = re.compile(r"^// %bb\.0:.*\n", re.M)  # of the first block
_AHEAD = """{{
	.reg .pred first;
	.reg .b32 lane;
	.reg .b64 map;
	mov.u32 lane, %tid.x;
	setp.eq.u32 first, lane, 0;
{maps}
}}
"""
_MAP_AHEAD = "\tmov.b64 map, {0};\n\tcvta.param.u64 map, map;\n\t@first prefetch.tensormap [map];"
_REGISTER = re.compile(r"%rd?\d+")

# Steps of the programs, as `made_maps.h` numbers them.
_HALF, _WHOLE, _LITERAL, _SIGNED, _LOW, _ADD, _SUBTRACT, _MULTIPLY, _SHIFT, _LARGER, _SMALLER = (
    range(11)
)
_Program = list[tuple[int, int]]
_TWO = {"add": _ADD, "sub": _SUBTRACT, "mul.lo": _MULTIPLY, "shl": _SHIFT}


@dataclass(frozen=True)
class Described:
    """Hold a kernel whose launch makes maps.

    Args:
        ptx: its text.
        kinds: of the maps.
        programs: of the maps one after the other, as `native.launch` takes them.
        alone: the kernel describes no tensor itself.
    """

    ptx: str
    kinds: tuple[MapKind, ...]
    programs: bytes
    alone: bool

    @property
    def bytes(self) -> int:
        """Return the bytes that the maps would have taken in scratch memory."""
        return _MAP_BYTES * len(self.kinds)


class _Map(NamedTuple):
    kind: MapKind
    nan: bool
    values: list[_Program]  # address, then shape and strides, the slowest dimension first


class _Unknown(Exception):
    """Say that a value is not computed from arguments alone."""


def described(ptx: str, most: int = _MOST_MAPS) -> Optional[Described]:
    """Return a kernel with up to so many maps that its launch makes; None where it can make none."""
    if "tensormap.cp_fenceproxy" not in ptx:
        return None
    parts = list(functions_of(ptx))
    for number, part in enumerate(parts):
        entry = _ENTRY.search(part)
        if entry is None or "tensormap.cp_fenceproxy" not in part:
            continue
        kernel = _Kernel(part, entry)
        maps = dict(list(kernel.maps().items())[:most])
        if maps:
            parts[number] = kernel.text(maps)
            words = [word for one in maps.values() for word in _words(one)]
            programs = struct.pack(f"<{len(words)}q", *words)
            alone = len(maps) == len(kernel.written)
            kinds = tuple(one.kind for one in maps.values())
            return Described("".join(parts), kinds, programs, alone)
    return None


def _words(one: _Map) -> Iterator[int]:
    yield int(one.nan)
    for program in one.values:
        yield len(program)
        for step, operand in program:
            yield from (step, operand)


class _Kernel:
    """Read the maps of one kernel."""

    def __init__(self, text: str, entry: re.Match[str]):
        self.whole = text
        self.name = entry[1]
        self.count = len([p for p in entry[2].split(",") if p.strip()])
        self.end = entry.end(2)  # of the parameters
        self.lines = text.split("\n")
        self.definitions: dict[str, list[tuple[int, str]]] = {}  # register -> lines, statements
        self.blocks: list[int] = []  # the block of each line
        for number, line in enumerate(self.lines):
            label = BLOCK.match(line) and not _UNREACHED.match(line)
            begins = bool(label or (number and JUMP.match(self.lines[number - 1])))
            self.blocks.append(begins + (self.blocks[-1] if number else 0))
            for statement in line.split(";"):
                for register in written(statement):
                    self.definitions.setdefault(register, []).append((number, statement))
        self.written: dict[str, list[int]] = {}  # address -> the lines that describe a tensor there

    def maps(self) -> dict[str, _Map]:
        """Return the map of each address in scratch memory that a launch can make."""
        maps: dict[str, Optional[_Map]] = {}
        read: dict[tuple[str, int], tuple[str, int]] = {}
        last, fields, cleared = "", list[int](), list[int]()  # lines; the last store
        for number, line in enumerate(self.lines):
            field, published, acquired = (p.match(line) for p in (_FIELD, _PUBLISHED, _ACQUIRED))
            last = acquired[1] if acquired else last if _DRAINED.match(line) else ""
            if last:
                self.written.setdefault(last, []).append(number)
            elif _CLEARED.match(line):
                cleared = [number]
            elif field:
                read[field[1], int(field[2] or "0", 16)] = field[3].strip(), number
                fields.append(number)
            elif published:
                address = published[1]
                maps[address] = None if address in maps else self._map(read)
                self.written[address] = [*filter(self._clears, cleared), *fields, number]
                read, fields, cleared = {}, [], []
            elif "tensormap.replace" in line:
                return {}  # a form that is not known
        known = {register: one for register, one in maps.items() if one is not None}
        return known if self._only(set(maps)) else {}

    def _clears(self, number: int) -> bool:
        """Return True if a store in front of a description clears the shared memory that it is made in."""
        match = _CLEARED.match(self.lines[number])
        with contextlib.suppress(_Unknown):
            return match is not None and self._value(match[1], number) == [(_LITERAL, 0)]
        return False

    def _only(self, addresses: set[str]) -> bool:
        """Return True if these addresses have one value each, copies read no map elsewhere in scratch memory, and nothing stores such an address."""
        scratch = f"[{self.name}_param_{self.count - 2}]"
        sources = {
            register: {
                word
                for _, one in statements
                if "cvta.global" not in one
                for word in [scratch] * (scratch in one) + _REGISTER.findall(one)
            }
            for register, statements in self.definitions.items()
        }
        derived, before = {scratch}, 0
        while len(derived) > before:
            before = len(derived)
            derived |= {register for register, words in sources.items() if words & derived}
        generic = {m[2] for line in self.lines for m in [_GENERIC.match(line)] if m} & derived
        gone = {number for lines in self.written.values() for number in lines}
        stored = any(
            derived.intersection(_REGISTER.findall(statement)) and not any(written(statement))
            for number, line in enumerate(self.lines)
            if number not in gone
            for statement in line.split(";")
        )
        single = all(len(self.definitions[one]) == 1 for one in addresses)
        return generic == addresses and single and not stored

    def _map(self, read: dict[tuple[str, int], tuple[str, int]]) -> Optional[_Map]:
        """Return the map of a description, whose fields are given with their lines; None where the launch cannot make it."""
        left = dict(read)

        def number(name: str, dim: int = 0, default: Optional[int] = None) -> int:
            if (name, dim) not in left and default is not None:
                return default
            text, line = left.pop((name, dim))
            if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", text):
                return int(text, 0)
            program = self._value(text, line)
            if len(program) != 1 or program[0][0] != _LITERAL:
                raise _Unknown
            return program[0][1]

        try:
            rank = number("rank") + 1
            dims = range(rank)
            address = self._value(*left.pop(("global_address", 0)))
            box = tuple(number("box_dim", dim) for dim in dims)
            shape = [self._value(*left.pop(("global_dim", dim))) for dim in dims]
            steps = [self._value(*left.pop(("global_stride", dim))) for dim in range(rank - 1)]
            plain = all(number("element_stride", dim) == 1 for dim in dims)
            kind, swizzle = number("elemtype"), number("swizzle_mode", default=0)
            plain &= number("interleave_layout", default=0) == 0
            nan = number("fill_mode", default=0) == 1
        except (_Unknown, KeyError):
            return None
        if left or not plain or kind >= len(_BYTES) or rank > 5:
            return None
        size = _BYTES[kind]
        values = [address, *shape[::-1], *steps[::-1], [(_LITERAL, size)]]
        if any(len(program) > _MOST_STEPS or _depth(program) > _DEPTH for program in values):
            return None
        return _Map(MapKind(True, rank, swizzle, kind, size, False, box[::-1]), nan, values)

    # -- values -----------------------------------------------------------------------------------

    def _before(self, register: str, line: int) -> tuple[int, str]:
        """Return the statement that gives a register its value in a line: the last one of the block, or the only one.

        Raises:
            _Unknown: it is another one from path to path.
        """
        statements = self.definitions.get(register, [])
        near = [s for s in statements if s[0] < line and self.blocks[s[0]] == self.blocks[line]]
        if not near and len(statements) != 1:
            raise _Unknown
        return (near or statements)[-1]

    def _value(self, operand: str, line: int, depth: int = 0) -> _Program:
        """Return the program that computes a register or number in a line; numbers of 32 bits have zeros above.

        Raises:
            _Unknown: no arguments alone compute it.
        """
        operand = operand.strip()
        if re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)", operand):
            number = int(operand, 0)
            return [(_LITERAL, number - (1 << 64) * (number >= 1 << 63))]
        number, text = self._before(operand, line)
        statement = _STATEMENT.fullmatch(text)
        if statement is None or depth > _MOST_STEPS:
            raise _Unknown
        name, (_, *operands) = statement[1], statement[2].split(",")
        first, _, kind = name.rpartition(".")

        def value(index: int) -> _Program:
            return self._value(operands[index], number, depth + 1)

        wide = kind[-2:] == "64"
        if first == "ld.param":
            place = re.fullmatch(rf"\s*\[{re.escape(self.name)}_param_(\d+)\]", operands[0])
            if place is None or kind[-2:] not in ("32", "64"):
                raise _Unknown
            return [(_WHOLE if wide else _HALF, int(place[1]))]
        if first in ("mov", "cvta.to.global", "cvta.global"):
            program = value(0)
            return program if wide else _low(program)
        if name in ("cvt.u64.u32", "cvt.s64.s32", "cvt.u32.u64"):
            return [*value(0), (_SIGNED if name == "cvt.s64.s32" else _LOW, 0)]
        if first == "mul.wide" and kind in ("s32", "u32"):
            narrow = (_SIGNED if kind == "s32" else _LOW, 0)
            return [*value(0), narrow, *value(1), narrow, (_MULTIPLY, 0)]
        if first == "mad.lo":
            program = [*value(0), *value(1), (_MULTIPLY, 0), *value(2), (_ADD, 0)]
        elif name in ("max.s32", "min.s32"):
            step = _LARGER if first == "max" else _SMALLER
            program = [*value(0), (_SIGNED, 0), *value(1), (_SIGNED, 0), (step, 0)]
        elif first in _TWO:
            program = [*value(0), *value(1), (_TWO[first], 0)]
        else:
            raise _Unknown
        return program if wide else [*program, (_LOW, 0)]

    # -- the text ---------------------------------------------------------------------------------

    def text(self, maps: dict[str, _Map]) -> str:
        """Return the kernel with these maps as parameters, which one thread asks for before anything else."""
        names = {
            register: f"{self.name}_param_{self.count + number}"
            for number, register in enumerate(maps)
        }
        gone = {number for register in maps for number in self.written[register]}
        text: list[str] = []
        for number, line in enumerate(self.lines):
            generic = _GENERIC.match(line)
            if generic and generic[2] in names:
                to, name = generic[1], names[generic[2]]
                line = f"\tmov.b64 \t{to}, {name};\n\tcvta.param.u64 \t{to}, {to};"
            if number not in gone:
                text.append(line)
        whole = "\n".join(text)
        added = "".join(
            f",\n\t.param .align 64 .b8 {name}[{_MAP_BYTES}]" for name in names.values()
        )
        ahead = _AHEAD.format(maps="\n".join(map(_MAP_AHEAD.format, names.values())))
        body = _BEGIN.sub(lambda begin: begin[0] + ahead, whole[self.end :], count=1)
        return f"{whole[: self.end].rstrip()}{added}\n{body}"


def _low(program: _Program) -> _Program:
    """Return a number of 32 bits; one of an argument has zeros above."""
    step, operand = program[-1]
    if step == _LITERAL:
        return [*program[:-1], (_LITERAL, operand & 0xFFFFFFFF)]
    return program if step in (_HALF, _LOW) else [*program, (_LOW, 0)]


def _depth(program: _Program) -> int:
    """Return the most values that a program holds at once."""
    depth = most = 0
    for step, _ in program:
        depth += (step <= _LITERAL) - (step >= _ADD)
        most = max(most, depth)
    return most


# -- machine code ---------------------------------------------------------------------------------


def assembled(compiled: Any) -> Optional[tuple[Described, bytes]]:
    """Return a compiled kernel whose launch makes maps, and its machine code; None where it is the kernel itself."""
    ptx: Union[str, Any] = compiled.asm.get("ptx")
    others = len(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    kernel = described(ptx, _MOST_MAPS - others) if isinstance(ptx, str) else None
    if kernel is None:
        return None
    compiler = compiled.backend.compiler
    facts = compiled.metadata._asdict()
    named = vars(compiler.options(compiled.target, {})).keys() - {"num_warps"}
    options = compiler.options(compiled.target, {k: v for k, v in facts.items() if k in named})
    words = (compiler.version(compiled.target), str(options), kernel.ptx)
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()
    path = Path(compiler.knobs().cache.dir) / digest / f"{compiled.name[:150]}.cubin"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return kernel, data[32:]
    stage = compiler.pipeline(compiled.target, options)[-1]
    try:
        cubin: bytes = stage.run(kernel.ptx, facts)
    except Exception:  # of any assembler: the kernel that is assembled launches as well
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(hashlib.sha256(cubin).digest() + cubin)
        part.replace(path)
    return kernel, cubin
