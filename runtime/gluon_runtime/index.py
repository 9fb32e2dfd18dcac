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
    TensorMap,
    Value,
    leaves_of,
)
from gluon_runtime.rules import ALIGN, CONSTANT, SPECIALIZE

__all__ = ["MAGIC", "VERSION", "build"]

MAGIC = b"GLBINDEX"
VERSION = 1
_HEADER = struct.Struct("<8s6IQ")
_KERNEL = struct.Struct("<5I")
_PARAMETER = struct.Struct("<2I")
_FORM = struct.Struct("<25I")
_ARGUMENT = struct.Struct("<6I")
_MAP = struct.Struct("<10I")

_COOPERATIVE, _DEPENDENT, _GRID = 1, 2, 4
_DIVISIBLE, _SMALL, _OPAQUE = 1, 2, 4


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
        at, place = place, place + len(data)
        blocks.append(data)
        return at

    rows = b""
    for name, kernel in sorted(manifest.kernels.items()):
        parameters = put(b"".join(_parameters(kernel, strings)))
        listed = [
            _form(
                form,
                manifest.members[form.code],
                put(b"".join(_arguments(form, strings, put))),
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


def _arguments(form: Form, strings: _Strings, put: Callable[[bytes], int]) -> list[bytes]:
    fields = {field.path: field for field in form.packing.fields}
    rows = []
    for path, pattern in leaves_of(form.arguments):
        if isinstance(pattern, Value):
            field = fields[path]
            flags = _DIVISIBLE * pattern.divisible | _SMALL * pattern.small
            code = ord("y") if field.code == "bf16" else ord(field.code)
            rows.append(
                _ARGUMENT.pack(path[0], 1, strings(pattern.type), flags, code, field.offset)
            )
        elif isinstance(pattern, Described):
            field = fields[path]
            assert field.map is not None
            row = (
                path[0],
                2,
                strings(pattern.text),
                pattern.rank,
                put(_map(field.map)),
                field.offset,
            )
            rows.append(_ARGUMENT.pack(*row))
        elif isinstance(pattern, Constant):
            text = strings(text_of(pattern))
            rows.append(_ARGUMENT.pack(path[0], 0, text, _OPAQUE * pattern.opaque, 0, 0))
    return rows


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
