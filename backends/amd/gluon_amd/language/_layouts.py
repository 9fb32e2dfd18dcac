"""Offer AMD's layouts where tests and libraries for Triton's own Gluon look for them."""

from __future__ import annotations

from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout

__all__ = ["AMDMFMALayout", "AMDWMMALayout"]
