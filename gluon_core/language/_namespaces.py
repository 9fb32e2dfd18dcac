"""Where `gl.<vendor>` comes from; see `gluon_core._namespaces`."""

from gluon_core._namespaces import install, resolve

__all__ = ["resolve"]

install()
