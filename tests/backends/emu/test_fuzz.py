"""Random kernels: NumPy, the simulator and machine code agree to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_emu.settings import using
from tests.backends.emu.fuzz import generate
from tests.frontend import oracle

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")

ENDLESS = (85,)


@pytest.mark.sampled(100)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(120))
def test_random_kernels(seed):
    if seed in ENDLESS and TRITON_VERSION < (3, 7):
        pytest.skip("LLVM of Triton 3.6 takes minutes for its code")
    arch = ARCHITECTURES[seed % 6]
    source, inputs, *wanted = generate(seed, registry().target(arch).warp_size)
    kernel = oracle.load(source, oracle.OURS).kernel
    for machine in ("sim", "emu"):
        results = [np.zeros_like(array) for array in wanted]
        with using(timeout=60):
            kernel[(1,)](*(x.copy() for x in inputs), *results, target=f"{machine}:{arch}")
        for got, expected in zip(results, wanted):
            np.testing.assert_array_equal(got, expected, err_msg=f"{machine}:{arch}\n{source}")
