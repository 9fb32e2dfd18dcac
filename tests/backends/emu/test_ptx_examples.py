"""Examples and snippets of the frontend's tests whose PTX the emulator executes: NumPy's numbers, and the simulator's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_emu.settings import using
from gluon_report.example import Arrays
from tests.kernels import cases, differential

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]
EXAMPLES = {e.name: e for e in cases.load_cases().values()}
SCHEDULES = ("latest", "eager", "random")
# Snippets whose result the language leaves open, with the reason.
OPEN = {
    r"atomic_\w+-11": "what an atomic operation answers where it is masked off is open",
    r"argmax-4": "tie_break_left=False: any of equal elements",
}


def cases():
    for arch in ("sm_80", "sm_90", "sm_100"):
        target = registry().target(f"emu:{arch}")
        yield from ((name, arch) for name, e in EXAMPLES.items() if not e.lacks(target))


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name, arch", list(cases()))
def test_examples(name, arch):
    example, target = EXAMPLES[name], registry().target(f"emu:{arch}")
    schedule = SCHEDULES[len(name) % len(SCHEDULES)]
    with using(timeout=60, schedule=schedule, seed=len(name)):
        assert example.check(target).problem is None


@pytest.mark.sampled(480)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", differential.usable_snippets())
def test_snippets(name, arch):
    targets = (registry().target(f"{kind}:{arch}") for kind in ("sim", "emu"))
    with using(timeout=60):
        outcome = differential.outcome_of(f"snippet:{name}", *targets)
    if not any(re.fullmatch(pattern, name) for pattern in OPEN):
        assert outcome.kind in ("same", "near", "reported", "refused", "unable"), outcome


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_schedules_change_nothing(seed):
    """A kernel without a mistake makes the same bits whatever comes first."""
    example, target = EXAMPLES["matmul, warp-specialized"], registry().target("emu:sm_90")
    results = []
    for schedule in ("latest", "random"):
        args = example.arguments(Arrays(target), False)
        with using(schedule=schedule, seed=seed):
            example.launch(args, example.configure(target), target=target)
        results.append(np.asarray(args[example.output]).view(np.uint16).copy())
    np.testing.assert_array_equal(*results)
