"""Define the base of all layouts: a frozen value that can be printed, hashed, made linear and emitted.

A vendor's layout subclasses `DistributedLayout` or `SharedLayout`, is a `@dataclass(frozen=True)`,
normalises its fields in `__post_init__` through `self._set(...)`, and fills in `_emit` (Triton's
builder) and `_linear` (the algebra). Fields may stay plain lists: equality and hash come from here.
`verify`, which every use asks, checks that compilers and hardware can have it: an unused layout is no mistake.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from operator import index
from typing import Any, Callable, ClassVar, Generic, Optional, Sequence, TypeVar, cast

from gluon_core.errors import LayoutError, PluginError, is_strict
from gluon_core.layouts import tiling
from gluon_core.layouts.dialect import compiler_version, follows, require_followed
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.pictures import Picture, pictures

__all__ = ["DistributedLayout", "Layout", "SharedLayout", "set_type_factory"]

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound="Layout")
T = TypeVar("T")

_type_factory: Optional[Callable[["Layout"], Any]] = None


def set_type_factory(fn: Callable[["Layout"], Any]) -> None:
    """Set the function behind `layout.type`. The core's value classes do this once, on import."""
    global _type_factory
    _type_factory = fn


def unwrap(value: Any) -> Any:
    """Return a compile-time value as plain Python: constexprs are opened, tuples become lists."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    if type(value).__name__ == "tuple" and not isinstance(value, tuple):
        value = value.values  # a tuple of the kernel language, as written in a kernel: [1, 2]
    if isinstance(value, (list, tuple)):
        return [unwrap(v) for v in value]
    return value


def in_kernels(fn: F) -> F:
    """Let kernels call `fn`, which makes a layout from compile-time values, too."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_semantic", None)
        return fn(*map(unwrap, args), **{name: unwrap(value) for name, value in kwargs.items()})

    call.__triton_builtin__ = True  # type: ignore[attr-defined]  # what code generators look for
    return cast(F, call)


def freeze(value: Any) -> Any:
    """Return a hashable copy: lists become tuples."""
    if isinstance(value, (list, tuple)):
        return tuple([freeze(v) if isinstance(v, (list, tuple)) else v for v in value])
    return value


def is_power_of_two(value: Any) -> bool:
    """Is it a positive power of two, as an integer?"""
    return is_int(value) and value > 0 and not value & (value - 1)


def is_int(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__")


def check_int(value: Any, argument: str, low: int = 0, high: Optional[int] = None) -> int:
    """Return an integer in [low, high], or a LayoutError."""
    value = unwrap(value)
    if not is_int(value) or value < low or (high is not None and value > high):
        wanted = f"an integer from {low} to {high}" if high is not None else f"an integer >= {low}"
        raise LayoutError("invalid value", argument=argument, expected=wanted, got=repr(value))
    return index(value)


def check_bool(value: Any, argument: str) -> bool:
    value = unwrap(value)
    if value not in (True, False):
        raise LayoutError("not a boolean", argument=argument, got=repr(value))
    return bool(value)


def check_ints(value: Any, argument: str, rank: Optional[int] = None) -> list[int]:
    """Return a list of non-negative integers, of length `rank` if given, or a LayoutError."""
    value = unwrap(value)
    if not isinstance(value, list) or not all(is_int(v) and v >= 0 for v in value):
        raise LayoutError(
            "not a list of integers", argument=argument, expected="integers >= 0", got=repr(value)
        )
    if rank is not None and len(value) != rank:
        raise LayoutError(
            "wrong rank", argument=argument, expected=f"{rank} entries", got=repr(value)
        )
    return [v.__index__() for v in value]


def check_powers(value: Any, argument: str, rank: Optional[int] = None) -> list[int]:
    """Return a list of powers of two, of length `rank` if given, or a LayoutError."""
    checked = check_ints(value, argument, rank)
    if not all(is_power_of_two(v) for v in checked):
        raise LayoutError(
            "an entry is not a power of two",
            argument=argument,
            expected="1, 2, 4, ...",
            got=checked,
        )
    return checked


def check_order(value: Any, argument: str, rank: Optional[int] = None) -> list[int]:
    """Return a permutation of 0..n-1, fastest dimension first, or a LayoutError."""
    checked = check_ints(value, argument, rank)
    if sorted(checked) != list(range(len(checked))):
        raise LayoutError(
            "not a permutation",
            argument=argument,
            expected=f"each of 0..{len(checked) - 1} once, the fastest dimension first",
            got=checked,
        )
    return checked


def check_bases(value: Any, argument: str, rank: Optional[int] = None) -> list[list[int]]:
    """Return a list of basis vectors with `rank` coordinates each, or a LayoutError."""
    value = unwrap(value)
    if value is None:
        value = []
    if not isinstance(value, list):
        raise LayoutError("not a list of bases", argument=argument, got=repr(value))
    out = []
    for i, basis in enumerate(value):
        basis = check_ints(basis, f"{argument}[{i}]")
        if rank is None:
            rank = len(basis)
        if len(basis) != rank:
            raise LayoutError(
                "a basis has the wrong rank",
                argument=f"{argument}[{i}]",
                expected=f"{rank} coordinates",
                got=basis,
            )
        out.append(basis)
    return out


def check_cga(value: Any, rank: int, argument: str = "cga_layout") -> list[list[int]]:
    """Check how blocks of a cluster split a tensor: one basis per bit of the block index.

    A basis is zero (the blocks hold the same) or a power of two in one dimension, and the bases
    of a dimension count 1, 2, 4, ... in some order.
    """
    bases = check_bases(value, argument, rank)
    seen: list[set[int]] = [set() for _ in range(rank)]
    for i, basis in enumerate(bases):
        hot = [(d, v) for d, v in enumerate(basis) if v]
        if len(hot) > 1 or any(not is_power_of_two(v) or v in seen[d] for d, v in hot):
            raise LayoutError(
                "a block basis is not a fresh power of two in one dimension",
                argument=f"{argument}[{i}]",
                expected="all zeros, or a single new power of two",
                got=basis,
            )
        for d, v in hot:
            seen[d].add(v)
    for d, values in enumerate(seen):
        if values != {1 << i for i in range(len(values))}:
            raise LayoutError(
                f"the block bases of dimension {d} leave a gap",
                argument=argument,
                expected=[1 << i for i in range(len(values))],
                got=sorted(values),
                remedy="Count blocks 1, 2, 4, ... in each dimension; the unit is one block's tile.",
            )
    return bases


def check_shape(value: Any, rank: Optional[int], argument: str = "shape") -> tuple[int, ...]:
    """Return a tensor shape of powers of two as a tuple, or a LayoutError."""
    value = unwrap(value)
    if is_int(value):
        value = [value]
    if not isinstance(value, list) or not all(is_power_of_two(v) for v in value):
        raise LayoutError(
            "not a shape of powers of two", argument=argument, expected="e.g. [64, 32]", got=value
        )
    if rank is not None and len(value) != rank:
        raise LayoutError(
            "the shape and the layout have different ranks",
            argument=argument,
            expected=f"rank {rank}",
            got=value,
        )
    return tuple(v.__index__() for v in value)


def joined(*lists: Sequence[Any]) -> str:
    """Return the numbers of some lists as an identifier part: `1_32_4_0`."""
    return "_".join("_".join(map(str, values)) for values in lists)


def joined_bases(bases: Sequence[Sequence[int]]) -> str:
    """Bases as an identifier part: `0~1_1~0`."""
    return "_".join("~".join(map(str, basis)) for basis in bases)


def _text(value: Any) -> str:
    return value.mangle() if isinstance(value, Layout) else str(value)


class _Fallback(Generic[T]):
    """A property that a dataclass field of the same name in a subclass may replace."""

    def __init__(self, fn: Callable[[Any], T]):
        self.fn = fn
        self.__doc__ = fn.__doc__
        self.name = fn.__name__

    def __get__(self, instance: Any, owner: Any = None) -> T:
        if instance is None:
            # A dataclass looks here for the default of its field: there is none.
            raise AttributeError(self.name)
        return self.fn(instance)


class Layout:
    """Base of all layouts. Compare, hash and print them freely; they are values."""

    _compared: ClassVar[Sequence[str]]  # the fields that tell layouts of this class apart

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # The fields are lists; a dataclass would otherwise bring a hash that cannot hash them.
        for name in ("__eq__", "__hash__"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(Layout, name))

    # Vendors' layouts check their fields and make their linear form with these.
    check_bases = staticmethod(check_bases)
    check_bool = staticmethod(check_bool)
    check_cga = staticmethod(check_cga)
    check_int = staticmethod(check_int)
    check_ints = staticmethod(check_ints)
    check_order = staticmethod(check_order)
    check_powers = staticmethod(check_powers)
    check_shape = staticmethod(check_shape)
    freeze = staticmethod(freeze)
    in_kernels = staticmethod(in_kernels)
    is_int = staticmethod(is_int)
    is_power_of_two = staticmethod(is_power_of_two)
    joined = staticmethod(joined)
    joined_bases = staticmethod(joined_bases)
    unwrap = staticmethod(unwrap)
    cga_linear = staticmethod(tiling.cga_linear)
    combine_with_cga = staticmethod(tiling.combine_with_cga)
    dim_names = staticmethod(tiling.dim_names)
    follows = staticmethod(follows)
    grow = staticmethod(tiling.grow)
    require_followed = staticmethod(require_followed)
    shrink = staticmethod(tiling.shrink)

    def _set(self, **values: Any) -> None:
        """Replace fields of this frozen value; only for `__post_init__`."""
        self.__dict__.pop("_known_key", None)
        self.__dict__.pop("_known_hash", None)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> tuple[tuple[str, Any], ...]:
        cls = type(self)
        names = cls.__dict__.get("_compared")
        if names is None:  # the dataclass is complete now; it is asked once
            names = [f.name for f in fields(self) if f.compare] if is_dataclass(self) else []
            cls._compared = names
        return tuple([(name, getattr(self, name)) for name in names])

    def _key(self) -> tuple[Any, ...]:
        key: Optional[tuple[Any, ...]] = self.__dict__.get("_known_key")
        if key is None:
            key = tuple([freeze(value) for _, value in self._fields()])
            object.__setattr__(self, "_known_key", key)
        return key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        known: Optional[int] = self.__dict__.get("_known_hash")
        if known is None:
            known = hash((type(self).__name__, self._key()))
            object.__setattr__(self, "_known_hash", known)
        return known

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ between processes.
        return {name: value for name, value in self.__dict__.items() if name != "_known_hash"}

    def verify(self) -> None:
        """Raise LayoutError if no compiler or no hardware supports this layout."""

    def check(self: L) -> L:
        """Return this layout, after `verify`; every use of a layout asks, once for each value.

        Raises:
            LayoutError: an illegal field; see the class.
        """
        if "_verified" not in self.__dict__:
            self.verify()
            if is_strict():  # otherwise those let pass are unknown
                object.__setattr__(self, "_verified", True)
        return self

    def _to_ir(self, builder: Any) -> Any:
        """Return this layout for a builder: as it is, where the builder takes layouts; else emitted."""
        self.check()
        accept = getattr(builder, "get_layout", None)
        return accept(self) if accept is not None else self._emit(builder)

    def _emit(self, builder: Any) -> Any:
        raise LayoutError(f"{type(self).__name__} cannot be emitted to this builder")

    def mangle(self) -> str:
        """Return a part of the names of functions that differs between different layouts.

        The layouts that Triton knows, too, have the same text there: names in IR agree.
        """
        name = type(self).__name__.removesuffix("Layout")
        return "_".join((name, *(_text(value) for _, value in self._fields())))

    @property
    def type(self) -> Any:
        """Return the type of this value inside a kernel: a constexpr."""
        if _type_factory is None:
            raise LayoutError(
                "layout types need the kernel language",
                remedy="import gluon_core first.",
            )
        return _type_factory(self)

    @_Fallback
    def rank(self) -> int:
        """Return the number of tensor dimensions that the layout describes."""
        raise LayoutError(f"{type(self).__name__} has no rank of its own")

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Return the layout of a tensor of this shape as a linear map.

        Raises:
            LayoutError: the shape does not fit, or the layout is not linear.
        """
        self.check()
        known = check_shape(shape, self._rank_or_none())
        return _to_linear(self, known, compiler_version(), is_strict())

    def _rank_or_none(self) -> Optional[int]:
        try:
            return self.rank
        except LayoutError:
            return None

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        """Return the result of `to_linear`, for a checked shape."""
        raise LayoutError(f"{type(self).__name__} has no linear form")

    def place(self, offset: int) -> int:
        """Return the place of the element at `offset` of the linear map in its buffer, in elements."""
        return offset

    def format_tensor_view(self, shape: Sequence[int]) -> str:
        """Text: for each tensor element, which hardware holds it."""
        return pictures().tensor_view(self, shape)

    def format_hardware_view(self, shape: Sequence[int]) -> str:
        """Text: for each piece of hardware, which tensor elements it holds."""
        return pictures().hardware_view(self, shape)

    def show(
        self,
        shape: Optional[Sequence[int]] = None,
        *,
        bits: Optional[int] = None,
        banks: int = 32,
    ) -> Picture:
        """Return the layout drawn for a tensor or a buffer of `shape`; notebooks show the result.

        Hovering over an element tells who holds it: block, warp, lane and register, or offset, byte
        and bank. `show().save("layout.svg")` (or .html) writes a file that needs nothing else.

        Args:
            shape: by default a small one that shows one tile.
            bits: of one element; by default the layout's own, or 32. Sets bytes and banks.
            banks: of shared memory, 4 bytes each.

        Raises:
            LayoutError: the layout is left to the compiler, does not fit the shape, or the picture
                would have more than 16384 elements.
            ArgumentError: `bits` or `banks` is no power of two.
            PluginError: no package that draws is installed; the message names it.
        """
        return pictures().picture(self, shape, bits=bits, banks=banks)

    def _repr_html_(self) -> str:
        from html import escape  # it loads a table of entities

        try:
            return self.show()._repr_html_()
        except LayoutError:  # nothing to draw: the compiler will choose, or no small shape fits
            return f"<code>{escape(repr(self))}</code>"
        except PluginError as error:
            return f"<code>{escape(repr(self))}</code><br>{escape(str(error))}"


@lru_cache(maxsize=4096)
def _to_linear(
    layout: Layout, shape: tuple[int, ...], _version: tuple[int, ...], _strict: bool
) -> LinearLayout:
    return layout._linear(shape)


class DistributedLayout(Layout):
    """Map hardware to a tensor in registers: "register", "lane", "warp", "block" -> "dim0", "dim1", ..."""

    @_Fallback
    def cga_layout(self) -> list[list[int]]:
        """Return one basis per bit of the block index within a cluster; [] for one block."""
        return []

    def _check_dot_operand(self, operand_index: int, k_width: int) -> None:
        """Refuse operands that this layout cannot have; `DotOperandLayout` asks when it is made."""

    def dot_operand_linear(
        self, operand_index: int, k_width: int, shape: Sequence[int]
    ) -> LinearLayout:
        """Return the layout of a dot operand whose accumulator has this layout.

        Args:
            operand_index: 0 for A, 1 for B.
            k_width: consecutive elements along K that one lane holds.
            shape: of the operand.
        """
        raise LayoutError(
            f"{type(self).__name__} cannot hold dot operands", argument="parent", got=repr(self)
        )


class SharedLayout(Layout):
    """Map a buffer in shared memory: "offset" (elements), "block" -> "dim0", "dim1", ..."""
