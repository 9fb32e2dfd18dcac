"""Define the ops of AMD's hardware in NumPy: the models that the simulator runs.

See `gluon_core.plugin.reference` for how a model is written. Named like the builder's methods; a file
for each hardware unit. MFMA and WMMA are recorded as the portable `dot`, so they need no model.
"""

from gluon_amd.reference.async_lds import *  # noqa: F403
from gluon_amd.reference.buffer import *  # noqa: F403
from gluon_amd.reference.cluster import *  # noqa: F403
from gluon_amd.reference.hint import *  # noqa: F403
from gluon_amd.reference.libdevice import EXTERNS  # noqa: F401
from gluon_amd.reference.mbarrier import *  # noqa: F403
from gluon_amd.reference.remedies import REMEDIES  # noqa: F401
from gluon_amd.reference.scaled import *  # noqa: F403
from gluon_amd.reference.slice import *  # noqa: F403
from gluon_amd.reference.tdm import *  # noqa: F403

# A wave waits for all of its memory operations before it releases anything (CDNA3 ISA, `s_waitcnt`).
LOCKSTEP = True
