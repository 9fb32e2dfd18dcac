"""Types as signatures spell them."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, Mapping

from gluon_core import _triton
from gluon_core._triton import tl
from gluon_core.errors import CapabilityError, DtypeError, GluonError
from gluon_core.plugin.paths import load_named
from gluon_core.values.descriptors import parse_descriptor, split_descriptor

__all__ = ["check_descriptor", "parse_type"]

_SCALARS: Mapping[str, str] = {
    "i1": "int1",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u1": "int1",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "B": "int1",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
    "fp8e4b15": "float8e4b15",
    "fp8e4b8": "float8e4b8",
    "fp8e5b16": "float8e5b16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "fp64": "float64",
}


def check_descriptor(parameter: str, text: Any, session: Any) -> None:
    """See that a descriptor in a signature is for an engine of the target's vendor.

    Raises:
        CapabilityError: naming the missing capability of the descriptor's vendor.
    """
    parts = split_descriptor(text)
    if parts is None:
        return
    head = parts.head
    own = session.vendor.language.descriptors.get(head)
    if own is not None and _parses(text, own, head):
        return  # the ops report their requirements at their lines
    theirs = [path for path in session.all_descriptors(head) if _parses(text, path, head)]
    lacking = _lacking(theirs[0], head, session) if theirs else []
    if lacking:
        where = ", ".join(session.architectures_with(lacking[0]))
        raise CapabilityError(
            f"this tensor descriptor needs {lacking[0]} ({where}); target is {session.target}",
            argument=parameter,
            remedy="Pass the tensor, and copy with gl.portable.pipeline, gl.portable.async_copy or "
            "gl.load.",
        )


def _parses(text: str, path: str, head: str) -> bool:
    """Return True if a descriptor is one of the vendor who has `path`."""
    try:
        parse_descriptor(text, parse_type, {head: load_named(path, head)})
    except GluonError:
        return False
    return True


def _lacking(path: str, head: str, session: Any) -> list[str]:
    wanted = load_named(path, f"descriptors[{head!r}]").requires
    return [capability for capability in wanted if not session.target.has(capability)]


def parse_type(text: Any, descriptors: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Return the type that a signature entry names.

    `"*fp32"` is a pointer, `"*kfp32"` one that cannot be stored through, `"constexpr"` a
    compile-time value; a tuple of entries is a tuple argument. A type object is returned as it is.
    For `"tensordesc<...>"` see `gluon_core.values.descriptors`.

    Args:
        descriptors: `Language.descriptors`.

    Raises:
        DtypeError: an unknown name.
    """
    if isinstance(text, tuple):
        items = [parse_type(item, descriptors) for item in text]
        return tl.tuple_type(items, getattr(text, "_fields", None))
    if isinstance(text, _triton.base_type):
        return text
    if text is None or text == "constexpr":
        return tl.constexpr_type(None) if text is None else tl.constexpr
    if split_descriptor(text) is not None:
        types = {
            head: load_named(path, f"descriptors[{head!r}]") for head, path in descriptors.items()
        }
        return parse_descriptor(text, parse_type, types)
    match = re.fullmatch(r"(\*?)(k?)(\w+)", text)
    name = _SCALARS.get(match.group(3)) if match is not None else None
    if match is None or not name:
        raise DtypeError(
            "unknown type in a signature",
            argument="signature",
            expected="e.g. '*fp32', 'i32', 'constexpr'",
            got=repr(text),
            remedy="Give a descriptor that was made from an array, or its text: "
            "'tensordesc<fp16[128, 64],NVMMASharedLayout(128, 16, 2)>'."
            if "descriptor" in text.lower()
            else None,
        )
    scalar = getattr(tl, name)
    if not match.group(1):
        return scalar
    return tl.pointer_type(scalar, const=bool(match.group(2)))
