"""Proxy fences that the installed compiler adds by itself: its PTX and the simulator agree.

Each kernel accesses a buffer with threads and then on the hardware's own, without a fence of its
own. Where the machine code has one, the simulator reports nothing; where it has none, a race.
"""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import OLDEST, Feature
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
)
from gluon_core.language.nvidia.blackwell import tma as gathering
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia import features
from gluon_sim.errors import RaceError
from gluon_sim.settings import using

TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
CHOICE = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0])))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
N = gl.constexpr(64)

READS, WRITES = features.FENCES_READS, Feature(OLDEST, "of every release")
START, END = features.FENCES_BEFORE_PARTITIONS, features.FENCES_AFTER_PARTITIONS
CALLS = features.FENCES_CALLS


@gluon.jit
def places():
    rows = gl.arange(0, N, gl.SliceLayout(1, ROWS))[:, None]
    return rows * N + gl.max_contiguous(gl.arange(0, N, gl.SliceLayout(0, ROWS)), [8])[None, :]


@gluon.jit
def multiply(s, out):
    acc = warpgroup_mma(s, s.permute((1, 0)), gl.zeros([N, N], gl.float32, ACC), is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    gl.store(out + gl.convert_layout(places(), ACC), acc)


@gluon.jit
def multiply_into_tensor_memory(s, out):
    acc = allocate_tensor_memory(gl.float32, [N, N], TensorMemoryLayout([N, N], 1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    tcgen05_mma(s, s.permute((1, 0)), acc, use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, 0)
    registers: gl.constexpr = acc.get_reg_layout()
    gl.store(out + gl.convert_layout(places(), registers), acc.load(registers))


@gluon.jit
def copy_to_tensor_memory(s):
    words = s._reinterpret(gl.float32, [N, N // 2], gl.NVMMASharedLayout(128, 32, 2))
    copied = allocate_tensor_memory(gl.float32, [N, N // 2], TensorMemoryLayout([N, N // 2], 1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    tcgen05_copy(words, copied)
    tcgen05_commit(bar)
    mbarrier.wait(bar, 0)


@gluon.jit
def accessed(desc, s, bar, out, HOW: gl.constexpr):
    """By a unit of the hardware; what it reads comes out, so nobody writes over what others need."""
    if HOW == "store":
        tma.async_store(desc, [0, 0], s)
        tma.store_wait(0)
    elif HOW == "reduce":
        tma.async_atomic_add(desc, [0, 0], s)
        tma.store_wait(0)
    elif HOW == "scatter":
        gathering.async_scatter(desc, gl.arange(0, N, CHOICE), 0, s)
        gathering.store_wait(0)
    elif HOW == "wgmma":
        multiply(s, out)
    elif HOW == "tcgen05":
        multiply_into_tensor_memory(s, out)
    else:
        mbarrier.expect(bar, N * N * 2)
        if HOW == "gather":
            gathering.async_gather(desc, gl.arange(0, N, CHOICE), 0, bar, s)
        else:
            tma.async_load(desc, [0, 0], bar, s)
        mbarrier.wait(bar, 0)


@gluon.jit
def written(a, s, HOW: gl.constexpr):
    """By the threads."""
    if HOW == "cp.async":
        cp.async_copy_global_to_shared(s, a + places())
        cp.commit_group()
        cp.wait_group(0)
    elif HOW == "scatter":
        s.scatter(gl.load(a + places()), places() // N, axis=0)
    elif HOW == "branch":
        if gl.program_id(0) == 0:
            s.store(gl.load(a + places()))
    else:
        s.store(gl.load(a + places()))


@gluon.jit
def one_partition(desc, a, out, WRITE: gl.constexpr, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [N, N], TILE)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if WRITE == "read":
        s.store(gl.load(a + places()))
        fence_async_shared()
        gl.store(out + places(), s.load(ROWS).to(gl.float32))
    elif WRITE == "fenced":
        s.store(gl.load(a + places()))
        fence_async_shared()
    else:
        written(a, s, WRITE)
    accessed(desc, s, bar, out, HOW)


@gluon.jit
def initialised(desc, a, out):
    s = gl.allocate_shared_memory(gl.float16, [N, N], TILE, gl.load(a + places()))
    tma.async_store(desc, [0, 0], s)
    tma.store_wait(0)


@gluon.jit(noinline=True)
def written_by_a_function(a, s):
    s.store(gl.load(a + places()))


@gluon.jit(noinline=True)
def accessed_by_a_function(desc, s, bar, HOW: gl.constexpr):
    if HOW == "store":
        tma.async_store(desc, [0, 0], s)
        tma.store_wait(0)
    else:
        mbarrier.expect(bar, N * N * 2)
        tma.async_load(desc, [0, 0], bar, s)
        mbarrier.wait(bar, 0)


@gluon.jit
def idle(s):
    pass


@gluon.jit
def writer(a, s, bar, TELLS: gl.constexpr):
    s.store(gl.load(a + places()))
    if TELLS:
        mbarrier.arrive(bar)


@gluon.jit
def user(desc, s, bar, released, out, HOW: gl.constexpr, WAITS: gl.constexpr):
    if WAITS:
        mbarrier.wait(released, 0)
    accessed(desc, s, bar, out, HOW)


@gluon.jit
def both(desc, a, s, bar, out, HOW: gl.constexpr):
    s.store(gl.load(a + places()))
    accessed(desc, s, bar, out, HOW)


@gluon.jit
def partitions(desc, a, out, KIND: gl.constexpr, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [N, N], TILE)
    bar = mbarrier.allocate_mbarrier()
    released = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.init(released, 1)
    if KIND == "before":
        s.store(gl.load(a + places()))
        uses: gl.constexpr = False
        gl.warp_specialize(
            [(idle, (s,)), (user, (desc, s, bar, released, out, HOW, uses))], [4], [64]
        )
    elif KIND == "before, in the default one":
        s.store(gl.load(a + places()))
        gl.warp_specialize(
            [(user, (desc, s, bar, released, out, HOW, False)), (idle, (s,))], [4], [64]
        )
    elif KIND == "the same":
        gl.warp_specialize([(idle, (s,)), (both, (desc, a, s, bar, out, HOW))], [4], [64])
    elif KIND == "over":
        gl.warp_specialize([(idle, (s,)), (writer, (a, s, released, False))], [4], [64])
        accessed(desc, s, bar, out, HOW)
    elif KIND == "over, the default one":
        gl.warp_specialize([(writer, (a, s, released, False)), (idle, (s,))], [4], [64])
        accessed(desc, s, bar, out, HOW)
    elif KIND == "from the default one":
        gl.warp_specialize(
            [(writer, (a, s, released, True)), (user, (desc, s, bar, released, out, HOW, True))],
            [4],
            [64],
        )
    elif KIND == "to the default one":
        gl.warp_specialize(
            [(user, (desc, s, bar, released, out, HOW, True)), (writer, (a, s, released, True))],
            [4],
            [64],
        )
    elif KIND == "between workers":
        workers: gl.constexpr = [4, 4]
        gl.warp_specialize(
            [
                (idle, (s,)),
                (writer, (a, s, released, True)),
                (user, (desc, s, bar, released, out, HOW, True)),
            ],
            workers,
            [64, 64],
        )
    elif KIND == "a function":
        written_by_a_function(a, s)
        accessed(desc, s, bar, out, HOW)
    elif KIND == "for a function":
        s.store(gl.load(a + places()))
        accessed_by_a_function(desc, s, bar, HOW)


def machine_code(kernel, target, block, **constants):
    types = {"desc": f"tensordesc<fp16[{block}, 64],NVMMASharedLayout(128,16,2)>"}
    types |= {"a": "*fp16", "out": "*fp32", **dict.fromkeys(constants, "constexpr")}
    compiled = gluon.compile(kernel, target, signature=types, constexprs=constants, attrs={"a": 16})
    return compiled.asm["ptx"]


def races(kernel, target, block, monkeypatch, **constants):
    """Return True if the simulator reports a missing fence, at the access that needs it."""
    monkeypatch.setenv("GLUON_TARGET", f"sim:{target}")
    desc = TensorDescriptor.from_tensor(np.zeros((64, 64), np.float16), [block, 64], TILE.value)
    a, out = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)
    try:
        kernel[(1,)](desc, a, out, *constants.values())
    except RaceError as error:
        assert "Put `fence_async_shared()`" in str(error), error
        return True
    return False


def agree(kernel, monkeypatch, feature, target="sm_90", block=64, **constants):
    fenced = "fence.proxy.async" in machine_code(kernel, target, block, **constants)
    assert fenced == (feature is not None and feature.held_by(TRITON_VERSION[:2]))
    assert races(kernel, target, block, monkeypatch, **constants) != fenced


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "write, how, target, block",
    [
        ("store", "store", "sm_90", 64),
        ("store", "reduce", "sm_90", 64),
        ("store", "wgmma", "sm_90", 64),
        ("cp.async", "wgmma", "sm_90", 64),
        ("branch", "store", "sm_90", 64),
        ("scatter", "store", "sm_90", 64),
        ("store", "tcgen05", "sm_100", 64),
        ("store", "scatter", "sm_100", 1),
    ],
)
def test_hardware_reads_the_writes_of_a_partition(write, how, target, block, monkeypatch):
    if write == "scatter" and TRITON_VERSION < (3, 7):
        pytest.skip("needs Triton 3.7")
    feature = features.FENCES_READS
    agree(one_partition, monkeypatch, feature, target, block, WRITE=write, HOW=how)


@gluon.jit
def asking(out):
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    answer.store(gl.full([2], 7, gl.int64, gl.BlockedLayout([1], [32], [4], [0])))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 16)
    clc.try_cancel(answer, bar)
    mbarrier.wait(bar, 0)
    if clc.load_result(answer).is_canceled():
        gl.store(out, 1)


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
def test_an_answer_over_the_stores_of_a_partition(monkeypatch):
    compiled = gluon.compile(asking, "sm_100", signature={"out": "*i32"})
    assert "fence.proxy.async" in compiled.asm["ptx"]
    asking[(1,)](np.zeros(1, np.int32), target="sim:sm_100")


@pytest.mark.once
def test_initial_values_of_a_buffer(monkeypatch):
    agree(initialised, monkeypatch, features.FENCES_READS)


@pytest.mark.once
@pytest.mark.parametrize(
    "how, target, block", [("load", "sm_90", 64), ("load", "sm_100", 64), ("gather", "sm_100", 1)]
)
def test_hardware_overwrites_the_writes_of_a_partition(how, target, block, monkeypatch):
    agree(one_partition, monkeypatch, WRITES, target, block, WRITE="store", HOW=how)


@pytest.mark.once
@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", ["store", "load"])
@pytest.mark.parametrize(
    "kind, reads, writes",
    [
        ("before", START, START),
        ("before, in the default one", READS, WRITES),
        ("the same", READS, WRITES),
        ("over", END, END),
        ("over, the default one", READS, WRITES),
        ("from the default one", None, None),
        ("to the default one", None, None),
        ("between workers", None, None),
        ("a function", CALLS, CALLS),
        ("for a function", CALLS, CALLS),
    ],
)
def test_whose_accesses_the_compiler_knows_of(kind, reads, writes, how, monkeypatch):
    agree(partitions, monkeypatch, writes if how == "load" else reads, KIND=kind, HOW=how)


@pytest.mark.once
def test_a_fence_of_the_kernel_is_one_for_the_compiler_too(monkeypatch):
    code = machine_code(one_partition, "sm_90", 64, WRITE="fenced", HOW="store")
    assert code.count("fence.proxy.async") == 1
    assert not races(one_partition, "sm_90", 64, monkeypatch, WRITE="fenced", HOW="store")


# -- reads, and the writes over them ----------------------------------------------------------------


@gluon.jit
def reader(s, released, out):
    gl.store(out + places(), s.load(ROWS).to(gl.float32))
    mbarrier.arrive(released)


@gluon.jit
def overwritten(desc, a, out, PARTED: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [N, N], TILE)
    bar = mbarrier.allocate_mbarrier()
    released = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.init(released, 1)
    s.store(gl.load(a + places()))
    fence_async_shared()
    if PARTED:
        gl.warp_specialize(
            [(reader, (s, released, out)), (user, (desc, s, bar, released, out, "load", True))],
            [4],
            [64],
        )
    else:
        gl.store(out + places(), s.load(ROWS).to(gl.float32))
        accessed(desc, s, bar, out, "load")


@pytest.mark.once
def test_a_read_of_the_same_partition_is_fenced_before_a_write_over_it(monkeypatch):
    code = machine_code(overwritten, "sm_90", 64, PARTED=False)
    assert code.count("fence.proxy.async") == 2  # the kernel's own, and the compiler's
    with using(proxy="strict"):
        assert not races(overwritten, "sm_90", 64, monkeypatch, PARTED=False)


def test_a_read_of_another_partition_counts_by_the_letter_of_the_manual_only(monkeypatch):
    assert not races(overwritten, "sm_90", 64, monkeypatch, PARTED=True)
    with using(proxy="strict"):
        assert races(overwritten, "sm_90", 64, monkeypatch, PARTED=True)
