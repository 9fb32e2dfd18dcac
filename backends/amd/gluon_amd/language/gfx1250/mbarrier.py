"""`gl.amd.gfx1250.mbarrier`."""

from gluon_amd.language.mbarrier import MBarrierLayout as MBarrierLayout
from gluon_amd.language.mbarrier import arrive as arrive
from gluon_amd.language.mbarrier import init as init
from gluon_amd.language.mbarrier import wait as wait
