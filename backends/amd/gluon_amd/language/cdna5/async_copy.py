"""`gl.amd.cdna5.async_copy`: gfx1250's under its other name."""

from gluon_amd.language.gfx1250.async_copy import *
