"""An argument of a launch: type, marks and place, and how generated code reads it.

The decisions are Triton's, so that the same call compiles to the same code: pointers and integers
divisible by 16 are marked `D`, pointers into small storage `S` (where the backend asks for it),
the integer 1 and None become constants, bools and floats are never specialized. The numbers are those of
`gluon_runtime.rules`, for launches of bundles too.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass
from typing import Any, Optional, Sequence, cast

from gluon_core import _triton
from gluon_core.compiler import parameters as of_kernel
from gluon_core.errors import ArgumentError, DeviceError, DtypeError, IntegerError
from gluon_core.launch.memory import check_array, check_memory, number, through_dlpack
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.launcher import ArgumentKind, checked_kind
from gluon_core.plugin.paths import load_named
from gluon_core.registry.load import registry
from gluon_core.values.constants import text_of
from gluon_core.values.descriptors import descriptor_text
from gluon_runtime import rules
from gluon_runtime.rules import ABSENT, RULES

__all__ = [
    "ArgumentKind",
    "Described",
    "Parameter",
    "Placeholder",
    "describe",
    "kind_of",
    "parameters_of",
    "place_of",
    "register_argument_kind",
]

_registered: list[ArgumentKind] = []
_kinds: dict[type, Optional[ArgumentKind]] = {}  # class -> its kind
_plain: dict[type, str] = dict(rules.PLAIN)  # class -> its name there, "" for all others


def register_argument_kind(kind: ArgumentKind) -> ArgumentKind:
    """Let kernels take objects of another class.

    A plugin names its kinds in `Language.argument_kinds` instead.

    Raises:
        ArgumentError: `kind` is no `ArgumentKind`, or a part of it cannot be called.
    """
    _registered.append(checked_kind(kind))
    _kinds.clear()
    return kind


def registered_kind(cls: type) -> Optional[ArgumentKind]:
    """Return the kind for values of class `cls`: one that was registered, the latest first, else a plugin's."""
    try:
        return _kinds[cls]
    except KeyError:
        known = (*reversed(_registered), *_of_plugins())
        kind = _kinds[cls] = next((kind for kind in known if kind.is_for(cls)), None)
        return kind


def _of_plugins() -> tuple[ArgumentKind, ...]:
    """Return the kinds that the installed backends name."""
    return tuple(
        checked_kind(load_named(path, f"backend {backend.name!r}, argument_kinds"))
        for backend in registry().backends.values()
        for path in backend.language.argument_kinds
    )


def kind_of(value: Any) -> str:
    """Return `bool`, `int`, `float`, `none`, `tuple`, `constant`, `array`, `pointer`, `registered` or `unknown`."""
    cls = type(value)
    plain = _plain.get(cls)
    if plain is None:
        plain = _plain[cls] = rules.plain_kind(value)
    if plain:
        return plain
    if isinstance(value, (_triton.constexpr, _triton.JITCallable)):
        return "constant"
    if registered_kind(cls) is not None:
        return "registered"
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        return "array"
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return "pointer"
    return "unknown"


def viewed(value: Any) -> Any:
    """Return `value` as kernels take it: a scalar of NumPy as Python's of the same value, an array that only
    offers DLPack as a tensor or array in its memory, all else as it is.

    Raises:
        ArgumentError: an object that offers DLPack cannot be taken through it.
    """
    what = kind_of(value)
    if what == "unknown":
        return through_dlpack(number(value))
    if what == "tuple":
        items = [viewed(item) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


_dtype_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """Return Triton's short name of an element type of torch, NumPy or the language."""
    name = _dtype_names.get(dtype)
    if name is None:
        text = str(dtype).split(".")[-1]
        known = _triton.type_names()
        name = known.get(text, text if text in known.values() else "")
        if not name:
            raise ArgumentError(
                "kernels cannot take elements of this type", argument="dtype", got=str(dtype)
            )
        _dtype_names[dtype] = name
    return name


@dataclass(frozen=True)
class Described:
    """An argument as the compiler sees it: `kind` a type string (nested for tuples), `attributes`
    the marks `D` and `S`, or the value of a constant."""

    kind: Any
    attributes: Any


def describe(
    value: Any,
    *,
    const: bool = False,
    specialize: bool = True,
    align: bool = True,
    pointer_range_bits: Optional[int] = None,
) -> Described:
    """Return `value` as the compiler sees it.

    Args:
        const: the parameter is annotated as a pointer that is only read.
        specialize: False for `do_not_specialize` parameters.
        align: False for `do_not_specialize_on_alignment` parameters.
        pointer_range_bits: `Compiler.pointer_range_bits`.

    Raises:
        DtypeError: kernels cannot take values of this type.
        IntegerError: an integer of more than 64 bits.
    """
    what = kind_of(value)
    if what == "bool":
        return Described("u1", None)
    if what == "int":
        return _describe_int(value, specialize, align)
    if what == "float":
        return Described("fp32", None)
    if what == "none":
        return Described("constexpr", None)
    if what == "constant":
        return Described("constexpr", value)
    if what == "registered":
        kind = registered_kind(type(value))
        assert kind is not None
        return Described(*kind.describe(value))
    if what == "tuple":
        items = [describe(item, pointer_range_bits=pointer_range_bits) for item in value]
        make: Any = type(value)._make if hasattr(value, "_fields") else tuple
        return Described(make(i.kind for i in items), make(i.attributes for i in items))
    if what in ("pointer", "array"):
        check_memory(value)
        address = value.data_ptr() if what == "pointer" else value.ctypes.data
        kind_name = f"*{'k' if const else ''}{dtype_name(value.dtype)}"
        if not specialize:
            return Described(kind_name, None)
        marks = "D" if align and address % RULES.divisibility == 0 else ""
        if pointer_range_bits is not None and small_storage(value, pointer_range_bits):
            marks += "S"
        return Described(kind_name, marks)
    remedy = "Annotate the parameter `: gl.constexpr` to make it a compile-time constant."
    if type(value).__module__.startswith("triton.") and "Descriptor" in type(value).__name__:
        remedy = (
            "Make the descriptor with the class in gluon_core.<vendor>, which knows its layout."
        )
    raise DtypeError(
        "kernels cannot take a value of this type",
        expected="a tensor, array, int, float, bool, None, tuple, descriptor, or an object with "
        "__dlpack__() or with data_ptr() and dtype",
        got=type(value).__name__,
        remedy=remedy,
    )


def _describe_int(value: int, specialize: bool, align: bool) -> Described:
    if specialize and value in RULES.constants:
        return Described("constexpr", int(value))
    name = RULES.integer_type(value)
    if name is None:
        raise IntegerError("the integer does not fit 64 bits", got=value)
    if not specialize:
        return Described(name, None)
    return Described(name, "D" if align and RULES.is_divisible(value) else "")


def small_storage(value: Any, bits: int) -> bool:
    """Return whether offsets into the storage of `value` fit a signed integer of `bits` bits."""
    size = rules.storage_size(value)
    return size is not None and size < 2 ** (bits - 1)


# The attributes that marks stand for.
ATTRIBUTES = {"D": ["tt.divisibility", RULES.divisibility], "S": ["tt.pointer_range", 32]}


def place_of(value: Any) -> Optional[tuple[str, int]]:
    """Return the device type and index that `value` binds a launch to: `("cpu", 0)` for NumPy, None for numbers.

    Raises:
        DeviceError: a NumPy array that kernels cannot work on in place.
    """
    what = kind_of(value)
    if what == "array":
        check_array(value)
        return "cpu", 0
    if what == "tuple":
        places = {place for place in map(place_of, value) if place is not None}
        return places.pop() if len(places) == 1 else (_disagree(places) if places else None)
    if what == "registered":
        kind = registered_kind(type(value))
        if kind is None or kind.place is None:
            return None
        return place_of(kind.place(value))
    if what != "pointer":
        return None
    check_memory(value)
    device = getattr(value, "device", None)
    if device is None:
        return None  # an address of which we know no more
    return device.type, device.index or 0


def _disagree(places: set[tuple[str, int]]) -> tuple[str, int]:
    listed = ", ".join(f"{kind}:{index}" for kind, index in sorted(places))
    raise DeviceError("the tensors of a launch are on different devices", got=listed)


def home_of(tensor: Any) -> Any:
    """Return the fact that `place_of` depends on, faster: the index of a torch tensor's device."""
    get_device = getattr(tensor, "get_device", None)
    return place_of(tensor) if get_device is None else get_device()


class Placeholder:
    """A row-major tensor without memory: its address is divisible by 16, and its storage is small.

    Args:
        dtype: of torch, NumPy or the language.
        shape: offered as `.shape`, as it is given.
    """

    def __init__(self, dtype: Any, shape: Sequence[int] = (1,)):
        self.dtype = dtype
        self.shape = shape

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.append(strides[-1] * size)
        return tuple(reversed(strides))

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


# ---------------------------------------------------------------------------------------------
# Descriptors
# ---------------------------------------------------------------------------------------------

LAYOUTS: dict[int, int] = {}  # identity of a layout that is kept alive -> token of its value
_kept_layouts: list[Any] = []
_layout_tokens: dict[str, int] = {}
_MOST_LAYOUTS = 1024


def layout_token(layout: Any) -> int:
    """Return a positive number that equal layouts share. Generated code looks into `LAYOUTS` first."""
    token = LAYOUTS.get(id(layout))
    if token is None:
        if len(_kept_layouts) >= _MOST_LAYOUTS:
            LAYOUTS.clear()
            _kept_layouts.clear()
        token = _layout_tokens.setdefault(text_of(layout), len(_layout_tokens) + 1)
        _kept_layouts.append(layout)
        LAYOUTS[id(layout)] = token
    return token


def _describe_descriptor(value: HostDescriptor) -> tuple[str, None]:
    value.check_launch()
    if value.since is not None:
        _triton.require(value.since, f"{type(value).__name__} in a kernel")
    element = dtype_name(value.base.dtype)
    text = descriptor_text(element, value.block_shape, value.layout, value.head, value.input_rank)
    return text, None


def _descriptor_key(value: HostDescriptor) -> tuple[Any, ...]:
    """Return the facts that its text in a signature depends on; shape, strides and padding come with each launch."""
    return (
        value.base.dtype,
        value.input_rank,
        layout_token(value.layout),
        *value.block_shape,
    )


DESCRIPTORS = register_argument_kind(
    ArgumentKind(
        matches=HostDescriptor,
        describe=_describe_descriptor,
        key=_descriptor_key,
        place=operator.attrgetter("base"),
    )
)


# ---------------------------------------------------------------------------------------------
# Arguments of a parameter
# ---------------------------------------------------------------------------------------------


class Parameter(of_kernel.Parameter):
    """One parameter of a kernel, which describes its argument to the compiler."""

    def describe(self, value: Any, pointer_range_bits: Optional[int]) -> Described:
        """Return `value` in this place as the compiler sees it."""
        if self.is_constexpr:
            return Described("constexpr", value)
        described = describe(
            value,
            const=self.is_const,
            specialize=self.specialize,
            align=self.align,
            pointer_range_bits=pointer_range_bits,
        )
        if self.annotation_type:
            marks = described.attributes if self.specialize else None
            return Described(self.annotation_type, marks if isinstance(marks, str) else "")
        return described

    def of_call(self) -> rules.Parameter:
        """Return the parameter as the launch engine knows it."""
        flags = rules.CONSTANT * self.is_constexpr
        flags |= rules.SPECIALIZE * self.specialize | rules.ALIGN * self.align
        kinds = {
            inspect.Parameter.KEYWORD_ONLY: "keyword",
            inspect.Parameter.VAR_POSITIONAL: "variadic",
        }
        default = self.default if self.has_default else ABSENT
        return rules.Parameter(self.name, kinds.get(self.kind, "plain"), default, flags)


def parameters_of(kernel: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a jit function, in order."""
    return cast("tuple[Parameter, ...]", of_kernel.parameters_of(kernel, Parameter))


def looked_at(
    parameters: Sequence[Parameter], values: Sequence[Any], where: str
) -> tuple[tuple[Any, ...], dict[str, tuple[str, int]]]:
    """Return the arguments of a call as kernels take them, and their `places_of`."""
    pairs = zip(parameters, values)
    seen = tuple([number(v) if p.is_constexpr else viewed(v) for p, v in pairs])
    return seen, places_of(parameters, seen, where)


def places_of(
    parameters: Sequence[Parameter], values: Sequence[Any], where: str, running: bool = True
) -> dict[str, tuple[str, int]]:
    """Return parameter -> (device type, index) of its tensor.

    Args:
        running: False for values that are not worked on, such as tensors without memory.
    """
    places: dict[str, tuple[str, int]] = {}
    for parameter, value in zip(parameters, values):
        if parameter.is_constexpr:
            continue
        try:
            place = place_of(value)
        except ArgumentError as error:
            if not running:
                continue
            error.argument = f"{where}({parameter.name})"
            raise
        if place is not None:
            places[parameter.name] = place
    return places


def all_described(
    parameters: Sequence[Parameter], values: Sequence[Any], where: str, bits: Optional[int]
) -> tuple[Described, ...]:
    """Return all arguments as the compiler sees them.

    Args:
        bits: see `describe`.
    """
    described = []
    for parameter, value in zip(parameters, values):
        try:
            described.append(parameter.describe(value, bits))
        except ArgumentError as error:
            error.argument = f"{where}({parameter.name})"
            raise
    return tuple(described)
