"""`gl.nvidia.blackwell.clc`: cluster launch control."""

from gluon_nvidia.language.clc import clc_result as clc_result
from gluon_nvidia.language.clc import clc_result_type as clc_result_type
from gluon_nvidia.language.clc import load_result as load_result
from gluon_nvidia.language.clc import try_cancel as try_cancel
from gluon_nvidia.language.clc_scheduler import tile_scheduler as tile_scheduler
