"""`python -m gluon_core`: the command `gluon`, for where it is not on the path."""

import sys
from importlib.metadata import entry_points


def main() -> None:
    """Run the command line that is installed."""
    scripts = entry_points(group="console_scripts", name="gluon")
    if not scripts:
        sys.exit('The command line is not installed: pip install "gluon-core[cli]"')
    (*_, script) = scripts
    script.load()()


if __name__ == "__main__":
    main()
