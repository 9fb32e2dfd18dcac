"""`gl.nvidia.hopper.mbarrier`."""

from gluon_nvidia.language.mbarrier import MBarrierLayout as MBarrierLayout
from gluon_nvidia.language.mbarrier import allocate_mbarrier as allocate_mbarrier
from gluon_nvidia.language.mbarrier import expect as expect
from gluon_nvidia.language.mbarrier import fence_init_release_cluster as fence_init_release_cluster
from gluon_nvidia.language.mbarrier import init as init
from gluon_nvidia.language.mbarrier import invalidate as invalidate
from gluon_nvidia.language.mbarrier import sync_cluster_init as sync_cluster_init
from gluon_nvidia.language.mbarrier import wait as wait
from gluon_nvidia.language.mbarrier_counted import arrive as arrive
