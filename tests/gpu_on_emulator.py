"""The tests of a GPU, unchanged, on the emulator: it is the device of NVIDIA's plugin, and runs what has no target.

pytest -p tests.gpu_on_emulator --gluon-standin emu:sm_90 -m gpu tests/backends/nvidia
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gluon_core.errors import BackendError
from gluon_core.launch import place
from gluon_core.registry.load import registry

TARGET = "emu:sm_90"


def emulate():
    """Let torch, Triton and NVIDIA's plugin answer as the emulated device, in this process."""
    from gluon_core import testing
    from gluon_emu.cuda import serve
    from gluon_judge import Judge
    from gluon_standin import stand_in
    from gluon_torch import prepared
    from gluon_tune import bench

    stand_in(TARGET)
    with suppress(BackendError):  # no C compiler, or a driver is loaded: tests of C fail
        serve(TARGET)
    target = registry().target(TARGET)
    device = registry().backend("nvidia").device
    object.__setattr__(device, "target", lambda index=0: target)
    place._plugged_at = lambda places: target
    placed = testing.place

    def on_the_device(*capabilities):
        """Return the place of a test, whose tensors are on the device as on a GPU."""
        place = placed(*capabilities)
        return replace(place, device=device.tensor_device) if place.target == target else place

    testing.place = on_the_device
    begin = bench.Arrays.__init__

    def on_device(self, wanted, index=None):
        """Make tensors of the device for the emulator, too, whose arrays are NumPy's otherwise."""
        begin(self, wanted, index)
        if wanted == target:
            self._device = device.tensor_device

    bench.Arrays.__init__ = on_device
    module = bench._module
    bench._module = lambda wanted: module(
        registry().target("sm_90") if wanted == target else wanted
    )
    bench.target_of = lambda spec: target  # a search takes hardware, whose clock is the host's here
    bench.device_count = lambda wanted: 1
    bench.device_name = lambda wanted, index=0: TARGET
    judge = Judge.__init__

    def on_emulator(self, *arguments, **named):
        """Let the processes of `--on-gpu` run on the emulator, too."""
        judge(self, *arguments, **named)
        self.gpu_target = TARGET

    Judge.__init__ = on_emulator
    modes = prepared._functions
    prepared._functions = lambda: max(modes() - 1, 0)  # the mode that answers is no user's


def pytest_configure(config):
    emulate()
    children = str(Path(__file__).with_name("emulated_children"))
    sys.path.insert(0, children)  # some children get these paths
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([children, *([before] if before else [])])
