"""`gl.amd.rdna3`: gfx11."""

from gluon_amd.language import wmma as _wmma

wmma = _wmma.wmma_v1
