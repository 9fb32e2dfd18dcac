"""`gl.amd.gfx1250.cluster`."""

from gluon_amd.language.cluster import arrive as arrive
from gluon_amd.language.cluster import wait as wait
