"""The manifest of a bundle: the objects of `manifest.json`, which `schema` reads, checks and writes.

docs/bundles.md describes the fields. Unknown ones are errors: the format has a version for that.
"""

from __future__ import annotations

import hashlib
import json
import keyword
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Union

from gluon_runtime import schema
from gluon_runtime.errors import BundleFormatError
from gluon_runtime.rules import Rules
from gluon_runtime.schema import Natural, mistake, written

__all__ = [
    "Constant",
    "Described",
    "Field",
    "Form",
    "Kernel",
    "Launch",
    "Manifest",
    "Packing",
    "Parameter",
    "Pattern",
    "Rules",
    "TensorMap",
    "Tuple",
    "Value",
    "digest_of",
    "leaves_of",
    "parse",
    "pattern_of",
    "spoken",
    "written",
]


@dataclass(frozen=True)
class Constant:
    """An argument that is a constant of the code, a value of JSON."""

    value: Any = field(metadata={"name": "constant"})
    opaque = False


@dataclass(frozen=True)
class Opaque(Constant):
    """An argument that is another constant of the code: a layout, or any object that JSON lacks.

    Args:
        value: its text.
        identity: hash of all that it consists of.
    """

    value: str = field(metadata={"name": "opaque"})
    identity: str = ""
    opaque = True


@dataclass(frozen=True)
class Value:
    """An argument that the code takes.

    Args:
        type: `*fp32`, `i32`, ...
        divisible: the code assumes that it is divisible by `Rules.divisibility`.
        small: the code assumes that its storage has at most `Rules.small` bytes.
    """

    type: str
    divisible: bool = False
    small: bool = False


@dataclass(frozen=True)
class Tuple:
    """An argument that is a tuple."""

    items: tuple[Pattern, ...] = field(metadata={"name": "tuple"})


@dataclass(frozen=True)
class Described:
    """An argument that is a tensor descriptor.

    Args:
        text: its type, as signatures have it.
        element: the element type.
        rank: of the tensor.
        block: the box that one copy moves.
    """

    text: str = field(metadata={"name": "descriptor"})
    element: str
    rank: Natural
    block: tuple[int, ...]

    def check(self) -> None:
        if not 1 <= self.rank <= 5 or not self.block:
            raise mistake("", "a descriptor of 1 to 5 dimensions", self.text)

    @property
    def layout(self) -> str:
        """Return the shared layout of the box, as Python prints it."""
        return self.text.partition("],")[2][:-1]


Pattern = Union[Constant, Opaque, Value, Tuple, Described]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel's function.

    Args:
        name: of it.
        constexpr: it only chooses the code.
        specialize: whether code may depend on the value of an argument that it takes.
        align: whether code may depend on its divisibility.
        type: its annotation, "" where the argument decides.
        kind: `plain`, `keyword` (by name only) or `variadic` (`*name`).
        default: its value when it is left out; None where it is required.
    """

    name: str
    constexpr: bool
    specialize: bool
    align: bool
    type: str
    kind: str
    default: Optional[Union[Constant, Opaque]]

    def check(self) -> None:
        if self.kind not in ("plain", "keyword", "variadic"):
            raise mistake(".kind", "plain, keyword or variadic", self.kind)
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise mistake(".name", "a name of Python's", self.name)


@dataclass(frozen=True)
class Launch:
    """The launch parameters of a code object.

    Args:
        entry: the name of the kernel in it.
        num_warps, warp_size: their product is the number of threads of a block.
        num_ctas: blocks of a cluster; the grid counts clusters.
        shared: bytes of dynamic shared memory of a block.
        cooperative: all blocks run at once.
        dependent: it may start before the kernel ahead of it ends.
        global_scratch, profile_scratch: bytes per block and their alignment.
    """

    entry: str
    num_warps: Natural
    warp_size: Natural
    num_ctas: Natural
    shared: Natural
    cooperative: bool
    dependent: bool
    global_scratch: tuple[int, int]
    profile_scratch: tuple[int, int]

    def check(self) -> None:
        for name in ("global_scratch", "profile_scratch"):
            size, alignment = getattr(self, name)
            if size < 0 or alignment < 1:
                raise mistake(f".{name}", "bytes and alignment", [size, alignment])
        if not 1 <= self.threads <= 1024 or self.num_ctas < 1:
            raise mistake("", "1 to 1024 threads", str(self.threads))

    @property
    def threads(self) -> int:
        return self.num_warps * self.warp_size


@dataclass(frozen=True)
class TensorMap:
    """The encoding of the map (CUtensorMap) of a descriptor.

    Args:
        swizzle: as CUtensorMapSwizzle has it.
        element_type: as `tensormap.replace` of PTX numbers it.
        element_bytes: of the elements that strides count.
        fp4_padded: two elements of the tensor are one byte, the shape counts bytes.
        box: the extents that one copy moves, slowest dimension first.
    """

    swizzle: Natural
    element_type: Natural
    element_bytes: Natural
    fp4_padded: bool
    box: tuple[Natural, ...]

    def check(self) -> None:
        if not 1 <= len(self.box) <= 5 or min(self.box) < 1:
            raise mistake(".box", "1 to 5 sizes", list(self.box))


MAP_BYTES, MAP_ALIGNMENT = 128, 64
_CODES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "e": 2, "f": 4, "d": 8}
ALIGNMENTS: Mapping[str, int] = {**_CODES, "bf16": 2, "map": MAP_ALIGNMENT}


@dataclass(frozen=True)
class Field:
    """The place of an argument's value.

    Args:
        path: index of the parameter, and the indices into tuples.
        code: letter of Python's `struct`, `bf16`, or `map`: a map, the shape as int32, and the strides
            in elements as int64.
        offset: in the parameter buffer, in bytes.
        map: with `map`, how it is made.
    """

    path: tuple[Natural, ...]
    code: str
    offset: Natural
    map: Optional[TensorMap] = field(default=None, metadata={"absent": None})

    def check(self) -> None:
        known = self.code in ALIGNMENTS and (self.code == "map") == (self.map is not None)
        if not known or self.offset % ALIGNMENTS[self.code]:
            raise mistake("", _PLACED, written(self))

    @property
    def places(self) -> tuple[int, ...]:
        """Return the offset of each parameter of the code that it becomes."""
        if self.map is None:
            return (self.offset,)
        rank, shape = len(self.map.box), self.offset + MAP_BYTES
        strides = shape + 4 * rank + 4 * (rank % 2)
        return (
            self.offset,
            *(shape + 4 * i for i in range(rank)),
            *(strides + 8 * i for i in range(rank)),
        )

    @property
    def end(self) -> int:
        """Return the offset behind it."""
        return self.places[-1] + (ALIGNMENTS[self.code] if self.map is None else 8)


_PLACED = "a known code at an aligned place of its own"


@dataclass(frozen=True)
class Packing:
    """The parameter buffer: the arguments, then the addresses of global and profile scratch."""

    fields: tuple[Field, ...]
    scratch: tuple[int, int]
    size: Natural

    def check(self) -> None:
        end, (first, second) = 0, self.scratch
        for index, placed in enumerate(self.fields):
            if placed.offset < end:
                raise mistake(f".fields[{index}]", _PLACED, written(placed))
            end = placed.end
        if not end <= first <= second - 8 <= self.size - 16 or first % 8 or second % 8:
            raise mistake(".scratch", "two offsets behind the arguments", [first, second])

    def check_arguments(self, arguments: Sequence[Pattern], place: str) -> None:
        """Check that each argument that is no constant has a field."""
        ranks = [
            (path, pattern.rank if isinstance(pattern, Described) else None)
            for path, pattern in leaves_of(arguments)
            if not isinstance(pattern, Constant)
        ]
        if ranks != [(f.path, None if f.map is None else len(f.map.box)) for f in self.fields]:
            expected = "one for each argument that is no constant"
            raise mistake(f"{place}.fields", expected, "others")


@dataclass(frozen=True)
class Form:
    """A kernel compiled for one target and one kind of arguments.

    Args:
        target: as Gluon Core writes it, `nvidia:sm_90`.
        driver: `cuda` or `hip`.
        architecture: as the driver names it: `sm_90`, `gfx942`.
        arguments: one pattern per parameter.
        options: the compile options.
        explicit: those of them that are not the target's defaults.
        grid: the number of programs along each axis where it is always the same, else None.
        launch, packing: how it is launched.
        code: the member that holds the code object.
        key: hash of target, arguments and options; two forms of one kernel never share one.
        metadata: further facts from the compiler.
        source: the member that maps the code to its source, None without one.
    """

    target: str
    driver: str
    architecture: str
    arguments: tuple[Pattern, ...]
    options: Mapping[str, Any]
    explicit: tuple[str, ...] = field(metadata={"name": "given"})
    grid: Optional[tuple[int, int, int]]
    launch: Launch
    packing: Packing
    code: str
    key: str
    metadata: Mapping[str, Any]
    source: Optional[str]

    def check(self) -> None:
        if self.grid is not None and min(self.grid) < 0:
            raise mistake(".grid", "three sizes", list(self.grid))
        if not all(name in self.options for name in self.explicit):
            raise mistake(".given", "names of options", list(self.explicit))


@dataclass(frozen=True)
class Kernel:
    """A kernel and its compiled forms.

    Args:
        function, module: where its source was.
        identity: hash of its source and of all that it refers to.
    """

    function: str
    module: str
    identity: str
    parameters: tuple[Parameter, ...]
    forms: tuple[Form, ...]

    def check(self) -> None:
        if len({form.key for form in self.forms}) != len(self.forms):
            raise mistake(".forms", "forms that differ", "one twice")
        if len({parameter.name for parameter in self.parameters}) != len(self.parameters):
            raise mistake(".parameters", "names that differ", "one twice")
        for index, form in enumerate(self.forms):
            place, count = f".forms[{index}]", len(self.parameters)
            if len(form.arguments) != count:
                got = str(len(form.arguments))
                raise mistake(f"{place}.arguments", f"{count} patterns", got)
            form.packing.check_arguments(form.arguments, f"{place}.packing")


@dataclass(frozen=True)
class Manifest:
    """All that a bundle says.

    Args:
        format: the version of the format.
        tools: name -> version of each tool that built it.
        members: name -> sha256 of every other member.
        cache: entries of a compilation cache: file name -> member, by the key of the entry.
    """

    format: int
    tools: Mapping[str, Any]
    rules: Rules
    kernels: Mapping[str, Kernel]
    members: Mapping[str, str]
    cache: Mapping[str, Mapping[str, str]]

    def check(self) -> None:
        if not 1 <= self.rules.divisibility < 2**32:
            raise mistake(".rules", "a divisor", self.rules.divisibility)
        for name, digest in self.members.items():
            if len(digest) != 64:
                raise mistake(f".members.{name}", "a sha256", digest)
        for key, files in self.cache.items():
            if not all(member in self.members for member in files.values()):
                raise mistake(f".cache.{key}", "names of members", files)
        for name, kernel in self.kernels.items():
            for member in filter(None, (m for f in kernel.forms for m in (f.code, f.source))):
                if member not in self.members:
                    raise mistake(f".kernels.{name}", "a member of the bundle", member)


def parse(data: bytes, where: str) -> Manifest:
    """Return a manifest from its bytes.

    Raises:
        BundleFormatError: it is no manifest; the message names the field.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise BundleFormatError(
            "the manifest is not JSON", argument=where, got=str(error)
        ) from None
    manifest: Manifest = schema.read(Manifest, document, where)
    return manifest


def pattern_of(value: Any) -> Pattern:
    """Return a pattern from its JSON."""
    pattern: Pattern = schema.read(Pattern, value, "pattern")
    return pattern


def leaves_of(
    patterns: Sequence[Pattern], before: tuple[int, ...] = ()
) -> list[tuple[tuple[int, ...], Pattern]]:
    """Return (path, pattern) of all that is no tuple, in order."""
    leaves: list[tuple[tuple[int, ...], Pattern]] = []
    for index, pattern in enumerate(patterns):
        path = (*before, index)
        if isinstance(pattern, Tuple):
            leaves += leaves_of(pattern.items, path)
        else:
            leaves.append((path, pattern))
    return leaves


def spoken(pattern: Pattern, rules: Rules) -> str:
    """Return a pattern in words, for errors."""
    if isinstance(pattern, Tuple):
        return f"({', '.join(spoken(item, rules) for item in pattern.items)})"
    if isinstance(pattern, Constant):
        return f"constant {pattern.value if pattern.opaque else repr(pattern.value)}"
    if isinstance(pattern, Described):
        rank = "" if pattern.rank == len(pattern.block) else f" of rank {pattern.rank}"
        return f"{pattern.text}{rank}, rows at multiples of 16 bytes"
    divisible = f" divisible by {rules.divisibility}" if pattern.divisible else ""
    return pattern.type + divisible + f" into at most {rules.small} bytes" * pattern.small


def digest_of(data: bytes) -> str:
    """Return the sha256 as hex."""
    return hashlib.sha256(data).hexdigest()


def letters_of(form: Form) -> str:
    """Return one letter per parameter for the C engine, see `native.launch`."""
    codes = {field.path: field.code for field in form.packing.fields}

    def letter(pattern: Pattern, path: tuple[int, ...]) -> str:
        if isinstance(pattern, Constant):
            return "x"
        if isinstance(pattern, Tuple):
            items = enumerate(pattern.items)
            return f"({''.join(letter(item, (*path, i)) for i, item in items)})"
        if isinstance(pattern, Described):
            return "T"
        return "P" if pattern.type.startswith("*") else {"bf16": "y"}.get(codes[path], codes[path])

    return "".join(letter(pattern, (i,)) for i, pattern in enumerate(form.arguments))
