"""The example kernels; an installed gluon-core has them as the package `gluon_examples`."""

# In the order of the demo's table.
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
    "row_scan",
    "row_quantize",
    "rotary",
    "matmul",
    "matmul_hopper",
    "matmul_blackwell",
    "matmul_scaled_blackwell",
    "matmul_tdm",
    "memcpy_cdna",
    "matmul_cdna",
    "matmul_rdna4",
    "attention",
    "matmul_skinny",
    "attention_paged",
    "attention_hopper",
    "attention_backward_hopper",
    "attention_cdna",
)

# What `gluon demo` compiles for.
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
