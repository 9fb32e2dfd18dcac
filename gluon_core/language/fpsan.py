"""Floating-point sanitizer: values carried through their integer embedding (Triton 3.9)."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import tensor, tl, unwrap
from gluon_core.errors import DtypeError
from gluon_core.features import FPSAN
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Dtype

__all__ = ["embed", "unembed"]

_INTEGERS = {8: "int8", 16: "int16", 32: "int32", 64: "int64"}


@builtin(since=FPSAN, name="gl.fpsan.embed")
def embed(input: tensor) -> tensor:
    """Return the float `input` as the integer of the same width that the sanitizer computes with."""
    input = semantic_layer().require_tensor(input, "input")
    if not input.dtype.is_floating():
        raise DtypeError("must be floating", argument="input", got=input.dtype)
    scalar = getattr(tl, _INTEGERS[input.dtype.primitive_bitwidth])
    return _convert("create_experimental_fpsan_embed", input, scalar)


@builtin(since=FPSAN, name="gl.fpsan.unembed")
def unembed(input: tensor, dtype: Dtype) -> tensor:
    """Return the inverse of `embed`: an integer back to the float `dtype` of the same width."""
    input, dtype = semantic_layer().require_tensor(input, "input"), unwrap(dtype)
    if not input.dtype.is_int():
        raise DtypeError("must be an integer", argument="input", got=input.dtype)
    if not dtype.is_floating() or dtype.primitive_bitwidth != input.dtype.primitive_bitwidth:
        raise DtypeError(
            "must be a float of the input's width",
            argument="dtype",
            got=f"{dtype} for {input.dtype}",
        )
    return _convert("create_experimental_fpsan_unembed", input, dtype)


def _convert(create: str, input: Any, scalar: Any) -> Any:
    semantic = semantic_layer()
    result_type = input.type.with_element_ty(scalar) if input.type.is_block() else scalar
    handle = getattr(semantic.builder, create)(input.handle, result_type.to_ir(semantic.builder))
    return semantic.make_tensor(handle, result_type)


def __dir__() -> list[str]:
    return sorted(__all__)
