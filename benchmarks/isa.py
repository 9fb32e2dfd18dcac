"""Count the instructions of the inner loops of AMD's examples, and of the same algorithms in plain
Triton.

No GPU is needed: everything is read from the machine code. Prints a table for RESULTS.md.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from gluon_amd.inspect import instructions, note  # noqa: E402
from gluon_core.plugin.machine_code import find_loops  # noqa: E402
from gluon_core.registry.load import registry  # noqa: E402
from tests.kernels import cases  # noqa: E402

# Example, target.
ROWS = [
    ("matmul, CDNA3, bf16", "gfx942"),
    ("matmul, CDNA3, fp8", "gfx942"),
    ("matmul, CDNA4, bf16", "gfx950"),
    ("matmul, CDNA4, fp8", "gfx950"),
    ("matmul, CDNA4, mxfp8", "gfx950"),
    ("matmul, CDNA4, mxfp4", "gfx950"),
    ("matmul, RDNA4", "gfx1201"),
    ("matmul by TDM", "gfx1250"),
]
# Label, target, dtype, block, warps, stages: as many buffers as the example has.
PLAIN = [
    ("bf16", "gfx942", "bf16", (128, 128, 64), 4, 2),
    ("fp8", "gfx942", "fp8e4b8", (128, 128, 128), 4, 2),
    ("bf16", "gfx950", "bf16", (256, 128, 64), 8, 2),
    ("fp8", "gfx950", "fp8e4nv", (256, 256, 128), 8, 2),
    ("fp16", "gfx1201", "fp16", (128, 128, 64), 8, 2),
    ("fp16", "gfx1250", "fp16", (256, 256, 64), 8, 2),
]
PLAIN_SCALED = [
    ("mxfp8", "gfx950", "fp8e4nv", "e4m3", (256, 256, 128), 8, 2),
    ("mxfp4", "gfx950", "u8", "e2m1", (256, 256, 256), 8, 2),
]


@triton.jit
def plain(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """C = A B^T as the tutorials write it, with the masks of the example."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    offsets = row[:, None] * K + k[None, :]
    bt = column[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - tile * BLOCK_K
        x = tl.load(a + tile * BLOCK_K + offsets, mask=k[None, :] < left, other=0.0)
        y = tl.load(b + tile * BLOCK_K + bt, mask=k[:, None] < left, other=0.0)
        acc = tl.dot(x, y, acc)
    out_row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out_column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (out_row < M)[:, None] & (out_column < N)[None, :]
    tl.store(c + out_row[:, None] * N + out_column[None, :], acc.to(tl.bfloat16), mask=mask)


@triton.jit
def plain_scaled(
    a, a_scale, b, b_scale, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Multiply with a scale for every 32 elements; K is a multiple of BLOCK_K, as in the example."""
    PACK: tl.constexpr = 2 if KIND == "e2m1" else 1
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K // PACK)
    block = tl.arange(0, BLOCK_K // 32)
    offsets = row[:, None] * (K // PACK) + k[None, :]
    bt = column[None, :] * (K // PACK) + k[:, None]
    a_scales = row[:, None] * (K // 32) + block[None, :]
    b_scales = column[:, None] * (K // 32) + block[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(0, K // BLOCK_K):
        x = tl.load(a + tile * (BLOCK_K // PACK) + offsets)
        y = tl.load(b + tile * (BLOCK_K // PACK) + bt)
        s = tl.load(a_scale + tile * (BLOCK_K // 32) + a_scales)
        t = tl.load(b_scale + tile * (BLOCK_K // 32) + b_scales)
        acc = tl.dot_scaled(x, s, KIND, y, t, KIND, acc)
    out_row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out_column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (out_row < M)[:, None] & (out_column < N)[None, :]
    tl.store(c + out_row[:, None] * N + out_column[None, :], acc.to(tl.bfloat16), mask=mask)


def compile_plain(target, dtype, block, num_warps, num_stages, kind=None):
    """Return the assembly of `plain`, or with `kind` of `plain_scaled`, software-pipelined."""
    pointers = {n: f"*{dtype}" for n in "ab"}
    if kind is not None:
        pointers = {"a": f"*{dtype}", "a_scale": "*u8", "b": f"*{dtype}", "b_scale": "*u8"}
    signature = {**pointers, "c": "*bf16"} | dict.fromkeys("MNK", "i32")
    values = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block))
    if kind is not None:
        values["KIND"] = kind
    constants = {(len(signature) + i,): value for i, value in enumerate(values.values())}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    for i in range(len(pointers) + 1):
        aligned[(i,)].append(["tt.pointer_range", 32])
    kernel = plain if kind is None else plain_scaled
    source = triton.compiler.ASTSource(
        kernel, {**signature, **dict.fromkeys(values, "constexpr")}, constants, aligned
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    gpu = GPUTarget("hip", target, registry().target(target).warp_size)
    return triton.compile(source, target=gpu, options=options).asm["amdgcn"]


def describe(mix, work):
    """Return cells: matrix instructions and the least number for `work` products, loads, LDS reads and
    writes, moves of accumulators, all; of a kernel without matrix instructions, that."""
    if not mix:
        return ["none: it multiplies and adds", *"-----"]

    def of(*starts):
        counts = [f"{n} x {m}" for m, n in mix.items() if m.startswith(starts)]
        return ", ".join(counts) or "-"

    (unit,) = [m for m in mix if m.startswith(("v_mfma", "v_wmma"))]
    shape = math.prod(map(int, re.search(r"(\d+)x(\d+)x(\d+)", unit).groups()))
    moves = sum(n for m, n in mix.items() if "accvgpr" in m)
    return [
        f"{mix[unit]} / {work // shape} {unit}",
        of("buffer_load", "global_load", "tensor_load"),
        of("ds_read", "ds_load"),
        of("ds_write", "ds_store"),
        str(moves),
        str(sum(mix.values())),
    ]


def busiest(assembly):
    """Return the mix of the loop with most matrix instructions."""

    def products(mix):
        return sum(n for m, n in mix.items() if m.startswith(("v_mfma", "v_wmma")))

    mixes = [loop.instruction_mix for loop in find_loops(instructions(assembly))]
    return max(filter(products, mixes), key=products, default={})


def main():
    head = (
        "kernel", "target", "matrix instructions / bound", "loads from memory", "LDS reads",
        "LDS writes", "moves of accumulators", "all", "registers", "spilled",
    )  # fmt: skip
    print(f"Triton {triton.__version__}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    examples = {e.name: e for e in cases.load_cases().values()}
    for name, target in ROWS:
        example, hardware = examples[name], registry().target(target)
        config = example.configure(hardware, large=True)
        work = config["BLOCK_M"] * config["BLOCK_N"] * config["BLOCK_K"] // config["num_warps"]
        line(name, target, example.compile(hardware).asm["amdgcn"], work)
    scaled = [(*row[:3], *row[4:], row[3]) for row in PLAIN_SCALED]
    for name, target, dtype, block, num_warps, *rest in [*PLAIN, *scaled]:
        assembly = compile_plain(target, dtype, block, num_warps, *rest)
        line(f"plain Triton, {name}", target, assembly, math.prod(block) // num_warps)


def line(name, target, assembly, work):
    cells = describe(busiest(assembly), work)
    counts = [str(note(assembly, key)) for key in ("vgpr_count", "vgpr_spill_count")]
    print("| " + " | ".join([name, target, *cells, *counts]) + " |", flush=True)


if __name__ == "__main__":
    main()
