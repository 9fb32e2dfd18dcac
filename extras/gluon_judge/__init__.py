"""Evidence instead of trust: judge a kernel against a reference, without a GPU or on one.

The command is `gluon judge`; from Python:

    from gluon_judge import judge

    report = judge("candidate.py", "reference.py", "problem.toml", target="hopper")
    assert report.verdict == "accepted", report
"""

from __future__ import annotations

from typing import Any

__all__ = ["Input", "Judge", "Problem", "Range", "Report", "judge", "schema"]

_HOMES = {
    "Input": "problem",
    "Judge": "judging",
    "Problem": "problem",
    "Range": "problem",
    "Report": "report",
    "judge": "judging",
    "schema": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
