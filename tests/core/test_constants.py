"""Equality of compile-time values: in memory, within one kernel, and in another process."""

import collections
import dataclasses
import enum
import fractions
import functools
import json
import math
import os
import struct
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GlobalVariableError
from gluon_core.layouts.base import Layout
from gluon_core.values.constants import identity, text_of

TARGET = "sim:sm_80"


# -- values that differ, and values that do not ---------------------------------------------------


class Hides:
    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return "Hides()"


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number


class Text(str):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int
    hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    @functools.cached_property
    def twice(self):
        return 2 * self.number


@dataclasses.dataclass(frozen=True)
class AlsoFrozen:
    number: int
    hidden: int = 0


class Mode(enum.Enum):
    ONE = 1
    TWO = 2
    REAL = 2.5


class Level(enum.IntEnum):
    ONE = 1


class OtherLevel(enum.IntEnum):
    ONE = 1


class Way(enum.Flag):
    LEFT = 1
    RIGHT = 2


class Typed(NamedTuple):
    a: int
    b: int


Pair = collections.namedtuple("Pair", "a b")
Named = collections.namedtuple("Pair", "a c")


def closure(number):
    def helper(x):
        return x + number

    return helper


def jit_closure(number):
    @gluon.jit
    def helper(x):
        return x + number

    return helper


@gl.aggregate
class Box:
    size: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, size):
        self.size = gl.constexpr(size)


def nan(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def blocked(n):
    return gl.BlockedLayout([n], [32], [4], [0])


# Made anew by each call. No two of one call are the same constant; those of two calls are, in order.
def different():
    return [
        *(None, 0, 1, True, False, 1.0, 0.0, -0.0, 1j, 10**6000, ..., "1", b"1", "True", "None"),
        *(math.inf, -math.inf, nan(0x7FF8 << 48), nan(0xFFF8 << 48), nan((0x7FF8 << 48) + 1)),
        *("1.0", "nan", "(0x1)", "0x1", "(0x1),(0x2)", "", "'", '"', "\\", "\ud800", "dtype fp32"),
        *(Text("1"), Level.ONE, OtherLevel.ONE, Mode.ONE, Mode.TWO, Mode.REAL),
        *(Way.LEFT, Way.RIGHT, Way.LEFT | Way.RIGHT),
        *((), [], {}, set(), frozenset(), (1,), [1], {1}, {1: 1}, {1: True}, (True,), ((1,),)),
        *((1, 2), [1, 2], (2, 1), {1: 2, 3: 4}, {3: 4, 1: 2}, {1, 2}, frozenset({1, 2}), ((1), (2,))),
        *(("a", "b"), ("a,b",), ("a', 'b",), ["a", "b"], (1, (2, 3)), ((1, 2), 3), bytearray(b"1")),
        *(Pair(1, 2), Named(1, 2), Typed(1, 2), Pair(1, 2.0)),
        *(range(3), range(0, 4), slice(1), slice(1, None), fractions.Fraction(1, 2)),
        *((gl.constexpr(1),), [gl.constexpr(1)], (gl.constexpr("1"),)),
        *(gl.float32, gl.float16, gl.bfloat16, gl.float8e4nv, gl.float8e4b8, gl.int1, gl.uint8),
        *(gl.pointer_type(gl.float32), gl.pointer_type(gl.float16)),
        *(torch.float32, torch.float16, np.dtype("f4"), np.dtype(">f4"), np.float32, np.float64),
        *(np.float32(1), np.float64(1), np.int32(1), np.int64(1), np.bool_(True), np.float64(-0.0)),
        *(np.array([1, 2]), np.array([1, 2], "i2"), np.array([[1, 2]])),
        *(blocked(1), blocked(2), gl.SliceLayout(0, gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))),
        *(gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])), gl.AutoLayout()),
        *(gl.SwizzledSharedLayout(1, 1, 1, [0]), gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])),
        gl.nvidia.hopper.mbarrier.MBarrierLayout(),
        *(Hides(1), Hides(2), Hides(1.0), Slotted(1), Slotted(2), [Hides(1)], (Hides(2),)),
        *(Frozen(1), Frozen(2), Frozen(1, 1), AlsoFrozen(1), functools.partial(max, 1)),
        *(closure(1), closure(2), lambda x: x, lambda x: x + 1, lambda x, n=1: x + n),
        *(lambda x, n=2: x + n, lambda x: [x, 1], lambda x: [x, True], math.sqrt, np.sqrt, len),
        *(gl.exp, gl.log, gl.load, gl.nvidia.hopper.mbarrier.wait, gl.amd.gfx1250.mbarrier.wait),
        *(jit_closure(gl.constexpr(1)), jit_closure(gl.constexpr("1")), jit_closure(gl.constexpr(True))),
        *(Hides, Frozen, AlsoFrozen, Mode, Box, Pair, Named, Typed, int, Hides.__init__, Hides(1).__init__),
    ]  # fmt: skip


FIRST, AGAIN = [identity(v) for v in different()], [identity(v) for v in different()]


def test_different_values_have_different_texts():
    by_text = collections.defaultdict(list)
    for text, value in zip(FIRST, different()):
        by_text[text.text].append(value)
    assert [values for values in by_text.values() if len(values) > 1] == []


def test_equal_values_have_equal_texts_and_all_mean_the_same_elsewhere():
    for text, again, value in zip(FIRST, AGAIN, different()):
        assert (text.text, text.lasting) == (again.text, True), value


def test_a_constexpr_acts_as_its_value():
    assert text_of(gl.constexpr((1, 2))) == text_of((1, 2))


def test_cached_attributes_do_not_count():
    value = Frozen(3)
    before = text_of(value)
    assert value.twice == 6 and "twice" in vars(value)
    assert text_of(value) == before


def test_an_object_without_state_is_only_itself():
    class Marker:
        pass

    first, second = Marker(), Marker()
    for value in (first, object(), torch.zeros(1)):
        assert not identity(value).lasting and text_of(value) == text_of(value)
    assert text_of(first) != text_of(second)
    assert not identity((1, [first])).lasting and not identity({1: Hides(first)}).lasting
    texts = set()
    for _ in range(50):  # at one address, one after the other
        texts.add(text_of(Marker()))
    assert len(texts) == 50


def test_values_within_themselves():
    ring = [1]
    ring.append(ring)
    other = [1]
    other.append([1, other])
    assert text_of(ring) != text_of(other)

    class Node:
        pass

    Node.first = Node()
    Node.first.next = Node.first
    assert identity(Node.first).lasting and identity(Node).lasting

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert identity(even).lasting and text_of(even) != text_of(odd)


def test_layouts_are_identified_by_plain_fields():
    """`_layout` prints each field: it may hold numbers, words, lists of them, and layouts."""

    def plain(value):
        if isinstance(value, list):
            return all(map(plain, value))
        return type(value) in (int, bool, str, type(None)) or isinstance(value, Layout)

    def classes(cls):
        return {cls, *(subclass for sub in cls.__subclasses__() for subclass in classes(sub))}

    known = {cls for cls in classes(Layout) if dataclasses.is_dataclass(cls)}
    assert len(known) > 10
    for cls in known:
        assert all(field.compare for field in dataclasses.fields(cls)), cls
    for value in different():
        if isinstance(value, Layout):
            assert all(plain(field) for _, field in value._fields()), value
    one = np.int64(1)
    layout = gl.BlockedLayout([one], [np.int32(32)], (4,), [0])
    assert text_of(layout) == text_of(blocked(1))


# -- in memory ------------------------------------------------------------------------------------


@gluon.constexpr_function
def number(constant):
    return constant.number


@gluon.jit
def kernel(y, WHAT: gl.constexpr):
    gl.store(y, number(WHAT))


@gluon.jit
def call(y, F: gl.constexpr):
    gl.store(y, F(1))


def run(*constants, kernel=kernel):
    y = np.zeros(1, np.int32)
    kernel[(1,)](y, *constants, target=TARGET)
    return int(y[0])


@pytest.fixture(autouse=True)
def fresh():
    kernel.forget()
    call.forget()


def test_a_field_that_does_not_print_counts():
    assert (run(Hides(1)), run(Hides(2)), run(Hides(1))) == (1, 2, 1)


@pytest.mark.once
def test_an_object_that_changes_is_another_constant():
    class Config:
        number = 10

    value = Hides(5)
    before = run(value), run(Config)
    value.number, Config.number = 6, 11
    assert (before, run(value), run(Config)) == ((5, 10), 6, 11)
    inherits = type("Inherits", (Config,), {})()
    inherits.other = 0
    before = run(inherits)
    Config.number = 12
    assert (before, run(inherits)) == (11, 12)


class Labelled(Pair):
    """A tuple that also holds state."""


def test_a_tuple_with_state_is_another_constant_when_that_changes():
    value = Labelled(1, 2)
    value.number = 5
    before = identity(value)
    assert not before.settled and identity(Pair(1, 2)).settled
    value.number = 6
    assert text_of(value) != before.text


def layout_of(code):
    @dataclasses.dataclass(frozen=True)
    class Own(Layout):
        size: int = 1

        @property
        def number(self):
            return code

    return Own()


def test_a_programs_own_layouts_are_identified_by_their_code():
    one, two = layout_of(1), layout_of(2)
    assert text_of(one) != text_of(two)
    assert (run(one), run(two)) == (1, 2)


def test_equal_constants_share_one_compiled_kernel():
    y = np.zeros(1, np.int32)
    launch = functools.partial(kernel[(1,)], y, target=TARGET)
    assert launch(Hides(1)) is launch(Hides(1)) is not launch(Hides(True))
    tuples = functools.partial(call.warmup, np.zeros(1, np.int32), target=TARGET)
    first = tuples(jit_closure(gl.constexpr(1)))
    assert first is tuples(jit_closure(gl.constexpr(1)))
    assert first is not tuples(jit_closure(gl.constexpr(2)))


def test_functions_within_a_tuple_argument():
    @gluon.jit
    def first_of(y, functions):
        gl.store(y, functions[0](1))

    one, two = jit_closure(gl.constexpr(1)), jit_closure(gl.constexpr(2))
    assert [run((f,), kernel=first_of) for f in (one, two, one)] == [2, 3, 2]


def test_a_function_is_another_when_a_variable_that_it_reads_changes():
    level = gl.constexpr(1)

    @gluon.jit
    def helper(x):
        return x + level

    assert run(helper, kernel=call) == 2
    level = gl.constexpr(2)
    assert run(helper, kernel=call) == 3


def test_a_kernel_refuses_when_a_variable_that_it_reads_changes():
    level = gl.constexpr([1])

    @gluon.jit
    def reads(y):
        gl.store(y, level[0])

    assert run(kernel=reads) == 1
    level.value[0] = 2
    with pytest.raises(GlobalVariableError, match="level"):
        run(kernel=reads)
    level = gl.constexpr([1])
    assert run(kernel=reads) == 1
    level = gl.constexpr([True])
    with pytest.raises(GlobalVariableError, match="level"):
        run(kernel=reads)


# -- within one kernel ----------------------------------------------------------------------------


@gluon.jit
def callee(x, WHAT: gl.constexpr):
    return x + number(WHAT)


def test_one_function_called_with_constants_that_print_alike():
    @gluon.jit
    def twice(y, A: gl.constexpr, B: gl.constexpr, both):
        gl.store(y, callee(0, A) * 100 + callee(0, B) * 10 + callee(0, both))

    @gluon.jit
    def words(y, A: gl.constexpr, B: gl.constexpr):
        gl.store(y, width(A) * 10 + width(B))

    assert run(Hides(1), Hides(2), gl.constexpr(Hides(1)), kernel=twice) == 121
    assert run("a[", "[_", kernel=words) == 12


@gluon.jit
def width(WORD: gl.constexpr):
    if WORD == "a[":
        return 1
    else:
        return 2


def test_two_functions_of_one_name_in_one_kernel():
    @gluon.jit
    def both(y, F: gl.constexpr, G: gl.constexpr):
        gl.store(y, F(0) * 100 + G(0) * 10 + F(0))

    one, two = jit_closure(gl.constexpr(1)), jit_closure(gl.constexpr(2))
    assert run(one, two, kernel=both) == 121


@gluon.jit(noinline=True)
def apart(x, WHAT: gl.constexpr):
    return x + number(WHAT)


@gluon.jit
def calls_apart(y, A: gl.constexpr, B: gl.constexpr, C: gl.constexpr):
    gl.store(y, apart(0, A) + apart(0, B) + apart(0, C))


@pytest.mark.once
def test_equal_calls_share_one_function():
    values = {"A": Hides(1), "B": Hides(2), "C": Hides(1)}
    compiled = gluon.compile(
        calls_apart, target="sm_80", signature={"y": "*i32"}, constexprs=values
    )
    text = compiled.asm["ttgir"]
    assert (text.count("tt.func"), text.count("tt.call")) == (3, 3)


# -- in another process ----------------------------------------------------------------------------

CASES = """
import collections, dataclasses, enum, json, sys
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language import exp as act
import lib

MODE = gl.constexpr("1")
WORDS = gl.constexpr(["a"])
DEFAULT = gl.constexpr(4)
SCALE = 2
x = object()  # the kernels have a parameter of this name

class Hides:
    def __init__(self, number): self.number = number
    def __repr__(self): return "Hides"

HIDES = gl.constexpr(Hides(1))

@dataclasses.dataclass(frozen=True)
class Config:
    number: int
    @property
    def size(self): return self.number * SCALE

class Mode(enum.Enum):
    A = 1
    @property
    def size(self): return 7

class Settings:
    number = 64

Pair = collections.namedtuple("Pair", "a b")

def plain(v): return helper(v) + 1
def helper(v): return v * 3

def factory(MODE):
    @gluon.jit
    def inner(x, WHAT: gl.constexpr = 0):
        gl.store(x, MODE)
    return inner

@gluon.jit
def aliased(x): gl.store(x, act(1.0))
@gluon.jit
def aliased_elsewhere(x): gl.store(x, lib.act(1.0))
@gluon.jit
def reads(x): gl.store(x, MODE)
@gluon.jit
def reads_list(x): gl.store(x, WORDS)
@gluon.jit
def reads_elsewhere(x): gl.store(x, lib.SIZE)
@gluon.jit
def reads_lazily(x): gl.store(x, lib.LAZY)
@gluon.jit
def reads_hidden(x): gl.store(x, HIDES)
@gluon.jit
def default(x, n=DEFAULT): return n
@gluon.jit
def calls_default(x): gl.store(x, default(x))
@gluon.constexpr_function
def compute(n): return n * SCALE
@gluon.jit
def computes(x): gl.store(x, compute(2))
@gluon.jit
def put(x, WHAT: gl.constexpr): gl.store(x, 1.0)

KERNELS = [aliased, aliased_elsewhere, reads, reads_list, reads_elsewhere, reads_lazily, reads_hidden, calls_default,
           computes, factory(gl.constexpr(5))]
CONSTANTS = dict(
    config=Config(1), derived=lib.derived(Config)(1), enum=Mode.A, settings=Settings, pair=Pair(1, 2), hides=Hides(1),
    plain=plain, word=lambda v: v + 1, jit=lib.inner, jit_aliased=lib.aliased, method=Config(1).__eq__,
    listed=[Config(1), {"a": Mode.A}], sets=frozenset({"a", "b", "c", "d"}), instance=lib.Opaque(1),
    layout=gl.BlockedLayout([1], [32], [4], [0]), dtype=gl.float32, partly=__import__("functools").partial(plain, 1),
    module_attribute=lib.uses_module,
)
keys = {}
for kernel in KERNELS:
    source = gluon.GluonASTSource(kernel, {"x": "*fp32"})
    keys[kernel.__name__] = source.hash(), source.identity().lasting
for name, value in CONSTANTS.items():
    source = gluon.GluonASTSource(put, {"x": "*fp32"}, {"WHAT": value})
    keys["constant " + name] = source.hash(), source.identity().lasting
print(json.dumps(keys))
"""
LIBRARY = """
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language import exp as act
import deep
SIZE = gl.constexpr(8)
def __getattr__(name): return {"LAZY": gl.constexpr(20)}[name]
@gluon.jit
def inner(x): return x + SIZE
@gluon.jit
def aliased(x): return act(x)
class Opaque:
    def __init__(self, n): self.n = n
def uses_module(v): return deep.SIZE
def derived(base):
    class Derived(base):
        def more(self): return 1
    return Derived
"""
UNCHANGED = {"constant layout", "constant dtype", "constant sets"}
EDITS = [
    ("import exp as act", "import log as act"),
    ('constexpr("1")', "constexpr(1)"),
    ('constexpr(["a"])', 'constexpr(["b"])'),
    ("DEFAULT = gl.constexpr(4)", "DEFAULT = gl.constexpr(8)"),
    ("SCALE = 2", "SCALE = 3"),
    ("Hides(1)", "Hides(2)"),
    ("A = 1", "A = 1.0"),
    ("number = 64", "number = 32"),
    ('"a b"', '"a c"'),
    ("v * 3", "v * 4"),
    ("gl.constexpr(5)", "gl.constexpr(6)"),
    ("lambda v: v + 1", "lambda v: v + 2"),
    ("constexpr(8)", "constexpr(9)"),
    ("self.n = n", "self.n = n + 1"),
    ("SIZE = 1", "SIZE = 2"),
    ("constexpr(20)", "constexpr(21)"),
]  # fmt: skip


def hashes(folder, seed):
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode and source are compared to the second
    done = subprocess.run(
        [sys.executable, "cases.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.once
def test_another_process(tmp_path):
    files = {"cases.py": CASES, "lib.py": LIBRARY, "deep.py": "SIZE = 1"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    first, again = hashes(tmp_path, 1), hashes(tmp_path, 2)
    assert [name for name, (_, lasting) in first.items() if not lasting] == []
    assert {name for name in first if first[name] != again[name]} == set()
    for old, new in EDITS:
        assert any(old in text for text in files.values()), old
        files = {name: text.replace(old, new) for name, text in files.items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    edited = hashes(tmp_path, 1)
    assert {name for name in first if first[name] == edited[name]} == UNCHANGED
