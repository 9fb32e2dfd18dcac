"""Peak rates by compute capability, for the simulator's estimates: one device of each.

Dense rates, without structured sparsity, from NVIDIA's data sheets and architecture white papers.
Shared memory: 128 bytes per clock of each multiprocessor, at the boost clock.
"""

from __future__ import annotations

from typing import Mapping

__all__ = ["PEAKS"]

T = 1e12

PEAKS: Mapping[int, Mapping[str, float]] = {
    # T4 data sheet; 40 SMs at 1.59 GHz.
    75: {
        "units": 40, "global": 0.320 * T, "shared": 40 * 128 * 1.59e9, "vector": 8.1 * T,
        "fp16": 65 * T, "int8": 130 * T,
    },
    # A100 80GB SXM data sheet; 108 SMs at 1.41 GHz.
    80: {
        "units": 108, "global": 2.039 * T, "shared": 108 * 128 * 1.41e9, "vector": 19.5 * T,
        "fp64": 19.5 * T, "tf32": 156 * T, "bf16": 312 * T, "fp16": 312 * T, "int8": 624 * T,
    },
    # A10 data sheet; 72 SMs at 1.695 GHz.
    86: {
        "units": 72, "global": 0.600 * T, "shared": 72 * 128 * 1.695e9, "vector": 31.2 * T,
        "tf32": 62.5 * T, "bf16": 125 * T, "fp16": 125 * T, "int8": 250 * T,
    },
    # L40S data sheet; 142 SMs at 2.52 GHz.
    89: {
        "units": 142, "global": 0.864 * T, "shared": 142 * 128 * 2.52e9, "vector": 91.6 * T, "tf32": 183 * T,
        "bf16": 362 * T, "fp16": 362 * T, "fp8": 733 * T, "int8": 733 * T,
    },
    # H200 SXM data sheet (H100 SXM: 3.35 TB/s, the same FLOP/s); 132 SMs at 1.83 GHz.
    90: {
        "units": 132, "global": 4.8 * T, "shared": 132 * 128 * 1.83e9, "vector": 66.9 * T, "fp64": 66.9 * T,
        "tf32": 494.7 * T, "bf16": 989.4 * T, "fp16": 989.4 * T, "fp8": 1978.9 * T,
        "int8": 1978.9 * T,
    },
    # HGX B200 data sheet, one GPU.
    100: {
        "units": 148, "global": 8 * T, "vector": 75 * T, "fp64": 37 * T, "tf32": 1100 * T, "bf16": 2250 * T,
        "fp16": 2250 * T, "fp8": 4500 * T, "int8": 4500 * T, "fp4": 9000 * T,
    },
    # RTX 5090: RTX Blackwell white paper, sums in float32; 170 SMs at 2.41 GHz.
    120: {
        "units": 170, "global": 1.792 * T, "shared": 170 * 128 * 2.41e9, "vector": 104.8 * T, "tf32": 104.8 * T,
        "bf16": 209.5 * T, "fp16": 209.5 * T, "fp8": 419 * T, "int8": 838 * T, "fp4": 1676 * T,
    },
}  # fmt: skip
