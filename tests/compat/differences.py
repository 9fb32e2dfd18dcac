"""List the differences between Triton's own Gluon and ours, each with its reason and a program that shows it.

`docs/compatibility.md` is made of it; see `tests.compat.page`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from gluon_core.testing import TRITON_VERSION
from tests.compat.sides import Verdict
from tests.compat.units import UNITS

__all__ = ["DIFFERENCES", "Difference", "known"]


@dataclass(frozen=True)
class Difference:
    """Something that theirs traces, or makes another module of, and ours does not.

    Args:
        title: what it is.
        why: in a sentence.
        pattern: what our message or, where both trace, the source matches.
        source: a kernel, as `tests.frontend.oracle` takes them.
        kinds: verdicts that it explains.
        everywhere: a row on each release, whatever one run of it gives.
    """

    title: str
    why: str
    pattern: str
    source: str
    kinds: tuple[str, ...] = ("refused", "refused early")
    everywhere: bool = False


def _registers(layout: str, shape: str, end: str = "") -> str:
    return f"""\
@gluon.jit
def kernel(p, n):
    L: gl.constexpr = {layout}
    i = gl.full({shape}, 0, gl.int32, L) + n
    gl.store(p + i, gl.load(p + i))
ARGS = (ptr(gl.float32), 5)
{end}"""


def _shared(layout: str, shape: str, line: str, dtype: str = "float32", rank: int = 2) -> str:
    blocked = {
        1: "gl.BlockedLayout([1], [32], [4], [0])",
        2: "gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])",
    }[rank]
    return f"""\
@gluon.jit
def kernel(p, n):
    B: gl.constexpr = {blocked}
    S: gl.constexpr = {layout}
    s = gl.allocate_shared_memory(gl.{dtype}, {shape}, S)
    {line}
ARGS = (ptr(gl.float32), 5)
"""


_SCALED = """\
@gluon.jit
def kernel(p, n):
    M: gl.constexpr = gl.amd.AMDMFMALayout(4, [32, 32, 64], True, [1, 1])
    a = gl.full([32, 32], 1, gl.uint8, gl.DotOperandLayout(0, M, 16))
    b = gl.full([32, 32], 1, gl.uint8, gl.DotOperandLayout(1, M, 16))
    acc = gl.zeros([32, 32], gl.float32, M)
    acc = gl.amd.cdna4.mfma_scaled(a, {scale}, 'e2m1', b, None, 'e2m1', acc)
    gl.store(p + gl.full([32, 32], 0, gl.int32, M), acc)
ARGS = (ptr(gl.float32), 5)
TARGET, KWARGS = GPUTarget("hip", "gfx950", 64), dict(num_warps=1)
"""
_INTERLEAVED = """\
@gluon.jit
def kernel(p, n):
    L: gl.constexpr = gl.SliceLayout(0, gl.DistributedLinearLayout(
        [[0, 0, 4]], [[0, 8, 0], [0, 0, 1], [0, 0, 0], [0, 0, 2], [0, 2, 0]],
        [[1, 0, 0], [0, 0, 8], [0, 1, 0]], [[0, 4, 0]], [2, 16, 16]))
    B: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [8, 1], [1, 0], cga_layout=[[1, 0]])
    i = gl.convert_layout(gl.full([16, 16], 0, gl.int32, L) + n, B)
    gl.store(p + i, gl.load(p + i))
ARGS = (ptr(gl.float32), 5)
TARGET, KWARGS = GPUTarget("cuda", 90, 32), dict(num_warps=8, num_ctas=2)
"""
_HIP = 'TARGET = GPUTarget("hip", "gfx942", 64)\n'
_LOAD = "gl.store(p + gl.zeros([{shape}], gl.int32, B), {view}.load(B))"

DIFFERENCES = [
    Difference(
        "`NVMMADistributedLayout` with a version of one number",
        "upstream reads the second number from beyond the list; ours takes 0.",
        r"version: wrong rank",
        _registers("gl.NVMMADistributedLayout([2], [2, 2], [16, 8])", "[32, 16]"),
        everywhere=True,
    ),
    Difference(
        "Accumulators of `NVMMADistributedLayout` of version 3 with more than two dimensions",
        "wgmma multiplies two matrices, no batches; operands may have more.",
        r"an accumulator has two dimensions, and more only with mma.sync",
        _registers("gl.NVMMADistributedLayout([3, 0], [1, 4, 1], [1, 16, 8])", "[2, 64, 16]"),
    ),
    Difference(
        "`AMDMFMALayout` of 64 rows by 4 columns that is not transposed",
        "the instruction has 4 rows by 64 columns; the other way round its operands change places.",
        r"the 64x4 instruction is 4x64 with its operands exchanged",
        _registers(
            "gl.DotOperandLayout(0, gl.amd.AMDMFMALayout(4, [64, 4, 16], False, [1, 4], tiles_per_warp=[2, 1]), 16)",
            "[2, 8]",
            'TARGET = GPUTarget("hip", "gfx950", 64)\n',
        ),
    ),
    Difference(
        "`DistributedLinearLayout` in which two places hold one element without a zero basis",
        "a sum counts such copies twice, and compilers do not end where they convert such a layout, which "
        "stays an error. Loads and stores are right: strict=False lets them pass.",
        r"a basis is the sum of others: two places hold one element",
        _registers(
            "gl.DistributedLinearLayout([[2]], [[2], [1], [4], [0], [0]], [[0], [0]], [], [8])",
            "[8]",
        ),
    ),
    Difference(
        "`AMDWMMALayout` with an instruction that its version does not have",
        "the unit has no such instruction.",
        r"not an instruction of WMMA|two tiles of one warp are the same|do not share out the tiles"
        r"|a block basis is not a fresh power of two|leave a gap",
        _registers(
            "gl.amd.AMDWMMALayout(2, True, warps_per_cta=[2, 2], instr_shape=[16, 16, 8])"
            if TRITON_VERSION[:2] == (3, 6)
            else "gl.amd.AMDWMMALayout(2, True, [[1, 0], [0, 1]], instr_shape=[16, 16, 8])",
            "[64, 64]",
            'TARGET = GPUTarget("hip", "gfx1200", 32)\n',
        ),
    ),
    Difference(
        "`NVMMASharedLayout` wider than the buffer",
        "the compiler ends with an error when it makes addresses.",
        r"the buffer is too small for the swizzle|fewer elements than slices",
        _shared(
            "gl.NVMMASharedLayout(128, 32, 2)",
            "[8, 8]",
            f"s.store(gl.full([8, 8], 1.0, gl.float32, B)); {_LOAD.format(shape='8, 8', view='s')}",
        ),
    ),
    Difference(
        "`SwizzledSharedLayout` with an entry of 0",
        "the compiler divides by it.",
        r"(vec|per_phase|max_phase): invalid value",
        _shared(
            "gl.SwizzledSharedLayout(8, 2, 0, [1, 0])",
            "[32, 32]",
            "s.store(gl.full([32, 32], 1.0, gl.float32, B)); "
            + _LOAD.format(shape="32, 32", view="s"),
        ),
    ),
    Difference(
        "A constant index beyond a multi-buffered view",
        "the address is outside the allocation.",
        r"the index leaves the leading dimension",
        _shared(
            "gl.SwizzledSharedLayout(1, 1, 1, [0])",
            "[2, 128]",
            _LOAD.format(shape="128", view="s.index(2)"),
            rank=1,
        ),
    ),
    Difference(
        "A slice of shared memory that leaves its dimension",
        "the address is outside the buffer.",
        r"the slice leaves dimension",
        _shared(
            "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "[32, 32]",
            _LOAD.format(shape="32, 32", view="s.slice(4, 32, 0)"),
        ),
    ),
    Difference(
        "A slice of a linear layout in which the blocks of a cluster interleave",
        "the compiler ends as soon as such a tensor is converted, reduced or given another shape.",
        r"cannot handle blocks that interleave",
        _INTERLEAVED,
    ),
    Difference(
        "A scale of `mfma_scaled` that is a constant float, or beyond a byte",
        "scales are bytes, exponents of two; upstream cuts off the bits that do not fit, or from 3.8 on "
        "passes a float8 that the instruction takes for an exponent.",
        r"not an E8M0 exponent|scales are E8M0 exponents",
        _SCALED.format(scale="300"),
    ),
    Difference(
        "Result of an atomic on unsigned integers in a buffer, with a signed operand",
        "upstream gives the old numbers the type of the operand: those from 2^31 on become negative in the "
        "next conversion. Ours have the pointer's dtype, as `gl.atomic_add` has it in both.",
        r"buffer_atomic_\w+\(w,",
        """\
@gluon.jit
def kernel(w, p):
    i = gl.arange(0, 256, gl.BlockedLayout([1], [64], [4], [0]))
    old = gl.amd.cdna3.buffer_atomic_add(w, i, 1)
    gl.store(p + i, old.to(gl.float32))
ARGS = (ptr(gl.uint32), ptr(gl.float32))
"""
        + _HIP,
        kinds=("differs",),
    ),
    *(
        Difference(
            title,
            why,
            pattern,
            source,
            ("refused", "refused early", "differs"),
        )
        for title, why, pattern, source in UNITS
    ),
]


def known(verdict: Verdict, source: str) -> Optional[Difference]:
    """The difference that explains a verdict, None if none does."""
    text = verdict.ours.text if verdict.ours.how != "ok" else source
    for difference in DIFFERENCES:
        if verdict.kind in difference.kinds and re.search(difference.pattern, text):
            return difference
    return None
