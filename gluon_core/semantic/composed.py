"""The semantic layer as a whole, of its groups of ops."""

from typing import Any

from gluon_core import _triton
from gluon_core.layouts import equal
from gluon_core.semantic import copies, operands
from gluon_core.semantic.atomic import AtomicOps
from gluon_core.semantic.base import is_placeholder, shape_of
from gluon_core.semantic.control import ControlOps
from gluon_core.semantic.multiples import MultipleOps
from gluon_core.semantic.reduce import ReduceOps
from gluon_core.semantic.shape import ShapeOps
from gluon_core.semantic.shared import SharedOps
from gluon_core.semantic.views import check_view_size
from gluon_core.values import check_block_shape, one_of, unwrap_shape
from gluon_core.values.tensors import describe

__all__ = ["Semantic"]


class Semantic(MultipleOps, ShapeOps, ReduceOps, AtomicOps, SharedOps, ControlOps):
    """Everything a builtin can ask for. One per generated function; shares its trace's session.

    It is a `gluon_core.plugin.semantic.SemanticLayer`. The checks of operands, functions in this
    room, are methods for ops elsewhere.
    """

    check_block_shape = staticmethod(check_block_shape)
    describe = staticmethod(describe)
    is_placeholder = staticmethod(is_placeholder)
    one_of = staticmethod(one_of)
    shape_of = staticmethod(shape_of)
    unwrap_shape = staticmethod(unwrap_shape)

    check_barrier = staticmethod(operands.check_barrier)
    check_k_width = staticmethod(operands.check_k_width)
    check_matmul_dtypes = staticmethod(operands.check_matmul_dtypes)
    check_matmul_shapes = staticmethod(operands.check_matmul_shapes)
    check_stored = staticmethod(operands.check_stored)
    compile_time_bool = staticmethod(operands.compile_time_bool)
    compile_time_int = staticmethod(operands.compile_time_int)
    items_of = staticmethod(operands.items_of)
    same_bits = staticmethod(operands.same_bits)
    shared_memory = staticmethod(operands.shared_memory)
    wrap_axis = staticmethod(operands.wrap_axis)
    handle_or_absent = operands.handle_or_absent
    predicate = operands.predicate
    scalar_int32 = operands.scalar_int32
    view_index = operands.view_index

    check_copied = staticmethod(copies.check_copied)
    check_view_size = staticmethod(check_view_size)
    consecutive_elements = staticmethod(copies.consecutive_elements)
    like = copies.like
    same_places = staticmethod(equal)
    masked = copies.masked

    @staticmethod
    def enum(family: str, name: str) -> Any:
        """Return a member of one of the builder's enums."""
        module = _triton.ir if hasattr(_triton.ir, family) else _triton.gluon_ir
        return getattr(getattr(module, family), name)

    def dot_precision(self, name: str) -> Any:
        """Return the builder's enum of a precision of products."""
        return self._str_to_dot_input_precision(name)

    def scale_format(self, name: str) -> Any:
        """Return the builder's enum of a format of scaled products."""
        return self._str_to_fp_type(name)
