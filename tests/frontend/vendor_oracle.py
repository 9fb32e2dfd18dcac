"""Helpers of the tests of vendor namespaces: kernels compared with upstream's, and errors.

A source written for `agree` names the package `GLUON`, which stands for either.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import pytest

from gluon_core import testing
from gluon_core.testing import TRITON_VERSION
from tests.frontend import oracle


def since(*version: int) -> Any:
    """Skip under an older Triton."""
    text = ".".join(map(str, version))
    return pytest.mark.skipif(TRITON_VERSION < version, reason=f"needs Triton {text}")


def before(*version: int) -> Any:
    """Skip under this Triton and newer ones."""
    text = ".".join(map(str, version))
    return pytest.mark.skipif(TRITON_VERSION >= version, reason=f"Triton {text} has it")


def agree(source: str, target: Any = None) -> str:
    """Assert that `source` makes the same module in both, blanks in inline assembly aside; returns its
    text in normal form."""
    overrides = {} if target is None else {"target": target}
    theirs = oracle.upstream(source.replace("GLUON", "triton.experimental.gluon"), **overrides)
    expected = _trimmed(oracle.renamed(testing.normalise(theirs)))
    text = testing.normalise(oracle.ours(source.replace("GLUON", "gluon_core"), **overrides))
    mine = _trimmed(text)
    difference = difflib.unified_diff(
        expected.splitlines(), mine.splitlines(), "upstream", "ours", lineterm="", n=1
    )
    assert mine == expected, "\n".join(difference)
    return text


def _trimmed(module: str) -> str:
    """The text of a module, without blanks around what is assembled inline."""
    return re.sub(r'(elementwise_inline_asm ")(?:\s|\\0A)*(.*?)(?:\s|\\0A)*(?=")', r"\1\2", module)


def parse(source: str, target: Any = None) -> str:
    """Our module of `source` in normal form."""
    overrides = {} if target is None else {"target": target}
    return testing.normalise(oracle.ours(source.replace("GLUON", "gluon_core"), **overrides))


def refuse(source: str, error: type, match: str, target: Any = None) -> None:
    """Assert that `source` fails with `error` under the line that is marked `# HERE`."""
    with pytest.raises(error, match=match or None) as caught:
        parse(source, target)
    span = caught.value.span
    assert span is not None and span.text is not None
    assert "# HERE" in span.text, span.render()
