"""The page of `gluon run --html`: one file that needs no network."""

from gluon_report.report.gather import gathered
from gluon_report.report.render import pages_of, render

__all__ = ["gathered", "pages_of", "render"]
