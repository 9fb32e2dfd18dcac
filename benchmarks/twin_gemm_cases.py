"""The launches of twin_gemms.py: sizes, element types, strides and tiles that nothing was tuned for."""

from __future__ import annotations

from typing import Any

from twin_cases import Launch, Maker, blocks, cases_of, empty, gemm, integers, normal

FILE = "twin_gemms"
PROGRAMS = 132


def drawn(*shape: int, dtype: str) -> Any:
    """Return elements of a type: integers up to 60, or numbers from a normal distribution."""
    return (
        integers(60, *shape, dtype=dtype) - 30 if dtype == "int8" else normal(*shape, dtype=dtype)
    )


def strided(M: int, N: int, K: int, tile: tuple[int, int, int], warps: int, stages: int, dtype: str = "float16",
            order: str = "nn", group: int = 8) -> Maker:  # fmt: skip
    """Return the maker of a launch; `order` says of each matrix whether it is transposed."""

    def make() -> Launch:
        a = drawn(M, K, dtype=dtype) if order[0] == "n" else drawn(K, M, dtype=dtype).T
        b = drawn(K, N, dtype=dtype) if order[1] == "n" else drawn(N, K, dtype=dtype).T
        of_result = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
        c = empty(M, N, dtype=of_result)
        even = not (M % tile[0] or N % tile[1] or K % tile[2])
        words = dict(zip(("BM", "BN", "BK"), tile), GROUP=group, EVEN=even, INT=dtype == "int8", num_warps=warps,
                     num_stages=stages)  # fmt: skip
        args = [a, b, c, M, N, K, *a.stride(), *b.stride(), N]
        return Launch(FILE, "strided", (blocks(M, tile[0]) * blocks(N, tile[1]),), args, words, [c])

    return make


def over_tiles(kernel: str, M: int, N: int, K: int, tile: tuple[int, int, int], warps: int, stages: int,
               dtype: str = "float16", **words: Any) -> Maker:  # fmt: skip
    """Return the maker of a launch with one program for each tile."""

    def make() -> Launch:
        a = drawn(M, K, dtype="int8" if kernel == "scaled_bytes" else dtype)
        transposed = kernel == "scaled_bytes" or words.get("TRANSPOSED")
        of_b = "int8" if kernel in ("scaled_bytes", "byte_weights") else dtype
        b = drawn(*((N, K) if transposed else (K, N)), dtype=of_b)
        c = empty(M, N, dtype="bfloat16" if dtype == "float8_e4m3fn" else dtype)
        results, column = [c], normal(N, dtype="float32")
        if kernel == "scaled_bytes":
            args = [
                a,
                b,
                normal(M, dtype="float32", scale=1e-3),
                column,
                normal(N, dtype="float32"),
                c,
            ]
        elif kernel == "byte_weights":
            args = [a, b, column, c]
        elif kernel == "activated":
            args = [a, b, normal(K, dtype="float32"), c]
        elif kernel == "two_products":
            results = [c, empty(M, N)]
            args = [a, b, drawn(K, N, dtype=dtype), *results]
        elif kernel == "described":
            args = [a, b, c, column]
        else:
            args = [a, b, c]
        strides = [K, 1, N, 1] if kernel == "by_blocks" else []
        of_tiles = dict(zip(("BM", "BN", "BK"), tile), num_warps=warps, num_stages=stages, **words)
        persistent = kernel.startswith("persistent")
        grid = (PROGRAMS,) if persistent else (blocks(M, tile[0]), blocks(N, tile[1]))
        if persistent:
            of_tiles["PROGRAMS"] = PROGRAMS
            if kernel == "persistent_described":
                args[1] = drawn(N, K, dtype=dtype)
        return Launch(FILE, kernel, grid, [*args, M, N, K, *strides], of_tiles, results)

    return make


def routed(tokens: int, N: int, K: int, experts: int, top: int, tile: tuple[int, int, int], warps: int, stages: int) -> Maker:  # fmt: skip
    """Return the maker of a launch whose blocks of rows have an expert each, padded to whole blocks."""

    def make() -> Launch:
        import torch

        count, BM = tokens * top, tile[0]
        of_pair = integers(experts, count)
        places, of_block = [], []
        for expert in range(experts):
            own = (of_pair == expert).nonzero().flatten().int()
            padded = torch.full(
                (blocks(len(own), BM) * BM,), count, device=own.device, dtype=torch.int32
            )
            padded[: len(own)] = own
            places.append(padded)
            of_block += [expert] * (len(padded) // BM)
        token = torch.cat(places)
        y = empty(count, N)
        args = [normal(tokens, K), normal(experts, N, K, scale=K**-0.5), token,
                torch.tensor(of_block, device=token.device, dtype=torch.int32), normal(count, dtype="float32"), y, N, K,
                count]  # fmt: skip
        words = dict(
            zip(("BM", "BN", "BK"), tile), TOP=top, GROUP=1, num_warps=warps, num_stages=stages
        )
        return Launch(FILE, "routed", (blocks(count, BM) * blocks(N, tile[1]),), args, words, [y])

    return make


def table(
    sizes: list[tuple[int, int, int]], tile: tuple[int, int, int], warps: int, stages: int
) -> Maker:
    def make() -> Launch:
        import torch

        operands = [(normal(M, K), normal(K, N, scale=K**-0.5), empty(M, N)) for M, N, K in sizes]
        addresses = torch.tensor(
            [[x.data_ptr() for x in three] for three in operands], device=operands[0][0].device
        )
        of_sizes = torch.tensor(sizes, device=addresses.device, dtype=torch.int32)
        words = dict(
            zip(("BM", "BN", "BK"), tile), PROGRAMS=PROGRAMS, num_warps=warps, num_stages=stages
        )
        launch = Launch(
            FILE, "table_of_gemms", (PROGRAMS,), [addresses, of_sizes, len(sizes)], words, []
        )
        launch.results.extend(three[2] for three in operands)
        KEPT.append(operands)
        return launch

    return make


KEPT: list[Any] = []  # operands that a table of addresses names


def weight_gradients(
    T: int, N: int, K: int, parts: int, tile: tuple[int, int, int], warps: int, stages: int
) -> Maker:
    def make() -> Launch:
        x, dy, dw = normal(T, K), normal(T, N, scale=T**-0.5), empty(K, N, dtype="float32")
        words = dict(zip(("BK", "BN", "BT"), tile), PARTS=parts, num_warps=warps, num_stages=stages)
        grid = (blocks(K, tile[0]), blocks(N, tile[1]), parts)
        return Launch(FILE, "weight_gradients", grid, [x, dy, dw, T, N, K], words, [dw], True)

    return make


GEMMS: dict[str, Maker] = {
    "strides, 3072x5120x1280": strided(3072, 5120, 1280, (128, 256, 64), 8, 3),
    "strides, 3072x5120x1280, bfloat16, 4 warps, 32 of K": strided(3072, 5120, 1280, (128, 128, 32), 4, 4, "bfloat16"),
    "strides, 1000x777x515": strided(1000, 777, 515, (128, 128, 64), 4, 3),
    "strides, 2000x1544x904": strided(2000, 1544, 904, (64, 128, 64), 4, 4),
    "strides, A transposed, 2048x3072x1536": strided(2048, 3072, 1536, (128, 128, 64), 8, 3, order="tn"),
    "strides, B transposed, 2048x3072x1536": strided(2048, 3072, 1536, (128, 128, 64), 4, 3, order="nt"),
    "strides, both transposed, 1900x1096x1400": strided(1900, 1096, 1400, (128, 64, 64), 4, 3, "bfloat16", "tt"),
    "strides, 128x8192x8192": strided(128, 8192, 8192, (128, 64, 128), 4, 3),
    "strides, 16x4096x4096": strided(16, 4096, 4096, (16, 64, 128), 4, 4),
    "strides, 32x5120x2560, B transposed": strided(32, 5120, 2560, (32, 64, 128), 4, 3, "bfloat16", "nt"),
    "strides, 8192x64x8192": strided(8192, 64, 8192, (64, 64, 64), 4, 4),
    "strides, float32, 2048": strided(2048, 2048, 2048, (128, 128, 32), 8, 3, "float32"),
    "strides, float32, 1500x1000x700": strided(1500, 1000, 700, (64, 64, 32), 4, 3, "float32"),
    "strides, FP8, B transposed, 4096x4096x2048": strided(4096, 4096, 2048, (128, 256, 128), 8, 3, "float8_e4m3fn", "nt"),
    "strides, int8, B transposed, 4096x3072x2048": strided(4096, 3072, 2048, (128, 128, 128), 8, 3, "int8", "nt"),
    "strides, 512x512x512": strided(512, 512, 512, (64, 64, 64), 4, 3),
    "strides, 4096, 128 of K, two buffers": strided(4096, 4096, 4096, (128, 128, 128), 8, 2),
    "int8 with scales, 1024x4096x4096": over_tiles("scaled_bytes", 1024, 4096, 4096, (128, 128, 128), 8, 3),
    "int8 with scales, 300x2000x1536": over_tiles("scaled_bytes", 300, 2000, 1536, (64, 64, 64), 4, 4),
    "weights of 8 bits, 512x4096x4096": over_tiles("byte_weights", 512, 4096, 4096, (64, 128, 64), 4, 3),
    "weights of 8 bits, 16x4096x4096": over_tiles("byte_weights", 16, 4096, 4096, (16, 64, 128), 4, 4),
    "ReLU of A, 4096x1024x2048": over_tiles("activated", 4096, 1024, 2048, (128, 128, 64), 8, 3, RELU=True),
    "scaled A, 3000x1536x1024": over_tiles("activated", 3000, 1536, 1024, (64, 128, 64), 4, 3, "bfloat16", RELU=False),
    "experts, 2048 of 2, 8 of 1408x2048": routed(2048, 1408, 2048, 8, 2, (64, 128, 64), 4, 3),
    "experts, 1000 of 4, 16 of 768x1024": routed(1000, 768, 1024, 16, 4, (128, 128, 64), 8, 4),
    "table of GEMMs": table([(1024, 1024, 1024), (512, 2048, 1024), (2048, 512, 512), (256, 256, 4096)], (128, 128, 32), 4, 3),
    "persistent, 4096x4096x1024": over_tiles("persistent", 4096, 4096, 1024, (128, 256, 64), 8, 3, GROUP=8),
    "persistent, 3000x2056x1500": over_tiles("persistent", 3000, 2056, 1500, (128, 128, 64), 4, 3, GROUP=8),
    "descriptors, 3072x5120x1280": over_tiles("described", 3072, 5120, 1280, (128, 128, 64), 4, 4, TRANSPOSED=False, BIAS=False),
    "descriptors, B transposed, SiLU, 2000x1544x904": over_tiles("described", 2000, 1544, 904, (64, 128, 64), 4, 3, "bfloat16", TRANSPOSED=True, BIAS=True),
    "descriptors, FP8, 4096x4096x2048": over_tiles("described", 4096, 4096, 2048, (128, 256, 128), 8, 3, "float8_e4m3fn", TRANSPOSED=True, BIAS=False),
    "tiles, FP8, 2048x3072x4096": over_tiles("tiles_of_both", 2048, 3072, 4096, (128, 128, 128), 8, 3, "float8_e4m3fn"),
    "tiles, float32, 2048x2048x1000": over_tiles("tiles_of_both", 2048, 2048, 1000, (128, 128, 32), 8, 3, "float32"),
    "persistent, descriptors, 4096x4096x1024": over_tiles("persistent_described", 4096, 4096, 1024, (128, 128, 64), 8, 3),
    "blocks, 2000x3000x1000": over_tiles("by_blocks", 2000, 3000, 1000, (128, 128, 64), 8, 3),
    "blocks, 4096x1024x4096, 4 warps": over_tiles("by_blocks", 4096, 1024, 4096, (128, 128, 32), 4, 4, "bfloat16"),
    "two products, 4096x1024x2048": over_tiles("two_products", 4096, 1024, 2048, (64, 128, 64), 4, 3),
    "two products, 1000x1544x512": over_tiles("two_products", 1000, 1544, 512, (64, 64, 64), 4, 3),
    "linear, 512x512x512": gemm(512, 512, 512, 64, 64, 64, 4, 3, False),
    "linear, 1024x1536x256": gemm(1024, 1536, 256, 128, 128, 64, 8, 3, False),
    "linear, GELU, residual, 3000x3000x1000": gemm(3000, 3000, 1000, 128, 128, 64, 4, 3, True),
    "linear, 256x4096x4096": gemm(256, 4096, 4096, 128, 64, 64, 4, 4, False),
    "linear, 2048x2048x2048": gemm(2048, 2048, 2048, 128, 128, 64, 4, 3, False),
    "gradients of weights, 16384x1024x1024": weight_gradients(16384, 1024, 1024, 4, (128, 128, 64), 8, 3),
    "gradients of weights, 5000x1544x600": weight_gradients(5000, 1544, 600, 8, (64, 128, 64), 4, 3),
}  # fmt: skip
gemm_twin_cases = cases_of(GEMMS)
