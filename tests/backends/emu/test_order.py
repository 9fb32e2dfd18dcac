"""Workgroups that read the stores of others: release and acquire, in code that Triton makes and in code
with one of their instructions taken away."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_amd import backend
from gluon_core import language as gl
from gluon_core.compiler import stages
from gluon_core.registry.load import registry
from gluon_emu.amdgcn.launcher import make_launcher
from gluon_emu.errors import OrderError
from gluon_emu.settings import Settings, using
from tests.backends.emu.assembly import run
from tests.backends.emu.mutants import With

GROUPS = 4


@gluon.jit
def last_adds(parts, out, count, GROUPS: gl.constexpr, WARP: gl.constexpr, SEM: gl.constexpr):
    """Each workgroup stores its part; the one that counts last adds all of them."""
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [2], [0])
    lanes = gl.arange(0, 2 * WARP, layout=layout)
    own = gl.program_id(0)
    gl.store(parts + own * 2 * WARP + lanes, lanes + own)
    gl.barrier()
    if gl.atomic_add(count, 1, sem=SEM) == GROUPS - 1:
        total = gl.zeros([2 * WARP], gl.int32, layout)
        for other in range(GROUPS):
            total += gl.load(parts + other * 2 * WARP + lanes)
        gl.store(out + lanes, total)


@gluon.jit
def last_adds_apart(parts, out, count, times, GROUPS: gl.constexpr, WARP: gl.constexpr):
    """The same, with a barrier in a loop for every second workgroup."""
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [2], [0])
    lanes = gl.arange(0, 2 * WARP, layout=layout)
    own = gl.program_id(0)
    if own % 2 == 0:
        gl.store(parts + own * 2 * WARP + lanes, lanes + own)
        gl.barrier()
    else:
        for _ in range(times):
            gl.store(parts + own * 2 * WARP + lanes, lanes + own)
            gl.barrier()
    if gl.atomic_add(count, 1) == GROUPS - 1:
        total = gl.zeros([2 * WARP], gl.int32, layout)
        for other in range(GROUPS):
            total += gl.load(parts + other * 2 * WARP + lanes)
        gl.store(out + lanes, total)


class Sum:
    """`last_adds`, compiled for an architecture."""

    def __init__(self, arch, sem="acq_rel", kernel=last_adds):
        self.target = registry().target(f"emu:{arch}")
        size = 2 * self.target.warp_size
        self.parts = np.zeros(GROUPS * size, np.int32)
        self.out, self.count = np.zeros(size, np.int32), np.zeros(1, np.int32)
        self.values = (self.parts, self.out, self.count, GROUPS, self.target.warp_size, sem)
        self.wanted = GROUPS * np.arange(size) + sum(range(GROUPS))
        self.compiled = kernel.warmup(*self.values, grid=(GROUPS,), target=self.target, num_warps=2)
        self.text = self.compiled.asm["amdgcn"]

    def run(self, text=None):
        for array in (self.parts, self.out, self.count):
            array[...] = 0
        make_launcher(With(self.compiled, text or self.text))((GROUPS,), 0, *self.values)
        np.testing.assert_array_equal(self.out, self.wanted)


# Instructions that order the sum behind the parts: (architecture, a line of the assembly, its place among such
# lines from the end, the fix that the report names).
FENCES = [
    ("gfx942", "buffer_wbl2 sc1", 0, "missing buffer_wbl2 sc1"),
    ("gfx942", "buffer_inv sc1", 0, "missing buffer_inv sc1"),
    ("gfx90a", "buffer_wbinvl1_vol", 0, "missing buffer_wbinvl1_vol"),
    ("gfx1100", "s_waitcnt_vscnt null, 0x0", 0, "missing s_waitcnt_vscnt null, 0"),
    ("gfx1100", "buffer_gl1_inv", 0, "missing buffer_gl1_inv and buffer_gl0_inv"),
    ("gfx1201", "s_wait_storecnt 0x0", 0, "missing s_wait_storecnt 0"),
    ("gfx1201", "global_inv scope:SCOPE_DEV", 0, "missing global_inv scope:SCOPE_DEV"),
    ("gfx1250", "global_wb scope:SCOPE_DEV", 0, "missing global_wb scope:SCOPE_DEV"),
    ("gfx1250", "s_wait_storecnt 0x0", 0, "missing global_wb scope:SCOPE_DEV and a wait"),
    ("gfx1250", "s_wait_storecnt 0x0", 1, "missing s_wait_storecnt 0"),
    ("gfx1250", "global_inv scope:SCOPE_DEV", 0, "missing global_inv scope:SCOPE_DEV"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arch",
    [
        "gfx942",
        *(
            pytest.param(a, marks=pytest.mark.once)
            for a in ("gfx90a", "gfx1100", "gfx1201", "gfx1250")
        ),
    ],  # fmt: skip
)
def test_each_fence_is_needed(arch):
    subject = Sum(arch)
    subject.run()
    lines = subject.text.splitlines()
    for _, fence, place, missing in (f for f in FENCES if f[0] == arch):
        fences = [i for i, line in enumerate(lines) if line.split(";")[0].strip() == fence]
        index = fences[-1 - place]
        with pytest.raises(OrderError, match="global_store.*may not be there yet: ") as caught:
            subject.run("\n".join([*lines[:index], *lines[index + 1 :]]))
        assert missing in str(caught.value)
        assert "total += gl.load" in str(caught.value)


@pytest.fixture
def unawaited(monkeypatch, tmp_path):
    """Compile kernels as LLVM does it: a barrier waits for no store."""
    monkeypatch.setattr(backend, "awaited_by_all", lambda run: run)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stages._pool.close()
    yield lambda kernel: gluon.jit(kernel.fn)  # nothing has compiled the new one
    stages._pool.close()


@pytest.mark.parametrize("arch", ["gfx942", pytest.param("gfx90a", marks=pytest.mark.once)])
def test_without_a_wait_a_barrier_leaves_the_stores_of_other_waves(unawaited, arch):
    with pytest.raises(OrderError, match=r"loads what wave 1 of .*missing s_waitcnt vmcnt\(0\)"):
        Sum(arch, kernel=unawaited(last_adds)).run()


@pytest.mark.once
def test_waves_wait_wherever_they_meet():
    size = 2 * 64
    parts, out, count = (np.zeros(n, np.int32) for n in (GROUPS * size, size, 1))
    values = (parts, out, count, 2, GROUPS, 64)
    last_adds_apart[(GROUPS,)](*values, target="emu:gfx942", num_warps=2)
    np.testing.assert_array_equal(out, GROUPS * np.arange(size) + sum(range(GROUPS)))


@gluon.jit
def last_adds_behind_assembly(
    parts, out, count, GROUPS: gl.constexpr, WARP: gl.constexpr, SEM: gl.constexpr
):
    """`last_adds` with a barrier of inline assembly behind another instruction."""
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [2], [0])
    lanes = gl.arange(0, 2 * WARP, layout=layout)
    own = gl.program_id(0)
    gl.store(parts + own * 2 * WARP + lanes, lanes + own)
    assembly: gl.constexpr = "s_waitcnt lgkmcnt(0)\ns_barrier\nv_mov_b32 $0, $1"
    gl.inline_asm_elementwise(assembly, "=v,v", [0], gl.int32, False, 1)
    if gl.atomic_add(count, 1, sem=SEM) == GROUPS - 1:
        total = gl.zeros([2 * WARP], gl.int32, layout)
        for other in range(GROUPS):
            total += gl.load(parts + other * 2 * WARP + lanes)
        gl.store(out + lanes, total)


@pytest.mark.once
def test_waves_wait_before_a_barrier_of_inline_assembly():
    subject = Sum("gfx942", kernel=last_adds_behind_assembly)
    subject.run()
    np.testing.assert_array_equal(subject.out, subject.wanted)


@pytest.mark.once
def test_relaxed_atomics_order_nothing():
    subject = Sum("gfx942", "relaxed")
    with pytest.raises(OrderError, match=r"stored by `global_store.*missing buffer_wbl2|vmcnt"):
        subject.run()
    with using(order=False):
        subject.run()


# One workgroup stores a word and then a flag; the other waits for the flag and loads the word.
MESSAGE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[8:9], s[0:1], 0x10
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 5
s_waitcnt lgkmcnt(0)
s_mov_b64 exec, 1
s_cmp_eq_u32 s2, {writer}
s_cbranch_scc0 reads
global_store_dword v1, v2, s[4:5]
{release}
global_store_dword v1, v2, s[6:7] {wide}
s_endpgm
reads:
global_load_dword v3, v1, s[6:7] {wide}
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s3, v3
s_cmp_eq_u32 s3, 0
s_cbranch_scc1 reads
{acquire}
global_load_dword v3, v1, s[4:5]
s_waitcnt vmcnt(0)
global_store_dword v1, v3, s[8:9]
"""
GOOD = {
    "release": "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)",
    "acquire": "buffer_inv sc1",
    "wide": "sc1",
}
BAD = [
    ({"release": "s_waitcnt vmcnt(0)"}, "missing buffer_wbl2 sc1"),
    ({"release": "buffer_wbl2 sc1"}, r"missing s_waitcnt vmcnt\(0\) before the flag is stored by"),
    ({"release": "buffer_wbl2 sc0\ns_waitcnt vmcnt(0)"}, "missing buffer_wbl2 sc1"),
    ({"release": "s_waitcnt vmcnt(0)\nbuffer_wbl2 sc1"}, "missing buffer_wbl2 sc1 and a wait"),
    ({"acquire": ""}, "missing buffer_inv sc1 between the load of the flag and this one"),
    ({"acquire": "buffer_inv sc0"}, "missing buffer_inv sc1"),
]


def deliver(writer=0, together=None, **change):
    word, flag, out = (np.zeros(16, np.uint32) for _ in range(3))
    body = MESSAGE.format(**{**GOOD, **change}, writer=writer)
    run(body, word, flag, out, grid=2, settings=Settings(resident=together, timeout=20))
    return int(out[0])


@pytest.mark.once
@pytest.mark.parametrize("writer, together", [(0, None), (1, None), (0, 1)])
def test_a_message(writer, together):
    """Either workgroup may come first, and the first may have ended before the second begins."""
    assert deliver(writer, together) == 5


@pytest.mark.once
@pytest.mark.parametrize("change, missing", BAD)
@pytest.mark.parametrize("writer, together", [(0, None), (1, None), (0, 1)])
def test_a_message_that_may_come_too_early(change, missing, writer, together):
    with pytest.raises(OrderError, match=missing):
        deliver(writer, together, **change)


@pytest.mark.once
def test_stores_that_go_through_need_no_write_back():
    body = MESSAGE.replace("v2, s[4:5]", "v2, s[4:5] sc1")
    word, flag, out = (np.zeros(16, np.uint32) for _ in range(3))
    run(body.format(**{**GOOD, "release": "s_waitcnt vmcnt(0)"}, writer=0), word, flag, out, grid=2)
    assert out[0] == 5
    with pytest.raises(OrderError, match=r"missing s_waitcnt vmcnt\(0\)"):
        flag[:] = 0
        run(body.format(**{**GOOD, "release": ""}, writer=0), word, flag, out, grid=2)


def test_kernels_that_tell_each_other_nothing_are_not_watched():
    """Read the stores of other workgroups, but nothing that could be a flag."""
    body = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
global_load_dword v2, v1, s[4:5]
s_waitcnt vmcnt(0)
global_store_dword v1, v2, s[6:7]
"""
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    run(body, x, out, grid=3)
    np.testing.assert_array_equal(out, x)
