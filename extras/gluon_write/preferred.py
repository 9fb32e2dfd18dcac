"""The form of loops of products that a caller asks for; importing it imports nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator, Optional

__all__ = ["FORMS", "chosen_form", "chosen_warps", "form_key", "preferred_form"]

FORMS = ("pipelined", "specialized")
_form: ContextVar[Optional[str]] = ContextVar("form", default=None)
_warps: ContextVar[Optional[int]] = ContextVar("warps", default=None)


@contextmanager
def preferred_form(form: Optional[str], warps: Optional[int] = None) -> Iterator[None]:
    """Have loops of products in one form, "pipelined" or "specialized"; None for the one that costs less.

    A kernel that this process has launched already keeps its form.

    Args:
        warps: of the kernel, None for as many as its launch asks for.
    """
    tokens = _form.set(form), _warps.set(warps)
    try:
        yield
    finally:
        _form.reset(tokens[0])
        _warps.reset(tokens[1])


def chosen_form() -> Optional[str]:
    """Return the form that `preferred_form` asks for, None without."""
    return _form.get()


def chosen_warps() -> Optional[int]:
    """Return the warps that `preferred_form` asks for, None without."""
    return _warps.get()


def form_key() -> Optional[str]:
    """Return the text of everything that `preferred_form` asks for, None without: the service `write.form`."""
    form, warps = _form.get(), _warps.get()
    return form if warps is None else f"{form}, {warps} warps"
