"""The documentation as a site: `tox -e site`, or `sphinx-build -W --keep-going docs build/site`."""

import posixpath
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_build")]

import reference  # noqa: E402

from gluon_core import __version__  # noqa: E402

project = "Gluon Core"
author = "the Gluon Core authors"
copyright = author
release = version = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build", "README.md", "reference/examples", "reference/errors"]
root_doc = "index"
html_theme = "furo"
html_title = f"Gluon Core {__version__}"
html_extra_path = []
html_static_path = ["pictures", "_build/static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

myst_heading_anchors = 3
# Examples show the output of kernels; a fence of ours may hold a fragment that no lexer takes whole.
suppress_warnings = ["misc.highlighting_failure"]

_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def _outside(app, docname, source):
    """Return a link to a file of the repository that is no page shows that file's path instead."""

    def shown(match):
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(docname), match[2]))
        if target.startswith("docs/"):
            return match[0]
        text = match[1].strip("`")
        return f"`{target}`" if text in target else f"{match[1]} (`{target}`)"

    # Drawing these would take a script from the network; the text of the diagram reads well enough.
    source[0] = _LINK.sub(shown, source[0]).replace("```mermaid\n", "```text\n")


def _generate(app):
    for path, text in reference.pages().items():
        file = HERE / path
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def setup(app):
    app.connect("builder-inited", _generate)
    app.connect("source-read", _outside)
    return {"parallel_read_safe": True}
