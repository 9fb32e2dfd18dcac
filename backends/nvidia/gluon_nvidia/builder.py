"""Triton's builder with the ops of NVIDIA's that it has no method for: they become inline assembly."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

from gluon_core.plugin.triton_compiler import TritonCompiler
from gluon_nvidia import columns, pairs
from gluon_nvidia.timeline import marker

__all__ = ["MultimemOperands", "NvidiaOps"]

_SUFFIX = {"fp16": "f16x2", "bf16": "bf16x2", "fp32": "f32", "int32": "s32", "uint32": "u32"}

_OWN_PART = """{{
	.reg .b32 rank, part;
	mov.u32 rank, %cluster_ctarank;
	shr.u32 part, rank, {first};
	and.b32 part, part, {last};
	and.b32 rank, rank, {last};
	sub.s32 part, part, rank;
	mad.lo.s32 $0, part, {size}, $1;
}}"""


class MultimemOperands(NamedTuple):
    """The operands of a multimem instruction beyond those of its reference model.

    Args:
        element: Triton's name of the elements' dtype.
        addresses: of all ranks' copies at once, a tensor of int64.
        guard: the mask as int32; None for all.
        nothing: the type of the result that assembly needs and nobody uses, int32.
    """

    element: str
    addresses: Any
    guard: Optional[Any]
    nothing: Any


class NvidiaOps:
    """Ops for Triton's builder, which has no multimem instructions (PTX 9.7.9.14).

    The simulator answers to the same methods with `gluon_nvidia.reference.multimem`: it knows the
    copies of all ranks, machine code the one address that reaches them.
    """

    create_inline_asm: Callable[..., Any]  # Triton's builder has it
    get_int32_ty: Callable[[], Any]
    options: Any

    def mark_scope(self, name: str, begins: bool, line: int) -> None:
        if TritonCompiler.recording(self.options) is not None:
            self.create_inline_asm(
                marker(name, begins, line), "=r", [], [self.get_int32_ty()], False, 1
            )

    def mark_pair(self, word: str) -> None:
        """Leave a mark for `pairs.paired`."""
        self.create_inline_asm(pairs.marker(word), "=r", [], [self.get_int32_ty()], False, 1)

    def mark_columns(self, count: int, place: str) -> None:
        """Leave a mark for `columns.narrowed`."""
        text = columns.marker(count, place)
        self.create_inline_asm(text, "=r", [], [self.get_int32_ty()], False, 1)

    def own_coordinates(
        self, coord: Sequence[Any], cga_layout: Sequence[Sequence[int]], block: Sequence[int]
    ) -> list[Any]:
        """Return coordinates of a box of which blocks have parts, so that Triton 3.6 finds a block's own.

        It takes the lowest bits of the rank for the part, even where these do not divide the box.
        """
        places = list(coord)
        divided = [bit for bit, base in enumerate(cga_layout) if any(base)]
        dims = {d for bit in divided for d, step in enumerate(cga_layout[bit]) if step}
        if not divided or divided[0] == 0 or len(dims) != 1:
            return places
        (dim,), parts = dims, 1 << len(divided)
        text = _OWN_PART.format(first=divided[0], last=parts - 1, size=block[dim] // parts)
        call = self.create_inline_asm(text, "=r,r", [places[dim]], [self.get_int32_ty()], True, 1)
        places[dim] = call.get_result(0)
        return places

    def create_multimem_load_reduce(
        self, type: Any, copies: Any, mask: Any, kind: str, width: int, axis: int,
        operands: MultimemOperands,
    ) -> Any:  # fmt: skip
        form = _Form(operands, kind, width)
        precise = ".acc::f32" if kind == "add" and form.packed else ""
        name = f"multimem.ld_reduce.relaxed.sys.global.{kind}{precise}{form.type}"
        text = f"{name} {form.registers(0)}, [${form.words}];"
        return self._multimem(text, form, form.words, form.letter, [], type)

    def create_multimem_store(
        self, copies: Any, value: Any, mask: Any, width: int, axis: int, operands: MultimemOperands
    ) -> None:
        form = _Form(operands, "", width)
        self._write(f"multimem.st.relaxed.sys.global{form.type}", form, value)

    def create_multimem_reduce(
        self, copies: Any, value: Any, mask: Any, kind: str, sem: str, scope: str, width: int,
        axis: int, operands: MultimemOperands,
    ) -> None:  # fmt: skip
        form = _Form(operands, kind, width)
        self._write(f"multimem.red.{sem}.{scope}.global.{kind}{form.type}", form, value)

    def _write(self, name: str, form: _Form, value: Any) -> None:
        """Emit an instruction that takes `value`. Assembly has results: zeros that nobody uses."""
        text = f"{name} [${form.width}], {form.registers(2 * form.width)};"
        self._multimem(text, form, form.width, "r", [value], form.operands.nothing)

    def _multimem(
        self, text: str, form: _Form, results: int, letter: str, values: Sequence[Any], type: Any
    ) -> Any:
        constraints = [f"={letter}"] * results + ["l"] * form.width
        constraints += [form.letter] * form.words * len(values)
        operands = [form.operands.addresses, *values]
        test = guard = ""
        if form.operands.guard is not None:
            test = f".reg .pred %p; setp.ne.b32 %p, ${len(constraints)}, 0; "
            guard = "@%p "
            operands.append(form.operands.guard)
            constraints += ["r"] * form.width
        zeros = "".join(f"mov.b32 ${i}, 0; " for i in range(results))
        text = f"{{ {test}{zeros}{guard}{text} }}"
        call = self.create_inline_asm(
            text, ",".join(constraints), operands, [type], False, form.width
        )
        return call.get_result(0)


class _Form:
    """The form of an instruction for `width` neighbouring elements of a thread."""

    def __init__(self, operands: MultimemOperands, kind: str, width: int):
        self.operands = operands
        self.width = width
        self.packed = operands.element in ("fp16", "bf16")
        self.words = width // 2 if self.packed else width  # registers of 32 bits
        self.letter = "f" if operands.element == "fp32" else "r"
        vector = f".v{self.words}" if self.words > 1 else ""
        bits = kind in ("", "and", "or", "xor") and operands.element in ("int32", "uint32")
        self.type = f"{vector}.{'b32' if bits else _SUFFIX[operands.element]}"

    def registers(self, first: int) -> str:
        if self.words == 1:
            return f"${first}"
        return "{" + ", ".join(f"${first + i}" for i in range(self.words)) + "}"
