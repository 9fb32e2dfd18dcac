"""The cases of `linear` with quantized weights and of `quantize`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels.gemm.ops import activated
from gluon_kernels.norm.problem import draw_rows, matrix
from gluon_kernels.problem import Problem, Shape
from gluon_kernels.quant.layer import linear
from gluon_kernels.quant.ops import quantize

__all__ = ["LINEAR", "PROBLEMS", "QUANTIZE"]

_MX = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    m, n, k = (shape[x] for x in "MNK")
    format, group = shape["format"], shape.get("group", 128)
    x = torch.randn(m, k, device=device).to(getattr(torch, shape.get("dtype", "bfloat16")))
    if format in ("int4", "mxfp4"):
        weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    elif format == "int8":
        weight = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device)
    else:
        weight = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    size = (n, k // group) if group else (n,)
    if format == "mxfp4":
        scales = torch.randint(120, 130, size, dtype=torch.uint8, device=device)
    else:
        scales = (torch.rand(size, device=device) / 64 + 1e-3).to(torch.bfloat16)
    arguments = {"x": x, "weight": weight, "scales": scales}
    if shape.get("bias"):
        arguments["bias"] = torch.randn(n, device=device).to(x.dtype)
    if shape.get("activation"):
        arguments["activation"] = shape["activation"]
    return arguments


def restored(weight: Tensor, scales: Tensor, wide: torch.dtype) -> Tensor:
    """Return what weights stand for, [N, K], by torch."""
    if weight.dtype is torch.uint8:
        code = torch.stack([weight & 15, weight >> 4], -1).flatten(1).long()
        if scales.dtype is torch.uint8:
            table = torch.tensor([*_MX, *(-x for x in _MX)], dtype=wide, device=weight.device)
            numbers = table[code]
        else:
            numbers = torch.where(code > 7, code - 16, code).to(wide)
    else:
        numbers = weight.to(wide)
    factors = torch.exp2(scales.to(wide) - 127) if scales.dtype is torch.uint8 else scales.to(wide)
    factors = factors[:, None] if factors.ndim == 1 else factors
    return numbers * factors.repeat_interleave(numbers.shape[1] // factors.shape[1], 1)


def _reference(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
) -> Tensor:  # fmt: skip
    wide = torch.float64 if x.device.type == "cpu" else torch.float32
    result = x.to(wide) @ restored(weight, scales, wide).mT
    return activated(result if bias is None else result + bias.to(wide), activation)


class Unquantized:
    """`torch.nn.functional.linear` with weights restored once: as fast as a layer that was not quantized."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # those of one shape

    def __call__(self, x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        known = self._known.get(weight.data_ptr())
        if known is None or known[0] is not weight:
            if any(other.shape != weight.shape for other, _ in self._known.values()):
                self._known.clear()
            known = weight, restored(weight, scales, torch.float32).to(x.dtype)
            self._known[weight.data_ptr()] = known
        return torch.nn.functional.linear(x, known[1])


def _draw(draw: random.Random) -> Shape:
    while True:
        m = draw.randint(1, 128) if draw.random() < 0.75 else int(2 ** draw.uniform(6, 12))
        n, k = (128 * int(2 ** draw.uniform(2, 7)) for _ in range(2))
        format, group = draw.choice((("int4", 128), ("int8", 128), ("int8", 0), ("e4m3", 0), ("mxfp4", 32)))  # fmt: skip
        if 2e6 < n * k < 2e8:
            return {"M": m, "N": n, "K": k, "format": format, "group": group}


def _case(m: int, n: int, k: int, format: str, group: int, **more: Any) -> Shape:
    return {"M": m, "N": n, "K": k, "format": format, "group": group, **more}


_BITS = {"int4": 4, "mxfp4": 4}

LINEAR = Problem(
    name="linear",
    op=linear,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch, bfloat16 weights": Unquantized()},
    draw=_draw,
    flops=lambda s: 2.0 * s["M"] * s["N"] * s["K"],
    bytes=lambda s: s["N"] * s["K"] * _BITS.get(s["format"], 8) / 8 + 2.0 * s["M"] * (s["N"] + s["K"]),
    tolerance=8e-3,
    small=(
        _case(5, 136, 384, "int4", 64, bias=True, activation="silu"),
        _case(1, 72, 256, "int8", 0),
        _case(20, 200, 512, "int8", 128, dtype="float16"),
        _case(9, 136, 256, "mxfp4", 32),
        _case(33, 72, 160, "e4m3", 0, bias=True),
        _case(70, 136, 192, "int4", 96),
        _case(130, 136, 192, "int8", 64),
        _case(130, 136, 320, "e4m3", 0),
        _case(70, 72, 1024, "mxfp4", 32, bias=True, activation="relu"),
        _case(3, 40, 1536, "int4", 128, bias=True, activation="silu"),
    ),
    named=(
        _case(16, 8192, 8192, "int4", 128),
        _case(64, 8192, 8192, "int4", 128),
        _case(128, 8192, 8192, "int4", 128),
        _case(1, 8192, 8192, "int4", 128),
        _case(16, 8192, 8192, "int8", 0),
        _case(16, 8192, 8192, "mxfp4", 32),
        _case(16, 8192, 8192, "e4m3", 0),
        _case(2048, 8192, 8192, "int4", 128),
    ),
)  # fmt: skip


def _dequantized(result: tuple[Tensor, Tensor], x: Tensor, scaling: str) -> Tensor:
    """Return what values and scales stand for."""
    values, scales = result
    factors = torch.exp2(scales.float() - 127) if scaling == "mx" else scales
    if scaling == "row":
        return values.float() * factors[:, None]
    size = {"block": 128, "mx": 32}[scaling]
    return values.float() * factors.repeat_interleave(size, 1)[:, : x.shape[1]]


def _by_torch(x: Tensor, scaling: str) -> tuple[Tensor, Tensor]:
    """Return values and scales as a few operations of torch give them."""
    size = {"row": x.shape[1], "block": 128, "mx": 32}[scaling]
    if x.shape[1] % size:
        raise NotImplementedError("whole blocks only")
    blocks = x.unflatten(1, (-1, size))
    scales = blocks.abs().amax(-1, keepdim=True).float().clamp_min(1e-30) / 448.0
    if scaling == "mx":
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    return (blocks / scales).to(torch.float8_e4m3fn).flatten(1), scales[..., 0]


QUANTIZE = Problem(
    name="quantize",
    op=quantize,
    arguments=lambda shape, device: {"x": matrix(shape, device), "scaling": shape["scaling"]},
    reference=lambda x, scaling: x,
    rivals={"torch": _by_torch},
    draw=lambda draw: {**draw_rows(draw), "scaling": draw.choice(("row", "block", "mx"))},
    flops=lambda shape: 0.0,
    bytes=lambda shape: 3.0 * shape["rows"] * shape["columns"],
    tolerance=0.13,  # scales that are powers of two leave up to 511 to be stored as 448
    small=tuple(
        {"rows": rows, "columns": columns, "dtype": "bfloat16", "scaling": scaling}
        for rows, columns, scaling in ((5, 300, "row"), (9, 384, "block"), (3, 200, "mx"))
    ),
    named=[
        {"rows": 16384, "columns": 4096, "dtype": "bfloat16", "scaling": scaling}
        for scaling in ("row", "block", "mx")
    ],
    compared=_dequantized,
)

PROBLEMS = (LINEAR, QUANTIZE)
