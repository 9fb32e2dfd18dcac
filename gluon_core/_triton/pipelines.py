"""The passes of a compilation by name, with some left out: for those who search for the pass that is wrong."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

from triton._C import libtriton

__all__ = ["Passes", "limited", "optional"]

OPTIMIZER = "LLVM's optimizer"
_OPTIONAL = (
    "canonicalizer", "cse", "sccp", "symbol_dce", "loop_aware_cse", "triton_licm", "licm",
    "combine_tensor_select_and_if",
)  # fmt: skip
_MARK = "KEPT_PASSES_OF_GLUON"


class Passes:
    """The passes that pipelines took inside `limited`, in order.

    Args:
        file: gets their names, also those of other processes.
    """

    def __init__(self, file: Path):
        self._file = file

    @property
    def names(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []


def optional(name: str) -> bool:
    """Return True for a pass that only optimizes: the code is complete without it."""
    return name == OPTIMIZER or name.rpartition(".")[2] in _OPTIONAL


@contextmanager
def limited(most: Optional[int]) -> Iterator[Passes]:
    """Leave the optional passes out, but for the first ones; compilations inside share no cache with others.

    Args:
        most: the number of optional passes to keep; None for all.
    """
    with tempfile.TemporaryDirectory(prefix="gluon-passes-") as folder:
        passes = Passes(Path(folder) / "names")
        before = {name: os.environ.get(name) for name in (_MARK, "TRITON_CACHE_DIR")}
        os.environ[_MARK] = (
            f"{folder} {most}"  # a warm process of other surroundings does not serve
        )
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "cache")
        replaced = list(_replace(passes._file, most))
        try:
            yield passes
        finally:
            for module, name, original in replaced:
                setattr(module, name, original)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _replace(file: Path, most: Optional[int]) -> Iterator[tuple[Any, str, Any]]:
    """Wrap all that adds passes; yield (module, name, original)."""
    taken = [0]

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def add(*arguments: Any, **more: Any) -> Any:
            with file.open("a") as out:
                out.write(f"{name}\n")
            if optional(name):
                taken[0] += 1
                if most is not None and taken[0] > most:
                    return None
            return original(*arguments, **more)

        return add

    for prefix, module in _modules():
        for name in dir(module):
            if name.startswith("add_"):
                original = getattr(module, name)
                setattr(module, name, wrapped(f"{prefix}.{name[4:]}", original))
                yield module, name, original
    original = libtriton.llvm.optimize_module
    libtriton.llvm.optimize_module = wrapped(OPTIMIZER, original)
    yield libtriton.llvm, "optimize_module", original


def _modules() -> Iterator[tuple[str, Any]]:
    backends = [part for part in vars(libtriton).values() if isinstance(part, ModuleType)]
    for root in (libtriton.passes, *(part.passes for part in backends if hasattr(part, "passes"))):
        for name in dir(root):
            module = getattr(root, name)
            if isinstance(module, ModuleType):
                yield name, module
