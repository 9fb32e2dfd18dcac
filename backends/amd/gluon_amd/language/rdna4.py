"""`gl.amd.rdna4`: gfx1200, gfx1201."""

from gluon_amd.language.wmma import wmma_v2 as wmma

__all__ = ["wmma"]
