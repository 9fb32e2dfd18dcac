"""`gluon run` and `gluon prove` on scripts that ask torch for a GPU which is not there."""

import json
import os
import textwrap

import pytest

from gluon_standin import asked
from tests import warm

pytest.importorskip("torch")
pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

SCRIPT = """
    import torch, triton
    import triton.language as tl
    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def add(x, y, out, n, BLOCK: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [4], [0])
        at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
        gl.store(out + at, gl.load(x + at, at < n) + gl.load(y + at, at < n), at < n)

    @triton.jit
    def double(x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) * 2)

    x, y = torch.rand(100, device="cuda"), torch.rand(100).cuda()
    out = torch.empty_like(x)
    add[(1,)](x, y, out, 100, BLOCK=128)
    torch.testing.assert_close(out, x + y)
    PLAIN
    print("right on", torch.cuda.get_device_name())
"""
PLAIN = "double[(1,)](out, BLOCK=64); torch.testing.assert_close(out[:64], 2 * (x + y)[:64])"
ANSWERS = 'answers for torch\'s "cuda"'


def gluon(tmp_path, *words, plain=False, script=SCRIPT):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script).replace("PLAIN", PLAIN if plain else ""))
    command, *options = words
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return warm.run(
        ["-m", "gluon_core", command, path, *options],
        env=environment, cwd=tmp_path, timeout=110, torch=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "target, executed",
    [
        ("sim:hopper", "Triton's interpreter: double"),
        pytest.param("emu:gfx942", "compiled by Triton: double", marks=pytest.mark.campaign),
    ],
)
def test_run(tmp_path, target, executed):
    done = gluon(tmp_path, "run", "--target", target, plain=True)
    assert done.returncode == 0, done.stderr
    assert "right on" in done.stdout and ANSWERS in done.stderr and executed in done.stderr


def test_a_triton_kernel_of_cpu_tensors_needs_a_target(tmp_path):
    script = SCRIPT.replace('torch.rand(100, device="cuda")', "torch.rand(100)")
    script = script.replace(".cuda()", "").replace("torch.cuda.get_device_name()", '"a CPU"')
    done = gluon(tmp_path, "run", plain=True, script=script)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "CapabilityError: a kernel under @triton.jit needs a device" in done.stderr
    assert "script.py --target emu:sm_90, or make it a Gluon kernel" in done.stderr
    executed = gluon(tmp_path, "run", "--target", "emu:sm_90", plain=True, script=script)
    assert executed.returncode == 0, executed.stderr


def test_check_counts_the_checked_launches(tmp_path):
    done = gluon(tmp_path, "run", "--check", "--json", "--target", "sim:hopper")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schedules"] == 10 and ANSWERS in report["stand_in"][0]


@pytest.mark.campaign
def test_check_does_not_count_the_interpreter(tmp_path):
    done = gluon(tmp_path, "run", "--check", "--target", "sim:hopper", plain=True)
    assert done.returncode == 3, done.stdout
    assert "not everything was checked: Triton's interpreter looks for no mistakes" in done.stdout
    assert "double on sim:sm_90 by Triton's interpreter: 10 launches" in done.stdout


def test_prove(tmp_path):
    done = gluon(tmp_path, "prove", "--target", "sim:hopper")
    assert done.returncode == 0, done.stderr
    assert "proved: add on sim:sm_90" in done.stdout and ANSWERS in done.stderr


def test_compile_leaves_plain_kernels_to_triton(tmp_path):
    done = gluon(tmp_path, "compile", "--target", "sm_90", plain=True)
    assert done.returncode == 0, done.stderr
    assert "add" in done.stdout and "double" not in done.stdout
    assert "skipped double: plain Triton kernels" in done.stderr


@pytest.mark.campaign
def test_html(tmp_path):
    done = gluon(tmp_path, "run", "--html", "report.html", "--target", "sim:hopper")
    assert done.returncode == 0, done.stderr
    assert "add" in (tmp_path / "report.html").read_text()


def test_a_module_that_asks(tmp_path):
    (tmp_path / "helper.py").write_text("import torch\nx = torch.ones(4, device='cuda')\n")
    done = gluon(tmp_path, "run", script="import helper\nprint(helper.x.sum().item())\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4.0\n" and ANSWERS in done.stderr


@pytest.mark.parametrize(
    "source, required",
    [
        ("x = torch.ones(3, device='cuda')", True),
        ("x = y.cuda()", True),
        ("torch.cuda.synchronize()", True),
        ("DEVICE = torch.device('cuda:1')", True),
        ("assert torch.cuda.is_available(); x = y.cuda()", True),
        ("if not torch.cuda.is_available(): exit()\nx = y.cuda()", True),
        ("mark = skipif(not torch.cuda.is_available()); D = 'cuda'", True),
        ("D = 'cuda' if torch.cuda.is_available() else 'cpu'", False),
        ("if torch.cuda.is_available():\n    x = y.cuda()", False),
        ("print('cuda is a word here')", False),
        ("torch.cuda.is_available()", False),
        ("x = (", False),
    ],
)
def test_which_sources_require_the_device(source, required):
    assert asked.requires(source, "cuda") is required
