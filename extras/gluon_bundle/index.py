"""`index.bin`: the manifest in a form that C reads without a parser of JSON, where it is in the file.

Little-endian records that name each other, texts, and code objects of the file by their places, in bytes from the first
record. Texts end with 0. `c/choice.h` of gluon-runtime reads it, docs/bundles.md lists the records.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Mapping

from gluon_bundle import archive
from gluon_runtime.conditions import CONSTANT_SCORE, Condition, condition
from gluon_runtime.manifest import (
    Constant,
    Described,
    Form,
    Kernel,
    Manifest,
    Rules,
    Value,
    leaves_of,
    spoken,
)

__all__ = ["MAGIC", "VERSION", "build"]

MAGIC = b"GLBINDEX"
VERSION = 7
_HEADER = struct.Struct("<8s3I")
_KERNEL = struct.Struct("<4I")
_FORM = struct.Struct("<26I")
_CODE = struct.Struct("<3I")
_CODE_IN_FORM = 7 * 4


class _Index:
    """The bytes of an index that grows."""

    def __init__(self, first: int):
        self.data = bytearray(first)
        self._texts: dict[str, int] = {}

    def text(self, text: str) -> int:
        """Return the place of a text."""
        if text not in self._texts:
            self._texts[text] = self.add(text.encode() + b"\0")
        return self._texts[text]

    def add(self, *records: bytes) -> int:
        """Return the place of new records in a row."""
        place = len(self.data)
        self.data += b"".join(records)
        return place


def text_of(constant: Constant) -> str:
    """Return C's name of a constant: JSON without blanks, or the text of an opaque one."""
    if constant.opaque:
        return str(constant.value)
    return json.dumps(constant.value, separators=(",", ":"))


def build(manifest: Manifest, parts: Mapping[str, bytes]) -> bytes:
    """Return the index of a manifest; the same for the same manifest and parts.

    Args:
        parts: the content of the members of the file behind the index.
    """
    count = len(manifest.kernels)
    index = _Index(_HEADER.size + count * _KERNEL.size)
    _HEADER.pack_into(index.data, 0, MAGIC, VERSION, _HEADER.size, count)
    codes: dict[int, str] = {}
    for number, (name, kernel) in enumerate(sorted(manifest.kernels.items())):
        own = _HEADER.size + number * _KERNEL.size
        facts = [_facts(form, manifest, kernel, index) for form in kernel.forms]
        forms = len(index.data)
        for place, (form, fields) in enumerate(zip(kernel.forms, facts)):
            codes[index.add(_FORM.pack(forms + place * _FORM.size, own, *fields))] = form.code
        _KERNEL.pack_into(index.data, own, own, index.text(name), forms, len(kernel.forms))
    index.add(b"\0")
    behind = archive.places(parts)
    for place, member in codes.items():
        code = len(index.data) + behind[member], len(parts[member]), zlib.crc32(parts[member])
        _CODE.pack_into(index.data, place + _CODE_IN_FORM, *code)
    return bytes(index.data)


def _constant(value: Any, constexpr: bool) -> Condition:
    """Return the condition of a constant, which is known by its text; the most of a number is the number."""
    kinds, word = ["constant"], 0
    if constexpr:
        kinds.append("left out")
    if type(value) is bool and constexpr:
        kinds.append("boolean")
    elif type(value) is int:
        kinds += ["integer"] * (-(2**63) <= value < 2**63) + ["unsigned"] * (0 <= value < 2**64)
    if type(value) in (bool, int):
        word = value % 2**64
    return Condition(dict.fromkeys(kinds, 0 if constexpr else CONSTANT_SCORE), (0, word))


def _arguments(kernel: Kernel, form: Form, rules: Rules, index: _Index) -> list[bytes]:
    """Return the records of the arguments of a form, those of tuples in a row."""
    fields, records = {field.path: field for field in form.packing.fields}, []
    for path, pattern in leaves_of(form.arguments):
        parameter, field = kernel.parameters[path[0]], fields.get(path)
        code, encoding = 0, None
        if isinstance(pattern, Value):
            assert field is not None
            known = condition(parameter, pattern, rules)
            number, text = 1, known.text
            code = ord("y") if field.code == "bf16" else ord(field.code)
        elif isinstance(pattern, Described):
            assert field is not None and field.map is not None
            number, text, encoding = 2, pattern.element, field.map
            known = Condition({"descriptor": 0})
        else:
            assert isinstance(pattern, Constant)
            number, text = 0, text_of(pattern)
            known = _constant(pattern.value, parameter.constexpr)
        words = index.text(spoken(pattern, rules))
        texts = index.text(parameter.name), index.text(text), words
        records.append(known.packed(number, code, *texts, encoding))
    return records


def _facts(form: Form, manifest: Manifest, kernel: Kernel, index: _Index) -> list[int]:
    """Return the words of a form from its texts on, without the place of its code."""
    launch = form.launch
    options = {name: form.options[name] for name in form.explicit}
    texts = (
        form.target,
        form.driver,
        form.architecture,
        launch.entry,
        json.dumps(options, sort_keys=True, separators=(",", ":")),
    )
    arguments = _arguments(kernel, form, manifest.rules, index)
    return [
        *map(index.text, texts),
        *(0, 0, 0),
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
        index.add(*arguments),
        len(arguments),
    ]
