"""Where tests and libraries for Triton's own Gluon look for AMD's layouts."""

from __future__ import annotations

from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout

__all__ = ["AMDMFMALayout", "AMDWMMALayout"]
