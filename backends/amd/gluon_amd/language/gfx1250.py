"""`gl.amd.gfx1250` (MI450): buffer addressing and WMMA."""

from gluon_amd.language.buffer import buffer_load, buffer_store
from gluon_amd.language.wmma import wmma_v3 as wmma

__all__ = ["buffer_load", "buffer_store", "wmma"]
