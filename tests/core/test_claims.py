"""Names that several plugins claim: who has them, whoever loads first, and what everybody keeps."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest

from gluon_core.errors import PluginError, TargetError
from gluon_core.plugin.requests import LoadRequest
from gluon_core.registry import load as plugins
from gluon_core.registry import namespaces
from gluon_core.registry.load import load
from gluon_core.registry.selection import available, select
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


@pytest.fixture
def installed(monkeypatch):
    """Registries of installed plugins, in each order of loading; `first` is what ships the senior."""

    def make(*found, first="gluon-first", order=None):
        monkeypatch.setattr(
            plugins.metadata,
            "requires",
            lambda name: ["numpy", "pytest; extra == 'test'", f"{first}>=0.1; extra == 'first'"],
        )
        entries = []
        for plugin in found:
            module = ModuleType(f"{plugin.__name__}_plugin")
            module.gluon_backends = plugin.gluon_backends
            module.gluon_lowerings = plugin.gluon_lowerings
            monkeypatch.setitem(sys.modules, module.__name__, module)
            entries.append(entry(plugin.__name__, distribution=f"Gluon.{plugin.__name__.title()}"))
        return [load(list(e)) for e in itertools.permutations(entries)]

    return make


def forge(*aliases, **attributes):
    return complete("forge", architecture("forge1", "forge", *aliases), **attributes)


def the(registry):
    """The one clash of a registry."""
    (clash,) = registry.clashes
    assert not registry.failures
    return clash


# -- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["anvil", "an-vil", "rocket2", "a1"])
def test_an_alias_of_the_senior_stays_his_in_any_order(installed, spelling):
    for registry in installed(Plugin("first", acme()), Plugin("forge", forge(spelling))):
        clash = the(registry)
        assert (clash.keeps, clash.loses) == ("first", ("forge",))
        assert "'first' (Gluon.First 1.0)" in clash.text and "'forge'" in clash.text
        assert registry.target(spelling).architecture.backend == "acme"
        assert registry.target(f"forge:{spelling}").name == "forge:forge1"
        assert registry.target("forge1").name == "forge:forge1"
        assert list(registry.backends) == ["acme", "forge"]


def test_where_it_cannot_be_told_who_was_first_nobody_has_the_alias(installed):
    theirs, mine = roadrunner(), forge("dust")
    found = Plugin("road", theirs), Plugin("forge", mine), Plugin("sim", simulator())
    for registry in installed(*found):
        assert the(registry).keeps is None and set(the(registry).loses) == {"road", "forge"}
        with pytest.raises(TargetError, match="'dust'.*'road'|'road'.*'dust'") as caught:
            registry.target("DUST")
        assert "'forge:DUST'" in str(caught.value) and "'roadrunner:DUST'" in str(caught.value)
        with pytest.raises(TargetError, match="'double:forge:dust'"):
            registry.target("double:dust")
        assert registry.target("roadrunner:dust").name == "roadrunner:beep9"
        assert registry.target("double:forge:dust").name == "double:forge1"
        assert registry.target("beep9").name == "roadrunner:beep9"


def test_an_architectures_own_name_comes_before_an_alias(installed):
    for registry in installed(Plugin("a", roadrunner()), Plugin("b", forge("beep9"))):
        assert registry.target("beep9").name == "roadrunner:beep9"
        assert the(registry).loses == ("b",)


def test_an_architecture_of_a_name_that_is_taken_is_not_there(installed):
    other = complete("forge", architecture("anvil", "forge"), architecture("f2", "forge", "two"))
    for registry in installed(Plugin("first", acme()), Plugin("forge", other)):
        assert registry.target("anvil").name == "acme:a1"
        assert registry.target("two").name == "forge:f2"
        assert [a.name for a in registry.architectures()] == ["a1", "a2", "f2"]
        with pytest.raises(TargetError, match="'anvil' is claimed twice.*acme:a1 has it"):
            registry.target("forge:anvil")


def test_two_architectures_of_one_name_are_told_apart_by_their_backends(installed):
    one = complete("one", architecture("x1", "one"))
    two = complete("two", architecture("x1", "two"))
    for registry in installed(Plugin("p", one), Plugin("q", two)):
        assert registry.target("one:x1").architecture.backend == "one"
        assert registry.target("two:x1").architecture.backend == "two"
        with pytest.raises(TargetError, match="Say 'one:x1' or 'two:x1'"):
            registry.target("x1")


def test_what_a_refused_architecture_also_claims_is_free(installed):
    refused = complete("forge", architecture("a1", "forge", "dust"))
    for registry in installed(
        Plugin("first", acme()), Plugin("f", refused), Plugin("r", roadrunner())
    ):
        assert registry.target("dust").name == "roadrunner:beep9"


def test_a_backends_name_comes_before_the_alias_of_another(installed):
    for registry in installed(Plugin("road", roadrunner()), Plugin("forge", forge("roadrunner"))):
        assert registry.target("roadrunner").name == "roadrunner:beep9"
        assert registry.target("forge:roadrunner").name == "forge:forge1"
        assert the(registry).keeps == "road"


# -- backends ------------------------------------------------------------------------------------


def test_a_backends_name_stays_with_the_senior(installed):
    late = acme(exports={"Late": "late.layouts:Late"}, lowerings=[lowering(name="late")])
    base = acme(lowerings=[lowering(name="early")])
    for registry in installed(Plugin("first", base), Plugin("other", late, roadrunner())):
        assert registry.backends["acme"] is base
        assert the(registry).loses == ("other",)
        assert registry.plugins["other"].backends == ("roadrunner",)
        assert "Late" not in registry.exports()
        assert [low.name for low in registry.lowerings("load")] == ["early", "global_load"]


def test_a_backends_name_that_two_newcomers_claim_is_nobodys(installed):
    found = Plugin("p", acme(), roadrunner()), Plugin("q", acme(), forge())
    for registry in installed(*found):
        assert list(registry.backends) == ["roadrunner", "forge"]
        with pytest.raises(PluginError, match="'acme' is claimed twice.*'p'.*'q'.*GLUON_PLUGINS"):
            registry.backend("acme")
        with pytest.raises(PluginError, match="'acme' is claimed twice"):
            registry.target("acme:a1")


def test_two_plugins_of_one_entry_point_name_are_both_there(installed, monkeypatch):
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


def test_the_first_simulator_is_what_runs_unasked(installed):
    second = simulator("other")
    for registry in installed(
        Plugin("first", simulator()), Plugin("late", second), Plugin("acme", acme())
    ):
        assert registry.simulator().name == "double" and the(registry).loses == ("late",)
        assert registry.target(None).name == "double:a1"
        assert registry.target("other:a2").name == "other:a2"


def test_a_simulator_that_does_not_run_unasked_claims_nothing(installed):
    machine = simulator("machine", unasked=False)
    for registry in installed(Plugin("a", machine), Plugin("b", simulator()), Plugin("c", acme())):
        assert not registry.clashes and registry.simulator().name == "double"
        assert registry.target("machine:a1").simulated


def test_of_two_simulators_nobody_knows_which_to_take_unasked(installed):
    found = Plugin("p", simulator()), Plugin("q", simulator("other")), Plugin("r", acme())
    for registry in installed(*found):
        assert registry.simulator() is None
        with pytest.raises(TargetError, match="'double'.*'other'"):
            registry.target(None)


def test_an_architecture_that_calls_itself_the_default_changes_nothing_for_others(installed):
    mine = complete("forge", architecture("forge1", "forge", default=True))
    found = Plugin("first", acme()), Plugin("late", mine), Plugin("sim", simulator())
    for registry in installed(*found):
        assert not registry.clashes
        assert registry.target(None).name == registry.target("double").name == "double:a1"
        assert registry.target("forge").name == "forge:forge1"


# -- exports -------------------------------------------------------------------------------------


def test_an_export_stays_with_the_senior(installed):
    senior, junior = acme(exports={"Odd": "a.b:Odd"}), roadrunner(exports={"Odd": "c.d:Odd"})
    for registry in installed(Plugin("first", senior), Plugin("late", junior)):
        assert dict(registry.exports()) == {"Odd": "a.b:Odd"}
        assert "gl.Odd" in the(registry).text


def test_asking_for_an_export_that_nobody_has_names_both(installed, monkeypatch):
    one, two = acme(exports={"Odd": "a.b:Odd"}), roadrunner(exports={"Odd": "c.d:Odd"})
    for registry in installed(Plugin("p", one), Plugin("q", two)):
        assert not registry.exports()
        monkeypatch.setattr(plugins, "_default", registry)
        with pytest.raises(AttributeError, match="gl.Odd is claimed twice.*'p'.*'q'"):
            namespaces.resolve("Odd", lambda cls: cls)


def test_an_export_goes_with_its_plugin(installed, monkeypatch):
    exporting = acme(exports={"Odd": "types:SimpleNamespace"})
    for registry in installed(Plugin("p", exporting)):
        monkeypatch.setattr(plugins, "_default", registry)
        assert namespaces.resolve("Odd", lambda cls: cls) is SimpleNamespace
    for registry in installed(Plugin("p", acme())):
        monkeypatch.setattr(plugins, "_default", registry)
        with pytest.raises(AttributeError, match="Odd"):
            namespaces.resolve("Odd", lambda cls: cls)


def test_the_namespace_of_a_senior_backend_comes_before_an_export(installed):
    senior = acme(namespace="acme.language")
    junior = roadrunner(exports={"acme": "c.d:Odd"})
    for registry in installed(Plugin("first", senior), Plugin("late", junior)):
        assert not registry.exports()
        assert "gl.acme" in the(registry).text


# -- lowerings -----------------------------------------------------------------------------------


def offers(registry, target="a1"):
    """The names of the lowerings of `load` on a target, and why those that lost did."""
    chosen = registry.target(target)
    names = [low.name for low in available("load", chosen, (3, 9), registry)]
    request = LoadRequest(chosen, 4, (3, 9), None, None, None, None)
    rejected = select("load", request, chosen, (3, 9), registry).rejected
    return names, {low.name: why for low, why in rejected}


def test_a_lowerings_name_stays_with_the_senior(installed):
    early, late = lowering(priority=3), lowering(priority=4)
    third = Plugin("late", lowerings=[late, lowering(name="other", priority=5)])
    for registry in installed(Plugin("first", acme(lowerings=[early])), third):
        assert [low.name for low in registry.lowerings("load")] == ["other", "fast", "global_load"]
        assert registry.lowerings("load")[1] is early
        assert registry.contributor(early) == "first" and "load/fast" in the(registry).text
        assert registry.plugins["late"].lowerings == ("load/other",)


def test_of_two_that_share_a_priority_the_senior_is_taken(installed):
    unit, late = lowering(name="by_unit", requires=("acme.unit",)), lowering(name="anywhere")
    found = Plugin("first", acme(lowerings=[unit])), Plugin("late", lowerings=[late])
    for registry in installed(*found):
        names, why = offers(registry)
        assert names == ["by_unit", "global_load"]
        assert why["anywhere"] == "shares priority 10 with by_unit"
        assert offers(registry, "a2")[0] == ["anywhere", "global_load"]
        assert the(registry).keeps == "first" and "acme:a1" in the(registry).text


def test_an_architecture_that_makes_a_tie_changes_nothing_elsewhere(installed):
    one = lowering(name="one", requires=("acme.unit",))
    two = lowering(name="two", requires=("road.fast",))
    both = architecture("b1", "zeta", capabilities=frozenset({"acme.unit", "road.fast"}))
    both_plugins = Plugin("p", acme(), lowerings=[one, two]), Plugin("z", complete("zeta", both))
    for registry in installed(*both_plugins):
        assert offers(registry)[0] == ["one", "global_load"]
        names, why = offers(registry, "b1")
        assert names == ["global_load"] and set(why) == {"one", "two"}
        assert the(registry).keeps is None and "zeta:b1" in the(registry).text


# -- plugins that a program registers ------------------------------------------------------------


@pytest.mark.parametrize(
    "newcomer, words",
    [
        (Plugin("new", acme()), ["'acme'"]),
        (Plugin("new", forge("anvil")), ["'anvil' is claimed twice", "acme:a1", "forge:forge1"]),
        (Plugin("new", forge("acme")), ["'acme'", "the backend 'acme'"]),
        (Plugin("new", roadrunner(exports={"Odd": "c.d:Odd"})), ["gl.Odd"]),
        (Plugin("new", simulator("other")), ["simulates", "'double'", "'other'"]),
        (Plugin("new", lowerings=[lowering(priority=3)]), ["lowering 'load/fast'"]),
        (Plugin("new", lowerings=[lowering(name="slow")]), ["'slow'", "'fast'", "priority 10"]),
        (Plugin("new", lowerings=[lowering(name="x", priority=0)]), ["global_load"]),
    ],
)
def test_what_a_program_registers_is_refused_to_its_face(newcomer, words):
    first = Plugin("first", acme(exports={"Odd": "a.b:Odd"}, lowerings=[lowering()]), simulator())
    with pytest.raises(PluginError) as caught:
        load([], [first, newcomer])
    for word in (*words, "'new'"):
        assert word in str(caught.value)


def test_a_plugin_that_a_program_registers_comes_after_those_that_are_installed(installed):
    registry = plugins.Registry()
    registry.register(Plugin("mine", forge("x9")))
    with pytest.raises(PluginError, match="'x9' is claimed twice.*'mine'.*'late'"):
        registry.register(Plugin("late", complete("zeta", architecture("x9", "zeta"))))
    assert registry.target("x9").name == "forge:forge1" and not registry.clashes


def test_without_metadata_of_the_core_nobody_is_senior(installed, monkeypatch):
    registries = installed(Plugin("first", acme()), Plugin("forge", forge("anvil")))

    def missing(name):
        raise plugins.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(plugins.metadata, "requires", missing)
    entries = [entry("first", distribution="gluon-first"), entry("forge")]
    with pytest.raises(TargetError, match="claimed twice"):
        load(entries).target("anvil")
    assert registries[0].target("anvil").name == "acme:a1"
