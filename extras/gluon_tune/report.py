"""Describe the results of a search: the best, the frontier, the effect of each parameter."""

from __future__ import annotations

import html
from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_tune.session import Outcome
from gluon_tune.tuned.store import Trial

__all__ = ["amount", "effects", "frontier", "gain", "headline", "page", "spoken"]

SECONDS = ("time", "predicted", "roofline")  # objectives whose values are times


def spoken(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())


def headline(outcome: Outcome) -> str:
    """Return the call that was tuned for, and the kind of calls that the result is kept for."""
    call, bucket = outcome.call, outcome.key.bucket
    return f"{call} (kept for {bucket})" if call not in ("", bucket) else bucket


def gain(outcome: Outcome) -> str:
    """Return how the best configuration compares with the default; both have a value above 0."""
    assert outcome.best is not None and outcome.start is not None
    best, start = outcome.best.value, outcome.start.value
    assert best and start
    if outcome.key.objective in SECONDS:
        return f"{start / best:.3f} times as fast as the default"
    return "as many as the default" if start == best else f"the default has {start:g}"


def amount(value: Optional[float], objective: str) -> str:
    """Return a value of an objective, with its unit."""
    if value is None:
        return "-"
    if objective not in SECONDS:
        return f"{value:g}"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"


def frontier(trials: Sequence[Trial]) -> list[tuple[int, Trial]]:
    """Return each trial that was the best when it came in, with how many had come by then."""
    points: list[tuple[int, Trial]] = []
    for number, trial in enumerate(sorted(trials, key=lambda one: one.timestamp), 1):
        value = trial.value
        if trial.status != "ok" or value is None:
            continue
        if not points or points[-1][1].value is None or value < points[-1][1].value:
            points.append((number, trial))
    return points


def effects(trials: Sequence[Trial]) -> dict[str, dict[Any, tuple[int, float, float]]]:
    """Parameter -> value -> (how many worked, the best of them and their median, relative to the best of
    all), for parameters of which several values worked."""
    good = [(trial, trial.value) for trial in trials if trial.status == "ok" and trial.value]
    if not good:
        return {}
    best = min(value for _, value in good)
    ratios: dict[str, dict[Any, tuple[int, float, float]]] = {}
    for name in good[0][0].config:
        groups: dict[Any, list[float]] = {}
        for trial, value in good:
            groups.setdefault(trial.config.get(name), []).append(value / best)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda item: min(item[1]))
            ratios[name] = {k: (len(v), min(v), sorted(v)[len(v) // 2]) for k, v in ordered}
    return ratios


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.bar{background:#3a7;height:.7rem}
.note{color:#666}svg{background:#fafafa;border:1px solid #ddd}details{margin:1rem 0}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}svg{background:#1d1d1d}
td,th,svg{border-color:#444}}
"""


def page(title: str, outcomes: Sequence[Outcome]) -> str:
    """Return a page that needs nothing else: no network, no script."""
    body = "".join(_section(outcome) for outcome in outcomes)
    text = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{text}</title>'
        f"<style>{_STYLE}</style><h1>{text}</h1>{body}</html>\n"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Cells are escaped; a column whose name starts with > is set to the right."""
    right = [' class="n"' if name.startswith(">") else "" for name in columns]
    head = "".join(f"<th{c}>{html.escape(n.lstrip('>'))}</th>" for c, n in zip(right, columns))
    lines = (
        "<tr>" + "".join(f"<td{c}>{html.escape(str(v))}</td>" for c, v in zip(right, row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _section(outcome: Outcome) -> str:
    key, objective = outcome.key, outcome.key.objective
    parts = [f"<h2>{html.escape(headline(outcome))}</h2>"]
    where = " on ".join(filter(None, (key.target, key.device)))
    counts: dict[str, int] = {}
    for trial in outcome.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    tally = ", ".join(f"{count} {status}" for status, count in counts.items())
    of = f" of {outcome.total}" if outcome.total else ""
    parts.append(
        f'<p class="note">{html.escape(where)}; {html.escape(key.versions)}; '
        f"{html.escape(objective)}; {len(outcome.trials)}{of} configurations: {html.escape(tally)}</p>"
    )
    best = outcome.best
    if best is None:
        parts.append("<p>No configuration works.</p>")
    else:
        parts.append(
            f"<p><b>{html.escape(spoken(best.config))}</b>: {amount(best.value, objective)}"
        )
        if best.low is not None and best.high is not None and best.low != best.high:
            parts.append(f" ({amount(best.low, objective)} to {amount(best.high, objective)})")
        start = outcome.start
        if start is not None and start.value and best.value:
            parts.append(f"; {gain(outcome)}")
        parts.append("</p>")
        facts = {k: v for k, v in outcome.facts.items() if v is not None and k != "versions"}
        if facts:
            parts.append(f'<p class="note">Device: {html.escape(spoken(facts))}</p>')
        parts.append("<h3>Frontier</h3>" + _plot(outcome.trials))
        rows = [
            (number, amount(trial.value, objective), spoken(trial.config))
            for number, trial in frontier(outcome.trials)
        ]
        parts.append(_table((">trial", f">{objective}", "configuration"), rows))
        parts.append("<h3>Effect of each parameter</h3>")
        for name, groups in effects(outcome.trials).items():
            cells = [
                (value, count, f"{least:.3f}", f"{middle:.3f}")
                for value, (count, least, middle) in groups.items()
            ]
            parts.append(_table((name, ">worked", ">best", ">median"), cells))
        parts.append('<p class="note">Relative to the best of all; 1 is the best.</p>')
    parts.append("<details><summary>All configurations</summary>")
    lines = [
        (
            spoken(trial.config),
            trial.status,
            amount(trial.value, objective),
            trial.detail.get("registers", "-"),
            trial.detail.get("spills", "-"),
            trial.reason,
        )
        for trial in outcome.trials
    ]
    columns = ("configuration", "status", f">{objective}", ">registers", ">spills", "why")
    parts.append(_table(columns, lines) + "</details>")
    return "".join(parts)


def _plot(trials: Sequence[Trial]) -> str:
    """Draw each trial as a point, and the best so far as a line: the number of the trial to the right, its
    value upwards, relative to the best."""
    ordered = sorted(trials, key=lambda one: one.timestamp)
    good = [(n, t.value) for n, t in enumerate(ordered) if t.status == "ok" and t.value]
    if not good:
        return ""
    best = min(value for _, value in good)
    width, height, most = 720.0, 220.0, 3.0

    def place(number: int, value: float) -> tuple[float, float]:
        across = 30 + (width - 50) * number / max(1, len(ordered) - 1)
        up = (min(most, value / best) - 1) / (most - 1)
        return across, height - 20 - (height - 40) * up

    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#888"/>'
        for x, y in (place(*one) for one in good)
    )
    points: list[tuple[float, float]] = []
    so_far = float("inf")
    for number, value in good:
        if value < so_far:
            if points:
                points.append(place(number, so_far))
            so_far = value
            points.append(place(number, value))
    points.append(place(len(ordered) - 1, so_far))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="value of each trial, relative to the best">{dots}'
        f'<polyline points="{line}" fill="none" stroke="#3a7" stroke-width="2"/>'
        f'<text x="4" y="{height - 16:g}" font-size="11" fill="#888">1</text>'
        f'<text x="4" y="24" font-size="11" fill="#888">{most:g}</text></svg>'
    )
