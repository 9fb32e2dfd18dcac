"""What makes two compile-time values the same.

A launch finds its compiled kernel by the text that this module gives each constant, the disk cache
finds it by the same text, and so does a call of one function by another within a kernel. Two values
with equal texts compile to the same code:

- Numbers, strings and containers are their value, type included: 1, True and 1.0 differ, as do 0.0
  and -0.0, and a tuple, a namedtuple and a list.
- What a package of ours, Triton, or Python's own library offers under a name is that name: the disk
  cache's key covers those packages as a whole.
- Other functions and classes are their code, with whatever they find outside of themselves: the
  functions that they call, the variables that they read, their defaults and base classes.
- Other objects are their class and their state, as `pickle` would carry it, whatever they print as.
- An object without any state is nothing but itself. It has a number in this process and means
  nothing to another: what depends on it is not kept on disk.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import itertools
import operator
import struct
import sys
import types
import weakref
from dataclasses import fields, is_dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

import numpy

from gluon_core import _triton
from gluon_core.layouts.base import Layout
from gluon_core.values.code import (
    Attributes,
    Closure,
    is_fixed,
    is_offered,
    is_standard,
    mentions,
    offered_text,
)

__all__ = ["ABSENT", "Identity", "Read", "changed", "identity", "text_of"]

ABSENT = object()


class Read(NamedTuple):
    """A variable that a function finds outside of itself.

    Args:
        name: as the function spells it, without the module before it.
        scope: where it is, a mapping.
        value: what it held when it was read.
        text: of that value.
        settled: no part of that value can change.
    """

    name: str
    scope: Any
    value: Any
    text: str
    settled: bool

    @property
    def place(self) -> tuple[str, int]:
        """Differs between variables."""
        return self.name, id(getattr(self.scope, "origin", self.scope))


def changed(reads: Iterable[Read]) -> bool:
    """Whether any of the variables has another value than it had."""
    for name, scope, value, text, settled in reads:
        now = scope.get(name, ABSENT)
        if (now is not value or not settled) and (now is ABSENT or text_of(now) != text):
            return True
    return False


class Identity(NamedTuple):
    """What a compile-time value is.

    Args:
        text: differs wherever the compiled code may.
        lasting: another process would say the same text and mean the same by it.
        settled: no part of the value can change, so that it may be recognised by its address.
        reads: the variables that kernels within the value depend on.
    """

    text: str
    lasting: bool
    settled: bool
    reads: tuple[Read, ...]


def identity(value: Any, home: Optional[str] = None) -> Identity:
    """What `value` is as a compile-time value; a `constexpr` is what it holds.

    Args:
        home: a module whose name says nothing of what it defines: a file is called otherwise when it
            is run than when it is imported.
    """
    if type(value) is _triton.constexpr:
        value = value.value
    atom = _ATOMS.get(type(value))
    if atom is not None:
        return Identity(atom(value), True, True, ())
    if type(value) in _layouts:
        return Identity(_layout_text(value), True, True, ())
    reader = _Reader(home=home)
    text = reader.text(value)
    return Identity(text, reader.lasting, reader.settled, tuple(reader.reads))


def text_of(value: Any) -> str:
    """A text that two values share if they compile to the same code."""
    return identity(value).text


def _float_text(value: float) -> str:
    return repr(value) if value == value else f"nan:{struct.pack('>d', value).hex()}"


_ATOMS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: hex,  # a decimal may be refused for its length
    float: _float_text,
    complex: lambda value: f"{_float_text(value.real)}+{_float_text(value.imag)}j",
    str: repr,
    bytes: repr,
    type(...): repr,
    _triton.dtype: lambda value: f"dtype {value.name}",
}


class _Reader:
    """Reads one value; what it learns besides the text is in its fields."""

    def __init__(self, within: tuple[type, ...] = (), home: Optional[str] = None):
        self._home = home
        self.lasting = True
        self.settled = True
        self.reads: list[Read] = []
        self._within = within  # classes that are being read further out
        self._open: dict[int, int] = {}  # containers and objects on the way to where we are
        self._seen: dict[int, tuple[int, Any]] = {}  # functions and classes, numbered as they come

    def text(self, value: Any) -> str:
        atom = _ATOMS.get(type(value))
        if atom is not None:
            return atom(value)
        kind = _KINDS.get(type(value))
        if kind is not None:
            return kind(self, value)
        if isinstance(value, Layout):
            return self._layout(value)
        if isinstance(value, _triton.JITCallable):
            return self._jit(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, enum.Enum):
            return f"{self._class_of(type(value))}.{value.name}={self.text(value.value)}"
        return self._nested(value, self._object)

    def _nested(self, value: Any, read: Callable[[Any], str]) -> str:
        """`read(value)`, or how far out we are in it already."""
        depth = self._open.get(id(value))
        if depth is not None:
            return f"^{depth}"
        self._open[id(value)] = len(self._open)
        try:
            return read(value)
        finally:
            del self._open[id(value)]

    def _all(self, values: Iterable[Any]) -> str:
        return ",".join([self.text(value) for value in values])

    # -- containers -----------------------------------------------------------------------------

    def _tuple(self, value: tuple[Any, ...]) -> str:
        return f"({self._all(value)})"

    def _list(self, value: list[Any]) -> str:
        self.settled = False
        return self._nested(value, lambda items: f"[{self._all(items)}]")

    def _dict(self, value: Mapping[Any, Any]) -> str:
        self.settled = False
        return self._nested(value, lambda items: f"{{{self._pairs(items.items())}}}")

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> str:
        return ",".join(f"{self.text(key)}:{self.text(item)}" for key, item in items)

    def _set(self, value: Any) -> str:
        self.settled &= isinstance(value, frozenset)
        return f"{type(value).__name__}{{{','.join(sorted(map(self.text, value)))}}}"

    def _constexpr(self, value: Any) -> str:
        return f"constexpr({self.text(value.value)})"

    def _layout(self, value: Layout) -> str:
        cls = type(value)
        if cls not in _layouts and is_dataclass(cls) and is_offered(cls):
            names = [f.name for f in fields(cls) if f.compare]
            look: Any = operator.attrgetter(*names) if len(names) > 1 else None
            look = look or (lambda layout: [getattr(layout, name) for name in names])
            _layouts[cls] = offered_text(cls), look
        if cls in _layouts:
            return _layout_text(value)
        return self._nested(value, self._object)

    # -- objects --------------------------------------------------------------------------------

    def _object(self, value: Any) -> str:
        """Class and state of `value`, or its number."""
        cls = type(value)
        if isinstance(value, numpy.generic) and value.dtype.kind in "biufcSU":
            return f"{value.dtype.str}:{value.tobytes().hex()}"
        reduced = _reduced(value)
        if reduced is None:
            return self._itself(value)
        if isinstance(reduced, str):
            return self._global(getattr(value, "__module__", None) or cls.__module__, reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        plain = make is _NEW
        fixed = is_fixed(cls.__module__)
        if plain and len(arguments) == 1 and not (state or items or pairs):
            compares: Any = cls.__eq__
            if cls is object or not (fixed or compares is not object.__eq__):
                return self._itself(value)
            return f"{self._class_of(cls)}<>"
        self.settled &= _frozen(value, fixed)
        settled = self.settled
        parts = [self._all(arguments[1:]) if plain else self._all((make, arguments))]
        if state:
            parts.append(self.text(_sorted(cls, state)))
        if items or pairs:
            parts += [self._all(items or ()), self._pairs(pairs or ())]
        if fixed:
            self.settled = settled  # what it holds is its own
        return f"{self._class_of(cls)}<{';'.join(parts)}>"

    def _itself(self, value: Any) -> str:
        self.lasting = False
        cls = type(value)
        return f"{cls.__module__}.{cls.__qualname__} number {_number_of(value)}"

    def _class_of(self, cls: type) -> str:
        """The class of an object: read once, and again when something in it was replaced."""
        offered = _offered.get(cls)
        if offered is not None:
            return offered
        known = _classes.get(cls) if self._home is None else None
        if known is None or not known.holds(cls):
            if is_offered(cls):
                return _offered.setdefault(cls, offered_text(cls))
            if cls in self._within:
                return f"^class{self._within.index(cls)}"
            reader = _Reader((*self._within, cls), self._home)
            text, members = reader._class(cls), _members_of(cls)
            known = _Class(text, reader.lasting, tuple(reader.reads), members)
            if not self._within and self._home is None:
                _classes[cls] = known
        self.lasting &= known.lasting
        self.reads += known.reads
        return known.text

    # -- functions, classes, modules -------------------------------------------------------------

    def _once(self, value: Any, read: Callable[[Any], Iterator[str]]) -> str:
        """A digest of the parts that `read` gives; a number where it came before."""
        if is_offered(value):
            return offered_text(value)
        if id(value) in self._seen:
            return f"#{self._seen[id(value)][0]}"
        self._seen[id(value)] = (len(self._seen), value)
        digest = hashlib.sha256()
        for part in read(value):
            digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
        module = "" if value.__module__ == self._home else value.__module__
        return f"{module}.{value.__qualname__}#{digest.hexdigest()}"

    def _jit(self, value: Any) -> str:
        if hasattr(value, "__func__"):  # a method with the object that it is asked of
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        settled = self.settled
        text = self._once(value, self._jit_parts)
        self.settled = settled  # whoever launches it watches what it reads
        return text

    def _jit_parts(self, value: Any) -> Iterator[str]:
        yield value.src
        yield str(value.starting_line_number)
        yield self.text(bool(getattr(value, "noinline", False)))
        yield from self._outside(value.fn)

    def _function(self, value: types.FunctionType) -> str:
        return self._once(value, self._function_parts)

    def _function_parts(self, value: types.FunctionType) -> Iterator[str]:
        yield _code_text(value.__code__)
        yield from self._outside(value)

    def _outside(self, function: Any) -> Iterator[str]:
        """What a Python function has and finds beside its code."""
        yield self.text(function.__defaults__)
        yield self._pairs(sorted((function.__kwdefaults__ or {}).items()))
        if vars(function):
            yield self.text(vars(function))
        closure = Closure(function)
        fixed = is_fixed(function.__globals__.get("__name__"))
        for spelled, is_global, attributes in mentions(function.__code__):
            if is_global and fixed:
                continue
            scope, name = function.__globals__ if is_global else closure, spelled
            value, rest = scope.get(name, ABSENT), list(attributes)
            while isinstance(value, types.ModuleType) and rest and not is_fixed(value.__name__):
                scope, name = Attributes(value), rest.pop(0)
                value = scope.get(name, ABSENT)
            if value is ABSENT:
                continue
            text = self.text(value)
            yield f"{'.'.join((spelled, *attributes))}={text}"
            if not fixed and not isinstance(value, _CODE):
                self.settled = False
                found = identity(value)
                self.reads.append(Read(name, scope, value, found.text, found.settled))

    def _class(self, value: type) -> str:
        settled = self.settled
        text = self._once(value, self._class_parts)
        kept = is_offered(value) or getattr(value, "__triton_aggregate__", False)
        self.settled = settled and kept  # others may get another attribute at any time
        return text

    def _class_parts(self, cls: type) -> Iterator[str]:
        for base in cls.__bases__:
            yield self.text(base)
        members = vars(cls)
        if issubclass(cls, enum.Enum):
            yield self._pairs((name, member.value) for name, member in cls.__members__.items())
            members = {n: m for n, m in members.items() if isinstance(m, _ENUM_MEMBERS)}  # type: ignore[assignment]
        for name, member in members.items():
            if name not in _IGNORED and not _is_generated(name, member, members):
                yield f"{name}={self.text(member)}"

    def _code(self, value: types.CodeType) -> str:
        return _code_text(value)

    def _property(self, value: property) -> str:
        return f"property({self._all((value.fget, value.fset, value.fdel))})"

    def _wrapper(self, value: Any) -> str:
        return f"{type(value).__name__}({self.text(value.__func__)})"

    def _module(self, value: types.ModuleType) -> str:
        self.lasting &= is_fixed(value.__name__)
        return f"module {value.__name__}"

    def _global(self, module: str, name: str) -> str:
        self.lasting &= is_fixed(module)
        return f"{module}:{name}"


_KINDS: dict[type, Callable[[_Reader, Any], str]] = {
    tuple: _Reader._tuple,
    list: _Reader._list,
    dict: _Reader._dict,
    types.MappingProxyType: _Reader._dict,
    set: _Reader._set,
    frozenset: _Reader._set,
    _triton.constexpr: _Reader._constexpr,
    types.ModuleType: _Reader._module,
    types.FunctionType: _Reader._function,
    types.CodeType: _Reader._code,
    types.MemberDescriptorType: lambda reader, value: "slot",
    types.GetSetDescriptorType: lambda reader, value: "slot",
    property: _Reader._property,
    classmethod: _Reader._wrapper,
    staticmethod: _Reader._wrapper,
    functools.cached_property: lambda reader, value: f"cached({reader.text(value.func)})",
}

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, _triton.JITCallable)
_ENUM_MEMBERS = (types.FunctionType, property, classmethod, staticmethod, _triton.JITCallable)
_IGNORED = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __firstlineno__ __static_attributes__ "
    "__abstractmethods__ _abc_impl __orig_bases__ __parameters__".split()
)


_GENERATED = "init repr eq lt le gt ge hash setattr delattr replace".split()


def _is_generated(name: str, member: Any, members: Mapping[str, Any]) -> bool:
    """Whether a dataclass made a method from its fields, which are members, too."""
    code = getattr(member, "__code__", None)
    return (
        "__dataclass_params__" in members
        and getattr(code, "co_filename", None) == "<string>"
        and name.strip("_") in _GENERATED
    )


# -- what objects hold ---------------------------------------------------------------------------


_NEW: Any = getattr(copyreg, "__newobj__")  # noqa: B009  # makes most objects that are pickled


# The layouts of packages: the name of the class, and what reads the fields.
_layouts: dict[type, tuple[str, Callable[[Any], Iterable[Any]]]] = {}


def _layout_text(value: Layout) -> str:
    """The text of a layout whose class is in `_layouts`; quick, as they are often made for a launch."""
    name, look = _layouts[type(value)]
    # Fields are numbers, words, lists of them, and layouts.
    return name + "|".join([repr(f) if type(f) in _PLAIN else text_of(f) for f in look(value)])


_PLAIN = (list, int, bool)


def _reduced(value: Any) -> Any:
    """How `value` would be pickled, None where only itself says what it is."""
    if hasattr(type(value), "data_ptr"):
        return None  # memory: its content is no constant
    registered = copyreg.dispatch_table.get(type(value))
    try:
        return registered(value) if registered else value.__reduce_ex__(4)
    except Exception:  # no pickle for it, which it may say in any way
        state = getattr(value, "__dict__", None)
        return (_NEW, (type(value),), state) if state else None


def _sorted(cls: type, state: Any) -> Any:
    """State without caches, in an order that does not tell how it came about."""
    if not isinstance(state, dict):
        return state
    cached = functools.cached_property
    kept = {k: v for k, v in state.items() if not isinstance(getattr(cls, k, None), cached)}
    return tuple(sorted(kept.items()))


def _frozen(value: Any, fixed: bool) -> bool:
    """Whether an object, apart from what it holds, stays what it is."""
    cls = type(value)
    if fixed:
        top = cls.__module__.partition(".")[0]
        foreign = top in ("numpy", "torch") or is_standard(top)
        return not foreign or isinstance(value, (numpy.generic, numpy.dtype, range, slice))
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is not None:
        return bool(parameters.frozen)
    return isinstance(value, tuple) and not hasattr(value, "__dict__")


class _Class(NamedTuple):
    """The class of objects, as it was read."""

    text: str
    lasting: bool
    reads: tuple[Read, ...]
    members: tuple[Any, ...]

    def holds(self, cls: type) -> bool:
        """Whether it is still what was read."""
        now = _members_of(cls)
        same = len(now) == len(self.members) and all(map(operator.is_, now, self.members))
        return same and not changed(self.reads)


_offered: dict[type, str] = {}  # classes of packages, which stay what they are
_classes: weakref.WeakKeyDictionary[type, _Class] = weakref.WeakKeyDictionary()


def _members_of(cls: type) -> tuple[Any, ...]:
    return tuple(member for base in cls.__mro__[:-1] for member in vars(base).values())


_numbers: dict[int, tuple[Callable[[], Any], int]] = {}
_next_number = itertools.count()


def _number_of(value: Any) -> int:
    """A number that no other object of this process has, or had."""
    known = _numbers.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    address, number = id(value), next(_next_number)
    look: Callable[[], Any]
    try:
        look = weakref.ref(value, lambda _: _numbers.pop(address, None))
    except TypeError:
        look = functools.partial(_given, value)  # it lives on, so that its address stays its own
    _numbers[address] = (look, number)
    return number


def _given(value: Any) -> Any:
    return value


# -- code ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _code_text(code: types.CodeType) -> str:
    """Everything that running `code` depends on, without the place of its text."""
    reader = _Reader()
    parts = (
        sys.implementation.cache_tag,
        code.co_name,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        getattr(code, "co_exceptiontable", b""),
        code.co_consts,
    )
    return hashlib.sha256(reader.text(parts).encode("utf-8", "surrogatepass")).hexdigest()
