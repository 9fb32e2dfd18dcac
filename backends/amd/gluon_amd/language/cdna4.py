"""`gl.amd.cdna4`: gfx950 (MI350); what it shares with CDNA3."""

from gluon_amd.language.buffer import (
    buffer_atomic_add,
    buffer_atomic_and,
    buffer_atomic_max,
    buffer_atomic_min,
    buffer_atomic_or,
    buffer_atomic_xchg,
    buffer_atomic_xor,
    buffer_load,
    buffer_store,
)
from gluon_amd.language.mfma import mfma
from gluon_amd.language.scaled import get_scaled_upcast_fp4_scale_layout, scaled_upcast

__all__ = [
    "buffer_atomic_add",
    "buffer_atomic_and",
    "buffer_atomic_max",
    "buffer_atomic_min",
    "buffer_atomic_or",
    "buffer_atomic_xchg",
    "buffer_atomic_xor",
    "buffer_load",
    "buffer_store",
    "get_scaled_upcast_fp4_scale_layout",
    "mfma",
    "scaled_upcast",
]
