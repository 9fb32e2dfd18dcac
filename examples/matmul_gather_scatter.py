"""Products of a mixture of experts with the permutations in them, for every matrix unit: rows are read where
they stand, and written where they belong, times a weight.

A list of the rows of all groups, one group behind the other, says where in `a` each row is read
(`sources`), where in `c` its result goes (`targets`) and what it is multiplied with (`weights`); any of
them may be None. With `ids` the places of (token, choice) pairs sorted by expert, the first layer reads
`ids // choices` and the second one writes to `ids`, from where choices are summed.

Groups and tiles are those of `grouped_gemm.py`. Rows that stand anywhere are copied with an address for
each; what is in no group is neither read nor written.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example, main

try:
    from .attention_paged import placed
    from .grouped_gemm import grid
    from .varlen import group_tile_at, groups_of, in_each_warp
except ImportError:  # run as a program
    from attention_paged import placed
    from grouped_gemm import grid
    from varlen import group_tile_at, groups_of, in_each_warp


@gluon.jit
def rows_at(rows, end, places):
    """Where `rows` of the list stand; those from `end` on are another group's."""
    if places is not None:
        rows = gl.load(places + rows, mask=rows < end, other=0)
    return rows


@gluon.jit
def weighted(result, row, end, weights):
    if weights is not None:
        layout: gl.constexpr = gl.SliceLayout(1, result.type.layout)
        rows = row + gl.arange(0, result.shape[0], layout)
        weight = gl.load(weights + rows, mask=rows < end, other=0)
        result = result * weight.to(gl.float32)[:, None]
    return result


@gluon.jit
def copy_step(slots, matrices, places, k, K, N):
    """Start copying a step along K of a tile's rows of A, and of its columns of B."""
    a, b = matrices
    a_at, b_at, there, columns = places
    if k < K:
        k_of_a = k + gl.arange(0, a_at.shape[1], gl.SliceLayout(0, a_at.type.layout))
        k_of_b = k + gl.arange(0, b_at.shape[0], gl.SliceLayout(1, b_at.type.layout))
        gl.portable.async_copy(slots[0], a + k, a_at, there[:, None] & (k_of_a < K)[None, :])
        inside = (k_of_b < K)[:, None] & (columns < N)[None, :]
        gl.portable.async_copy(slots[1], b + k.to(gl.int64) * N, b_at, inside)
    gl.portable.commit()


@gluon.jit
def matmul_gather_scatter(
    a, b, c, starts, counts, sources, targets, weights, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """`a` is [any, K], `b` [groups, K, N], `c` [any, N]; N and K are multiples of 8. `starts` and `counts`
    say where in the lists the groups stand, up to MOST; no two rows have the same target."""
    dtype: gl.constexpr = a.dtype.element_ty
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    of_a: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    of_b: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], dtype)
    of_c: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], dtype)
    flat: gl.constexpr = in_each_warp(MOST, gl.num_warps(), gl.target.warp_size())
    a_slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], layouts.a_shared)
    b_slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K, BLOCK_N], layouts.b_shared)
    K = K // 8 * 8  # what copies of 16 bytes need, said to the compiler
    N = N // 8 * 8
    tiling = groups_of(starts, counts, groups, N, flat, BLOCKS, MOST)
    steps = gl.cdiv(K, BLOCK_K)
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        group, row, column, end = group_tile_at(tile, tiling, N, BLOCKS, GROUP)
        rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, of_a))
        k_of_a = gl.arange(0, BLOCK_K, gl.SliceLayout(0, of_a))
        k_of_b = gl.arange(0, BLOCK_K, gl.SliceLayout(1, of_b))
        columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, of_b))
        a_at = rows_at(rows, end, sources).to(gl.int64)[:, None] * K + k_of_a[None, :]
        b_at = (group.to(gl.int64) * K + k_of_b)[:, None] * N + columns[None, :]
        places = (a_at, b_at, rows < end, columns)
        for i in gl.static_range(STAGES - 1):
            slots = (a_slots.index(i), b_slots.index(i))
            copy_step(slots, (a, b), places, gl.to_tensor(i * BLOCK_K), K, N)
        acc = gl.portable.accumulator(layouts)
        for step in range(steps):
            gl.portable.wait(STAGES - 2)
            gl.portable.fence()
            slot = step % STAGES
            acc = gl.portable.mma(a_slots.index(slot), b_slots.index(slot), acc, is_async=True)
            # The step before is over: its slots are free for what comes next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            slots = (a_slots.index(ahead % STAGES), b_slots.index(ahead % STAGES))
            copy_step(slots, (a, b), places, ahead * BLOCK_K, K, N)
        result = weighted(gl.portable.read(acc), row, end, weights)
        rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, of_c))
        columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, of_c))
        at = rows_at(rows, end, targets).to(gl.int64)[:, None] * N + columns[None, :]
        value = gl.convert_layout(result.to(c.dtype.element_ty), of_c)
        gl.store(c + at, value, mask=(rows < end)[:, None] & (columns < N)[None, :])


def routed(new, counts, tokens, choices):
    """Lists for `tokens` that go to `choices` experts each, so that expert i gets counts[i] of them:
    where each group begins, the places of its (token, choice) pairs, and their weights."""
    counts, draw = np.asarray(counts, np.int64), np.random.default_rng(0)
    if counts.sum() != tokens * choices:
        raise ValueError(f"{counts.sum()} rows in groups; expected {tokens} * {choices}")
    ids = draw.permutation(tokens * choices).astype(np.int32)
    return {
        "starts": placed(new, (np.cumsum(counts) - counts).astype(np.int32)),
        "counts": placed(new, counts.astype(np.int32)),
        "ids": ids,
        "weights": placed(new, draw.random(len(ids)).astype(np.float32)),
    }


def arguments(second):
    """Of a layer that reads tokens where they stand, or, the second one, writes results back."""

    def make(new, large, counts=None, n=None, k=None, choices=2):
        counts = counts or ([8192] * 8 if large else [130, 0, 1, 201])
        n, k = n or (4096 if large else 272), k or (4096 if large else 144)
        rows = sum(counts)
        lists = routed(new, counts, rows // choices, choices)
        ids = lists.pop("ids")
        weights = lists.pop("weights")
        read, kept = rows if second else rows // choices, None
        return {
            "a": new.random((max(read, 1), k), "bfloat16"),
            "b": new.random((len(counts), k, n), "bfloat16"),
            "c": new.empty((max(rows, 1), n), "bfloat16"),
            **lists,
            "sources": kept if second else placed(new, ids // choices),
            "targets": placed(new, ids) if second else kept,
            "weights": weights if second else kept,
            "groups": len(counts),
            "N": n,
            "K": k,
        }

    return make


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4, group=2, most=16):
    m, n, k = block
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**blocks, "STAGES": stages, "GROUP": group, "MOST": most, "num_warps": num_warps}


def large_config(warp_size, block=(128, 128, 32), stages=3, num_warps=8, group=8, most=16):
    return config(warp_size, block, stages, num_warps, group, most)


def choices(target):
    """Where there are 64 KiB of shared memory, results take a half of it on their way to rows."""
    small = target.has("amd.buffer_ops") and not target.has("amd.mfma_scaled")
    return {"stages": 2} if small else {}


def reference(args):
    wanted = args["c"].astype(np.float64)
    for i, (start, count) in enumerate(zip(args["starts"], args["counts"])):
        rows = np.arange(start, start + count)
        read, to = (rows if args[x] is None else args[x][rows] for x in ("sources", "targets"))
        result = args["a"][read].astype(np.float64) @ args["b"][i].astype(np.float64)
        wanted[to] = result if args["weights"] is None else result * args["weights"][rows, None]
    return wanted


def example(name, second, **more):
    return Example(
        name=name,
        arguments=arguments(second),
        grid=more.pop("grid", grid),
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["N"] * args["K"] * int(args["counts"].sum()),
        tolerance=4e-3,
        **more,
    )


def variants(what, **more):
    return [
        example(f"{what}, gathered", False, **more),
        example(f"{what}, scattered", True, **more),
    ]


EXAMPLES = variants(
    "grouped GEMM",
    kernel=matmul_gather_scatter,
    config=config,
    large_config=large_config,
    choices=choices,
)

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
