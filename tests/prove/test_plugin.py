"""The prover plugs into the simulator."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, PluginError
from gluon_core.registry import load
from gluon_core.simulation.evidence import Proved
from gluon_sim import launcher
from gluon_sim.settings import using
from tests.core.fakes import Plugin
from tests.prove.proofs import judged


def fill():
    """A kernel that nothing has launched or proved before."""

    @gluon.jit
    def kernel(out):
        index = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(out + index, index)

    return kernel


@pytest.fixture
def prover(monkeypatch):
    """Put a registry in place of the installed one that has this prover, or none."""

    def put(path=None):
        services = {} if path is None else {"prove": path}
        known = load.load([], [Plugin("prover", services=services)])
        monkeypatch.setattr(launcher, "registry", lambda: known)

    return put


def test_without_a_prover_the_error_names_the_package_to_install(prover):
    prover()
    out = np.zeros(32, np.int32)
    with using(prove="*"), pytest.raises(CapabilityError, match="none is installed") as caught:
        fill()[1,](out)
    assert 'pip install "gluon-core[prove]"' in str(caught.value)
    fill()[1,](out)
    assert (out == np.arange(32)).all()


def test_a_prover_that_cannot_be_loaded_is_named(prover):
    prover("gluon_prove.verdict:proof")
    with using(prove="*"), pytest.raises(PluginError, match=r"gluon_prove\.verdict:proof"):
        fill()[1,](np.zeros(32, np.int32))


def count(launch):
    """A prover that says how many programs a launch has."""
    x, y, z = launch.grid
    return Proved("proved", launch.kernel.entry.name, x * y * z, 0.0, ()), None


def test_another_prover_takes_the_place_of_ours(prover):
    prover(f"{__name__}:count")
    verdict, error = judged(fill(), (2, 3), np.zeros(32, np.int32), races=False)
    assert error is None
    assert (verdict.name, verdict.states) == ("kernel", 6)
