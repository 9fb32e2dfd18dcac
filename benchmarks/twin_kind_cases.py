"""The launches of benchmarks/twin_kinds.py."""

from __future__ import annotations

from typing import Any

from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal

FILE = "twin_kinds"


def group_norm_last(
    batch: int, pixels: int, C: int, groups: int, BP: int, SIZE: int, warps: int
) -> Maker:
    def make() -> Launch:
        x, w, b, y = normal(batch, pixels, C), normal(C), normal(C), empty(batch, pixels, C)
        words = dict(BP=BP, SIZE=SIZE, num_warps=warps)
        args = [x, w, b, y, C, pixels, groups, 1e-5]
        return Launch(FILE, "group_norm_last", (batch * groups,), args, words, [y])

    return make


def depthwise(batch: int, H: int, W: int, C: int, BP: int, BC: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, y = normal(batch, H, W, C), normal(9, C), empty(batch, H, W, C)
        words = dict(BP=BP, BC=BC, num_warps=warps)
        grid = (blocks(H * W, BP), blocks(C, BC), batch)
        return Launch(FILE, "depthwise_convolution", grid, [x, w, y, H, W, C], words, [y])

    return make


def resize(planes: int, H: int, W: int, OH: int, OW: int, BH: int, BW: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(planes, H, W), empty(planes, OH, OW)
        words = dict(BH=BH, BW=BW, num_warps=warps)
        args = [x, y, H, W, OH, OW, H / OH, W / OW]
        grid = (blocks(OH, BH), blocks(OW, BW), planes)
        return Launch(FILE, "resize_bilinear", grid, args, words, [y])

    return make


def down(kernel: str, batch: int, M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    """Return a launch of a kernel over columns: prefix sums or softmaxes."""

    def make() -> Launch:
        x, y = normal(batch, M, N, dtype="float32"), empty(batch, M, N, dtype="float32")
        words = dict(BM=BM, BN=BN, num_warps=warps)
        grid = (blocks(N, BN), batch)
        return Launch(FILE, kernel, grid, [x, y, M, N], words, [y])

    return make


def largest(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, value, index = normal(M, N), empty(M, dtype="float32"), empty(M, dtype="int32")
        words = dict(BLOCK=block, num_warps=warps)
        return Launch(FILE, "largest_of_rows", (M,), [x, value, index, N], words, [value, index])

    return make


def offsets(rows: int, most: int) -> Any:
    """Return where the items of each row begin, and the end of the last."""
    counts = integers(most, rows)
    starts = integers(1, rows + 1)
    if not counts.is_meta:
        starts[1:] = counts.cumsum(0)
    return starts


def items(starts: Any, rows: int, most: int) -> int:
    return rows * most if starts.is_meta else int(starts[-1])


def embedding_bag(bags: int, most: int, table: int, D: int, BK: int, BD: int, warps: int) -> Maker:
    def make() -> Launch:
        starts = offsets(bags, most)
        index, y = integers(table, items(starts, bags, most)), empty(bags, D)
        words = dict(BK=BK, BD=BD, num_warps=warps)
        grid = (bags, blocks(D, BD))
        return Launch(FILE, "embedding_bag", grid, [normal(table, D), index, starts, y, D], words, [y])  # fmt: skip

    return make


def columns(kernel: str, M: int, N: int, parts: int, BM: int, BN: int, warps: int) -> Maker:
    """Return a launch of a kernel that adds up columns."""

    def make() -> Launch:
        x = normal(M, N)
        sums = [empty(N, dtype="float32") for _ in range(1 + (kernel == "batch_statistics"))]
        words = dict(BM=BM, BN=BN, num_warps=warps)
        rows = blocks(blocks(M, parts), BM) * BM
        grid = (blocks(N, BN), parts)
        return Launch(FILE, kernel, grid, [x, *sums, M, N, rows], words, sums, True)

    return make


def rms_quantize(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, r, w, s = normal(M, N), normal(M, N), normal(N), empty(M, N)
        q, scale = empty(M, N, dtype="int8"), empty(M, dtype="float32")
        words = dict(BLOCK=block, num_warps=warps)
        args = [x, r, w, s, q, scale, N, 1e-6]
        return Launch(FILE, "rms_residual_quantize", (M,), args, words, [s, q, scale])

    return make


def smooth(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        loss, lse = (empty(M, dtype="float32") for _ in range(2))
        words = dict(BLOCK=block, num_warps=warps)
        args = [normal(M, N), integers(N, M), loss, lse, N, 0.1]
        return Launch(FILE, "smooth_cross_entropy", (M,), args, words, [loss, lse])

    return make


def outer(M: int, N: int, BM: int, BN: int, warps: int, dtype: str) -> Maker:
    def make() -> Launch:
        a, x, y, out = (
            normal(M, N, dtype=dtype),
            normal(M, dtype=dtype),
            normal(N, dtype=dtype),
            empty(M, N, dtype=dtype),
        )
        words = dict(BM=BM, BN=BN, num_warps=warps)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch(FILE, "outer_update", grid, [a, x, y, out, M, N, 0.5], words, [out])

    return make


def sparse(M: int, most: int, K: int, N: int, BK: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        starts = offsets(M, most)
        count = items(starts, M, most)
        index, value, y = integers(K, count), normal(count), empty(M, N)
        words = dict(BK=BK, BN=BN, num_warps=warps)
        args = [starts, index, value, normal(K, N), y, N]
        return Launch(FILE, "sparse_times_dense", (M, blocks(N, BN)), args, words, [y])

    return make


def nearest(M: int, K: int, D: int, BM: int, BK: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, c = normal(M, D), normal(K, D)
        norm, distance = (c.float() ** 2).sum(1), empty(M, dtype="float32")
        index = empty(M, dtype="int32")
        words = dict(D=D, BM=BM, BK=BK, num_warps=warps, num_stages=stages)
        args = [x, c, norm, distance, index, M, K]
        return Launch(FILE, "nearest_centres", (blocks(M, BM),), args, words, [distance])

    return make


def adam(n: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        p, g, new_p = (normal(n, dtype="bfloat16") for _ in range(3))
        m, v = normal(n, dtype="float32"), normal(n, dtype="float32").abs()
        results = [new_p, empty(n, dtype="float32"), empty(n, dtype="float32")]
        words = dict(BLOCK=block, num_warps=warps)
        args = [p, g, m, v, *results, n, 1e-3, 0.9, 0.99, 1e-8, 0.01]
        return Launch(FILE, "adam", (blocks(n, block),), args, words, results)

    return make


def distances(M: int, N: int, D: int, BM: int, BN: int, BD: int, warps: int) -> Maker:
    def make() -> Launch:
        x, c, y = normal(M, D), normal(N, D), empty(M, N, dtype="float32")
        words = dict(BM=BM, BN=BN, BD=BD, num_warps=warps)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch(FILE, "absolute_distances", grid, [x, c, y, M, N, D], words, [y])

    return make


def channel_norm(batch: int, C: int, pixels: int, BC: int, BP: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, b, y = normal(batch, C, pixels), normal(C), normal(C), empty(batch, C, pixels)
        words = dict(BC=BC, BP=BP, num_warps=warps)
        grid = (blocks(pixels, BP), batch)
        return Launch(FILE, "channel_norm", grid, [x, w, b, y, C, pixels, 1e-5], words, [y])

    return make


KINDS: dict[str, Maker] = {
    "group norm, channels last, 16x4096x320, 32 groups": group_norm_last(16, 4096, 320, 32, 256, 16, 4),
    "group norm, channels last, 20x900x1280, 32 groups": group_norm_last(20, 900, 1280, 32, 128, 64, 8),
    "depthwise, 16x56x56x256": depthwise(16, 56, 56, 256, 32, 64, 4),
    "depthwise, 8x61x47x200": depthwise(8, 61, 47, 200, 32, 64, 4),
    "resize, 64 of 500x700 to 1000x1400": resize(64, 500, 700, 1000, 1400, 16, 128, 4),
    "resize, 48 of 777x1001 to 401x555": resize(48, 777, 1001, 401, 555, 8, 128, 4),
    "sums down, 8192x8192": down("sums_down", 1, 8192, 8192, 64, 32, 4),
    "sums down, 5000x3001": down("sums_down", 1, 5000, 3001, 128, 16, 4),
    "largest of rows, 4096x50264": largest(4096, 50264, 4096, 8),
    "largest of rows, 3000x30001": largest(3000, 30001, 2048, 4),
    "embedding bag, 16384 of up to 60, 128": embedding_bag(16384, 60, 200000, 128, 8, 128, 4),
    "embedding bag, 10001 of up to 100, 300": embedding_bag(10001, 100, 50000, 300, 4, 512, 4),
    "batch statistics, 100352x256": columns("batch_statistics", 100352, 256, 132, 32, 64, 4),
    "batch statistics, 50001x1000": columns("batch_statistics", 50001, 1000, 40, 16, 128, 4),
    "column sums, 65536x1024": columns("column_sums", 65536, 1024, 64, 32, 64, 4),
    "column sums, 30001x777": columns("column_sums", 30001, 777, 50, 32, 64, 4),
    "RMS norm, residual, 8 bits, 16384x4096": rms_quantize(16384, 4096, 4096, 8),
    "RMS norm, residual, 8 bits, 10001x3000": rms_quantize(10001, 3000, 4096, 8),
    "smooth cross entropy, 8192x32000": smooth(8192, 32000, 4096, 8),
    "smooth cross entropy, 5001x50257": smooth(5001, 50257, 4096, 8),
    "outer update, 8192, float16": outer(8192, 8192, 32, 128, 4, "float16"),
    "outer update, 5001x7003, float32": outer(5001, 7003, 16, 256, 4, "float32"),
    "sparse times dense, 20000 of up to 100, 256": sparse(20000, 100, 20000, 256, 16, 128, 4),
    "sparse times dense, 30001 of up to 50, 200": sparse(30001, 50, 10000, 200, 16, 64, 2),
    "nearest of 1024 centres, 200000x64": nearest(200000, 1024, 64, 128, 64, 4, 3),
    "nearest of 1000 centres, 50001x128": nearest(50001, 1000, 128, 128, 64, 8, 3),
    "Adam, 2^25": adam(1 << 25, 1024, 4),
    "Adam, 10000001": adam(10000001, 1024, 4),
    "absolute distances, 2048x2048x256": distances(2048, 2048, 256, 32, 32, 16, 4),
    "absolute distances, 1500x1111x300": distances(1500, 1111, 300, 32, 32, 32, 4),
    "softmax down, 64 of 256x1024": down("softmax_down", 64, 256, 1024, 256, 32, 4),
    "softmax down, 50 of 200x1001": down("softmax_down", 50, 200, 1001, 256, 32, 4),
    "norm of channels, 16x192x3136": channel_norm(16, 192, 3136, 256, 32, 4),
    "norm of channels, 9x96x12321": channel_norm(9, 96, 12321, 128, 64, 4),
}  # fmt: skip

kind_cases = cases_of(KINDS)
