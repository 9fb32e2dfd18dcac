"""Whole programs for AMD's GPUs: upstream's modules, right on the simulator, and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs

pytestmark = pytest.mark.once

FOLDER = Path(__file__).with_name("programs")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", programs.collect(FOLDER), ids=str)
class TestPrograms(programs.Tests):
    def test_it_compiles(self, program):
        program.compile()
