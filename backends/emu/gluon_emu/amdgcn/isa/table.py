"""The table of instructions: mnemonic -> `Op`, filled by the modules of the families.

A function in a family module computes on plain arrays; the decorators here give it operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import flush

__all__ = ["OPS", "Op", "custom", "find", "scalar", "vector"]

Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Op:
    """One row of the table.

    Args:
        bind: `f(instruction, context) -> step(batch)`; the result of a step, if any, is the index
            of the next instruction or a signal to the scheduler.
        family: salu, valu, trans, smem, vmem, lds, mfma, branch, ...
        results: how many of the first operands are written.
        pair: for operations of dual instructions, `f(instruction, context) -> (compute, write)`.
    """

    bind: Callable[[Instruction, Context], Step]
    family: str
    results: int = 1
    pair: Optional[
        Callable[[Instruction, Context], tuple[Callable[..., Any], Callable[..., Any]]]
    ] = None
    doc: str = ""


OPS: dict[str, Op] = {}
_PATTERNS: list[Callable[[str], Optional[Op]]] = []


def find(name: str) -> Optional[Op]:
    """Return the semantics of a mnemonic, None where there are none."""
    op = OPS.get(name)
    if op is None:
        for pattern in _PATTERNS:
            op = pattern(name)
            if op is not None:
                OPS[name] = op
                break
    return op


def pattern(function: Callable[[str], Optional[Op]]) -> Callable[[str], Optional[Op]]:
    """Register `f(name) -> Op | None` for families whose names spell their parameters."""
    _PATTERNS.append(function)
    return function


def custom(*names: str, family: str, results: int = 1) -> Callable[..., Any]:
    """Register a function that binds the instruction itself."""

    def register(bind: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in OPS, name
            OPS[name] = Op(bind, family, results, doc=bind.__doc__ or "")
        return bind

    return register


def vector(
    *names: str,
    dst: str = "u32",
    src: Union[str, Sequence[str]] = ("u32", "u32"),
    family: str = "valu",
    swap: bool = False,
) -> Callable[..., Any]:
    """Register a function that computes a vector result from as many sources as `src` has types.

    Args:
        dst: type of the result, see `bind.TYPES`.
        swap: whether the first two sources come in the other order (`rev`).
    """
    kinds = tuple(src.split()) if isinstance(src, str) else tuple(src)
    floating = dst == "f32" and any(k == "f32" for k in kinds)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def pair(ins: Instruction, ctx: Context) -> tuple[Callable[..., Any], Callable[..., Any]]:
            reads = [
                _bind.vector_reader(ins, operand, kind, ctx, place)
                for place, (operand, kind) in enumerate(zip(ins.operands[1:], kinds))
            ]
            _check_count(reads, kinds)
            if swap:
                reads[0], reads[1] = reads[1], reads[0]
            write = _bind.vector_writer(ins, ins.operands[0], dst, ctx)
            compute = _computing(function, reads, floating)
            finish = output_modifiers(ins.modifiers, dst)
            if finish is not None:
                plain = compute
                compute = lambda b: finish(plain(b))  # noqa: E731
            return compute, write

        def bind(ins: Instruction, ctx: Context) -> Step:
            compute, write = pair(ins, ctx)
            return lambda b: write(b, compute(b))

        for name in names:
            assert name not in OPS, name
            OPS[name] = Op(bind, family, 1, pair, function.__doc__ or "")
        return function

    return register


def _check_count(reads: Sequence[Any], kinds: Sequence[str]) -> None:
    if len(reads) != len(kinds):
        raise BackendError("sources are missing", expected=str(len(kinds)), got=str(len(reads)))


def _computing(
    function: Callable[..., Any], reads: Sequence[Callable[..., Any]], floating: bool
) -> Callable[..., Any]:
    if floating:

        def flushing(b: Any) -> Any:
            values = [read(b) for read in reads]
            if b.flushes:
                return flush(function(*[flush(v) if v.dtype == np.float32 else v for v in values]))
            return function(*values)

        return flushing
    if len(reads) == 1:
        (first,) = reads
        return lambda b: function(first(b))
    if len(reads) == 2:
        first, second = reads
        return lambda b: function(first(b), second(b))
    if len(reads) == 3:
        first, second, third = reads
        return lambda b: function(first(b), second(b), third(b))
    return lambda b: function(*[read(b) for read in reads])


def output_modifiers(modifiers: Mapping[str, str], kind: str) -> Optional[Callable[[Any], Any]]:
    """Return the effect of `clamp`, `mul` and `div` on a result of the type `kind`; None for nothing.

    ISA: CDNA3 6.2.2, output modifiers.
    """
    factor = None
    if modifiers.get("mul") not in (None, "1"):
        factor = float(modifiers["mul"])
    elif "div" in modifiers:
        factor = 1 / float(modifiers["div"])
    clamp = "clamp" in modifiers and kind in ("f32", "f16", "f64", "bf16")
    if factor is None and not clamp:
        return None

    def finish(value: Any) -> Any:
        if factor is not None:
            value = value * value.dtype.type(factor)
        if clamp:
            value = np.clip(np.where(np.isnan(value), value.dtype.type(0), value), 0, 1)
        return value

    return finish


def scalar(
    *names: str,
    dst: Optional[str] = "u32",
    src: Union[str, Sequence[str]] = ("u32", "u32"),
    scc: Optional[str] = None,
    family: str = "salu",
) -> Callable[..., Any]:
    """Register a function that computes a scalar result.

    Args:
        dst: type of the result; None where SCC is all there is.
        scc: "nonzero" sets SCC to whether the result is not 0; "own": the function answers
            (result, SCC); None leaves SCC alone.
    """
    kinds = tuple(src.split()) if isinstance(src, str) else tuple(src)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def bind(ins: Instruction, ctx: Context) -> Step:
            sources = ins.operands[1:] if dst is not None else ins.operands
            if len(sources) < len(kinds):  # sopk: the destination is a source too
                sources = ins.operands
            reads = [_bind.scalar_reader(o, k, ctx) for o, k in zip(sources, kinds)]
            _check_count(reads, kinds)
            if dst is None:

                def compare(b: Any) -> None:
                    b.scc = np.broadcast_to(function(*[read(b) for read in reads]), b.scc.shape)

                return compare
            write = _bind.scalar_writer(ins.operands[0], dst, ctx)
            if scc == "own":

                def carrying(b: Any) -> None:
                    value, flag = function(*[read(b) for read in reads])
                    write(b, value)
                    b.scc = np.broadcast_to(flag, b.scc.shape)

                return carrying
            if scc == "nonzero":

                def testing(b: Any) -> None:
                    value = function(*[read(b) for read in reads])
                    write(b, value)
                    b.scc = np.broadcast_to(value != 0, b.scc.shape)

                return testing
            return lambda b: write(b, function(*[read(b) for read in reads]))

        for name in names:
            assert name not in OPS, name
            OPS[name] = Op(bind, family, 0 if dst is None else 1, doc=function.__doc__ or "")
        return function

    return register


def registers_of(operand: Any) -> tuple[Reg, ...]:
    return (operand,) if isinstance(operand, Reg) else ()
