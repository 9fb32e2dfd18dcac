"""Messages to and from a candidate's process as plain data: no class of its choice is ever loaded here.

A pickle can run code where it is read, so the process that reads a candidate's answers admits numbers, texts, bytes and
containers alone, builds the messages itself, and refuses a field of another type.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import fields, is_dataclass
from typing import Any, Mapping

from gluon_judge.codes import CODES, Severity
from gluon_judge.confine import Layer
from gluon_judge.messages import Call, Event, Outcome, Packed, Sample

__all__ = ["Malformed", "loads", "plain", "restored"]

_KINDS: Mapping[str, type[Any]] = {
    one.__name__: one for one in (Call, Event, Layer, Outcome, Packed, Sample)
}
_MARK = "\0message"
_DEEPEST = 20
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool, int),
    "bytes": (bytes,),
}


class Malformed(Exception):
    """An answer is no message."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise Malformed(f"an answer names {module}.{name}")


def loads(data: bytes) -> Any:
    """Return pickled plain data.

    Raises:
        Malformed: it refers to a class or a function.
    """
    return _Plain(io.BytesIO(data)).load()


def plain(value: Any) -> Any:
    """Return a value with its messages as lists of their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return [_MARK, type(value).__name__, named]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return list(map(plain, value))
    return value


def restored(value: Any, depth: int = 0) -> Any:
    """Return the messages of plain data.

    Raises:
        Malformed: a field is missing, or of another type; a value is no plain data.
    """
    if depth > _DEEPEST:
        raise Malformed("an answer is nested too deep")
    if isinstance(value, list):
        if len(value) == 3 and value[0] == _MARK:
            return _message(value[1], value[2], depth)
        return [restored(one, depth + 1) for one in value]
    if isinstance(value, tuple):
        return tuple(restored(one, depth + 1) for one in value)
    if isinstance(value, dict):
        return {_key(key): restored(one, depth + 1) for key, one in value.items()}
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    raise Malformed(f"an answer has a {type(value).__name__}")


def _key(key: Any) -> Any:
    if type(key) not in (str, int):
        raise Malformed(f"an answer has a key of {type(key).__name__}")
    return key


def _message(name: Any, named: Any, depth: int) -> Any:
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(named, dict):
        raise Malformed(f"no message: {name!r}")
    declared = {one.name: str(one.type) for one in fields(kind)}
    if set(declared) != set(named):
        raise Malformed(f"{name} has other fields")
    values = {key: restored(one, depth + 1) for key, one in named.items()}
    for key, one in values.items():
        types = _TYPES.get(declared[key])
        if types is not None and type(one) not in types:
            raise Malformed(f"{name}.{key} is a {type(one).__name__}")
    message = kind(**values)
    if isinstance(message, Outcome):
        _check_outcome(message)
    if isinstance(message, Event) and (
        message.code not in CODES or message.severity not in ("", *Severity)
    ):
        raise Malformed(f"no finding: {message.code!r}")
    if isinstance(message, Sample) and not all(isinstance(one, Packed) for one in message.results):
        raise Malformed("a result is not a tensor")
    return message


def _check_outcome(outcome: Outcome) -> None:
    """Refuse an outcome whose parts are not those that a session sends.

    Raises:
        Malformed: they are not.
    """
    lists = {
        "events": Event,
        "launches": tuple,
        "caught": tuple,
        "proofs": tuple,
        "compiled": tuple,
        "products": str,
    }
    for name, kind in lists.items():
        one = getattr(outcome, name)
        if type(one) is not list or not all(isinstance(part, kind) for part in one):
            raise Malformed(f"{name} of an outcome")
    sizes = {"launches": 4, "caught": 3, "proofs": 3, "compiled": 2}
    for name, size in sizes.items():
        if any(len(part) != size for part in getattr(outcome, name)):
            raise Malformed(f"{name} of an outcome")
    for name in ("operations", "counts"):
        one = getattr(outcome, name)
        if type(one) is not dict or not all(type(part) in (int, float) for part in one.values()):
            raise Malformed(f"{name} of an outcome")
    results = outcome.results
    if results is not None and not (
        type(results) is list and all(isinstance(part, Packed) for part in results)
    ):
        raise Malformed("results of an outcome")
    error = outcome.error
    if error is not None:
        texts = ("class", "text", "report", "file")
        if type(error) is not dict or any(type(error.get(name)) is not str for name in texts):
            raise Malformed("error of an outcome")
        if type(error.get("line")) is not int or type(error.get("classes")) is not list:
            raise Malformed("error of an outcome")
