"""The launches of benchmarks/twin_elements.py and benchmarks/twin_mixtures.py."""

from __future__ import annotations

from typing import Any, Callable

import twin_cases
from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal
from twin_kind_cases import items, offsets

FILE, MIXTURES = "twin_elements", "twin_mixtures"


def moments(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        mean, var = (empty(M, dtype="float32") for _ in range(2))
        words = dict(BLOCK=block, num_warps=warps)
        args = [normal(M, N) + 0.25, mean, var, N]
        return Launch(FILE, "chunk_moments", (M,), args, words, [mean, var])

    return make


def long_gradients(M: int, N: int, block: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        y, dy, dx = normal(M, N, dtype=dtype), normal(M, N, dtype=dtype), empty(M, N, dtype=dtype)
        words = dict(BLOCK=block, num_warps=warps)
        return Launch(FILE, "softmax_gradients_long", (M,), [y, dy, dx, N, N], words, [dx])

    return make


def log_softmax(M: int, N: int, rows: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, keep, y = normal(M, N), integers(2, M, N, dtype="int8"), empty(M, N, dtype="float32")
        words = dict(ROWS=rows, BLOCK=block, num_warps=warps)
        grid = (blocks(M, rows),)
        return Launch(FILE, "masked_log_softmax", grid, [x, keep, y, M, N], words, [y])

    return make


def rms_gradients(M: int, N: int, block: int, warps: int, programs: int) -> Maker:
    def make() -> Launch:
        x, dy, w = normal(M, N), normal(M, N), normal(N)
        rstd = normal(M, dtype="float32").abs()
        dx, dw = empty(M, N), empty(programs, N, dtype="float32")
        words = dict(BLOCK=block, num_warps=warps)
        args = [x, dy, w, rstd, dx, dw, M, N]
        return Launch(FILE, "rms_gradients", (programs,), args, words, [dx, dw])

    return make


def largest(M: int, N: int, rows: int, block: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        value, index = empty(M, dtype="float32"), empty(M, dtype="int32")
        words = dict(ROWS=rows, BLOCK=block, num_warps=warps)
        args = [normal(M, N, dtype=dtype), value, index, M, N]
        return Launch(FILE, "largest_with_place", (blocks(M, rows),), args, words, [value, index])

    return make


def products(M: int, N: int, rows: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = 1 + normal(M, N, dtype="float32") / 64, empty(M, N, dtype="float32")
        words = dict(ROWS=rows, BLOCK=block, num_warps=warps)
        return Launch(FILE, "products_of_rows", (blocks(M, rows),), [x, y, M, N], words, [y])

    return make


def first_byte(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, index = integers(100, M, N, dtype="int8"), empty(M, dtype="int32")
        words = dict(BLOCK=block, num_warps=warps)
        return Launch(FILE, "first_of_bytes", (M,), [x, index, N], words, [index])

    return make


def mixed(n: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        a, b = integers(1000, n, dtype="int16"), normal(n, dtype="float32")
        c, y = normal(n, dtype="bfloat16"), empty(n)
        words = dict(BLOCK=block, num_warps=warps)
        args = [a, b, c, y, n, 0.01]
        return Launch(FILE, "mixed_widths", (blocks(n, block),), args, words, [y])

    return make


def by_index(n: int, size: int, block: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        x, y = normal(size, dtype=dtype), empty(n, dtype=dtype)
        words = dict(BLOCK=block, num_warps=warps)
        args = [x, integers(size, n, dtype="int64"), y, n]
        return Launch(FILE, "elements_by_index", (blocks(n, block),), args, words, [y])

    return make


def strided(M: int, N: int, every: int, block: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        x, y = normal(M, N * every + 8, dtype=dtype), empty(M, N, dtype=dtype)
        words = dict(BLOCK=block, num_warps=warps)
        args = [x, y, N, N * every + 8, every, N, 1, 1e-6]
        return Launch(FILE, "strided_normalize", (M,), args, words, [y])

    return make


def middle(B: int, S: int, C: int, BB: int, BC: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(B, S, C), empty(B, S, C)
        words = dict(BB=BB, S=S, BC=BC, num_warps=warps)
        grid = (blocks(B, BB), blocks(C, BC))
        return Launch(FILE, "middle_softmax", grid, [x, y, B, C], words, [y])

    return make


def scatter(n: int, rows: int, D: int, BN: int, BD: int, warps: int) -> Maker:
    def make() -> Launch:
        y = empty(rows, D, dtype="float32")
        words = dict(BN=BN, BD=BD, num_warps=warps)
        args = [normal(n, D), integers(rows, n), y, n, D]
        grid = (blocks(n, BN), blocks(D, BD))
        return Launch(FILE, "scatter_add", grid, args, words, [y], True)

    return make


def rotate(T: int, heads: int, D: int, BT: int, warps: int) -> Maker:
    def make() -> Launch:
        qkv, angle = normal(T, 3 * heads, D), normal(T, D // 2, dtype="float32")
        words = dict(HEADS=heads, HALF=D // 2, BT=BT, num_warps=warps)
        args = [qkv, angle.cos(), angle.sin(), T, 3 * heads * D, D]
        return Launch(FILE, "rotate_packed", (blocks(T, BT), 2 * heads), args, words, [qkv])

    return make


def pack(n: int, count: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        words_of = empty(blocks(n, 32), dtype="int32")
        args = [normal(n, dtype=dtype), words_of, n]
        words = dict(WORDS=count, num_warps=warps)
        return Launch(FILE, "pack_signs", (blocks(n, 32 * count),), args, words, [words_of])

    return make


def groups(M: int, N: int, count: int, warps: int) -> Maker:
    def make() -> Launch:
        q, s = empty(M, N, dtype="float8_e4m3fn"), empty(M, N // 128, dtype="float32")
        words = dict(GROUPS=count, num_warps=warps)
        args = [normal(M, N, dtype="bfloat16"), q, s, M, N]
        grid = (blocks(M * (N // 128), count),)
        return Launch(FILE, "quantize_groups", grid, args, words, [q, s])

    return make


def last(batch: int, C: int, pixels: int, BC: int, BP: int, warps: int, dtypes: tuple[str, str]) -> Maker:  # fmt: skip
    def make() -> Launch:
        x, y = normal(batch, C, pixels, dtype=dtypes[0]), empty(batch, pixels, C, dtype=dtypes[1])
        words = dict(BC=BC, BP=BP, num_warps=warps)
        grid = (blocks(C, BC), blocks(pixels, BP), batch)
        return Launch(FILE, "channels_last", grid, [x, y, C, pixels], words, [y])

    return make


def both_ways(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        row, column = empty(M, dtype="float32"), empty(N, dtype="float32")
        words = dict(BM=BM, BN=BN, num_warps=warps)
        args = [normal(M, N), row, column, M, N]
        return Launch(FILE, "rows_and_columns", (blocks(M, BM),), args, words, [row, column], True)

    return make


def byte_histogram(n: int, steps: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        count = empty(256, dtype="int32")
        words = dict(STEPS=steps, BLOCK=block, num_warps=warps)
        args = [integers(256, n, dtype="uint8"), count, n]
        grid = (blocks(n, steps * block),)
        return Launch(FILE, "byte_histogram", grid, args, words, [count], True)

    return make


def dropout(n: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        y, words = empty(n), dict(BLOCK=block, num_warps=warps)
        args = [normal(n), normal(n), y, n, 0.1, 1234]
        return Launch(FILE, "dropout_residual", (blocks(n, block),), args, words, [y])

    return make


def standard(M: int, N: int, block: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        x, y = normal(M, N, dtype=dtype), empty(M, N, dtype=dtype)
        words = dict(BLOCK=block, num_warps=warps)
        eps = 1e-5 if N > 1 else 1.0
        if N == 1:
            x, y = x.abs() + 1, y
        return Launch(FILE, "standardize", (M,), [x, y, N, eps], words, [y])

    return make


def ragged(rows: int, most: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        starts = offsets(rows, most)
        count = items(starts, rows, most)
        y, words = empty(count), dict(BLOCK=block, num_warps=warps)
        return Launch(FILE, "ragged_softmax", (rows,), [normal(count), starts, y], words, [y])

    return make


def returns(M: int, T: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        y, words = empty(M, T, dtype="float32"), dict(BLOCK=block, num_warps=warps)
        done = (integers(50, M, T) == 0).to(twin_cases.integers(2, 1, dtype="int8").dtype)
        args = [normal(M, T, dtype="float32"), done, y, T, 0.99]
        return Launch(FILE, "discounted_returns", (M,), args, words, [y])

    return make


def shuffle(C: int, H: int, W: int, R: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(C * R * R, H, W), empty(C, H * R, W * R)
        words: dict[str, Any] = dict(R=R, BLOCK=block, num_warps=warps)
        grid = (blocks(C * H * R * W * R, block),)
        return Launch(FILE, "pixel_shuffle", grid, [x, y, C, H, W], words, [y])

    return make


def contrast(M: int, rows: int, N: int, K: int, warps: int) -> Maker:
    def make() -> Launch:
        v, words = empty(M, K, dtype="float32"), dict(ROWS=rows, N=N, K=K, num_warps=warps)
        return Launch(FILE, "contrast_largest", (blocks(M, rows),), [normal(M, N), v, M], words, [v])  # fmt: skip

    return make


def taps(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        y, words = empty(M, N, dtype="float32"), dict(BM=BM, BN=BN, num_warps=warps)
        grid = (blocks(M, BM), blocks(N, BN))
        args = [normal(M, N, dtype="float32"), y, M, N]
        return Launch(FILE, "taps_of_neighbours", grid, args, words, [y])

    return make


def of(
    kernel: str,
    grid: tuple[int, ...],
    operands: Callable[[], tuple[list[Any], list[Any]]],
    **words: Any,
) -> Maker:
    """Return a launch of a kernel of twin_mixtures.py, whose operands and results a function makes."""

    def make() -> Launch:
        args, results = operands()
        return Launch(MIXTURES, kernel, grid, args, words, results)

    return make


def bytes_scaled(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(M, N, dtype="bfloat16")
        scales = [normal(M, dtype="float32"), normal(N, dtype="float32")]
        return [integers(100, M, N, dtype="int8"), *scales, y, M, N], [y]

    grid = (blocks(M, BM), blocks(N, BN))
    return of("dequantize", grid, make, BM=BM, BN=BN, num_warps=warps)


def since_flags(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(M, N, dtype="float32")
        return [normal(M, N), integers(2, M, N, dtype="int8"), y, N], [y]

    return of("sums_since_flags", (M,), make, BLOCK=block, num_warps=warps)


def both_walks(kernel: str, M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    """Return a launch over tiles of a matrix: softmaxes of rows, or sums of columns."""

    def make() -> tuple[list[Any], list[Any]]:
        rows = kernel == "online_softmax"
        y = empty(M, N) if rows else empty(N, dtype="float32")
        return [normal(M, N), y, M, N], [y]

    grid = (blocks(M, BM) if kernel == "online_softmax" else blocks(N, BN),)
    return of(kernel, grid, make, BM=BM, BN=BN, num_warps=warps)


def experts(M: int, E: int, rows: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        w, e = empty(M, 2, dtype="float32"), empty(M, 2, dtype="int32")
        return [normal(M, E, dtype="bfloat16"), w, e, M], [w, e]

    return of("two_experts", (blocks(M, rows),), make, ROWS=rows, E=E, num_warps=warps)


def maxima(M: int, N: int, W: int, block: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(M, N)
        return [normal(M, N), y, N], [y]

    return of("window_maxima", (M, blocks(N, block)), make, W=W, BLOCK=block, num_warps=warps)


def elements(kernel: str, n: int, block: int, warps: int) -> Maker:
    """Return a launch over elements: gradients of GELU, or products of complex numbers."""

    def make() -> tuple[list[Any], list[Any]]:
        size, dtype = (n, "bfloat16") if kernel == "gelu_gradients" else (2 * n, "float32")
        y = empty(size, dtype=dtype)
        return [normal(size, dtype=dtype), normal(size, dtype=dtype), y, n], [y]

    return of(kernel, (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def along(M: int, N: int, K: int, rows: int, block: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(M, K)
        return [normal(M, N), integers(N, M, K, dtype="int64"), y, M, N, K], [y]

    return of("take_along", (blocks(M, rows),), make, ROWS=rows, BLOCK=block, num_warps=warps)


def triangles(batch: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(batch, N, N)
        return [normal(batch, N, N), y, N], [y]

    grid = (blocks(N, BM), blocks(N, BN), batch)
    return of("lower_triangles", grid, make, BM=BM, BN=BN, num_warps=warps)


def long_rows(kernel: str, M: int, N: int, block: int, warps: int) -> Maker:
    """Return a launch over long rows: sums of bytes, or counts."""

    def make() -> tuple[list[Any], list[Any]]:
        if kernel == "wide_sums":
            y = empty(M, dtype="int64")
            return [integers(100, M, N, dtype="int8"), y, N], [y]
        y = empty(M, N, dtype="int32")
        return [normal(M, N), y, N], [y]

    return of(kernel, (M,), make, BLOCK=block, num_warps=warps)


def doubled(H: int, W: int, C: int, BW: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        y = empty(2 * H, 2 * W, C)
        return [normal(H, W, C), y, H, W], [y]

    return of("doubled_pixels", (H, blocks(W, BW)), make, C=C, BW=BW, num_warps=warps)


def bytes_transposed(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> tuple[list[Any], list[Any]]:
        q = empty(N, M, dtype="float8_e4m3fn")
        return [normal(M, N, dtype="bfloat16"), q, M, N, 8.0], [q]

    grid = (blocks(M, BM), blocks(N, BN))
    return of("transposed_bytes", grid, make, BM=BM, BN=BN, num_warps=warps)


ELEMENTS: dict[str, Maker] = {
    "chunk moments, 4096x32768": moments(4096, 32768, 4096, 8),
    "chunk moments, 500x100000": moments(500, 100000, 2048, 4),
    "chunk moments, 3001x5000": moments(3001, 5000, 1024, 4),
    "softmax, long gradients, 1024x100000": long_gradients(1024, 100000, 4096, 8, "float16"),
    "softmax, long gradients, 3000x10001, float32": long_gradients(3000, 10001, 2048, 4, "float32"),
    "log-softmax of kept, 16384x1000": log_softmax(16384, 1000, 4, 1024, 4),
    "log-softmax of kept, 30001x500": log_softmax(30001, 500, 2, 512, 4),
    "RMS norm, gradients, 16384x4096": rms_gradients(16384, 4096, 4096, 8, 264),
    "RMS norm, gradients, 20001x1000": rms_gradients(20001, 1000, 1024, 4, 528),
    "largest and place, 50000x1000": largest(50000, 1000, 4, 1024, 4, "float16"),
    "largest and place, 100001x33, float32": largest(100001, 33, 32, 64, 4, "float32"),
    "cumulative product, 32768x1024": products(32768, 1024, 4, 1024, 4),
    "cumulative product, 20001x777": products(20001, 777, 2, 1024, 4),
    "top byte, 50000x1000": first_byte(50000, 1000, 1024, 4),
    "top byte, 8192x8192": first_byte(8192, 8192, 8192, 8),
    "mixed widths, 2^25": mixed(1 << 25, 1024, 4),
    "mixed widths, 10000001": mixed(10000001, 1024, 4),
    "elements by index, 2^24": by_index(1 << 24, 1 << 20, 1024, 4, "float32"),
    "elements by index, 10000001, float16": by_index(10000001, 1 << 18, 1024, 4, "float16"),
    "strided rows, every 2nd, 16384x2048": strided(16384, 2048, 2, 2048, 4, "float16"),
    "strided rows, every 1st, 16384x4000": strided(16384, 4000, 1, 4096, 8, "float16"),
    "strided rows, every 3rd, 20001x1000, float32": strided(20001, 1000, 3, 1024, 4, "float32"),
    "middle softmax, 512x64x512": middle(512, 64, 512, 1, 64, 4),
    "middle softmax, 1000x32x100": middle(1000, 32, 100, 4, 32, 4),
    "scatter-add, 100000x256": scatter(100000, 20000, 256, 16, 128, 4),
    "scatter-add, 50001x100": scatter(50001, 3000, 100, 16, 128, 4),
    "rotate packed, 16384, 16x128": rotate(16384, 16, 128, 32, 4),
    "rotate packed, 5001, 12x64": rotate(5001, 12, 64, 32, 4),
    "pack signs, 2^26": pack(1 << 26, 128, 4, "float16"),
    "pack signs, 10000001, float32": pack(10000001, 64, 4, "float32"),
    "FP8 groups, 8192x8192": groups(8192, 8192, 32, 4),
    "FP8 groups, 3001x1408": groups(3001, 1408, 16, 4),
    "channels last, 32x256x3136": last(32, 256, 3136, 64, 64, 4, ("float32", "float16")),
    "channels last, 20x96x3025": last(20, 96, 3025, 32, 64, 4, ("float16", "float16")),
    "channels last, 64x3x50176": last(64, 3, 50176, 4, 256, 4, ("float32", "float32")),
    "rows and columns, 16384x4096": both_ways(16384, 4096, 64, 64, 4),
    "rows and columns, 5001x3003": both_ways(5001, 3003, 32, 128, 4),
    "bytes counted, 2^26": byte_histogram(1 << 26, 8, 4096, 8),
    "bytes counted, 10000001": byte_histogram(10000001, 4, 2048, 4),
    "dropout, 2^25": dropout(1 << 25, 1024, 4),
    "dropout, 5000001": dropout(5000001, 1024, 4),
    "standardize, 1000000x1": standard(1000000, 1, 1, 1, "float32"),
    "standardize, 200000x33": standard(200000, 33, 64, 1, "float16"),
    "standardize, 65536x1000": standard(65536, 1000, 1024, 4, "float16"),
    "standardize, 16384x5000, float32": standard(16384, 5000, 8192, 8, "float32"),
    "standardize, 512x100000": standard(512, 100000, 131072, 32, "float16"),
    "ragged softmax, 20000 of up to 2000": ragged(20000, 2000, 2048, 4),
    "returns, 8192x1024": returns(8192, 1024, 1024, 4),
    "returns, 20001x500": returns(20001, 500, 512, 4),
    "pixel shuffle, 64x256x256, 2": shuffle(64, 256, 256, 2, 1024, 4),
    "pixel shuffle, 30x101x203, 3": shuffle(30, 101, 203, 3, 1024, 4),
    "contrast of largest, 50000x64": contrast(50000, 16, 64, 8, 4),
    "neighbours, 8192x8192": taps(8192, 8192, 16, 128, 4),
    "neighbours, 5001x3003": taps(5001, 3003, 8, 256, 4),
    "bytes scaled, 8192x8192": bytes_scaled(8192, 8192, 32, 128, 4),
    "bytes scaled, 3001x5003": bytes_scaled(3001, 5003, 16, 256, 4),
    "sums since flags, 20000x1024": since_flags(20000, 1024, 1024, 4),
    "sums since flags, 8191x3000": since_flags(8191, 3000, 4096, 8),
    "softmax in two walks, 8192x16384": both_walks("online_softmax", 8192, 16384, 4, 1024, 8),
    "softmax in two walks, 5001x10001": both_walks("online_softmax", 5001, 10001, 2, 1024, 4),
    "columns, log of exponentials, 8192x8192": both_walks("log_sums_down", 8192, 8192, 64, 32, 4),
    "columns, log of exponentials, 3000x20001": both_walks("log_sums_down", 3000, 20001, 32, 128, 4),
    "columns, compensated, 16384x8192": both_walks("compensated_sums", 16384, 8192, 32, 32, 4),
    "columns, compensated, 5001x9001": both_walks("compensated_sums", 5001, 9001, 16, 64, 4),
    "two experts, 100000x64": experts(100000, 64, 32, 4),
    "two experts, 32768x256": experts(32768, 256, 8, 4),
    "window maxima, 4096x8192, 7": maxima(4096, 8192, 7, 1024, 4),
    "window maxima, 1000x10001, 5": maxima(1000, 10001, 5, 1024, 4),
    "GELU, gradients, 2^25": elements("gelu_gradients", 1 << 25, 1024, 4),
    "GELU, gradients, 10000001": elements("gelu_gradients", 10000001, 1024, 4),
    "complex, 2^24": elements("complex_products", 1 << 24, 1024, 4),
    "complex, 5000001": elements("complex_products", 5000001, 512, 4),
    "taken along rows, 50000x1000, 128": along(50000, 1000, 128, 8, 128, 4),
    "taken along rows, 20001x333, 100": along(20001, 333, 100, 4, 128, 4),
    "triangles, 32 of 1024": triangles(32, 1024, 32, 64, 4),
    "triangles, 20 of 777": triangles(20, 777, 16, 128, 4),
    "wide sums, 4096x65536": long_rows("wide_sums", 4096, 65536, 4096, 4),
    "wide sums, 3001x20001": long_rows("wide_sums", 3001, 20001, 2048, 4),
    "counts, 2048x32768": long_rows("running_counts", 2048, 32768, 2048, 4),
    "counts, 999x30001": long_rows("running_counts", 999, 30001, 2048, 8),
    "doubled pixels, 512x512x64": doubled(512, 512, 64, 32, 4),
    "doubled pixels, 301x403x16": doubled(301, 403, 16, 64, 4),
    "transposed bytes, 8192x8192": bytes_transposed(8192, 8192, 64, 64, 4),
    "transposed bytes, 5000x3008": bytes_transposed(5000, 3008, 64, 64, 4),
}  # fmt: skip

element_cases = cases_of(ELEMENTS)
