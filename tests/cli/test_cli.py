"""The command `gluon` through its front door: output and exit codes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from gluon_cli.app import app
from tests import warm

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CASES = ROOT / "tests" / "kernels" / "cases"
COPY = f"{CASES / 'memcpy_1d.py'}:memcpy_1d"


def gluon(*arguments, code=0):
    """Run a command; its output, once the exit code is as expected."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture
def kernels(tmp_path):
    """A file of kernels without examples."""
    path = tmp_path / "kernels.py"
    path.write_text(
        "import gluon_core as gluon\n"
        "from gluon_core import language as gl\n"
        "@gluon.jit\n"
        "def fill(out, n, value, BLOCK: gl.constexpr, layout: gl.constexpr):\n"
        "    i = gl.arange(0, BLOCK, layout=layout)\n"
        "    gl.store(out + i, value, mask=i < n)\n"
        "@gluon.jit\n"
        "def broken(out, BLOCK: gl.constexpr, layout: gl.constexpr):\n"
        "    gl.store(out, gl.arange(0, BLOCK + 1, layout=layout))\n"
    )
    return path


LAYOUT = "layout=gl.BlockedLayout([4], [32], [4], [0])"


def test_the_readme_lists_every_command():
    section = (ROOT / "README.md").read_text().split("## The command line\n")[1].split("\n## ")[0]
    named = {
        name
        for row in re.findall(r"^\| (`gluon .*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`gluon (\w+)", row)
    }
    commands = typer.main.get_command(app)
    assert named == set(commands.list_commands(typer.Context(commands)))


class TestInfo:
    def test_for_people(self):
        out = gluon("info").stdout
        for word in ("nvidia", "amd", "sim", "sm_90", "gfx942", "triton", "architectures"):
            assert word in out

    def test_for_machines(self):
        document = json.loads(gluon("info", "--json").stdout)
        assert {p["name"] for p in document["plugins"]} >= {"nvidia", "amd", "sim"}
        assert document["broken"] == []
        (hopper,) = (a for a in document["architectures"] if a["name"] == "sm_90")
        assert hopper["warp_size"] == 32 and "nvidia.wgmma" in hopper["capabilities"]

    def test_one_target_and_one_capability(self):
        assert (
            "227 KiB" in gluon("info", "hopper").stdout
            or "232448" in gluon("info", "hopper").stdout
        )
        assert "sm_90" in gluon("info", "nvidia.wgmma").stdout
        assert json.loads(gluon("info", "cdna3", "--json").stdout)["warp_size"] == 64

    def test_a_typo(self):
        assert "Did you mean 'hopper'" in gluon("info", "hoper", code=2).stderr
        assert "nvidia.wgmma" in gluon("info", "nvidia.wgma", code=2).stderr

    def test_a_broken_plugin_is_shown_with_its_traceback(self, tmp_path):
        info = tmp_path / "gluon_wreck-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gluon-wreck\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[gluon_core.backends]\nwreck = gluon_wreck.plugin\n"
        )
        (tmp_path / "gluon_wreck").mkdir()
        (tmp_path / "gluon_wreck" / "plugin.py").write_text(
            "raise OSError('libwreck.so is missing')\n"
        )
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        code = path + "from gluon_cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "info"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 3, done.stderr
        assert "libwreck.so is missing" in done.stdout and "Traceback" in done.stdout
        assert "sm_90" in done.stdout


class TestCompile:
    def test_report_of_an_example(self):
        document = json.loads(gluon("compile", COPY, "-t", "sm_90", "--json").stdout)
        assert document["target"] == "nvidia:sm_90" and document["registers"] > 0
        assert document["instruction_mix"]["LDG"] == 4
        assert "LDG" in gluon("compile", COPY, "-t", "sm_90").stdout

    @pytest.mark.parametrize(
        "target, emit, text",
        [
            ("sm_90", "ttgir", "tt.load"),
            ("sm_90", "ptx", "ld.global.v4"),
            ("sm_90", "sass", "LDG.E.128"),
            ("sm_90", "llir", "define"),
            ("gfx942", "amdgcn", "global_load_dwordx4"),
        ],
    )
    def test_emit(self, target, emit, text):
        assert text in gluon("compile", COPY, "-t", target, "--emit", emit).stdout

    @pytest.mark.parametrize("named", [False, True])
    def test_descriptors_and_tuples_in_a_signature(self, tmp_path, named):
        path = tmp_path / "kernels.py"
        path.write_text(
            "import gluon_core as gluon\n"
            "from gluon_core import language as gl\n"
            "@gluon.jit\n"
            "def facts(d, more, out):\n"
            "    gl.store(out, d.shape[0] + more[1].shape[1] + more[0])\n"
        )
        layout = "NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)"
        kinds = [f"tensordesc<fp16[64, 64],{layout}>"]
        kinds += [f"(i32, tensordesc<fp16[32, 64],{layout}>)", "*i32:16"]
        names = ["d=", "more = ", "out="] if named else [""] * 3
        signature = ",".join(name + kind for name, kind in zip(names, kinds))
        asked = ("compile", path, "--target", "hopper", "--signature", signature)
        text = gluon(*asked, "--emit", "ptx").stdout
        assert text.count("[128]") == 2 and "facts_param_11" in text

    def test_signature_and_constexprs(self, kernels):
        call = ("compile", f"{kernels}:fill", "-t", "sm_80", "-c", "BLOCK=512", "-c", LAYOUT)
        ptx = gluon(*call, "-s", "*fp32:16,i32:16,fp32", "--emit", "ptx").stdout
        assert ".target sm_80" in ptx and "st.global.v4" in ptx
        named = gluon(*call, "-s", "value=fp32, n=i32:16, out=*fp32:16", "--emit", "ptx").stdout
        assert named == ptx

    def test_constexprs_override_those_of_an_example(self):
        call = ("compile", COPY, "-t", "sm_90", "--emit", "ttgir")
        assert "8192" not in gluon(*call).stdout
        assert "8192" in gluon(*call, "-c", "BLOCK=8192").stdout

    def test_options(self):
        call = (
            "compile",
            COPY,
            "-t",
            "sm_90",
            "-c",
            "layout=BlockedLayout([1],[32],[8],[0])",
            "--json",
        )
        assert json.loads(gluon(*call, "--num-warps", 8).stdout)["num_warps"] == 8
        error = json.loads(gluon(*call, "--option", "num_wraps=8", code=2).stdout)["error"]
        assert error["class"] == "OptionError" and "num_warps" in error["message"]

    def test_binary_to_a_file(self, tmp_path):
        cubin = tmp_path / "copy.cubin"
        gluon("compile", COPY, "-t", "sm_90", "--emit", "cubin", "--output", cubin)
        assert cubin.read_bytes()[:4] == b"\x7fELF"

    def test_a_broken_kernel_is_shown_under_a_caret(self, kernels):
        call = ("compile", f"{kernels}:broken", "-t", "sm_90", "-s", "*i32", "-c", "BLOCK=64")
        text = gluon(*call, "-c", LAYOUT, code=1).stderr
        assert f"{kernels.name}:9" in text and "^^^" in text and "Traceback" not in text
        error = json.loads(gluon(*call, "-c", LAYOUT, "--json", code=1).stdout)["error"]
        assert error["line"] == 9

    @pytest.mark.parametrize(
        "change, message",
        [
            (("-t", "sm_91"), "Did you mean 'sm_90'"),
            (("-t", "nvidea:sm_90"), "Did you mean 'nvidia'"),
            (("--emit", "ptxx"), "Did you mean 'ptx'"),
            (("-c", "BLOK=4"), "Did you mean 'BLOCK'"),
            (("-c", "BLOCK"), "NAME=VALUE"),
            (("-c", "BLOCK=__import__('os')"), "neither"),
            (("-c", "layout=gl.BlokedLayout([1])"), "Did you mean 'BlockedLayout'"),
            (("-c", "layout=BlockedLayout([1])"), "missing 3 required"),
            (("-s", "*fp32"), "src, dst, n"),
        ],
    )
    def test_usage(self, change, message):
        start = () if "-t" in change else ("-t", "sm_90")
        done = gluon("compile", COPY, *start, *change, code=2)
        assert message in done.stderr and "Traceback" not in done.stderr

    def test_several_texts_at_once(self, tmp_path):
        out = gluon("compile", COPY, "-t", "sm_90", "--emit", "sass,ptx").stdout
        assert out.index("==== sass ====") < out.index("LDG.E.128") < out.index("==== ptx ====")
        assert "ld.global.v4" in out
        base = tmp_path / "copy"
        gluon("compile", COPY, "-t", "sm_90", "--emit", "cubin,report", "--output", base)
        assert (tmp_path / "copy.cubin").read_bytes()[:4] == b"\x7fELF"
        assert "per thread" in (tmp_path / "copy.report").read_text()
        document = json.loads(
            gluon("compile", COPY, "-t", "sm_90", "-e", "ptx,sass", "--json").stdout
        )
        assert set(document) == {"ptx", "sass"}
        assert "sass" in gluon("compile", COPY, "-t", "sm_90", "-e", "x", code=2).stderr

    def test_types_by_either_name(self, kernels):
        kernels.write_text(
            "import gluon_core as gluon\nfrom gluon_core import language as gl\n"
            "@gluon.jit\ndef double(x):\n    return x * 2\n"
            "@gluon.jit\ndef fill(out, x, D: gl.constexpr):\n    gl.store(out, double(x).to(D))\n"
        )  # what another kernel calls is not the one that is meant
        for pointer, value in (("*fp16:16", "bf16"), ("*float16:16", "bfloat16")):
            call = ("compile", kernels, "-t", "sm_90", "-s", f"{pointer},float32")
            ptx = gluon(*call, "-c", f"D={value}", "--emit", "ptx").stdout
            assert "cvt.rn.bf16.f32" in ptx and "st.global.b16" in ptx

    def test_unknown_files_and_kernels(self):
        text = gluon("compile", str(CASES / "memcpy1d.py") + ":memcpy_1d", code=2).stderr
        assert "Did you mean 'memcpy_1d.py'" in text.replace("\n", " ")
        text = gluon("compile", str(CASES / "memcpy_1d.py") + ":memcpy1d", code=2).stderr
        assert "Did you mean 'memcpy_1d'" in text

    def test_limits_of_the_target(self):
        file = EXAMPLES / "patterns" / "double_buffer.py"
        text = gluon("compile", file, "-t", "gfx942", code=3).stderr
        assert "CapabilityError" in text and "nvidia.cp_async" in text


@pytest.mark.parametrize(
    "expression",
    [
        "open('x')",
        "gl.load",
        "gl.language.__class__",
        "[].append(1)",
        "1 + 1",
        "lambda: 0",
        "gl",
        "x[0]",
    ],
)
def test_expressions_are_not_evaluated(expression):
    from gluon_cli.output import UsageError
    from gluon_cli.parse import parse_value

    with pytest.raises(UsageError):
        parse_value(expression)


def test_values():
    from gluon_cli.parse import parse_value
    from gluon_core import language as gl

    assert parse_value("-3") == -3
    assert parse_value("(1, [2.5, 'a'], None, True)") == (1, [2.5, "a"], None, True)
    assert parse_value("gl.float16") is parse_value("float16") is gl.float16
    blocked = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    text = "SliceLayout(dim=1, parent=gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))"
    assert parse_value(text) == gl.SliceLayout(1, blocked)
    assert parse_value("NVMMASharedLayout(128, 16, 2)") == gl.NVMMASharedLayout(128, 16, 2)


class TestExplain:
    @pytest.mark.sampled(8)
    @pytest.mark.parametrize(
        "target, mma, copy",
        [
            ("sm_80", "mma.sync", "cp.async"),
            ("sm_90", "wgmma", "tma"),
            ("gfx942", "mfma", "buffer_load_through_registers"),
            ("gfx1100", "wmma", "buffer_load_through_registers"),
            ("sm_75", "fma", "through_registers"),
            ("sim:sm_90", "wgmma", "tma"),
        ],
    )
    def test_matmul(self, target, mma, copy):
        file = EXAMPLES / "gemm" / "portable.py"
        ops = json.loads(gluon("explain", file, "-t", target, "--json").stdout)["ops"]
        taken = {op["op"]: op["taken"] for op in ops}
        assert taken["mma"] == mma and taken.get("async_copy", taken["tile_copy"]) == copy
        for op in ops:
            assert "portable.py:" in op["where"]
            assert all(op["not_taken"].values())
        text = gluon("explain", file, "-t", target).stdout
        assert mma in text and "why not" in text

    def test_nothing_to_explain(self):
        assert "nothing to choose" in gluon("explain", COPY, "-t", "sm_90").stdout


class TestRun:
    def test_on_a_target(self, monkeypatch):
        monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        file = EXAMPLES / "basics" / "copy_2d.py"
        assert "copy on sim:gfx942" in gluon("run", file, "--target", "sim:cdna3").stdout

    def test_arguments_and_exit_code(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        file = tmp_path / "ends.py"
        file.write_text("import sys; print(sys.argv[1:]); raise SystemExit(7)\n")
        assert "['--a', 'b']" in gluon("run", file, "--a", "b", code=7).stdout

    def test_a_report_of_the_simulator_as_json(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        file = tmp_path / "reads_outside.py"
        file.write_text(
            "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
            "@gluon.jit\ndef reads(src, dst):\n    gl.store(dst, gl.load(src + 4))\n"
            "x = np.zeros(8, np.float32)\nprint('starts')\nreads[(1,)](x, x)\n"
            "reads[(1,)](x[:4].copy(), x)\n"
        )
        monkeypatch.delenv("GLUON_TARGET", raising=False)
        done = gluon("run", file, "--target", "sim:sm_90", "--json", code=1)
        document = json.loads(done.stdout)["error"]
        assert document["class"] == "OutOfBoundsError" and document["program"] == [0, 0, 0]
        assert (document["file"], document["line"]) == (str(file), 6)
        assert "starts" in done.stderr
        file.write_text("print('nothing to see')\n")
        assert json.loads(gluon("run", file, "--json").stdout) == {"exit": 0}

    def test_many_schedules(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
        monkeypatch.setenv("GLUON_SIM_CHECKS", "0")
        file = tmp_path / "reads_early.py"
        file.write_text(EARLY)
        assert gluon("run", file, "--schedule", "latest").stdout == "[-1]\n"
        assert gluon("run", file, "--schedule", "eager").stdout == "[7]\n"
        file.write_text(EARLY + "raise SystemExit(int(out[0]) == 7)\n")
        done = gluon("run", file, "--schedules", "5", code=1)
        assert done.stdout == "[-1]\n[7]\n"
        assert "run 2 of 5 failed; repeat it with --schedule eager" in done.stderr
        monkeypatch.delenv("GLUON_SIM_CHECKS")
        done = gluon("run", file, "--schedules", "5", code=1)
        assert "run 1 of 5 failed" in done.stderr and "RaceError" in done.stderr
        done = gluon("run", file, "-t", "sm_80", "--schedules", "5", code=2)
        assert "only simulated" in done.stderr

    def test_a_timeout(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
        file = tmp_path / "forever.py"
        file.write_text(FOREVER)
        assert "not over after 0.2 s" in gluon("run", file, "--timeout", "0.2", code=1).stderr

    def test_no_such_file(self, tmp_path):
        assert "no such file" in gluon("run", "nowhere.py", code=2).stderr
        assert "a folder" in gluon("run", tmp_path, code=2).stderr
        (tmp_path / "binary.py").write_bytes(b"\0\1")
        for command in ("run", "prove"):
            assert "null bytes" in gluon(command, tmp_path / "binary.py", code=2).stderr

    @pytest.mark.parametrize(
        "launch, report, under",
        [
            ("f[(1,)]([1], 2)", "DtypeError: f(x): kernels cannot take", "f[(1,)]([1], 2)"),
            ("f[(1,)](x, 2, num_wraps=8)", "OptionError: num_wraps: ", None),
            ("f[(1,)](x, 2, sied=8)", "Did you mean 'side'?", None),
            ("y = f[4.5](x, 2)", "LaunchError: grid: not a grid", "f[4.5](x, 2)"),
            ("f(x, 2)", "NotInKernelError", "f(x, 2)"),
        ],
    )
    def test_host_code_has_a_line_too(self, launch, report, under, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
        file = tmp_path / "host.py"
        file.write_text(ON_THE_HOST + launch + "\n")
        shown = gluon("run", file, code=1).stderr
        line = len(ON_THE_HOST.splitlines()) + 1
        assert report in shown and f"  at {file}:{line}:" in shown
        if under is not None and sys.version_info >= (3, 11):
            assert f"\n    {' ' * launch.index(under)}{'^' * len(under)}\n" in shown

    def test_a_launch_without_its_arguments(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
        file = tmp_path / "host.py"
        file.write_text(ON_THE_HOST + "f[(1,)](x)\n")
        result = warm.run(["-m", "gluon_core", "run", file])
        assert result.returncode == 1 and "CallError: f() missing 1 required" in result.stderr
        assert "gluon_core/launch/" not in result.stderr, "frames of ours"

    def test_an_option_that_goes_to_the_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        file = tmp_path / "fine.py"
        file.write_text("print('fine')\n")
        assert "Did you mean --check?" in gluon("run", file, "--chek").stderr
        assert "Did you mean" not in gluon("run", file, "--size", "4").stderr


def test_commands_by_other_names():
    assert "gluon run FILE --profile" in gluon("profile", code=2).stderr
    assert "Did you mean 'prove'?" in gluon("prov", code=2).stderr


def test_which_target_can_trace_instructions(tmp_path):
    file = tmp_path / "fine.py"
    file.write_text("")
    output = gluon("run", file, "-t", "sim:gfx942", "--trace-isa", "x", code=2).stderr
    assert "Try --target emu:gfx942." in output
    output = gluon("run", file, "-t", "sim:hopper", "--trace-isa", "x", code=2).stderr
    assert "Try --target emu:sm_90." in output


ON_THE_HOST = """\
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def f(x, n, side: gl.constexpr = 3):
    gl.store(x, n)

x = np.zeros(4, np.float32)
"""


EARLY = """\
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy

@gluon.jit
def reads_early(src, dst):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, 1, layout=layout)
    s = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s.store(o - 1)
    async_copy.async_copy_global_to_shared(s, src + o)
    async_copy.commit_group()
    gl.store(dst + o, s.load(layout))
    async_copy.wait_group(0)

out = np.zeros(1, np.int32)
reads_early[(1,)](np.full(1, 7, np.int32), out)
print(out)
"""

FOREVER = """\
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def forever(dst, n):
    i = 0
    while i >= 0:
        i = (i + 1) % n
    gl.store(dst, i)

forever[(1,)](np.zeros(1, np.int32), 100)
"""


class TestLayout:
    EXPRESSION = "BlockedLayout([1, 2], [4, 8], [2, 2], [1, 0])"

    def test_views(self):
        for view in ("explain", "tensor", "hardware"):
            assert gluon(
                "layout", self.EXPRESSION, "--shape", "8x32", "--view", view
            ).stdout.strip()
        assert "register" in gluon("layout", self.EXPRESSION, "--shape", "8,32").stdout
        document = json.loads(gluon("layout", self.EXPRESSION, "--shape", "8x32", "--json").stdout)
        assert document["bases"]["register"] == [[0, 1]] and len(document["bases"]["lane"]) == 5

    def test_pictures(self, tmp_path):
        svg, html = tmp_path / "a.svg", tmp_path / "a.html"
        output = gluon("layout", self.EXPRESSION, "--svg", svg, "--html", html).stdout
        assert f"wrote {svg}: BlockedLayout of shape" in output and f"wrote {html}" in output
        assert svg.read_text().startswith("<svg") and "thread 5" in html.read_text()
        gluon("layout", self.EXPRESSION, "--svg", tmp_path / "no" / "a.svg", code=2)

    def test_two_layouts_compared(self, tmp_path):
        columns = "BlockedLayout([4, 1], [4, 8], [1, 4], [0, 1])"
        svg = tmp_path / "move.svg"
        output = gluon(
            "layout", "--compare", self.EXPRESSION, columns, "--shape", "32x32", "--svg", svg
        ).stdout
        assert "of shared memory and a barrier" in output and "to another warp" in svg.read_text()
        buffer = "SwizzledSharedLayout(1, 1, 1, [1, 0])"
        output = gluon("layout", "--compare", columns, buffer, "--shape", "64x64").stdout
        assert "3 extra passes" in output
        gluon("layout", "--compare", columns, buffer, "--json", code=2)
        gluon("layout", columns, "--compare", columns, buffer, code=2)
        gluon("layout", "--shape", "8x32", code=2)
        gluon("layout", columns, code=2)

    def test_layouts_of_vendors_go_by_their_own_names(self):
        for prefix in ("", "nvidia.blackwell.", "gl.nvidia.blackwell."):
            expression = f"{prefix}TensorMemoryLayout([128, 64], col_stride=1)"
            assert "row (128)" in gluon("layout", expression, "--shape", "128x64").stdout
        wrong = gluon("layout", "TensorMemryLayout([128, 64], 1)", "--shape", "128x64", code=2)
        assert "Did you mean 'TensorMemoryLayout'" in wrong.stderr

    def test_mistakes(self):
        gluon("layout", self.EXPRESSION, "--shape", "8xtwo", code=2)
        gluon("layout", self.EXPRESSION, "--shape", "8x32", "--view", "side", code=2)
        gluon("layout", "float16", "--shape", "8", code=2)
        gluon("layout", "BlockedLayout([3], [32], [4], [0])", "--shape", "512", code=2)


def test_help_and_version():
    assert "Exit codes" in gluon("--help").stdout
    assert gluon("--version").stdout.startswith("gluon-core ")
    gluon("compile", code=2)


def test_a_command_ends_without_a_word_of_the_bindings():
    """Triton 3.9's report supposed leaks once the interpreter is torn down."""
    kernel = f"{Path(__file__).parents[2] / 'examples' / 'gemm' / 'portable.py'}:gemm_kernel"
    command = [sys.executable, "-m", "gluon_cli", "explain", kernel, "--target", "gfx942"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "buffer_store" in done.stdout and "leaked" not in done.stderr


@pytest.mark.parametrize(
    "line, wanted, unwanted",
    [
        ("compile x.py --target hop", "hopper", "blackwell"),
        ("compile x.py --target sim:gfx94", "sim:gfx942", "gfx942"),
        ("compile x.py --emit tt", "ttgir", "ptx"),
        ("tune x.py --objective r", "roofline", "time"),
        ("tune x.py --search o", "optuna", "auto"),
        ("run x.py --schedule la", "latest", "eager"),
        ("run x.py --targets sim:hopper,gfx125", "sim:hopper,gfx1250", "gfx1250"),
        ("run x.py --compile-for hop", "hopper", "sim:"),
        ("bundle out --target gfx125", "gfx1250", "hopper"),
        ("info nvidia.wg", "nvidia.wgmma", "hopper"),
    ],
)
def test_shells_complete_values(line, wanted, unwanted):
    offered = completed(line)
    assert wanted in offered and unwanted not in offered


def completed(line):
    environment = {
        "_GLUON_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": f"gluon {line}",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="gluon")
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


def test_shells_complete_kernels_of_a_file(kernels):
    offered = completed(f"compile {shlex.quote(str(kernels))}:")
    assert offered and all(one.startswith(f"{kernels}:") for one in offered)
    assert str(kernels) in completed(f"compile {shlex.quote(str(kernels)[:-3])}")
