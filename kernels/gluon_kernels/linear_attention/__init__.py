"""Linear attention: the gated delta rule, Kimi Delta Attention and state space duality."""

from gluon_kernels.linear_attention.ops import gated_delta_rule, gated_linear_attention, kda
from gluon_kernels.linear_attention.ssd import ssd

__all__ = ["gated_delta_rule", "gated_linear_attention", "kda", "ssd"]
