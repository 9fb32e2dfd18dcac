"""The classes of our errors, which include those that Triton's own Gluon raises."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from gluon_core import _triton
from tests.compat import sides
from tests.compat.mistakes import MISTAKES, Mistake
from tests.frontend import oracle

_EMPTY = "@gluon.jit\ndef kernel():\n    pass\n"


class _Utils:
    """The part of a driver that loads kernels, with the limits of an H200 and a B200."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448, "warpSize": 32}

    def load_binary(self, *binary: Any) -> tuple[int, ...]:
        threads = 1024
        return 1, 1, 32, 0, threads


class _Driver:
    """A substitute for the driver of a GPU; it launches nothing."""

    utils = _Utils()

    def __init__(self, target: Any):
        self.target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None


def _theirs(source: str) -> None:
    from triton.runtime import driver

    module = oracle.load(source, oracle.UPSTREAM)
    driver.set_active(_Driver(module.TARGET))
    if hasattr(module, "go"):
        return module.go()
    compiled = module.kernel.warmup(*module.ARGS, grid=(1,), **module.KWARGS)
    if hasattr(module, "LOADED"):
        compiled._init_handles()


def _ours(source: str) -> None:
    module = oracle.load(source, oracle.OURS)
    if hasattr(module, "go"):
        return module.go()
    module.kernel.warmup(*module.ARGS, grid=(1,), target=module.TARGET, **module.KWARGS)


def _bases(side: Callable[[str], None], source: str) -> list[str]:
    """Return the names of the class that a side raises and of its bases; the first is the class."""

    def run() -> str:
        try:
            side(source)
        except Exception as error:
            return " ".join(kind.__name__ for kind in type(error).__mro__)
        return ""

    answer = sides.child(run)
    assert answer.how in ("ok", "abort"), answer.text
    return answer.text.split() if answer.how == "ok" else ["abort"]


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """Load the modules that each child needs: a fork then costs milliseconds."""
    from triton.runtime import driver

    before = _triton.given_driver()
    sides.warm()
    on_host = next(mistake for mistake in MISTAKES if "def go" in mistake.source)
    for side in (_theirs, _ours):
        for target in ("'cuda', 90, 32", "'hip', 'gfx942', 64"):
            side(f"{_EMPTY}TARGET = GPUTarget({target})\n")
        with pytest.raises(Exception):
            side(on_host.source)
    driver.set_active(before)


@pytest.mark.once
@pytest.mark.sampled(80)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_the_class_is_theirs_too(mistake: Mistake):
    theirs = _bases(_theirs, mistake.source)
    if theirs and theirs != ["abort"]:  # not every release refuses it
        assert theirs[0] in mistake.classes, theirs
    mine = _bases(_ours, mistake.source)
    if theirs or mine:
        assert "GluonError" in mine or "TypeError" in mine, mine
        assert set(mistake.classes) <= set(mine), mine
