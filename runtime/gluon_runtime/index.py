"""`index.bin`: the manifest in a form that C reads without a parser of JSON.

Little-endian words of 32 bits; a place is given in bytes behind the start. Strings end
with 0 and are at the end. `c/gluon_bundle.h` reads it, docs/bundles.md lists the records.
"""

from __future__ import annotations

import json
import struct
from typing import Callable

from gluon_runtime.manifest import (
    Constant,
    Described,
    Form,
    Kernel,
    Manifest,
    Rules,
    TensorMap,
    Value,
    condition_of,
    leaves_of,
    spoken,
)
from gluon_runtime.rules import ALIGN, CONSTANT, CONSTANT_SCORE, SPECIALIZE, Condition

__all__ = ["MAGIC", "VERSION", "build"]

MAGIC = b"GLBINDEX"
VERSION = 3
_HEADER = struct.Struct("<8s6IQ")
_KERNEL = struct.Struct("<5I")
_PARAMETER = struct.Struct("<2I")
_FORM = struct.Struct("<25I")
_ARGUMENT = struct.Struct("<8I8bqQqQQ")
_MAP = struct.Struct("<10I")

_COOPERATIVE, _DEPENDENT, _GRID = 1, 2, 4
# The kinds of values in C, `gb_kind`, and the score of one that code does not take.
_KINDS = ("pointer", "integer", "unsigned", "real", "boolean", "constant", "left out", "descriptor")
_NEVER = -128


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
    blocks: list[bytes] = []
    place = _HEADER.size + _KERNEL.size * len(manifest.kernels)

    def put(data: bytes) -> int:
        nonlocal place
        offset, place = place, place + len(data)
        blocks.append(data)
        return offset

    rows = b""
    for name, kernel in sorted(manifest.kernels.items()):
        parameters = put(b"".join(_parameters(kernel, strings)))
        listed = [
            _form(
                form,
                manifest.members[form.code],
                put(b"".join(_arguments(kernel, form, manifest.rules, strings, put))),
                strings,
            )
            for form in kernel.forms
        ]
        forms = put(b"".join(listed))
        row = (strings(name), len(kernel.parameters), parameters, len(listed), forms)
        rows += _KERNEL.pack(*row)
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        len(manifest.kernels),
        place,
        len(strings.data),
        manifest.rules.divisibility,
        0,
        manifest.rules.small,
    )
    return b"".join([head, rows, *blocks, bytes(strings.data)])


def _parameters(kernel: Kernel, strings: _Strings) -> list[bytes]:
    return [
        _PARAMETER.pack(
            strings(parameter.name),
            CONSTANT * parameter.constexpr
            | SPECIALIZE * parameter.specialize
            | ALIGN * parameter.align,
        )
        for parameter in kernel.parameters
    ]


def _arguments(
    kernel: Kernel, form: Form, rules: Rules, strings: _Strings, put: Callable[[bytes], int]
) -> list[bytes]:
    fields = {field.path: field for field in form.packing.fields}
    rows = []
    for path, pattern in leaves_of(form.arguments):
        parameter, field = kernel.parameters[path[0]], fields.get(path)
        offset = 0 if field is None else field.offset
        condition, code, rank = Condition({}, (0, 0), (1, 0)), 0, 0
        if isinstance(pattern, Value):
            assert field is not None
            condition = condition_of(parameter, pattern, rules)
            number, text = 1, condition.element or pattern.type
            code = ord("y") if field.code == "bf16" else ord(field.code)
            scores = _scores_of_value(condition, field.code)
        elif isinstance(pattern, Described):
            assert field is not None and field.map is not None
            number, text, rank, code = 2, pattern.text, pattern.rank, put(_map(field.map))
            scores = {"descriptor": 0}
        else:
            assert isinstance(pattern, Constant)
            number, text = 0, text_of(pattern)
            scores = dict.fromkeys(("integer", "unsigned", "constant"), CONSTANT_SCORE)
            if parameter.constexpr:
                scores = dict.fromkeys((*scores, "boolean", "left out"), 0)
        words = strings(spoken(pattern, rules))
        head = (path[0], number, strings(text), rank, code, offset, condition.divisor, words)
        listed = [scores.get(kind, _NEVER) for kind in _KINDS]
        small = 2**64 - 1 if condition.small is None else condition.small
        limits = (*condition.within, *condition.narrower)
        least, most = (-(2**63), 0) * 2, (2**63 - 1, 2**64 - 1) * 2
        clamped = [max(low, min(n, high)) for n, low, high in zip(limits, least, most)]
        rows.append(_ARGUMENT.pack(*head, *listed, *clamped, small))
    return rows


def _scores_of_value(condition: Condition, code: str) -> dict[str, int]:
    """Return the scores of C's kinds of values. There an integer is no address and no float."""
    known = dict(condition.scores)
    number = None if condition.element or code in ("e", "bf16", "f", "d") else known.get("int")
    scores = {
        "pointer": known.get("pointer"),
        "integer": number,
        "unsigned": number,
        "real": known.get("float"),
        "boolean": known.get("bool"),
    }
    return {kind: score for kind, score in scores.items() if score is not None}


def _map(encoding: TensorMap) -> bytes:
    box = [*encoding.box, *[0] * (5 - len(encoding.box))]
    head = (encoding.swizzle, encoding.element_type, encoding.element_bytes, encoding.fp4_padded)
    return _MAP.pack(*map(int, head), len(encoding.box), *box)


def _form(form: Form, digest: str, arguments: int, strings: _Strings) -> bytes:
    launch, packing = form.launch, form.packing
    options = {name: form.options[name] for name in form.explicit}
    flags = _COOPERATIVE * launch.cooperative | _DEPENDENT * launch.dependent
    return _FORM.pack(
        *map(
            strings, (form.target, form.driver, form.architecture, launch.entry, form.code, digest)
        ),
        strings(json.dumps(options, sort_keys=True, separators=(",", ":"))),
        launch.num_warps,
        launch.warp_size,
        launch.num_ctas,
        launch.shared,
        flags | _GRID * (form.grid is not None),
        *(form.grid or (0, 0, 0)),
        *launch.global_scratch,
        *launch.profile_scratch,
        len(leaves_of(form.arguments)),
        arguments,
        packing.size,
        *packing.scratch,
        0,
    )
