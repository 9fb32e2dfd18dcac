"""The documentation's site in a real browser: its front page, its navigation, and its search.

Sphinx builds the site once; without Sphinx or a browser the tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.test_page import browser, opened  # noqa: F401

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(300),
]  # it builds the site and searches 90 terms
ROOT = Path(__file__).parents[2]
WIDTHS = (390, 1280)

#: The terms of the glossary: the first column of its tables.
TERMS = re.findall(
    r"^\| (?!term|---)([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(), flags=re.M
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="no Sphinx: pip install sphinx furo myst-parser")
    pytest.importorskip("furo", reason="no Sphinx: pip install sphinx furo myst-parser")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "docs", folder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return folder


def test_the_glossary_has_its_terms():
    assert len(TERMS) >= 80 and len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_front_page_fits_the_width(opened, site, width):  # noqa: F811
    page = opened(site / "index.html", width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "Gluon Core" in page.title()
    report = page.locator("pre", has_text="RaceError").first
    remedy = report.evaluate("box => box.scrollWidth <= box.clientWidth + 1")
    assert remedy, "the remedy of the race is beyond the edge"
    for door in ("Learn", "Guides", "Reference"):
        assert page.locator("article a", has_text=re.compile(f"^{door}$")).count() == 1


def test_the_navigation_shows_the_version_and_at_most_eight_entries(opened, site):  # noqa: F811
    page = opened(site / "index.html")
    import gluon_core

    assert gluon_core.__version__ in page.locator(".sidebar-brand-text").inner_text()
    lists = page.locator(".sidebar-tree > ul")
    assert lists.count() >= 3
    for position in range(lists.count()):
        assert lists.nth(position).locator("> li").count() <= 8


class Quiet(SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, format, *args):
        pass


@pytest.fixture
def address(site):
    """Serve the site on this machine: its search fetches pages, which browsers refuse for files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_search_finds_every_term_of_the_glossary(browser, address):  # noqa: F811
    page = browser.new_page()
    missing = []
    for term in TERMS:
        page.goto(f"{address}/search.html?q={quote(term)}", wait_until="domcontentloaded")
        summary = page.locator(".search-summary")
        summary.filter(has_text=re.compile("found|did not match")).wait_for()
        if not page.locator("ul.search li a").count():
            missing.append(term)
    page.close()
    assert missing == []
