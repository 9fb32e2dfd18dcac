"""Peak rates by architecture, for the simulator's estimates: one device of each.

Dense rates, without structured sparsity, from AMD's data sheets and CDNA white papers. LDS: 128
bytes per clock of each compute unit, at the peak engine clock.
"""

from __future__ import annotations

from typing import Mapping

__all__ = ["PEAKS"]

T = 1e12

PEAKS: Mapping[str, Mapping[str, float]] = {
    # MI100 data sheet; 120 CUs at 1.502 GHz.
    "gfx908": {
        "units": 120, "global": 1.2288 * T, "shared": 120 * 128 * 1.502e9, "vector": 23.1 * T, "fp32": 46.1 * T,
        "bf16": 92.3 * T, "fp16": 184.6 * T, "int8": 184.6 * T,
    },
    # MI250X data sheet, one of its two dies, as a kernel runs on one; 110 CUs at 1.7 GHz.
    "gfx90a": {
        "units": 110, "global": 1.6384 * T, "shared": 110 * 128 * 1.7e9, "vector": 23.95 * T, "fp64": 47.9 * T,
        "fp32": 47.9 * T, "bf16": 191.5 * T, "fp16": 191.5 * T, "int8": 191.5 * T,
    },
    # MI300X data sheet; 304 CUs at 2.1 GHz.
    "gfx942": {
        "units": 304, "global": 5.3 * T, "shared": 304 * 128 * 2.1e9, "vector": 163.4 * T, "fp64": 163.4 * T,
        "fp32": 163.4 * T, "tf32": 653.7 * T, "bf16": 1307.4 * T, "fp16": 1307.4 * T,
        "fp8": 2614.9 * T, "int8": 2614.9 * T,
    },
    # MI355X data sheet; 256 CUs at 2.4 GHz.
    "gfx950": {
        "units": 256, "global": 8 * T, "shared": 256 * 128 * 2.4e9, "vector": 157.3 * T, "fp64": 78.6 * T,
        "fp32": 157.3 * T, "bf16": 2516.6 * T, "fp16": 2516.6 * T, "fp8": 5033.2 * T,
        "int8": 5033.2 * T, "fp4": 10066.3 * T,
    },
    # RX 7900 XTX.
    "gfx1100": {
        "units": 96, "global": 0.960 * T, "vector": 61.4 * T, "bf16": 122.8 * T, "fp16": 122.8 * T,
        "int8": 122.8 * T,
    },
    # RX 9070 XT.
    "gfx1201": {
        "units": 64, "global": 0.6446 * T, "vector": 48.7 * T, "bf16": 195 * T, "fp16": 195 * T,
        "fp8": 389 * T, "int8": 389 * T,
    },
}  # fmt: skip
