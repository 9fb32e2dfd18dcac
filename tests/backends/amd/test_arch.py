"""The AMD table against the assembler: an architecture has a capability iff LLVM takes it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from gluon_amd.arch import ARCHITECTURES, matrix_version

# Per capability, instructions that stand for it; one that is accepted is enough, since the
# generations spell the same thing differently.
INSTRUCTIONS = {
    "buffer_ops": [
        "buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen",
        "buffer_load_b128 v[0:3], v4, s[0:3], null offen",
    ],
    "buffer_atomics": [
        "buffer_atomic_add_f32 v0, v4, s[0:3], 0 offen",
        "buffer_atomic_add_f32 v0, v4, s[0:3], null offen",
    ],
    "buffer_atomics_f16": [
        "buffer_atomic_pk_add_f16 v0, v4, s[0:3], 0 offen",
        "buffer_atomic_pk_add_f16 v0, v4, s[0:3], null offen",
    ],
    "buffer_atomics_bf16": [
        "buffer_atomic_pk_add_bf16 v0, v4, s[0:3], 0 offen",
        "buffer_atomic_pk_add_bf16 v0, v4, s[0:3], null offen",
    ],
    "mfma": ["v_mfma_f32_32x32x8f16 a[0:15], v[0:1], v[2:3], a[0:15]"],
    "mfma_f64": ["v_mfma_f64_16x16x4f64 a[0:7], v[0:1], v[2:3], a[0:7]"],
    "mfma_fp8": ["v_mfma_f32_32x32x16_fp8_fp8 a[0:15], v[0:1], v[2:3], a[0:15]"],
    "mfma_xf32": ["v_mfma_f32_16x16x8_xf32 a[0:3], v[2:3], v[4:5], a[0:3]"],
    "mfma_double_rate": ["v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], v[0:15]"],
    "mfma_scaled": [
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3], v20, v21 "
        "op_sel_hi:[0,0,0]"
    ],
    "wmma": [
        "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]",
        "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]",
        "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]",
    ],
    "wmma_v1": ["v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"],
    "wmma_v3": ["v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]"],
    "wmma_fp8": [
        "v_wmma_f32_16x16x16_fp8_fp8 v[0:7], v[8:9], v[10:11], v[0:7]",
        "v_wmma_f32_16x16x128_fp8_fp8 v[0:7], v[8:23], v[24:39], v[0:7]",
    ],
    "wmma_scaled": [
        "v_wmma_scale_f32_16x16x128_f8f6f4 v[0:7], v[8:23], v[24:39], v[0:7], v40, v41"
    ],
    "scaled_convert": [
        "v_cvt_scalef32_pk_f32_fp4 v[0:1], v2, v3",
        "v_cvt_scale_pk8_f32_fp4 v[0:7], v8, v9",
    ],
    "bf16_convert": ["v_cvt_pk_bf16_f32 v0, v1, v2"],
    "buffer_load_to_lds": ["buffer_load_dword v4, s[0:3], 0 offen lds"],
    "direct_to_lds_128": ["buffer_load_dwordx4 v4, s[0:3], 0 offen lds"],
    "global_load_to_lds": ["global_load_lds_dword v[0:1], off"],
    "async_lds": ["global_load_async_to_lds_b128 v0, v[2:3], off"],
    "tdm": ["tensor_load_to_lds s[0:3], s[4:11]"],
    "lds_transpose": ["ds_read_b64_tr_b16 v[0:1], v2", "ds_load_tr16_b128 v[0:3], v4"],
    "clusters": ["cluster_load_async_to_lds_b128 v0, v[2:3], off"],
    "mbarrier": ["ds_atomic_barrier_arrive_rtn_b64 v[0:1], v2, v[4:5]"],
}
# Two assemblers disagree about v2; the kinds of fp8 and the partitions have no instruction.
NOT_ASKED = {"wmma_v2", "fp8_fnuz", "fp8_ocp", "partitioned_lds"}

CHILD = """
import json, os, sys
try:  # a library of its own from 3.9 on
    from triton.backends.amd.compiler import assemble_amdgcn
except ImportError:
    from triton._C.libtriton import llvm
    from triton._C.libtriton.amd import assemble_amdgcn
    llvm.init_targets()
out = os.fdopen(os.dup(1), "w")
taken = []
for arch, line in json.load(sys.stdin):
    try:  # some raise, some answer nothing
        code = assemble_amdgcn(".text\\nk:\\n  " + line + "\\n  s_endpgm\\n", arch, "")
    except Exception:
        code = b""
    taken.append(bool(code))
json.dump(taken, out)
out.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def takes():
    """(architecture name, instruction) -> does the assembler take it?"""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton installed to compare with")
    lines = ["s_nop 0", *(line for group in INSTRUCTIONS.values() for line in group)]
    asked = [(arch.name, line) for arch in ARCHITECTURES for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(asked), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(asked, json.loads(done.stdout)))


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.name)
def test_capabilities_match_the_assembler(takes, arch):
    assert takes[arch.name, "s_nop 0"]
    taken = {
        f"amd.{name}"
        for name, group in INSTRUCTIONS.items()
        if any(takes[arch.name, line] for line in group)
    }
    assert taken == {c for c in arch.capabilities if c.split(".")[1] not in NOT_ASKED}


def test_every_capability_is_asked_about():
    named = {c.split(".")[1] for arch in ARCHITECTURES for c in arch.capabilities}
    assert named == set(INSTRUCTIONS) | NOT_ASKED


def test_matrix_versions():
    versions = {arch.name: matrix_version(arch) for arch in ARCHITECTURES}
    assert versions["gfx90a"] == 2 and versions["gfx942"] == 3 and versions["gfx950"] == 4
    assert versions["gfx1100"] == 1 and versions["gfx1201"] == 2 and versions["gfx1250"] == 3
    assert None not in versions.values()


def test_lanes_and_local_memory():
    by_name = {arch.name: arch for arch in ARCHITECTURES}
    assert by_name["gfx942"].warp_size == 64 and by_name["gfx1100"].warp_size == 32
    assert by_name["gfx950"].limits.shared_memory == 160 * 1024
    assert by_name["gfx1250"].limits.shared_memory == 320 * 1024
    for arch in ARCHITECTURES:
        assert arch.warp_size * arch.limits.max_warps == 1024


def test_spellings_are_unique():
    spellings = [s.replace("_", "") for arch in ARCHITECTURES for s in arch.spellings]
    assert len(spellings) == len(set(spellings))


@pytest.mark.once
def test_tables_and_layouts_import_neither_triton_nor_torch():
    code = (
        "import sys, gluon_amd.arch, gluon_amd.layouts\n"
        "sys.exit(bool({'triton', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
