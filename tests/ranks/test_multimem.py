"""One instruction for the copies of all ranks: on simulated ranks, and its machine code. No GPU runs it."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from gluon_core import errors
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import multimem
from gluon_distributed.symmetric_memory import Multicast, Symmetric
from gluon_sim.errors import RaceError, SimulatorError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.once

SIM = "sim:hopper"
BLOCK = 256


@gluon.jit
def reduced(
    x, all_x, all_y, out, n, KIND: gl.constexpr, ORDERED: gl.constexpr, WIDTH: gl.constexpr
):
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [1], [0])
    i = gl.arange(0, 256, layout=layout)
    inside = i < n
    rank = x.rank
    mine = (i % 7 + rank).to(x.peers[0].dtype.element_ty)
    gl.store(gl.portable.peer(x.peers, rank) + i, mine, mask=inside)
    if ORDERED:
        gl.portable.rank_barrier(x.signals, rank)
    total = multimem.load_reduce(all_x, i, mask=inside, op=KIND, width=WIDTH)
    gl.store(out + i, total, mask=inside)
    if rank == 0:
        multimem.store(all_y, i, total, mask=inside, width=WIDTH)
    gl.portable.rank_barrier(x.signals, rank)
    multimem.reduce(all_y, i, mine, mask=inside, op=KIND, width=WIDTH)


def run(dtype, kind="add", ordered=True, n=200, world=2, width=None):
    def body(group):
        x, y = (group.empty(BLOCK, dtype) for _ in range(2))
        out = torch.zeros(n, dtype=dtype)
        both = group.multicast(x), group.multicast(y)
        reduced[(1,)](x, *both, out, n, kind, ordered, width, num_warps=1)
        group.barrier()
        return out, y.local[:n].clone()

    return distributed.simulate(body, world, SIM)


@pytest.mark.parametrize("kind, dtype", [("add", torch.bfloat16), ("xor", torch.int32)])
@pytest.mark.parametrize("world", [2, 4])
def test_reductions_over_ranks(kind, dtype, world):
    mine = [torch.arange(200) % 7 + rank for rank in range(world)]
    wanted = mine[0]
    for other in mine[1:]:
        wanted = wanted + other if kind == "add" else wanted ^ other
    both = 2 * wanted if kind == "add" else 0 * wanted
    for out, y in run(dtype, kind, world=world):
        assert torch.equal(out, wanted.to(dtype))
        assert torch.equal(y, both.to(dtype))


def test_a_missing_barrier_is_a_race():
    with pytest.raises(RaceError, match="rank"):
        run(torch.float32, ordered=False)


def test_a_mask_that_cuts_through_an_instruction():
    with pytest.raises((errors.ArgumentError, SimulatorError), match="no 4 neighbours in memory"):
        run(torch.float32, n=198, width=4)
    assert run(torch.float32, n=198, width=2)


@pytest.mark.parametrize(
    "dtype, ends",
    [
        (torch.bfloat16, (".add.acc::f32.v4.bf16x2", ".v4.bf16x2", ".add.v4.bf16x2")),
        (torch.float32, (".add.v4.f32", ".v4.f32", ".add.v4.f32")),
        (torch.int32, (".add.s32", ".b32", ".add.s32")),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_the_instructions(dtype, ends, target):
    one, pad = torch.empty(BLOCK, dtype=dtype), torch.empty(64, dtype=torch.int32)
    x, both = Symmetric((one, one), (pad, pad), 0), Multicast(one, (one, one))
    compiled = reduced.warmup(
        x, both, both, one, 200, "add", True, None, num_warps=1, grid=(1,), target=target
    )
    for name, end in zip(("ld_reduce", "st", "red"), ends):
        assert f"multimem.{name}.relaxed.sys.global{end}" in compiled.asm["ptx"]


@gluon.jit
def once(x, out, WIDTH: gl.constexpr):
    i = gl.arange(0, 128, layout=gl.BlockedLayout([4], [32], [1], [0]))
    gl.store(out + i, multimem.load_reduce(x, i, width=WIDTH))


def refused(match, error, x, target="sm_90", width=None):
    with pytest.raises(error, match=match):
        once.warmup(x, torch.empty(128), WIDTH=width, num_warps=1, grid=(1,), target=target)


def test_refusals():
    one = torch.empty(128)
    good = Multicast(one, (one, one))
    refused("nvidia.multimem", errors.CapabilityError, good, "sm_89")
    refused("not all copies", errors.ArgumentError, one)
    refused("fewer neighbouring elements", errors.LayoutError, good, width=8)
    wide = one.double()
    refused("no form", errors.DtypeError, Multicast(wide, (wide, wide)))


@gluon.jit
def plain(x, out):
    i = gl.arange(0, 128, layout=gl.BlockedLayout([4], [32], [1], [0]))
    gl.store(out + i, gl.load(x.address + i))


def test_an_ordinary_load_of_the_multicast_address():
    def body(group):
        x = group.multicast(group.zeros(128, np.float32))
        plain[(1,)](x, np.empty(128, np.float32), num_warps=1)

    with pytest.raises(SimulatorError, match="x.address"):
        distributed.simulate(body, 2, SIM)


def test_devices_without_multicast():
    from gluon_distributed.with_torch import _TorchGroup

    class Handle:
        multicast_ptr = 0
        buffer_ptrs = (0,)

    x = Symmetric((torch.empty(4),), (torch.empty(4),), 0)
    x.handle = Handle()
    with pytest.raises(errors.SymmetricMemoryError, match="turned off"):
        _TorchGroup.multicast(None, x)
    x.handle.multicast_ptr = 1 << 20
    x.handle.buffer_ptrs = (x.local.data_ptr() - 64,)
    assert _TorchGroup.multicast(None, x).address.data_ptr() == (1 << 20) + 64
