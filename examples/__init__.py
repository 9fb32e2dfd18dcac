"""Short examples, one idea each; an installed gluon-core has them as the package `gluon_examples`."""

# The files of `gluon demo`, in the order of its table: those that it shows without `--all`, then the others.
SHOWN = (
    "basics/vector_add",
    "basics/transpose",
    "reductions/softmax",
    "reductions/layer_norm",
    "reductions/prefix_sum",
    "gemm/portable",
    "gemm/split_k",
    "attention/forward",
    "hopper/warp_specialized_gemm",
    "blackwell/warp_specialized_gemm",
    "amd/mfma_gemm",
)
MORE = (
    "basics/copy_2d",
    "basics/autotune",
    "reductions/long_rows",
    "reductions/atomic_sum",
    "gemm/epilogue",
    "gemm/grouped",
    "gemm/int8_weights",
    "attention/paged_decode",
    "patterns/double_buffer",
    "patterns/persistent",
    "patterns/torch_operator",
    "patterns/find_a_race",
    "hopper/tma_add",
    "blackwell/tcgen05_gemm",
    "blackwell/block_scaled",
    "amd/buffer_copy",
    "amd/wmma_gemm",
    "amd/tdm_gemm",
)

# Targets that `gluon demo` compiles for.
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
