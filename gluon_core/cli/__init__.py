"""The command `gluon`. Importing this package imports neither typer nor Triton."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    from gluon_core.cli.app import app

    app()
