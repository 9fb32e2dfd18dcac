"""Every public op of the language and of each vendor's modules stands in a family, or below with its reason."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any, Iterator

import pytest

from gluon_core import language as ours
from gluon_core._triton import JITCallable
from gluon_core.testing import TRITON_VERSION
from tests.compat.families import FAMILIES, made
from tests.frontend import names_table, oracle
from tests.fuzz import operands

theirs = pytest.importorskip("triton.experimental.gluon").language
COUNT = 250

# Called by Python or by the tracer, or of no effect on a module.
APART: dict[str, str] = {
    "amd.slice.slice": "a name of amd.slice, which is the op itself",
}

_KINDS = {"builtin", "jit", "constexpr_function", "dataclass", "class", "function", "method"}
# Names of classes whose values ops make, and those that the compiler asks a type for.
_INNER = (
    "_type",
    "_descriptor",
    "_accumulator",
    "clc_result",
    "mangle",
    "to_ir",
    "verify",
    "_im2col",
    "_view",
)
_TABLES = Path(__file__).parents[1] / "backends"


def _portable() -> Iterator[str]:
    """Return the names of the installed release, classes and helpers of its own modules aside."""
    for name, value in vars(theirs).items():
        op = getattr(value, "__triton_builtin__", False) or isinstance(value, JITCallable)
        if not name.startswith("_") and (op or name.endswith("Layout")):
            yield name
    for name in ("tensor", "shared_memory_descriptor"):
        for member, value in vars(getattr(theirs, name)).items():
            if not member.startswith("_") and callable(value):
                yield f"{name}.{member}"


def _vendors() -> Iterator[str]:
    for vendor in ("nvidia", "amd"):
        for row in names_table.read(_TABLES / vendor / "language" / "names.json"):
            first, last = (
                tuple(map(int, v.split("."))) if v else () for v in (row.first, row.last)
            )
            there = first <= TRITON_VERSION[:2] <= (last or (99,))
            if row.name.endswith(_INNER) or "_type." in row.name:
                continue
            if there and row.kind in _KINDS and row.namespace.startswith("gluon.language."):
                yield str(row)


OPS = sorted({*_portable(), *_vendors()})


def _named(source: str) -> Iterator[tuple[str, ...]]:
    """The dotted chains of a program, each from its first name on."""
    for node in ast.walk(ast.parse(source)):
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            yield (node.id, *chain)
        elif chain:
            yield ("", *chain)


@functools.lru_cache(maxsize=None)
def _head(text: str) -> dict[str, Any]:
    return vars(oracle.load(text, oracle.OURS))


class Named:
    """Return the names in programs of all families: objects of ours, and methods of values."""

    def __init__(self) -> None:
        self.objects: set[int] = set()
        self.methods: set[str] = set()

    def add(self, source: str) -> None:
        names = _head(source.partition("@gluon.jit")[0] if "@" in source else "")
        for first, *rest in _named(source):
            value: Any = names.get(first)
            if value is None:
                self.methods.update(rest)
                continue
            self.objects.add(id(value))
            for name in rest:
                if isinstance(value, type):
                    self.methods.add(name)
                value = getattr(value, name, None)
                self.objects.add(id(value))

    def __contains__(self, op: str) -> bool:
        value: Any = ours
        *owner, last = op.split(".")
        for part in owner:
            value = getattr(value, part)
        if isinstance(value, type):
            return last in self.methods
        return id(getattr(value, last, None)) in self.objects


def missing(wanted: set[str]) -> set[str]:
    """Those that no program names, of as many programs of each family as it takes."""
    named = Named()
    for source in operands.ops():
        named.add(source)
    drawn = [f for f in FAMILIES if f not in operands.FAMILIES]
    for number in range(COUNT):
        for family in drawn:
            named.add(made(family, 0, number))
        wanted = {op for op in wanted if op not in named}
        if not wanted:
            break
    return wanted


@pytest.mark.once
def test_each_op_is_in_a_family():
    assert len(OPS) > 250
    assert not missing({*OPS} - {*APART}), "ops of no family"


def main() -> None:
    print(*sorted(missing({*OPS} - {*APART})))


if __name__ == "__main__":
    main()
