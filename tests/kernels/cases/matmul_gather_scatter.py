"""The cases of `gluon_kernels.moe.gather_scatter`."""

import numpy as np

from gluon_kernels.moe.gather_scatter import matmul_gather_scatter
from gluon_report.example import Example
from tests.kernels.cases.attention_paged import placed
from tests.kernels.cases.grouped_gemm import grid


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
