"""The NVIDIA table against the assembler: an architecture has a capability iff ptxas takes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_core.testing import TRITON_VERSION
from gluon_nvidia.arch import ARCHITECTURES

# One line of PTX per capability, each alone on its line.
INSTRUCTIONS = {
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r1,r2,r3,r4}, [r5];",
    "mma_turing": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
    "{f1,f2,f3,f4},{r1,r2},{r3},{f1,f2,f3,f4};",
    "mma_v2": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{f1,f2,f3,f4},{r1,r2,r3,r4},{r3,r4},{f1,f2,f3,f4};",
    "bf16": "fma.rn.bf16x2 r1, r2, r3, r4;",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{f1,f2,f3,f4},{r1,r2,r3,r4},{r3,r4},{f1,f2,f3,f4};",
    "fp64_mma": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d1,d2},{d3},{d4},{d1,d2};",
    "fp8": "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    "{f1,f2,f3,f4},{r1,r2,r3,r4},{r3,r4},{f1,f2,f3,f4};",
    "cp_async": "cp.async.cg.shared.global [r5], [l1], 16;",
    "mbarrier": "mbarrier.test_wait.parity.shared.b64 p1, [r5], r1;",
    "mbarrier_tx": "mbarrier.arrive.expect_tx.shared.b64 l2, [r5], 16;",
    "mbarrier_multicast": "mbarrier.arrive.shared::cluster.multicast::cluster::32b.b64 "
    "_, [r5], 1, r1;",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [r5], {r1};",
    "clusters": "barrier.cluster.arrive.aligned;",
    "tma": "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
    ".mbarrier::complete_tx::bytes [r5], [l1, {r1,r2}], [r6];",
    "tma_multicast": "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
    ".mbarrier::complete_tx::bytes.multicast::cluster [r5], [l1, {r1,r2}], [r6], h1;",
    "tma_gather_scatter": "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
    "[l1, {r1,r2,r3,r4,r5}], [r6];",
    "fence_async": "fence.proxy.async;",
    "multimem": "multimem.red.relaxed.sys.global.add.u32 [l1], r1;",
    "gdc": "griddepcontrol.wait;",
    "setmaxnreg": "setmaxnreg.dec.sync.aligned.u32 40;",
    "wgmma": "wgmma.fence.sync.aligned;",
    "tcgen05": "tcgen05.mma.cta_group::1.kind::f16 [r5], l1, l2, r1, p1;",
    "tcgen05_i8": "tcgen05.mma.cta_group::1.kind::i8 [r5], l1, l2, r1, p1;",
    "tcgen05_ld_red": "tcgen05.ld.red.sync.aligned.32x32b.x2.f32.min {r1,r2}, r3, [r5];",
    "clc": "clusterlaunchcontrol.try_cancel.async.shared::cta"
    ".mbarrier::complete_tx::bytes.b128 [r5], [r6];",
    "f32x2": "add.rn.f32x2 l1, l2, l3;",
    "packed_bf16": "add.rn.bf16x2 r1, r2, r3;",
    "packed_fp8": "add.e4m3x4.e4m3x4 r1, r2, r3;",
    "packed_mixed": "add.f32x2.f16x2.f32x2 l1, r2, l3;",
    "fp4": "{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, f1, f2; }",
    "mma_block_scale": "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale"
    ".f32.e4m3.e4m3.f32.ue8m0 {f1,f2,f3,f4},{r1,r2,r3,r4},{r3,r4},{f1,f2,f3,f4}, "
    "r1, {0,0}, r2, {0,0};",
}
# No single documented instruction to ask about.
NOT_ASKED = {"f32x4"}

HEAD = """.version {version}
.target {target}
.address_size 64
.visible .entry k() .maxntid 128 {{
.reg .b32 r<8>; .reg .b64 l<5>; .reg .f32 f<5>; .reg .f64 d<5>; .reg .b16 h<4>; .reg .pred p<3>;
"""


@pytest.fixture(scope="module")
def assembler():
    """The newest ptxas inside Triton, and the newest PTX version it takes."""
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    if not tool.exists():
        pytest.skip("this Triton ships no ptxas")
    for version in ("9.4", "9.3", "9.2", "9.1", "9.0", "8.8"):
        text = HEAD.format(version=version, target="sm_90a") + "ret; }\n"
        if assemble(tool, "sm_90a", text).returncode == 0:
            return tool, version
    raise AssertionError("ptxas takes no known PTX version")


def assemble(tool, target, text):
    command = [str(tool), "--gpu-name", target, "-", "-o", "/dev/null"]
    return subprocess.run(command, input=text, capture_output=True, text=True)


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.name)
def test_capabilities_match_the_assembler(assembler, arch):
    tool, version = assembler
    target = arch.name + ("a" if arch.arch >= 90 else "")
    head = HEAD.format(version=version, target=target)
    if assemble(tool, target, head + "ret; }\n").returncode:
        assert TRITON_VERSION < arch.min_triton
        pytest.skip(f"this ptxas does not know {target}")
    text = head + "\n".join(INSTRUCTIONS.values()) + "\nret; }\n"
    done = assemble(tool, target, text)
    first = head.count("\n") + 1
    lines = {int(n) - first for n in re.findall(r"line (\d+); error", done.stderr + done.stdout)}
    refused = {name for i, name in enumerate(INSTRUCTIONS) if i in lines}
    # Older assemblers do not know the newest instructions of an architecture yet.
    newest = {"mbarrier_multicast", "tcgen05_ld_red", "packed_fp8", "packed_mixed"}
    known = set(INSTRUCTIONS) - (newest if float(version) < 9.4 else set())
    taken = {f"nvidia.{name}" for name in known - refused}
    claimed = {c for c in arch.capabilities if c.split(".")[1] in known}
    assert taken == claimed


def test_every_capability_is_asked_about():
    named = {c.split(".")[1] for arch in ARCHITECTURES for c in arch.capabilities}
    assert named == set(INSTRUCTIONS) | NOT_ASKED


@pytest.mark.once
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.name)
def test_shared_memory_matches_the_assembler(assembler, arch):
    tool, version = assembler
    if arch.arch < 90:
        pytest.skip("here ptxas enforces the static limit only")
    target = f"{arch.name}a"
    head = HEAD.format(version=version, target=target)
    if assemble(tool, target, head + "ret; }\n").returncode:
        pytest.skip(f"this ptxas does not know {target}")
    text = head + ".shared .b8 s[600000];\nmov.u32 r1, s;\nst.shared.b32 [r1], r2;\nret; }\n"
    done = assemble(tool, target, text)
    allowed = re.search(r"(0x[0-9a-f]+) max", done.stderr + done.stdout)
    if allowed and int(allowed[1], 16) != 48 * 1024:
        assert int(allowed[1], 16) == arch.limits.shared_memory


def test_spellings_are_unique_and_one_is_the_default():
    spellings = [s.replace("_", "") for arch in ARCHITECTURES for s in arch.spellings]
    assert len(spellings) == len(set(spellings))
    assert [arch.name for arch in ARCHITECTURES if arch.default] == ["sm_90"]


@pytest.mark.once
def test_tables_and_layouts_import_neither_triton_nor_torch():
    code = (
        "import sys, gluon_nvidia.arch, gluon_nvidia.layouts\n"
        "sys.exit(bool({'triton', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
