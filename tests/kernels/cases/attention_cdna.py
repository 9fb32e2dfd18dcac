"""The cases of `gluon_kernels.attention.amd`."""

import numpy as np

from gluon_kernels.attention.amd import attention_cdna
from gluon_report.example import Example


def arguments(new, large):
    heads, length, depth = (32, 4096, 128) if large else (2, 272, 128)
    return {
        "q": new.random((heads, length, depth), "bfloat16"),
        "k": new.random((heads, length, depth), "bfloat16"),
        "v": new.random((heads, length, depth), "bfloat16"),
        "out": new.empty((heads, length, depth), "bfloat16"),
        "length": length,
        "scale": depth**-0.5,
    }


def reference(args):
    q, k, v = (args[name].astype(np.float64) for name in "qkv")
    score = q @ k.transpose(0, 2, 1) * args["scale"]
    p = np.exp(score - score.max(axis=2, keepdims=True))
    return p / p.sum(axis=2, keepdims=True) @ v


EXAMPLES = [
    Example(
        name="attention, CDNA",
        kernel=attention_cdna,
        arguments=arguments,
        grid=lambda args, config: (-(-args["length"] // config["BLOCK_M"]), args["q"].shape[0]),
        config=lambda warp_size: {"D": 128, "BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4},
        reference=reference,
        output="out",
        flops=lambda args: 4 * args["q"].shape[0] * args["length"] ** 2 * 128,
        requires=("amd.mfma", "amd.mfma_fp8"),
        tolerance=1.5e-2,
    )
]
