"""`index.bin`: the manifest in a form that C reads without a parser of JSON.

Little-endian records, one behind the other, each followed by those that it counts. Strings end with 0 and are at the
end. `c/bundle_file.h` of gluon-runtime reads it, docs/bundles.md lists the records.
"""

from __future__ import annotations

import json
import struct
from typing import Iterator

from gluon_runtime.conditions import CONSTANT_SCORE, KINDS, Condition, condition
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
VERSION = 4
_HEADER = struct.Struct("<8s4I")
_KERNEL = struct.Struct("<3I")
_FORM = struct.Struct("<25I")
_OTHERS = {*KINDS} - {"integer", "unsigned"}


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
