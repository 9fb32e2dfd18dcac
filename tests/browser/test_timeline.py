"""The page of a timeline in a real browser: it fits its width, draws lanes and shows the line of a span."""

from pathlib import Path

import pytest

from gluon_core.simulation.predicted import Predicted, PredictedLane, PredictedSpan
from gluon_timeline import page
from gluon_timeline.decode import Launch, Span
from gluon_timeline.imports import processes
from gluon_timeline.predictor import predicted_data
from tests.browser.test_page import browser, opened  # noqa: F401

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]
SITE = Path(__file__).parents[2] / "docs" / "_build" / "static"


TASK = PredictedLane(
    "the kernel",
    (0, 4),
    (
        PredictedSpan("tma.copy", 5, __file__, 0.0, 10.0, "issue"),
        PredictedSpan("mbarrier.wait", 6, __file__, 10.0, 120.0, "wait", (1, 115.0), 1),
        PredictedSpan("load K", 5, __file__, 0.0, 120.0, "scope"),
    ),
)
COPIES = PredictedLane(
    "copies in", None, (PredictedSpan("tma.copy", 5, __file__, 10.0, 115.0, "work", (0, 10.0)),)
)
PREDICTED = Predicted(
    "kernel", "a device", "a test", 180.0, 150.0, 0, 120.0, (TASK, COPIES),
    ((0, 115.0, 120.0, "signal"), (1, 10.0, 115.0, "work")), (("matrix unit", 0.8), ("memory", 0.4)),
)  # fmt: skip


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
    launch["predicted"] = predicted_data(PREDICTED)
    path = tmp_path / "page.html"
    path.write_text(page.render([launch], processes(trace)), encoding="utf-8")
    shown = opened(path, width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.locator(".lanes rect[data-scope='below']").count() == 1
    assert shown.locator(".lanes rect[data-scope='predicted']").count() == 4
    assert (
        shown.locator(".lanes .flow").count() == 1
        and shown.locator(".lanes .critical").count() == 2
    )
    assert shown.locator(".lanes rect[data-scope]").count() == 13
    shown.locator(".lanes rect[data-scope='1']").first.click()
    text = shown.locator("#chosen").inner_text()
    assert __file__ in text and ":" in text
    words = shown.locator("main").inner_text()
    assert "memory (data of TMA)" in words and "predicted / measured 0.90" in words
    assert "matrix unit" in words and "Critical path, predicted" in words
    shown.locator(".lanes rect.wait[data-scope='predicted']").click()
    assert "waited for copies in" in shown.locator("#chosen").inner_text()
    # A prediction alone.
    path.write_text(
        page.render([page.predicted_alone(predicted_data(PREDICTED))]), encoding="utf-8"
    )
    shown = opened(path, width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.locator(".lanes rect[data-scope='predicted']").count() == 4


@pytest.mark.parametrize("width", [1280, 390])
def test_the_recorded_attention_of_the_site(opened, width):  # noqa: F811
    shown = opened(SITE / "attention-timeline.html", width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    words = shown.locator("main").inner_text()
    assert (
        "attention_hopper" in words and "predicted / measured" in words and "matrix unit" in words
    )
    predicted = shown.locator(".lanes rect[data-scope='predicted']")
    assert predicted.count() > 100 and shown.locator(".lanes .flow").count() > 100
    assert shown.locator(".lanes .critical").count() > 0
    measured = shown.locator(".lanes rect[data-scope]").count() - predicted.count()
    assert measured > 1000
    # Spans are narrower than a pixel here: the event, not a place, names the span.
    shown.locator(".lanes rect[data-scope='0']").first.dispatch_event("click")
    assert "kernels/gluon_kernels/attention/hopper.py:" in shown.locator("#chosen").inner_text()
    shown.locator(".lanes rect.wait[data-scope='predicted']").first.dispatch_event("click")
    assert "waited for" in shown.locator("#chosen").inner_text()
