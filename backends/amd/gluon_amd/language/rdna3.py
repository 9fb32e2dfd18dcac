"""`gl.amd.rdna3`: gfx11."""

from gluon_amd.language.wmma import wmma_v1 as wmma

__all__ = ["wmma"]
