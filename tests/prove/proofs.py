"""Asking for a verdict on a launch."""

import gluon_core  # noqa: F401, I001
from gluon_core import language as gl
from gluon_core.simulation.evidence import recording
from gluon_core.errors import GluonError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_sim.settings import using

TILE = 32
SHARED = gl.NVMMASharedLayout(128, 32, 2)
LAYOUT = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])


def judged(kernel, grid, *args, within=60.0, **options):
    """The verdict on the launch, and its report."""
    error = None
    with using(prove="*", within=within), recording() as record:
        try:
            kernel[grid](*args, **options)
        except GluonError as reported:
            error = reported
    verdicts = [one.proved for one in record.launches if one.proved is not None]
    assert len(verdicts) == 1, error
    return verdicts[0], error


def describe(array):
    return TensorDescriptor.from_tensor(array, [8, TILE], SHARED)
