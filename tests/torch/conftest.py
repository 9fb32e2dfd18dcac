"""`device`: tensors on the CPU, where the simulator runs kernels, and the same tests on a GPU."""

import pytest
import torch

from gluon_core.registry.load import registry


def _gpu():
    plugged = (b for b in registry().backends.values() if not b.simulates and b.device.target())
    return next((backend.device.tensor_device for backend in plugged), None)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "gpu":
        gpu = _gpu()
        if gpu is None or not torch.cuda.is_available():
            pytest.skip("no GPU")
        return gpu
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    return "cpu"


@pytest.fixture(autouse=True)
def fresh():
    """Each test compiles for itself."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
