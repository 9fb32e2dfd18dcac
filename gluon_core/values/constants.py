"""Decide which compile-time values are the same.

A launch finds its compiled kernel by the text that this module gives each constant, the disk cache
finds it by the same text, and so does a call of one function by another within a kernel. Two values
with equal texts compile to the same code:

- Numbers, strings and containers are their value, type included: 1, True and 1.0 differ, as do 0.0
  and -0.0, and a tuple, a namedtuple and a list.
- A name of a package of ours, of Triton, or of Python's own library is itself: the disk
  cache's key covers those packages as a whole.
- Other functions and classes are their source, with the objects that its names refer to: the functions
  that they call, the variables that they read, their defaults and base classes.
- Objects of a program's own classes are their class, attributes and items (`values.state`).
- Any other object is only itself: a logger, a mock, a tensor, a network. It has a number in this
  process and means nothing to another: kernels that depend on it are not kept on disk.

Nothing is read without bound: values that are too large or too deep, and host code that leads to too much
other host code, count as objects that are nothing but themselves.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import operator
import struct
import sys
import types
import weakref
from collections import deque
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
    offered_text,
    written_members,
)
from gluon_core.values.identity import ABSENT, Identity, Read
from gluon_core.values.names import Chain, Names, names_of, names_of_code, source_of
from gluon_core.values.state import number_of, state_of

__all__ = ["ABSENT", "Identity", "Read", "changed", "identity", "text_of"]

_MOST_VALUES = 100_000  # within one value
_MOST_OBJECTS = 10_000  # of those, objects that are no containers
_MOST_CLASSES = 50  # of those objects
_MOST_LEVELS = 40
_MOST_HOST_CODE = 400  # functions and classes of the host that a kernel leads to


def changed(reads: Iterable[Read]) -> bool:
    """Return True if any of the variables has another value than it had."""
    for name, scope, value, text, settled, _ in reads:
        now = scope.get(name, ABSENT)
        if (now is not value or not settled) and (now is ABSENT or _mark(now)[0] != text):
            return True
    return False


def identity(value: Any, home: Optional[str] = None) -> Identity:
    """Return the compile-time value behind `value`; of a `constexpr`, its content.

    Args:
        home: a module whose name does not identify its definitions: a file is called otherwise when it
            is run than when it is imported.
    """
    if type(value) is _triton.constexpr:
        value = value.value
    atom = _ATOMS.get(type(value))
    if atom is not None:
        return Identity(atom(value), True, True, ())
    if type(value) in _layouts:
        return Identity(_layout_text(value), True, True, ())
    reader = _Reader(home)
    text = reader.whole(value)
    facts = reader.lasting, reader.settled, tuple(reader.reads), tuple(reader.files)
    return Identity(text, *facts)


def text_of(value: Any) -> str:
    """Return a text that two values share if they compile to the same code."""
    return identity(value).text


def _mark(value: Any) -> tuple[str, bool, bool]:
    """Return a text that distinguishes a variable's values in this process, whether the value is settled,
    and whether it is lasting; functions and classes are themselves."""
    atom = _ATOMS.get(type(value))
    if atom is not None:
        return atom(value), True, True
    if type(value) is _triton.constexpr:
        text, settled, lasting = _mark(value.value)
        return f"constexpr({text})", settled, lasting
    reader = _Marker()
    return reader.whole(value), reader.settled, reader.lasting


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


class _TooLarge(Exception):
    """A value is too large, or too deep, to be known by its content."""


class _Reader:
    """Read one value; its fields keep facts in addition to the text.

    Args:
        home: see `identity`.
    """

    def __init__(self, home: Optional[str] = None):
        self._home = home
        self.lasting = True
        self.settled = True
        self.reads: list[Read] = []
        self.files: list[str] = []
        self._open: dict[int, int] = {}  # containers and objects on the way to where we are
        self._values = 0
        self._objects = 0
        self._classes: set[type] = set()

    def whole(self, value: Any) -> str:
        """Return the text of a value that is read apart from others: within bounds, else its number."""
        before = self._open, self._values, self._objects, self._classes
        self._open, self._values, self._objects, self._classes = {}, 0, 0, set()
        try:
            return self.text(value)
        except (_TooLarge, RecursionError):
            return self._itself(value)
        finally:
            self._open, self._values, self._objects, self._classes = before

    def text(self, value: Any) -> str:
        cls = type(value)
        atom = _ATOMS.get(cls)
        if atom is not None:
            return atom(value)
        kind = _KINDS.get(cls)
        if kind is not None:
            return kind(self, value)
        # By the class, not by `isinstance`: a mock says that it is of any class.
        if issubclass(cls, Layout):
            return self._layout(value)
        if issubclass(cls, _triton.JITCallable):
            return self._jit(value)
        if issubclass(cls, type):
            return self._refer(value)
        if issubclass(cls, types.ModuleType):
            return self._module(value)
        if issubclass(cls, enum.Enum):
            return f"{self._class_of(cls)}.{value.name}={self.text(value.value)}"
        return self._nested(value, self._object)

    def _nested(self, value: Any, read: Callable[[Any], str]) -> str:
        """`read(value)`, or how far out we are in it already."""
        depth = self._open.get(id(value))
        if depth is not None:
            return f"^{depth}"
        if len(self._open) == _MOST_LEVELS:
            raise _TooLarge
        self._open[id(value)] = len(self._open)
        try:
            return read(value)
        finally:
            del self._open[id(value)]

    def _all(self, values: Any) -> str:
        self._values += len(values)
        if self._values > _MOST_VALUES:
            raise _TooLarge
        return ",".join([self.text(value) for value in values])

    # -- containers -----------------------------------------------------------------------------

    def _tuple(self, value: tuple[Any, ...]) -> str:
        return f"({self._nested(value, self._all) if value else ''})"

    def _list(self, value: list[Any]) -> str:
        self.settled = False
        return f"[{self._nested(value, self._all)}]"

    def _dict(self, value: Mapping[Any, Any]) -> str:
        self.settled = False
        return f"{{{self._nested(value, lambda items: self._pairs(items.items()))}}}"

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> str:
        pairs = list(items)
        self._values += len(pairs)
        if self._values > _MOST_VALUES:
            raise _TooLarge
        return ",".join([f"{self.text(key)}:{self.text(item)}" for key, item in pairs])

    def _set(self, value: Any) -> str:
        self.settled &= isinstance(value, frozenset)
        self._values += len(value)
        if self._values > _MOST_VALUES:
            raise _TooLarge
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

    def _array(self, value: Any) -> str:
        self.settled = False
        if value.dtype.hasobject:
            return f"array{value.shape}{self.text(value.tolist())}"
        if value.nbytes > _MOST_BYTES:
            raise _TooLarge
        digest = hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.dtype.str}{value.shape}:{digest}"

    # -- objects --------------------------------------------------------------------------------

    def _object(self, value: Any) -> str:
        """Class and state of `value`, or its number."""
        cls = type(value)
        if isinstance(value, numpy.generic) and value.dtype.kind in "biufcSU":
            return f"{value.dtype.str}:{value.tobytes().hex()}"
        state = state_of(value)
        if state is None:
            return self._itself(value)
        self._objects += 1
        if self._objects > _MOST_OBJECTS:
            raise _TooLarge
        self.settled &= state.frozen
        settled = self.settled
        text = f"{self._class_of(cls)}<{self._all(state.parts)}>"
        if state.fixed:
            self.settled = settled  # its content is its own
        return text

    def _itself(self, value: Any) -> str:
        self.lasting = False
        cls = type(value)
        return f"{cls.__module__}.{cls.__qualname__} number {number_of(value)}"

    # -- functions, classes, modules -------------------------------------------------------------

    def _refer(self, value: Any) -> str:
        """Return a function or a class, by name where a fixed package offers it, else by its source."""
        if is_offered(value):
            text = offered_text(value)
            if isinstance(value, type):
                _offered[value] = text
            return text
        if isinstance(value, type) and not is_fixed(type(value).__module__):
            return self._itself(value)  # its metaclass decides its behaviour
        return self._code(value)

    def _class_of(self, cls: type) -> str:
        offered = _offered.get(cls)
        if offered is not None:
            return offered
        self._classes.add(cls)
        if len(self._classes) > _MOST_CLASSES:
            raise _TooLarge
        settled = self.settled
        text = self._refer(cls)
        self.settled = settled  # of an object, which is fixed as long as its parts are
        return text

    def _code(self, value: Any) -> str:
        code = _code_of(value, self._home)
        self.lasting &= code.lasting
        self.settled &= code.settled
        self.reads += code.reads
        self.files += code.files
        return code.text

    def _jit(self, value: Any) -> str:
        if hasattr(value, "__func__"):  # a method with the object that it is asked of
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        return self._refer(value)

    def _property(self, value: property) -> str:
        return f"property({self._all((value.fget, value.fset, value.fdel))})"

    def _wrapper(self, value: Any) -> str:
        return f"{type(value).__name__}({self.text(value.__func__)})"

    def _cached(self, value: Any) -> str:
        return f"cached({self.text(value.__wrapped__)})"

    def _method(self, value: types.MethodType) -> str:
        return f"{self.text(value.__func__)} of {self.text(value.__self__)}"

    def _builtin(self, value: Any) -> str:
        owner = getattr(value, "__self__", None)
        if owner is None or type(owner) is types.ModuleType:
            return self._global(value.__module__ or "builtins", value.__qualname__)
        return f"{value.__name__} of {self.text(owner)}"

    def _descriptor(self, value: Any) -> str:
        return f"{self.text(value.__objclass__)}.{value.__name__}"

    def _bytecode(self, value: types.CodeType) -> str:
        return _code_text(value)

    def _module(self, value: types.ModuleType) -> str:
        name = _named(value)
        self.lasting &= is_fixed(name)
        return f"module {name}"

    def _global(self, module: str, name: str) -> str:
        self.lasting &= is_fixed(module)
        return f"{module}:{name}"


class _Marker(_Reader):
    """Reads a variable's value: functions and classes in it are the objects that they are."""

    def _code(self, value: Any) -> str:
        return f"{value.__qualname__} number {number_of(value)}"


class _Code(NamedTuple):
    """A function or a class with everything that it leads to.

    Args:
        text: its name and a digest.
        lasting, settled, reads, files: as of `Identity`.
        members: of a class and its bases, as they were.
    """

    text: str
    lasting: bool
    settled: bool
    reads: tuple[Read, ...]
    members: tuple[Any, ...]
    files: tuple[str, ...]

    def holds(self, cls: type) -> bool:
        """Return True if a class is still as it was read."""
        now = _members_of(cls)
        same = len(now) == len(self.members) and all(map(operator.is_, now, self.members))
        return same and not changed(self.reads)


_classes: weakref.WeakKeyDictionary[type, _Code] = weakref.WeakKeyDictionary()
_offered: dict[type, str] = {}  # classes of packages, which do not change


def _code_of(value: Any, home: Optional[str]) -> _Code:
    """Return the code of a function or a class; a class is read once, and again when a part of it changed."""
    reusable = home is None and isinstance(value, type)
    known = _classes.get(value) if reusable else None
    if known is not None and known.holds(value):
        return known
    members = _members_of(value) if isinstance(value, type) else ()
    reader = _CodeReader(home)
    text = reader.read(value)
    facts = reader.lasting, reader.settled, tuple(reader.reads), members, tuple(reader.files)
    code = _Code(text, *facts)
    if reusable:
        _classes[value] = code
    return code


def _members_of(cls: type) -> tuple[Any, ...]:
    return tuple(member for base in cls.__mro__[:-1] for member in vars(base).values())


class _CodeReader(_Reader):
    """Reads functions and classes, each that another one leads to after that one: no chain is too long."""

    def __init__(self, home: Optional[str]):
        super().__init__(home)
        self._numbers: dict[int, int] = {}
        self._left: deque[Any] = deque()
        self._kept: list[Any] = []  # so that addresses stay their own
        self._of_host = 0

    def read(self, root: Any) -> str:
        """Return the name and the digest of a function or a class."""
        digest = hashlib.sha256()
        self._code(root)
        while self._left:
            value = self._left.popleft()
            for part in (self._name(value), *self._parts(value)):
                digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
        if isinstance(root, type):
            self.settled = bool(getattr(root, "__triton_aggregate__", False))
        elif issubclass(type(root), _triton.JITCallable):
            self.settled = True  # its own launch watches the variables that it reads
        return f"{self._name(root)}#{digest.hexdigest()}"

    def _name(self, value: Any) -> str:
        module = "" if value.__module__ == self._home else value.__module__
        return f"{module}.{value.__qualname__}"

    def _code(self, value: Any) -> str:
        number = self._numbers.get(id(value))
        if number is None:
            if not issubclass(type(value), _triton.JITFunction):
                self._of_host += 1
                if self._of_host > _MOST_HOST_CODE:
                    return self._itself(value)
            number = self._numbers[id(value)] = len(self._numbers)
            self._kept.append(value)
            self._left.append(value)
        return f"#{number}"

    def _parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, type):
            return self._parts_of_class(value)
        if issubclass(type(value), _triton.JITFunction):
            return self._parts_of_kernel(value)
        if issubclass(type(value), _triton.JITCallable):
            return self._parts_of_function(value.fn, value.src)
        return self._parts_of_function(value, None)

    def _parts_of_kernel(self, value: Any) -> Iterator[str]:
        yield value.src
        yield str(value.starting_line_number)
        yield self.text(bool(getattr(value, "noinline", False)))
        self.files.append(value.fn.__code__.co_filename)
        inner = inspect.unwrap(value.fn)  # the text is that of the wrapped function
        names = names_of(value.src, getattr(inner, "__code__", value.fn.__code__))
        yield from self._outside(value.fn, names, value.src)

    def _parts_of_function(self, function: Any, source: Optional[str]) -> Iterator[str]:
        code = function.__code__
        if source is None or "__wrapped__" in vars(function):
            source = source_of(code)
        if source is None:
            yield _code_text(code)
            yield from self._outside(function, names_of_code(code), "")
        else:
            yield source
            yield from self._outside(function, names_of(source, code), source)
        attributes = vars(function)
        if attributes:
            wrapped = getattr(attributes.get("__wrapped__"), "__dict__", {})  # copied to a wrapper
            yield self.whole({n: v for n, v in attributes.items() if n not in wrapped})

    def _outside(self, function: Any, names: Names, source: str) -> Iterator[str]:
        """Return the parts of a Python function besides its code: defaults, closure and globals."""
        yield self.whole(function.__defaults__)
        yield self.whole(tuple(sorted((function.__kwdefaults__ or {}).items())))
        self.lasting &= all(map(is_fixed, names.imports))
        closure = Closure(function)
        fixed = is_fixed(function.__globals__.get("__name__"))
        for chain in names.within(source, function.__globals__):
            enclosed = closure.get(chain[0], ABSENT) is not ABSENT
            if enclosed or not fixed:
                yield from self._variable(
                    chain, closure if enclosed else function.__globals__, fixed
                )

    def _variable(self, chain: Chain, scope: Any, fixed: bool) -> Iterator[str]:
        """Yield the value of a name, or of its attributes in a module."""
        name, *rest = chain
        value = scope.get(name, ABSENT)
        while issubclass(type(value), types.ModuleType) and rest and not is_fixed(_named(value)):
            scope, name = Attributes(value), rest.pop(0)
            value = scope.get(name, ABSENT)
        if value is ABSENT:
            return
        settled = self.settled
        yield f"{'.'.join(chain)}={self.whole(value)}"
        self.settled = settled
        # A notebook's cells, which are in no file, may define a function of a kernel again.
        again = type(scope) is dict and "__file__" not in scope
        is_code = issubclass(type(value), _CODE)
        if not fixed and (not is_code or again and issubclass(type(value), _triton.JITCallable)):
            self.settled = False
            text, settled, by_value = _mark(value)
            self.reads.append(Read(name, scope, value, text, settled, by_value and not is_code))

    def _parts_of_class(self, cls: type) -> Iterator[str]:
        for base in cls.__bases__:
            yield self.text(base)
        if issubclass(cls, enum.Enum):
            yield self._pairs((name, member.value) for name, member in cls.__members__.items())
        for name, member in written_members(cls):
            yield f"{name}={self.whole(member)}"


def _named(module: types.ModuleType) -> str:
    return str(types.ModuleType.__getattribute__(module, "__name__"))


_MOST_BYTES = 1 << 26

_KINDS: dict[type, Callable[[_Reader, Any], str]] = {
    tuple: _Reader._tuple,
    list: _Reader._list,
    dict: _Reader._dict,
    types.MappingProxyType: _Reader._dict,
    set: _Reader._set,
    frozenset: _Reader._set,
    numpy.ndarray: _Reader._array,
    type: _Reader._refer,
    _triton.constexpr: _Reader._constexpr,
    types.ModuleType: _Reader._module,
    types.FunctionType: _Reader._refer,
    types.CodeType: _Reader._bytecode,
    types.MethodType: _Reader._method,
    types.BuiltinFunctionType: _Reader._builtin,
    types.MethodWrapperType: _Reader._builtin,
    types.MethodDescriptorType: _Reader._descriptor,
    types.WrapperDescriptorType: _Reader._descriptor,
    types.MemberDescriptorType: lambda reader, value: "slot",
    types.GetSetDescriptorType: lambda reader, value: "slot",
    property: _Reader._property,
    classmethod: _Reader._wrapper,
    staticmethod: _Reader._wrapper,
    functools.cached_property: lambda reader, value: f"cached({reader.text(value.func)})",
    type(functools.lru_cache(len)): _Reader._cached,
}

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, _triton.JITCallable)

# The layouts of packages: the name of the class, and the reader of its fields.
_layouts: dict[type, tuple[str, Callable[[Any], Iterable[Any]]]] = {}


def _layout_text(value: Layout) -> str:
    """Return the text of a layout whose class is in `_layouts`; quick, as they are often made for a launch."""
    name, look = _layouts[type(value)]
    # Fields are numbers, words, lists of them, and layouts.
    return name + "|".join([repr(f) if type(f) in _PLAIN else text_of(f) for f in look(value)])


_PLAIN = (list, int, bool)


# -- code ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _code_text(code: types.CodeType) -> str:
    """Everything that running `code` depends on, without the place of its text."""
    reader = _Marker()
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
