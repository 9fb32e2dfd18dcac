"""The cases of `matmul` and `bmm`, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels.gemm.fp8 import matmul_fp8
from gluon_kernels.gemm.ops import activated, bmm, matmul
from gluon_kernels.problem import Problem, Shape

__all__ = ["BMM", "MATMUL", "PROBLEMS"]

_MOST = 16384
_MOST_FLOPS = 4e12


def _extent(draw: random.Random, most: int = _MOST) -> int:
    """Draw a size: uniform in the logarithm, and in three cases of four a multiple of 8, 64 or 128."""
    size = int(2 ** draw.uniform(4, 14.01))
    unit = draw.choice((1, 8, 64, 128))
    return max(unit, min(most, size // unit * unit))


def _draw(draw: random.Random) -> Shape:
    while True:
        m = _extent(draw) if draw.random() < 0.75 else draw.randint(1, 128)
        n, k = _extent(draw), _extent(draw)
        if 1e6 < 2.0 * m * n * k < _MOST_FLOPS:
            return {
                "M": m,
                "N": n,
                "K": k,
                "dtype": "bfloat16",
                "stored": draw.choice(("NN", "NT")),
            }


def _draw_batch(draw: random.Random) -> Shape:
    while True:
        m, n, k = (_extent(draw, 4096) for _ in range(3))
        batch = draw.choice((2, 3, 8, 16, 24, 64, 128))
        if (
            1e6 < 2.0 * batch * m * n * k < _MOST_FLOPS / 4
            and batch * (m * k + k * n + m * n) < 2e9
        ):
            return {"batch": batch, "M": m, "N": n, "K": k, "dtype": "bfloat16", "stored": "NN"}


def _matrix(shape: tuple[int, ...], dtype: str, transposed: bool, device: Any) -> Tensor:
    if transposed:
        *batch, rows, columns = shape
        return _matrix((*batch, columns, rows), dtype, False, device).mT
    return torch.randn(shape, device=device).to(getattr(torch, dtype))


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    batch = (shape["batch"],) if "batch" in shape else ()
    m, n, k, stored = shape["M"], shape["N"], shape["K"], shape.get("stored", "NN")
    arguments = {
        "a": _matrix((*batch, m, k), shape["dtype"], stored[0] == "T", device),
        "b": _matrix((*batch, k, n), shape["dtype"], stored[1] == "T", device),
    }
    if shape.get("bias"):
        arguments["bias"] = torch.randn(n, device=device).to(getattr(torch, shape["dtype"]))
    for name in ("activation", "out_dtype"):
        if shape.get(name):
            arguments[name] = shape[name]
    return arguments


def _reference(
    a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
    out_dtype: Any = None,
) -> Tensor:  # fmt: skip
    wide = torch.float64 if a.device.type == "cpu" else torch.float32
    result = a.to(wide) @ b.to(wide)
    return activated(result if bias is None else result + bias.to(wide), activation)


def _flops(shape: Shape) -> float:
    return float(2.0 * shape.get("batch", 1) * shape["M"] * shape["N"] * shape["K"])


def _bytes(shape: Shape) -> float:
    m, n, k = (shape[x] for x in "MNK")
    size = torch.empty((), dtype=getattr(torch, shape["dtype"])).element_size()
    return float(size * shape.get("batch", 1) * (m * k + k * n + m * n))


def _case(
    m: int, n: int, k: int, stored: str = "NN", dtype: str = "bfloat16", **more: Any
) -> Shape:
    return {"M": m, "N": n, "K": k, "dtype": dtype, "stored": stored, **more}


MATMUL = Problem(
    name="matmul",
    op=matmul,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": lambda a, b: torch.matmul(a, b)},
    draw=_draw,
    flops=_flops,
    bytes=_bytes,
    tolerance=5e-3,
    small=(
        _case(136, 200, 72),
        _case(136, 200, 72, "TT", bias=True, activation="gelu"),
        _case(70, 130, 200, "NT", "float16", bias=True, activation="silu"),
        _case(5, 200, 456, "NT"),
        _case(1, 33, 65, "NT", bias=True, activation="relu", out_dtype=torch.float32),
        _case(65, 7, 128, "TN"),
        _case(40, 24, 56, "NN", "float32", bias=True, activation="gelu_tanh"),
        _case(3, 5, 0, bias=True),
    ),
    named=[
        _case(m, n, k)
        for m, n, k in (
            (8192, 8192, 1024), (4096, 4096, 4096), (6144, 3072, 5120), (16384, 1024, 4096),
            (3000, 5000, 2048), (1000, 1000, 1000), (300, 14336, 4096),
            (128, 8192, 8192), (64, 8192, 8192), (17, 8192, 8192), (1, 8192, 8192),
        )
    ],
)  # fmt: skip

BMM = Problem(
    name="bmm",
    op=bmm,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch": lambda a, b: torch.bmm(a, b)},
    draw=_draw_batch,
    flops=_flops,
    bytes=_bytes,
    tolerance=5e-3,
    small=(_case(40, 56, 72, batch=3), _case(136, 136, 40, "NT", batch=2, bias=True)),
    named=(_case(1024, 1024, 1024, batch=64), _case(512, 512, 128, batch=128)),
)


def _fp8_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    m, n, k = (shape[x] for x in "MNK")
    kind = shape.get("scales", "row")
    a, b = (torch.randn(s, device=device).to(torch.float8_e4m3fn) for s in ((m, k), (n, k)))
    steps = -(-k // 128)
    of_a, of_b = {
        "row": ((m,), (n,)),
        "tensor": ((1,), (1,)),
        "block": ((steps, m), (-(-n // 128), steps)),
    }[kind]
    scales = [torch.rand(x, device=device) + 0.5 for x in (of_a, of_b)]
    if kind == "block":
        scales = [scale.mT for scale in scales]
    more = {"fast_accum": False} if shape.get("exact") else {}
    return {"a": a, "b": b.mT, **dict(zip(("a_scale", "b_scale"), scales)), **more}


def _fp8_reference(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, fast_accum: bool = True
) -> Tensor:
    if a_scale.ndim == 2:
        x = a.float() * a_scale.repeat_interleave(128, 1)[:, : a.shape[1]]
        wide = b_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return x @ (b.float() * wide[: b.shape[0], : b.shape[1]])
    return (a.float() @ b.float()) * a_scale.reshape(-1, 1) * b_scale.reshape(1, -1)


def _scaled_mm(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, fast_accum: bool = True
) -> Tensor:
    by_row = a_scale.numel() > 1
    scales = (a_scale, b_scale)
    if a_scale.ndim == 2:
        fast_accum = False
    elif by_row:
        scales = (a_scale[:, None], b_scale[None, :])
    result: Tensor = torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast_accum)  # fmt: skip
    return result


def _draw_fp8(draw: random.Random) -> Shape:
    while True:
        m, n, k = (max(16, int(2 ** draw.uniform(5, 13.5)) // 16 * 16) for _ in range(3))
        if 1e6 < 2.0 * m * n * k < _MOST_FLOPS:
            kind = draw.choice(("row", "tensor", "block"))
            unit = 128 if kind == "block" else 16  # torch takes whole blocks only
            n, k = (max(unit, x // unit * unit) for x in (n, k))
            return {"M": m, "N": n, "K": k, "scales": kind}


MATMUL_FP8 = Problem(
    name="matmul_fp8",
    op=matmul_fp8,
    arguments=_fp8_arguments,
    reference=_fp8_reference,
    rivals={"torch": _scaled_mm},
    draw=_draw_fp8,
    flops=_flops,
    bytes=lambda s: s["K"] * (s["M"] + s["N"]) + 2.0 * s["M"] * s["N"],
    tolerance=2e-2,
    small=(
        {"M": 136, "N": 272, "K": 400},
        {"M": 40, "N": 24, "K": 80, "scales": "tensor"},
        {"M": 33, "N": 50, "K": 72},
        {"M": 136, "N": 272, "K": 400, "scales": "block"},
        {"M": 9, "N": 200, "K": 300, "scales": "block"},
        {"M": 136, "N": 120, "K": 1160, "scales": "block"},
        {"M": 40, "N": 72, "K": 2100, "scales": "block"},
        {"M": 40, "N": 136, "K": 264, "exact": True},
        {"M": 70, "N": 136, "K": 264, "scales": "tensor", "exact": True},
    ),
    named=(
        {"M": 8192, "N": 8192, "K": 8192},
        {"M": 4096, "N": 7168, "K": 2048},
        {"M": 4096, "N": 7168, "K": 16384, "scales": "block"},
        {"M": 64, "N": 7168, "K": 2048, "scales": "block"},
    ),
)

PROBLEMS = (MATMUL, BMM, MATMUL_FP8)
