"""The page of a timeline in a real browser: it fits its width, draws lanes and shows the line of a span."""

import pytest

from gluon_timeline import page
from gluon_timeline.decode import Launch, Span
from tests.browser.test_page import browser, opened  # noqa: F401

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


@pytest.mark.parametrize("width", [1280, 390])
def test_lanes_and_lines(opened, tmp_path, width):  # noqa: F811
    spans = [
        Span(0, warp, 3, name, line, begin, begin + 80.0, 0, __file__)
        for warp in range(4)
        for name, line, begin in (("load", 1, 0.0), ("mbarrier wait", 3, 100.0))
    ]
    trace = {
        "traceEvents": [
            {"ph": "X", "name": "wait", "cat": "wait", "ts": 1, "dur": 2, "args": {"for": "tile 0"}}
        ]
    }
    launch = page.launch_data(Launch("kernel", tuple(spans), 200.0, 0, 0, 4))
    path = tmp_path / "page.html"
    path.write_text(page.render([launch], page.trace_data(trace)), encoding="utf-8")
    shown = opened(path, width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.locator(".lanes rect[data-scope]").count() == 9
    shown.locator(".lanes rect[data-scope='1']").first.click()
    text = shown.locator("#chosen").inner_text()
    assert __file__ in text and ":" in text
    assert "memory (data of TMA)" in shown.locator("main").inner_text()
