"""The state of objects that are known by value; all others are known by identity.

Values of a few packages are identified as `pickle` would carry them. Objects of a program's own
classes are their attributes and items, read without running any code of theirs. Whatever else there
is (loggers, mocks, modules of networks, tensors, locks) is itself and nothing more.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import operator
import types
import weakref
from typing import Any, Callable, Collection, NamedTuple, Optional

import numpy

from gluon_core.values.code import is_fixed, is_offered, is_standard

__all__ = ["State", "number_of", "state_of"]

# Modules of Python's own library whose objects are values, and which ordinary classes derive from.
_VALUES = frozenset(
    "_collections argparse array builtins collections dataclasses datetime decimal enum fractions "
    "functools ipaddress operator pathlib re types typing uuid".split()
)
_BASES = frozenset("abc numbers".split())
_CONTENTS: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: list(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: frozenset(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex.__add__(value, 0j),
}


class State(NamedTuple):
    """The content of an object.

    Args:
        parts: values that tell it from others of its class.
        frozen: apart from those, it does not change.
        fixed: its class is of a package that does not change.
    """

    parts: tuple[Any, ...]
    frozen: bool
    fixed: bool


def state_of(value: Any) -> Optional[State]:
    """Return the state of `value`; None for an object that is nothing but itself."""
    cls = type(value)
    own = _own.get(cls, _UNKNOWN)
    if own is _UNKNOWN:
        if hasattr(cls, "data_ptr"):
            return None  # memory: its content is no constant
        if is_fixed(cls.__module__):
            return _state_of_fixed(value)
        own = _own[cls] = _own_of(cls)
    return None if own is None else _state_of_own(value, own)


_UNKNOWN: Any = object()


def _state_of_fixed(value: Any) -> Optional[State]:
    cls = type(value)
    top = cls.__module__.partition(".")[0]
    if isinstance(value, numpy.ndarray):
        return None  # of another class than arrays have: a mapped file, say
    standard = is_standard(top)
    if standard and (top not in _VALUES or not is_offered(cls)):
        return None
    if top == "torch" and cls.__name__ not in (
        "Size",
        "device",
        "dtype",
        "layout",
        "memory_format",
    ):
        return None
    registered = copyreg.dispatch_table.get(cls)
    try:
        reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
    except Exception:  # no pickle for it, which it may say in any way
        state = getattr(value, "__dict__", None)
        reduced = (_NEW, (cls,), state) if state else None
    if reduced is None:
        return None
    immutable = isinstance(value, (numpy.generic, numpy.dtype, range, slice))
    frozen = immutable or not (standard or top in ("numpy", "torch"))
    if isinstance(reduced, str):
        return State((getattr(value, "__module__", None) or cls.__module__, reduced), frozen, True)
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    if make is _NEW and len(arguments) == 1 and not (state or items or pairs):
        return None if cls is object else State((), frozen, True)
    parts = [tuple(arguments[1:])] if make is _NEW else [make, tuple(arguments)]
    if isinstance(state, dict) and all(isinstance(key, str) for key in state):
        state = _sorted(state, [n for n in state if _is_cache(cls, n)])
    parts.append(state)
    parts += [list(items or ()), list(pairs or ())]
    return State(tuple(parts), frozen, True)


class _Own(NamedTuple):
    """The way to read objects of one of the program's own classes.

    Args:
        content: gives the items of one that derives from a container or another value.
        slots: descriptors of the attributes that are in no `__dict__`, by name.
        caches: names of attributes that only keep a result.
        compares: objects without state are equal to each other.
        frozen: see `State`.
    """

    content: Optional[Callable[[Any], Any]]
    slots: tuple[tuple[str, Any], ...]
    caches: frozenset[str]
    compares: bool
    frozen: bool


_own: weakref.WeakKeyDictionary[type, Optional[_Own]] = weakref.WeakKeyDictionary()


def _own_of(cls: type) -> Optional[_Own]:
    """Return the way to read objects of `cls`; None where they are nothing but themselves."""
    if not is_fixed(type(cls).__module__) or not all(map(_is_base, cls.__mro__)):
        return None
    members = [(n, member) for base in reversed(cls.__mro__) for n, member in vars(base).items()]
    cached = functools.cached_property
    dataclass = getattr(cls, "__dataclass_params__", None)
    equal: Any = cls.__eq__
    return _Own(
        content=next((_CONTENTS[base] for base in cls.__mro__ if base in _CONTENTS), None),
        slots=tuple((n, m) for n, m in members if isinstance(m, types.MemberDescriptorType)),
        caches=frozenset(n for n, member in members if isinstance(member, cached)),
        compares=equal is not object.__eq__,
        frozen=(
            bool(dataclass.frozen)
            if dataclass is not None
            else issubclass(cls, tuple) and cls.__dictoffset__ == 0
        ),
    )


def _state_of_own(value: Any, own: _Own) -> Optional[State]:
    parts: list[Any] = [] if own.content is None else [own.content(value)]
    attributes: dict[str, Any] = {}
    for name, slot in own.slots:
        try:
            attributes[name] = slot.__get__(value)
        except AttributeError:  # it was not set
            pass
    try:
        attributes.update(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        pass
    if attributes:
        parts.append(_sorted(attributes, own.caches))
    return State(tuple(parts), own.frozen, False) if parts or own.compares else None


def _sorted(state: dict[str, Any], caches: Collection[str] = ()) -> Any:
    """Return `state` without caches, in an order that does not depend on its history."""
    kept = [item for item in state.items() if item[0] not in caches]
    return tuple(sorted(kept, key=operator.itemgetter(0)))


_NEW: Any = getattr(copyreg, "__newobj__")  # noqa: B009  # makes most objects that are pickled


def _is_cache(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


def _is_base(base: type) -> bool:
    if base is object or base in _CONTENTS:
        return True
    if not is_fixed(base.__module__):
        return True
    top = base.__module__.partition(".")[0]
    if top in ("numpy", "torch", "builtins"):
        return False
    return not is_standard(top) or top in _VALUES or top in _BASES


_numbers: dict[int, tuple[Callable[[], Any], int]] = {}
_next_number = itertools.count()


def number_of(value: Any) -> int:
    """Return a number that no other object of this process has, or had."""
    known = _numbers.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    address, number = id(value), next(_next_number)
    look: Callable[[], Any]
    try:
        look = weakref.ref(value, lambda _: _numbers.pop(address, None))
    except TypeError:
        look = functools.partial(_identity, value)  # it lives on, so that its address stays its own
    _numbers[address] = (look, number)
    return number


def _identity(value: Any) -> Any:
    return value
