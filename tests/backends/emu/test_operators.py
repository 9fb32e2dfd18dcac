"""The operators of `gluon_kernels` as machine code: each has the simulator's result, or is refused there, too."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.once

# By docs/known-compiler-bugs.md: reports on code of some releases that are right.
KNOWN = {
    "gfx950": r"RaceError.*no wait before the barrier",
    "gfx1250": r"RaceError|MissingWaitError",
}


def results(target, folder):
    file = folder / f"{target.replace(':', '-')}.pt"
    command = [sys.executable, "-m", "tests.backends.emu.operators", target, str(file)]
    subprocess.run(command, check=True, timeout=1200)
    return torch.load(file)


def compare(arch, folder):
    """Return the operators whose results differ, or that only the emulator refuses, with the reason."""
    emulated, simulated = (results(f"{kind}:{arch}", folder) for kind in ("emu", "sim"))
    wrong = {}
    for name in emulated:
        one, other = emulated[name], simulated[name]
        if isinstance(one, str):
            same = isinstance(other, str) and one.partition(":")[0] == other.partition(":")[0]
            if not same and not re.match(KNOWN.get(arch, r"(?!)"), one, re.DOTALL):
                wrong[name] = one
            continue
        if isinstance(other, str):
            wrong[name] = f"the simulator refuses it: {other}"
            continue
        for x, y in zip(one, other):
            x, y = x.double(), y.double()
            limit = 1e-2 * y.abs().max().clamp(min=1e-9) if y.numel() else 0
            if not torch.allclose(x, y, rtol=0, atol=float(limit), equal_nan=True):
                wrong[name] = f"differs by up to {(x - y).abs().max():.3g}"
    return wrong


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx950", "gfx1250"])
def test_all_operators(arch, tmp_path):
    assert not compare(arch, tmp_path)
