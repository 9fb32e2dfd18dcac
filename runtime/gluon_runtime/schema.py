"""Dataclasses as JSON objects: one declaration reads, checks and writes them.

A field has the JSON type of its annotation: `int`, `Natural` (0 to 2**31 - 1), `str`, `bool`, `Any`, `Optional[...]`,
`tuple[...]` (a list), `Mapping[str, ...]`, a dataclass, or a union of dataclasses, which the names of their fields
distinguish. A dataclass may have a method `check()`, which raises `mistake(...)`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Annotated, Any, Callable, Mapping, Union

from gluon_runtime.errors import BundleFormatError

__all__ = ["Natural", "mistake", "read", "written"]

Reader = Callable[[Any], Any]


Natural = Annotated[int, "0 to 2**31 - 1"]


def mistake(where: str, expected: str, got: Any) -> BundleFormatError:
    """Return the error for a value that is not as declared.

    Args:
        where: the place within the object that is read, such as `.grid`; "" for the object.
    """
    text = got if isinstance(got, str) else json.dumps(got)[:80]
    return BundleFormatError(
        "the manifest is not as the format says", argument=where, expected=expected, got=text
    )


def frozen(value: Any) -> Any:
    """Return a value of JSON as Python code has it: a list is a tuple."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


def read(kind: Any, value: Any, where: str) -> Any:
    """Return an object of the annotation `kind` from its JSON.

    Args:
        where: the name of the value in errors.

    Raises:
        BundleFormatError: the JSON is not as declared; the message names the field.
    """
    try:
        return _reader(kind)(value)
    except BundleFormatError as error:
        error.argument = f"{where}{error.argument}"
        raise


def written(value: Any) -> Any:
    """Return the JSON of a dataclass, as `read` takes it; a field that is not always there is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {
            f.metadata.get("name", f.name): written(item)
            for f, item in pairs
            if "absent" not in f.metadata or item != f.metadata["absent"]
        }
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    return list(map(written, value)) if isinstance(value, (list, tuple)) else value


def _exact(*kinds: type) -> Reader:
    """Return a reader of values of exactly these types."""

    def read_exact(value: Any) -> Any:
        if type(value) not in kinds:
            raise mistake("", " or ".join(kind.__name__ for kind in kinds), value)
        return value

    return read_exact


_of_list, _of_object = _exact(list), _exact(dict)


def _natural(value: Any) -> Any:
    if type(value) is not int or not 0 <= value < 2**31:
        raise mistake("", "int" if type(value) is not int else "0 to 2**31 - 1", value)
    return value


_READERS: dict[Any, Reader] = {
    Any: frozen,
    Natural: _natural,
    int: _exact(int),
    str: _exact(str),
    bool: _exact(bool),
}


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return `f(value, where)`, which reads values of an annotation."""
    if kind in _READERS:
        return _READERS[kind]
    if dataclasses.is_dataclass(kind):
        return _object(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _tuple(inner)
    if origin in (Union, types.UnionType):
        return _union([part for part in inner if part is not type(None)], type(None) in inner)
    item = _reader(inner[1])  # of a mapping

    def read_mapping(value: Any) -> Any:
        parts: dict[str, Any] = {}
        for name, part in _of_object(value).items():
            try:
                parts[name] = item(part)
            except BundleFormatError as error:
                error.argument = f".{name}{error.argument}"
                raise
        return parts

    return read_mapping


def _tuple(inner: tuple[Any, ...]) -> Reader:
    several = inner[-1] is Ellipsis
    items = [_reader(kind) for kind in inner if kind is not Ellipsis]

    def read_tuple(value: Any) -> Any:
        if not several and len(_of_list(value)) != len(items):
            raise mistake("", f"{len(items)} values", value)
        readers = items * len(_of_list(value)) if several else items
        parts = []
        try:
            for reader, part in zip(readers, value):
                parts.append(reader(part))
        except BundleFormatError as error:
            error.argument = f"[{len(parts)}]{error.argument}"
            raise
        return tuple(parts)

    return read_tuple


def _union(parts: list[Any], optional: bool) -> Reader:
    readers = [(set(_names(part)), _reader(part)) for part in parts]

    def read_union(value: Any) -> Any:
        if value is None and optional:
            return None
        if len(readers) == 1:
            return readers[0][1](value)
        present = set(_of_object(value))
        best = max(readers, key=lambda pair: len(pair[0] & present))
        return best[1](value)

    return read_union


def _names(kind: Any) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    return [f.metadata.get("name", f.name) for f in dataclasses.fields(kind)]


@functools.cache
def _rows(kind: Any) -> list[tuple[str, str, Reader, Mapping[str, Any]]]:
    """Return the name of each field, that in JSON, its reader and its metadata."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (f.name, f.metadata.get("name", f.name), _reader(hints[f.name]), f.metadata)
        for f in dataclasses.fields(kind)
    ]


def _object(kind: Any) -> Reader:
    check = getattr(kind, "check", None)

    def read_object(value: Any) -> Any:
        rows, values, left = _rows(kind), {}, len(_of_object(value))
        for name, key, reader, metadata in rows:
            if key in value:
                left -= 1
                try:
                    values[name] = reader(value[key])
                except BundleFormatError as error:
                    error.argument = f".{key}{error.argument}"
                    raise
            elif "absent" in metadata:
                values[name] = metadata["absent"]
            else:
                raise mistake(f".{key}", "a value", "nothing")
        if left:
            more = sorted(set(value) - {key for _, key, _, _ in rows})
            raise mistake("", "no further field", ", ".join(more))
        result = kind(**values)
        if check is not None:
            check(result)
        return result

    return read_object
