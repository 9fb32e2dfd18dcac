"""8-bit floats: formats to store and to multiply matrices in, which compilers hardly compute with.

Programs that Triton's compilers reject deep in a pass are refused here, under the kernel's line. The
matrix
in `tests/compile` asks them, for each op, dtype and architecture.
"""

from __future__ import annotations

from typing import Any, Optional

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core.errors import CapabilityError, DtypeError, refuse
from gluon_core.features import NARROW_DIVISION
from gluon_core.semantic.base import SemanticBase

__all__ = ["NarrowOps"]

_THROUGH = "Compute in a wider type: x.to(gl.float32), or gl.float16."


class NarrowOps(SemanticBase):
    """Refuses the arithmetic and the conversions of 8-bit floats that no compiler makes."""

    def refuse_narrow(self, subject: str, *operands: Any, loose: bool = False) -> None:
        """Raise where an op on `operands` would compute in an 8-bit float.

        Args:
            loose: of one tensor with itself, compilers take the op away; see `errors.refuse`.

        Raises:
            DtypeError: naming the type.
        """
        tensors = [value for value in operands if isinstance(value, tl.tensor)]
        if not any(map(_is_narrow, tensors)) or any(t.dtype.is_ptr() for t in tensors):
            return
        common = tensors[0]
        if len(operands) > 1:
            common = self.binary_op_type_checking_impl(*operands[:2], True, True)[0]
        if _is_narrow(common):
            name = common.dtype
            error = DtypeError(f"{subject} has no form for {name}", got=name, remedy=_THROUGH)
            if not loose:
                raise error
            refuse(error)

    def add(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        self.refuse_narrow("addition", input, other)
        return super().add(input, other, *more, **named)

    def sub(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        self.refuse_narrow("subtraction", input, other)
        return super().sub(input, other, *more, **named)

    def mul(self, input: Any, other: Any, *more: Any, **named: Any) -> Any:
        self.refuse_narrow("multiplication", input, other)
        return super().mul(input, other, *more, **named)

    def truediv(self, input: Any, other: Any) -> Any:
        if not _triton.has(NARROW_DIVISION):
            self.refuse_narrow("division", input, other)
        return super().truediv(input, other)

    def mod(self, input: Any, other: Any) -> Any:
        if not _triton.has(NARROW_DIVISION):
            self.refuse_narrow("the remainder", input, other)
        return super().mod(input, other)

    def minus(self, input: Any) -> Any:
        self.refuse_narrow("negation", input)
        return super().minus(input)

    def minimum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        self.refuse_narrow("the minimum", x, y, loose=True)
        return super().minimum(x, y, propagate_nan)

    def maximum(self, x: Any, y: Any, propagate_nan: Any) -> Any:
        self.refuse_narrow("the maximum", x, y, loose=True)
        return super().maximum(x, y, propagate_nan)

    def greater_than(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().greater_than(input, other)

    def greater_equal(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().greater_equal(input, other)

    def less_than(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().less_than(input, other)

    def less_equal(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().less_equal(input, other)

    def equal(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().equal(input, other)

    def not_equal(self, input: Any, other: Any) -> Any:
        self.refuse_narrow("a comparison", input, other)
        return super().not_equal(input, other)

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: Optional[str] = None) -> Any:
        goal = getattr(unwrap(dst_ty), "scalar", None)
        if isinstance(goal, tl.dtype) and isinstance(input, tl.tensor):
            source = input.type.scalar
            if source == goal:  # most are: each side of each binary op
                return input
            self._check_cast(source, goal, fp_downcast_rounding)
            where = self.target.architecture.casts_by_float32.get((str(source), str(goal)))
            narrow = goal.is_fp8() and not goal.is_ptr()
            integer = source.is_int() and narrow  # Triton has no such conversion
            if integer or where is not None and not _triton.has(where):
                input = super().cast(input, tl.float32)
        return super().cast(input, dst_ty, fp_downcast_rounding)

    def _check_cast(self, source: Any, goal: Any, rounding: Optional[str]) -> None:
        """Raise where no compiler, or not the target's, has the conversion."""
        if goal.is_ptr() and source.is_int() and source.primitive_bitwidth != 64:
            raise DtypeError(
                "an address is an integer of 64 bits",
                argument="dtype",
                expected="int64 or uint64 to convert to a pointer",
                got=source,
                remedy="Convert it first: x.to(gl.int64).",
            )
        if source.is_ptr() or goal.is_ptr():
            return
        where = self.target.architecture.no_casts.get((str(source), str(goal)))
        if where is not None and not _triton.has(where):
            raise CapabilityError(
                f"no conversion from {source} to {goal} on {self.target}, but with {where.releases}",
                argument="dtype",
                remedy="Convert in host code, or choose a newer target.",
            )
        if not (source.is_fp8() or goal.is_fp8()) or unwrap(rounding) is not None:
            return
        between = source.is_fp8() and goal.is_fp8() and not source.is_fp8e4b15()
        double = source.is_fp64() and goal.is_fp8()
        double = double or source.is_fp8() and goal.is_fp64() and not source.is_fp8e4b15()
        packed = goal.is_fp8e4b15() and not (source.is_fp16() or source.is_fp32())
        if between or double or packed:
            raise DtypeError(
                f"compilers have no conversion from {source} to {goal}",
                argument="dtype",
                got=goal,
                remedy="Convert through float32: x.to(gl.float32).to(...).",
            )


def _is_narrow(value: Any) -> bool:
    return not value.dtype.is_ptr() and bool(value.dtype.is_fp8())
