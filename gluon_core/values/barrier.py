"""The layout of barriers in shared memory, for every vendor that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from gluon_core._triton import unwrap
from gluon_core.errors import LayoutError
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.layouts.base import check_cga, is_power_of_two
from gluon_core.plugin.ops import compile_time
from gluon_core.plugin.typing import Const

__all__ = ["MBarrierLayout"]


@dataclass(frozen=True, init=False)
class MBarrierLayout(SwizzledSharedLayout):
    """The layout of a barrier: one plain int64 per block of the cluster.

    Args:
        cga_layout: which barrier each block of a cluster has; [] for one block.

    Raises:
        LayoutError: an illegal `cga_layout`.
    """

    def __init__(self, cga_layout: Optional[Sequence[Sequence[int]]] = None):
        bases = check_cga(unwrap(cga_layout), 1)
        self._set(vec=1, per_phase=1, max_phase=1, order=[0], cga_layout=bases)

    @staticmethod
    @compile_time
    def multicta(num_ctas: Const[int], two_cta: Const[bool] = False) -> "MBarrierLayout":
        """Return the layout for a cluster: a barrier for each block, or with `two_cta` for each pair.

        Args:
            num_ctas: blocks of the cluster, a power of two.
            two_cta: one barrier for each pair of blocks, in the even one.

        Returns:
            The layout of an int64 buffer of one element for each barrier of the cluster.

        Raises:
            LayoutError: not a power of two, or pairs of a single block.
        """
        count, pairs = unwrap(num_ctas), bool(unwrap(two_cta))
        if not is_power_of_two(count) or (pairs and count < 2):
            raise LayoutError(
                "no such cluster",
                argument="num_ctas",
                expected="a power of two" + (", at least 2 with two_cta" if pairs else ""),
                got=repr(count),
            )
        bits = count.bit_length() - 1
        return MBarrierLayout([[1 << bit >> pairs] for bit in range(bits)])
