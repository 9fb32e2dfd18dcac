"""`gl.nvidia.ampere.mbarrier`."""

from gluon_nvidia.language.mbarrier import MBarrierLayout as MBarrierLayout
from gluon_nvidia.language.mbarrier import allocate_mbarrier as allocate_mbarrier
from gluon_nvidia.language.mbarrier import arrive as arrive
from gluon_nvidia.language.mbarrier import init as init
from gluon_nvidia.language.mbarrier import invalidate as invalidate
from gluon_nvidia.language.mbarrier import wait as wait
