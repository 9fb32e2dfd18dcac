"""The oracle: layouts as the installed Triton's compiler reports them, from a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("linear_oracle.py")


class CallRecorder:
    """A builder that answers every method with the call itself, as plain JSON data."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("get_") or name == "get_layout":
            raise AttributeError(name)
        return lambda *args: {"call": name, "args": list(args)}


def _ask(requests: list[dict]) -> list[dict]:
    answers: list[dict] = []
    while len(answers) < len(requests):
        child = subprocess.run(
            [sys.executable, str(CHILD)],
            input=json.dumps(requests[len(answers) :]),
            capture_output=True,
            text=True,
            timeout=300,
        )
        answers += [json.loads(line) for line in child.stdout.splitlines()]
        if len(answers) < len(requests):
            # An illegal attribute aborts the compiler: that request's answer is the abort.
            answers.append({"abort": child.stderr[-2000:]})
    return answers


@cache
def _triton_missing() -> bool:
    probe = subprocess.run(
        [sys.executable, "-c", "import triton._C.libtriton"], capture_output=True
    )
    return probe.returncode != 0


class Oracle:
    """Collects (layout, shape) questions; `answers()` asks them all in one child."""

    recorder = CallRecorder()

    def __init__(self) -> None:
        self.requests: list[dict] = []

    def add(self, attribute: Any, shape: Any) -> None:
        self.requests.append({"layout": attribute, "shape": list(shape)})

    def layout(self, layout: Any, shape: Any) -> None:
        self.add(layout._emit(self.recorder), shape)

    def dot_operand(self, index: int, parent: Any, k_width: int, shape: Any) -> None:
        emitted = parent._emit(self.recorder)
        self.add({"call": "get_dot_operand_layout", "args": [index, emitted, k_width]}, shape)

    def answers(self) -> list[dict]:
        """Per question a dict of bases per in-dim; or `{"abort": text}`, `{"error": text}`."""
        return _ask(self.requests)


@pytest.fixture
def oracle() -> Oracle:
    if _triton_missing():
        pytest.skip("no Triton installed to compare with")
    return Oracle()
