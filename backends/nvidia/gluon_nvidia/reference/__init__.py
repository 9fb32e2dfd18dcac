"""Define the ops of NVIDIA's hardware in NumPy: the models that the simulator runs.

See `gluon_core.plugin.reference` for how a model is written. Named like the builder's methods; a file
for each hardware unit.
"""

from gluon_nvidia.reference.arith import ELEMENTWISE  # noqa: F401
from gluon_nvidia.reference.async_copy import *  # noqa: F403
from gluon_nvidia.reference.clc import *  # noqa: F403
from gluon_nvidia.reference.cluster import *  # noqa: F403
from gluon_nvidia.reference.grids import GRID_ASM
from gluon_nvidia.reference.libdevice import EXTERNS  # noqa: F401
from gluon_nvidia.reference.mbarrier import *  # noqa: F403
from gluon_nvidia.reference.multimem import *  # noqa: F403
from gluon_nvidia.reference.packed import *  # noqa: F403
from gluon_nvidia.reference.packed import PACKED_ASM
from gluon_nvidia.reference.remedies import REMEDIES  # noqa: F401
from gluon_nvidia.reference.tcgen05 import *  # noqa: F403
from gluon_nvidia.reference.tensor_memory import *  # noqa: F403
from gluon_nvidia.reference.tma import *  # noqa: F403
from gluon_nvidia.reference.tma import WAITS_ASM
from gluon_nvidia.reference.wgmma import *  # noqa: F403

# The dialect of inline assembly, and models of some texts, which need no interpreter.
ASSEMBLY = "ptx"
INLINE_ASM = {**PACKED_ASM, **WAITS_ASM, **GRID_ASM}
IDLE_ASM = frozenset(GRID_ASM)  # nothing within a block depends on these
