"""The cases of benchmarks/layout_free.py: each kernel without layouts, and its rivals."""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import triton
import triton.language as tl
from runs import Runs, Twins, imported, wanted

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
Cases = Iterator[tuple[str, Runs]]
PLACES = 10  # in memory that operands of copies and transposes have in turn: times differ from place to place


@functools.lru_cache(maxsize=None)
def both(file: str, folder: Path) -> tuple[Any, Any]:
    """Return a module of plain Triton, and its port."""
    from gluon_write.porting.port import port

    source = ROOT / "tests" / "write" / "triton_kernels" / f"{file}.py"
    path = folder / f"{file}.py"
    path.write_text(port(source.read_text(), str(source)).text)
    return imported(source, f"plain_{file}"), imported(path, f"ported_{file}")


def in_turn(launch: Callable[..., Any], operands: list[Any]) -> Callable[[], Any]:
    """Return a function that launches with one pair of operands after the other."""
    turns = itertools.cycle(operands)
    return lambda: launch(*next(turns))


def rows_cases(folder: Path, words: list[str]) -> Cases:
    import torch

    import gluon_kernels as kernels

    plain, ported = both("rows", folder)
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.float16)
    w, y = torch.randn(4096, device="cuda", dtype=torch.float16), torch.empty_like(x)
    rstd = torch.empty(8192, device="cuda")
    q = torch.empty(8192, 4096, device="cuda", dtype=torch.int8)  # of both: times differ by 0.5 %

    def softmax(module: Any) -> Callable[[], Any]:
        return lambda: module.softmax_kernel[(8192,)](
            y, x, 4096, 4096, 4096, BLOCK=4096, num_warps=8
        )

    def rms(module: Any) -> Callable[[], Any]:
        return lambda: module.rms_norm_kernel[(8192,)](
            x, w, y, rstd, 4096, 1e-6, BLOCK=4096, num_warps=8
        )

    def layer(module: Any) -> Callable[[], Any]:
        return lambda: module.layer_norm_kernel[(8192,)](
            x, w, w, y, 4096, 1e-5, BLOCK=1024, num_warps=8
        )

    def swiglu(module: Any) -> Callable[[], Any]:
        return lambda: module.swiglu_kernel[(8192,)](x, x, y, 4096, 4096, BLOCK=4096, num_warps=8)

    def scan(module: Any) -> Callable[[], Any]:
        return lambda: module.linear_scan_kernel[(8192,)](x, x, y, 4096, BLOCK=4096, num_warps=8)

    def quantize(module: Any) -> Callable[[], Any]:
        return lambda: module.quantize_kernel[(8192,)](x, q, rstd, 4096, BLOCK=4096, num_warps=8)

    others: dict[str, Runs] = {
        "softmax": {
            "torch": lambda: torch.softmax(x, 1),
            "kernels": lambda: kernels.softmax(x, 1, out=y),
        },
        "rms": {"kernels": lambda: kernels.rms_norm(x, w, 1e-6, out=y)},
        "layer": {"kernels": lambda: kernels.layer_norm(x, w, w, 1e-5, out=y)},
        "swiglu": {"kernels": lambda: kernels.swiglu(x, x)},
    }
    for make in (softmax, rms, layer, swiglu, quantize, scan):
        name = make.__name__
        if wanted(f"rows, {name}", words):
            runs = {"ours": make(ported), "triton": make(plain), **others.get(name, {})}
            yield f"rows, {name}", runs


def stripped_cases(folder: Path, words: list[str]) -> Cases:
    """Yield the kernels over rows of gluon_kernels without their layouts, with the operators' constants."""
    import torch
    from layout_free_stripped import odd_rows_text, rows_text

    import gluon_kernels as kernels
    from gluon_kernels.norm.rows import tiling
    from gluon_kernels.norm.tilings import early, of_bodies, tiling_of, whole_accesses
    from gluon_kernels.norm.views import Rows

    (folder / "rows_stripped.py").write_text(rows_text())
    (folder / "odd_stripped.py").write_text(odd_rows_text())
    even = imported(folder / "rows_stripped.py", "rows_stripped")
    odd = imported(folder / "odd_stripped.py", "odd_stripped")
    half, single = torch.float16, torch.float32
    shapes = ((8192, 4096, half), (8192, 5120, half), (65536, 1000, half), (8192, 3072, single), (2048, 12288, half),
              (16384, 777, single))  # fmt: skip
    for rows, columns, dtype in shapes:
        x = torch.randn(rows, columns, device="cuda", dtype=dtype)
        w, y, size = (
            torch.randn(columns, device="cuda", dtype=dtype),
            torch.empty_like(x),
            x.element_size(),
        )
        align = min(16 // size, columns & -columns)
        whole = whole_accesses(Rows.of(x), Rows.of(y))  # rows begin anywhere
        if whole is None:
            free, tiles = even, tiling(columns, 8 * size, align, 32, rows)
            last: tuple[int, ...] = (
                tiles.align,
                tiles.parts,
                tiles.rows,
                tiles.pieces,
                tiles.width,
            )
            vectors = (early(tiles, Rows.of(x)),)
        else:
            free, tiles = odd, of_bodies(tiling_of(*whole))
            last, vectors = (tiles.align, tiles.parts, tiles.pieces, tiles.width), (True,)
        words_of = {"num_warps": tiles.num_warps}
        sizes, grid = (rows, columns, columns, columns), (tiles.grid(rows),)
        launch = (free, grid, sizes, last, vectors, words_of)

        def softmax(x: Any = x, y: Any = y, launch: Any = launch) -> Any:
            free, grid, sizes, last, _, words_of = launch
            return free.softmax[grid](x, y, None, None, *sizes, *last, **words_of)

        def norm(
            centred: bool,
            x: Any = x,
            y: Any = y,
            w: Any = w,
            launch: Any = launch,
        ) -> Any:
            free, grid, sizes, last, vectors, words_of = launch
            more = (w if centred else None, y, None, None, None, None, None)
            constants = (centred, *last, *vectors)
            return free.norm[grid](x, w, *more, *sizes, 0, 1e-5, *constants, **words_of)

        pairs: dict[str, tuple[Any, Any]] = {
            "softmax": (softmax, lambda x=x, y=y: kernels.softmax(x, 1, out=y)),
            "layer": (lambda norm=norm: norm(True), lambda x=x, w=w, y=y: kernels.layer_norm(x, w, w, 1e-5, out=y)),
            "rms": (lambda norm=norm: norm(False), lambda x=x, w=w, y=y: kernels.rms_norm(x, w, 1e-5, out=y)),
        }  # fmt: skip
        for word, (ours, hand) in pairs.items():
            name = f"stripped, {word}, {rows}x{columns}, {str(dtype).removeprefix('torch.')}"
            if wanted(name, words):
                yield name, {"ours": ours, "kernels": hand}


@triton.jit
def plain_copy(src, dst, rows, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(src + (row * stride)[:, None] + column[None, :], mask=inside)
    tl.store(dst + (row * columns)[:, None] + column[None, :], values, mask=inside)


def move_cases(folder: Path, words: list[str]) -> Cases:
    """Yield copies and transposes, also against the explicit kernels of examples/basics."""
    import torch

    import gluon_core as gluon
    from gluon_core import language as gl

    plain, ported = both("products", folder)
    size, B = 8192, 64
    by_hand = imported(ROOT / "examples" / "basics" / "transpose.py", "transpose_by_hand")
    copied = imported(ROOT / "examples" / "basics" / "copy_2d.py", "copy_by_hand")

    for rows, columns, dtype in (
        (size, size, torch.float32), (size, size, torch.float16), (5000, 7000, torch.float32), (4111, 8200, torch.float16)
    ):  # fmt: skip
        name = f"transpose, {rows}x{columns}, {str(dtype).removeprefix('torch.')}"
        if not wanted(name, words):
            continue
        grid = (-(-rows // B), -(-columns // B))
        operands = [
            (torch.randn(rows, columns, device="cuda").to(dtype),
             torch.empty(columns, rows, device="cuda", dtype=dtype), rows, columns)
            for _ in range(PLACES)
        ]  # fmt: skip

        def transpose(
            kernel: Any, *last: int, operands: Any = operands, grid: Any = grid
        ) -> Callable[[], Any]:
            return in_turn(lambda *sizes: kernel[grid](*sizes, *last, num_warps=8), operands)

        yield (
            name,
            {
                "ours": transpose(ported.transpose_kernel, B),
                "triton": transpose(plain.transpose_kernel, B),
                "kernels": transpose(by_hand.transpose_kernel, B, 32),
            },
        )

    @gluon.jit(layouts="auto")
    def copy(src, dst, rows, columns, stride, ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
        row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
        column = gl.program_id(1) * COLUMNS + gl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        values = gl.load(src + (row * stride)[:, None] + column[None, :], mask=inside)
        gl.store(dst + (row * columns)[:, None] + column[None, :], values, mask=inside)

    for rows, columns, dtype in (
        (size, size, torch.float32), (size, size, torch.float16), (5000, 7000, torch.float32), (4111, 8200, torch.int8)
    ):  # fmt: skip
        name = f"copy, {rows}x{columns}, {str(dtype).removeprefix('torch.')}"
        if not wanted(name, words):
            continue
        grid = (-(-rows // 8), -(-columns // 256))
        sources = [torch.randn(rows, columns, device="cuda").to(dtype) for _ in range(PLACES)]
        operands = [(x, torch.empty_like(x), rows, columns, columns, 8, 256) for x in sources]
        ours, hand = copy[grid], copied.copy_kernel[grid]
        yield (
            name,
            {
                "ours": in_turn(ours, operands),
                "triton": in_turn(plain_copy[grid], operands),
                "kernels": in_turn(lambda *run, hand=hand: hand(*run, 32), operands),
            },
        )


def gemm_cases(folder: Path, words: list[str]) -> Cases:
    """Yield GEMMs by pointers and by descriptors."""
    import torch

    import gluon_kernels as kernels

    gemm, gemm_ported = both("matmul", folder)
    tiles, tiles_ported = both("tiles", folder)
    for size in (2048, 4096, 8192):
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
        c = torch.empty_like(a)

        def pointers(module: Any, a: Any = a, b: Any = b, c: Any = c, size: int = size) -> Any:
            return lambda: module.matmul_kernel[((size // 128) * (size // 256),)](
                a, b, c, size, size, size, size, 1, size, 1, size, 1,
                BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, ACTIVATION="", num_warps=8, num_stages=3,
            )  # fmt: skip

        def by_tiles(
            module: Any, a: Any = a, b: Any = b, c: Any = c, size: int = size, stages: int = 3
        ) -> Any:
            return lambda: module.tile_matmul_kernel[((size // 128) * (size // 256),)](
                a, b, c, size, size, size, 128, 256, 64, 8, num_warps=8, num_stages=stages
            )

        others: Runs = {
            "torch": lambda a=a, b=b, c=c: torch.matmul(a, b, out=c),  # type: ignore[misc]
            "kernels": lambda a=a, b=b, c=c: kernels.matmul(a, b, out=c),  # type: ignore[misc]
        }
        if wanted(f"gemm {size}, tiles", words):
            runs = {"ours": by_tiles(tiles_ported), "triton": by_tiles(tiles)}
            yield f"gemm {size}, tiles", {**runs, **others}
        if wanted(f"gemm {size} in four stages, tiles", words):
            runs = {"ours": by_tiles(tiles_ported, stages=4), "triton": by_tiles(tiles, stages=4)}
            yield f"gemm {size} in four stages, tiles", {**runs, **others}
        if wanted(f"gemm {size}, pointers", words):
            yield (
                f"gemm {size}, pointers",
                {"ours": pointers(gemm_ported), "triton": pointers(gemm), **others},
            )


# Heads, keys, columns of a head, rows and keys of a block, and True with a causal mask: few programs have small blocks.
# Rows of a causal block are a multiple of its keys: the kernel walks over whole blocks of keys before its diagonal.
SHAPES = (
    (32, 256, 64, 64, 128, False), (32, 256, 64, 64, 64, True), (128, 256, 64, 64, 128, False),
    (64, 1024, 64, 128, 64, False), (64, 1024, 64, 128, 64, True), (48, 2500, 64, 128, 64, False),
    (24, 4500, 64, 128, 64, False), (17, 6000, 64, 128, 64, False), (32, 8192, 64, 128, 64, False),
    (32, 8192, 64, 128, 64, True), (40, 2500, 128, 128, 64, False), (40, 2500, 128, 128, 64, True),
)  # fmt: skip


def _shaped(
    plain: Any, ported: Any, heads: int, length: int, head: int, rows: int, columns: int, causal: bool
) -> Runs:  # fmt: skip
    """Return attention by pointers of a shape, and that by hand; all have one result."""
    import torch

    import gluon_kernels as kernels

    *operands, o = (
        torch.randn(heads, length, head, device="cuda", dtype=torch.float16) for _ in range(4)
    )
    batch = [each.unsqueeze(0) for each in operands]

    def run(module: Any) -> Callable[[], Any]:
        return lambda: module.attention_kernel[(-(-length // rows), heads)](
            *operands, o, head**-0.5, length,
            HEAD=head, BLOCK_M=rows, BLOCK_N=columns, CAUSAL=causal, num_warps=4,
        )  # fmt: skip

    by_hand = lambda: kernels.attention(*batch, causal=causal, out=o.unsqueeze(0))  # noqa: E731
    runs = {"ours": run(ported), "triton": run(plain), "kernels": by_hand}
    return Twins(runs, [o], added=False, apart=1e-2)


def attention_cases(folder: Path, words: list[str]) -> Cases:
    """Yield attention by pointers, and by descriptors with heads of 64 and 128."""
    import torch

    import gluon_kernels as kernels

    plain, ported = both("products", folder)
    q, k, v = (torch.randn(64, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    o = torch.empty_like(q)
    batch = [each.unsqueeze(0) for each in (q, k, v)]

    for columns, warps, causal in ((64, 4, False), (128, 4, False), (128, 8, False), (64, 4, True), (128, 8, True)):  # fmt: skip

        def by_pointers(
            module: Any, columns: int = columns, warps: int = warps, causal: bool = causal
        ) -> Callable[[], Any]:
            return lambda: module.attention_kernel[(32, 64)](
                q, k, v, o, 0.125, 4096,
                HEAD=64, BLOCK_M=128, BLOCK_N=columns, CAUSAL=causal, num_warps=warps,
            )  # fmt: skip

        name = f"attention, pointers, {columns} keys, {warps} warps{', causal' if causal else ''}"
        if wanted(name, words):
            by_hand = lambda causal=causal: kernels.attention(  # noqa: E731
                *batch, causal=causal, out=o.unsqueeze(0)
            )
            runs = {"ours": by_pointers(ported), "triton": by_pointers(plain)}
            yield name, {**runs, "kernels": by_hand}
    for heads, length, head, rows, columns, causal in SHAPES:
        shape = (
            f"{heads} of {length}x{head}, blocks of {rows}x{columns}{', causal' if causal else ''}"
        )
        if wanted(f"attention, {shape}", words):
            yield (
                f"attention, {shape}",
                _shaped(plain, ported, heads, length, head, rows, columns, causal),
            )
    tiles, tiles_ported = both("tiles", folder)
    for head, warps, causal in (
        (64, 8, False), (64, 4, False), (64, 4, True), (128, 8, False), (128, 8, True)
    ):  # fmt: skip
        heads = 64 if head == 64 else 32
        x = [
            torch.randn(1, heads, 4096, head, device="cuda", dtype=torch.float16) for _ in range(3)
        ]
        y = torch.empty_like(x[0])

        def by_tiles(
            module: Any,
            x: Any = x,
            y: Any = y,
            head: int = head,
            warps: int = warps,
            causal: bool = causal,
        ) -> Any:
            return lambda: module.tile_attention_kernel[(32, x[0].shape[1])](
                *x, y, head**-0.5, x[0].shape[1], 4096, head, 128, 128, causal,
                num_warps=warps, num_stages=2,
            )  # fmt: skip

        words_of = f"heads of {head}, {warps} warps{', causal' if causal else ''}"
        name = f"attention, tiles, {words_of}"
        if wanted(name, words):
            yield (
                name,
                {
                    "ours": by_tiles(tiles_ported),
                    "triton": by_tiles(tiles),
                    "torch": lambda x=x, causal=causal: (  # type: ignore[misc]
                        torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
                    ),
                    "kernels": lambda x=x, y=y, causal=causal: kernels.attention(  # type: ignore[misc]
                        *x, causal=causal, out=y
                    ),
                },
            )


def block_cases(folder: Path, words: list[str]) -> Cases:
    """Yield kernels with block pointers and with descriptors."""
    import torch

    plain, ported = both("blocks", folder)
    size = 4096
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)

    def product(module: Any) -> Callable[[], Any]:
        return lambda: module.block_matmul_kernel[((size // 128) * (size // 256),)](
            a, b, c, size, size, size, size, 1, size, 1, size, 1, 128, 256, 64, 8,
            num_warps=8, num_stages=3,
        )  # fmt: skip

    def persistent(module: Any) -> Callable[[], Any]:
        return lambda: module.persistent_kernel[(132,)](
            a, b, c, size, size, size, 128, 256, 64, 8, 132, num_warps=8, num_stages=3
        )

    if wanted("gemm, blocks", words):
        yield "gemm, blocks", {"ours": product(ported), "triton": product(plain)}
    if wanted("gemm, persistent", words):
        yield "gemm, persistent", {"ours": persistent(ported), "triton": persistent(plain)}
    q, k, v = (torch.randn(4, 16, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    o, m = torch.empty_like(q), torch.empty(64, 4096, device="cuda")

    def attention(module: Any, stage: int) -> Callable[[], Any]:
        return lambda: module.attention_kernel[(32, 64)](
            q, k, v, 0.125, m, o, *q.stride(), 16, 4096,
            HEAD=64, BLOCK_M=128, BLOCK_N=64, STAGE=stage, num_warps=4,
        )  # fmt: skip

    for stage, word in ((1, "full"), (3, "causal")):
        if wanted(f"attention, blocks, {word}", words):
            runs = {"ours": attention(ported, stage), "triton": attention(plain, stage)}
            yield f"attention, blocks, {word}", runs


CASES = (attention_cases, gemm_cases, rows_cases, stripped_cases, move_cases, block_cases)
