"""`gluon bundle` and `gluon run --record` through their front door."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gluon_bundle import supply
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.bundle import Bundle
from gluon_core.compiler.source import GluonASTSource
from gluon_core.registry.load import registry
from tests.bundle import kernels

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "bundle" / "kernels.py"

PROGRAM = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
L = gl.BlockedLayout([4], [32], [4], [0])

@gluon.jit
def scale(x, y, n, factor, none, kind: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    value = gl.load(x + offsets, mask=offsets < n).to(kind)
    gl.store(y + offsets, value * factor, mask=offsets < n)

def inner():
    @gluon.jit
    def local(y):
        gl.store(y, 1.0)
    return local

x, y = np.ones(128, "f4"), np.zeros(128, "f4")
for n in (128, 100, 96):
    scale[(n // 64,)](x, y, n, 2.5, None, gl.float16, 128, L, target="sim:hopper")
inner()[1](y, target="sim:hopper")
print("ran", y.sum())
"""


def gluon(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_from_the_command_line(tmp_path, bundle_file):
    out = tmp_path / "k.glb"
    signature = ["-s", "*fp32:16,*fp32:16,i32,fp32", "-c", "BLOCK=512"]
    layout = ["-c", "LAYOUT=BlockedLayout([4], [32], [4], [0])"]
    output = gluon(
        "bundle", out, f"{KERNELS}:scale", "-t", "hopper", *signature, *layout, "--grid", "4,2"
    )
    assert "1 kernel, 1 form, " in output.stdout
    bundle = Bundle.open(out)
    assert f"sha256 {bundle.digest}" in output.stdout
    (form,) = bundle.kernels["scale"]["forms"]
    same = {f["key"]: f for f in Bundle.open(bundle_file).kernels["scale"]["forms"]}[form["key"]]
    assert (form["launch"], form["packing"], form["grid"]) == (
        same["launch"],
        same["packing"],
        [4, 2, 1],
    )
    assert (
        bundle.kernels["scale"]["identity"] == Bundle.open(bundle_file).kernels["scale"]["identity"]
    )


def test_for_several_targets_and_options(tmp_path):
    out = tmp_path / "k.glb"
    gluon(
        "bundle",
        out,
        f"{KERNELS}:ones",
        "-t",
        "hopper,sm_80",
        "-t",
        "gfx942",
        "-s",
        "*i32,i32",
        "-w",
        "8",
    )
    bundle = Bundle.open(out)
    forms = bundle.kernels["ones"]["forms"]
    assert [f["target"] for f in forms] == ["amd:gfx942", "nvidia:sm_80", "nvidia:sm_90"]
    assert all(f["launch"]["num_warps"] == 8 for f in forms)


def test_inspect(bundle_file):
    text = gluon("bundle", "inspect", bundle_file).stdout
    assert "scale" in text and "built with gluon-core" in text
    assert "nvidia:sm_90 (*i32, i32), num_warps=8" in text
    document = json.loads(gluon("bundle", "inspect", bundle_file, "--json").stdout)
    assert set(document["kernels"]) == {"scale", "loose", "many", "ones"}
    assert document["digest"] == bundle_file.read_bytes()[-64:].decode()


@pytest.mark.parametrize("word, meant", [("show", "inspect"), ("inspct", "inspect"), ("check", "verify")])  # fmt: skip
def test_a_misspelt_command_writes_no_bundle(bundle_file, tmp_path, monkeypatch, word, meant):
    monkeypatch.chdir(tmp_path)
    result = gluon("bundle", word, bundle_file, code=2)
    assert f"Did you mean '{meant}'? A bundle of this name is ./{word}" in result.output
    assert not list(tmp_path.iterdir())
    gluon("bundle", f"./{word}", bundle_file)
    assert [path.name for path in tmp_path.iterdir()] == [word]


def test_verify(bundle_file, tmp_path):
    assert (
        "parts have the stated hashes (4 kernels, 10 forms)"
        in gluon("bundle", "verify", bundle_file).stdout
    )
    data = bytearray(bundle_file.read_bytes())
    data[1000] ^= 4
    (tmp_path / "bad.glb").write_bytes(data)
    assert "BundleDamagedError" in gluon("bundle", "verify", tmp_path / "bad.glb", code=1).stderr
    wrong = gluon("bundle", "verify", bundle_file, "--digest", "00", code=1)
    assert "not the requested bundle" in wrong.stderr


def test_diff_and_merge(bundle_file, tmp_path):
    same = gluon("bundle", "diff", bundle_file, bundle_file)
    assert "launch the same code the same way" in same.stdout
    one, both = tmp_path / "one.glb", tmp_path / "both.glb"
    gluon("bundle", one, f"{KERNELS}:ones", "-t", "gfx1250", "-s", "*i32,i64")
    document = json.loads(gluon("bundle", "diff", bundle_file, one, "--json", code=1).stdout)
    assert "- scale" in document["differences"]
    assert "+ ones for amd:gfx1250 (*i32, i64)" in document["differences"]
    gluon("bundle", both, bundle_file, one)
    assert gluon("bundle", "diff", bundle_file, both, code=1).stdout.splitlines() == [
        "+ ones for amd:gfx1250 (*i32, i64)"
    ]


class TestSpecs:
    def write(self, tmp_path, text):
        path = tmp_path / "specs.toml"
        path.write_text(text)
        return path

    def test_toml(self, tmp_path):
        (tmp_path / "kernels.py").write_text(KERNELS.read_text())
        path = self.write(
            tmp_path,
            """
            [[kernel]]
            kernel = "kernels.py:scale"
            name = "times"
            targets = ["hopper", "sm_100"]
            signature = "*fp32:16, *fp32, i32, fp32"
            grid = [128]
            constexprs = { BLOCK = 512, LAYOUT = "BlockedLayout([4], [32], [4], [0])" }
            options = { maxnreg = 64 }
            [[kernel]]
            kernel = "kernels.py:ones"
            targets = ["gfx942"]
            signature = "y=*i32, stride=i32"
            attrs = { y = [["tt.divisibility", 16], ["tt.pointer_range", 32]] }
            """,
        )
        gluon("bundle", tmp_path / "k.glb", path)
        bundle = Bundle.open(tmp_path / "k.glb")
        assert set(bundle) == {"times", "ones"}
        targets = [f["target"] for f in bundle.kernels["times"]["forms"]]
        assert targets == ["nvidia:sm_100", "nvidia:sm_90"]
        assert bundle.kernels["times"]["forms"][0]["given"] == ["maxnreg"]
        (form,) = bundle.kernels["ones"]["forms"]
        assert form["arguments"][0] == {"type": "*i32", "divisible": True, "small": True}

    @pytest.mark.parametrize(
        "text, message",
        [
            ("[[kernel]", "is not valid TOML"),
            ("a = 1", "names no kernels"),
            ("[[kernel]]\nname = 'x'", "is not a kernel"),
            ("[[kernel]]\nkernel = 'k.py:x'\ntarget = 'hopper'", "Did you mean 'targets'"),
            ("[[kernel]]\nkernel = 'k.py:x'\ntargets = 'hopper'", "targets is of another type"),
            ("[[kernel]]\nkernel = 'none.py:x'", "no such file"),
            (
                "[[kernel]]\nkernel = 'k.py:x'\nconstexprs = { A = 'f()' }",
                "neither a dtype nor a layout",
            ),
        ],
    )
    def test_wrong_toml(self, tmp_path, text, message):
        output = gluon("bundle", tmp_path / "k.glb", self.write(tmp_path, text), code=2)
        assert message in output.stderr and not (tmp_path / "k.glb").exists()

    def test_nothing_to_do(self, tmp_path):
        assert "names no kernel" in gluon("bundle", tmp_path / "k.glb", code=2).stderr
        no_file = gluon("bundle", tmp_path / "k.glb", tmp_path / "none.toml", code=2)
        assert "cannot be read: No such file" in no_file.stderr

    def test_simulated_targets(self, tmp_path):
        spec = f"{KERNELS}:ones"
        output = gluon(
            "bundle", tmp_path / "k.glb", spec, "-t", "sim:hopper", "-s", "*i32,i32", code=1
        )
        assert "nvidia:sm_90" in output.stderr


def test_a_recorded_run_becomes_a_bundle(tmp_path, monkeypatch):
    program, specs, out = tmp_path / "program.py", tmp_path / "specs.toml", tmp_path / "k.glb"
    program.write_text(PROGRAM)
    done = gluon("run", program, "--record", specs)
    assert done.stdout == "ran 318.5\n"
    assert "recorded 2 forms" in done.stderr and "inner.<locals>.local" in done.stderr
    gluon("bundle", out, specs)
    bundle = Bundle.open(out)
    assert bundle.kernels["scale"]["function"] == "scale"
    forms = bundle.kernels["scale"]["forms"]
    assert [f["target"] for f in forms] == ["nvidia:sm_90"] * 2
    assert sorted(f["arguments"][2]["divisible"] for f in forms) == [False, True]
    assert [f["grid"] for f in forms if not f["arguments"][2]["divisible"]] == [[1, 1, 1]]
    assert [f["grid"] for f in forms if f["arguments"][2]["divisible"]] == [None]
    assert forms[0]["arguments"][4] == {"constant": None}
    # The program finds its kernel although its module is called otherwise when it is run.
    monkeypatch.setenv("GLUON_BUNDLE", str(out))
    names = runpy.run_path(str(program), run_name="__main__")
    target = registry().target("hopper")
    backend = registry().backend(target.backend)
    signature = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "factor": "fp32"}
    constants = {"none": None, "kind": gl.float16, "BLOCK": 128, "LAYOUT": names["L"]}
    source = GluonASTSource(names["scale"], signature, constants)
    taken = supply.take(source, target, backend, backend.compiler.options(target, {"debug": False}))
    assert taken is not None and taken.asm["cubin"].startswith(b"\x7fELF")


def test_the_cache(tmp_path, monkeypatch):
    import gluon_core

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "here"))
    gluon_core.compile(kernels.ones, "hopper", signature={"y": "*i32", "stride": "i32"})
    assert "1 cache entry" in gluon("bundle", tmp_path / "c.glb", "--cache").stdout
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "there"))
    assert "1 cache entry written" in gluon("bundle", "import-cache", tmp_path / "c.glb").stdout


def test_without_a_signature_the_forms_are_those_that_the_file_launches(tmp_path):
    program, out = tmp_path / "program.py", tmp_path / "k.glb"
    program.write_text(PROGRAM.replace(', target="sim:hopper"', ""))
    gluon("bundle", out, f"{program}:scale", "-t", "sm_80,sm_90")
    targets = [form["target"] for form in Bundle.open(out).kernels["scale"]["forms"]]
    assert targets == ["nvidia:sm_80"] * 2 + ["nvidia:sm_90"] * 2  # n is 128 or 96, and 100
    result = gluon("bundle", out, f"{program}:scale", code=1)
    assert "Name the hardware" in result.stderr and "ran" not in result.stderr
