"""Whole programs in the portable language: upstream's modules, right on the simulator, and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs

pytestmark = pytest.mark.once

PROGRAMS = programs.collect(Path(__file__).with_name("programs"))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
class TestPrograms(programs.Tests): ...


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.index == 0], ids=str)
def test_it_compiles(program):
    program.compile()
