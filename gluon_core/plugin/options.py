"""Compile options: the fields that the core and Triton's frontend read, and a class with all of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Number
from typing import Any, Collection, Mapping, Optional, Protocol, TypeVar

from gluon_core.errors import LimitError, OptionError, did_you_mean
from gluon_core.plugin.targets import Target

__all__ = [
    "CompileOptions",
    "FurtherOptions",
    "Options",
    "check_given",
    "further",
    "whole",
]


class Options(Protocol):
    """Compile options, from `Compiler.options`: a frozen dataclass with at least these fields.

    Its fields become `CompiledKernel.metadata`, and its `repr` tells compiled kernels apart. Options of
    equal `repr` may still differ in the content of files; a method `hash() -> str` then says so to
    the cache on disk.

    Attributes:
        num_warps: warps of a block.
        num_ctas: blocks of a cluster.
        debug: keep the assertions of kernels.
        sanitize_overflow: check integer arithmetic for overflow while a kernel runs.
        arch: the architecture's name, for messages.
        supported_fp8_dtypes: Triton's names of the 8-bit floats that kernels may use (`fp8e5`, ...).
        deprecated_fp8_dot_operand_dtypes: those of them that `tl.dot` warns of.
        default_dot_input_precision: how float32 operands are multiplied when a kernel does not say.
        allowed_dot_input_precisions: the choices of a kernel.
        max_num_imprecise_acc_default: for `tl.dot` of 8-bit floats.
    """

    @property
    def num_warps(self) -> int: ...
    @property
    def num_ctas(self) -> int: ...
    @property
    def debug(self) -> bool: ...
    @property
    def sanitize_overflow(self) -> bool: ...
    @property
    def arch(self) -> str: ...
    @property
    def supported_fp8_dtypes(self) -> Collection[str]: ...
    @property
    def deprecated_fp8_dot_operand_dtypes(self) -> Collection[str]: ...
    @property
    def default_dot_input_precision(self) -> str: ...
    @property
    def allowed_dot_input_precisions(self) -> Collection[str]: ...
    @property
    def max_num_imprecise_acc_default(self) -> Optional[int]: ...


class FurtherOptions(Options, Protocol):
    """Options that a backend may have; where it has not, they count as None.

    Attributes:
        maxnreg: the most 32-bit registers of a thread.
        ir_override: path of a file that stands in for the stage its suffix names.
        num_stages, enable_fp_fusion, launch_cooperative_grid, extern_libs: for those who listen to
            compilations through Triton's hooks.
        instrumentation_mode, fpsan_homomorphic_casts: given where Triton's knobs of these names are set.
    """

    @property
    def maxnreg(self) -> Optional[int]: ...
    @property
    def ir_override(self) -> Optional[str]: ...
    @property
    def num_stages(self) -> Optional[int]: ...
    @property
    def enable_fp_fusion(self) -> Optional[bool]: ...
    @property
    def launch_cooperative_grid(self) -> Optional[bool]: ...
    @property
    def extern_libs(self) -> Any: ...
    @property
    def instrumentation_mode(self) -> Optional[str]: ...
    @property
    def fpsan_homomorphic_casts(self) -> Optional[bool]: ...

    def hash(self) -> str:
        """Return the options as text, files that they name by their content."""


def further(options: Any, name: str) -> Any:
    """Return one of `FurtherOptions`, None where the backend has no such option."""
    return getattr(options, name, None)


_COUNTS = ("num_warps", "num_ctas", "num_stages", "maxnreg")
_Kind = TypeVar("_Kind", bound="CompileOptions")


@dataclass(frozen=True)
class CompileOptions:
    """Options of a backend without a compiler of Triton's; derive from it to add some."""

    num_warps: int = 4
    num_ctas: int = 1
    debug: bool = False
    sanitize_overflow: bool = False
    arch: str = ""
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee",)
    max_num_imprecise_acc_default: int = 0

    @classmethod
    def of(cls: type[_Kind], target: Target, requested: Mapping[str, Any]) -> _Kind:
        """Return the options for `target` when a launch asks for these.

        Raises:
            OptionError: an unknown key (with the nearest known one), or an illegal value.
        """
        check_given(target, requested, tuple(f.name for f in fields(cls)))
        options = cls(**{"arch": str(target.architecture.arch), **requested})
        check_precision(options)
        return options


def check_precision(options: Any) -> None:
    """Raise unless `options` multiply float32 operands in a precision that they allow.

    Raises:
        OptionError: no such precision.
    """
    precision, allowed = options.default_dot_input_precision, options.allowed_dot_input_precisions
    if precision not in allowed:
        raise OptionError(
            "no such precision",
            argument="default_dot_input_precision",
            expected=" or ".join(map(repr, allowed)),
            got=repr(precision),
        )


def whole(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with integers for numbers that equal one: a launch finds its kernel again by options that
    are equal to those of an earlier one, as 4.0 is to 4, and no launch is to depend on the one before."""
    return {name: _whole(name, value) for name, value in requested.items()}


def _whole(name: str, value: Any) -> Any:
    flag = isinstance(value, bool) and name not in _COUNTS
    if type(value) is int or flag or not isinstance(value, Number):
        return value
    exact: Any = value
    try:
        number = int(getattr(exact, "real", exact))
    except (TypeError, ValueError, OverflowError):
        return value
    return number if number == exact else value


def check_given(target: Target, requested: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise unless `requested` are options of `known` names, with numbers that `target` can do.

    Raises:
        OptionError: an unknown key (with the nearest known one), or an illegal value.
        LimitError: more warps than a block can have, or blocks than a cluster.
    """
    for key in requested:
        if key not in known:
            raise OptionError(
                f"{target.architecture.backend} has no compile option {key!r}",
                argument=key,
                remedy=did_you_mean(key, known) or f"Options: {', '.join(known)}.",
            )
    limits = target.limits
    what = {"num_warps": "warps", "num_ctas": "blocks together"}
    for key, most in (("num_warps", limits.max_warps), ("num_ctas", limits.max_ctas_per_cluster)):
        value = requested.get(key)
        if value is None:
            continue
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < 1
            or value & (value - 1)
        ):
            raise OptionError(
                f"{key} must be a power of two",
                argument=key,
                expected=f"1 to {most}",
                got=repr(value),
            )
        if value > most:
            error = LimitError(
                f"{target} cannot run that many {what[key]}",
                argument=key,
                expected=f"at most {most}",
                got=value,
            )
            error.required, error.limit, error.resource = value, most, what[key]
            raise error
    stages = requested.get("num_stages")
    if stages is not None and not (isinstance(stages, int) and stages >= 0):
        raise OptionError(
            "must be an integer",
            argument="num_stages",
            expected="0 or more",
            got=repr(stages),
        )
    registers = requested.get("maxnreg")
    if registers is not None and not (
        isinstance(registers, int) and 1 <= registers <= limits.max_registers
    ):
        raise OptionError(
            "maxnreg is the most 32-bit registers a thread may have",
            argument="maxnreg",
            expected=f"1 to {limits.max_registers}",
            got=repr(registers),
        )
