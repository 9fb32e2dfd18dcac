"""The machines that run the kernels of these tests: the simulator, and the emulator for what LLVM made of them."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sim", pytest.param("emu", marks=pytest.mark.sampled(8))])
def on(request):
    """`on("gfx942")`: a target that stands in for the architecture."""
    return lambda architecture: f"{request.param}:{architecture}"
