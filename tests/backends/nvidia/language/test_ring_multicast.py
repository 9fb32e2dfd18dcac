"""Rings of tiles that the blocks of a cluster share: multicast, the waits of pairs and of four blocks, misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.rings import described, remove_implied_fences
from tests.backends.sim.sanitizer.test_mutations import Case

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SIM = registry().target("sim:sm_90")
STEPS = 3
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16], cga_layout=[[1, 0]]))


@gluon.jit
def multiply(ring, writer, steps, role: gl.constexpr):
    """`a @ b`, of which each block has half of the rows; each role does it twice, one below the other."""
    position = ring.consumer()
    for tile in range(2):
        acc = gl.zeros([128, 16], gl.float32, SUMS)
        for _ in range(steps):
            a, b = ring.wait(position)
            acc = warpgroup_mma(a, b, acc)
            ring.release(position)
            position = position.next()
        writer.store([(2 * role + tile) * 128, 0], acc)
    writer.close()


@gluon.jit
def copy_steps(ring, steps, DRAIN: gl.constexpr = True):
    position = ring.producer()
    for i in range(2 * steps):
        k = i % steps * 16
        ring.fetch(position, [[0, k], [k, 0]])
        position = position.next()
    if DRAIN:
        ring.drain(position)


@gluon.jit
def product_of_pairs(a, b, out, steps, MULTICAST: gl.constexpr, DRAIN: gl.constexpr = True):
    ring = tma_ring([a, b], 2, consumers=2, multicast=MULTICAST)
    first, second = tma_writer(out), tma_writer(out)
    gl.warp_specialize(
        [
            (multiply, (ring, first, steps, 0)),
            (multiply, (ring, second, steps, 1)),
            (copy_steps, (ring, steps, DRAIN)),
        ],
        [4, 1],
        [64, 24],
    )
    ring.close()


def matrices():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 48), (48, 16)))
    return {"a": a, "b": b, "out": np.full((512, 16), np.nan, np.float32)}


def operands_of_pairs(args, multicast=True):
    blocks = {"a": ([128, 16], [[1, 0]]), "b": ([16, 16], [[0, 0]]), "out": ([128, 16], [[1, 0]])}
    arguments = []
    for name, (block, split) in blocks.items():
        dtype = gl.float32 if name == "out" else gl.float16
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype, cga_layout=split)
        arguments.append(TensorDescriptor.from_tensor(args[name], block, layout))
    return [*arguments, STEPS, multicast]


PAIRS = pytest.mark.skipif(TRITON_VERSION[:2] == (3, 7), reason="not with Triton 3.7")
WRITTEN = pytest.mark.skipif(TRITON_VERSION >= (3, 7), reason="Triton 3.6 has no multicast")


@WRITTEN
def test_the_stage_of_ptx_writes_multicast_for_triton_3_6():
    args = matrices()
    compiled = product_of_pairs[(1,)](
        *operands_of_pairs(args), target="emu:sm_90", num_warps=4, num_ctas=2
    )
    right = np.tile(args["a"].astype(np.float32) @ args["b"].astype(np.float32), (4, 1))
    np.testing.assert_array_equal(args["out"], right)
    ptx = compiled.asm["ptx"]
    assert ptx.count(".multicast::cluster") == 1  # of b; each block loads its own rows of a
    assert ptx.count("mapa.shared::cluster") == ptx.count("gluon.pair release") >= 2
    assert "release.cluster" not in ptx.replace("fence.mbarrier_init.release.cluster", "")  # slow
    assert ptx.count("barrier.cluster.arrive") == 2  # behind the barriers, and by waiting warps


QUARTERS = gl.constexpr(
    gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16], cga_layout=[[1, 0], [0, 1]])
)


@gluon.jit
def multiply_quarter(ring, writer, steps):
    """`a @ b` twice, of which each block has half of the rows and half of the columns."""
    position = ring.consumer()
    for tile in range(2):
        acc = gl.zeros([128, 64], gl.float32, QUARTERS)
        for _ in range(steps):
            a, b = ring.wait(position)
            acc = warpgroup_mma(a, b, acc)
            ring.release(position)
            position = position.next()
        writer.store([tile * 128, 0], acc)
    writer.close()


@gluon.jit
def product_of_four(a, b, out, steps):
    ring = tma_ring([a, b], 3, multicast=True)
    gl.warp_specialize(
        [(multiply_quarter, (ring, tma_writer(out), steps)), (copy_steps, (ring, steps))], [1], [24]
    )
    ring.close()


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="Triton 3.6 has them, 3.7 none at all")
def test_larger_clusters_name_the_release_that_has_them():
    args = operands_of_pairs(matrices())
    with pytest.raises(CapabilityError, match="Triton"):
        product_of_four[(1,)](*args[:3], 3, target=SIM, num_warps=4, num_ctas=4)


@WRITTEN
@pytest.mark.parametrize("target", ["emu:sm_90", "sim:sm_90"])
def test_four_blocks_share_rows_with_one_and_columns_with_another(target):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 80), (80, 64)))
    out = np.full((256, 64), np.nan, np.float32)
    arguments = []
    for x, block, split in (
        (a, [128, 16], [[1, 0], [0, 0]]),
        (b, [16, 64], [[0, 0], [0, 1]]),
        (out, [128, 64], [[1, 0], [0, 1]]),
    ):
        dtype = gl.float32 if x is out else gl.float16
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype, cga_layout=split)
        arguments.append(TensorDescriptor.from_tensor(x, block, layout))
    compiled = product_of_four[(1,)](*arguments, 5, target=target, num_warps=4, num_ctas=4)
    np.testing.assert_array_equal(out, np.tile(a.astype(np.float32) @ b.astype(np.float32), (2, 1)))
    if target == "emu:sm_90":
        ptx = compiled.asm["ptx"]
        assert ptx.count(".multicast::cluster") == 2
        assert ptx.count("mapa.shared::cluster") == 2 * ptx.count("gluon.pair release")


@PAIRS
@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.campaign)])
def test_each_inner_wait_and_arrival_of_a_pair_is_needed(monkeypatch, parts):
    remove_implied_fences(monkeypatch)
    compiled = product_of_pairs[(1,)](
        *operands_of_pairs(matrices()), False, target=SIM, num_warps=4, num_ctas=2
    )  # no simulated block exits while another runs
    case = Case(
        compiled,
        (1,),
        matrices,
        lambda args: [*operands_of_pairs(args), False],
        "out",
        lambda args: np.tile(args["a"].astype(np.float32) @ args["b"].astype(np.float32), (4, 1)),
    )
    assert case.run() is None
    kinds, missed = case.judged(parts)
    # The odd block's wait for its own consumers: for the simulator, whose blocks run in step, it waits
    # at the barrier of the pair, too, as far as its own memory is concerned. Triton 3.6 has one barrier.
    both = parts == 1 and TRITON_VERSION >= (3, 8)
    assert missed == ([("mbarrier_wait deleted", None)] if both else [])
    for op in ("mbarrier_wait", "mbarrier_arrive", "mbarrier_expect", "fence"):
        assert any(op in name and "deleted" in name for name in kinds), op


@PAIRS
@pytest.mark.parametrize(
    "options, operands, words",
    [
        ({}, {}, "expected num_ctas=2"),
        ({"num_ctas": 16}, {}, "got 16"),
        ({"num_ctas": 2}, {"two_ctas": True}, "hold different parts"),
        ({"num_ctas": 2}, {"alone": True}, "do not share a tile"),
        ({"num_ctas": 2}, {"empty": True}, "two barriers"),
    ],
    ids=["one block", "sixteen", "two_ctas", "nothing shared", "empty"],
)
def test_misuse_of_multicast(options, operands, words):
    flags = [operands.get(name, False) for name in ("two_ctas", "alone", "empty")]
    a, b, _, _, _ = operands_of_pairs(matrices())
    if options.get("num_ctas") != 2:
        a, b = (described(np.zeros((16, 16), np.float32), [16, 16]) for _ in range(2))
    with pytest.raises(ArgumentError, match=words):
        misused[(1,)](a, b, *flags, target=SIM, num_warps=4, **options)


@gluon.jit
def misused(a, b, TWO: gl.constexpr, ALONE: gl.constexpr, EMPTY: gl.constexpr):
    ring = tma_ring([a] if ALONE else [a, b], 2, two_ctas=TWO, multicast=True)
    if EMPTY:
        ring.empty(ring.consumer())


@pytest.mark.skipif(TRITON_VERSION[:2] != (3, 7), reason="Triton 3.6 and 3.8 have it")
def test_an_older_release_names_the_missing_feature():
    a = described(np.zeros((16, 32), np.float32), [16, 32])
    with pytest.raises(CapabilityError, match="Triton >= 3.8"):
        misused[(1,)](a, a, False, False, False, target=SIM, num_warps=4)
