"""Share the code of the portable ops: requests about the kernel at hand, and taking a lowering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

from gluon_core import _triton
from gluon_core._triton import unwrap
from gluon_core.errors import DtypeError
from gluon_core.plugin.ops import code_generator, semantic_layer
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.requests import AsyncCopyRequest, LoadRequest, Request, StoreRequest
from gluon_core.portable.selection import Selection, code, select
from gluon_core.semantic import layer

__all__ = [
    "around",
    "check_address",
    "check_base",
    "choose",
    "lower",
    "optional_tensor",
]


def around(semantic: SemanticLayer) -> tuple[Any, int, tuple[int, int]]:
    """Return the fields of every `Request`."""
    return semantic.target, semantic.num_warps, _triton.VERSION


def optional_tensor(semantic: SemanticLayer, value: Any) -> Any:
    value = unwrap(value)
    return None if value is None else semantic.to_tensor(value)


def check_base(semantic: SemanticLayer, ptr: Any, argument: str) -> None:
    semantic.require_tensor(ptr, argument)
    if not ptr.dtype.is_ptr() or ptr.type.is_block():
        raise DtypeError(
            "must be a scalar pointer",
            argument=argument,
            got=str(ptr.type),
            remedy="Pass the base here and the rest as offsets.",
        )


def check_address(semantic: SemanticLayer, ptr: Any, offsets: Any) -> None:
    check_base(semantic, ptr, "ptr")
    semantic.require_distributed(offsets, "offsets")
    if not offsets.dtype.is_int():
        raise DtypeError("must be integers", argument="offsets", got=str(offsets.dtype))


def _where(generator: Any) -> Optional[str]:
    """`file:line` of the kernel's statement that is being traced."""
    line = getattr(getattr(generator, "cur_node", None), "lineno", None)
    if line is None:
        return None
    return f"{generator.file_name}:{generator.begin_line + line}"


def choose(op: str, request: Request) -> Selection:
    """Select a lowering and remember it for `gluon explain`."""
    semantic, generator = layer(), code_generator()
    refused = semantic.session.refused
    selection = select(op, request, request.target, request.triton, refused=refused)
    selections = semantic.session.selections
    # Requests of code on its own belong to the op before.
    where = (
        _where(generator) if generator is not None else selections[-1].where if selections else None
    )
    selections.append(replace(selection, where=where))
    if isinstance(request, (AsyncCopyRequest, LoadRequest, StoreRequest)):
        semantic.note_access(request.offsets, request.ptr.dtype.element_ty)
    return selection


def lower(op: str, request: Request) -> Any:
    """Emit `op` by the lowering that fits `request`."""
    return code(choose(op, request).chosen)(request, _semantic=semantic_layer())
