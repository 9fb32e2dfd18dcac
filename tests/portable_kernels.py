"""Kernels on `gl.portable` that the tests of every vendor compile and run."""

from __future__ import annotations

import functools

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.frontend import trace
from gluon_core.registry import load as plugins

NUMBERS = {
    "fp16": (gl.float16, gl.float32),
    "bf16": (gl.bfloat16, gl.float32),
    "fp32": (gl.float32, gl.float32),
    "i8": (gl.int8, gl.int32),
    "fp8e4nv": (gl.float8e4nv, gl.float32),
    "fp8e5": (gl.float8e5, gl.float32),
    "fp8e4b8": (gl.float8e4b8, gl.float32),
}


@gluon.jit
def one_tile(
    a,
    b,
    c,
    n,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    dtype: gl.constexpr,
    acc_dtype: gl.constexpr,
):
    """c += a @ b for one (M, K) by (K, N) tile; elements of `a` from `n` on count as 0."""
    layouts: gl.constexpr = gl.portable.mma_layouts(M, N, K, dtype, dtype)
    a_in: gl.constexpr = gl.portable.blocked_layout([M, K], dtype)
    b_in: gl.constexpr = gl.portable.blocked_layout([K, N], dtype)
    a_rows = gl.arange(0, M, gl.SliceLayout(1, a_in))
    a_columns = gl.arange(0, K, gl.SliceLayout(0, a_in))
    b_rows = gl.arange(0, K, gl.SliceLayout(1, b_in))
    b_columns = gl.arange(0, N, gl.SliceLayout(0, b_in))
    a_at = a_rows[:, None] * K + a_columns[None, :]
    b_at = b_rows[:, None] * N + b_columns[None, :]
    a_smem = gl.allocate_shared_memory(dtype, [M, K], layouts.a_shared)
    b_smem = gl.allocate_shared_memory(dtype, [K, N], layouts.b_shared)
    gl.portable.async_copy(a_smem, a, a_at, a_at < n)
    gl.portable.async_copy(b_smem, b, b_at)
    gl.portable.commit()
    gl.portable.wait(0)
    acc = gl.zeros([M, N], acc_dtype, layouts.accumulator)
    acc = gl.portable.mma(a_smem.load(layouts.a), b_smem.load(layouts.b), acc)
    rows = gl.arange(0, M, gl.SliceLayout(1, layouts.accumulator))
    columns = gl.arange(0, N, gl.SliceLayout(0, layouts.accumulator))
    c_at = rows[:, None] * N + columns[None, :]
    gl.portable.store(c, c_at, acc + gl.portable.load(c, c_at))


@gluon.jit
def products(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    PENDING: gl.constexpr,
    PRECISION: gl.constexpr,
):
    """One program for each tile of the result; `b` is (N, K) if B_TRANSPOSED."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        dtype,
        dtype,
        input_precision=PRECISION,
        operands="shared",
        b_transposed=B_TRANSPOSED,
    )
    row = gl.program_id(0) * BLOCK_M
    column = gl.program_id(1) * BLOCK_N
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    if B_TRANSPOSED:
        b_tiles = gl.portable.descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K], layouts.b_shared)
    else:
        b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])
    tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    steps = gl.cdiv(K, BLOCK_K)
    for i in gl.static_range(STAGES - 1):
        k = i * BLOCK_K
        if B_TRANSPOSED:
            tiles.fetch(i, [[row, k], [column, k]], pred=i < steps)
        else:
            tiles.fetch(i, [[row, k], [k, column]], pred=i < steps)
    acc = gl.portable.accumulator(layouts)
    for step in range(steps):
        a_tile, b_tile = tiles.wait(step)
        if B_TRANSPOSED:
            b_tile = b_tile.permute((1, 0))
        acc = gl.portable.mma(a_tile, b_tile, acc, input_precision=PRECISION, is_async=PENDING > 0)
        acc = gl.portable.mma_wait(acc, pending=PENDING)
        ahead = step + STAGES - 1
        next_k = ahead * BLOCK_K
        if B_TRANSPOSED:
            tiles.fetch(ahead, [[row, next_k], [column, next_k]], pred=ahead < steps)
        else:
            tiles.fetch(ahead, [[row, next_k], [next_k, column]], pred=ahead < steps)
    result = gl.portable.read(acc)
    tiles.close()
    gl.portable.store(c_tiles, [row, column], result)


def _arguments(dtype, shape):
    operand, accumulator = NUMBERS[dtype]
    return dict(zip("MNK", shape), dtype=operand, acc_dtype=accumulator)


def selections(target, dtype="fp16", shape=(64, 64, 32), num_warps=4):
    """op -> name of the lowering that `one_tile` takes on `target`, and all selections."""
    constants = _arguments(dtype, shape)
    signature = _signature(dtype, constants)
    registry = plugins.registry()
    resolved = registry.target(target)
    backend = registry.backend(resolved.backend)
    record = []
    trace(
        one_tile,
        signature,
        {(4 + i,): value for i, value in enumerate(constants.values())},
        {},
        backend=backend,
        target=resolved,
        options=backend.compiler.options(resolved, {"num_warps": num_warps}),
        on_session=lambda session: record.extend(session.selections),
    )
    return {s.op: s.chosen.name for s in record}, record


def _signature(dtype, constants):
    wide = "*i32" if dtype == "i8" else "*fp32"
    types = {"a": f"*{dtype}", "b": f"*{dtype}", "c": wide, "n": "i32"}
    return {**types, **dict.fromkeys(constants, "constexpr")}


@functools.lru_cache(maxsize=None)
def compiled(target, dtype="fp16", shape=(64, 64, 32), num_warps=4, aligned=True):
    """`one_tile` compiled for `target`; `aligned` says that all arguments are divisible by 16."""
    constants = _arguments(dtype, shape)
    return gluon.compile(
        one_tile,
        target=target,
        signature=_signature(dtype, constants),
        constexprs=constants,
        attrs=dict.fromkeys("abcn", 16) if aligned else None,
        num_warps=num_warps,
    )


def check(target, dtype="fp16", shape=(64, 64, 32), num_warps=4):
    """Run `one_tile` on `target`, a simulated one, and compare with NumPy."""
    import ml_dtypes
    import numpy as np

    kinds = {
        "fp16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "fp32": np.float32,
        "fp8e4nv": ml_dtypes.float8_e4m3fn,
        "fp8e5": ml_dtypes.float8_e5m2,
        "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    }
    m, n, k = shape
    rng = np.random.default_rng(0)
    if dtype == "i8":
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
        c = np.full((m, n), 3, np.int32)
        wide = np.int32
    else:
        a, b = (rng.standard_normal(s).astype(kinds[dtype]) for s in ((m, k), (k, n)))
        c = np.full((m, n), 3, np.float32)
        wide = np.float64
    limit = m * k - k - 5
    cut = a.reshape(-1).copy()
    cut[limit:] = 0
    expected = cut.reshape(m, k).astype(wide) @ b.astype(wide) + 3
    constants = _arguments(dtype, shape)
    one_tile[(1,)](a, b, c, limit, **constants, num_warps=num_warps, target=target)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-4)


TILES = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": 32,
    "STAGES": 3,
    "B_TRANSPOSED": False,
    "PENDING": 1,
    "PRECISION": None,
}


def tiles_compiled(target, dtype="fp16", num_warps=4, **constants):
    """`products` compiled for `target`; `constants` are some of `TILES`."""
    return gluon.compile(
        products,
        target=target,
        signature=_tiles_signature(dtype),
        constexprs={**TILES, **constants},
        attrs=dict.fromkeys(["a", "b", "c", "M", "N", "K"], 16),
        num_warps=num_warps,
    )


def _tiles_signature(dtype):
    out = "*i32" if dtype == "i8" else "*fp32"
    types = {"a": f"*{dtype}", "b": f"*{dtype}", "c": out, "M": "i32", "N": "i32", "K": "i32"}
    return {**types, **dict.fromkeys(TILES, "constexpr")}


def tiles_selections(target, dtype="fp16", num_warps=4, aligned=range(6), **constants):
    """Return op -> name of the lowering that `products` takes on `target`, and all selections.

    `aligned` are the numbers of the arguments that are divisible by 16.
    """
    registered = plugins.registry()
    resolved = registered.target(target)
    backend = registered.backend(resolved.backend)
    record = []
    trace(
        products,
        _tiles_signature(dtype),
        {(6 + i,): value for i, value in enumerate({**TILES, **constants}.values())},
        {(i,): [["tt.divisibility", 16]] for i in aligned},
        backend=backend,
        target=resolved,
        options=backend.compiler.options(resolved, {"num_warps": num_warps}),
        on_session=lambda session: record.extend(session.selections),
    )
    return {s.op: s.chosen.name for s in record}, record
