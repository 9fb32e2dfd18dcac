"""The explicit files of examples/written are what the tool writes from the sources there."""

import re
from pathlib import Path

import pytest

from gluon_cli.run import Runs, run_file
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record
from gluon_write.command import written
from gluon_write.preferred import preferred_form

FOLDER = Path(__file__).parents[2] / "examples" / "written"


@pytest.mark.once
@pytest.mark.parametrize(
    "name, target, form",
    [
        ("gemm", "sm_90", None), ("gemm", "sm_90", "specialized"), ("attention", "sm_90", None),
        pytest.param("attention_tiles", "sm_90", None, marks=pytest.mark.campaign), pytest.param("gemm", "sm_100", None, marks=pytest.mark.campaign),
        pytest.param("attention_tiles", "sm_100", None, marks=pytest.mark.campaign), ("gemm", "gfx942", None),
        ("attention", "gfx942", None),
    ],
)  # fmt: skip
def test_files_are_current(name, target, form):
    with preferred_form(form):
        text, kernels = written(str(FOLDER / f"{name}.py"), registry().target(target))
    kept = (FOLDER / f"{name}_{target}{f'_{form}' if form else ''}.py").read_text()
    assert len(kernels) == 1 and f"# proved: {kernels[0]} on sim:{target}" in kept
    lines = [line for line in kept.splitlines() if not line.startswith("# proved: ")]
    # The costs of layouts differ by tenths of a percent between releases of Triton.
    ours, wanted = (
        re.sub(r"\d+\.\d(?=% more)", "", "\n".join(part)) for part in (text.splitlines(), lines)
    )
    assert [line for line in ours.splitlines() if line] == [
        line for line in wanted.splitlines() if line
    ]


@pytest.mark.campaign
@pytest.mark.parametrize(
    "path", [*FOLDER.glob("*_sm_*.py"), *FOLDER.glob("*_gfx*.py")], ids=lambda path: path.stem
)
def test_files_are_proved(path):
    target = re.search(r"(?:sm_|gfx)\w+?(?=_specialized|$)", path.stem)[0]
    record = Record()
    run_file(str(path), f"sim:{target}", (), runs=Runs(prove="*", within=60.0), record=record)
    verdicts = [one.proved for one in record.launches if one.proved is not None]
    assert verdicts and all(one.verdict == "proved" for one in verdicts), verdicts
