"""The example kernels for CDNA, by their machine code and by our own count of bank conflicts."""

from __future__ import annotations

import importlib
import re

import pytest

from gluon_amd.arch import lanes_read_together
from gluon_core import language as gl
from gluon_core.layouts import cost
from gluon_core.registry.load import registry
from tests.kernels import cases

pytestmark = pytest.mark.once

FOUND = cases.load_cases()
EXAMPLES = {e.name: e for e in FOUND.values()}
COMPILED = [
    ("matmul, CDNA3, bf16", "gfx942", 32 * 32 * 8),
    ("matmul, CDNA3, bf16", "gfx950", 32 * 32 * 8),
    ("matmul, CDNA3, fp8", "gfx942", 32 * 32 * 16),
    ("matmul, CDNA4, bf16", "gfx950", 16 * 16 * 32),
    ("matmul, CDNA4, fp8", "gfx950", 16 * 16 * 128),
    ("matmul, CDNA4, mxfp8", "gfx950", 16 * 16 * 128),
    ("matmul, CDNA4, mxfp4", "gfx950", 16 * 16 * 128),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name, target, size", COMPILED)
def test_the_loop_does_no_more_than_it_must(name, target, size):
    example, target = EXAMPLES[name], registry().target(target)
    config = example.configure(target, large=True)
    report = example.compile(target).report()
    assert report.spills == 0 and report.scratch == 0
    assert report.occupancy >= config["num_warps"]
    mixes = [loop.instruction_mix for loop in report.loops]
    (mix,) = [mix for mix in mixes if any("mfma" in mnemonic for mnemonic in mix)]
    m, n, k = (config[f"BLOCK_{d}"] for d in "MNK")
    products = sum(count for mnemonic, count in mix.items() if "mfma" in mnemonic)
    assert products == m * n * k // size // config["num_warps"]
    assert not [m for m in mix if "accvgpr" in m] or "CDNA4" in name
    scales = "mx" in name
    reads = {mnemonic for mnemonic in mix if mnemonic.startswith("ds_read")}
    assert reads == ({"ds_read_b128", "ds_read_u8"} if scales else {"ds_read_b128"})
    loads = {mnemonic for mnemonic in mix if re.match("(buffer|global)_load", mnemonic)}
    if "CDNA3" in name:
        assert loads == {"buffer_load_dwordx4"}
        assert {m for m in mix if m.startswith("ds_write")} == {"ds_write_b128"}
    else:
        assert loads - {"buffer_load_dword lds"} == {"buffer_load_dwordx4 lds"}
        assert not [m for m in mix if m.startswith("ds_write")]
        assert scales or "buffer_load_dword lds" not in mix


def layouts(name, config, architecture):
    """(operand index, layout in LDS, layout of the operand, shape, bits) of A and B, large."""
    module = importlib.import_module(EXAMPLES[name].kernel.__module__)
    bits = 16 if "bf16" in name else 8
    columns = config["BLOCK_K"] // (2 if config.get("KIND") == "e2m1" else 1)
    version = 3 if "CDNA3" in name else 4
    accumulator = module.mfma_layout(version, config.get("DEPTH", 128), config["num_warps"])
    for index, rows in enumerate((config["BLOCK_M"], config["BLOCK_N"])):
        if version == 3:
            shared = module.swizzled_layout(bits)
        else:
            shared = module.staged_layout(rows, columns, bits)
        # B is in LDS as [N, K] and is read transposed, which is as if it were A.
        operand = gl.DotOperandLayout(0, transposed(accumulator, index), 128 // bits)
        yield shared, operand, [rows, columns], bits


def transposed(accumulator, index):
    """The accumulator under which A is what operand `index` was."""
    warps = accumulator.warps_per_cta[::-1] if index else accumulator.warps_per_cta
    return gl.amd.AMDMFMALayout(accumulator.version, accumulator.instr_shape, True, warps)


# CDNA3's swizzle is for 32 banks.
OWN = [row[:2] for row in COMPILED if ("CDNA3" in row[0]) == (row[1] == "gfx942")]


@pytest.mark.parametrize("name, target", OWN)
def test_lds_is_read_without_conflicts(name, target):
    target = registry().target(target)
    architecture = target.architecture
    together = lanes_read_together(architecture, 128)
    config = EXAMPLES[name].configure(target, large=True)
    for shared, operand, shape, bits in layouts(name, config, architecture):
        assert cost.vector_elements(operand, shared, shape, bits) * bits == 128
        conflicts = cost.bank_conflicts(
            operand, shared, shape, bits, architecture.banks, together=together
        )
        assert conflicts == 0


@pytest.mark.parametrize("target, version, depth", [("gfx942", 3, 8), ("gfx950", 4, 16)])
def test_attention_reads_and_writes_lds_without_conflicts(target, version, depth):
    """Its layouts, in and out; values that CDNA4 reads transposed lie as keys do."""
    architecture = registry().target(target).architecture
    banks, together = architecture.banks, lanes_read_together(architecture, 128)
    shape = [64, 128]

    def conflicts(registers, shared, bits, together=None):
        assert cost.vector_elements(registers, shared, shape, 16) * 16 == bits
        return cost.bank_conflicts(registers, shared, shape, 16, banks, together=together)

    accumulator = gl.amd.AMDMFMALayout(version, [32, 32, depth], True, [4, 1])
    keys = gl.DotOperandLayout(0, transposed(accumulator, 1), 8)  # read as [D, BLOCK_N]
    by_rows = gl.SwizzledSharedLayout(8, 1, 16, [1, 0])
    assert conflicts(keys, by_rows, 128, together) == 0
    assert conflicts(gl.BlockedLayout([1, 8], [4, 16], [4, 1], [1, 0]), by_rows, 128) == 0
    if version == 3:
        kernel = EXAMPLES["attention, CDNA"].kernel
        by_columns = importlib.import_module(kernel.__module__).column_layout(64, 128)
        values = gl.DotOperandLayout(1, accumulator, 4)
        assert conflicts(values, by_columns, 64) == 0
        assert conflicts(gl.BlockedLayout([4, 8], [4, 16], [4, 1], [1, 0]), by_columns, 64) == 0


@pytest.mark.parametrize("bits", [16, 8])
def test_a_plain_buffer_would_have_conflicts(bits):
    architecture = registry().target("gfx950").architecture
    accumulator = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
    operand = gl.DotOperandLayout(0, accumulator, 128 // bits)
    plain = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    together = lanes_read_together(architecture, 128)
    shape = [256, 1024 // bits]
    assert cost.bank_conflicts(operand, plain, shape, bits, 64, together=together) > 0


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_the_copy_takes_whole_vectors_and_no_branches(target):
    compiled = EXAMPLES["strided copy, CDNA"].compile(registry().target(target))
    loads = set(re.findall(r"(buffer_load_\w+|global_\w+) v.*", compiled.asm["amdgcn"]))
    assert loads == {"buffer_load_dwordx4"}
    assert (
        "buffer_store_dwordx4" in compiled.asm["amdgcn"] and "cbranch" not in compiled.asm["amdgcn"]
    )
    # ".cs", read once: non-temporal, also with a Triton whose own language does not know it.
    assert " nt" in compiled.asm["amdgcn"]


@pytest.mark.parametrize("target", ["gfx1200", "gfx1201"])
def test_wmma(target):
    example, target = EXAMPLES["matmul, RDNA4"], registry().target(target)
    report = example.compile(target).report()
    assert report.spills == 0 and report.scratch == 0
    (mix,) = [loop.instruction_mix for loop in report.loops if "s_barrier" in str(loop)]
    assert mix["v_wmma_f32_16x16x16_f16"] == 128 * 128 * 64 // 16**3 // 8
    moves = {m for m in mix if m.startswith(("ds_load", "ds_store", "buffer_load", "global_load"))}
    assert moves == {"ds_load_b128", "ds_store_b128", "buffer_load_b128"}


@pytest.mark.parametrize(
    "target, depth", [("gfx942", 8), pytest.param("gfx950", 16, marks=pytest.mark.campaign)]
)
def test_attention(target, depth):
    example, target = EXAMPLES["attention, CDNA"], registry().target(target)
    config = example.configure(target, large=True)
    report = example.compile(target).report()
    assert report.spills == 0 and report.scratch == 0
    # The tail has its own copy of the body, outside of the loop; it may branch backwards, too.
    mixes = [loop.instruction_mix for loop in report.loops]
    mix = next(mix for mix in mixes if any("mfma" in mnemonic for mnemonic in mix))
    size = config["BLOCK_M"] * config["BLOCK_N"] * config["D"]
    assert mix[f"v_mfma_f32_32x32x{depth}_bf16"] == 2 * size // (32 * 32 * depth) // 4
    assert {m for m in mix if re.match("(buffer|global)_load", m)} == {"buffer_load_dwordx4"}
    stores = re.findall(r"(?:buffer|global)_store_\w+", example.compile(target).asm["amdgcn"])
    assert set(stores) == {"buffer_store_dwordx4"}
    assert report.shared_memory <= 64 * 1024 and report.occupancy >= 4
    # LDS receives the next keys and values, and never the scores.
    written = sum(
        count * (16 if m.endswith("b128") else 8 * (2 if "2" in m.split("_")[1] else 1))
        for m, count in mix.items()
        if m.startswith("ds_write")
    )
    assert written == 2 * config["BLOCK_N"] * config["D"] * 2 // 256
