"""Whole programs for CDNA: the kernels of gluon_kernels make the modules that upstream makes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gluon_core
import gluon_kernels
from gluon_core.testing import TRITON_VERSION
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, since

FILE = Path(gluon_kernels.__file__).parent / "gemm" / "amd.py"
OURS = r"^(import (numpy|gluon_core) .*|from gluon_core(\.cli\.example|) import .*)\n"


def program(kernel, arguments, constants, num_warps):
    """The source of the kernels, for either package."""
    text = FILE.read_text()
    text = re.sub(OURS, "", text, flags=re.MULTILINE).replace("gluon_core", "GLUON")
    # Upstream's kernels cannot ask what they are compiled for.
    text = re.sub(r"gl\.target\.require\(.*\)", "pass", text)
    return f"""{text}
ARGS = ({arguments})
KWARGS = {{**{constants!r}, "num_warps": {num_warps}}}
kernel = {kernel}
"""


def gpu(name):
    return gluon_core._triton.GPUTarget("hip", name, 64)


def matmul(kernel, dtype, block, depth, fp8, num_warps):
    constants = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block))
    constants |= {"DEPTH": depth, "GROUP": 8, "FP8": fp8}
    pointers = f"ptr(gl.{dtype}), ptr(gl.{dtype}), ptr(gl.bfloat16), 4096, 4096, 4096"
    return program(kernel, pointers, constants, num_warps)


MATMULS = [
    ("gfx942", ("matmul_cdna3", "bfloat16", (128, 128, 64), 8, False, 4)),
    ("gfx942", ("matmul_cdna3", "float8e4b8", (128, 128, 128), 16, True, 4)),
    ("gfx950", ("matmul_cdna4", "bfloat16", (256, 128, 64), 32, False, 8)),
    ("gfx950", ("matmul_cdna4", "float8e4nv", (256, 256, 128), 128, True, 8)),
]


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("target, case", MATMULS)
def test_matmul(target, case):
    if target == "gfx950" and TRITON_VERSION < (3, 8):
        pytest.skip("upstream's copies take no linear layouts before Triton 3.8")
    assert "dot" in agree(matmul(*case), gpu(target))


@since(3, 8)
@pytest.mark.parametrize("kind, dtype", [("e4m3", "float8e4nv"), ("e2m1", "uint8")])
def test_scaled_matmul(kind, dtype):
    constants = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256 if kind == "e2m1" else 128}
    constants |= {"KIND": kind, "GROUP": 8}
    operand = f"ptr(gl.{dtype}), ptr(gl.uint8)"
    arguments = f"{operand}, {operand}, ptr(gl.bfloat16), 4096, 4096, 4096"
    source = program("matmul_scaled_cdna4", arguments, constants, 8)
    assert "dot_scaled" in agree(source, gpu("gfx950"))


def test_a_program_has_the_source_of_its_kernel():
    """The sources are those of the kernels, imports aside."""
    source = matmul(*MATMULS[2][1])
    assert "GLUON.language.amd" in source and "gluon_core" not in source
    assert "cli" not in source and hasattr(oracle, "load")
