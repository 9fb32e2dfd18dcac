"""Compile options: the fields that the core and Triton's frontend read, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Collection, Mapping, TypeVar

from gluon_core.errors import LimitError, OptionError, did_you_mean
from gluon_core.plugin.targets import Target

__all__ = ["FURTHER", "CompileOptions", "check_given"]


# Options that a backend may have besides; where it has not, they count as None.
FURTHER: Mapping[str, str] = MappingProxyType(
    {
        "maxnreg": "the most 32-bit registers of a thread",
        "ir_override": "path of a file that replaces the stage its suffix names",
        "num_stages": "stages of pipelined loops",
        "enable_fp_fusion": "contract a multiplication and an addition",
        "launch_cooperative_grid": "all programs of a grid are resident at once",
        "extern_libs": "libraries of device code",
        "instrumentation_mode": "where Triton's knob of this name is set",
        "fpsan_homomorphic_casts": "where Triton's knob of this name is set",
        "hash": "a method: the options as text, files that they name by their content",
    }
)


_Kind = TypeVar("_Kind", bound="CompileOptions")


@dataclass(frozen=True)
class CompileOptions:
    """The compile options that each backend has, from `Compiler.options`; derive from it to add some.

    A backend with a compiler of Triton's has that one's class instead, with at least these fields. They
    become `CompiledKernel.metadata`, and the `repr` tells compiled kernels apart.

    Args:
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
        name, choices = "default_dot_input_precision", " or ".join(map(repr, allowed))
        message = "unsupported precision"
        raise OptionError(message, argument=name, expected=choices, got=repr(precision))


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
    counts = (
        ("num_warps", limits.max_warps, "warps"),
        ("num_ctas", limits.max_ctas_per_cluster, "blocks together"),
    )
    for key, most, unit in counts:
        value = requested.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or value is True or value < 1 or value & (value - 1):
            message = f"{key} must be a power of two"
            raise OptionError(message, argument=key, expected=f"1 to {most}", got=repr(value))
        if value > most:
            message, expected = f"{target} cannot run that many {unit}", f"at most {most}"
            error = LimitError(message, argument=key, expected=expected, got=value)
            error.required, error.limit, error.resource = value, most, unit
            raise error
    stages, registers = requested.get("num_stages"), requested.get("maxnreg")
    if stages is not None and not (isinstance(stages, int) and stages >= 0):
        message, name, got = "must be an integer", "num_stages", repr(stages)
        raise OptionError(message, argument=name, expected="0 or more", got=got)
    most, got = limits.max_registers, repr(registers)
    if registers is not None and not (isinstance(registers, int) and 1 <= registers <= most):
        message = "maxnreg is the most 32-bit registers a thread may have"
        raise OptionError(message, argument="maxnreg", expected=f"1 to {most}", got=got)
