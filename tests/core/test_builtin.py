"""Functions under `builtin`: their callers, the services of their bodies, the output of help()."""

from __future__ import annotations

import inspect
import threading
from types import SimpleNamespace

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, NotInKernelError
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer
from gluon_core.semantic.composed import Semantic
from gluon_core.testing import run_parser


class layer(Semantic):
    """The semantic layer of a kernel for a target without any capability."""

    def __init__(self, name):
        self.name = name
        target = SimpleNamespace(has=lambda capability: False)
        self.session = SimpleNamespace(target=target, architectures_with=lambda capability: ())


@builtin
def asked() -> str:
    """The name of the semantic layer."""
    return semantic_layer().name


@builtin(name="gl.acme.unit.twice")
def calls_others(again: bool = False) -> list:
    """Its own layer, that of an op called as kernels do, that of one called with another layer."""
    return [asked(), asked(_semantic=layer("inner")), asked()]


@builtin
def in_the_way_of_triton(x: int, _semantic: object = None, _generator: object = None) -> tuple:
    """As Triton declares its own."""
    return x, _semantic, _generator


@builtin
def fails() -> None:
    """Raises."""
    raise RuntimeError("on purpose")


@builtin(host=True)
def anywhere() -> bool:
    """Return True while a kernel is traced."""
    try:
        semantic_layer()
    except NotInKernelError:
        return False
    return True


@builtin(requires=("acme.clamp",), name="gl.acme.clamp", instead="gl.clamp")
def restricted() -> None:
    """Needs what nobody has."""


def test_the_body_of_an_op_has_the_layer_of_its_caller():
    assert asked(_semantic=layer("one")) == "one"
    assert calls_others(_semantic=layer("outer")) == ["outer", "inner", "outer"]


def test_nothing_is_left_after_an_op_also_when_it_fails():
    with pytest.raises(RuntimeError):
        fails(_semantic=layer("one"))
    for ask in (semantic_layer, code_generator):
        with pytest.raises(NotInKernelError):
            ask()


def test_threads_do_not_see_each_other():
    met = threading.Barrier(2, timeout=20)

    @builtin
    def waits() -> str:
        met.wait()
        layer = semantic_layer().name
        met.wait()
        return layer

    layers = {}

    def trace(name):
        layers[name] = waits(_semantic=layer(name))

    threads = [threading.Thread(target=trace, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert layers == {"a": "a", "b": "b"}


def test_outside_of_kernels():
    with pytest.raises(NotInKernelError, match="gl.acme.unit.twice was called outside a kernel"):
        calls_others()
    assert anywhere() is False and anywhere(_semantic=layer("one")) is True


def test_capabilities_are_asked_of_the_callers_target_however_it_is_called():
    @builtin
    def calls_restricted() -> None:
        restricted()

    for op in (restricted, calls_restricted):
        with pytest.raises(CapabilityError, match="gl.acme.clamp needs acme.clamp"):
            op(_semantic=layer("one"))


def test_arguments_of_triton_are_not_shown():
    for op in (asked, in_the_way_of_triton, gl.load, gl.sum, gl.reduce):
        assert not {"_semantic", "_generator"} & set(inspect.signature(op).parameters)
    one = layer("one")
    assert in_the_way_of_triton(3, _semantic=one, _generator=4) == (3, one, 4)


def test_its_name_is_that_in_kernels():
    assert (calls_others.__name__, calls_others.__qualname__) == ("twice", "twice")
    load = gl.shared_memory_descriptor.load
    assert (load.__name__, load.__qualname__) == ("load", "shared_memory_descriptor.load")


SEEN = []


@builtin
def look() -> None:
    """Remember who calls."""
    SEEN.append((semantic_layer().num_warps, code_generator() is not None))


@gluon.jit
def worker(x):
    look()


@gluon.jit
def partitioned():
    look()
    gl.warp_specialize([(worker, (1,)), (worker, (1,))], [2], [24])
    look()


def test_in_a_kernel_each_function_has_its_own_layer():
    """A partition is traced inside of the op `warp_specialize`, over other warps."""
    SEEN.clear()
    run_parser(partitioned, target="hopper")
    assert SEEN == [(4, True), (4, True), (2, True), (4, True)]
