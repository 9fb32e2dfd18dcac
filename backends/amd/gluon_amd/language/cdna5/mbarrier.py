"""`gl.amd.cdna5.mbarrier`: gfx1250's under its other name."""

from gluon_amd.language.gfx1250.mbarrier import *
