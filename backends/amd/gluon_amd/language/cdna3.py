"""`gl.amd.cdna3`: gfx942 (MI300). Re-exports the hardware units' files."""

from gluon_amd.language.buffer import buffer_atomic_add as buffer_atomic_add
from gluon_amd.language.buffer import buffer_atomic_and as buffer_atomic_and
from gluon_amd.language.buffer import buffer_atomic_max as buffer_atomic_max
from gluon_amd.language.buffer import buffer_atomic_min as buffer_atomic_min
from gluon_amd.language.buffer import buffer_atomic_or as buffer_atomic_or
from gluon_amd.language.buffer import buffer_atomic_xchg as buffer_atomic_xchg
from gluon_amd.language.buffer import buffer_atomic_xor as buffer_atomic_xor
from gluon_amd.language.buffer import buffer_load as buffer_load
from gluon_amd.language.buffer import buffer_store as buffer_store
from gluon_amd.language.mfma import mfma as mfma
from gluon_amd.language.scaled import (
    get_scaled_upcast_fp4_scale_layout as get_scaled_upcast_fp4_scale_layout,
)
from gluon_amd.language.scaled import scaled_upcast as scaled_upcast
