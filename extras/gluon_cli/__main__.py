"""`python -m gluon_cli`, for where the command `gluon` is not on the path."""

from gluon_cli import main

main()
