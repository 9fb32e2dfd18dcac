"""`gl.nvidia.hopper.multimem`."""

from gluon_nvidia.language.multimem import load_reduce as load_reduce
from gluon_nvidia.language.multimem import reduce as reduce
from gluon_nvidia.language.multimem import store as store
