"""The tests of a GPU, unchanged, on the emulator: it is the device of NVIDIA's plugin, and runs what has no target.

pytest -p tests.gpu_on_emulator --gluon-standin emu:sm_90 -m gpu tests/backends/nvidia
"""

from __future__ import annotations

from gluon_core.launch import place
from gluon_core.registry.load import registry


def pytest_configure(config):
    target = registry().target("emu:sm_90")
    device = registry().backend("nvidia").device
    object.__setattr__(device, "target", lambda index=0: target)
    place._on_cpu = lambda places: target
