"""`python -m gluon_core.cli`, for where the command `gluon` is not on the path."""

from gluon_core.cli import main

main()
