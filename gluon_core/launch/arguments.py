"""An argument of a launch: type, marks and place.

The decisions are Triton's, so that the same call compiles to the same code: pointers and integers
divisible by 16 are marked `D`, pointers into small storage `S` (where the backend asks for it),
the integer 1 and None become constants, bools and floats are never specialized. The numbers are those of
`gluon_runtime.rules`, for launches of bundles too.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple, Optional, cast

from gluon_core import _triton
from gluon_core.compiler import parameters as of_kernel
from gluon_core.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    IntegerError,
    TensorError,
)
from gluon_core.launch.memory import check_array, check_memory, number, through_dlpack
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.launcher import ArgumentKind, checked_kind
from gluon_core.plugin.paths import load_named
from gluon_core.registry.load import registry
from gluon_core.values.descriptors import descriptor_text
from gluon_runtime import rules
from gluon_runtime.rules import ABSENT, RULES

__all__ = [
    "ArgumentKind",
    "Argument",
    "Parameter",
    "describe",
    "kind_of",
    "parameters_of",
    "place_of",
    "register_argument_kind",
]

_registered: list[ArgumentKind] = []


def register_argument_kind(kind: ArgumentKind) -> ArgumentKind:
    """Let kernels take objects of another class.

    A plugin names its kinds in `Language.argument_kinds` instead.

    Raises:
        ArgumentError: `kind` is no `ArgumentKind`, or a part of it cannot be called.
    """
    _registered.append(checked_kind(kind))
    registered_kind.cache_clear()
    return kind


@functools.cache
def registered_kind(cls: type) -> Optional[ArgumentKind]:
    """Return the kind for values of class `cls`: one that was registered, the latest first, else a plugin's."""
    known = (*reversed(_registered), *_of_plugins())
    return next((kind for kind in known if kind.is_for(cls)), None)


def _of_plugins() -> tuple[ArgumentKind, ...]:
    """Return the kinds that the installed backends name."""
    return tuple(
        checked_kind(load_named(path, f"backend {backend.name!r}, argument_kinds"))
        for backend in registry().backends.values()
        for path in backend.language.argument_kinds
    )


def kind_of(value: Any) -> str:
    """Return `bool`, `int`, `float`, `none`, `tuple`, `constant`, `array`, `pointer`, `registered` or `unknown`."""
    plain, cls = rules.plain_kind(value), cast("Any", type(value))
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


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return Triton's short name of an element type of torch, NumPy or the language."""
    text, known = str(dtype).split(".")[-1], _triton.type_names()
    name = known.get(text, text if text in known.values() else "")
    if not name:
        raise ArgumentError(
            "kernels cannot take elements of this type", argument="dtype", got=str(dtype)
        )
    return name


class Argument(NamedTuple):
    """An argument as the compiler sees it, and as launches do.

    Args:
        kind: a type string, nested for tuples.
        attributes: the marks `D` and `S`, or the value of a constant.
        value: as kernels take it: a scalar of NumPy as Python's of the same value, an array that only offers DLPack
            as a tensor or array in its memory.
        place: the device type and index that it binds a launch to: `("cpu", 0)` for NumPy, None for numbers.
    """

    kind: Any
    attributes: Any
    value: Any = None
    place: Optional[tuple[str, int]] = None


def describe(value: Any, **facts: Any) -> Argument:
    """Return `value` as the compiler sees it, without the value.

    Args:
        facts: of the parameter, and `pointer_range_bits`, see `classify`.
    """
    return Argument(*classify(value, running=False, **facts)[:2])


def place_of(value: Any) -> Optional[tuple[str, int]]:
    """Return the place of an argument, see `Argument`."""
    return classify(value).place


# The types of the values of Python that are never specialized.
_TYPES = {"bool": ("u1", None), "float": ("fp32", None), "none": ("constexpr", None)}
# The attributes that marks stand for.
ATTRIBUTES = {"D": ["tt.divisibility", RULES.divisibility], "S": ["tt.pointer_range", 32]}


def classify(  # noqa: PLR0913 - the facts of a parameter
    value: Any,
    *,
    const: bool = False,
    specialize: bool = True,
    align: bool = True,
    pointer_range_bits: Optional[int] = None,
    running: bool = True,
) -> Argument:
    """Return the classification of a value that is not compiled in.

    Args:
        const: the parameter is annotated as a pointer that is only read.
        specialize: False for `do_not_specialize` parameters.
        align: False for `do_not_specialize_on_alignment` parameters.
        pointer_range_bits: `Compiler.pointer_range_bits`.
        running: False for values that are not worked on, such as tensors without memory.

    Raises:
        ArgumentError: kernels cannot work on an array in place, or take an object through DLPack.
        DeviceError: the items of a tuple are on different devices.
        DtypeError: kernels cannot take values of this type.
        IntegerError: an integer of more than 64 bits.
    """
    kind = kind_of(value)
    if kind == "unknown" and running:
        value = through_dlpack(number(value))
        kind = kind_of(value)
    if kind in _TYPES:
        return Argument(*_TYPES[kind], value)
    if kind == "int":
        return Argument(*_describe_int(value, specialize, align), value)
    if kind == "constant":
        return Argument("constexpr", value, value)
    if kind == "registered":
        own = registered_kind(cast("Any", type(value)))
        assert own is not None
        return Argument(*own.describe(value), value, own.place and _device_of(own.place(value)))
    if kind == "tuple":
        items = [classify(v, pointer_range_bits=pointer_range_bits, running=running) for v in value]
        make: Any = type(value)._make if hasattr(value, "_fields") else tuple
        if any(item.value is not v for item, v in zip(items, value)):
            value = make(item.value for item in items)
        kinds, marks = make(item.kind for item in items), make(item.attributes for item in items)
        places = {item.place for item in items} - {None}
        if len(places) > 1 and running:
            listed = ", ".join(f"{kind}:{index}" for kind, index in sorted(filter(None, places)))
            raise DeviceError("the tensors of a launch are on different devices", got=listed)
        return Argument(kinds, marks, value, places.pop() if len(places) == 1 else None)
    if kind == "unknown":
        raise _unfit(value)
    check_memory(value)
    _check_sign(value)
    address = value.data_ptr() if kind == "pointer" else value.ctypes.data
    text = f"*{'k' if const else ''}{dtype_name(value.dtype)}"
    if running and kind == "array":
        check_array(value)
    marks = "D" * (align and address % RULES.divisibility == 0)
    if pointer_range_bits is not None:
        marks += "S" * RULES.is_small(value)
    return Argument(text, marks if specialize else None, value, _device_of(value))


def _check_sign(value: Any) -> None:
    """Check that a tensor of torch is not the negative or the conjugate of its memory.

    Raises:
        TensorError: it is; a launch would read the memory without the sign.
    """
    for bit in ("neg", "conj"):
        if getattr(value, f"is_{bit}", bool)():
            raise TensorError(
                "kernels read memory as it is, and the tensor is its negative or conjugate",
                expected=f"a tensor without torch's {bit} bit",
                got=f"is_{bit}() = True",
                remedy=f"Pass x.resolve_{bit}(), which makes a copy.",
            )


def _device_of(value: Any) -> Optional[tuple[str, int]]:
    """Return the place of a tensor or array; None for an address of which no more is known."""
    kind, device = kind_of(value), getattr(value, "device", None)
    if kind == "array":
        return "cpu", 0
    return None if kind != "pointer" or device is None else (device.type, device.index or 0)


def _describe_int(value: int, specialize: bool, align: bool) -> tuple[str, Any]:
    if specialize and value in RULES.constants:
        return "constexpr", int(value)
    kind = RULES.integer_type(value)
    if kind is None:
        raise IntegerError("the integer does not fit 64 bits", got=value)
    divisible = align and value % RULES.divisibility == 0
    return kind, "D" * divisible if specialize else None


def _unfit(value: Any) -> DtypeError:
    remedy = "Annotate the parameter `: gl.constexpr` to make it a compile-time constant."
    if type(value).__module__.startswith("triton.") and "Descriptor" in type(value).__name__:
        remedy = (
            "Make the descriptor with the class in gluon_core.<vendor>, which knows its layout."
        )
    return DtypeError(
        "kernels cannot take a value of this type",
        expected="a tensor, array, int, float, bool, None, tuple, descriptor, or an object with "
        "__dlpack__() or with data_ptr() and dtype",
        got=type(value).__name__,
        remedy=remedy,
    )


# ---------------------------------------------------------------------------------------------
# Descriptors
# ---------------------------------------------------------------------------------------------


def _describe_descriptor(value: HostDescriptor) -> tuple[str, None]:
    value.check_launch()
    if value.since is not None:
        _triton.require(value.since, f"{type(value).__name__} in a kernel")
    element = dtype_name(value.base.dtype)
    text = descriptor_text(element, value.block_shape, value.layout, value.head, value.input_rank)
    return text, None


DESCRIPTORS = register_argument_kind(
    ArgumentKind(
        matches=HostDescriptor,
        describe=_describe_descriptor,
        place=operator.attrgetter("base"),
    )
)


# ---------------------------------------------------------------------------------------------
# Arguments of a parameter
# ---------------------------------------------------------------------------------------------


class Parameter(of_kernel.Parameter):
    """One parameter of a kernel, which describes its argument to the compiler."""

    def read(self, value: Any, bits: Optional[int], running: bool = True) -> Argument:
        """Return the classification of an argument; `value` may be `ABSENT`.

        Args:
            bits, running: see `classify`.
        """
        if self.is_constexpr or value is ABSENT:
            value = number(value) if hasattr(value, "dtype") else value
            return Argument("constexpr", value, value)
        argument = classify(
            value,
            const=self.is_const,
            specialize=self.specialize,
            align=self.align,
            pointer_range_bits=bits,
            running=running,
        )
        if not self.annotation_type:
            return argument
        marks = argument.attributes
        marks = marks if self.specialize and isinstance(marks, str) else ""
        return argument._replace(kind=self.annotation_type, attributes=marks)

    def of_call(self) -> rules.Parameter:
        """Return the parameter as the launch engine knows it."""
        flags = rules.CONSTANT * self.is_constexpr
        flags |= rules.SPECIALIZE * self.specialize | rules.ALIGN * self.align
        default = self.default if self.has_default else ABSENT
        return rules.Parameter(self.name, self.passed, default, flags)


def parameters_of(kernel: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a jit function, in order."""
    return cast("tuple[Parameter, ...]", of_kernel.parameters_of(kernel, Parameter))
