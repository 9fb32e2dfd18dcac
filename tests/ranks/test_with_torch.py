"""Groups of torch's processes: checks that need no GPU."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import gluon_distributed as distributed
from gluon_core import errors

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.sampled(2)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone():
    """One process as a group of its own."""
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_torch_distributed_is_not_initialized():
    with pytest.raises(errors.GroupError, match="init_process_group"):
        distributed.group()


def test_no_such_group(alone):
    with pytest.raises(errors.GroupError, match="unknown group"):
        distributed.group("of_nobody")
    with pytest.raises(errors.GroupError, match="got int"):
        distributed.group(3)


def test_a_group_that_this_rank_is_not_in(alone):
    with pytest.raises(errors.GroupError, match="rank 0 is not part of the group"):
        distributed.group(alone.GroupMember.NON_GROUP_MEMBER)


def test_a_group_ends_when_torch_destroys_it():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = distributed.group()
    ended = weakref.ref(dist.group.WORLD)
    assert group.gather(5) == [5]
    dist.destroy_process_group()
    assert ended() is None  # its threads as well: at the interpreter's end they would abort it
    with pytest.raises(errors.GroupError, match="was destroyed"):
        group.gather(5)


def test_more_ranks_than_were_started(alone, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "0")
    with pytest.raises(errors.GroupError, match="more ranks than were started"):
        distributed.group(alone.new_group([0]))


def test_no_gpu(alone):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(errors.SymmetricMemoryError, match="simulate"):
        distributed.group().empty(4, torch.float32)


def test_the_device_is_the_current_one(alone, monkeypatch):
    class Module:
        current_device = staticmethod(lambda: 1)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda kind: Module)
    assert distributed.group().device == torch.device("cuda", 1)


def test_tensors_that_are_not_symmetric(alone):
    group = distributed.group()
    with pytest.raises(errors.NotSymmetricError, match="empty"):
        group.symmetric(torch.zeros(4))
    with pytest.raises(errors.NotSymmetricError, match="not contiguous"):
        distributed.symmetric(torch.zeros(4, 4).T)
    with pytest.raises(errors.NotSymmetricError, match="not a tensor"):
        group.symmetric([1.0])
    with pytest.raises(errors.ArgumentError, match="dtype"):
        group.empty(4, "float32")


def test_a_torch_without_symmetric_memory(alone, monkeypatch):
    group = distributed.group()
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", None)
    with pytest.raises(errors.SymmetricMemoryError, match="has no symmetric memory"):
        group.empty(4, torch.float32)


TWO = """
import sys, torch.distributed as dist
import gluon_distributed as distributed
from gluon_core import errors
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
group = distributed.group()
assert group.gather(rank) == [0, 1]
group.barrier()

class Kernel:
    __name__, cache_key = "k", f"text {rank}"

for call in (
    lambda: group.check(Kernel()),
    lambda: group.agree("size", rank),
    lambda: group.gather(1, "this" if rank else "that"),
):
    try:
        call()
    except errors.RankMismatchError as error:
        print(type(error).__name__, str(error).splitlines()[0])
group.check()
dist.destroy_process_group()
"""


@pytest.mark.once
def test_two_processes(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in started:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        first, second, third = out.splitlines()
        assert first.startswith("RankBuildError kernel k: ranks are of different builds")
        assert second.startswith("RankMismatchError size: ranks bring different values")
        assert "`this`" in third and "`that`" in third
