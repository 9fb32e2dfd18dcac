"""The launches of twin_libraries.py and twin_quantizers.py: each kernel on aligned sizes, and on sizes that are no multiple of its tile."""

from __future__ import annotations

from typing import Any, Callable

from twin_cases import Launch, Maker, blocks, cases_of, empty, integers, normal

QUANTIZERS = frozenset(
    "adam_bytes gate_and_quantize pack_nibbles quantize_rows quantize_tiles round_by_chance words_of_table".split()
)
Operands = tuple[list[Any], list[Any]]


def of(kernel: str, grid: tuple[int, ...], operands: Callable[[], Operands], added: bool = False, **words: Any) -> Maker:  # fmt: skip
    """Return the maker of a launch, whose operands and results a function makes."""

    def make() -> Launch:
        args, results = operands()
        file = "twin_quantizers" if kernel in QUANTIZERS else "twin_libraries"
        return Launch(file, kernel, grid, args, words, results, added)

    return make


def single(*shape: int, scale: float = 1.0) -> Any:
    return normal(*shape, dtype="float32", scale=scale)


def logs(*shape: int) -> Any:
    """Return logs of shares."""
    return normal(*shape).float().log_softmax(-1).half()


def adamw(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        p, g = normal(n, dtype="bfloat16"), normal(n, dtype="bfloat16")
        m, v = single(n), single(n).abs()
        return [p, g, m, v, n, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975], [p, m, v]

    return of("adamw", (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def lion(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        p, m = single(n), single(n)
        return [p, single(n), m, n, 1e-3, 0.9, 0.99, 0.1], [p, m]

    return of("lion", (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def adam_bytes(n: int, groups: int, group: int, warps: int) -> Maker:
    def make() -> Operands:
        p, m = normal(n, dtype="bfloat16"), integers(127, n, dtype="int8")
        scale = single(blocks(n, group)).abs()
        return [p, normal(n, dtype="bfloat16"), m, scale, n, 1e-3, 0.9], [p, m]

    grid = (blocks(n, groups * group),)
    return of("adam_bytes", grid, make, GROUPS=groups, GROUP=group, num_warps=warps)


def by_chance(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(n, dtype="bfloat16")
        return [single(n), y, n, 1234], [y]

    return of("round_by_chance", (blocks(n, 4 * block),), make, BLOCK=block, num_warps=warps)


def halves(T: int, heads: int, padded: int, half: int, warps: int) -> Maker:
    def make() -> Operands:
        y, angle = empty(T, heads, 2 * half), single(T, half)
        return [normal(T, heads, 2 * half), angle.cos(), angle.sin(), y, T], [y]

    return of("rotate_half", (T,), make, HEADS=heads, PADDED=padded, HALF=half, num_warps=warps)


def pairs(T: int, heads: int, D: int, BT: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y, angle = empty(T, heads, D), single(T, D // 2)
        return [normal(T, heads, D), angle.cos(), angle.sin(), y, T, D], [y]

    return of("rotate_pairs", (blocks(T, BT), heads), make, BT=BT, BD=BD, num_warps=warps)


def embedding(n: int, size: int, D: int, BN: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        dw = empty(size, D, dtype="float32")
        return [normal(n, D), integers(size, n, dtype="int64"), dw, n, D], [dw]

    grid = (blocks(n, BN), blocks(D, BD))
    return of("embedding_gradients", grid, make, True, BN=BN, BD=BD, num_warps=warps)


def geglu(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        da, db = empty(M, N, dtype="bfloat16"), empty(M, N, dtype="bfloat16")
        return [*(normal(M, N, dtype="bfloat16") for _ in range(3)), da, db, N], [da, db]

    return of("geglu_gradients", (M,), make, BLOCK=block, num_warps=warps)


def swiglu(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        a, b = normal(n), normal(n)
        return [normal(n), a, b, n], [a, b]

    return of("swiglu_gradients", (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def groups_last(images: int, pixels: int, C: int, groups: int, BC: int, BP: int, warps: int) -> Maker:  # fmt: skip
    def make() -> Operands:
        y = empty(images, pixels, C)
        return [normal(images, pixels, C), normal(C), normal(C), y, pixels, C, 1e-5], [y]

    grid = (images, groups)
    return of("norm_groups_last", grid, make, SIZE=C // groups, BC=BC, BP=BP, num_warps=warps)


def segments(count: int, most: int, D: int, BR: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        starts = integers(most, count + 1).cumsum(0).int()
        y = empty(count, D, dtype="float32")
        return [normal(int(starts[-1]), D), starts, y, D], [y]

    return of("segment_sums", (count, blocks(D, BD)), make, BR=BR, BD=BD, num_warps=warps)


def nucleus(M: int, N: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N, dtype="float32")
        return [normal(M, N, scale=3.0), y, M, 0.9, 0.7], [y]

    return of("nucleus", (M,), make, N=N, num_warps=warps)


def least_share(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N, dtype="float32")
        return [normal(M, N), y, N, 0.05], [y]

    return of("least_share", (M,), make, BLOCK=block, num_warps=warps)


def chosen_logs(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y, entropy = empty(M, dtype="float32"), empty(M, dtype="float32")
        x = normal(M, N, dtype="bfloat16")
        return [x, integers(N, M, dtype="int64"), y, entropy, N], [y, entropy]

    return of("chosen_logs", (M,), make, BLOCK=block, num_warps=warps)


def selective(batch: int, T: int, D: int, BD: int, N: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(batch, T, D)
        x, dt = normal(batch, T, D), normal(batch, T, D) - 3
        b, c = normal(batch, T, N), normal(batch, T, N)
        return [x, dt, -single(D, N).abs(), b, c, y, T, D], [y]

    return of("selective_scan", (blocks(D, BD), batch), make, BD=BD, N=N, num_warps=warps)


def gate_sums(batch: int, T: int, H: int, BT: int, BH: int, warps: int, reverse: bool) -> Maker:
    def make() -> Operands:
        y = empty(batch, T, H, dtype="float32")
        return [normal(batch, T, H), y, T, H], [y]

    grid = (blocks(T, BT), blocks(H, BH), batch)
    return of("gate_sums", grid, make, BT=BT, BH=BH, REVERSE=reverse, num_warps=warps)


def gated(heads: int, T: int, K: int, V: int, BV: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(heads, T, V)
        q, k, v = normal(heads, T, K), normal(heads, T, K), normal(heads, T, V)
        return [q, k, v, -normal(heads, T, K).abs(), y, T], [y]

    return of("gated_recurrence", (V // BV, heads), make, K=K, V=V, BV=BV, num_warps=warps)


def nibbles(M: int, N: int, BM: int, group: int, warps: int) -> Maker:
    def make() -> Operands:
        q = empty(M, N // 2, dtype="uint8")
        scale, zero = (empty(M, N // group, dtype="float32") for _ in range(2))
        return [normal(M, N, dtype="bfloat16"), q, scale, zero, M, N], [q, scale, zero]

    grid = (blocks(M, BM), N // group)
    return of("pack_nibbles", grid, make, BM=BM, GROUP=group, num_warps=warps)


def fp8_rows(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        q, scale = empty(M, N, dtype="float8_e4m3fn"), empty(M, dtype="float32")
        return [normal(M, N, dtype="bfloat16"), q, scale, N], [q, scale]

    return of("quantize_rows", (M,), make, BLOCK=block, num_warps=warps)


def fp8_tiles(M: int, N: int, B: int, warps: int) -> Maker:
    def make() -> Operands:
        q = empty(M, N, dtype="float8_e4m3fn")
        scale = empty(blocks(M, B), blocks(N, B), dtype="float32")
        return [normal(M, N, dtype="bfloat16"), q, scale, M, N], [q, scale]

    return of("quantize_tiles", (blocks(M, B), blocks(N, B)), make, B=B, num_warps=warps)


def fp8_gates(M: int, N: int, group: int, warps: int) -> Maker:
    def make() -> Operands:
        q = empty(M, N, dtype="float8_e4m3fn")
        scale = empty(M, blocks(N, group), dtype="float32")
        return [normal(M, 2 * N, dtype="bfloat16"), q, scale, N], [q, scale]

    return of("gate_and_quantize", (M, blocks(N, group)), make, GROUP=group, num_warps=warps)


def causal(heads: int, T: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(heads, T, T)
        return [normal(heads, T, T), y, T, 0.125], [y]

    return of("causal_softmax", (T, heads), make, BLOCK=block, num_warps=warps)


def dropped(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        total, y = empty(M, N), empty(M, N)
        args = [normal(M, N), normal(N), normal(M, N), normal(N), total, y, N, 0.1, 77, 1e-6]
        return args, [total, y]

    return of("bias_dropout_norm", (M,), make, BLOCK=block, num_warps=warps)


def moments(M: int, C: int, steps: int, BM: int, BC: int, warps: int) -> Maker:
    def make() -> Operands:
        total, squares = empty(C, dtype="float32"), empty(C, dtype="float32")
        return [1 + normal(M, C), total, squares, M, C], [total, squares]

    grid = (blocks(M, steps * BM), blocks(C, BC))
    return of("channel_moments", grid, make, True, STEPS=steps, BM=BM, BC=BC, num_warps=warps)


def divergence(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        loss, dq = empty(M, dtype="float32"), empty(M, N)
        return [logs(M, N), logs(M, N), loss, dq, N, 0.3], [loss, dq]

    return of("divergence", (M,), make, BLOCK=block, num_warps=warps)


def heads(M: int, D: int, rows: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, D, dtype="bfloat16")
        x, w = normal(M, D, dtype="bfloat16"), normal(D, dtype="bfloat16")
        return [x, w, y, M, 1e-6], [y]

    return of("norm_heads", (blocks(M, rows),), make, ROWS=rows, D=D, BD=BD, num_warps=warps)


def lengths(M: int, D: int, rows: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        dx = empty(M, D)
        return [normal(M, D), normal(M, D, scale=D**-0.5), single(M).abs(), dx, M, D], [dx]

    return of("length_gradients", (blocks(M, rows),), make, ROWS=rows, BD=BD, num_warps=warps)


def joined(T: int, D: int, K: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(T, D, dtype="bfloat16")
        return [normal(T, K, D, dtype="bfloat16"), single(T, K), y, T, D], [y]

    return of("join_experts", (T, blocks(D, BD)), make, K=K, BD=BD, num_warps=warps)


def pixels(H: int, W: int, C: int, BW: int, BC: int, warps: int) -> Maker:
    def make() -> Operands:
        high, wide = (H + 1) // 2, (W + 1) // 2
        y = empty(high, wide, C)
        return [normal(H, W, C), y, H, W, C], [y]

    grid = ((H + 1) // 2, blocks((W + 1) // 2, BW), blocks(C, BC))
    return of("largest_pixels", grid, make, BW=BW, BC=BC, num_warps=warps)


def heat(H: int, W: int, BH: int, BW: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(H, W, dtype="float32")
        return [single(H, W), y, H, W, 0.2], [y]

    return of("heat", (blocks(H, BH), blocks(W, BW)), make, BH=BH, BW=BW, num_warps=warps)


def curves(n: int, size: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y, t = empty(n, dtype="float32"), single(n).sigmoid() * (size - 1.01)
        return [t, single(size), y, n, size], [y]

    return of("curves", (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def cache(T: int, slots: int, size: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        keys, values = empty(slots, size), empty(slots, size)
        slot = single(slots).argsort()[:T]
        slot[::7] = -1
        return [normal(T, size), normal(T, size), slot, keys, values], [keys, values]

    return of("write_cache", (T,), make, SIZE=size, BLOCK=block, num_warps=warps)


def table(n: int, group: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(2 * n, dtype="bfloat16")
        q, scale = integers(256, n, dtype="uint8"), single(blocks(2 * n, group)).abs()
        return [q, single(16), scale, y, n], [y]

    words: dict[str, Any] = dict(GROUP=group, BLOCK=block, num_warps=warps)
    return of("words_of_table", (blocks(n, block),), make, **words)


def shifted(batch: int, T: int, D: int, BT: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        r, k = (empty(batch, T, D, dtype="bfloat16") for _ in range(2))
        x = normal(batch, T, D, dtype="bfloat16")
        return [x, single(2, D).sigmoid(), r, k, T, D], [r, k]

    grid = (blocks(T, BT), blocks(D, BD), batch)
    return of("shift_tokens", grid, make, BT=BT, BD=BD, num_warps=warps)


def focal(n: int, block: int, warps: int) -> Maker:
    def make() -> Operands:
        loss, dx = empty(n, dtype="float32"), empty(n)
        return [normal(n), integers(2, n, dtype="int8"), loss, dx, n, 0.25], [loss, dx]

    return of("focal_loss", (blocks(n, block),), make, BLOCK=block, num_warps=warps)


def pooled(batch: int, T: int, D: int, BT: int, BD: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(batch, D, dtype="float32")
        return [normal(batch, T, D), integers(2, batch, T, dtype="int8"), y, T, D], [y]

    return of("pooled_tokens", (batch, blocks(D, BD)), make, BT=BT, BD=BD, num_warps=warps)


def best(M: int, rows: int, E: int, K: int, warps: int) -> Maker:
    def make() -> Operands:
        w, e = empty(M, K, dtype="float32"), empty(M, K, dtype="int32")
        return [single(M, E), w, e, M], [w, e]

    return of("best_experts", (blocks(M, rows),), make, ROWS=rows, E=E, K=K, num_warps=warps)


def factors(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        row, column = empty(M, dtype="float32"), empty(N, dtype="float32")
        return [normal(M, N), row, column, M, N], [row, column]

    grid = (blocks(M, BM), blocks(N, BN))
    return of("factor_means", grid, make, True, BM=BM, BN=BN, num_warps=warps)


def bias_gelu(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Operands:
        y = empty(M, N)
        return [normal(M, N), normal(N), y, M, N], [y]

    return of("bias_gelu", (blocks(M, BM), blocks(N, BN)), make, BM=BM, BN=BN, num_warps=warps)


LIBRARIES: dict[str, Maker] = {
    "AdamW, 2^24": adamw(1 << 24, 1024, 4),
    "AdamW, 5000001": adamw(5000001, 1024, 4),
    "Lion, 2^24": lion(1 << 24, 1024, 4),
    "Lion, 5000003": lion(5000003, 512, 4),
    "momentum in bytes, 2^24": adam_bytes(1 << 24, 8, 256, 4),
    "momentum in bytes, 5000100": adam_bytes(5000100, 16, 128, 4),
    "rounded by chance, 2^24": by_chance(1 << 24, 512, 4),
    "rounded by chance, 10000001": by_chance(10000001, 256, 4),
    "rotated halves, 16384, 32x128": halves(16384, 32, 32, 64, 4),
    "rotated halves, 10001, 12x64": halves(10001, 12, 16, 32, 4),
    "rotated pairs, 16384, 16x128": pairs(16384, 16, 128, 32, 128, 4),
    "rotated pairs, 10001, 12x80": pairs(10001, 12, 80, 16, 128, 4),
    "embedding gradients, 65536x1024": embedding(65536, 32000, 1024, 16, 128, 4),
    "embedding gradients, 30001x300": embedding(30001, 5000, 300, 8, 128, 4),
    "GEGLU gradients, 8192x4096": geglu(8192, 4096, 4096, 8),
    "GEGLU gradients, 6001x2751": geglu(6001, 2751, 4096, 8),
    "SwiGLU gradients, 2^25": swiglu(1 << 25, 1024, 4),
    "SwiGLU gradients, 10000001": swiglu(10000001, 1024, 4),
    "groups last, 32x1024x512, 32": groups_last(32, 1024, 512, 32, 16, 128, 4),
    "groups last, 16x4096x320, 32": groups_last(16, 4096, 320, 32, 16, 128, 4),
    "groups last, 9x1000x960, 8": groups_last(9, 1000, 960, 8, 128, 32, 4),
    "segment sums, 20000 of up to 40, 256": segments(20000, 40, 256, 16, 128, 4),
    "segment sums, 5000 of up to 100, 100": segments(5000, 100, 100, 8, 128, 4),
    "nucleus, 16384x1024": nucleus(16384, 1024, 4),
    "nucleus, 20001x256": nucleus(20001, 256, 2),
    "least share, 2048x32000": least_share(2048, 32000, 4096, 8),
    "least share, 1001x50257": least_share(1001, 50257, 2048, 4),
    "chosen logs, 4096x32000": chosen_logs(4096, 32000, 4096, 8),
    "chosen logs, 2001x50257": chosen_logs(2001, 50257, 2048, 4),
    "selective scan, 8x1024x2048": selective(8, 1024, 2048, 64, 16, 4),
    "selective scan, 5x500x1000": selective(5, 500, 1000, 32, 16, 2),
    "gate sums, 16x4096x64": gate_sums(16, 4096, 64, 64, 32, 4, False),
    "gate sums, 16x4096x64, reverse": gate_sums(16, 4096, 64, 64, 32, 4, True),
    "gate sums, 9x3001x24": gate_sums(9, 3001, 24, 64, 32, 2, False),
    "gated recurrence, 64x512x64": gated(64, 512, 64, 64, 32, 4),
    "gated recurrence, 100x301x32": gated(100, 301, 32, 64, 16, 2),
    "nibbles packed, 8192x4096": nibbles(8192, 4096, 32, 128, 4),
    "nibbles packed, 5001x1504": nibbles(5001, 1504, 64, 32, 4),
    "FP8 rows, 4096x8192": fp8_rows(4096, 8192, 4096, 8),
    "FP8 rows, 6001x3001": fp8_rows(6001, 3001, 1024, 4),
    "FP8 tiles, 8192x8192": fp8_tiles(8192, 8192, 128, 8),
    "FP8 tiles, 3001x5000": fp8_tiles(3001, 5000, 64, 4),
    "FP8 gates, 8192x4096": fp8_gates(8192, 4096, 128, 1),
    "FP8 gates, 5001x2752": fp8_gates(5001, 2752, 256, 2),
    "causal softmax, 64x1024": causal(64, 1024, 1024, 4),
    "causal softmax, 40x777": causal(40, 777, 1024, 4),
    "bias, dropout, norm, 16384x2048": dropped(16384, 2048, 2048, 4),
    "bias, dropout, norm, 10001x1000": dropped(10001, 1000, 1024, 4),
    "channel moments, 100352x256": moments(100352, 256, 16, 32, 64, 4),
    "channel moments, 50001x96": moments(50001, 96, 8, 64, 32, 4),
    "divergence, 2048x32000": divergence(2048, 32000, 4096, 8),
    "divergence, 1001x50257": divergence(1001, 50257, 2048, 4),
    "norm of heads, 262144x128": heads(262144, 128, 16, 128, 4),
    "norm of heads, 200001x80": heads(200001, 80, 16, 128, 4),
    "length gradients, 262144x64": lengths(262144, 64, 32, 64, 4),
    "length gradients, 100001x100": lengths(100001, 100, 16, 128, 4),
    "experts joined, 8192x4096, 8": joined(8192, 4096, 8, 1024, 4),
    "experts joined, 10001x1500, 6": joined(10001, 1500, 6, 512, 4),
    "largest pixels, 1024x1024x64": pixels(1024, 1024, 64, 32, 64, 4),
    "largest pixels, 701x901x48": pixels(701, 901, 48, 32, 64, 4),
    "heat, 8192x8192": heat(8192, 8192, 16, 128, 4),
    "heat, 3001x5003": heat(3001, 5003, 8, 256, 4),
    "curves, 2^24": curves(1 << 24, 1 << 16, 1024, 4),
    "curves, 5000001": curves(5000001, 1000, 512, 4),
    "cache written, 32768x1024": cache(32768, 65536, 1024, 1024, 4),
    "cache written, 20001x576": cache(20001, 30000, 576, 1024, 4),
    "words of a table, 2^24": table(1 << 24, 64, 1024, 4),
    "words of a table, 5000001": table(5000001, 128, 512, 4),
    "tokens shifted, 8x4096x2048": shifted(8, 4096, 2048, 16, 128, 4),
    "tokens shifted, 5x3001x1000": shifted(5, 3001, 1000, 16, 128, 4),
    "focal loss, 2^24": focal(1 << 24, 1024, 4),
    "focal loss, 5000001": focal(5000001, 1024, 4),
    "tokens pooled, 512x512x768": pooled(512, 512, 768, 32, 128, 4),
    "tokens pooled, 300x333x1000": pooled(300, 333, 1000, 16, 128, 4),
    "best experts, 65536x128, 8": best(65536, 16, 128, 8, 4),
    "best experts, 20001x64, 4": best(20001, 32, 64, 4, 4),
    "factors, 8192x8192": factors(8192, 8192, 64, 64, 4),
    "factors, 5001x3003": factors(5001, 3003, 32, 128, 4),
    "bias, GELU, 8192x8192": bias_gelu(8192, 8192, 4, 1024, 4),
    "bias, GELU, 5001x3003": bias_gelu(5001, 3003, 4, 512, 4),
}  # fmt: skip

library_cases = cases_of(LIBRARIES)
