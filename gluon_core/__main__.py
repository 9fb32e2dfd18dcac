"""`python -m gluon_core`: the command `gluon`, for where it is not on the path."""

import runpy

runpy.run_module("gluon_cli", run_name="__main__")
