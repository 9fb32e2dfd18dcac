"""Parts that examples of matrix multiplication share: C = A B, with A [M, K], B [K, N] and C [M, N]."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

__all__ = ["GEMM", "GEMM_TRANSPOSED", "flops", "matrices", "tiles"]


def matrices(
    new: Any, sizes: tuple[int, int, int], dtype: str = "bfloat16", *, out: str = "",
    transposed: bool = False, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of a kernel.

    Args:
        new: an `Arrays` or `Placeholders`.
        sizes: M, N and K.
        dtype: of A and B.
        out: the dtype of C, where it differs.
        transposed: B is [N, K].
        more: further arguments, between C and M.
    """
    m, n, k = sizes
    return {
        "a": new.random((m, k), dtype),
        "b": new.random((n, k) if transposed else (k, n), dtype),
        "c": new.empty((m, n), out or dtype),
        **more,
        "M": m,
        "N": n,
        "K": k,
    }


def tiles(args: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, int]:
    """Return a grid with a program for each tile of C."""
    return -(-args["M"] // config["BLOCK_M"]), -(-args["N"] // config["BLOCK_N"])


def flops(args: Mapping[str, Any]) -> int:
    return int(2 * args["M"] * args["N"] * args["K"])


# Keywords of `Example`.
GEMM: dict[str, Any] = {
    "reference": lambda args: args["a"].astype(np.float64) @ args["b"].astype(np.float64),
    "device_reference": lambda args: args["a"].float() @ args["b"].float(),
    "output": "c",
}
GEMM_TRANSPOSED: dict[str, Any] = {
    **GEMM,
    "reference": lambda args: args["a"].astype(np.float64) @ args["b"].astype(np.float64).T,
    "device_reference": lambda args: args["a"].float() @ args["b"].float().T,
}
