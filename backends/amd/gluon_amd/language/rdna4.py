"""`gl.amd.rdna4`: gfx1200, gfx1201."""

from gluon_amd.language import wmma as _wmma

wmma = _wmma.wmma_v2
