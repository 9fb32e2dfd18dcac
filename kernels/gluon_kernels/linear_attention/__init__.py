"""Linear attention: the gated delta rule and state space duality."""

from gluon_kernels.linear_attention.ops import gated_delta_rule, gated_linear_attention

__all__ = ["gated_delta_rule", "gated_linear_attention"]
