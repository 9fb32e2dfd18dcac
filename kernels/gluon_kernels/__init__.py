"""Kernels as a product: operators of PyTorch that launch kernels written in Gluon Core."""

from gluon_kernels.attention import (
    attention,
    attention_decode,
    attention_fp8,
    attention_varlen,
    mla_decode,
    rotary,
)
from gluon_kernels.gemm import bmm, matmul, matmul_batch_invariant, matmul_fp8
from gluon_kernels.linear_attention import gated_delta_rule, gated_linear_attention, kda, ssd
from gluon_kernels.moe import grouped_matmul, moe
from gluon_kernels.norm import (
    cross_entropy,
    layer_norm,
    linear_cross_entropy,
    rms_norm,
    softmax,
    swiglu,
)
from gluon_kernels.quant import linear, quantize
from gluon_kernels.topk import TopK, cumsum, topk

__all__ = [
    "TopK",
    "attention",
    "attention_decode",
    "attention_fp8",
    "attention_varlen",
    "bmm",
    "cross_entropy",
    "cumsum",
    "gated_delta_rule",
    "gated_linear_attention",
    "grouped_matmul",
    "kda",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "matmul",
    "matmul_batch_invariant",
    "matmul_fp8",
    "mla_decode",
    "moe",
    "quantize",
    "rms_norm",
    "rotary",
    "softmax",
    "ssd",
    "swiglu",
    "topk",
]

__version__ = "0.1.0"
