"""The launches of the kernels of twin_serving.py."""

from __future__ import annotations

from typing import Any

import twin_cases
from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal

FILE = "twin_serving"
LOG2E = 1.4426950408889634


def device() -> str:
    return twin_cases.DEVICE


def starts(sizes: list[int]) -> Any:
    """Return where each of so many sizes begins, and the end."""
    import torch

    return torch.tensor([0, *sizes]).cumsum(0).to(torch.int32).to(device())


def sizes_of(count: int, most: int, seed: int = 0) -> list[int]:
    """Return sizes from a third of the largest to it."""
    import random

    draw = random.Random(seed)
    return [most, *(draw.randint(most // 3, most) for _ in range(count - 1))]


def shuffled(count: int) -> Any:
    import torch

    return torch.randperm(count).to(torch.int32).to(device())


def decode_bytes(batch: int, heads: int, rows: int, longest: int, D: int, parts: int, BN: int, warps: int, dtype: str,
                 stages: int = 3, BM: int = 16) -> Maker:  # fmt: skip
    def make() -> Launch:
        import torch

        z = batch * heads
        q = normal(z, rows, D)
        if dtype == "int8":
            k, v = (integers(255, z, longest, D).sub(127).to(torch.int8) for _ in range(2))
        else:
            k, v = (
                normal(z, longest, D, dtype="float32").to(getattr(torch, dtype)) for _ in range(2)
            )
        size = 0.01 if dtype == "int8" else 0.5
        ks, vs = (normal(z, longest, dtype="float32").abs() * size + size for _ in range(2))
        o, lse = empty(z, parts, rows, D, dtype="float32"), empty(z, parts, rows, dtype="float32")
        args = [q, k, v, ks, vs, o, lse, longest, D**-0.5 * LOG2E]
        words = dict(ROWS=rows, PARTS=parts, D=D, BM=BM, BN=BN, num_warps=warps, num_stages=stages)
        return Launch(FILE, "decode_bytes", (parts, z), args, words, [o, lse])

    return make


def capped(
    heads: int,
    length: int,
    D: int,
    BM: int,
    BN: int,
    warps: int,
    causal: bool,
    stages: int = 3,
    library: bool = False,
) -> Maker:
    def make() -> Launch:
        q, k, v = (normal(heads, length, D) for _ in range(3))
        o = empty(heads, length, D)
        words = dict(
            D=D, BM=BM, BN=BN, CAUSAL=causal, LIBRARY=library, num_warps=warps, num_stages=stages
        )
        args = [q, k, v, o, length, D**-0.5, 30.0]
        return Launch(FILE, "capped", (blocks(length, BM), heads), args, words, [o])

    return make


def paged(batch: int, heads: int, group: int, longest: int, D: int, page: int, parts: int, BN: int, warps: int,
          stages: int = 2, dtype: str = "float16") -> Maker:  # fmt: skip
    def make() -> Launch:
        import torch

        count = blocks(longest, page)
        q = normal(batch, heads, group, D)
        shape = batch * count, page, heads, D
        k, v = (normal(*shape).to(getattr(torch, dtype)) for _ in range(2))
        table = shuffled(batch * count).view(batch, count)
        lengths = torch.tensor(sizes_of(batch, longest), dtype=torch.int32, device=device())
        o = empty(batch, heads, group, parts, D, dtype="float32")
        lse = empty(batch, heads, group, parts, dtype="float32")
        args = [q, k, v, table, lengths, o, lse, count, D**-0.5]
        words = dict(HEADS=heads, GROUP=group, PARTS=parts, D=D, PAGE=page, BM=16, BN=BN, num_warps=warps,
                     num_stages=stages)  # fmt: skip
        return Launch(FILE, "paged_decode", (batch, heads, parts), args, words, [o, lse])

    return make


def merged(batch: int, heads: int, longest: int, D: int, parts: int, warps: int) -> Maker:
    def make() -> Launch:
        import torch

        o, lse = (
            normal(batch * heads, parts, D, dtype="float32"),
            normal(batch * heads, parts, dtype="float32"),
        )
        lengths = torch.tensor(sizes_of(batch, longest), dtype=torch.int32, device=device())
        out = empty(batch * heads, D)
        words = dict(PARTS=parts, HEADS=heads, D=D, BN=64, num_warps=warps)
        return Launch(FILE, "merged_parts", (batch * heads,), [o, lse, lengths, out], words, [out])

    return make


def ring(rows: int, D: int, BM: int, warps: int) -> Maker:
    def make() -> Launch:
        o, block = normal(rows, D, dtype="float32"), normal(rows, D)
        lse, own = (normal(rows, dtype="float32") for _ in range(2))
        words = dict(D=D, BM=BM, num_warps=warps)
        args = [o, lse, block, own, rows]
        return Launch(FILE, "ring_merge", (blocks(rows, BM),), args, words, [o, lse])

    return make


def flex(
    batch: int,
    heads: int,
    length: int,
    D: int,
    BM: int,
    BN: int,
    warps: int,
    mod: str,
    stages: int = 3,
) -> Maker:
    def make() -> Launch:
        import torch

        z, rows, count = batch * heads, blocks(length, BM), blocks(length, BN)
        q, k, v = (normal(z, length, D) for _ in range(3))
        o = empty(z, length, D)
        causal = mod == "document"
        counts = [min(count, blocks((i + 1) * BM, BN)) if causal else count for i in range(rows)]
        listed = torch.arange(count, dtype=torch.int32).repeat(rows, 1).to(device())
        slopes = normal(heads, 129, dtype="float32").abs() * 0.01
        documents = (torch.arange(length) // 300).to(torch.int32).to(device())
        args = [q, k, v, torch.tensor(counts, dtype=torch.int32, device=device()), listed, slopes, documents, o, length,
                D**-0.5]  # fmt: skip
        words = dict(
            HEADS=heads,
            BLOCKS=count,
            MOD=mod,
            D=D,
            BM=BM,
            BN=BN,
            num_warps=warps,
            num_stages=stages,
        )
        return Launch(FILE, "flex", (rows, z), args, words, [o])

    return make


def extend(batch: int, heads: int, group: int, prefix: int, new: int, D: int, BM: int, BN: int, warps: int,
           stages: int = 2) -> Maker:  # fmt: skip
    def make() -> Launch:
        import torch

        before, after = sizes_of(batch, prefix, 1), sizes_of(batch, new, 2)
        q, o = normal(sum(after), heads, D), empty(sum(after), heads, D)
        k, v = (normal(sum(after), heads // group, D) for _ in range(2))
        pool_k, pool_v = (normal(sum(before), heads // group, D) for _ in range(2))
        args = [
            q,
            k,
            v,
            pool_k,
            pool_v,
            o,
            starts(after),
            starts(before),
            shuffled(sum(before)).to(torch.int64),
            D**-0.5,
        ]
        words = dict(
            HEADS=heads, GROUP=group, D=D, BM=BM, BN=BN, num_warps=warps, num_stages=stages
        )
        return Launch(FILE, "extend", (batch, heads, blocks(new, BM)), args, words, [o])

    return make


def latent(batch: int, heads: int, longest: int, D: int, R: int, parts: int, BH: int, BN: int, warps: int,
           stages: int = 2) -> Maker:  # fmt: skip
    def make() -> Launch:
        sizes = sizes_of(batch, longest)
        q, kv = normal(batch, heads, D + R), normal(sum(sizes), D + R)
        o = empty(batch, heads, parts, D, dtype="float32")
        lse = empty(batch, heads, parts, dtype="float32")
        args = [q, kv, shuffled(sum(sizes)), starts(sizes), o, lse, (D + R) ** -0.5]
        words = dict(
            HEADS=heads, PARTS=parts, D=D, R=R, BH=BH, BN=BN, num_warps=warps, num_stages=stages
        )
        return Launch(
            FILE, "latent_decode", (batch, blocks(heads, BH), parts), args, words, [o, lse]
        )

    return make


def selected(
    batch: int,
    kv: int,
    group: int,
    length: int,
    count: int,
    D: int,
    BN: int,
    warps: int,
    stages: int = 2,
) -> Maker:
    def make() -> Launch:
        import torch

        q, o = (
            normal(batch, length, kv, group, D),
            empty(batch, length, kv, group, D, dtype="float32"),
        )
        k, v = (normal(batch, length, kv, D) for _ in range(2))
        last = torch.arange(length, device=device())[None, :, None, None] // BN
        index = (torch.rand(batch, length, kv, count, device=device()) * (last + 1)).long()
        index[..., 0] = last[..., 0]
        lse = empty(batch, length, kv, group, dtype="float32")
        args = [q, k, v, index, o, lse, length, D**-0.5]
        words = dict(
            KV=kv, GROUP=group, COUNT=count, D=D, BH=16, BN=BN, num_warps=warps, num_stages=stages
        )
        return Launch(FILE, "selected", (length, batch * kv), args, words, [o, lse])

    return make


def rows_of(kernel: str, heads: int, length: int, D: int, BM: int, BN: int, warps: int, more: tuple[Any, ...], scale: float = 1.0,
            wide: int = 1, stages: int = 2) -> Maker:  # fmt: skip
    def make() -> Launch:
        q, k, v = (normal(heads, length, wide * D) for _ in range(3))
        o = empty(heads, length, wide * D)
        words = dict(D=D, BM=BM, BN=BN, num_warps=warps, num_stages=stages)
        args = [q, k, v, o, length, D**-0.5 * scale, *more]
        return Launch(FILE, kernel, (blocks(length, BM), heads), args, words, [o])

    return make


def packed(batch: int, heads: int, group: int, longest: int, D: int, BM: int, BN: int, warps: int, causal: bool,
           stages: int = 2) -> Maker:  # fmt: skip
    def make() -> Launch:
        sizes = sizes_of(batch, longest)
        q, o = normal(sum(sizes), heads, D), empty(sum(sizes), heads, D)
        k, v = (normal(sum(sizes), heads // group, D) for _ in range(2))
        words = dict(
            HEADS=heads,
            GROUP=group,
            CAUSAL=causal,
            D=D,
            BM=BM,
            BN=BN,
            num_warps=warps,
            num_stages=stages,
        )
        args = [q, k, v, starts(sizes), o, D**-0.5 * LOG2E]
        return Launch(FILE, "packed_rows", (blocks(longest, BM), heads, batch), args, words, [o])

    return make


SERVING: dict[str, Maker] = {
    "decode bytes, 16x8x4, 4096x128, int8": decode_bytes(16, 8, 4, 4096, 128, 4, 64, 4, "int8"),
    "decode bytes, 16x8x4, 4096x128, fp8": decode_bytes(16, 8, 4, 4096, 128, 4, 64, 4, "float8_e4m3fn"),
    "decode bytes, 16x8x4, 4096x64, int8": decode_bytes(16, 8, 4, 4096, 64, 1, 64, 4, "int8"),
    "decode bytes, 7x5x3, 3001x128, int8": decode_bytes(7, 5, 3, 3001, 128, 5, 32, 4, "int8"),
    "decode bytes, 9x6x8, 2777x128, fp8": decode_bytes(9, 6, 8, 2777, 128, 3, 128, 4, "float8_e5m2"),
    "decode bytes, 24x2x16, 4096x128, int8": decode_bytes(24, 2, 16, 4096, 128, 8, 64, 2, "int8", 2),
    "capped, 24x1500x64": capped(24, 1500, 64, 128, 64, 4, False),
    "capped, 24x1500x64, causal": capped(24, 1500, 64, 128, 64, 4, True),
    "capped, 17x1111x64, 64 rows": capped(17, 1111, 64, 64, 64, 4, False),
    "capped, 16x1500x128, 8 warps": capped(16, 1500, 128, 128, 64, 8, False, 2),
    "capped, 8x1500x64": capped(8, 1500, 64, 128, 64, 4, False),
    "capped, 7x1500x64, 64 rows, causal": capped(7, 1500, 64, 64, 64, 4, True),
    "capped, 24x1500x64, libdevice": capped(24, 1500, 64, 128, 64, 4, False, library=True),
    "capped, 9x1301x64, libdevice, causal": capped(9, 1301, 64, 64, 64, 4, True, library=True),
    "paged decode, 32x8x4, 4096x128, 16": paged(32, 8, 4, 4096, 128, 16, 4, 64, 4),
    "paged decode, 15x4x7, 3001x64, 32": paged(15, 4, 7, 3001, 64, 32, 3, 32, 4),
    "paged decode, 16x8x8, 4096x128, fp8": paged(16, 8, 8, 4096, 128, 16, 4, 64, 4, 3, "float8_e4m3fn"),
    "merged parts, 256x32, 16": merged(256, 32, 8192, 128, 16, 4),
    "merged parts, 99x24, 8": merged(99, 24, 3001, 64, 8, 2),
    "ring merge, 131072x128": ring(131072, 128, 16, 4),
    "ring merge, 50001x64": ring(50001, 64, 32, 4),
    "flex alibi, 2x12x2048x64": flex(2, 12, 2048, 64, 128, 64, 4, "alibi"),
    "flex capped, 2x12x2048x64": flex(2, 12, 2048, 64, 128, 64, 4, "capped"),
    "flex document, 2x12x2048x64": flex(2, 12, 2048, 64, 128, 64, 4, "document"),
    "flex relative, 1x12x1501x64": flex(1, 12, 1501, 64, 128, 64, 4, "relative"),
    "flex alibi, 1x16x1777x128, 8 warps": flex(1, 16, 1777, 128, 128, 64, 8, "alibi", 2),
    "extend, 8x16x4, 2048 and 512x128": extend(8, 16, 4, 2048, 512, 128, 128, 64, 8),
    "extend, 5x12x3, 1501 and 300x64": extend(5, 12, 3, 1501, 300, 64, 64, 64, 4),
    "latent decode, 32x128, 2048": latent(32, 128, 2048, 512, 64, 4, 16, 32, 4),
    "latent decode, 9x16, 3001": latent(9, 16, 3001, 512, 64, 8, 16, 32, 4),
    "latent decode, 17x40, 1501x256": latent(17, 40, 1501, 256, 64, 4, 16, 32, 4),
    "selected, 1x4x16, 4096x128, 16 of 64": selected(1, 4, 16, 4096, 16, 128, 64, 4),
    "selected, 2x2x8, 1501x64, 7 of 32": selected(2, 2, 8, 1501, 7, 64, 32, 2),
    "differential, 16x2048x64": rows_of("differential", 16, 2048, 64, 64, 64, 4, (0.3,), LOG2E, 2),
    "differential, 9x1111x32": rows_of("differential", 9, 1111, 32, 64, 64, 4, (0.3,), LOG2E, 2),
    "dropped, 16x2048x64": rows_of("dropped", 16, 2048, 64, 128, 64, 4, (7, 0.1), LOG2E),
    "dropped, 12x1501x128": rows_of("dropped", 12, 1501, 128, 128, 64, 8, (7, 0.1), LOG2E),
    "sigmoid, 16x2048x64": rows_of("sigmoid_attention", 16, 2048, 64, 128, 64, 4, (-7.0,)),
    "sigmoid, 12x1501x128": rows_of("sigmoid_attention", 12, 1501, 128, 128, 64, 8, (-7.0,)),
    "packed rows, 8x16x4, 2048x128, causal": packed(8, 16, 4, 2048, 128, 128, 64, 8, True),
    "packed rows, 11x12x1, 777x64": packed(11, 12, 1, 777, 64, 64, 64, 4, False),
}  # fmt: skip

serving_cases = cases_of(SERVING)
