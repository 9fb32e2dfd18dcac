"""Layouts of AMD's matrix units, MFMA (CDNA) and WMMA (RDNA, gfx1250), and partitioned LDS.

Pure Python: neither triton nor torch is imported. The fragment maps are those of the CDNA3/CDNA4
and RDNA3/RDNA4 ISA documents, "Matrix fragments". Triton numbers the registers of a WMMA layout
differently in 3.6, 3.7 and 3.8; `to_linear` follows `gluon_core.layouts.dialect`.
"""

from gluon_amd.layouts.mfma import AMDMFMALayout
from gluon_amd.layouts.partitioned import PartitionedSharedLayout
from gluon_amd.layouts.wmma import AMDWMMALayout

__all__ = ["AMDMFMALayout", "AMDWMMALayout", "PartitionedSharedLayout"]
