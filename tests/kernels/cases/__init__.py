"""Kernels with arguments, configurations and references: the cases that tests and benchmarks of the compiler, the
simulator, the emulator and the tools run, each a `gluon_report.example.Example`."""

import importlib

FILES = (
    "scalar_copy",
    "memcpy_1d",
    "memcpy_2d",
    "transpose_copy",
    "memcpy_autotuned",
    "add_double_buffered",
    "add_tma",
    "softmax",
    "layer_norm",
    "split_sum",
    "rows",
    "row_softmax",
    "row_cross_entropy",
    "row_norm",
    "row_norm_backward",
    "row_cumsum",
    "row_quantize",
    "row_topk_bitonic",
    "row_topk_radix",
    "rotary",
    "matmul",
    "matmul_batched",
    "matmul_epilogue",
    "matmul_stream_k",
    "matmul_weight_only",
    "fused_linear_cross_entropy",
    "grouped_gemm",
    "grouped_gemm_wgrad",
    "matmul_gather_scatter",
    "matmul_cooperative_hopper",
    "matmul_pingpong_hopper",
    "grouped_gemm_hopper",
    "grouped_gemm_wgrad_hopper",
    "matmul_gather_scatter_hopper",
    "matmul_fp8_hopper",
    "matmul_fp8_small_m_hopper",
    "matmul_blackwell",
    "matmul_clc_blackwell",
    "matmul_scaled_blackwell",
    "matmul_tdm",
    "memcpy_cdna",
    "matmul_cdna",
    "matmul_rdna4",
    "attention",
    "attention_score_mod",
    "matmul_split_k",
    "matmul_batch_invariant",
    "matmul_small_m_hopper",
    "matmul_small_m_warp_specialized_hopper",
    "attention_paged",
    "attention_mla",
    "attention_hopper",
    "attention_backward_deterministic_hopper",
    "attention_backward_atomic_hopper",
    "attention_varlen_hopper",
    "attention_varlen_backward_deterministic_hopper",
    "attention_varlen_backward_atomic_hopper",
    "attention_cdna",
)

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def module(name):
    """Return the file `name` of this folder as a module."""
    return importlib.import_module(f"{__name__}.{name}")


def load_cases():
    """Return the cases by (file, index)."""
    return {(file, i): case for file in FILES for i, case in enumerate(module(file).EXAMPLES)}
