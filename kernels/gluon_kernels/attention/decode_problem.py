"""The cases of attention of one new token each against pages, for tests and benchmarks."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_kernels.attention.decode import attention_decode
from gluon_kernels.attention.mla import mla_decode
from gluon_kernels.problem import Problem, Shape

__all__ = ["DECODE", "MLA"]


def _pages(shape: Shape, device: Any) -> tuple[Tensor, Tensor]:
    """Return the pages of each sequence, in random order, and the lengths."""
    lengths, page = shape["lengths"], shape["page"]
    most = -(-max(lengths) // page)
    table = torch.randperm(len(lengths) * most, device=device).reshape(len(lengths), most)
    known = torch.tensor(lengths, dtype=torch.int32, device=device)
    known.longest = max(lengths)  # for rivals without pages
    return table.int(), known


def _arguments(shape: Shape, device: Any) -> dict[str, Any]:
    dtype, width = getattr(torch, shape.get("dtype", "bfloat16")), shape["width"]
    table, lengths = _pages(shape, device)
    cache = (table.numel(), shape["page"], shape["heads of keys"], width)
    k, v = (torch.randn(cache, device=device).to(dtype) for _ in "kv")
    q = torch.randn(len(lengths), shape["heads"], width, device=device).to(dtype)
    return {"q": q, "k_cache": k, "v_cache": v, "page_table": table, "lengths": lengths}


def _mla_arguments(shape: Shape, device: Any) -> dict[str, Any]:
    dtype = getattr(torch, shape.get("dtype", "bfloat16"))
    width = shape["latent"] + shape["rotated"]
    table, lengths = _pages(shape, device)
    cache = torch.randn(table.numel(), shape["page"], width, device=device).to(dtype)
    q = torch.randn(len(lengths), shape["heads"], width, device=device).to(dtype)
    return {
        "q": q, "cache": cache, "page_table": table, "lengths": lengths, "latent": shape["latent"],
    }  # fmt: skip


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the attention of [heads, width] to [tokens, heads of keys, width]."""
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    k, v = (x.to(wide).repeat_interleave(q.shape[0] // x.shape[1], 1) for x in (k, v))
    score = torch.einsum("hd,khd->hk", q.to(wide), k) * q.shape[1] ** -0.5
    return torch.einsum("hk,khd->hd", score.softmax(-1), v)


def _reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, lengths: Tensor
) -> Tensor:
    wide = torch.float64 if q.device.type == "cpu" else torch.float32
    results = torch.zeros((*q.shape[:2], v_cache.shape[3]), dtype=wide, device=q.device)
    for i, length in enumerate(lengths.tolist()):
        k, v = (x[page_table[i].long()].flatten(0, 1)[:length] for x in (k_cache, v_cache))
        if length:
            results[i] = _attended(q[i], k, v)
    return results


def _mla_reference(q: Tensor, cache: Tensor, page_table: Tensor, lengths: Tensor, latent: int) -> Tensor:  # fmt: skip
    cache = cache[:, :, None]
    return _reference(q, cache, cache[..., :latent], page_table, lengths)


def _contiguous(q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, lengths: Tensor) -> Tensor:  # fmt: skip
    """Attend by torch to caches as they are, as if each sequence had its own pages in a row, and all had one length."""
    sequences, heads, width = q.shape
    k, v = (
        x.view(sequences, -1, *x.shape[2:])[:, : lengths.longest].transpose(1, 2)
        for x in (k_cache, v_cache)
    )
    grouped = k.shape[1] != heads
    return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=grouped)[:, :, 0]


def _cudnn(q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, lengths: Tensor) -> Tensor:  # fmt: skip
    """Attend to the same by cuDNN."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return _contiguous(q, k_cache, v_cache, page_table, lengths)


def _products(q: Tensor, cache: Tensor, page_table: Tensor, lengths: Tensor, latent: int) -> Tensor:
    """Attend by two products of cuBLAS and a softmax between them, as if each sequence had its own pages in a row."""
    rows = cache.view(q.shape[0], -1, cache.shape[2])[:, : lengths.longest]
    score = torch.baddbmm(q.new_empty(1), q, rows.transpose(1, 2), beta=0, alpha=q.shape[2] ** -0.5)
    return torch.bmm(score.softmax(-1), rows[..., :latent])


def _bytes(shape: Shape) -> float:
    width = 2 * shape["width"] * shape["heads of keys"] if "width" in shape else shape["latent"] + shape["rotated"]  # fmt: skip
    return float(2 * sum(shape["lengths"]) * width)


def _draw(draw: random.Random) -> Shape:
    heads = draw.choice((1, 2, 4, 8))
    longest = int(2 ** draw.uniform(8, 15))
    count = max(1, min(128, 2**19 // (longest * heads)))
    return {
        "lengths": (longest,) * count,
        "heads": heads * draw.choice((1, 4, 8)),
        "heads of keys": heads,
        "width": draw.choice((64, 128)),
        "page": draw.choice((16, 64)),
    }


def _draw_mla(draw: random.Random) -> Shape:
    longest = int(2 ** draw.uniform(9, 15))
    count = max(1, min(128, 2**20 // longest))
    heads = draw.choice((16, 64, 128))
    return {"lengths": (longest,) * count, "heads": heads, "latent": 512, "rotated": 64, "page": 64}


def _case(lengths: tuple[int, ...], **sizes: Any) -> Shape:
    return {"lengths": lengths, "page": 16, **sizes}


DECODE = Problem(
    name="attention_decode",
    op=attention_decode,
    arguments=_arguments,
    reference=_reference,
    rivals={"torch, contiguous": _contiguous, "cuDNN, contiguous": _cudnn},
    draw=_draw,
    flops=lambda shape: 4.0 * sum(shape["lengths"]) * shape["heads"] * shape["width"],
    bytes=_bytes,
    tolerance=2e-2,
    small=(
        _case((70, 1, 0, 150), heads=6, width=64, **{"heads of keys": 2}),
        _case((150, 33), heads=16, width=128, dtype="float16", page=7, **{"heads of keys": 1}),
        _case((100, 40), heads=4, width=64, dtype="float32", **{"heads of keys": 2}),
    ),
    named=[
        _case((8192,) * 64, heads=32, width=128, **{"heads of keys": 8}),
        _case((32768,), heads=32, width=128, **{"heads of keys": 8}),
    ],
)
MLA = Problem(
    name="mla_decode",
    op=mla_decode,
    arguments=_mla_arguments,
    reference=_mla_reference,
    rivals={"cuBLAS, contiguous": _products},
    draw=_draw_mla,
    flops=lambda shape: 2.0 * sum(shape["lengths"]) * shape["heads"] * (2 * shape["latent"] + shape["rotated"]),
    bytes=_bytes,
    tolerance=2e-2,
    small=(
        _case((70, 1, 0, 150), heads=5, latent=64, rotated=32),
        _case((100, 37), heads=17, latent=512, rotated=64, page=7, dtype="float16"),
    ),
    named=[
        _case((8192,) * 64, heads=128, latent=512, rotated=64, page=64),
        _case((32768,) * 4, heads=16, latent=512, rotated=64, page=64),
    ],
)  # fmt: skip
