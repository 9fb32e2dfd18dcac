"""Engines beyond one process: real clusters of this machine, where their packages are installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys

import pytest

import gluon_tune as tune
from gluon_core.errors import TuneError, TuneWorkerError
from gluon_tune.engine import Dask, RayCluster
from gluon_tune.task import Reference
from tests.tune import tasks

pytestmark = [pytest.mark.once, pytest.mark.timeout(240)]

COUNT = tune.Settings(target="hopper", objective="registers")


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_port=0,
        resources={"METER": 1},
        silence_logs=50,
    ) as local:
        yield local


@pytest.mark.campaign
def test_a_worker_of_dask_dies_in_the_middle(cluster, tmp_path):
    import distributed

    killed = []

    def hear(progress):
        if progress.done == 2 and not killed:
            pids = set(client.run(os.getpid).values())
            assert len(pids) == 2 and os.getpid() not in pids
            killed.append(pids.pop())
            os.kill(killed[0], signal.SIGKILL)

    with distributed.Client(cluster) as client, tune.Store(tmp_path / "s.db") as store:
        engine = Dask(client, {"METER": 1})
        assert (engine.slots, engine.meters) == (2, 2)
        (result,) = tune.search(tasks.SCALE, COUNT, store=store, engine=engine, progress=hear)
        assert killed and {trial.status for trial in result.trials} == {"ok"}
        assert len(result.trials) == result.total == len(list(tasks.SCALE.searched))
        with pytest.raises(TuneWorkerError, match="expected H200=1, got METER"):
            Dask(client, {"H200": 1})
        engine.close()


@pytest.mark.campaign  # the import of Dask takes longer, too
def test_no_scheduler_answers():
    pytest.importorskip("distributed.client", reason="Dask is not installed")
    with pytest.raises(TuneWorkerError, match="no Dask scheduler answers"):
        Dask("nowhere://127.0.0.1:1")


def test_a_package_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TuneError, match="--dask: distributed is not installed.*pip install"):
        Dask("tcp://127.0.0.1:1")
    with pytest.raises(TuneError, match="--ray: ray is not installed.*pip install"):
        RayCluster("auto")


@pytest.mark.campaign  # starting a cluster takes longer than the rest of these tests
def test_ray(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(TuneWorkerError, match="expected H200"):
        RayCluster("local", {"H200": 1})
    engine = RayCluster("local")
    try:
        with tune.Store(tmp_path / "s.db") as store:
            (result,) = tune.search(tasks.SCALE, COUNT, store=store, engine=engine)
    finally:
        engine.close()
    assert result.best is not None and len(result.trials) == result.total


def test_a_machine_without_the_file_gets_its_text(tmp_path):
    path = tmp_path / "there.py"
    with open(tasks.__file__) as file:
        path.write_text(file.read())
    reference = Reference.to(f"{path}:SCALE")
    path.unlink()
    try:
        task = reference.load()
        assert task.name == "scale" and task.identity == tasks.SCALE.identity
    finally:
        sys.modules.pop("gluon_file_there", None)
