"""Certificates: a kernel's launches on the simulator, and its machine code on the emulator.

certificate = gluon_core.certify.certify("matmul.py", ["sm_90", "gfx942"])
certificate.verdict  # "certified", "wrong" or "incomplete"

Importing this package imports neither NumPy nor Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluon_certify.certificate import Certificate
    from gluon_certify.certifying import Plan, certify

__all__ = ["Certificate", "Plan", "certify"]

_PLACES = {"Certificate": "certificate", "Plan": "certifying", "certify": "certifying"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gluon_certify.{_PLACES[name]}"), name)
