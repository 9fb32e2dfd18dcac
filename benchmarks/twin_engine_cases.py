"""The launches of twin_engines.py: each kernel on aligned sizes, and on sizes that are no multiple of its tile."""

from __future__ import annotations

from typing import Any, Callable

from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal

Operands = tuple[list[Any], list[Any]]


def of(kernel: str, grid: tuple[int, ...], operands: Callable[[], Operands], added: bool = False, **words: Any) -> Maker:  # fmt: skip
    """Return the maker of a launch, whose operands and results a function makes."""

    def make() -> Launch:
        args, results = operands()
        return Launch("twin_engines", kernel, grid, args, words, results, added)

    return make


def single(*shape: int, scale: float = 1.0) -> Any:
    return normal(*shape, dtype="float32", scale=scale)


def singles(*shape: int) -> Any:
    return empty(*shape, dtype="float32")


def sort_pairs(M: int, rows: int, N: int, warps: int) -> Maker:
    def make() -> Operands:
        y, place = singles(M, N), empty(M, N, dtype="int32")
        return [single(M, N), y, place, M], [y, place]

    return of("sort_with_places", (blocks(M, rows),), make, ROWS=rows, N=N, num_warps=warps)


def row_counts(M: int, N: int, bins: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        count = empty(M, bins, dtype="int32")
        return [integers(bins, M, N), count, N], [count]

    return of("count_rows", (M,), make, BINS=bins, BLOCK=block, num_warps=warps)


def group_gradients(images: int, pixels: int, C: int, groups: int, BC: int, BP: int, warps: int) -> Maker:  # fmt: skip
    def make() -> Operands:
        dx = empty(images, pixels, C)
        x, dy = normal(images, pixels, C), normal(images, pixels, C)
        mean, rstd = single(images, groups, scale=0.1), single(images, groups).abs()
        return [x, dy, normal(C), mean, rstd, dx, pixels, C], [dx]

    words: dict[str, Any] = dict(SIZE=C // groups, BC=BC, BP=BP, num_warps=warps)
    return of("groups_last_gradients", (images, groups), make, **words)


def gated(M: int, N: int, group: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y, rstd = empty(M, N, dtype="bfloat16"), singles(M, N // group)
        x, z = normal(M, N, dtype="bfloat16"), normal(M, N, dtype="bfloat16")
        return [x, z, single(N), y, rstd, N, 1e-5], [y, rstd]

    return of("gated_norm", (M, N // group), make, GROUP=group, BLOCK=block, num_warps=warps)


def rotate_part(T: int, heads: int, keys: int, D: int, half: int, padded: int, warps: int) -> Maker:
    def make() -> Operands:
        y, z = empty(T, heads, D).zero_(), empty(T, keys, D).zero_()
        args = [normal(T, heads, D), normal(T, keys, D), integers(4096, T, dtype="int64")]
        return [*args, normal(4096, 2 * half), y, z], [y, z]

    words: dict[str, Any] = dict(HEADS=heads, KEYS=keys, D=D, HALF=half, PADDED=padded)
    return of("rotate_part", (T,), make, **words, num_warps=warps)


def permuted(M: int, rows: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        q, scale = empty(M, N, dtype="int8"), singles(M)
        return [normal(rows, N, dtype="bfloat16"), integers(rows, M), q, scale, N], [q, scale]

    return of("permuted_bytes", (M,), make, BLOCK=block, num_warps=warps)


def merged(T: int, heads: int, D: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y, log = empty(T, heads, D), singles(T, heads)
        a, b = normal(T, heads, D), normal(T, heads, D)
        return [a, single(T, heads), b, single(T, heads), y, log], [y, log]

    return of("merge_parts", (T, heads), make, D=D, BD=BD, num_warps=warps)


def penalties(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = singles(M, N)
        count, seen = integers(3, M, N) // 2, integers(2, M, N, dtype="int8")
        return [normal(M, N), count, seen, single(M, 3).abs() + 0.5, y, N], [y]

    return of("penalize", (M, blocks(N, block)), make, BLOCK=block, num_warps=warps)


def largest(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N)
        return [normal(M, N), y, N], [y]

    return of("running_largest", (M,), make, BLOCK=block, num_warps=warps)


def both(M: int, N: int, B: int, warps: int) -> Maker:
    def make() -> Operands:
        kind = "float8_e4m3fn"
        q, t = empty(M, N, dtype=kind), empty(N, M, dtype=kind)
        down, right = singles(blocks(N, B), M), singles(blocks(M, B), N)
        return [normal(M, N, dtype="bfloat16"), q, down, t, right, M, N], [q, down, t, right]

    grid = (blocks(M, B), blocks(N, B))
    return of("quantize_both_ways", grid, make, B=B, num_warps=warps)


def momentum(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        u, square = empty(n, dtype="bfloat16"), singles(1)
        m = single(n)
        return [normal(n, dtype="bfloat16"), m, u, square, n, 0.95], [m, u, square]

    grid = (blocks(n, block),)
    return of("momentum_and_length", grid, make, True, BLOCK=block, num_warps=warps)


def sampled(H: int, W: int, C: int, points: int, BP: int, BC: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(points, C)
        return [normal(H, W, C), single(points, 2).tanh(), y, H, W, C, points], [y]

    grid = (blocks(points, BP), blocks(C, BC))
    return of("sample_pixels", grid, make, BP=BP, BC=BC, num_warps=warps)


def overlaps(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        y = singles(M, N)
        a, b = single(M, 4).abs().cumsum(1), single(N, 4).abs().cumsum(1)
        return [a, b, y, M, N], [y]

    return of("overlaps", (blocks(M, BM), blocks(N, BN)), make, BM=BM, BN=BN, num_warps=warps)


def distances(M: int, N: int, D: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        y = singles(M, N)
        return [single(M, D), single(N, D), y, M, N, D], [y]

    return of("distances", (blocks(M, BM), blocks(N, BN)), make, BM=BM, BN=BN, num_warps=warps)


def cut(M: int, N: int, K: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = singles(M, N)
        return [normal(M, N), y, N, K], [y]

    return of("cut_below", (M,), make, BLOCK=block, num_warps=warps)


def classes(M: int, C: int, rows: int, BC: int, warps: int) -> Maker:
    def make() -> Operands:
        loss, dx = singles(M), empty(M, C)
        label = integers(C, M, dtype="int64")
        label[::9] = -100
        return [normal(M, C), label, loss, dx, M, C], [loss, dx]

    return of("class_gradients", (blocks(M, rows),), make, ROWS=rows, BC=BC, num_warps=warps)


def mask_blocks(T: int, S: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        shape = blocks(T, BM), blocks(S, BN)
        some, whole = empty(*shape, dtype="int8"), empty(*shape, dtype="int8")
        mask = integers(2, T, S, dtype="int8")
        mask[: T // 2, : S // 2] = 1
        return [mask, some, whole, T, S], [some, whole]

    return of("mask_blocks", (blocks(T, BM), blocks(S, BN)), make, BM=BM, BN=BN, num_warps=warps)


def complex_states(batch: int, T: int, D: int, BT: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(batch, T, D)
        angle, size = single(D), single(D).sigmoid()
        args = [size * angle.cos(), size * angle.sin(), normal(batch, T, D), y, T, D]
        return args, [y]

    grid = (blocks(D, BD), batch)
    return of("complex_recurrence", grid, make, BT=BT, BD=BD, num_warps=warps)


def ternary(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        q, scale = empty(M, N // 4, dtype="uint8"), singles(M)
        return [normal(M, N, dtype="bfloat16"), q, scale, M, N], [q, scale]

    return of("pack_ternary", (blocks(M, BM),), make, BM=BM, BN=BN, num_warps=warps)


def ternary_read(M: int, N: int, BM: int, BW: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N, dtype="bfloat16")
        return [integers(256, M, N // 4, dtype="uint8"), single(M), y, M, N], [y]

    grid = (blocks(M, BM), blocks(N // 4, BW))
    return of("unpack_ternary", grid, make, BM=BM, BW=BW, num_warps=warps)


def tile_weights(M: int, N: int, B: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N, dtype="bfloat16")
        q = normal(M, N, dtype="float8_e4m3fn")
        return [q, single(blocks(M, B), blocks(N, B)), y, M, N], [y]

    grid = (blocks(M, B), blocks(N, B))
    return of("weights_of_tiles", grid, make, B=B, num_warps=warps)


def norm_bytes(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        q, scale = empty(M, N, dtype="int8"), singles(M)
        x, r, w = normal(M, N), normal(M, N), normal(N)
        return [x, r, w, q, scale, N, 1e-6], [r, q, scale]  # the sum takes the residual's place

    return of("norm_to_bytes", (M,), make, BLOCK=block, num_warps=warps)


def gate_halves(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N)
        return [normal(M, 2 * N), y, M * N, N], [y]

    return of("gate_halves", (blocks(M * N, block),), make, BLOCK=block, num_warps=warps)


def windows(C: int, H: int, W: int, K: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        n = H * W * C * K * K
        y = empty(n)
        return [normal(C, H, W), y, n, C, H, W], [y]

    words: dict[str, Any] = dict(K=K, BLOCK=block, num_warps=warps)
    return of("windows", (blocks(H * W * C * K * K, block),), make, **words)


def rolled(H: int, W: int, C: int, BW: int, BC: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(H, W, C)
        return [normal(H, W, C), y, H, W, C, 3, 5], [y]

    return of("rolled", (H, blocks(W, BW), blocks(C, BC)), make, BW=BW, BC=BC, num_warps=warps)


def decays(T: int, H: int, BT: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(blocks(T, BT), H, BT, BT)
        return [-single(T, H).abs(), y, T, H], [y]

    return of("decays", (blocks(T, BT), H), make, BT=BT, num_warps=warps)


ENGINES: dict[str, Maker] = {
    "sorted with places, 16384x512": sort_pairs(16384, 2, 512, 4),
    "sorted with places, 20001x128": sort_pairs(20001, 4, 128, 4),
    "rows counted, 4096x8192, 256": row_counts(4096, 8192, 256, 1024, 4),
    "rows counted, 3001x5003, 64": row_counts(3001, 5003, 64, 512, 4),
    "groups last, gradients, 32x1024x512, 32": group_gradients(32, 1024, 512, 32, 16, 128, 4),
    "groups last, gradients, 16x4096x320, 32": group_gradients(16, 4096, 320, 32, 16, 128, 4),
    "gated norm, 16384x4096, 1024": gated(16384, 4096, 1024, 1024, 4),
    "gated norm, 10001x2400, 600": gated(10001, 2400, 600, 1024, 2),
    "part rotated, 16384, 32 on 8, 128": rotate_part(16384, 32, 8, 128, 32, 32, 4),
    "part rotated, 10001, 12 on 4, 96": rotate_part(10001, 12, 4, 96, 16, 16, 2),
    "permuted bytes, 32768x2048": permuted(32768, 8192, 2048, 2048, 4),
    "permuted bytes, 20001x1500": permuted(20001, 5000, 1500, 2048, 4),
    "parts merged, 16384x32x128": merged(16384, 32, 128, 128, 1),
    "parts merged, 10001x12x80": merged(10001, 12, 80, 128, 1),
    "penalties, 512x128256": penalties(512, 128256, 1024, 4),
    "penalties, 201x50257": penalties(201, 50257, 1024, 4),
    "running largest, 4096x16384": largest(4096, 16384, 2048, 4),
    "running largest, 2001x10001": largest(2001, 10001, 1024, 4),
    "quantized both ways, 8192x8192": both(8192, 8192, 128, 8),
    "quantized both ways, 3008x5008": both(3008, 5008, 64, 4),
    "momentum and length, 2^24": momentum(1 << 24, 1024, 4),
    "momentum and length, 5000001": momentum(5000001, 1024, 4),
    "pixels sampled, 512x512x64, 2^18": sampled(512, 512, 64, 1 << 18, 32, 64, 4),
    "pixels sampled, 301x403x48, 100001": sampled(301, 403, 48, 100001, 32, 64, 4),
    "overlaps, 8192x8192": overlaps(8192, 8192, 32, 128, 4),
    "overlaps, 5001x3003": overlaps(5001, 3003, 32, 64, 4),
    "distances, 2048x2048x64": distances(2048, 2048, 64, 64, 64, 4),
    "distances, 1501x2001x50": distances(1501, 2001, 50, 32, 64, 4),
    "cut below, 8192x4096, 50": cut(8192, 4096, 50, 4096, 8),
    "cut below, 10001x1500, 20": cut(10001, 1500, 20, 2048, 4),
    "few classes, 262144x128": classes(262144, 128, 16, 128, 4),
    "few classes, 200001x10": classes(200001, 10, 64, 16, 4),
    "blocks of a mask, 8192x8192": mask_blocks(8192, 8192, 128, 128, 4),
    "blocks of a mask, 5001x3003": mask_blocks(5001, 3003, 64, 64, 4),
    "complex states, 64x128x512": complex_states(64, 128, 512, 128, 32, 4),
    "complex states, 50x100x300": complex_states(50, 100, 300, 128, 16, 4),
    "ternary packed, 16384x2048": ternary(16384, 2048, 2, 2048, 4),
    "ternary packed, 10001x1000": ternary(10001, 1000, 4, 1024, 4),
    "ternary read, 8192x8192": ternary_read(8192, 8192, 16, 64, 4),
    "ternary read, 5001x3004": ternary_read(5001, 3004, 16, 64, 4),
    "weights of tiles, 8192x8192": tile_weights(8192, 8192, 128, 8),
    "weights of tiles, 3001x5000": tile_weights(3001, 5000, 64, 4),
    "norm to bytes, 4096x8192": norm_bytes(4096, 8192, 4096, 8),
    "norm to bytes, 3001x5003": norm_bytes(3001, 5003, 1024, 4),
    "halves gated, 8192x4096": gate_halves(8192, 4096, 1024, 4),
    "halves gated, 5001x3003": gate_halves(5001, 3003, 1024, 4),
    "windows, 64x256x256, 3": windows(64, 256, 256, 3, 1024, 4),
    "windows, 30x101x203, 5": windows(30, 101, 203, 5, 512, 4),
    "rolled, 1024x1024x96": rolled(1024, 1024, 96, 32, 128, 4),
    "rolled, 501x703x48": rolled(501, 703, 48, 32, 64, 4),
    "decays, 65536x32": decays(65536, 32, 64, 4),
    "decays, 30001x12": decays(30001, 12, 64, 4),
}  # fmt: skip

engine_cases = cases_of(ENGINES)
