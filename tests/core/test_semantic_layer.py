"""The protocol that ops are written against is that of the semantic layer, and plugins use no more."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from gluon_core.plugin.semantic import SemanticLayer, Trace
from gluon_core.semantic.composed import Semantic
from gluon_core.testing.declared import members

BACKENDS = Path(__file__).parents[2] / "backends"
FILES = [file for name in ("nvidia", "amd", "sim") for file in BACKENDS.glob(f"{name}/**/*.py")]
METHODS = sorted(members(SemanticLayer) - set(Trace.__annotations__))


@pytest.mark.once
@pytest.mark.parametrize("name", METHODS)
def test_the_layer_has_every_method_of_the_protocol(name):
    wanted, method = getattr(SemanticLayer, name), inspect.getattr_static(Semantic, name, None)
    if name == "place":  # of each function that is traced
        return
    assert method is not None
    if isinstance(wanted, property):
        assert isinstance(method, property)
        return
    wanted = list(inspect.signature(wanted).parameters)[1:]
    own = list(inspect.signature(getattr(Semantic, name)).parameters)
    if not isinstance(method, staticmethod):
        own = own[1:]
    variadic = any(parameter in ("more", "named") for parameter in own)
    assert own[: len(wanted)] == wanted or variadic


def test_a_trace_has_the_attributes_of_the_protocol():
    own = inspect.getsource(Semantic.__init__)
    inherited = {"builder", "passed"}
    assert all(f"self.{name}" in own for name in set(Trace.__annotations__) - inherited)


@pytest.mark.once
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(BACKENDS)))
def test_plugins_call_no_private_method_of_the_layer(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            holder = ast.unparse(node.value)
            assert not holder.endswith(("semantic", "semantic_layer()")), ast.unparse(node)
