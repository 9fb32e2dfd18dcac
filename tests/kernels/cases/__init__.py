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
    "matmul",
    "matmul_stream_k",
    "matmul_cooperative_hopper",
    "matmul_blackwell",
    "matmul_clc_blackwell",
    "matmul_scaled_blackwell",
    "matmul_tdm",
    "memcpy_cdna",
    "matmul_cdna",
    "matmul_rdna4",
    "attention",
    "matmul_split_k",
    "matmul_batch_invariant",
    "attention_cdna",
)

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def module(name):
    """Return the file `name` of this folder as a module."""
    return importlib.import_module(f"{__name__}.{name}")


def load_cases():
    """Return the cases by (file, index)."""
    return {(file, i): case for file in FILES for i, case in enumerate(module(file).EXAMPLES)}
