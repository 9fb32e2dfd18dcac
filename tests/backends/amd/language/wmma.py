"""The one layout that Triton's own Gluon spells differently from release to release."""

from __future__ import annotations

from typing import Any

from gluon_core.testing import triton_at_least


def two_by_two(gl: Any, depth: int) -> Any:
    """gfx1250's matrix layout for 2 by 2 warps, of the language `gl`.

    Args:
        depth: elements along K of one instruction, 16 by 16 otherwise.
    """
    if triton_at_least(3, 7):
        warps = {"warp_bases": [[0, 1], [1, 0]]}
    else:
        warps = {"warps_per_cta": [2, 2]}
    return gl.amd.AMDWMMALayout(3, transposed=True, instr_shape=[16, 16, depth], **warps)
