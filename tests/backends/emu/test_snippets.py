"""Results of the snippets of the frontend's tests: machine code against the simulator."""

from __future__ import annotations

import re

import pytest

from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_emu.settings import using
from tests.kernels import differential

# Their layouts are for 32 lanes. Each snippet runs on one of these.
TARGETS = ("gfx1100", "gfx1201", "gfx1250")
if TRITON_VERSION < (3, 7):  # its linker gives up on some of them for gfx1250, without a reason
    TARGETS = TARGETS[:2]
# Snippets that differ or do not run, with the reason.
EXPLAINED = {
    r"operator-sh[lr]-\d+": "counts beyond the width: LLVM leaves the result open, AMD takes them modulo it",
    r"atomic_\w+-11": "what an atomic operation answers where it is masked off is open",
    r"argmax-4": "tie_break_left=False: any of equal elements",
    r"warp_specialize.*": "Triton has no code for it on these architectures",
}
CASES = [(name, TARGETS[i % len(TARGETS)]) for i, name in enumerate(differential.usable_snippets())]


@pytest.mark.sampled(400)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, arch", CASES)
def test_snippets(name, arch):
    targets = (registry().target(f"{kind}:{arch}") for kind in ("sim", "emu"))
    with using(timeout=60):
        outcome = differential.outcome_of(f"snippet:{name}", *targets)
    if not any(re.fullmatch(pattern, name) for pattern in EXPLAINED):
        assert outcome.kind in ("same", "near", "reported", "refused", "unable"), outcome
