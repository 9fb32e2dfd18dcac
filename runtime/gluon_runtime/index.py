"""`index.bin`: the manifest in a form that C reads without a parser of JSON.

Little-endian records, one behind the other, each followed by those that it counts. Strings end with 0 and are at the
end. `c/bundle_file.h` reads it, docs/bundles.md lists the records.
"""

from __future__ import annotations

import json
import struct
from typing import Iterator, Mapping, NamedTuple, Optional

from gluon_runtime.manifest import (
    Constant,
    Described,
    Form,
    Kernel,
    Manifest,
    Parameter,
    Rules,
    TensorMap,
    Value,
    leaves_of,
    spoken,
)

__all__ = ["CONSTANT_SCORE", "KINDS", "MAGIC", "VERSION", "build", "condition"]

MAGIC = b"GLBINDEX"
VERSION = 4
_HEADER = struct.Struct("<8s4I")
_KERNEL = struct.Struct("<3I")
_FORM = struct.Struct("<25I")
_ARGUMENT = struct.Struct("<7I8bqQqQQ48s")
_MAP = struct.Struct("<I6i5I")  # `MapKind` of `c/driver.h`

# The kinds of values in C, `gb_kind`, and the score of one that code does not take.
KINDS = ("pointer", "integer", "unsigned", "real", "boolean", "constant", "left out", "descriptor")
_OTHERS = {*KINDS} - {"integer", "unsigned"}
_NEVER = -128
CONSTANT_SCORE = 4  # of an argument that is a constant of the code
_RAW, _WIDER = -3, -2  # scores of an address for a pointer, and of a type wider than the usual one
_ANY, _NONE = (-(2**1024), 2**1024), (1, 0)  # integers


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._known = {"": 0}

    def __call__(self, text: str) -> int:
        """Return the place of `text`, counted from the first string."""
        if text not in self._known:
            self._known[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._known[text]


def text_of(constant: Constant) -> str:
    """Return C's name of a constant: JSON without blanks, or the text of an opaque one."""
    if constant.opaque:
        return str(constant.value)
    return json.dumps(constant.value, separators=(",", ":"))


def build(manifest: Manifest) -> bytes:
    """Return the index of a manifest; the same for the same manifest."""
    strings = _Strings()
    records = [
        record
        for name, kernel in sorted(manifest.kernels.items())
        for record in _kernel(name, kernel, manifest, strings)
    ]
    forms = sum(len(kernel.forms) for kernel in manifest.kernels.values())
    head = _HEADER.pack(MAGIC, VERSION, len(manifest.kernels), forms, len(strings.data))
    return b"".join([head, *records, bytes(strings.data)])


def _kernel(name: str, kernel: Kernel, manifest: Manifest, strings: _Strings) -> Iterator[bytes]:
    """Yield the records of a kernel."""
    yield _KERNEL.pack(strings(name), len(kernel.parameters), len(kernel.forms))
    for parameter in kernel.parameters:
        yield strings(parameter.name).to_bytes(4, "little")
    for form in kernel.forms:
        yield _form(form, manifest.members[form.code], strings)
        yield from _arguments(kernel, form, manifest.rules, strings)


class Condition(NamedTuple):
    """The arguments that code takes for a parameter, and the score of each: launches choose the code of the highest sum.

    Args:
        scores: by the kind of the argument, one of `KINDS`; the code takes no others.
        within: the least and the most of an integer or address.
        narrower: of integers that have a narrower type of their own, which cost two points.
        divisor: of integers and addresses.
        text: the element type of a pointer, or the type.
        small: the most bytes of storage behind a pointer.
    """

    scores: Mapping[str, int]
    within: tuple[int, int] = (0, 0)
    narrower: tuple[int, int] = (1, 0)
    divisor: int = 1
    text: str = ""
    small: int = 2**64 - 1

    def packed(  # noqa: PLR0913 - the fields of the record
        self,
        kind: int,
        parameter: int = 0,
        text: int = 0,
        code: int = 0,
        offset: int = 0,
        words: int = 0,
        encoding: Optional[TensorMap] = None,
    ) -> bytes:
        """Return an `ArgumentRow` of `c/choice.h`."""
        scores = [self.scores.get(name, _NEVER) for name in KINDS]
        least, most = (-(2**63), 0) * 2, (2**63 - 1, 2**64 - 1) * 2
        limits = zip(least, (*self.within, *self.narrower), most)
        clamped = [max(low, min(number, high)) for low, number, high in limits]
        head = (parameter, kind, text, code, offset, self.divisor, words)
        return _ARGUMENT.pack(*head, *scores, *clamped, self.small, _map(encoding))


def condition(parameter: Parameter, pattern: Value, rules: Rules) -> Condition:
    """Return the arguments that fit a value of a form. An integer may be an address or a float."""
    kind, annotated = pattern.type, parameter.type == pattern.type
    marks, divisor = pattern.divisible + pattern.small, 1
    if pattern.divisible:
        divisor = rules.divisibility
    if kind.startswith("*"):
        element = kind.removeprefix("*k").removeprefix("*")
        scores = {"pointer": marks, "integer": marks + _RAW, "unsigned": marks + _RAW}
        small = rules.small if pattern.small else 2**64 - 1
        return Condition(
            scores, (0, 2**64 - 1), _NONE, divisor, "u1" if element == "i1" else element, small
        )
    if kind[:2] in ("fp", "bf") or kind == "f32":
        scores = {"real": 0 if kind in ("fp32", "f32") else _WIDER}
        scores |= {"integer": 0, "unsigned": 0} if annotated else {}
        return Condition(scores, _ANY, text=kind)
    if kind in ("u1", "i1"):
        scores = {"boolean": 0, "integer": 0, "unsigned": 0} if parameter.type else {"boolean": 0}
        return Condition(scores, (0, 1), text=kind)
    bits = int(kind[1:]) if kind[:1] in "iu" and kind[1:].isdigit() else 0
    sign = 2 ** (bits - 1) if kind[:1] == "i" and bits else 0
    within = (-sign, 2**bits - 1 - sign) if bits else _NONE
    usual, narrower = [name for name, _, _ in rules.integers], _ANY
    if annotated or kind == usual[0]:
        narrower = _NONE
    elif kind in usual:
        narrower = rules.integers[usual.index(kind) - 1][1:]
    return Condition({"integer": marks, "unsigned": marks}, within, narrower, divisor, kind)


def _strict(known: Condition, code: str) -> Condition:
    """Return the condition for programs in C, where an integer is neither an address nor a float."""
    if "pointer" not in known.scores and code not in ("e", "bf16", "f", "d"):
        return known
    return known._replace(scores={k: known.scores[k] for k in known.scores.keys() & _OTHERS})


def _arguments(kernel: Kernel, form: Form, rules: Rules, strings: _Strings) -> Iterator[bytes]:
    """Yield the records of the arguments of a form, those of tuples in a row."""
    fields = {field.path: field for field in form.packing.fields}
    for path, pattern in leaves_of(form.arguments):
        parameter, field = kernel.parameters[path[0]], fields.get(path)
        offset, code, encoding = 0 if field is None else field.offset, 0, None
        if isinstance(pattern, Value):
            assert field is not None
            known = _strict(condition(parameter, pattern, rules), field.code)
            number, text = 1, known.text
            code = ord("y") if field.code == "bf16" else ord(field.code)
        elif isinstance(pattern, Described):
            assert field is not None and field.map is not None
            number, text, encoding = 2, pattern.text, field.map
            known = Condition({"descriptor": 0})
        else:
            assert isinstance(pattern, Constant)
            number, text = 0, text_of(pattern)
            scores = dict.fromkeys(("integer", "unsigned", "constant"), CONSTANT_SCORE)
            if parameter.constexpr:
                scores = dict.fromkeys((*scores, "boolean", "left out"), 0)
            known = Condition(scores)
        words = strings(spoken(pattern, rules))
        yield known.packed(number, path[0], strings(text), code, offset, words, encoding)


def _map(encoding: Optional[TensorMap]) -> bytes:
    if encoding is None:
        return bytes(_MAP.size)
    head = (len(encoding.box), encoding.swizzle, encoding.element_type, encoding.element_bytes)
    box = [*encoding.box[::-1], *[0] * (5 - len(encoding.box))]
    return _MAP.pack(0, 1, *head, encoding.fp4_padded, *box)


def _form(form: Form, digest: str, strings: _Strings) -> bytes:
    launch, packing = form.launch, form.packing
    options = {name: form.options[name] for name in form.explicit}
    texts = (
        form.target,
        form.driver,
        form.architecture,
        launch.entry,
        json.dumps(options, sort_keys=True, separators=(",", ":")),
        form.code,
        digest,
    )
    return _FORM.pack(
        *map(strings, texts),
        launch.num_warps,
        launch.warp_size,
        launch.num_ctas,
        launch.shared,
        launch.cooperative,
        launch.dependent,
        form.grid is not None,
        *(form.grid or (0, 0, 0)),
        *launch.global_scratch,
        *launch.profile_scratch,
        packing.size,
        *packing.scratch,
        len(leaves_of(form.arguments)),
    )
