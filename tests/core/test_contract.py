"""The contract names all that the core calls on a backend, and on its values."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.compiler import compile
from gluon_core.errors import ArgumentError, BackendError, GluonError, PluginError
from gluon_core.launch import arguments
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import EXPERIMENTS, Builder
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.launcher import ArgumentKind
from gluon_core.plugin.options import FURTHER, CompileOptions
from gluon_core.registry import load as plugins
from gluon_core.simulation.recorder import Recorder
from gluon_core.testing.conformance.kernels import KERNELS
from gluon_core.testing.declared import members
from tests.core import recording
from tests.core.fakes import Plugin, architecture, complete, lowering
from tests.core.recording import ProbeBackend, Undeclared

ROOT = Path(gluon.__file__).parent


@pytest.fixture
def use(monkeypatch):
    """Make a registry of these plugins the default one."""

    def install(*installed):
        registry = plugins.load([], installed)
        monkeypatch.setattr(plugins, "_default", registry)
        arguments.registered_kind.cache_clear()
        much.forget()
        return registry

    yield install
    arguments.registered_kind.cache_clear()


# -- names that the core uses while it runs ---------------------------------------------------------


@gluon.jit
def helper(x, n: gl.constexpr):
    return x * n


@gluon.jit
def worker(buffer, layout: gl.constexpr):
    buffer.store(gl.full([128], 1.0, gl.float32, layout))


@gluon.jit
def leader():
    gl.barrier()


@gluon.jit
def much(x, out, n, LANES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [LANES], [4], [0])
    offsets = gl.max_contiguous(gl.multiple_of(gl.arange(0, 128, layout), 128), 128)
    gl.assume(n > 0)
    gl.device_assert(n < 1 << 20, "too many")
    value = gl.load(x + offsets, offsets < n, 0.0)
    total = gl.sum(value, 0)
    for i in range(0, n, 4):
        total += helper(total, 2)
        while total > 1e6:
            total = total / 2
    if n == 3:
        gl.static_assert(LANES == 32)
        return
    kept = gl.where(value > total, gl.exp2(value), gl.sqrt(gl.abs(value)))
    buffer = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.warp_specialize([(leader, ()), (worker, (buffer, layout))], [4], [24])
    buffer.slice(0, 64).load(layout)
    tall: gl.constexpr = gl.BlockedLayout([1, 1], [1, LANES], [1, 4], [1, 0])
    wide = gl.convert_layout(kept, gl.SliceLayout(0, tall))[None, :]
    gl.device_print("kept", total)
    gl.atomic_add(out, 1.0)
    gl.store(out + offsets, gl.cumsum(kept, 0) + gl.convert_layout(gl.reshape(wide, [128]), layout))


def run_everything():
    """Launches of every form, a warm-up, an explicit compilation."""
    x, out = np.zeros(128, np.float32), np.zeros(128, np.float32)
    options = {"num_warps": 4, "maxnreg": 96}
    much[(1,)](x, out, 100, LANES=32, **options)
    much[(1,)](x, out, 100, LANES=32, **options)
    much.warmup(np.dtype("float32"), np.dtype("float32"), 100, LANES=32, grid=(1,), **options)
    ready = much.prepare(x, out, 100, 32, grid=(2,), **options)
    ready(x, out, 100, 32)
    compiled = compile(
        much, signature={"x": "*fp32", "out": "*fp32", "n": "i32"}, constexprs={"LANES": 32}
    )
    assert compiled.report().instruction_count == 1 and compiled.asm["text"]


@pytest.mark.once
def test_the_core_calls_nothing_undeclared(use):
    backend = ProbeBackend()
    use(Plugin("probe", backend))
    recording.ASKED.clear()
    run_everything()
    assert len(backend.launched) == 3
    asked = {owner for owner, _ in recording.ASKED}
    assert asked == {
        "the backend",
        "the builder",
        "the compiler",
        "the device",
        "the options",
        "the launcher",
    }
    assert ("the builder", "codegen_fns") in recording.ASKED


@pytest.mark.once
@pytest.mark.parametrize("name", KERNELS)
def test_the_core_calls_nothing_undeclared_of_portable_kernels(use, name):
    registry = use(Plugin("probe", ProbeBackend()))
    chosen = KERNELS[name]
    compiled = compile(
        chosen.kernel,
        registry.target("probe1"),
        signature=chosen.signature(),
        constexprs={"lanes": 32},
    )
    assert compiled.kernel


@pytest.mark.once
def test_on_several_devices_the_same_is_asked(use):
    backend = ProbeBackend(count=2)
    use(Plugin("probe", backend))
    run_everything()
    assert len(backend.launched) == 3


def test_the_wall_has_no_holes(use, monkeypatch):
    """An undeclared probe anywhere in the core is noticed."""
    use(Plugin("probe", ProbeBackend()))

    def curious(session):
        builder = original(session)
        getattr(builder, "get_mood", None)
        return builder

    from gluon_core.frontend.session import Session

    original = Session.make_builder
    monkeypatch.setattr(Session, "make_builder", curious)
    curious.__globals__["__name__"], name = "gluon_core.frontend.session", __name__
    try:
        with pytest.raises(Undeclared, match="get_mood"):
            run_everything()
    finally:
        curious.__globals__["__name__"] = name


# -- names in the source ---------------------------------------------------------------------

_DECLARED = {
    "builder": members(Builder) | members(Recorder) | EXPERIMENTS,
    "options": members(CompileOptions)
    | FURTHER.keys()
    | {"get", "items", "pop"},  # also of the options that a launch gives
    "backend": recording.declared(Backend),
}
_BACKENDS = ("backend", "vendor", "simulator")
_DECLARED |= {name: _DECLARED["backend"] for name in _BACKENDS}
_DECLARED |= {facet: recording.declared(kind) for facet, kind in recording.FACETS.items()}
# Triton's ops that are none of Gluon's: what they stand for has no layout.
_NOT_OURS = {
    "create_advance",
    "create_descriptor_gather",
    "create_descriptor_load",
    "create_descriptor_reduce",
    "create_descriptor_scatter",
    "create_descriptor_store",
    "create_dot_scaled",
    "create_grid_dependency_launch_dependents",
    "create_grid_dependency_wait",
    "create_make_block_ptr",
    "create_make_tensor_descriptor",
    "create_tensor_descriptor_type",
    "create_tensor_pointer_load",
    "create_tensor_pointer_store",
}


def _name(node):
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def _asks(path):
    """(what, name, line) of each attribute that a file takes of a builder, of options, of a backend."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = None
        if isinstance(node, ast.Attribute):
            of, name = node.value, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
                of, name = node.args[0], node.args[1].value
        if name is None or name.startswith("__"):
            continue
        holder = _name(of)
        facet = holder in recording.FACETS
        if holder in _DECLARED and (not facet or _name(getattr(of, "value", of)) in _BACKENDS):
            yield holder, name, f"{path.name}:{node.lineno}"


@pytest.mark.once
def test_the_core_names_only_declared_members():
    asks = [ask for path in ROOT.rglob("*.py") for ask in _asks(path)]
    assert len(asks) > 300 and {owner for owner, _, _ in asks} == set(_DECLARED)
    strange = [ask for ask in asks if ask[1] not in _DECLARED[ask[0]]]
    assert not strange, strange


def test_all_that_the_installed_triton_calls_is_declared():
    root = Path(_triton.tl.__file__).parent
    files = [root / f"{name}.py" for name in ("core", "math", "random", "semantic", "standard")]
    files.append(Path(_triton.code_generator.__file__))
    asks = [ask for path in files for ask in _asks(path)]
    strange = {
        (owner, name)
        for owner, name, _ in asks
        if name not in _DECLARED[owner]
        and name not in _NOT_OURS
        and (owner, name) != ("options", "enable_iisan")  # probed, and never true of ours
    }
    assert not strange, strange


def test_declarations_are_written_once():
    names = sorted(members(Builder))
    assert len(names) > 190 and not members(Builder) & (members(Recorder) - members(Builder))
    assert {"options", "codegen_fns", "module_map"} <= set(names)


# -- answers of a backend --------------------------------------------------------------------------


@dataclass(frozen=True)
class Few:
    num_warps: int = 4


@pytest.mark.once
@pytest.mark.parametrize(
    "method, answer, words",
    [
        ("options", {}, ["options()", "dataclass", "CompileOptions"]),
        ("options", Few(), ["options()", "Few has no", "num_ctas", "allowed_dot_input_precisions"]),
        ("builder", object(), ["builder()", "object has no", "create_module"]),
        ("pipeline", (), ["pipeline()", "stages", "()"]),
        ("pipeline", (len,), ["pipeline()", "stages"]),
        ("pipeline", (Stage("a", len), Stage("a", len)), ["pipeline()", "a name of its own"]),
        ("launcher", None, ["launcher()", "function", "None"]),
    ],
)
def test_a_wrong_answer_names_backend_and_method(use, method, answer, words):
    backend = ProbeBackend()
    facet = backend.device if method == "launcher" else backend.compiler
    setattr(facet, method, lambda *_: answer)
    use(Plugin("probe", backend))
    with pytest.raises(BackendError) as caught:
        run_everything()
    for word in ("backend 'probe'", *words):
        assert word in str(caught.value)


# -- paths -------------------------------------------------------------------------------------------


@gluon.jit
def loads(x, out, LANES: gl.constexpr):
    offsets = gl.arange(0, 128, gl.BlockedLayout([1], [LANES], [4], [0]))
    gl.portable.store(out, offsets, gl.portable.load(x, offsets))


def compile_loads(registry):
    signature = {"x": "*fp32", "out": "*fp32"}
    return compile(loads, registry.target("probe1"), signature=signature, constexprs={"LANES": 32})


def no_lowering(request, _semantic):
    return undefined_name  # noqa: F821


HERE = "tests.core.test_contract"


@pytest.mark.once
@pytest.mark.parametrize(
    "fields, words",
    [
        ({"implement": f"{HERE}:no_lowerin"}, ["implement", "Did you mean 'no_lowering'"]),
        ({"implement": "no_such_package:f"}, ["implement", "No module named 'no_such_package'"]),
        ({"implement": f"{HERE}:HERE"}, ["implement", "is no function"]),
        ({"accepts": f"{HERE}:acepts"}, ["accepts", f"'{HERE}:acepts'"]),
    ],
)
def test_a_wrong_path_of_a_lowering_names_plugin_lowering_and_path(use, fields, words):
    fields = {"implement": f"{HERE}:no_lowering", **fields}
    registry = use(Plugin("probe", ProbeBackend()), Plugin("mine", lowerings=[lowering(**fields)]))
    with pytest.raises(PluginError) as caught:
        compile_loads(registry)
    for word in ("lowering load/fast of plugin 'mine'", *words):
        assert word in str(caught.value), str(caught.value)
    assert "test_contract.py" in str(caught.value.span.file)


def test_an_exception_of_a_lowering_says_whose_it_is(use):
    mine = Plugin("mine", lowerings=[lowering(implement=f"{HERE}:no_lowering")])
    registry = use(Plugin("probe", ProbeBackend()), mine)
    with pytest.raises(GluonError, match="undefined_name") as caught:
        compile_loads(registry)
    line = no_lowering.__code__.co_firstlineno + 1
    wanted = f"Raised by lowering load/fast of plugin 'mine', at {__file__}:{line}."
    assert wanted in str(caught.value)
    assert caught.value.span.text.strip().startswith("gl.portable.store")


@pytest.mark.parametrize(
    "attributes, ask, words",
    [
        (
            {"namespace": "no_such.module"},
            lambda: gl.wrong,
            ["gluon_core.language.wrong: 'no_such.module'"],
        ),
        ({"host": "no_such.module"}, lambda: gluon.wrong, ["gluon_core.wrong: 'no_such.module'"]),
        ({"exports": {"Odd": f"{HERE}:Odd"}}, lambda: gl.Odd, ["exports['Odd']", f"{HERE}:Odd"]),
    ],
)
def test_a_wrong_path_of_a_backend_names_the_backend(use, attributes, ask, words):
    use(Plugin("wrong", complete("wrong", architecture("w1", "wrong"), **attributes)))
    with pytest.raises(PluginError) as caught:
        ask()
    for word in words:
        assert word in str(caught.value)


# -- kinds of arguments ------------------------------------------------------------------------------


class Box:
    """A host object that travels as an int."""

    def __init__(self, value):
        self.value = value


BOX = ArgumentKind(Box, lambda box: ("i32", ""))


@pytest.mark.once
def test_a_plugin_brings_kinds_of_arguments(use):
    use(Plugin("probe", ProbeBackend()))
    with pytest.raises(ArgumentError, match="Box"):
        arguments.describe(Box(3))
    with_boxes = ProbeBackend(argument_kinds=(f"{HERE}:BOX",))
    use(Plugin("probe", with_boxes))
    assert arguments.describe(Box(3)) == arguments.Argument("i32", "")
    x, out = np.zeros(128, np.float32), np.zeros(128, np.float32)
    box = Box(3)
    much[(1,)](x, out, box, LANES=32, num_warps=4)
    assert with_boxes.launched[0][1][2] is box


@pytest.mark.parametrize("kind", [lambda: Box, lambda: ArgumentKind(Box, None)])
def test_a_kind_of_argument_is_checked(use, kind):
    with pytest.raises(ArgumentError, match="ArgumentKind"):
        gluon.register_argument_kind(kind())


def test_compile_options_check_their_values():
    target = plugins.load([], [Plugin("probe", ProbeBackend())]).target("probe1")
    assert CompileOptions.of(target, {"num_warps": 8}).arch == "probe1"
    for options, words in (
        ({"num_wraps": 4}, "Did you mean 'num_warps'"),
        ({"num_warps": 3}, "power of two"),
        ({"num_warps": 64}, "at most 32"),
        ({"num_ctas": 2}, "at most 1"),
    ):
        with pytest.raises(GluonError, match=words):
            CompileOptions.of(target, options)
