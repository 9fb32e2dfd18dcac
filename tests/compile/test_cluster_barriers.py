"""Barriers of the cluster that the installed compiler adds, read off its PTX.

It adds no barrier of the cluster between a store to shared memory and a load by another block, and
one at the end of a kernel from `gluon_core.features.CLUSTER_ENDS` on. The simulator says the same.
"""

from __future__ import annotations

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import CLUSTER_ENDS
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia.features import FROM_CTA
from tests.backends.sim.hardware.test_blocks import COLUMNS, ROWS, exchange

BARRIER = re.compile(r"barrier\.cluster\.wait")


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
@pytest.mark.parametrize("sync", ["nothing", "block", "cluster"])
def test_barriers_of_the_cluster_that_a_compiler_adds(sync):
    compiled = gluon.compile(
        exchange,
        "sm_90",
        {"num_ctas": 2},
        signature={"a": "*fp16", "out": "*fp16"},
        constexprs={
            "IN": COLUMNS.value, "OUT": ROWS.value, "SYNC": sync, "END": False,
        },
    )  # fmt: skip
    text = compiled.asm["ptx"]
    store = max(m.start() for m in re.finditer(r"st\.shared", text))
    load = min(m.start() for m in re.finditer(r"ld\.shared::cluster", text))
    places = [m.start() for m in BARRIER.finditer(text)]
    assert any(store < place < load for place in places) == (sync == "cluster")
    assert any(place > load for place in places) == CLUSTER_ENDS.held_by(TRITON_VERSION)


@gluon.jit
def arrives(out, ALONE: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    if ALONE:
        mbarrier.arrive(bar, from_cta=1)
    else:
        mbarrier.arrive(bar)
    mbarrier.wait(bar, 0)
    gl.store(out, 1)


@pytest.mark.skipif(not FROM_CTA.held_by(TRITON_VERSION), reason="needs Triton 3.9")
def test_every_block_arrives_at_its_barrier_for_every_from_cta():
    """So the simulator lets all blocks arrive, too."""

    def arrival(alone):
        compiled = gluon.compile(
            arrives,
            "sm_90",
            {"num_ctas": 2},
            signature={"out": "*i32"},
            constexprs={"ALONE": alone},
        )
        return re.sub(r"\d+", "", re.search(r".*mbarrier\.arrive.*", compiled.asm["ptx"])[0])

    assert arrival(True) == arrival(False)
