"""Products of matrices side by side: the kernel of `matmul.py`, on each of them.

The second axis of the grid counts matrices. Few programs for each matrix walk over many tiles of it;
many have one each, which balances better where matrices are small.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main

try:
    from .matmul import choices, config, large_config, matmul
except ImportError:  # run as a program
    from matmul import choices, config, large_config, matmul


@gluon.jit
def matmul_batched(
    a, b, c, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """`a` is [matrices, M, K], `b` [matrices, K, N], `c` [matrices, M, N]."""
    at = gl.program_id(1).to(gl.int64)
    a += at * M * K
    b += at * K * N
    c += at * M * N
    matmul(a, b, c, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP)


def arguments(new, large, sizes=None):
    matrices, m, n, k = sizes or ((64, 1024, 1024, 1024) if large else (3, 72, 80, 104))
    return {
        "a": new.random((matrices, m, k), "bfloat16"),
        "b": new.random((matrices, k, n), "bfloat16"),
        "c": new.empty((matrices, m, n), "bfloat16"),
        "M": m,
        "N": n,
        "K": k,
    }


def grid(args, config, most=None):
    """A program for each tile, or at most so many for each matrix."""
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, most or tiles), args["a"].shape[0])


EXAMPLES = [
    Example(
        name="matmul, batched",
        kernel=matmul_batched,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        reference=lambda args: args["a"].astype(np.float64) @ args["b"].astype(np.float64),
        device_reference=lambda args: args["a"].float() @ args["b"].float(),
        output="c",
        flops=lambda args: 2 * args["a"].shape[0] * args["M"] * args["N"] * args["K"],
        tolerance=4e-3,
    )
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
