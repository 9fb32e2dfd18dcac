"""`gl.amd.gfx1250` (MI450). Re-exports the hardware units' files; `gl.amd.cdna5` is the same."""

from gluon_amd.language import wmma as _wmma
from gluon_amd.language.buffer import buffer_load as buffer_load
from gluon_amd.language.buffer import buffer_store as buffer_store
from gluon_amd.language.gfx1250 import async_copy as async_copy
from gluon_amd.language.gfx1250 import cluster as cluster
from gluon_amd.language.gfx1250 import mbarrier as mbarrier
from gluon_amd.language.gfx1250 import tdm as tdm
from gluon_amd.language.lds_transpose import load_shared_fp4_repacked as load_shared_fp4_repacked
from gluon_amd.language.scaled import (
    get_scaled_upcast_fp4_scale_layout as get_scaled_upcast_fp4_scale_layout,
)
from gluon_amd.language.scaled import scaled_downcast as scaled_downcast
from gluon_amd.language.scaled import scaled_upcast as scaled_upcast
from gluon_amd.language.wmma_layouts import get_wmma_scale_layout as get_wmma_scale_layout
from gluon_amd.language.wmma_layouts import (
    make_partitioned_dot_layouts as make_partitioned_dot_layouts,
)
from gluon_amd.language.wmma_scaled import wmma_scaled as wmma_scaled
from gluon_amd.layouts import PartitionedSharedLayout as PartitionedSharedLayout

wmma = _wmma.wmma_v3
