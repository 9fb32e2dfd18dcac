"""The programs of the tests of the AMD backend, as machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from tests import programs
from tests.backends.emu.assembly import MISCOUNTED

FOLDER = Path(__file__).parents[1] / "amd" / "language" / "programs"


@pytest.mark.sampled(8)
@pytest.mark.once
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", programs.collect(FOLDER), ids=str)
def test_programs(program, request):
    if program.path.stem == "mixed_precision":
        request.applymarker(MISCOUNTED)
    needed = max(program.launch.since, program.launch.compiled)
    if not triton_at_least(*needed):
        pytest.skip(f"needs Triton {needed[0]}.{needed[1]}")
    program.run(registry().target(f"emu:{program.launch.target}"))
