"""`gl.amd.cdna5.tdm`: gfx1250's under its other name."""

from gluon_amd.language.gfx1250.tdm import *
