"""The registry: discovery, refusal with reasons, verification at registration."""

from __future__ import annotations

import ast
import collections
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from gluon_core.compiler.observers import stage_done
from gluon_core.errors import CapabilityError, OptionError, PluginError, TargetError
from gluon_core.plugin.backend import API_VERSION, Backend
from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.hookspec import hookimpl
from gluon_core.registry import load as plugins
from gluon_core.registry.load import Registry, load
from gluon_core.testing import TRITON_VERSION
from tests.core.fakes import (
    Plugin,
    acme,
    architecture,
    complete,
    entry,
    lowering,
    roadrunner,
    simulator,
)

pytestmark = pytest.mark.once  # plugins are found and verified without Triton

PLUGIN_SOURCE = """
from tests.core.fakes import {factory}
from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.hookspec import hookimpl

@hookimpl
def gluon_backends():
    return [{factory}()]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write an importable module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def refused(*things, **kwargs):
    """The message with which a plugin of those backends is refused."""
    with pytest.raises(PluginError) as caught:
        load([], [Plugin("newcomer", *things, **kwargs)])
    return str(caught.value)


# -- discovery -----------------------------------------------------------------------------------


def test_a_plugin_that_fails_to_import_leaves_the_others_working(module):
    module("acme_plugin", PLUGIN_SOURCE.format(factory="acme"))
    module("broken_plugin", "import no_such_driver_library\n")
    registry = load([entry("broken"), entry("acme")])

    assert list(registry.backends) == ["acme"]
    failure = registry.failures["broken"]
    assert "import no_such_driver_library" in failure.traceback
    assert "ModuleNotFoundError" in failure.reason
    assert "no_such_driver_library" in " ".join(registry.problems())
    with pytest.raises(PluginError, match="no_such_driver_library") as caught:
        registry.backend("broken")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(PluginError, match="no_such_driver_library"):
        registry.target("broken:x1")
    assert registry.target("anvil").name == "acme:a1"


@pytest.mark.parametrize(
    "source", ["raise SystemExit(3)", "1/0", "def f(:", "class E(BaseException): pass\nraise E"]
)
def test_each_error_of_a_plugin_is_remembered(module, source):
    module("broken_plugin", source)
    registry = load([entry("broken")])
    assert "broken" in registry.failures and not registry.backends


def test_an_entry_point_without_hooks_contributes_nothing(module):
    module("empty_plugin", "x = 1\n")
    registry = load([entry("empty")])
    assert not registry.failures and registry.plugins["empty"].backends == ()


def test_gluon_plugins_narrows_the_plugins_that_load(module, monkeypatch):
    module("acme_plugin", PLUGIN_SOURCE.format(factory="acme"))
    module("road_plugin", PLUGIN_SOURCE.format(factory="roadrunner"))
    monkeypatch.setattr(plugins, "_installed", lambda: [entry("acme"), entry("road")])
    assert set(load().backends) == {"acme", "roadrunner"}
    monkeypatch.setenv("GLUON_PLUGINS", "acme")
    narrowed = load()
    assert set(narrowed.backends) == {"acme"} and narrowed.skipped == {"road"}
    with pytest.raises(PluginError, match="GLUON_PLUGINS"):
        narrowed.backend("road")
    monkeypatch.setenv("GLUON_PLUGINS", "acne")
    with pytest.raises(PluginError, match="GLUON_PLUGINS.*Did you mean 'acme'"):
        load()


def test_the_list_of_commands_needs_neither_numpy_triton_nor_torch():
    code = (
        "import sys\nfrom gluon_cli import main\nfrom gluon_core.registry.load import registry\n"
        "try:\n    sys.argv = ['gluon', '--help']; main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = [m for m in ('numpy', 'triton', 'torch') if m in sys.modules]\n"
        "assert not heavy, heavy; assert registry().backends and not registry().problems()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "timeline" in done.stdout


def test_libraries_for_tritons_own_gluon_find_its_private_modules():
    code = """
import gluon_core as gluon
from gluon_core import language as gl
assert gluon._runtime.jit is gluon.jit and gluon._runtime.GluonASTSource is gluon.GluonASTSource
assert gl._semantic.GluonSemantic.__name__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_short_path_says_nothing_and_is_the_same_module():
    code = """
import gluon_core as gluon
from gluon_core.bundle import Bundle
import gluon_core.bundle, gluon_bundle
assert gluon.bundle is gluon_bundle and Bundle is gluon.bundle.Bundle
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# -- frozen and shared ---------------------------------------------------------------------------


def test_a_loaded_registry_is_frozen():
    registry = load([], [Plugin("acme", acme())])
    with pytest.raises(PluginError, match="frozen"):
        registry.register(Plugin("late", roadrunner()))
    with pytest.raises(TypeError):
        registry.backends["x"] = acme()


def test_the_default_registry_is_loaded_once_by_however_many_threads(monkeypatch):
    monkeypatch.setattr(plugins, "_default", None)
    loads, results = [], []
    original = plugins.load
    monkeypatch.setattr(plugins, "load", lambda: loads.append(1) or original([]))
    gate = threading.Barrier(8)

    def ask():
        gate.wait()
        results.append(plugins.registry())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and len({id(r) for r in results}) == 1


def test_asking_for_the_registry_while_it_loads_is_an_error_not_a_hang(module, monkeypatch):
    monkeypatch.setattr(plugins, "_default", None)
    module("eager_plugin", "from gluon_core.registry.load import registry\nregistry()\n")
    monkeypatch.setattr(plugins, "_installed", lambda: [entry("eager")])
    assert "while it is loading" in plugins.registry().failures["eager"].reason


def test_stage_observers_are_called_and_none_costs_nothing(monkeypatch):
    seen = []

    class Observer:
        @hookimpl
        def gluon_stage_done(self, stage, target):  # fewer arguments than the specification
            seen.append((stage, target))

    registry = load([], [Plugin("acme", acme()), Observer()])
    monkeypatch.setattr(plugins, "_default", registry)
    stage_done("ttgir", object(), registry.target("a1"))
    assert seen == [("ttgir", registry.target("a1"))]

    silent = load([], [Plugin("acme", acme())])
    monkeypatch.setattr(silent, "_manager", None)  # any call into pluggy would now fail
    monkeypatch.setattr(plugins, "_default", silent)
    stage_done("ttgir", object(), silent.target("a1"))


# -- refusal -------------------------------------------------------------------------------------


def test_another_api_version_names_both_numbers_and_the_remedy():
    newer = refused(acme(api_version=API_VERSION + 1))
    assert f"contract {API_VERSION + 1}" in newer and f"speaks {API_VERSION}" in newer
    assert "pip install --upgrade gluon-core" in newer and "newcomer" in newer
    older = Registry()
    with pytest.raises(PluginError, match="pip install --upgrade gluon-acme"):
        older.register(Plugin("acme", acme(api_version=0)), distribution="gluon-acme 0.1")


def test_one_architecture_may_repeat_its_own_spelling():
    twice = complete("zeta", architecture("z_1", "zeta", "z1"))
    assert load([], [Plugin("zeta", twice)]).target("z1").name == "zeta:z_1"


def test_a_refused_plugin_leaves_nothing_behind():
    registry = Registry()
    bad = roadrunner(lowerings=[lowering("lod")])
    with pytest.raises(PluginError):
        registry.register(Plugin("p", acme(), bad))
    assert not registry.backends and not registry.architectures() and not registry.plugins
    registry.register(Plugin("p", acme()))
    assert list(registry.backends) == ["acme"]


class Lazy(Compiler):
    def options(self, target, requested): ...
    def builder(self, context, target): ...
    def inspect(self, compiled): ...


def test_a_backend_is_a_name_and_an_architecture():
    registry = load([], [Plugin("least", Backend("least", (architecture("l1", "least"),)))])
    target, backend = registry.target("l1"), registry.backend("least")
    assert (
        not backend.compiles and backend.compiler.options(target, {"num_warps": 8}).num_warps == 8
    )
    with pytest.raises(OptionError, match="Did you mean 'num_warps'"):
        backend.compiler.options(target, {"num_wraps": 8})
    with pytest.raises(CapabilityError, match="no compiler.*sim:l1"):
        backend.compiler.builder(None, target)


class WrongArity(Lazy):
    def pipeline(self, target): ...


class WrongOptional(Device):
    def scope(self): ...


def lazy(**facets):
    return Backend("lazy", (architecture("l1", "lazy"),), **facets)


@pytest.mark.parametrize(
    "backend, parts",
    [
        (
            lazy(compiler=Lazy()),
            ["'lazy'", "compiler.pipeline", "does not define", "pipeline(target, options)"],
        ),
        (
            lazy(compiler=WrongArity()),
            ["compiler.pipeline", "cannot be called", "pipeline(target)"],
        ),
        (lazy(device=WrongOptional()), ["device.scope", "scope(index)", "scope()"]),
        (lazy(device=WrongOptional), ["device: must be a Device", "WrongOptional"]),
        (lazy(language="gluon_acme"), ["language: must be a Language", "'gluon_acme'"]),
        (object(), ["gluon_backends()", "must be a Backend", "object object"]),
        (complete("Acme", architecture("a", "Acme")), ["name", "'Acme'"]),
        (complete("layouts", architecture("a", "layouts")), ["gluon_core.layouts", "core"]),
        (complete("acme"), ["architectures", "empty", "simulation="]),
        (complete("acme", "a1"), ["architectures[0]", "Architecture", "'a1'"]),
        (complete("acme", architecture("a1", "else")), ["backend", "'acme'", "'else'"]),
        (complete("acme", architecture("a1", "acme", "A 1")), ["aliases", "'A 1'"]),
        (complete("acme", architecture("a1", "acme", warp_size=48)), ["warp_size", "48"]),
        (
            complete("acme", architecture("a1", "acme", capabilities=frozenset({"unit"}))),
            ["capabilities", "dotted", "'unit'"],
        ),
        (complete("acme", architecture("a1", "acme"), simulates=True), ["simulates", "a1"]),
        (acme(namespace="gluon_acme/language"), ["language.namespace", "'gluon_acme/language'"]),
        (acme(host="gluon_acme:host"), ["host", "'gluon_acme:host'"]),
        (acme(exports={"AcmeLayout": "gluon_acme.layouts"}), ["exports['AcmeLayout']", "path"]),
        (acme(cacheable="yes"), ["cacheable", "'yes'"]),
        (acme(lowerings=["load"]), ["lowerings", "'load'"]),
        (acme(lowerings=[lowering("lode")]), ["lode", "Did you mean 'load'"]),
        (acme(lowerings=[lowering(implement="a.b")]), ["implement", "'a.b'"]),
        (acme(lowerings=[lowering(accepts="a.b:c:d")]), ["accepts", "'a.b:c:d'"]),
        (acme(lowerings=[lowering(requires=("unit",))]), ["requires", "'unit'"]),
        (acme(lowerings=[lowering(requires="acme.unit")]), ["requires", "tuple"]),
        (acme(lowerings=[lowering("mma")]), ["load/fast".replace("load", "mma"), "layouts"]),
        (acme(lowerings=[lowering("async_copy")]), ["commit, wait"]),
        (acme(lowerings=[lowering(extras={"comit": "a:b"})]), ["extras['comit']", "no such"]),
        (
            acme(lowerings=[lowering("mma", extras={"layouts": "a:b", "acumulator": "a:b"})]),
            ["extras['acumulator']", "Did you mean 'accumulator'"],
        ),
        (
            acme(lowerings=[lowering("mma", extras={"layouts": "a:b", "accumulator": "a:b"})]),
            ["also needs mma_wait, read"],
        ),
        (acme(lowerings=[lowering(), lowering(priority=3)]), ["'load/fast' is claimed twice"]),
        (acme(descriptors={"tilemap": "a:b"}), ["descriptors['tilemap']", "'tensordesc'"]),
        (acme(descriptors={"tensordesc_a": "a"}), ["descriptors['tensordesc_a']", "not a path"]),
        (acme(argument_kinds="a:b"), ["argument_kinds", "sequence"]),
        (acme(argument_kinds=["a.b"]), ["argument_kinds[0]", "'a.b'"]),
        (acme(isolate=1), ["isolate", "bool"]),
        (acme(tensor_device=0), ["tensor_device", "0"]),
        (acme(pointer_range_bits="32"), ["pointer_range_bits", "'32'"]),
        (simulator("s", settings="a.b"), ["simulation.settings", "'a.b'"]),
        (
            complete("zeta", architecture("z1", "zeta", "zeta")),
            ["'zeta' is claimed twice: by the backend 'zeta'"],
        ),
        (
            complete("zeta", architecture("z1", "zeta", "q"), architecture("z2", "zeta", "q")),
            ["'q' is claimed twice", "zeta:z1", "zeta:z2"],
        ),
    ],
)
def test_the_contract_is_verified_when_a_plugin_registers(backend, parts):
    message = refused(backend)
    assert "newcomer" in message
    for part in parts:
        assert part in message, message


def test_a_hook_with_a_stray_argument_is_refused_with_the_definition():
    class Stray:
        @hookimpl
        def gluon_stage_done(self, stage, colour):
            pass

    with pytest.raises(PluginError, match="colour"):
        load([], [Stray()])


def test_a_hook_that_returns_one_backend_instead_of_a_list_is_refused():
    class Single:
        @hookimpl
        def gluon_backends(self):
            return acme()

    with pytest.raises(PluginError, match="gluon_backends.*list.*Backend"):
        load([], [Single()])


# -- lowerings -----------------------------------------------------------------------------------


def test_lowerings_come_highest_priority_first_with_the_cores_own_last():
    low, high = lowering(name="low", priority=5), lowering(name="high", priority=20)
    registry = load([], [Plugin("acme", acme(lowerings=[low])), Plugin("third", lowerings=[high])])
    assert [lowering.name for lowering in registry.lowerings("load")] == [
        "high",
        "low",
        "global_load",
    ]
    assert registry.lowerings("nothing") == ()
    assert registry.contributor(high).plugin == "third"
    assert registry.plugins["third"].lowerings == (high,)


def test_a_priority_tie_that_an_architecture_can_meet_is_refused():
    unit = lowering(name="by_unit", requires=("acme.unit",))
    message = refused(acme(), lowerings=[unit, lowering(name="anywhere")])
    assert "by_unit" in message and "anywhere" in message and "acme:a1" in message
    assert "priority 10" in message


def test_lowerings_that_no_architecture_can_both_take_may_share_a_priority():
    one = lowering(name="one", requires=("acme.unit",))
    two = lowering(name="two", requires=("road.fast",))
    fast = replace(roadrunner().architectures[0], capabilities=frozenset({"road.fast"}))
    registry = load([], [Plugin("p", acme(), complete("roadrunner", fast), lowerings=[one, two])])
    assert {low.name for low in registry.lowerings("load")} >= {"one", "two"}


# -- asking --------------------------------------------------------------------------------------


def test_an_unknown_backend_gets_a_suggestion_and_the_installed_ones():
    registry = load([], [Plugin("acme", acme())])
    with pytest.raises(TargetError, match="Did you mean 'acme'.*Installed backends: acme"):
        registry.backend("acne")


def test_errors_survive_pickling(module):
    module("broken_plugin", "import no_such_driver_library\n")
    registry = load([entry("broken")])
    with pytest.raises(PluginError) as caught:
        registry.backend("broken")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="gl.amd.slice came with Triton 3.8")
def test_a_function_named_like_its_file_stays_when_the_file_is_imported():
    code = (
        "from gluon_core import language as gl\n"
        "import gluon_core.language.amd.slice, gluon_amd.language.slice\n"
        "assert callable(gl.amd.slice), gl.amd.slice\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_service_is_loaded_when_it_is_asked_for():
    known = load([], [Plugin("smith", services={"assembly.anvil": "collections:OrderedDict"})])
    assert known.service("assembly.anvil") is collections.OrderedDict
    with pytest.raises(PluginError, match="no installed plugin offers 'assembly.hammer'"):
        known.service("assembly.hammer")


def test_a_service_that_cannot_be_loaded_names_its_plugin():
    known = load([], [Plugin("smith", services={"anvil": "collections:Anvil"})])
    with pytest.raises(PluginError, match="plugin 'smith', 'anvil': 'collections:Anvil'"):
        known.service("anvil")


def test_a_missing_package_names_its_extra():
    known = load([])
    with pytest.raises(PluginError, match=r'pip install "gluon-core\[tune\]"'):
        known.service("tune.configurations")
    assert "Installed backends" in known.remedy("hammer")


@pytest.mark.parametrize(
    "offer",
    [
        {"services": ["anvil"]},
        {"services": {"anvil": "no path"}},
        {"services": {"anvil": None}},
        {"services": 3},
        {"commands": {"anvil": "a.module"}},
        {"modules": {"anvil": "a.module:attribute"}},
        {"modules": {"Anvil": "a.module"}},
        {"modules": {"language": "a.module"}},
    ],
)
def test_offers_that_are_no_names_and_paths_are_refused(offer):
    (kind,) = offer
    assert f"gluon_{kind}()" in refused(**offer)


def test_a_module_of_a_plugin_is_one_of_the_core(module):
    """`gluon_core.torch` and its like, in an interpreter of their own."""
    code = (
        "import gluon_core, gluon_core.distributed, gluon_distributed\n"
        "from gluon_core.distributed.process_group import Group\n"
        "assert gluon_core.distributed is gluon_distributed\n"
        "assert Group is gluon_distributed.Group\n"
        "assert {'torch', 'tune', 'bundle'} <= set(dir(gluon_core))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_extras_the_core_names_the_package_to_install(tmp_path):
    code = """
from importlib import metadata
entries = metadata.entry_points
metadata.entry_points = lambda **k: [] if k.get("group") == "gluon_core.extras" else entries(**k)
import gluon_core as gluon
import numpy as np
from gluon_core import language as gl

@gluon.jit
def fill(x, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.store(x + gl.arange(0, 128, layout), N)

x = np.zeros(128, np.float32)
fill[1,](x, 3, target="sim:hopper")
assert (x == 3).all()
layout = gl.BlockedLayout([1], [32], [4], [0])
said = []
for ask in (
    lambda: gluon.tune,
    lambda: __import__("gluon_core.bundle"),
    lambda: fill[1,](x, target="sim:hopper", config="tuned"),
    lambda: layout.show(),
    lambda: layout.format_tensor_view([128]),
):
    try:
        ask()
    except Exception as error:
        said.append(str(error))
assert "BlockedLayout" in layout._repr_html_()
assert 'gluon-core[pictures]' in layout._repr_html_()
print(said)
"""
    file = tmp_path / "alone.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    messages = ast.literal_eval(done.stdout)
    extras = ["tune", "bundle", "tune", "pictures", "pictures"]
    assert len(messages) == len(extras)
    for text, extra in zip(messages, extras):
        assert f'pip install "gluon-core[{extra}]"' in text


def test_a_folder_that_an_older_checkout_left_hides_no_module(tmp_path):
    (tmp_path / "torch" / "__pycache__").mkdir(parents=True)
    (tmp_path / "nvidia").mkdir()
    code = f"""
import gluon_core
gluon_core.__path__.append({str(tmp_path)!r})
import gluon_core.nvidia.hopper, gluon_core.tune
from gluon_core import nvidia
assert nvidia.hopper.TensorDescriptor, nvidia
assert not hasattr(gluon_core.torch, "__path__") or gluon_core.torch.__file__, gluon_core.torch
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
