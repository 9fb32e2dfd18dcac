"""The explicit files of examples/written are what the tool writes from the sources there."""

from pathlib import Path

import pytest

from gluon_core.registry.load import registry
from gluon_write.command import written

FOLDER = Path(__file__).parents[2] / "examples" / "written"


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", ["gemm", "attention"])
def test_files_are_current(name, target):
    text, kernels = written(str(FOLDER / f"{name}.py"), registry().target(target))
    kept = (FOLDER / f"{name}_{target}.py").read_text()
    assert len(kernels) == 1 and f"# proved: {kernels[0]} on sim:{target}" in kept
    lines = [line for line in kept.splitlines() if not line.startswith("# proved: ")]
    assert [line for line in lines if line] == [line for line in text.splitlines() if line]
