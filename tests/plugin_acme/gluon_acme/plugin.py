"""What the entry point names."""

from gluon_acme.backend import ACME
from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_backends():
    return [ACME]
