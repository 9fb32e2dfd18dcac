"""Settings of backends that run kernels on the host: from the environment, for a block, for all."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import ClassVar, Mapping, Optional

import pytest

from gluon_core.errors import ArgumentError
from gluon_core.simulation.settings import LaunchSettings, Scopes

pytestmark = pytest.mark.once


@dataclass(frozen=True)
class Toy(LaunchSettings):
    PREFIX: ClassVar[str] = "TOY"
    RUNNER: ClassVar[str] = "toy"
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"pace": ("slow", "fast")}
    POSITIVE: ClassVar[tuple[str, ...]] = ("limit",)
    STRICT: ClassVar[Mapping[str, str]] = {"pace": "slow"}

    races: bool = True
    bounds: bool = True
    verbose: bool = False
    pace: str = "fast"
    limit: Optional[float] = None
    seed: int = 0
    file: Optional[str] = None


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("races", "off", False),
        ("races", "YES", True),
        ("verbose", "1", True),
        ("pace", "SLOW", "slow"),
        ("limit", "0.5", 0.5),
        ("seed", " 7 ", 7),
        ("file", "Out.txt", "Out.txt"),
    ],
)
def test_the_environment_sets_a_field(name, text, value):
    assert getattr(Toy.from_environment({f"TOY_{name.upper()}": text}), name) == value


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TOY_SEED", "3")
    assert Scopes(Toy).current() == Toy(seed=3)


def test_an_empty_variable_says_nothing():
    assert Toy.from_environment({"TOY_RACES": "", "TOY_CHECKS": " "}) == Toy()


def test_all_checks_are_switched_but_those_named():
    settings = Toy.from_environment({"TOY_CHECKS": "0", "TOY_BOUNDS": "1"})
    assert settings.off == ("races",) and not settings.verbose


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"TOY_RACES": "maybe"}, "not a switch"),
        ({"TOY_SEED": "1.5"}, "not a number"),
        ({"TOY_LIMIT": "soon"}, "not a number"),
        ({"TOY_LIMIT": "0"}, "must be positive"),
        ({"TOY_PACE": "brisk"}, "unknown pace of the toy"),
    ],
)
def test_values_beyond_a_field_are_refused(variables, message):
    with pytest.raises(ArgumentError, match=message):
        Toy.from_environment(variables)


def test_a_block_changes_the_settings_and_ends():
    scopes = Scopes(Toy)
    with scopes.using(races=False), scopes.using(seed=1):
        assert scopes.current() == Toy(races=False, seed=1)
    assert scopes.current() == Toy()


def test_a_block_of_another_thread_is_not_seen_unless_it_is_everywhere():
    scopes, seen = Scopes(Toy), []

    def look():
        seen.append(scopes.of_launch()[0].seed)

    for everywhere in (False, True):
        with scopes.using(seed=5, everywhere=everywhere):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
    assert seen == [0, 5]


def test_checks_bring_strict_settings_but_not_against_explicit_ones():
    scopes = Scopes(Toy)
    with scopes.using(checks=True, bounds=False) as chosen:
        assert chosen == Toy(pace="slow", bounds=False)
    with scopes.using(checks=False) as chosen:
        assert chosen.off == ("races", "bounds") and chosen.pace == "fast"


def test_overrides_of_everywhere_are_reported():
    scopes = Scopes(Toy)
    with scopes.using(checks=True, everywhere=True), scopes.using(bounds=False):
        settings, overridden = scopes.of_launch({"pace": "fast", "races": False})
    assert settings.off == () and settings.pace == "slow"
    assert overridden == ("races", "bounds", "pace")
    assert scopes.of_launch({"races": False}) == (Toy(races=False), ())
