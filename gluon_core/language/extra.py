"""Functions of the vendors' mathematics libraries, under one name for all of them."""

from gluon_core._triton import libdevice

__all__ = ["libdevice"]


def __dir__() -> list[str]:
    return sorted(__all__)
