"""`gl.acme.anvil`: the ops of the Anvil."""

from gluon_acme.language.tiles import start_tile, tile_map
from gluon_core.plugin import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tensor
from gluon_core.plugin.semantic import Memory
from gluon_core.plugin.typing import Operand

__all__ = ["add_clamped", "finish_copies", "start_copy", "start_tile", "tile_map"]


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.add_clamped", instead="gl.clamp(a + b, ...)")
def add_clamped(a: Operand, b: Operand, low: Operand, high: Operand) -> tensor:
    """`min(max(a + b, low), high)` of float32 tensors of one shape and layout."""
    semantic = semantic_layer()
    operands = [semantic.to_tensor(value) for value in (a, b, low, high)]
    shaped = next(value for value in operands if value.type.is_block())
    for name, value in zip(("a", "b", "low", "high"), operands):
        if not value.dtype.is_fp32():
            raise errors.DtypeError("must be float32", argument=name, got=str(value.dtype))
    cast = [semantic.broadcast_impl_value(value, shaped)[0] for value in operands]
    handle = semantic.builder.create_acme_add_clamped(*(value.handle for value in cast))
    return semantic.make_tensor(handle, cast[0].type)


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.start_copy")
def start_copy(buffer: Memory, pointer: tensor) -> None:
    """Start to copy the elements behind a tensor of pointers into a shared buffer of its shape."""
    semantic_layer().builder.create_acme_start_copy(buffer.handle, pointer.handle)


@builtin(requires=("acme.clamp",), name="gl.acme.anvil.finish_copies")
def finish_copies() -> None:
    """Wait for all copies that were started."""
    semantic_layer().builder.create_acme_finish_copies()
