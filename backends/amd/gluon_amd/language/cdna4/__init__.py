"""`gl.amd.cdna4`: gfx950 (MI350). All of CDNA3, and the additions of CDNA4."""

from gluon_amd.language.cdna3 import *
from gluon_amd.language.cdna4 import async_copy as async_copy
from gluon_amd.language.lds_transpose import load_shared_fp4_repacked as load_shared_fp4_repacked
from gluon_amd.language.mfma_layouts import (
    compute_efficient_padded_shared_layout as compute_efficient_padded_shared_layout,
)
from gluon_amd.language.mfma_layouts import get_mfma_scale_layout as get_mfma_scale_layout
from gluon_amd.language.mfma_scaled import mfma_scaled as mfma_scaled
from gluon_amd.language.scaled import scaled_downcast as scaled_downcast
