"""The tables of the features of each Triton release; no number of a release is outside them."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gluon_core import _triton
from gluon_core.errors import CapabilityError
from gluon_core.features import NEWEST, OLDEST, Feature
from gluon_core.language._adopted import NotInReleaseError, withhold
from gluon_core.layouts.dialect import follows, require_followed, set_compiler_version
from gluon_core.plugin import ops

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "gluon_core": ROOT / "gluon_core",
    "gluon_nvidia": ROOT / "backends" / "nvidia" / "gluon_nvidia",
    "gluon_amd": ROOT / "backends" / "amd" / "gluon_amd",
    "gluon_sim": ROOT / "backends" / "sim" / "gluon_sim",
}
TABLES = [name for name, folder in PACKAGES.items() if (folder / "features.py").exists()]
# Most files have nothing to do with releases, and parsing them all takes seconds.
MAY_ASK = re.compile(r"\bhas\(|require|at_least|since|Triton|\b3, \d|features")
DOOR = PACKAGES["gluon_core"] / "_triton"


def lines(package):
    tables = vars(importlib.import_module(f"{package}.features"))
    return {name: value for name, value in tables.items() if isinstance(value, Feature)}


@functools.lru_cache(maxsize=None)
def asks():
    """(file, syntax tree) of everything that may ask, and may not know a number."""
    files = [path for folder in PACKAGES.values() for path in folder.rglob("*.py")]
    texts = {
        path: path.read_text()
        for path in files
        if path.name != "features.py" and DOOR not in path.parents
    }
    return [(path, ast.parse(text)) for path, text in texts.items() if MAY_ASK.search(text)]


def numbers(tree):
    """Return the lines of code with a release's number or a comparison with one."""
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            major, minor = (getattr(item, "value", None) for item in node.elts)
            if major == OLDEST[0] and minor in range(OLDEST[1], 20):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "at_least":
            yield node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents and re.search(r"needs Triton|Triton (>= )?\d", node.value):
                yield node.lineno


def test_results_of_the_search():
    values = numbers(
        ast.parse(
            '"""Triton >= 3.8"""\nx < (3, 8)\n_triton.at_least(3, 7)\nf"{x} needs Triton >= 3.7"\n'
            'def f(since=(3, 9)):\n    "needs Triton >= 3.7"\n    return (3, 5), (3, 6, 7), [3, 6]\n'
        )
    )
    assert sorted(values) == [2, 3, 4, 5]


@pytest.mark.once
def test_no_number_of_a_release_is_outside_the_tables():
    # The sentence of `contract.selection` is about a datum that a plugin declares.
    stray = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in asks()
        for line in numbers(tree)
        if path.name != "selection.py"
    ]
    assert not stray


@pytest.mark.parametrize("package", TABLES)
def test_each_line_distinguishes_supported_releases(package):
    for name, feature in lines(package).items():
        assert OLDEST <= feature.since <= NEWEST, name
        assert feature.since > OLDEST or feature.last, f"{name}: every release has it"
        assert feature.last is None or feature.since <= feature.last < NEWEST, name
        assert feature.title, name


@pytest.mark.once
@pytest.mark.parametrize("package", TABLES)
def test_each_line_is_asked_for(package):
    used = {
        node.id
        for path, tree in asks()
        if PACKAGES[package] in path.parents or package == "gluon_core"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    assert not set(lines(package)) - used


LATER = Feature((3, 8), "what came later")
GONE = Feature((3, 7), "what went again", last=(3, 8))


@pytest.mark.parametrize(
    "version, later, gone",
    [((3, 6), False, False), ((3, 7), False, True), ((3, 8), True, True), ((3, 9), True, False)],
)
def test_owners_of_elements(monkeypatch, version, later, gone):
    monkeypatch.setattr(_triton, "VERSION", version)
    assert (ops.has(LATER), ops.has(GONE)) == (later, gone)
    set_compiler_version(version)
    try:
        assert (follows(LATER), follows(GONE)) == (later, gone)
    finally:
        set_compiler_version(None)


def test_a_target_without_it_is_reported(monkeypatch):
    monkeypatch.setattr(_triton, "VERSION", (3, 9))
    monkeypatch.setattr(_triton, "VERSION_TEXT", "3.9.0")
    ops.require(LATER, "gl.later")
    with pytest.raises(CapabilityError) as error:
        ops.require(GONE, "gl.gone", "Use gl.later.")
    assert "gl.gone needs Triton 3.7 to 3.8, found 3.9.0" in str(error.value)
    assert "Use gl.later." in str(error.value)
    set_compiler_version((3, 7))
    try:
        require_followed(GONE, "gl.gone")
        with pytest.raises(CapabilityError, match="gl.later needs Triton >= 3.8, found 3.7"):
            require_followed(LATER, "gl.later")
    finally:
        set_compiler_version(None)


def test_a_name_that_no_table_has_is_an_error_where_it_is_imported():
    with pytest.raises(ImportError):
        exec("from gluon_core.features import CASHE_POLICY")


def test_a_withheld_name_stays_with_the_code_of_its_module():
    module = ModuleType("offers")
    op = SimpleNamespace(since=Feature((99, 0), "no release"))
    vars(module).update(op=op, other=1)
    exec("def own(): return op", vars(module))
    withhold(module, "gl.offers")
    assert module.own() is op and module.other == 1 and not hasattr(module, "op")
    with pytest.raises(NotInReleaseError, match=r"gl\.offers\.op needs Triton >= 99\.0"):
        module.op
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing
    with pytest.raises(AttributeError, match="op is withheld"):
        module.op = 1


def test_a_namespace_that_withholds_names_is_copied_as_a_global_of_kernels():
    new = SimpleNamespace(since=Feature((99, 0), "a new op"))
    module = ModuleType("namespace_of_test")
    module.op = new
    withhold(module, "gl.test")
    assert type(module) is not ModuleType
    assert copy.deepcopy(module) is module
