"""Three ways to the same numbers: NumPy, the simulator, and the machine code that came of a kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_core.testing.conformance.kernels import COLS, KERNELS, ROWS
from gluon_report.example import Arrays
from tests.kernels import cases

pytestmark = pytest.mark.once

ALL = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250"]
# The most different cases run with each release of Triton; the rest once.
TARGETS = [
    t if t in ("gfx942", "gfx1250") else pytest.param(t, marks=pytest.mark.once) for t in ALL
]
FOUND = cases.load_cases()
EXAMPLES = {e.name: e for e in FOUND.values()}


def results(example, target):
    args = example.arguments(Arrays(target), False)
    example.launch(args, example.configure(target), target=target)
    got = args[example.output]
    wanted = example.reference(args)
    return got, np.asarray(wanted).reshape(got.shape)


def cases():
    """(example, architecture) of all that an architecture has the capabilities for."""
    for target in TARGETS:
        arch, marks = (target, ()) if isinstance(target, str) else (target.values[0], target.marks)
        resolved = registry().target(f"emu:{arch}")
        for name, example in EXAMPLES.items():
            if not example.lacks(resolved):
                yield pytest.param(name, arch, marks=marks)


@pytest.mark.sampled(100)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name, arch", list(cases()))
def test_examples(name, arch):
    example = EXAMPLES[name]
    emulated = registry().target(f"emu:{arch}")
    got, wanted = results(example, emulated)
    assert example.difference(got, wanted) is None
    simulated, _ = results(example, registry().target(f"sim:{arch}"))
    # Each is as near to the reference as this; to each other they are as near as twice that.
    twice = replace(example, tolerance=2 * example.tolerance)
    assert twice.difference(got, simulated.astype(wanted.dtype)) is None


@pytest.mark.sampled(28)
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_conformance_kernels(name, arch):
    chosen = KERNELS[name]
    outputs = []
    for target in (registry().target(f"emu:{arch}"), registry().target(f"sim:{arch}")):
        inputs = chosen.arrays()
        arrays = [*inputs, np.zeros(ROWS * COLS, chosen.output)]
        chosen.kernel[(1,)](*arrays, ROWS * COLS, target.warp_size, target=target, num_warps=4)
        outputs.append(arrays[-1])
    np.testing.assert_allclose(outputs[0], chosen.meaning(*chosen.arrays()), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=2e-5, atol=1e-6)
