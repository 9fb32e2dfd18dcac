"""`gluon emu FILE.ptx` with texts, arguments and grids that are none."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app

pytestmark = pytest.mark.once
TEXT = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry adds(.param .u64 out, .param .u32 n) {
.reg .b64 %d<4>; .reg .b32 %r<4>;
ld.param.u64 %d0, [out]; ld.param.u32 %r1, [n];
mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d1, %d0;
add.u32 %r2, %r0, %r1; st.global.u32 [%d1], %r2; ret; }
"""
BOTH = ["--arg", "i32[32]", "--arg", "i32=5", "--block", "32"]


@pytest.fixture
def emu(tmp_path):
    def emu(*options, text=TEXT):
        path = tmp_path / "adds.ptx"
        path.write_text(text)
        return CliRunner().invoke(app, ["emu", str(path), *options])

    return emu


def test_a_kernel_runs(emu):
    done = emu(*BOTH, "--grid", "3")
    assert done.exit_code == 0 and "32 changed: 5 6 7 8" in done.output


@pytest.mark.parametrize(
    "options, words",
    [
        (["--arg", "i32[32]", "--block", "32"], "adds takes 2 arguments"),
        ([*BOTH, "--arg", "i32=5"], "adds takes 2 arguments"),
        ([*BOTH[:4], "--block", "5000"], "expected 1 to 1024 threads, got 5000"),
        ([*BOTH, "--grid", "3000000000"], "at most 2147483647 blocks along x"),
        ([*BOTH, "--grid", "1,70000"], "65535 along y and z"),
        ([*BOTH, "--grid", "1000000000", "--timeout", "1"], "of 1000000000 blocks have run"),
    ],
)
def test_launches_that_are_none_or_too_large(emu, options, words):
    done = emu(*options)
    assert done.exit_code and words in " ".join(done.output.split()), done.output


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("sm_90a", "sm_13", "line 2 of the PTX: an architecture that the PTX ISA does not have"),
        ("sm_90a", "sm_90b", "line 2 of the PTX: an architecture that the PTX ISA does not have"),
        ("ld.param.u32", "ld.parm.u32", "`.parm` of `ld` is not known"),
        ("mov.u32 %r0", "mov.u32 %r9", "the register `%r9` is not known"),
        ("add.u32 %r2, %r0, %r1; st", "add.u32 %r2, %r0, %r1 st", "line 8"),
        ("[%d1], %r2", "[%d1+2], %r2", "the address is no multiple of 4"),
        ("[%d1], %r2", "[%d1+512], %r2", "adds.ptx:8"),
    ],
)
def test_texts_that_are_wrong(emu, old, new, words):
    assert old in TEXT
    done = emu(*BOTH, text=TEXT.replace(old, new, 1))
    assert done.exit_code and words in " ".join(done.output.split()), done.output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", "20 35 52 60 75 80 86 87 89 90 90a 100 100a 101a 103f 110a 120 121a".split())  # fmt: skip
def test_architectures_of_the_isa(emu, arch):
    assert emu(*BOTH, text=TEXT.replace("90a", arch)).exit_code == 0


@pytest.mark.parametrize(
    "content",
    [b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\x00" + bytes(64), b"\x50\xed\x55\xba" + bytes(64)],
)
def test_machine_code_of_nvidia_is_named(tmp_path, content):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(content)
    done = CliRunner().invoke(app, ["emu", str(path), "--coverage"])
    assert done.exit_code == 1 and "machine code of NVIDIA" in done.output
    assert "cuobjdump --dump-ptx" in done.output


def test_a_file_of_ptx_without_a_target_is_no_assembly_of_amd(emu):
    done = emu(*BOTH, text="hello")
    assert done.exit_code == 1 and "AMD" not in done.output and "line 1 of the PTX" in done.output
    done = emu(*BOTH, text=TEXT.replace(".target sm", ".target\tsm").replace("\n", "\r\n"))
    assert done.exit_code == 0 and "32 changed: 5 6 7 8" in done.output
