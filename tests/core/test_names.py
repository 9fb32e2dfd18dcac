"""Names that two plugins claim: an error for whoever asks for them, and nothing else."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest

import gluon_core.language  # noqa: F401
from gluon_core.errors import PluginError, TargetError
from gluon_core.portable.requests import LoadRequest
from gluon_core.portable.selection import select
from gluon_core.registry import load as plugins
from gluon_core.registry.load import load
from gluon_core.registry.namespaces import Space
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

LANGUAGE = Space("gluon_core.language", "export")


@pytest.fixture
def installed(monkeypatch):
    """Registries of installed plugins, in each order of loading."""

    def make(*contributors):
        entries = []
        for plugin in contributors:
            module = ModuleType(f"{plugin.__name__}_plugin")
            for hook in ("gluon_backends", "gluon_lowerings", "gluon_commands", "gluon_services"):
                setattr(module, hook, getattr(plugin, hook))
            monkeypatch.setitem(sys.modules, module.__name__, module)
            entries.append(entry(plugin.__name__, distribution=f"Gluon.{plugin.__name__.title()}"))
        return [load(list(order)) for order in itertools.permutations(entries)]

    return make


def forge(*aliases, **attributes):
    return complete("forge", architecture("forge1", "forge", *aliases), **attributes)


def the(registry, *claimers):
    """The one clash of a registry, which names the distributions of both plugins and how to keep one."""
    (clash,) = registry.clashes
    assert not registry.failures and set(clash.plugins) == {*claimers}
    for name in claimers:
        assert f"{name!r} (Gluon.{name.title()} 1.0)" in clash.text and repr(name) in clash.remedy
    assert "GLUON_PLUGINS" in clash.remedy
    return clash


# -- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["anvil", "an-vil", "rocket2", "a1"])
def test_an_alias_of_two_vendors_needs_the_backends_name(installed, spelling):
    contributors = Plugin("p", acme()), Plugin("q", forge(spelling)), Plugin("sim", simulator())
    for registry in installed(*contributors):
        the(registry, "p", "q")
        with pytest.raises(TargetError, match="is claimed twice.*GLUON_PLUGINS") as caught:
            registry.target(spelling)
        assert "acme:" in str(caught.value) and "'forge:" in str(caught.value)
        with pytest.raises(TargetError, match="'double:forge:.*"):
            registry.target(f"double:{spelling}")
        assert registry.target(f"forge:{spelling}").name == "forge:forge1"
        assert registry.target(f"acme:{spelling}").architecture.backend == "acme"
        assert registry.target(f"double:forge:{spelling}").name == "double:forge1"
        assert registry.target("forge1").name == "forge:forge1"


def test_two_architectures_of_one_name_are_distinguished_by_their_backends(installed):
    one = complete("one", architecture("x1", "one"))
    two = complete("two", architecture("x1", "two"))
    for registry in installed(Plugin("p", one), Plugin("q", two)):
        assert registry.target("one:x1").architecture.backend == "one"
        assert registry.target("two:x1").architecture.backend == "two"
        assert len(registry.architectures()) == 2
        with pytest.raises(TargetError, match="Say 'one:x1' or 'two:x1'|Say 'two:x1' or 'one:x1'"):
            registry.target("x1")


def test_a_backends_name_that_is_an_alias_of_another_still_names_architectures(installed):
    for registry in installed(Plugin("road", roadrunner()), Plugin("q", forge("roadrunner"))):
        the(registry, "road", "q")
        with pytest.raises(TargetError, match="'roadrunner' is claimed twice"):
            registry.target("roadrunner")
        assert registry.target("roadrunner:beep9").name == "roadrunner:beep9"
        assert registry.target("forge:roadrunner").name == "forge:forge1"


# -- backends ------------------------------------------------------------------------------------


def test_a_backends_name_that_two_plugins_claim_is_nobodys(installed):
    late = acme(exports={"Late": "late.layouts:Late"}, lowerings=[lowering(name="late")])
    for registry in installed(Plugin("p", acme(), roadrunner()), Plugin("q", late, forge())):
        the(registry, "p", "q")
        assert set(registry.backends) == {"roadrunner", "forge"}
        assert "Late" not in registry.offers("export")
        assert [low.name for low in registry.lowerings("load")] == ["global_load"]
        assert [b.name for b in registry.plugins["q"].backends] == ["acme", "forge"]
        with pytest.raises(PluginError, match="'acme' is claimed twice.*'p'.*'q'|'q'.*'p'"):
            registry.backend("acme")
        with pytest.raises(PluginError, match="'acme' is claimed twice.*GLUON_PLUGINS"):
            registry.target("acme:a1")
        assert registry.target("beep9").name == "roadrunner:beep9"


def test_two_plugins_of_one_entry_point_name_both_load(monkeypatch):
    for name, backend in (("twin_a", acme()), ("twin_b", roadrunner())):
        module = ModuleType(name)
        module.gluon_backends = Plugin(name, backend).gluon_backends
        monkeypatch.setitem(sys.modules, name, module)
    entries = [entry("twin", "twin_a"), entry("twin", "twin_b"), entry("twin", "twin_c")]
    registry = load(entries)
    assert set(registry.backends) == {"acme", "roadrunner"}
    assert set(registry.plugins) == {"twin", "twin (twin_b)"}
    assert set(registry.failures) == {"twin (twin_c)"}


# -- simulators ----------------------------------------------------------------------------------


def test_a_simulator_that_does_not_run_unasked_claims_nothing(installed):
    machine = simulator("machine", unasked=False)
    for registry in installed(Plugin("a", machine), Plugin("b", simulator()), Plugin("c", acme())):
        assert not registry.clashes and registry.simulator().name == "double"
        assert registry.target("machine:a1").simulated


def test_two_simulators_need_a_name(installed):
    contributors = Plugin("p", simulator()), Plugin("q", simulator("other")), Plugin("r", acme())
    for registry in installed(*contributors):
        the(registry, "p", "q")
        assert registry.simulator() is None
        with pytest.raises(TargetError, match="'double'.*'other'|'other'.*'double'"):
            registry.target(None)
        assert registry.target("double").name == "double:a1"


# -- exports and assemblers ----------------------------------------------------------------------


def test_an_export_of_two_plugins_names_both(installed, monkeypatch):
    one, two = acme(exports={"Odd": "a.b:Odd"}), roadrunner(exports={"Odd": "c.d:Odd"})
    for registry in installed(Plugin("p", one), Plugin("q", two)):
        the(registry, "p", "q")
        assert not registry.offers("export")
        monkeypatch.setattr(plugins, "_default", registry)
        with pytest.raises(AttributeError, match="gl.Odd is claimed twice.*GLUON_PLUGINS"):
            LANGUAGE.resolve("Odd")


def test_a_backend_without_a_namespace_says_so(monkeypatch):
    registry = load([], [Plugin("p", acme())])
    monkeypatch.setattr(plugins, "_default", registry)
    with pytest.raises(AttributeError, match="'acme' has no namespace in gluon_core.language"):
        LANGUAGE.resolve("acme")


def test_an_export_goes_with_its_plugin(installed, monkeypatch):
    exporting = acme(exports={"Odd": "types:SimpleNamespace"})
    for registry in installed(Plugin("p", exporting)):
        monkeypatch.setattr(plugins, "_default", registry)
        assert LANGUAGE.resolve("Odd") is SimpleNamespace
    for registry in installed(Plugin("p", acme())):
        monkeypatch.setattr(plugins, "_default", registry)
        with pytest.raises(AttributeError, match="Odd"):
            LANGUAGE.resolve("Odd")


def test_an_export_like_the_namespace_of_a_backend_names_both(installed, monkeypatch):
    one, two = acme(namespace="acme.language"), roadrunner(exports={"acme": "c.d:Odd"})
    for registry in installed(Plugin("p", one), Plugin("q", two)):
        assert "gl.acme" in the(registry, "p", "q").text
        monkeypatch.setattr(plugins, "_default", registry)
        with pytest.raises(AttributeError, match="gl.acme is claimed twice"):
            LANGUAGE.resolve("acme")


def test_offers_of_one_name_name_both_and_the_others_work(installed):
    smith, farrier = (
        Plugin(
            name,
            commands={"anvil": f"{name}.a:b", name: "a:b"},
            services={"anvil": f"{name}.a:b", name: "types:SimpleNamespace"},
        )
        for name in ("smith", "farrier")
    )
    for registry in installed(smith, farrier):
        assert not registry.failures and len(registry.clashes) == 2
        assert set(registry.offers("command")) == {"smith", "farrier"}
        with pytest.raises(PluginError, match="the command gluon anvil is claimed twice"):
            registry.refuse_clash("command", "anvil")
        with pytest.raises(
            PluginError, match="the service 'anvil' is claimed twice.*GLUON_PLUGINS"
        ):
            registry.service("anvil")
        assert registry.service("smith") is SimpleNamespace


def test_a_module_named_like_a_backend_names_both(installed, monkeypatch):
    host = Space("gluon_core", "module")
    registry = load([], [Plugin("p", acme(host="acme.host")), Plugin("q", modules={"acme": "a"})])
    monkeypatch.setattr(plugins, "_default", registry)
    with pytest.raises(AttributeError, match="gluon_core.acme is claimed twice"):
        host.resolve("acme")


# -- lowerings -----------------------------------------------------------------------------------


def chosen(registry, spec):
    target = registry.target(spec)
    request = LoadRequest(target, 4, (3, 9), None, None, None, None)
    return select("load", request, target, (3, 9), registry).chosen


UNIT = ("acme.unit",)


def test_a_lowerings_name_of_two_plugins_is_an_error_where_it_would_be_taken(installed):
    one, two = (lowering(requires=UNIT, priority=level) for level in (3, 4))
    for registry in installed(Plugin("p", acme(lowerings=[one])), Plugin("q", lowerings=[two])):
        assert "load/fast" in the(registry, "p", "q").text
        with pytest.raises(PluginError, match="'load/fast' is claimed twice"):
            chosen(registry, "a1")
        assert chosen(registry, "a2").name == "global_load"
        assert registry.contributor(one).plugin == "p" and registry.contributor(two).plugin == "q"


def test_a_lowering_named_like_the_cores_own_names_the_plugin_to_leave_out(installed):
    for registry in installed(Plugin("p", acme(), lowerings=[lowering(name="global_load")])):
        with pytest.raises(PluginError, match="gluon_core.*'p' .*leave 'p' out"):
            chosen(registry, "a1")


def test_two_that_fit_and_share_a_priority_are_an_error_that_names_both(installed):
    unit, other = lowering(name="by_unit", requires=UNIT), lowering(name="anywhere")
    contributors = Plugin("p", acme(lowerings=[unit])), Plugin("q", lowerings=[other])
    for registry in installed(*contributors):
        assert not registry.clashes
        assert chosen(registry, "a2").name == "anywhere"
        with pytest.raises(PluginError, match="share priority 10.*GLUON_PLUGINS") as caught:
            chosen(registry, "a1")
        for words in ("'by_unit'", "'anywhere'", "(Gluon.P 1.0)", "(Gluon.Q 1.0)"):
            assert words in str(caught.value)
