"""Share the code of the programs of the error classes."""

import re
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())


def show_error(kind, wrong):
    """Print the message of the error that `wrong` raises, without the kernel's line and the caret."""
    try:
        wrong()
    except kind as error:
        text = str(error).splitlines()[0].replace(f"{folder}/", "")
        text = text.replace(f"{Path(__file__).parent}/", "").partition("; got nvdisasm")[0]
        text = re.sub(r"([.]py:[0-9]+):[0-9]+", r"\1", text)  # columns differ with the release
        print(f"{type(error).__name__}: {re.sub('(0x)?[0-9a-f]{12,}', '...', text)}")
