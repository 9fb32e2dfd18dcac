"""Machine code from files: `gluon emu FILE`, and `gluon run --asm KERNEL=FILE`."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import triton
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_cli.many import again
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_emu.errors import MissingWaitError
from gluon_emu.settings import using

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::UserWarning")]
TARGET = "emu:gfx942"
SOURCE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def halve(x, out, n, L: gl.constexpr):
    i = gl.program_id(0) * L + gl.arange(0, L, gl.BlockedLayout([1], [64], [1], [0]))
    gl.store(out + i, gl.load(x + i, mask=i < n) * 0.5, mask=i < n)

if __name__ == "__main__":
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    halve[(2,)](x, out, 100, 64, num_warps=1)
    print("sum", out.sum())
"""


@gluon.jit
def halve(x, out, n, L: gl.constexpr):
    i = gl.program_id(0) * L + gl.arange(0, L, gl.BlockedLayout([1], [64], [1], [0]))
    gl.store(out + i, gl.load(x + i, mask=i < n) * 0.5, mask=i < n)


X, OUT = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)


@pytest.fixture(scope="module")
def text():
    return halve.warmup(X, OUT, 100, 64, grid=(2,), target=TARGET, num_warps=1).asm["amdgcn"]


@pytest.fixture
def cli(tmp_path, monkeypatch, text):
    """Run `gluon ...` in a folder with halve.py and files; check the exit code, return the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    monkeypatch.setattr(triton.runtime.driver, "_active", triton.runtime.driver._active)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    (tmp_path / "halve.py").write_text(SOURCE)
    (tmp_path / "halve.s").write_text(text)

    def run(*arguments, code=0, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.s").write_text(content)
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    return run


ARGUMENTS = ["-g", "2", "-a", "f32[100]=arange", "-a", "f32[10, 10]", "-a", "i32=100"]


def test_a_file_runs(cli, tmp_path):
    output = cli("emu", "halve.s", *ARGUMENTS, "--save", "1=out.npy", "--trace-isa", "counts.json")
    assert re.search(r"halve: \d+ instructions", output)
    assert "argument 0, float32[100], 0 changed: 0 1 2" in output
    assert "argument 1, float32[10x10], 99 changed: 0 0.5 1 1.5" in output
    np.testing.assert_array_equal(np.load("out.npy").ravel(), X / 2)
    assert json.loads((tmp_path / "counts.json").read_text())["grid"] == [2, 1, 1]
    np.save("x.npy", X[::-1])
    printed = json.loads(cli("emu", "halve.s", "-g2", "-ax.npy", "-af32[100]=7", "-a100", "--json"))
    assert printed["arrays"][1]["first"][:3] == [49.5, 49, 48.5]


def test_a_file_in_place_of_the_compiler_s_code(cli, text):
    assert "sum 2475.0" in cli("run", "halve.py", "--target", TARGET, "--asm", "halve=halve.s")
    changed = re.sub(r"0\.5(?=, v)", "2.0", text)
    assert changed != text
    output = cli("run", "halve.py", "--target", TARGET, "--asm", "halve=changed.s", changed=changed)
    assert "sum 9900.0" in output


def test_an_option_that_is_given_twice_is_passed_on_twice():
    option = SimpleNamespace(
        name="asm", opts=["--asm"], secondary_opts=[], param_type_name="option"
    )
    command = SimpleNamespace(params=[option], name="run")
    options = {"asm": ["halve=a.s", "other=b.s"], "file": "halve.py"}
    words = again(SimpleNamespace(command=command, params=options, args=[]))
    assert "--asm halve=a.s --asm other=b.s" in " ".join(words)


def test_a_wait_that_is_left_out_is_reported(cli, text):
    changed = re.sub(r"\n\ts_waitcnt vmcnt\(0\)", "", text)
    run = ("run", "halve.py", "--target", TARGET, "--asm", "halve=changed.s")
    for command in (run, ("emu", "changed.s", *ARGUMENTS)):
        output = cli(*command, code=1, changed=changed)
        assert "MissingWaitError: missing s_waitcnt vmcnt(0) before" in output
        assert re.search(r"\(changed\.s:\d+\), workgroup \(0, 0, 0\), wave 0", output)


def test_in_a_program(tmp_path, text):
    out = np.zeros(100, np.float32)
    file = tmp_path / "changed.s"
    file.write_text(re.sub(r"\n\ts_waitcnt vmcnt\(0\)", "", text))
    with using(assembly=f"other=nowhere,halve={file}"):
        with pytest.raises(ArgumentError, match="there is no file for other"):
            halve[(2,)](X, out, 100, 64, target=TARGET, num_warps=1)
    with using(assembly=f"halve={file}"):
        with pytest.raises(MissingWaitError):
            halve[(2,)](X, out, 100, 64, target=TARGET, num_warps=1)
        file.write_text(text)  # it is read again
        halve[(2,)](X, out, 100, 64, target=TARGET, num_warps=1)
    np.testing.assert_array_equal(out, X / 2)
    halve[(2,)](X, out, 100, 64, target=TARGET, num_warps=1)


def test_coverage_lists_forms_and_names_the_unknown_ones(cli, text):
    output = cli("emu", "halve.s", "--coverage")
    assert "vmem 2 2 0 wait" in output and "forms in halve for gfx942, 0 unknown" in output
    changed = text.replace("_load_dword", "_frob_dword")
    output = cli("emu", "changed.s", "--coverage", code=1, changed=changed)
    assert re.search(r"_frob_dword\w*: line \d+: no semantics", output)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--asm", "halve"], "expected KERNEL=FILE, got halve"),
        (["--asm", "halve=no.s"], "there is no file for halve; got no.s"),
        (["--asm", "half=halve.s"], "no kernel half was launched; expected halve"),
        (["--asm", "halve=arch.s"], "the architectures differ; expected gfx942, got gfx950"),
        (["--asm", "halve=size.s"], "threads of a workgroup differ; expected 64, got 128"),
        (["--asm", "halve=args.s"], "the arguments differ"),
        (["--target", "sim:gfx942", "--asm", "halve=halve.s"], "Try --target emu:gfx942"),
        (["--target", "sim:hopper", "--asm", "halve=halve.s"], "Try --target emu:sm_90"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_a_launch(cli, text, options, message):
    files = {
        "arch": text.replace("gfx942", "gfx950"),
        "size": text.replace("max_flat_workgroup_size: 64", "max_flat_workgroup_size: 128"),
        "args": text.replace(".value_kind:     by_value", ".value_kind:     global_buffer"),
    }
    target = [] if "--target" in options else ["--target", TARGET]
    code = 1 if "differ" in message else 2  # of a launch, or of the command line
    assert message in cli("run", "halve.py", *target, *options, code=code, **files)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["hlave.s"], "no such file; got hlave.s. Did you mean 'halve.s'?"),
        (["halve.s", "-a", "f32[3]"], "halve takes 5 arguments"),
        (["halve.s", "-a1", "-af32[3]", "-a3"], "argument 0 of halve is an array"),
        (["halve.s", "-af32[3]", "-af32[3]", "-af32[3]"], "argument 2 of halve is a number"),
        (["halve.s", "-af33[3]"], "unknown dtype f33"),
        (["halve.s", "-af32[3]=some"], "arrays are not filled with some"),
        (["halve.s", "-ano.npy"], "the file cannot be read"),
        (["halve.s", "-ai32=0.5"], "i32 is an integer"),
        (["halve.s", "-awhat?"], "neither an array nor a number"),
        (["halve.s", *ARGUMENTS, "-g0"], "no grid"),
        (["halve.s", *ARGUMENTS, "--save", "2=x.npy"], "names no array"),
    ],
)  # fmt: skip
def test_arguments_that_are_none(cli, arguments, message):
    assert message in cli("emu", *arguments, code=2)


@pytest.mark.parametrize(
    "content, message",
    [
        ("hello", "no AMDGCN assembly; expected a text with .amdgcn_target"),
        (".version 8.4\n.target sm_90\n", "no such kernel; expected a module with an .entry"),
        ("\x7fELF", "not a code object"),
        (None, "no metadata of a kernel"),
    ],
)
def test_files_that_are_no_kernel(cli, text, content, message):
    content = text.replace("amdgpu_metadata", "ident") if content is None else content
    assert message in cli("emu", "wrong.s", *ARGUMENTS, code=1, wrong=content)


def test_the_command_is_listed(cli):
    assert "Execute PTX or AMD machine code in a file" in cli("--help")
    assert "--trace-isa" in cli("emu", "--help")
