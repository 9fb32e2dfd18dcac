"""Read the manifest of a bundle: `manifest.json` as objects, every field checked.

docs/bundles.md describes the fields. Unknown ones are errors: the format has a version for that.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Union

from gluon_runtime.errors import BundleFormatError
from gluon_runtime.rules import Rules

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
    "canonical",
    "digest_of",
    "leaves_of",
    "parse",
    "pattern_of",
    "rules_of",
]


@dataclass(frozen=True)
class Constant:
    """An argument that is a constant of the code.

    Args:
        value: what JSON holds; the text of anything else.
        opaque: whether `value` is such a text, of a layout or another object.
        identity: hash of what makes an opaque constant what it is.
    """

    value: Any
    opaque: bool = False
    identity: str = ""


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

    items: tuple["Pattern", ...]


@dataclass(frozen=True)
class Described:
    """An argument that is a tensor descriptor.

    Args:
        text: its type, as signatures have it.
        element: the element type.
        rank: of the tensor.
        block: the box that one copy moves.
    """

    text: str
    element: str
    rank: int
    block: tuple[int, ...]

    @property
    def layout(self) -> str:
        """The shared layout of the box, as Python prints it."""
        return self.text.partition("],")[2][:-1]


Pattern = Union[Constant, Value, Tuple, Described]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel's function.

    Args:
        name: of it.
        constexpr: it only chooses the code.
        specialize: whether code may depend on the value of an argument that it takes.
        align: whether code may depend on its divisibility.
        type: what it is annotated with, "" where the argument decides.
        kind: `plain`, `keyword` (by name only) or `variadic` (`*name`).
        default: what it is when it is left out; None where it must be given.
    """

    name: str
    constexpr: bool
    specialize: bool
    align: bool
    type: str
    kind: str
    default: Optional[Constant]


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
    num_warps: int
    warp_size: int
    num_ctas: int
    shared: int
    cooperative: bool
    dependent: bool
    global_scratch: tuple[int, int]
    profile_scratch: tuple[int, int]

    @property
    def threads(self) -> int:
        return self.num_warps * self.warp_size


@dataclass(frozen=True)
class TensorMap:
    """How the code wants the map (CUtensorMap) of a descriptor to be made.

    Args:
        swizzle: as CUtensorMapSwizzle has it.
        element_type: as `tensormap.replace` of PTX numbers it.
        element_bytes: of what strides count.
        fp4_padded: two elements of the tensor are one byte, the shape counts bytes.
        box: what one copy moves, slowest dimension first.
    """

    swizzle: int
    element_type: int
    element_bytes: int
    fp4_padded: bool
    box: tuple[int, ...]


MAP_BYTES, MAP_ALIGNMENT = 128, 64


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

    path: tuple[int, ...]
    code: str
    offset: int
    map: Optional[TensorMap] = None

    @property
    def places(self) -> tuple[int, ...]:
        """The offset of each parameter of the code that it becomes."""
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
        """The offset behind it."""
        return self.places[-1] + (CODE_SIZES[self.code] if self.map is None else 8)


@dataclass(frozen=True)
class Packing:
    """The parameter buffer: the arguments, then the addresses of global and profile scratch."""

    fields: tuple[Field, ...]
    scratch: tuple[int, int]
    size: int


@dataclass(frozen=True)
class Form:
    """A kernel compiled for one target and one kind of arguments.

    Args:
        target: as Gluon Core writes it, `nvidia:sm_90`.
        driver: what launches it: `cuda` or `hip`.
        architecture: as the driver names it: `sm_90`, `gfx942`.
        arguments: one pattern per parameter.
        options: what it was compiled with.
        given: those of them that are not the target's defaults.
        grid: the number of programs along each axis where it is always the same, else None.
        launch, packing: how it is launched.
        code: the member that holds the code object.
        key: hash of target, arguments and options; two forms of one kernel never share one.
        metadata: what the compiler said besides.
        source: the member that maps the code to its source, None without one.
    """

    target: str
    driver: str
    architecture: str
    arguments: tuple[Pattern, ...]
    options: Mapping[str, Any]
    given: tuple[str, ...]
    grid: Optional[tuple[int, int, int]]
    launch: Launch
    packing: Packing
    code: str
    key: str
    metadata: Mapping[str, Any]
    source: Optional[str]


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


@dataclass(frozen=True)
class Manifest:
    """All that a bundle says.

    Args:
        tools: name -> version of what built it.
        members: name -> sha256 of every other member.
        cache: entries of a compilation cache: file name -> member, by the key of the entry.
    """

    tools: Mapping[str, str]
    rules: Rules
    kernels: Mapping[str, Kernel]
    members: Mapping[str, str]
    cache: Mapping[str, Mapping[str, str]]


def canonical(document: Any) -> bytes:
    """The one way in which a manifest is written."""
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode() + b"\n"


# -- reading ---------------------------------------------------------------------------------------

_CODES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "e": 2, "f": 4, "d": 8}
CODE_SIZES: Mapping[str, int] = {**_CODES, "bf16": 2}


class _Reader:
    """One JSON object, whose fields are taken out by name and type."""

    def __init__(self, value: Any, where: str):
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        self.left = dict(value)
        self.where = where

    def take(self, name: str, *kinds: type) -> Any:
        if name not in self.left:
            raise _wrong(f"{self.where}.{name}", "a value", "nothing")
        value = self.left.pop(name)
        if kinds and type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise _wrong(f"{self.where}.{name}", expected, value)
        return value

    def natural(self, name: str) -> int:
        value: int = self.take(name, int)
        if not 0 <= value < 2**31:
            raise _wrong(f"{self.where}.{name}", "0 to 2**31 - 1", value)
        return value

    def objects(self, name: str) -> list[tuple[str, Any]]:
        items = self.take(name, list)
        return [(f"{self.where}.{name}[{index}]", item) for index, item in enumerate(items)]

    def done(self) -> None:
        if self.left:
            raise _wrong(self.where, "no further field", ", ".join(sorted(self.left)))


def _wrong(where: str, expected: str, got: Any) -> BundleFormatError:
    text = got if isinstance(got, str) else json.dumps(got)[:80]
    return BundleFormatError(
        "the manifest is not as the format says", argument=where, expected=expected, got=text
    )


def parse(data: bytes, where: str) -> Manifest:
    """A manifest from its bytes.

    Raises:
        BundleFormatError: it is no manifest; the message names the field.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise BundleFormatError("the manifest is no JSON", argument=where, got=str(error)) from None
    reader = _Reader(document, where)
    reader.take("format", int)
    tools = {name: str(value) for name, value in reader.take("tools", dict).items()}
    rules = _rules(_Reader(reader.take("rules"), f"{where}.rules"))
    kernels = {
        name: _kernel(_Reader(item, f"{where}.kernels.{name}"))
        for name, item in reader.take("kernels", dict).items()
    }
    members = reader.take("members", dict)
    cache = reader.take("cache", dict)
    reader.done()
    for name, digest in members.items():
        if not isinstance(digest, str) or len(digest) != 64:
            raise _wrong(f"{where}.members.{name}", "a sha256", digest)
    for key, files in cache.items():
        if not isinstance(files, dict) or not all(m in members for m in files.values()):
            raise _wrong(f"{where}.cache.{key}", "names of members", files)
    for name, kernel in kernels.items():
        for form in kernel.forms:
            for member in filter(None, (form.code, form.source)):
                if member not in members:
                    raise _wrong(f"{where}.kernels.{name}", "a member of the bundle", member)
    return Manifest(tools, rules, kernels, members, cache)


def rules_of(value: Any) -> Rules:
    """Rules from their JSON."""
    return _rules(_Reader(value, "rules"))


def pattern_of(value: Any) -> Pattern:
    """A pattern from its JSON."""
    return _pattern(_Reader(value, "pattern"))


def _rules(reader: _Reader) -> Rules:
    divisibility = reader.natural("divisibility")
    constants = tuple(reader.take("constants", list))
    integers = tuple(tuple(item) for item in reader.take("integers", list))
    small = reader.take("small", int)
    reader.done()
    if divisibility < 1 or not all(type(value) is int for value in constants):
        raise _wrong(reader.where, "a divisor and integers", [divisibility, *constants])
    for item in integers:
        if len(item) != 3 or [type(part) for part in item] != [str, int, int]:
            raise _wrong(f"{reader.where}.integers", "type, least and most", list(item))
    return Rules(divisibility, constants, integers, small)


def _kernel(reader: _Reader) -> Kernel:
    function, module, identity = (reader.take(n, str) for n in ("function", "module", "identity"))
    parameters = tuple(_parameter(_Reader(v, w)) for w, v in reader.objects("parameters"))
    forms = tuple(_form(_Reader(v, w), len(parameters)) for w, v in reader.objects("forms"))
    reader.done()
    if len({form.key for form in forms}) != len(forms):
        raise _wrong(f"{reader.where}.forms", "forms that differ", "one twice")
    return Kernel(function, module, identity, parameters, forms)


def _parameter(reader: _Reader) -> Parameter:
    default = reader.take("default", dict, type(None))
    made = Parameter(
        name=reader.take("name", str),
        constexpr=reader.take("constexpr", bool),
        specialize=reader.take("specialize", bool),
        align=reader.take("align", bool),
        type=reader.take("type", str),
        kind=reader.take("kind", str),
        default=None if default is None else _constant(_Reader(default, f"{reader.where}.default")),
    )
    reader.done()
    if made.kind not in ("plain", "keyword", "variadic"):
        raise _wrong(f"{reader.where}.kind", "plain, keyword or variadic", made.kind)
    return made


def _constant(reader: _Reader) -> Constant:
    if "opaque" in reader.left:
        found = Constant(reader.take("opaque", str), True, reader.take("identity", str))
    else:
        found = Constant(frozen(reader.take("constant")))
    reader.done()
    return found


def frozen(value: Any) -> Any:
    """A value of JSON as Python code has it: a list is a tuple."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


def _pattern(reader: _Reader) -> Pattern:
    if "tuple" in reader.left:
        items = tuple(_pattern(_Reader(v, w)) for w, v in reader.objects("tuple"))
        reader.done()
        return Tuple(items)
    if "descriptor" in reader.left:
        return _described(reader)
    if "type" not in reader.left:
        return _constant(reader)
    made = Value(
        *(reader.take(n, k) for n, k in (("type", str), ("divisible", bool), ("small", bool)))
    )
    reader.done()
    return made


def _described(reader: _Reader) -> Described:
    text, element = reader.take("descriptor", str), reader.take("element", str)
    rank, block = reader.natural("rank"), reader.take("block", list)
    reader.done()
    if not 1 <= rank <= 5 or not block or not all(type(size) is int for size in block):
        raise _wrong(reader.where, "a descriptor of 1 to 5 dimensions", text)
    return Described(text, element, rank, tuple(block))


def _map(reader: _Reader) -> TensorMap:
    swizzle, kind, size = (
        reader.natural(name) for name in ("swizzle", "element_type", "element_bytes")
    )
    padded, box = reader.take("fp4_padded", bool), reader.take("box", list)
    reader.done()
    if not 1 <= len(box) <= 5 or not all(type(n) is int and 0 < n < 2**31 for n in box):
        raise _wrong(f"{reader.where}.box", "1 to 5 sizes", box)
    return TensorMap(swizzle, kind, size, padded, tuple(box))


def _form(reader: _Reader, count: int) -> Form:
    target, driver, architecture, code, key = (
        reader.take(name, str) for name in ("target", "driver", "architecture", "code", "key")
    )
    arguments = tuple(_pattern(_Reader(v, w)) for w, v in reader.objects("arguments"))
    if len(arguments) != count:
        raise _wrong(f"{reader.where}.arguments", f"{count} patterns", str(len(arguments)))
    grid = reader.take("grid", list, type(None))
    if grid is not None and ([type(size) for size in grid] != [int] * 3 or min(grid) < 0):
        raise _wrong(f"{reader.where}.grid", "three sizes", grid)
    options = {name: frozen(value) for name, value in reader.take("options", dict).items()}
    given = tuple(reader.take("given", list))
    if not all(name in options for name in given):
        raise _wrong(f"{reader.where}.given", "names of options", list(given))
    launch = _launch(_Reader(reader.take("launch"), f"{reader.where}.launch"))
    packing = _packing(_Reader(reader.take("packing"), f"{reader.where}.packing"), arguments)
    metadata, source = reader.take("metadata", dict), reader.take("source", str, type(None))
    reader.done()
    return Form(
        target,
        driver,
        architecture,
        arguments,
        options,
        given,
        None if grid is None else (grid[0], grid[1], grid[2]),
        launch,
        packing,
        code,
        key,
        metadata,
        source,
    )


def _launch(reader: _Reader) -> Launch:
    made = Launch(
        entry=reader.take("entry", str),
        num_warps=reader.natural("num_warps"),
        warp_size=reader.natural("warp_size"),
        num_ctas=reader.natural("num_ctas"),
        shared=reader.natural("shared"),
        cooperative=reader.take("cooperative", bool),
        dependent=reader.take("dependent", bool),
        global_scratch=_pair(reader, "global_scratch"),
        profile_scratch=_pair(reader, "profile_scratch"),
    )
    reader.done()
    if not 1 <= made.threads <= 1024 or made.num_ctas < 1:
        raise _wrong(reader.where, "1 to 1024 threads", str(made.threads))
    return made


def _pair(reader: _Reader, name: str) -> tuple[int, int]:
    pair = reader.take(name, list)
    if [type(item) for item in pair] != [int, int] or pair[0] < 0 or pair[1] < 1:
        raise _wrong(f"{reader.where}.{name}", "bytes and alignment", pair)
    return pair[0], pair[1]


def _packing(reader: _Reader, arguments: Sequence[Pattern]) -> Packing:
    fields, end = [], 0
    passed = (Value, Described)
    leaves = [(path, found) for path, found in leaves_of(arguments) if isinstance(found, passed)]
    kinds = dict(leaves)
    for where, item in reader.objects("fields"):
        inner = _Reader(item, where)
        path = tuple(inner.take("path", list))
        code, offset = inner.take("code", str), inner.natural("offset")
        made = _map(_Reader(inner.take("map"), f"{where}.map")) if code == "map" else None
        field = Field(path, code, offset, made)
        inner.done()
        size = MAP_ALIGNMENT if made is not None else CODE_SIZES.get(code)
        kind = kinds.get(path)
        rank = kind.rank if isinstance(kind, Described) else None
        if (
            size is None
            or offset % size
            or offset < end
            or rank != (None if made is None else len(made.box))
        ):
            raise _wrong(where, "a known code at an aligned place of its own", item)
        end = field.end
        fields.append(field)
    if [field.path for field in fields] != [path for path, _ in leaves]:
        raise _wrong(
            f"{reader.where}.fields", "one for each argument that is no constant", "others"
        )
    scratch, size = reader.take("scratch", list), reader.natural("size")
    reader.done()
    if [type(offset) for offset in scratch] != [int, int]:
        raise _wrong(f"{reader.where}.scratch", "two offsets", scratch)
    if not end <= scratch[0] <= scratch[1] - 8 <= size - 16 or scratch[0] % 8 or scratch[1] % 8:
        raise _wrong(f"{reader.where}.scratch", "two offsets behind the arguments", scratch)
    return Packing(tuple(fields), (scratch[0], scratch[1]), size)


def leaves_of(
    patterns: Sequence[Pattern], before: tuple[int, ...] = ()
) -> list[tuple[tuple[int, ...], Pattern]]:
    """(path, pattern) of all that is no tuple, in order."""
    found: list[tuple[tuple[int, ...], Pattern]] = []
    for index, pattern in enumerate(patterns):
        path = (*before, index)
        if isinstance(pattern, Tuple):
            found += leaves_of(pattern.items, path)
        else:
            found.append((path, pattern))
    return found


def digest_of(data: bytes) -> str:
    """sha256 as hex."""
    return hashlib.sha256(data).hexdigest()


_LETTERS = "bBhHiIqQfd"  # of struct that C packs; 16-bit floats are left to Python


def letters_of(form: Form) -> Optional[str]:
    """Return one letter per parameter for the C engine: P for a pointer, x for a constant, those of a tuple in
    parentheses; None for a form that it does not launch."""
    codes = {field.path: field.code for field in form.packing.fields}

    def letter(pattern: Pattern, path: tuple[int, ...]) -> str:
        if isinstance(pattern, Constant):
            return "x"
        if isinstance(pattern, Tuple):
            items = enumerate(pattern.items)
            return f"({''.join(letter(item, (*path, i)) for i, item in items)})"
        code = codes[path] if isinstance(pattern, Value) else ""
        if isinstance(pattern, Value) and pattern.type.startswith("*"):
            return "P"
        return code if code and code in _LETTERS else "?"

    letters = "".join(letter(pattern, (i,)) for i, pattern in enumerate(form.arguments))
    return None if "?" in letters else letters
