"""`gl.nvidia.rubin.clc`: cluster launch control."""

from gluon_nvidia.language.clc import clc_result, clc_result_type, load_result, try_cancel

__all__ = ["clc_result", "clc_result_type", "load_result", "try_cancel"]
