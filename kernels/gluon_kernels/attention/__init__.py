"""Attention over whole sequences and pages, and rotary embedding."""

from gluon_kernels.attention.decode import attention_decode
from gluon_kernels.attention.fp8 import attention_fp8
from gluon_kernels.attention.mla import mla_decode
from gluon_kernels.attention.ops import attention
from gluon_kernels.attention.rotary import rotary
from gluon_kernels.attention.varlen import attention_varlen

__all__ = [
    "attention",
    "attention_decode",
    "attention_fp8",
    "attention_varlen",
    "mla_decode",
    "rotary",
]
