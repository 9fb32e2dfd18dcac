"""The launches of twin_library_gemms.py: products as public libraries write them, at sizes that nothing was tuned for."""

from __future__ import annotations

from typing import Any

from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal

FILE = "twin_library_gemms"
PROGRAMS = 132
Tile = tuple[int, int, int]


def words_of(tile: Tile, warps: int, stages: int, **words: Any) -> dict[str, Any]:
    return dict(zip(("BM", "BN", "BK"), tile), num_warps=warps, num_stages=stages, **words)


def floats8(*shape: int) -> Any:
    return normal(*shape, dtype="float8_e4m3fn")


def positive(*shape: int) -> Any:
    return normal(*shape, dtype="float32", scale=0.1).abs()


def stream_k(M: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        a, b, c = normal(M, K), normal(K, N, scale=K**-0.5), empty(M, N, dtype="float32")
        steps = blocks(M, tile[0]) * blocks(N, tile[1]) * blocks(K, tile[2])
        words = words_of(tile, warps, stages, PROGRAMS=PROGRAMS)
        return Launch(FILE, "stream_k", (PROGRAMS,), [a, b, c, M, N, K, steps], words, [c], True)

    return make


def halved_store(M: int, N: int, K: int, tile: Tile, warps: int, stages: int, dtype: str) -> Maker:
    def make() -> Launch:
        a, b = normal(M, K, dtype=dtype), normal(N, K, dtype=dtype)
        c = empty(M, N, dtype="bfloat16" if "float8" in dtype else dtype)
        grid = (min(PROGRAMS, blocks(M, tile[0]) * blocks(N, tile[1])),)
        words = words_of(tile, warps, stages, PROGRAMS=grid[0], GROUP=8)
        return Launch(FILE, "halved_store", grid, [a, b, c, M, N, K], words, [c])

    return make


def described_groups(rows: int, groups: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:  # fmt: skip
    def make() -> Launch:
        import torch

        x, w, y = normal(rows, K), normal(groups, N, K, scale=K**-0.5), empty(rows, N)
        cuts = integers(rows + 1, groups - 1).sort().values.int()
        end = torch.cat([cuts, torch.full_like(cuts[:1], rows)])
        words = words_of(tile, warps, stages, PROGRAMS=PROGRAMS)
        args = [x, w, y, end, groups, N, K]
        return Launch(FILE, "described_groups", (PROGRAMS,), args, words, [y])

    return make


def scaled_experts(tokens: int, top: int, experts: int, N: int, K: int, tile: Tile, warps: int, stages: int, form: str,
                   group: int, weighted: bool) -> Maker:  # fmt: skip
    def make() -> Launch:
        import torch

        count, BM = tokens * top, tile[0]
        of_pair, places, of_block = integers(experts, count), [], []
        for expert in range(experts):
            own = (of_pair == expert).nonzero().flatten().int()
            size = blocks(len(own), BM) * BM
            padded = torch.full((size,), count, device=own.device, dtype=torch.int32)
            padded[: len(own)] = own
            places.append(padded)
            of_block += [expert] * (size // BM)
        token = torch.cat(places)
        expert_of = torch.tensor(of_block, device=token.device, dtype=torch.int32)
        padded_rows = torch.tensor([len(token)], device=token.device, dtype=torch.int32)
        x, w = normal(tokens, K, dtype="bfloat16"), normal(experts, N, K, dtype="bfloat16")
        x_scale, w_scale = positive(tokens, blocks(K, 128)), positive(experts, N)
        if form == "fp8":
            x, w = floats8(tokens, K), floats8(experts, N, K)
            w_scale = positive(experts, blocks(N, 128), blocks(K, 128))
        elif form == "int8":
            w = integers(120, experts, N, K, dtype="int8") - 60
        y, weight = empty(count, N, dtype="bfloat16"), positive(count)
        args = [x, w, y, x_scale, w_scale, weight, token, expert_of, padded_rows, N, K, tokens]
        words = words_of(tile, warps, stages, TOP=top, GROUP=group, WEIGHTED=weighted, FORM=form)
        grid = (len(of_block) * blocks(N, tile[1]),)
        return Launch(FILE, "scaled_experts", grid, args, words, [y])

    return make


def scaled_blocks(M: int, N: int, K: int, tile: Tile, warps: int, stages: int, group: int) -> Maker:
    def make() -> Launch:
        a, b, c = floats8(M, K), floats8(N, K), empty(M, N, dtype="bfloat16")
        a_scale, b_scale = positive(M, blocks(K, 128)), positive(blocks(N, 128), blocks(K, 128))
        words = words_of(
            tile, warps, stages, WIDE=128, DEEP=128, GROUP=group, EVEN=K % tile[2] == 0
        )
        args = [a, b, c, a_scale, b_scale, M, N, K, K, 1, 1, K, N, 1, *a_scale.stride()]
        args += b_scale.stride()[::-1]
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]),)
        return Launch(FILE, "scaled_blocks", grid, args, words, [c])

    return make


def fp8_rows(M: int, N: int, K: int, tile: Tile, warps: int, stages: int, fast: bool, bias: bool) -> Maker:  # fmt: skip
    def make() -> Launch:
        a, b, c = floats8(M, K), floats8(N, K), empty(M, N, dtype="bfloat16")
        args = [a, b, c, positive(M), positive(N), normal(N, dtype="float32"), M, N, K]
        words = words_of(tile, warps, stages, GROUP=8, BIAS=bias, FAST=fast)
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]),)
        return Launch(FILE, "fp8_rows", grid, [*args, K, 1, 1, K, N, 1], words, [c])

    return make


def awq(M: int, N: int, K: int, tile: Tile, parts: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, y = normal(M, K, scale=0.1), empty(parts, M, N)
        w, zero = integers(2**31 - 1, K, N // 8), integers(2**31 - 1, K // 128, N // 8)
        scale = normal(K // 128, N, scale=0.01)
        words = words_of(tile, warps, stages, LENGTH=128, PARTS=parts)
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]), parts)
        return Launch(FILE, "awq", grid, [x, w, zero, scale, y, M, N, K], words, [y])

    return make


def gptq(M: int, N: int, K: int, bits: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        import torch

        x, y, each = normal(M, K, scale=0.1), empty(M, N), 32 // bits
        w, zero = integers(2**31 - 1, K // each, N), integers(2**31 - 1, K // 128, N // each)
        scale = normal(K // 128, N, scale=0.01 if bits == 4 else 0.001)
        group = torch.arange(K, device=x.device, dtype=torch.int32) // 128
        words = words_of(tile, warps, stages, BITS=bits, GROUP=8)
        args = [x, w, scale, zero, group, y, M, N, K]
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]),)
        return Launch(FILE, "gptq", grid, args, words, [y])

    return make


def half_quadratic(M: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, w = normal(M, K, scale=0.1, dtype="bfloat16"), integers(256, K // 2, N, dtype="uint8")
        scale, zero = (normal(K // 64, N, dtype="bfloat16") for _ in range(2))
        y, words = empty(M, N, dtype="bfloat16"), words_of(tile, warps, stages, LENGTH=64)
        grid = (blocks(M, tile[0]), blocks(N, tile[1]))
        return Launch(FILE, "half_quadratic", grid, [x, w, scale, zero, y, M, N, K], words, [y])

    return make


def log_sums(M: int, V: int, D: int, parts: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, w = normal(M, D, dtype="bfloat16"), normal(V, D, dtype="bfloat16", scale=D**-0.5)
        label = integers(V, M)
        lse, logit = (empty(M, parts, dtype="float32") for _ in range(2))
        words = dict(zip(("BM", "BV", "BD"), tile), PARTS=parts, num_warps=warps, num_stages=stages)
        args = [x, w, label, lse, logit, M, V, D]
        return Launch(FILE, "log_sums", (blocks(M, tile[0]), parts), args, words, [lse, logit])

    return make


def adapted(M: int, N: int, K: int, rank: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, w = normal(M, K, dtype="bfloat16"), normal(N, K, dtype="bfloat16", scale=K**-0.5)
        down, up = (normal(*s, dtype="bfloat16", scale=0.1) for s in ((rank, K), (N, rank)))
        y, words = empty(M, N, dtype="bfloat16"), words_of(tile, warps, stages, RANK=rank, GROUP=8)
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]),)
        return Launch(FILE, "adapted", grid, [x, w, down, up, y, M, N, K, 0.5], words, [y])

    return make


def low_rank(M: int, N: int, K: int, rank: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, first = normal(M, K), normal(K, rank, scale=K**-0.5)
        second, y = normal(rank, N, scale=rank**-0.5), empty(M, N)
        words = words_of(tile, warps, stages, RANK=rank)
        return Launch(FILE, "low_rank", (blocks(M, tile[0]),), [x, first, second, y, M, N, K], words, [y])  # fmt: skip

    return make


def strided_batches(batch: int, M: int, N: int, K: int, tile: Tile, warps: int, stages: int, heads: bool,
                    dtype: str = "float16") -> Maker:  # fmt: skip
    """Return the maker of a launch; with `heads` the batch is the second dimension of the operands, and B is transposed."""

    def make() -> Launch:
        if heads:
            a = normal(M, batch, K, dtype=dtype).transpose(0, 1)
            b = normal(N, batch, K, dtype=dtype, scale=K**-0.5).permute(1, 2, 0)
        else:
            a, b = normal(batch, M, K, dtype=dtype), normal(batch, K, N, dtype=dtype, scale=K**-0.5)
        c, words = empty(batch, M, N, dtype=dtype), words_of(tile, warps, stages, GROUP=4)
        args = [a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), 0.7]
        grid = (blocks(M, tile[0]) * blocks(N, tile[1]), batch)
        return Launch(FILE, "strided_batches", grid, args, words, [c])

    return make


def symmetric(M: int, K: int, BM: int, BK: int, warps: int, stages: int, adds: bool) -> Maker:
    def make() -> Launch:
        a, c = (normal(M, s, dtype="bfloat16", scale=K**-0.5) for s in (K, M))
        result = empty(M, M, dtype="bfloat16")
        words = dict(BM=BM, BK=BK, ADDS=adds, num_warps=warps, num_stages=stages)
        args = [a, c, result, M, K, 2.0, -1.5]
        return Launch(FILE, "symmetric", (blocks(M, BM),) * 2, args, words, [result])

    return make


def listed_blocks(
    M: int, N: int, K: int, kept: float, tile: Tile, warps: int, stages: int
) -> Maker:
    def make() -> Launch:
        import torch

        mask = torch.rand(N // tile[1], K // tile[2]) < kept
        x, y = normal(M, K), empty(M, N)
        column = torch.cat([row.nonzero().flatten() for row in mask]).int().to(x.device)
        begin = torch.cat([torch.zeros(1), mask.sum(1).cumsum(0)]).int().to(x.device)
        value = normal(len(column), tile[2], tile[1], scale=K**-0.5)
        words, grid = words_of(tile, warps, stages), (blocks(M, tile[0]), N // tile[1])
        args = [x, value, column, begin, y, M, N, K]
        return Launch(FILE, "listed_blocks", grid, args, words, [y])

    return make


def largest_of_product(M: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        a, b = normal(M, K, dtype="bfloat16"), normal(K, N, dtype="bfloat16", scale=K**-0.5)
        c, high = empty(M, N, dtype="bfloat16"), empty(M, dtype="float32")
        words = words_of(tile, warps, stages, GROUP=8)
        grid, args = (blocks(M, tile[0]) * blocks(N, tile[1]),), [a, b, c, high, M, N, K]
        return Launch(FILE, "largest_of_product", grid, args, words, [c, high], True)

    return make


def added(M: int, N: int, K: int, precision: str, tile: Tile, warps: int, stages: int, dtype: str, transposed: bool) -> Maker:  # fmt: skip
    def make() -> Launch:
        a, b = normal(M, K, dtype=dtype), normal(K, N, dtype=dtype, scale=K**-0.5)
        if transposed:
            b = normal(N, K, dtype=dtype, scale=K**-0.5).T
        c, y = normal(M, N, dtype=dtype), empty(M, N, dtype=dtype)
        words = words_of(tile, warps, stages, PRECISION=precision)
        args = [a, b, c, y, M, N, K, *a.stride(), *b.stride(), *c.stride(), 0.5, 1.5]
        grid = (blocks(N, tile[1]), blocks(M, tile[0]))
        return Launch(FILE, "added", grid, args, words, [y])

    return make


def complex_product(M: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        parts = [normal(M, K), normal(M, K), normal(K, N, scale=K**-0.5), normal(K, N, scale=K**-0.5)]  # fmt: skip
        results = [empty(M, N), empty(M, N)]
        words, grid = words_of(tile, warps, stages), (blocks(M, tile[0]), blocks(N, tile[1]))
        args = [*parts, *results, M, N, K]
        return Launch(FILE, "complex_product", grid, args, words, results)

    return make


def gated_gradients(M: int, N: int, K: int, tile: Tile, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, dh = normal(M, K, dtype="bfloat16"), normal(M, N, dtype="bfloat16")
        gate, up = (normal(N, K, dtype="bfloat16", scale=K**-0.5) for _ in range(2))
        results = [empty(M, N, dtype="bfloat16") for _ in range(2)]
        words, grid = words_of(tile, warps, stages), (blocks(M, tile[0]), blocks(N, tile[1]))
        args = [x, gate, up, dh, *results, M, N, K]
        return Launch(FILE, "gated_gradients", grid, args, words, results)

    return make


LIBRARY: dict[str, Maker] = {
    "stream-K, 3000x2048x4096": stream_k(3000, 2048, 4096, (128, 128, 64), 8, 3),
    "stream-K, 1000x1544x8200, 4 warps": stream_k(1000, 1544, 8200, (128, 128, 32), 4, 4),
    "halved store, 4096x6144x2048": halved_store(4096, 6144, 2048, (128, 256, 64), 8, 3, "float16"),
    "halved store, FP8, 4000x3072x2048": halved_store(4000, 3072, 2048, (128, 128, 128), 4, 3, "float8_e4m3fn"),
    "groups by descriptors, 8192 in 16, 2048x1024": described_groups(8192, 16, 2048, 1024, (128, 128, 64), 8, 3),
    "groups by descriptors, 3001 in 40, 768x1536": described_groups(3001, 40, 768, 1536, (64, 128, 64), 4, 4),
    "experts of libraries, 4096 of 2, 8 of 2048x1024": scaled_experts(4096, 2, 8, 2048, 1024, (128, 128, 64), 8, 3, "halves", 8, True),
    "experts of libraries, 33 of 8, 64 of 768x2048": scaled_experts(33, 8, 64, 768, 2048, (16, 64, 128), 4, 4, "halves", 1, False),
    "experts of FP8, 2048 of 4, 16 of 1536x2048": scaled_experts(2048, 4, 16, 1536, 2048, (64, 128, 128), 4, 3, "fp8", 16, False),
    "experts of FP8, 100 of 8, 32 of 1024x1152": scaled_experts(100, 8, 32, 1024, 1152, (64, 128, 128), 4, 4, "fp8", 32, True),
    "experts of bytes, 1024 of 2, 8 of 1408x2048": scaled_experts(1024, 2, 8, 1408, 2048, (64, 128, 64), 4, 3, "int8", 1, False),
    "experts of bytes, 48 of 4, 16 of 2048x1000": scaled_experts(48, 4, 16, 2048, 1000, (16, 128, 64), 4, 4, "int8", 1, True),
    "FP8 by blocks, 4096x7168x2048": scaled_blocks(4096, 7168, 2048, (128, 128, 128), 4, 3, 32),
    "FP8 by blocks, 64x4608x7168": scaled_blocks(64, 4608, 7168, (64, 128, 128), 4, 3, 32),
    "FP8 by blocks, 1000x2112x7168, 8 warps": scaled_blocks(1000, 2112, 7168, (64, 128, 128), 8, 4, 16),
    "FP8 rows, 4096x4096x4096": fp8_rows(4096, 4096, 4096, (128, 256, 128), 8, 3, True, False),
    "FP8 rows, bias, 2000x3072x1536": fp8_rows(2000, 3072, 1536, (128, 128, 128), 8, 4, False, True),
    "AWQ, 1024x4096x4096": awq(1024, 4096, 4096, (64, 128, 64), 1, 4, 3),
    "AWQ, 16x4096x4096, 8 parts": awq(16, 4096, 4096, (16, 64, 64), 8, 4, 3),
    "GPTQ, 512x4096x4096": gptq(512, 4096, 4096, 4, (64, 128, 64), 4, 3),
    "GPTQ, 20x5120x2560": gptq(20, 5120, 2560, 4, (32, 64, 64), 4, 4),
    "GPTQ, 8 bits, 300x2048x4096": gptq(300, 2048, 4096, 8, (64, 64, 64), 4, 3),
    "half-quadratic, 1024x4096x4096": half_quadratic(1024, 4096, 4096, (128, 128, 64), 8, 3),
    "half-quadratic, 30x5120x2560": half_quadratic(30, 5120, 2560, (32, 64, 64), 4, 4),
    "log of sums of logits, 4096x32000x2048": log_sums(4096, 32000, 2048, 8, (128, 128, 64), 8, 3),
    "log of sums of logits, 1000x50257x768": log_sums(1000, 50257, 768, 16, (64, 128, 64), 4, 3),
    "adapter, 4096x4096x4096, 16": adapted(4096, 4096, 4096, 16, (128, 128, 64), 8, 3),
    "adapter, 2000x3000x1000, 64": adapted(2000, 3000, 1000, 64, (64, 128, 64), 4, 3),
    "low rank, 16384x2048x2048, 64": low_rank(16384, 2048, 2048, 64, (128, 128, 64), 8, 3),
    "low rank, 10000x3000x1000, 32": low_rank(10000, 3000, 1000, 32, (64, 128, 64), 4, 3),
    "batches by heads, 192 of 577x577x64": strided_batches(192, 577, 577, 64, (128, 128, 64), 8, 2, True),
    "batches, 300 of 197x64x197": strided_batches(300, 197, 64, 197, (64, 64, 32), 4, 3, False, "bfloat16"),
    "batches, 128 of 256x512x384": strided_batches(128, 256, 512, 384, (128, 128, 32), 4, 4, False),
    "symmetric, 4096x4096": symmetric(4096, 4096, 128, 64, 8, 3, False),
    "symmetric, added, 2048x2048": symmetric(2048, 2048, 128, 64, 4, 4, True),
    "symmetric, added, 1500x1000": symmetric(1500, 1000, 64, 64, 4, 3, True),
    "listed blocks, 4096x4096x4096, a quarter": listed_blocks(4096, 4096, 4096, 0.25, (128, 128, 64), 8, 3),
    "listed blocks, 3000x2048x2048, a half": listed_blocks(3000, 2048, 2048, 0.5, (64, 64, 64), 4, 4),
    "largest of squares, 4096x4096x2048": largest_of_product(4096, 4096, 2048, (128, 256, 64), 8, 3),
    "largest of squares, 3000x1544x1024": largest_of_product(3000, 1544, 1024, (128, 128, 64), 4, 3),
    "added, 2048, tf32": added(2048, 2048, 2048, "tf32", (128, 128, 32), 8, 3, "float32", False),
    "added, 1000x1500x700, tf32x3": added(1000, 1500, 700, "tf32x3", (64, 64, 32), 4, 3, "float32", True),
    "added, 1024x1024x512, ieee": added(1024, 1024, 512, "ieee", (64, 64, 32), 4, 2, "float32", False),
    "added, 4096x3072x1024, bfloat16": added(4096, 3072, 1024, "tf32", (128, 128, 64), 4, 3, "bfloat16", True),
    "complex product, 2048x2048x1024": complex_product(2048, 2048, 1024, (64, 128, 64), 4, 3),
    "complex product, 1000x1544x512": complex_product(1000, 1544, 512, (64, 64, 32), 4, 3),
    "gradients of gates, 4096x2816x1024": gated_gradients(4096, 2816, 1024, (64, 128, 64), 4, 3),
    "gradients of gates, 1000x1544x512, 8 warps": gated_gradients(1000, 1544, 512, (128, 128, 64), 8, 3),
}  # fmt: skip
library_gemm_cases = cases_of(LIBRARY)
