"""`gl.amd.gfx1250.tdm`."""

from gluon_amd.language.tdm import async_load as async_load
from gluon_amd.language.tdm import async_load_fused as async_load_fused
from gluon_amd.language.tdm import async_store as async_store
from gluon_amd.language.tdm import async_wait as async_wait
from gluon_amd.language.tdm import make_tensor_descriptor as make_tensor_descriptor
from gluon_amd.language.tdm import prefetch as prefetch
from gluon_amd.language.tdm import tensor_descriptor as tensor_descriptor
from gluon_amd.language.tdm import tensor_descriptor_type as tensor_descriptor_type
from gluon_amd.language.tdm import update_tensor_descriptor as update_tensor_descriptor
from gluon_amd.language.tdm_rows import async_gather as async_gather
from gluon_amd.language.tdm_rows import async_scatter as async_scatter
