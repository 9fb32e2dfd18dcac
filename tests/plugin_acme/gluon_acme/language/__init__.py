"""`gl.acme`: one module per generation."""

from gluon_acme.language import anvil

__all__ = ["anvil"]
