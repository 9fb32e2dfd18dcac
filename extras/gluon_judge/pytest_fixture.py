"""A pytest fixture: judge candidates in tests, with the processes of one judge per target and run.

def test_softmax(gluon_judge):
    gluon_judge("softmax.py", "reference.py", "problem.toml", target="hopper").check()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

import pytest

if TYPE_CHECKING:
    from gluon_judge.judging import Judge
    from gluon_judge.report import Report

__all__ = ["gluon_judge"]


@pytest.fixture(scope="session")
def gluon_judge() -> Iterator[Callable[..., Report]]:
    """Return `judge(candidate, reference, problem, target=None, **options)`, as `gluon_judge.judge`."""
    judges: dict[Optional[str], Judge] = {}

    def judge(*files: Any, target: Optional[str] = None, **options: Any) -> Report:
        from gluon_judge.judging import Judge

        if target not in judges:
            judges[target] = Judge(target)
        return judges[target].judge(*files, **options)

    yield judge
    for one in judges.values():
        one.close()
