"""The page of `gluon run --html`: one file that needs no network."""

from gluon_core.cli.report.gather import gathered
from gluon_core.cli.report.render import pages_of, render

__all__ = ["gathered", "pages_of", "render"]
