"""The cases of benchmarks/triton_twins.py: launches of kernels of one text, as plain Triton and without layouts."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

from runs import Runs, Twins, imported, wanted

FOLDER = Path(__file__).resolve().parent
NAMED = (
    "twin_attention",
    "twin_kinds",
    "twin_products",
    "twin_rows",
)  # files whose words Gluon has
MARK = '@gluon.jit(layouts="auto")'
DEVICE = "cuda"
IMPORTS = "import gluon_core as gluon\nfrom gluon_core import language as tl\n"


class Launch(NamedTuple):
    """A launch of a kernel.

    Args:
        added: the kernel adds to its results.
        apart: distance of the results of both forms that rounding explains.
    """

    file: str
    kernel: str
    grid: tuple[int, ...]
    args: list[Any]
    words: dict[str, Any]
    results: list[Any]
    added: bool = False
    apart: float = 1e-2


Maker = Callable[[], Launch]
Cases = Callable[[Path, list[str]], Iterator[tuple[str, Runs]]]


def without_layouts(text: str) -> str:
    """Return kernels of plain Triton in Gluon without layouts: the decorator, imports and products have other names."""
    text = text.replace("@triton.jit", MARK).replace("tl.dot(", "tl.portable.mma(")
    return re.sub(r"import triton\nimport triton\.language as tl\n", IMPORTS, text)


def free_text(source: Path) -> str:
    """Return the kernels of a file without layouts."""
    if source.stem in NAMED:
        return without_layouts(source.read_text())
    from gluon_write.porting.port import port

    return port(source.read_text(), str(source)).text


@functools.lru_cache(maxsize=None)
def twins(file: str, folder: Path) -> tuple[Any, Any]:
    """Return a module of plain Triton, and the same text without layouts."""
    source, path = FOLDER / f"{file}.py", folder / f"{file}.py"
    path.write_text(free_text(source))
    return imported(source, f"plain_{file}"), imported(path, f"free_{file}")


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def normal(*shape: int, dtype: str = "float16", scale: float = 1.0) -> Any:
    import torch

    return (torch.randn(*shape, device=DEVICE) * scale).to(getattr(torch, dtype))


def empty(*shape: int, dtype: str = "float16") -> Any:
    import torch

    return torch.empty(*shape, device=DEVICE, dtype=getattr(torch, dtype))


def integers(high: int, *shape: int, dtype: str = "int32") -> Any:
    import torch

    return torch.randint(0, high, shape, device=DEVICE, dtype=getattr(torch, dtype))


def attention(batch: int, heads: int, group: int, length: int, D: int, BM: int, BN: int, warps: int, causal: bool = False,
              window: int = 0, cap: float = 0.0, alibi: bool = False) -> Maker:  # fmt: skip
    def make() -> Launch:
        q, o = normal(batch, heads, length, D), empty(batch, heads, length, D)
        k, v = (normal(batch, heads // group, length, D) for _ in range(2))
        slopes = 2.0 ** -(1.0 + normal(heads, dtype="float32").abs())
        words = dict(HEADS=heads, GROUP=group, D=D, BM=BM, BN=BN, CAUSAL=causal, WINDOW=window, CAP=cap, ALIBI=alibi,
                     num_warps=warps, num_stages=3 if D == 64 else 2)  # fmt: skip
        args = [q, k, v, o, slopes, length, D**-0.5]
        return Launch(
            "twin_attention", "attention", (blocks(length, BM), batch * heads), args, words, [o]
        )

    return make


def attention_gradients(heads: int, length: int, D: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        q, k, v, do = (normal(heads, length, D) for _ in range(4))
        dk, dv = (empty(heads, length, D) for _ in range(2))
        slopes = 2.0 ** -(1.0 + normal(heads, dtype="float32").abs())
        delta = normal(heads, length, dtype="float32")
        lse = normal(heads, length, dtype="float32").abs() + 6.0
        args = [q, k, v, do, lse, delta, slopes, dk, dv, length, D**-0.5]
        words = dict(D=D, BM=BM, BN=BN, num_warps=warps, num_stages=2)
        grid = (blocks(length, BN), heads)
        return Launch("twin_attention", "attention_gradients", grid, args, words, [dk, dv])

    return make


def decode(sequences: int, longest: int, D: int, parts: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        q, (k, v) = normal(sequences, D), (normal(sequences, longest, D) for _ in range(2))
        lengths = integers(longest, sequences) + 1
        part = empty(sequences, parts, D, dtype="float32")
        lse = empty(sequences, parts, dtype="float32")
        args = [q, k, v, lengths, part, lse, longest, D**-0.5]
        words = dict(PARTS=parts, D=D, BN=BN, num_warps=warps)
        return Launch(
            "twin_attention", "decode", (sequences, parts), args, words, [part, lse], apart=1e-4
        )

    return make


def gemm(M: int, N: int, K: int, BM: int, BN: int, BK: int, warps: int, stages: int, full: bool) -> Maker:  # fmt: skip
    def make() -> Launch:
        a, b, bias = normal(M, K), normal(K, N, scale=K**-0.5), normal(N)
        residual, c = normal(M, N) if full else bias, empty(M, N)
        words = dict(BM=BM, BN=BN, BK=BK, GROUP=8, GELU=full, RESIDUAL=full, num_warps=warps,
                     num_stages=stages)  # fmt: skip
        args = [a, b, bias, residual, c, M, N, K, K, N, N]
        return Launch("twin_products", "gemm", (blocks(M, BM) * blocks(N, BN),), args, words, [c])

    return make


def split_k(M: int, N: int, K: int, BM: int, BN: int, BK: int, parts: int, warps: int, stages: int) -> Maker:  # fmt: skip
    def make() -> Launch:
        a, b, c = normal(M, K), normal(K, N, scale=K**-0.5), empty(M, N, dtype="float32")
        words = dict(BM=BM, BN=BN, BK=BK, PARTS=parts, num_warps=warps, num_stages=stages)
        grid = (blocks(M, BM) * blocks(N, BN), parts)
        return Launch("twin_products", "split_k", grid, [a, b, c, M, N, K], words, [c], True)

    return make


def grouped(M: int, N: int, K: int, groups: int, BM: int, BN: int, BK: int, warps: int, stages: int) -> Maker:  # fmt: skip
    def make() -> Launch:
        x, w, y = normal(M, K), normal(groups, N, K, scale=K**-0.5), empty(M, N)
        expert = integers(groups, blocks(M, BM)).sort().values
        words = dict(BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch("twin_products", "grouped", grid, [x, w, expert, y, M, N, K], words, [y])

    return make


def batched(batch: int, M: int, N: int, K: int, BM: int, BN: int, BK: int, warps: int, stages: int) -> Maker:  # fmt: skip
    def make() -> Launch:
        a, b, c = normal(batch, M, K), normal(batch, K, N, scale=K**-0.5), empty(batch, M, N)
        words = dict(BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages)
        grid = (blocks(M, BM), blocks(N, BN), batch)
        return Launch("twin_products", "batched", grid, [a, b, c, M, N, K], words, [c])

    return make


def gated(M: int, N: int, K: int, BM: int, BN: int, BK: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, y = normal(M, K), empty(M, N)
        up, gate = (normal(K, N, scale=K**-0.5) for _ in range(2))
        words = dict(BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch("twin_products", "gated", grid, [x, up, gate, y, M, N, K], words, [y])

    return make


def mlp(M: int, D: int, hidden: int, BM: int, BH: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, y = normal(M, D), empty(M, D)
        first, second = normal(D, hidden, scale=D**-0.5), normal(hidden, D, scale=hidden**-0.5)
        words = dict(D=D, BM=BM, BH=BH, num_warps=warps, num_stages=stages)
        args = [x, first, second, y, M, hidden]
        return Launch("twin_products", "mlp", (blocks(M, BM),), args, words, [y])

    return make


def int4(M: int, N: int, K: int, BM: int, BN: int, BK: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        x, y = normal(M, K), empty(M, N)
        w, scale = integers(2**31 - 1, K // 8, N), normal(K // BK, N, scale=0.01)
        words = dict(BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch("twin_products", "int4", grid, [x, w, scale, y, M, N, K], words, [y])

    return make


def gram(M: int, K: int, BM: int, BK: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        a, c = normal(M, K, scale=K**-0.5), empty(M, M)
        words = dict(BM=BM, BK=BK, num_warps=warps, num_stages=stages)
        return Launch("twin_products", "gram", (blocks(M, BM),) * 2, [a, c, M, K], words, [c])

    return make


def fp8(M: int, N: int, K: int, BM: int, BN: int, BK: int, warps: int, stages: int) -> Maker:
    def make() -> Launch:
        a, b = (normal(size, K, dtype="float8_e4m3fn") for size in (M, N))
        a_scale = normal(M, blocks(K, BK), dtype="float32").abs()
        b_scale = normal(blocks(N, BK), blocks(K, BK), dtype="float32").abs()
        c = empty(M, N, dtype="bfloat16")
        words = dict(BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages)
        args = [a, b, a_scale, b_scale, c, M, N, K]
        return Launch(
            "twin_products", "fp8", (blocks(M, BM), blocks(N, BN)), args, words, [c], apart=2e-2
        )

    return make


def convolution(batch: int, H: int, W: int, C: int, F: int, stride: int, BM: int, BN: int, BK: int, warps: int) -> Maker:  # fmt: skip
    def make() -> Launch:
        OH, OW = (H - 1) // stride + 1, (W - 1) // stride + 1
        x, w = normal(batch, H, W, C), normal(9 * C, F, scale=(9 * C) ** -0.5)
        y = empty(batch, OH, OW, F)
        words = dict(STRIDE=stride, BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=3)
        args = [x, w, y, batch, H, W, C, F, OH, OW]
        grid = (blocks(batch * OH * OW, BM), blocks(F, BN))
        return Launch("twin_products", "convolution", grid, args, words, [y])

    return make


def transposed_copy(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(N, M, dtype="float32"), empty(M, N, dtype="float32")
        words = dict(BM=BM, BN=BN, num_warps=warps)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch("twin_rows", "transposed_copy", grid, [x, y, M, N, 1, M], words, [y])

    return make


def transposed_batches(batch: int, M: int, N: int, B: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(batch, M, N), empty(batch, N, M)
        words = dict(B=B, num_warps=warps)
        grid = (blocks(M, B), blocks(N, B), batch)
        return Launch("twin_rows", "transposed_batches", grid, [x, y, M, N], words, [y])

    return make


def rows_by_index(kernel: str, table: int, M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        added = kernel == "scattered_rows"
        dtype = "float32" if added else "float16"
        x, y = (
            normal(*((M, N) if added else (table, N)), dtype=dtype),
            empty(*((table, N) if added else (M, N)), dtype=dtype),
        )
        words = dict(BM=BM, BN=BN, num_warps=warps)
        grid = (blocks(M, BM), blocks(N, BN))
        return Launch("twin_rows", kernel, grid, [x, integers(table, M), y, M, N], words, [y], added)  # fmt: skip

    return make


def softmax(kernel: str, M: int, N: int, block: int, warps: int, rows: int = 1) -> Maker:
    def make() -> Launch:
        x, y = normal(M, N), empty(M, N)
        words: dict[str, Any] = dict(BLOCK=block, num_warps=warps)
        args, grid = [x, y, N], (blocks(M, rows),)
        if kernel == "masked_softmax":
            words["ROWS"], args = rows, [x, integers(2, M, N, dtype="uint8"), y, M, N, 0.7]
        elif kernel == "softmax_gradients":
            args = [x.softmax(1), normal(M, N), y, N]
        return Launch("twin_rows", kernel, grid, args, words, [y])

    return make


def layer_norm(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, b, y = normal(M, N), normal(N), normal(N), empty(M, N)
        mean, rstd = (empty(M, dtype="float32") for _ in range(2))
        args = [x, w, b, y, mean, rstd, N, 1e-5]
        words = dict(BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "layer_norm", (M,), args, words, [y, rstd])

    return make


def layer_norm_gradients(M: int, N: int, block: int, warps: int, programs: int) -> Maker:
    def make() -> Launch:
        x, dy, w, dx = normal(M, N), normal(M, N), normal(N), empty(M, N)
        mean, rstd = x.float().mean(1), 1 / x.float().std(1)
        sums = [empty(programs, N, dtype="float32") for _ in range(2)]
        args = [x, dy, w, mean, rstd, dx, *sums, M, N]
        words = dict(BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "layer_norm_gradients", (programs,), args, words, [dx, *sums])

    return make


def rms_norm(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, y = normal(M, N, dtype="bfloat16"), normal(N), empty(M, N, dtype="bfloat16")
        words = dict(BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "rms_norm", (M,), [x, w, y, N, 1e-6], words, [y])

    return make


def group_norm(batch: int, C: int, pixels: int, groups: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, b, y = normal(batch, C, pixels), normal(C), normal(C), empty(batch, C, pixels)
        args = [x, w, b, y, C, pixels, groups, 1e-5]
        words = dict(BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "group_norm", (batch * groups,), args, words, [y])

    return make


def matrix_vector(M: int, N: int, BM: int, BN: int, warps: int) -> Maker:
    def make() -> Launch:
        a, x, y = normal(M, N), normal(N), empty(M)
        words = dict(BM=BM, BN=BN, num_warps=warps)
        return Launch("twin_rows", "matrix_vector", (blocks(M, BM),), [a, x, y, M, N], words, [y])

    return make


def recurrence(batch: int, T: int, C: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        decay, x = normal(batch, T, C).sigmoid(), normal(batch, T, C)
        y = empty(batch, T, C)
        words = dict(BLOCK=block, num_warps=warps)
        grid = (blocks(C, block), batch)
        return Launch("twin_rows", "recurrence", grid, [decay, x, y, T, C], words, [y])

    return make


def histogram(n: int, bins: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, counts = integers(bins, n), empty(bins, dtype="int32")
        words = dict(BINS=bins, BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "histogram", (blocks(n, block),), [x, counts, n], words, [counts], True, 0.0)  # fmt: skip

    return make


def gates(M: int, N: int, K: int, rows: int, warps: int) -> Maker:
    def make() -> Launch:
        x, weights = normal(M, N, dtype="float32"), empty(M, K, dtype="float32")
        words = dict(N=N, K=K, ROWS=rows, num_warps=warps)
        args, results = [x, weights, integers(2, M, K), M], [weights]
        return Launch("twin_rows", "gates", (blocks(M, rows),), args, words, [*results, args[2]])

    return make


def cross_entropy(M: int, N: int, block: int, warps: int) -> Maker:
    def make() -> Launch:
        x, loss, dx = normal(M, N), empty(M, dtype="float32"), empty(M, N)
        args = [x, integers(N, M), loss, dx, N, 1.0]
        words = dict(BLOCK=block, num_warps=warps)
        return Launch("twin_rows", "cross_entropy", (M,), args, words, [loss, dx])

    return make


def time_convolution(batch: int, T: int, C: int, BT: int, BC: int, warps: int) -> Maker:
    def make() -> Launch:
        x, w, b, y = normal(batch, T, C), normal(4, C), normal(C), empty(batch, T, C)
        words = dict(BT=BT, BC=BC, WIDTH=4, num_warps=warps)
        grid = (blocks(T, BT), blocks(C, BC), batch)
        return Launch("twin_rows", "time_convolution", grid, [x, w, b, y, T, C], words, [y])

    return make


def rotary(batch: int, T: int, heads: int, D: int, warps: int) -> Maker:
    def make() -> Launch:
        x, y = normal(batch * T, heads, D), empty(batch * T, heads, D)
        cos, sin = (normal(T, D // 2, dtype="float32") for _ in range(2))
        words = dict(HEADS=heads, HALF=D // 2, num_warps=warps)
        return Launch("twin_rows", "rotary", (batch * T,), [x, cos, sin, y, T], words, [y])

    return make


def quantize4(groups: int, group: int, rows: int, warps: int) -> Maker:
    def make() -> Launch:
        x, q = normal(groups, group), empty(groups, group // 2, dtype="uint8")
        scale = empty(groups, dtype="float32")
        words = dict(ROWS=rows, GROUP=group, num_warps=warps)
        args = [x, q, scale, groups]
        return Launch("twin_rows", "quantize4", (blocks(groups, rows),), args, words, [q, scale])

    return make


LAUNCHES: dict[str, Maker] = {
    "attention, 16 heads on 4, 4096x64, causal": attention(4, 16, 4, 4096, 64, 128, 64, 4, True),
    "attention, window of 1000, 4096x128": attention(2, 16, 1, 4096, 128, 128, 64, 8, True, 1000),
    "attention, ALiBi, 2048x64, causal": attention(4, 16, 1, 2048, 64, 128, 64, 4, True, alibi=True),
    "attention, cap of 30, 4000x64": attention(2, 16, 1, 4000, 64, 128, 64, 4, cap=30.0),
    "attention, cap of 50, window of 500, 3001x128": attention(2, 8, 1, 3001, 128, 128, 64, 8, True, 500, 50.0),
    "attention, 8 heads on 2, 777x64": attention(8, 8, 4, 777, 64, 64, 64, 4),
    "attention, gradients of keys and values, ALiBi, 32x2048x64": attention_gradients(32, 2048, 64, 64, 128, 8),
    "attention, gradients of keys and values, ALiBi, 24x1500x128": attention_gradients(24, 1500, 128, 64, 64, 4),
    "decode, 64 up to 8192x128, 8 parts": decode(64, 8192, 128, 8, 64, 4),
    "decode, 100 up to 3000x64, 4 parts": decode(100, 3000, 64, 4, 64, 4),
    "gemm, bias, GELU, residual, 4096x5120x2560": gemm(4096, 5120, 2560, 128, 128, 64, 4, 3, True),
    "gemm, bias, GELU, residual, 4096x5120x2560, wide": gemm(4096, 5120, 2560, 128, 256, 64, 8, 3, True),
    "gemm, bias, 3001x2056x1000": gemm(3001, 2056, 1000, 128, 128, 32, 4, 3, False),
    "gemm, bias, 4096, four buffers": gemm(4096, 4096, 4096, 128, 128, 64, 4, 4, False),
    "gemm, bias, 4096, four buffers, 8 warps": gemm(4096, 4096, 4096, 128, 128, 64, 8, 4, False),
    "gemm, bias, 4096, four buffers, wide": gemm(4096, 4096, 4096, 128, 256, 64, 8, 4, False),
    "gemm, bias, 1500x2600x1032, four buffers": gemm(1500, 2600, 1032, 128, 128, 64, 8, 4, False),
    "split K, 128x4096x16384": split_k(128, 4096, 16384, 128, 128, 64, 4, 4, 4),
    "split K, 100x3000x9000": split_k(100, 3000, 9000, 128, 64, 64, 8, 4, 4),
    "groups of rows, 8192x2048x1024": grouped(8192, 2048, 1024, 8, 128, 128, 64, 4, 3),
    "groups of rows, 5000x1544x904": grouped(5000, 1544, 904, 13, 64, 128, 64, 4, 3),
    "batched, 64 of 512": batched(64, 512, 512, 512, 128, 128, 64, 4, 3),
    "batched, 48 of 300x520x200": batched(48, 300, 520, 200, 64, 128, 32, 4, 3),
    "SwiGLU, 4096x2048x5632": gated(4096, 2048, 5632, 128, 128, 64, 8, 3),
    "SwiGLU, 1100x1528x2056": gated(1100, 1528, 2056, 128, 64, 64, 4, 3),
    "MLP, 65536x128x512": mlp(65536, 128, 512, 128, 64, 4, 2),
    "MLP, 65536x128x512, 8 warps": mlp(65536, 128, 512, 128, 64, 8, 3),
    "MLP, 30000x64x1000": mlp(30000, 64, 1000, 128, 64, 4, 2),
    "int4, 1024x4096x4096": int4(1024, 4096, 4096, 128, 128, 64, 8, 3),
    "int4, 300x2000x3072": int4(300, 2000, 3072, 64, 128, 64, 4, 3),
    "half of A A^T, 4096x2048": gram(4096, 2048, 128, 64, 4, 3),
    "half of A A^T, 3000x1504": gram(3000, 1504, 128, 64, 8, 3),
    "FP8, scales of blocks, 4096": fp8(4096, 4096, 4096, 128, 128, 128, 8, 3),
    "FP8, scales of blocks, 2048x3072x4096": fp8(2048, 3072, 4096, 64, 128, 128, 4, 4),
    "FP8, scales of blocks, 1000x1544x2080": fp8(1000, 1544, 2080, 64, 128, 128, 4, 3),
    "convolution, 32x56x56x64, 128 filters": convolution(32, 56, 56, 64, 128, 1, 128, 128, 64, 8),
    "convolution, 16x28x28x128, 256 filters": convolution(16, 28, 28, 128, 256, 1, 128, 128, 64, 4),
    "convolution, 8x57x57x32, 96 filters, every second pixel": convolution(8, 57, 57, 32, 96, 2, 64, 64, 32, 4),
    "convolution, 16x40x40x48, 64 filters": convolution(16, 40, 40, 48, 64, 1, 128, 64, 32, 4),
    "copy of a transposed view, 8192": transposed_copy(8192, 8192, 64, 64, 8),
    "copy of a transposed view, 5001x3003": transposed_copy(5001, 3003, 64, 64, 4),
    "batches transposed, 64 of 1024": transposed_batches(64, 1024, 1024, 64, 8),
    "batches transposed, 50 of 700x1001": transposed_batches(50, 700, 1001, 64, 4),
    "rows by index, 65536x1024": rows_by_index("gathered_rows", 100000, 65536, 1024, 4, 1024, 4),
    "rows by index, 50001x300": rows_by_index("gathered_rows", 20000, 50001, 300, 8, 512, 4),
    "rows added by index, 32768x1024": rows_by_index("scattered_rows", 8192, 32768, 1024, 4, 1024, 4),
    "softmax by lanes, 4096x50264": softmax("softmax_by_lanes", 4096, 50264, 4096, 8),
    "softmax by lanes, 3000x10001": softmax("softmax_by_lanes", 3000, 10001, 2048, 8),
    "softmax with a mask of bytes, 32768x1000": softmax("masked_softmax", 32768, 1000, 1024, 4, 4),
    "softmax with a mask of bytes, 20000x777": softmax("masked_softmax", 20000, 777, 1024, 4, 1),
    "softmax, gradients, 16384x2048": softmax("softmax_gradients", 16384, 2048, 2048, 4),
    "softmax, gradients, 16384x2001": softmax("softmax_gradients", 16384, 2001, 2048, 4),
    "layer norm, 32768x1024": layer_norm(32768, 1024, 1024, 4),
    "layer norm, 30000x1500": layer_norm(30000, 1500, 2048, 4),
    "layer norm, gradients, 32768x1024": layer_norm_gradients(32768, 1024, 1024, 4, 528),
    "layer norm, gradients, 20000x1500": layer_norm_gradients(20000, 1500, 2048, 8, 264),
    "RMS norm, 8192x8192": rms_norm(8192, 8192, 8192, 8),
    "RMS norm, 9000x5001": rms_norm(9000, 5001, 8192, 8),
    "group norm, 32x512x1024, 32 groups": group_norm(32, 512, 1024, 32, 4096, 8),
    "group norm, 16x96x900, 8 groups": group_norm(16, 96, 900, 8, 2048, 4),
    "matrix times vector, 8192": matrix_vector(8192, 8192, 8, 1024, 4),
    "matrix times vector, 5000x3000": matrix_vector(5000, 3000, 4, 512, 4),
    "recurrence, 4096x8192": recurrence(1, 4096, 8192, 64, 1),
    "recurrence, 8 of 1000x1500": recurrence(8, 1000, 1500, 128, 2),
    "histogram, 2^26": histogram(1 << 26, 256, 4096, 4),
    "histogram, 5000001, 64 bins": histogram(5000001, 64, 2048, 4),
    "gates, 8 of 128": gates(32768, 128, 8, 16, 4),
    "gates, 2 of 64": gates(20001, 64, 2, 32, 4),
    "cross entropy, 8192x32000": cross_entropy(8192, 32000, 4096, 8),
    "cross entropy, 5000x30522": cross_entropy(5000, 30522, 4096, 8),
    "convolution along time, 8x4096x2048": time_convolution(8, 4096, 2048, 64, 64, 4),
    "convolution along time, 5x3001x1000": time_convolution(5, 3001, 1000, 64, 64, 4),
    "rotary, 8x2048x32x128": rotary(8, 2048, 32, 128, 4),
    "4-bit quantization, 262144x128": quantize4(262144, 128, 32, 4),
    "4-bit quantization, 100001x64": quantize4(100001, 64, 32, 4),
}  # fmt: skip


def cases_of(launches: dict[str, Maker]) -> Cases:
    """Return the function that yields both forms of each launch."""

    def cases(folder: Path, words: list[str]) -> Iterator[tuple[str, Runs]]:
        for name, make in launches.items():
            if wanted(name, words):
                launch = make()
                plain, free = (getattr(form, launch.kernel) for form in twins(launch.file, folder))
                runs = {
                    "ours": functools.partial(free[launch.grid], *launch.args, **launch.words),
                    "triton": functools.partial(plain[launch.grid], *launch.args, **launch.words),
                }
                yield name, Twins(runs, launch.results, launch.added, launch.apart)

    return cases


twin_cases = cases_of(LAUNCHES)
