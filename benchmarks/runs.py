"""Forms of a launch that benchmarks run in turn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Callable

Runs = dict[str, Callable[[], Any]]


def imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wanted(name: str, words: list[str]) -> bool:
    """Return True if a case has one of the words that were asked for."""
    return any(word in name for word in words)


class Twins(Runs):
    """The forms of a launch, and the results that they share."""

    def __init__(self, runs: Runs, results: list[Any], added: bool, apart: float) -> None:
        super().__init__(runs)
        self.results, self.added, self.apart = results, added, apart

    def check(self) -> None:
        """Run all, and raise where a result of ours is further from another one than rounding explains."""
        import torch

        both: dict[str, list[Any]] = {}
        for name, run in self.items():
            for result in self.results:
                result.fill_(0 if self.added else 3)
            run()
            both[name] = [result.clone() for result in self.results]
        ours = [result.double() for result in both.pop("ours")]
        for name, results in both.items():
            for one, other in zip(ours, (result.double() for result in results)):
                apart = (one - other).norm()
                distance = 0.0 if apart == 0 else (apart / other.norm()).item()
                if not torch.isfinite(one).all() or not distance <= self.apart:
                    raise ValueError(f"results of {name} differ by {distance:.2g} of their norm")
