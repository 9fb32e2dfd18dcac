"""The identity of kernels under tools that rewrite or watch code, and with any object among their globals.

pytest rewrites the assertions of this file, too.
"""

import ast
import functools
import importlib.util
import inspect
import keyword
import linecache
import logging
import subprocess
import symtable
import sys
import textwrap
import threading
import time
import types
import unittest.mock

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.values import names
from gluon_core.values.constants import identity, text_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

TARGET = "sim:sm_80"
SCALE = 3
LOG = logging.getLogger(__name__)


def plain(n):
    assert n > 0, "positive"
    return n * SCALE


@gluon.constexpr_function
def compute(n):
    assert n < 100
    return plain(n)


@gluon.jit
def callee(v, N: gl.constexpr):
    assert N > 0
    return v + compute(N)


@gluon.jit
def asserts(y, N: gl.constexpr):
    assert N < 100, "small"
    gl.store(y, callee(1, N))


def run(kernel, *constants):
    y = np.zeros(1, np.int32)
    kernel[(1,)](y, *constants, target=TARGET)
    return int(y[0])


def load(path, name="loaded"):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def unwritten():
    """Return this module as Python alone compiles it."""
    return load(__file__, __name__)


# -- tools that rewrite code ------------------------------------------------------------------------


def test_assertions_that_pytest_rewrote():
    kernel = identity(asserts)
    assert kernel.lasting and "pytest" not in {read.name for read in kernel.reads}
    assert [read.name for read in kernel.reads] == ["SCALE"]
    assert run(asserts, 2) == 7


@pytest.mark.parametrize("name", ["asserts", "callee", "compute", "plain"])
def test_rewritten_code_agrees_with_its_source(unwritten, name):
    code = getattr(globals()[name], "fn", globals()[name]).__code__
    if "@pytest_ar" not in code.co_names:
        pytest.skip("pytest does not rewrite assertions in this run")
    assert text_of(globals()[name]) == text_of(getattr(unwritten, name))


def test_code_that_a_coverage_tool_rewrote():
    """Such a tool calls something of its own before each line."""
    tree = ast.parse(inspect.getsource(plain))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            hits = [ast.parse(f"TOOL.hit({i})").body[0] for i in range(len(body))]
            node.body = [one for pair in zip(hits, body) for one in pair] if body[0:] else body
    function = tree.body[1]
    ast.increment_lineno(function, plain.__code__.co_firstlineno - function.lineno)
    scope = {}
    exec(compile(ast.Module([function], []), __file__, "exec"), scope)
    before, code = text_of(asserts), plain.__code__
    plain.__code__ = scope["plain"].__code__
    try:
        assert "TOOL" in plain.__code__.co_names and text_of(asserts) == before
        assert identity(asserts).lasting
    finally:
        plain.__code__ = code


def test_a_debugger_changes_nothing():
    before = text_of(asserts)
    asserts.forget()

    def tracer(frame, event, argument):
        return tracer

    sys.settrace(tracer)
    try:
        assert run(asserts, 2) == 7 and text_of(asserts) == before
    finally:
        sys.settrace(None)


@pytest.mark.once
def test_a_test_module_run_by_pytest(tmp_path):
    text = inspect.getsource(sys.modules[__name__]).partition("@pytest.mark.once")[0]
    (tmp_path / "test_kernels.py").write_text(text)
    from tests import warm

    command = ["-m", "pytest", "-q", "--assert=rewrite", tmp_path]
    done = warm.run(command, cwd=tmp_path, timeout=100)
    assert done.returncode == 0 and "7 passed" in done.stdout, done.stdout


# -- decorators -------------------------------------------------------------------------------------


def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        CALLS.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper


CALLS = []


@gluon.constexpr_function
@counted
def twice(n):
    return 2 * n * SCALE


@gluon.jit
@counted
def doubles(y, N: gl.constexpr):
    gl.store(y, twice(N))


@functools.lru_cache(maxsize=None)
def cached(n):
    return n * SCALE


@gluon.constexpr_function
def through_cache(n):
    return cached(n)


@gluon.jit
def uses_cache(y, N: gl.constexpr):
    gl.store(y, through_cache(N))


def test_decorated_functions_are_read_through_their_wrappers():
    assert run(doubles, 2) == 12 and run(uses_cache, 2) == 6
    for kernel in (doubles, uses_cache):
        assert "SCALE" in {read.name for read in identity(kernel).reads}
        assert identity(kernel).lasting


def test_a_launcher_around_a_kernel():
    @functools.wraps(asserts)
    def launcher(*args):
        return asserts[(1,)](*args, target=TARGET)

    y = np.zeros(1, np.int32)
    launcher(y, 2)
    assert y[0] == 7 and identity(launcher).lasting


# -- code without a file ----------------------------------------------------------------------------

CELL = """
FACTOR = 4
def factor(n):
    assert n
    return n * FACTOR
@gluon.constexpr_function
def compute(n):
    return factor(n)
@gluon.jit
def kernel(y, N: gl.constexpr):
    gl.store(y, compute(N))
"""


def cell(text, number):
    name = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"gluon": gluon, "gl": gl, "__name__": "__main__"}
    exec(compile(text, name, "exec"), scope)
    return scope


def test_cells_of_a_notebook():
    first, again = cell(CELL, 1), cell(CELL, 2)
    other = cell(CELL.replace("n * FACTOR", "n + FACTOR"), 3)
    assert run(first["kernel"], 3) == 12 and run(other["kernel"], 3) == 7
    assert identity(first["kernel"]).lasting
    assert text_of(first["kernel"]) == text_of(again["kernel"]) != text_of(other["kernel"])


def test_functions_that_have_no_source():
    texts = []
    for factor in (1, 1, 2):
        scope = {"__name__": "typed", "SCALE": factor}
        exec("def helper(n):\n    assert n\n    return n * SCALE", scope)
        texts.append(text_of(scope["helper"]))
        assert identity(scope["helper"]).lasting
    assert texts[0] == texts[1] != texts[2]


def test_a_file_that_is_newer_than_the_process_is_not_read(tmp_path):
    path = tmp_path / "late.py"
    path.write_text("def helper(n):\n    return n + 1\n")
    helper = load(path).helper
    before = text_of(helper)
    path.write_text("def helper(n):\n    return n + 2\n")
    linecache.checkcache()
    assert names.source_of(helper.__code__) is None and text_of(helper) == before


# -- globals that are no constants ------------------------------------------------------------------


class Config:
    def __init__(self, **more):
        self.__dict__.update(more)


class Registry:
    """An object that refers to every module and to itself."""

    def __init__(self):
        self.modules, self.me, self.lock = dict(sys.modules), self, threading.Lock()

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


def ring():
    items = [1]
    items.append(items)
    return items


def chain(length):
    config = None
    for _ in range(length):
        config = Config(next=config)
    return config


STRANGE = {
    "a logger": LOG,
    "a mock": unittest.mock.Mock(),
    "a magic mock": unittest.mock.MagicMock(spec=gl.BlockedLayout),
    "a module of torch": torch.nn.Linear(2, 2),
    "a registry": Registry(),
    "a lock": threading.Lock(),
    "a tensor": torch.zeros(2),
    "a long chain": chain(5000),
    "many objects": [Config(n=n) for n in range(20000)],
    "many classes": [type(f"C{n}", (), {"n": n})() for n in range(100)],
    "many items": dict.fromkeys(range(200000), ()),
    "many classes with state": [type(f"C{n}", (Config,), {})(n=n) for n in range(100)],
    "deep lists": functools.reduce(lambda inner, _: [inner], range(5000), []),
    "a large array": np.zeros(1 << 27, np.uint8),
}
PLAIN = {
    "a module": torch,
    "a ring": ring(),
    "settings": Config(block=64, names=["a"], inner=Config(stages=2)),
    "a large dict": {n: str(n) for n in range(20000)},
    "an array": np.arange(1 << 20),
    "a namespace": types.SimpleNamespace(block=64),
}


@gluon.constexpr_function
def mentions(n):
    if n < 0:
        THING.debug("negative")
    return n + 1


@gluon.jit
def mentioning(y, N: gl.constexpr):
    gl.store(y, mentions(N))


@gluon.constexpr_function
def add_number(n):
    return n + THING.number


@gluon.jit
def adding(y, N: gl.constexpr):
    gl.store(y, add_number(N))


THING = None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*STRANGE, *PLAIN])
def test_any_object_may_be_mentioned(monkeypatch, name):
    monkeypatch.setattr(sys.modules[__name__], "THING", {**STRANGE, **PLAIN}[name])
    mentioning.forget()
    started = time.monotonic()
    first, again = identity(mentioning), identity(mentioning)
    assert run(mentioning, 2) == 3 and run(mentioning, 2) == 3
    assert time.monotonic() - started < 5
    assert first.text == again.text and first.lasting == (name in PLAIN)


@pytest.mark.parametrize("name", STRANGE)
def test_any_object_may_be_a_constant(name):
    first, again = identity(STRANGE[name]), identity(STRANGE[name])
    assert first.text == again.text and not first.lasting
    assert text_of(STRANGE[name]) != text_of(object())


def test_a_replacement_by_an_equal_is_compiled_again(monkeypatch):
    mentioning.forget()
    for thing in (LOG, unittest.mock.MagicMock(), LOG):
        monkeypatch.setattr(sys.modules[__name__], "THING", thing)
        assert run(mentioning, 2) == 3


def test_settings_that_change_are_noticed(monkeypatch):
    settings = Config(block=64)
    monkeypatch.setattr(sys.modules[__name__], "THING", settings)
    mentioning.forget()
    before = text_of(mentioning)
    assert run(mentioning, 2) == 3
    settings.block = 128
    assert text_of(mentioning) != before
    with pytest.raises(gluon.errors.GlobalVariableError, match="THING"):
        run(mentioning, 2)


def test_settings_that_hold_a_logger_are_noticed(monkeypatch):
    settings = Config(number=1, log=LOG)
    monkeypatch.setattr(sys.modules[__name__], "THING", settings)
    adding.forget()
    assert run(adding, 2) == 3
    settings.number = 5
    assert run(adding, 2) == 7


def test_a_chain_of_functions_is_read_to_its_end():
    text = "@gluon.jit\ndef f0(a):\n    return a + LAST\n"
    text += "".join(f"@gluon.jit\ndef f{i}(a):\n    return f{i - 1}(a)\n" for i in range(1, 500))
    kernel = identity(cell("LAST = gl.constexpr(1)\n" + text, 9)["f499"])
    assert kernel.lasting and [read.name for read in kernel.reads] == ["LAST"]


# -- names in a text --------------------------------------------------------------------------------

TEXTS = {
    "lib.deep.SIZE + lib . SIZE": "lib.SIZE lib.deep.SIZE",
    "f(SIZE=1, other=SIZES == 2)": "SIZES f",
    "x = 'NOT' + \"NOT\" + '''NOT\nNOT''' + rb'NOT'  # NOT": "",
    "static_assert(A, f'{B.c} NOT {D:{E}} {{NOT}}')": "A B.c D E static_assert",
    "x = A.b().NOT[C].NOT + 1e5 + 0x1F + 1_0j": "A.b C",
    "x: A.kind = B\nx.NOT = C\nx += 1": "A.kind B C",
    "y = y + 1": "y",  # of kernels: the outer one is read first
    "y = 1\nz = y": "",
    "for i in R:\n    z = i\nw = [A for A in B]": "B R",
    "def inner(a, b=C):\n    return a + D\nz = inner(1)": "C D",
    "import lib\nz = lib.SIZE": "",
    "match A:\n    case B.c(d=e):\n        z = e": "A B.c",
}


@pytest.mark.parametrize("text", TEXTS)
def test_names_of_a_text(text):
    source = f"def function(x: NOT, n=NOT) -> NOT:\n{textwrap.indent(text, '    ')}\n"
    scope = {}
    exec(f"NOT = None\n{source}", scope)
    everything = dict.fromkeys("lib SIZE y z i A B C D E w e NOT".split())
    names_read = names.names_of(source, scope["function"].__code__)
    words = {*keyword.kwlist, *keyword.softkwlist} - {"_", "type"}
    chains = {chain for chain in names_read.within(source, everything) if chain[0] not in words}
    assert chains == {tuple(one.split(".")) for one in TEXTS[text].split()}


def outer_names(table):
    """Return the names that Python's own compiler takes for global in a function."""
    outer = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return outer.union(*map(outer_names, table.get_children()))


@pytest.mark.once
def test_names_by_tokens_are_those_of_the_compiler():
    missing, checked = [], 0
    for module in (ast, inspect, functools, logging, subprocess, textwrap, unittest.mock):
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else [value]
            for function in members:
                code = getattr(function, "__code__", None)
                source = isinstance(code, types.CodeType) and names.source_of(code)
                if not source:
                    continue
                checked += 1
                chains = names.names_of(source, code).within(source, vars(module))
                table = symtable.symtable(source, "text", "exec").get_children()[0]
                wanted = outer_names(table) & vars(module).keys()
                missing += [
                    (code.co_name, name) for name in wanted - {chain[0] for chain in chains}
                ]
    assert checked > 300 and missing == []
