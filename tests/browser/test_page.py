"""Pages in a real browser: they load without a word on the console, sort, hover, link and draw.

Playwright drives the Chromium of `GLUON_CHROMIUM`, of the path, or its own (`playwright install
chromium`); CI, which sets `GLUON_INSTALL_BROWSER`, installs one. Screenshots stay in
`GLUON_SCREENSHOTS` where that is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.pages import HERE, written

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]
WIDTHS = (1280, 800)
ROOT = Path(__file__).parents[2]


def chromium(*options, env=None):
    """Return the answer of .ci/browser.py: a path, "" for Playwright's own; or why there is none."""
    command = [sys.executable, ROOT / ".ci" / "browser.py", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return done.stdout.strip() or None, done.stderr.strip()


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install playwright"
    )
    with driver.sync_playwright() as started:
        executable = None
        if not Path(started.chromium.executable_path).is_file():
            wanted = ["--install"] if os.environ.get("GLUON_INSTALL_BROWSER") else []
            executable, why = chromium(*wanted)
            if why:
                pytest.skip(f"no browser: {why}")
        try:
            instance = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        except driver.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def banks(folder):
    return written("banks", folder, "-t", "sim:hopper")


@pytest.fixture(scope="module")
def deadlock(folder):
    return written("deadlock", folder, "-t", "sim:hopper", code=1)


@pytest.fixture
def opened(browser):
    """Open a page of a width; what it says on the console, and what it wants from the network, fails."""
    complaints, pages = [], []

    def open_page(path, width=1280):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(path.as_uri())
        pages.append(context)
        return page

    yield open_page
    for context in pages:
        context.close()
    assert complaints == []


def line_of(name, text):
    lines = (HERE / f"{name}.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["banks", "deadlock"])
def test_it_fits_the_width(opened, request, tmp_path, name, width):
    page = opened(request.getfixturevalue(name), width)
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Where the time goes, and the source, are there without scrolling sideways.
    for column in ("td:first-child", "td.source"):
        box = page.locator(f".profile tbody {column}").first.bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= width
    target = Path(os.environ.get("GLUON_SCREENSHOTS", tmp_path)) / f"{name}.{width}.png"
    page.screenshot(path=target, full_page=True)
    assert target.stat().st_size > 20_000


def test_it_sorts(opened, banks):
    page = opened(banks)
    first = page.locator(".profile tbody tr").first
    head = page.locator(".profile th").first
    assert "@gluon.jit" in first.inner_text()
    head.click()
    assert "buffer.load(column)" in first.inner_text()
    assert head.get_attribute("aria-sort") == "descending"
    head.click()
    assert page.locator(".profile tbody tr").last.locator(".source").inner_text().strip() == (
        "rotated = buffer.load(column)"
    )
    head.click()
    assert "@gluon.jit" in first.inner_text()


def test_hovering_a_line_draws_the_layouts_of_its_values(opened, banks):
    page = opened(banks)
    card = page.locator("#card")
    assert card.is_hidden()
    line = page.locator(f"tr[data-at='0:{line_of('banks', 'buffer.load(column)')}'] .held")
    line.hover()
    assert "tensor<64x64xfp32>" in card.inner_text() and "[4, 1]" in card.inner_text()
    assert card.locator("svg rect").count() > 500
    page.mouse.move(2, 2)
    card.wait_for(state="hidden")
    line.click()
    page.mouse.move(2, 2)
    page.wait_for_timeout(300)
    assert card.is_visible()
    page.keyboard.press("Escape")
    assert card.is_hidden()


def test_the_cure_of_a_conflict_is_drawn(opened, banks):
    page = opened(banks)
    page.locator("td.cure code.held").first.hover()
    assert "SwizzledSharedLayout" in page.locator("#card").inner_text()


def test_source_and_code_light_each_other(opened, banks):
    page = opened(banks)
    line = line_of("banks", "buffer.load(column)")
    page.locator(f".lines [data-at='0:{line}']").click()
    lit = page.locator(".emitted .lit")
    assert any("LDS" in text for text in lit.all_inner_texts())
    page.locator("select.entry").select_option(label=page.locator("option").nth(2).inner_text())
    load = page.locator(".emitted div", has_text="ttg.local_load").first
    load.click()
    assert page.locator(".lines .lit").all_inner_texts() == [
        f"{line}    rotated = buffer.load(column)"
    ]


def test_a_deadlock_is_a_picture_whose_boxes_lead_to_the_lines(opened, deadlock):
    page = opened(deadlock)
    assert page.locator(".party").count() == 4
    assert page.locator(".arrow.wait").count() == 2 and page.locator(".arrow.stuck").count() == 2
    page.locator("svg.parties a", has_text="wait(empty").first.click()
    row = page.locator("tr:target")
    assert row.get_attribute("data-at") == f"0:{line_of('deadlock', 'wait(empty')}"
    box = row.bounding_box()
    assert 0 <= box["y"] <= 900


def test_the_timeline_zooms_scrolls_and_finds(opened, deadlock):
    page = opened(deadlock)
    section = page.locator("section.timeline")
    state = "document.querySelector('section.timeline').state()"
    whole = page.evaluate(state)
    assert whole["from"] == 0 and whole["span"] == whole["end"]
    names = section.locator("svg text title").all_text_contents()
    assert any(name.startswith("the kernel,") for name in names)
    assert any(name.startswith("partition 1 of the kernel,") for name in names)
    section.locator("button", has_text="zoom in").click()
    zoomed = page.evaluate(state)
    assert zoomed["span"] == whole["span"] / 2 and zoomed["from"] > 0
    box = section.locator(".view").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 8, steps=4)
    page.mouse.up()
    assert page.evaluate(state)["from"] < zoomed["from"]
    section.locator("button", has_text="all").click()
    section.locator("input[type=search]").fill("mbarrier.wait(empty")
    assert section.locator("output").inner_text() == "1 found"
    assert section.locator("rect.found").count() == 1
    section.locator("rect.found").click()
    place = page.locator("tr:target").get_attribute("data-at")
    assert place == f"0:{line_of('deadlock', 'wait(empty')}"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_layout_is_drawn_and_its_warps_are_chosen(opened, folder, width):
    target = folder / "layout.html"
    layout = "BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])"
    command = [sys.executable, "-m", "gluon_core", "layout", layout, "--shape", "16x32"]
    subprocess.run([*command, "--html", target], check=True, capture_output=True)
    page = opened(target, width)
    assert page.locator("svg .c title").first.text_content()
    choices = page.locator("input[type=radio]")
    assert choices.count() > 4
    before = page.screenshot()
    page.locator("label", has_text="2").first.click()
    assert page.screenshot() != before


def test_a_failed_installation_gives_the_reason(tmp_path):
    # Neither way leads anywhere: no such package, and a Playwright without a network.
    manager = tmp_path / "apt-get"
    manager.write_text(
        "#!/bin/sh\necho W: old >&2\necho E: Unable to locate package >&2\nexit 100\n"
    )
    manager.chmod(0o755)
    sudo = tmp_path / "sudo"  # for users other than root
    sudo.write_text('#!/bin/sh\nshift\n"$@"\n')
    sudo.chmod(0o755)
    fake = tmp_path / "playwright"
    fake.mkdir()
    (fake / "__init__.py").touch()  # or else an installed one comes first
    (fake / "__main__.py").write_text("raise SystemExit('Error: ENOTFOUND')")
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    assert chromium(env=env) == (None, "no Chromium on the path")
    executable, why = chromium("--install", env=env)
    assert executable is None
    assert why == (
        "apt-get update says: E: Unable to locate package; playwright install says: Error: ENOTFOUND"
    )
