"""The form of loops of products that a caller asks for; importing it imports nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator, Optional

__all__ = ["FORMS", "chosen_form", "preferred_form"]

FORMS = ("pipelined", "specialized")
_form: ContextVar[Optional[str]] = ContextVar("form", default=None)


@contextmanager
def preferred_form(form: Optional[str]) -> Iterator[None]:
    """Have loops of products in one form, "pipelined" or "specialized"; None for the one that costs less.

    A kernel that this process has launched already keeps its form.
    """
    token = _form.set(form)
    try:
        yield
    finally:
        _form.reset(token)


def chosen_form() -> Optional[str]:
    """Return the form that `preferred_form` asks for, None without."""
    return _form.get()
