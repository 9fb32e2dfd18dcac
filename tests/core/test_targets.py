"""Every spelling of a target, and the errors of the wrong ones."""

from __future__ import annotations

from collections import namedtuple

import pytest

from gluon_core.errors import TargetError
from gluon_core.plugin.targets import Architecture, Limits, Target
from gluon_core.registry.load import load
from tests.core.fakes import Plugin, acme, architecture, complete, roadrunner, simulator

pytestmark = pytest.mark.once

GPUTarget = namedtuple("GPUTarget", "backend arch warp_size")


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    return load([], [Plugin("all", acme(), roadrunner(), simulator())])


@pytest.mark.parametrize(
    "spelling, name",
    [
        ("a1", "acme:a1"),
        ("anvil", "acme:a1"),
        ("ANVIL", "acme:a1"),
        (" anvil ", "acme:a1"),
        ("acme:a1", "acme:a1"),
        ("acme:anvil", "acme:a1"),
        ("acme:1", "acme:a1"),
        ("rocket2", "acme:a2"),
        ("Rocket-2", "acme:a2"),
        ("roadrunner", "roadrunner:beep9"),
        ("acme", "acme:a1"),
        ("acmert:2", "acme:a2"),
        ("acmert:2:64", "acme:a2"),
        ("double:beep9", "double:beep9"),
        ("double:dust", "double:beep9"),
        ("double:acme:a2", "double:a2"),
        ("double:acme", "double:a1"),
        ("double", "double:a1"),
        (GPUTarget("acmert", 1, 32), "acme:a1"),
        (GPUTarget("acmert", 2, 64), "acme:a2"),
        (GPUTarget("roadrunnerrt", "beep9:feature+", 32), "roadrunner:beep9"),
    ],
)
def test_spellings(registry, spelling, name):
    assert registry.target(spelling).name == name


def test_every_target_prints_as_a_spelling_of_itself(registry):
    for arch in registry.architectures():
        for backend in (arch.backend, "double"):
            target = Target(backend, arch)
            assert registry.target(str(target)) == target
            assert registry.target(target) is target
            assert target.simulated == (backend == "double")


def test_spellings_of_one_target_are_equal_and_hash_alike(registry):
    assert len({registry.target(s) for s in ("a1", "anvil", "acme:a1", "ACME:A1")}) == 1


@pytest.mark.parametrize(
    "spelling, message",
    [
        ("anvil,a1", "unknown target 'anvil,a1'.*Name one target: anvil"),
        ("anvl", "unknown target 'anvl'.*Did you mean 'anvil'"),
        ("acne:a1", "unknown backend 'acne'.*Did you mean 'acme'"),
        ("acme:beep9", "unknown architecture 'beep9'.*Known: a1, anvil, a2"),
        ("double:beep8", "Did you mean 'beep9'"),
        ("double:double", "unknown architecture"),
        ("acme:", "unknown architecture"),
        ("", "unknown target"),
        (GPUTarget("acmert", 9, 32), "no plugin compiles for acmert:9"),
        (GPUTarget("cudart", 90, 32), "no plugin compiles for cudart:90.*Installed backends"),
        (GPUTarget("acmert", 2, 32), "warps of 64.*warp_size=32"),
        (90, "not a target.*got 90"),
    ],
)
def test_wrong_spellings(registry, spelling, message):
    with pytest.raises(TargetError, match=message):
        registry.target(spelling)


def test_without_a_target_the_environment_decides(registry, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "double:dust")
    assert registry.target(None).name == "double:beep9"
    monkeypatch.setenv("GLUON_TARGET", "anvl")
    with pytest.raises(TargetError, match="GLUON_TARGET.*Did you mean 'anvil'"):
        registry.target(None)


def test_without_a_target_the_plugged_in_device_comes_before_the_simulator(monkeypatch):
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    device = acme()
    device.device.target = lambda index=0: Target("acme", device.architectures[-1])
    registry = load([], [Plugin("all", simulator(), device)])
    assert registry.target(None).name == "acme:a2"
    assert registry.target("acme").name == "acme:a2"


def test_without_a_device_the_simulator_replaces_the_default_architecture(registry):
    assert registry.target(None).name == "double:a1"


def test_without_device_and_simulator_the_error_names_the_option(monkeypatch):
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    lone = acme(problem=lambda: "the acme driver is too old.")
    with pytest.raises(TargetError, match="the acme driver is too old.*GLUON_TARGET"):
        load([], [Plugin("acme", lone)]).target(None)


def test_two_defaults_are_not_guessed_between():
    other = complete("zeta", architecture("z1", "zeta", default=True))
    registry = load([], [Plugin("all", acme(), other, simulator())])
    with pytest.raises(TargetError, match="acme:a1, zeta:z1"):
        registry.target("double")
    assert registry.target("double:zeta").name == "double:z1"


def test_a_backend_alone_needs_a_default_or_a_single_architecture():
    two = complete("zeta", architecture("z1", "zeta"), architecture("z2", "zeta"))
    registry = load([], [Plugin("zeta", two)])
    with pytest.raises(TargetError, match="zeta:z1, zeta:z2"):
        registry.target("zeta")


def test_capabilities_of_a_simulated_target_are_those_of_the_architecture(registry):
    assert registry.target("double:a1").has("acme.unit")
    assert not registry.target("double:a2").has("acme.unit")


def test_an_unknown_name_far_from_all_lists_a_few():
    from gluon_core.registry.load import registry

    for spec in ("zzzzqq", "nvidia:zzzzqq"):
        with pytest.raises(TargetError, match="Among others: .*gluon info. lists all") as caught:
            registry().target(spec)
        assert len(str(caught.value)) < 320


def test_an_architecture_needs_no_aliases():
    limits = Limits(65536)
    one = Architecture("a1", "acme", arch=1, triton_backend=None, warp_size=32, limits=limits)
    assert one.aliases == () and one.spellings == ("a1",)
    with pytest.raises(TypeError, match="'arch', 'triton_backend', 'warp_size', and 'limits'"):
        Architecture("a1", "acme")
