"""`gluon_core.testing`: tools for kernel and plugin authors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor as TritonMockTensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import testing
from gluon_core.errors import GluonError, OptionError, TargetError

pytestmark = pytest.mark.sampled(2)

ROOT = Path(__file__).parents[2]


@gluon.jit
def scale(p, q, n, factor, B: gl.constexpr, dtype: gl.constexpr = gl.float32):
    offsets = gl.arange(0, B, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    gl.store(q + offsets, (gl.load(p + offsets, mask=offsets < n) * factor).to(dtype))


def test_default_target_is_that_of_tritons_tests():
    module = testing.run_parser(
        scale, (testing.MockTensor(gl.float32), TritonMockTensor(gl.float16), 7, 2.0, 128)
    )
    assert 'ttg.target = "cuda:100"' in module.str_nodebug()


@pytest.mark.parametrize(
    "target, spelled",
    [(GPUTarget("cuda", 80, 32), "cuda:80"), ("hopper", "cuda:90"), ("nvidia:sm_75", "cuda:75")],
)
def test_targets_in_every_spelling(target, spelled):
    module = testing.run_parser(
        scale,
        (testing.MockTensor("float32"), testing.MockTensor("float16"), 7, 2.0, 128),
        {},
        target,
    )
    assert f'ttg.target = "{spelled}"' in module.str_nodebug()


def test_arguments_by_name_and_options():
    kwargs = {
        "q": testing.MockTensor(gl.int32),
        "B": 256,
        "num_warps": 8,
        "factor": 3,
        "n": 16,
        "dtype": gl.int32,
    }
    text = testing.run_parser(scale, (testing.MockTensor(gl.int32),), kwargs).str_nodebug()
    assert '"ttg.num-warps" = 8' in text and "tensor<256xi32" in text
    assert "%arg2: i32 {tt.divisibility = 16 : i32}" in text


def test_a_parameter_named_like_an_option_is_that_option():
    @gluon.jit
    def kernel(num_warps: gl.constexpr):
        gl.static_assert(gl.num_warps() == num_warps)

    for args, kwargs in (((8,), {}), ((), {"num_warps": 8})):
        assert '"ttg.num-warps" = 8' in testing.run_parser(kernel, args, kwargs).str_nodebug()


def test_constant_and_tuple_arguments():
    @gluon.jit
    def kernel(pair, one, nothing):
        gl.store(pair[0], pair[1] + one)
        gl.static_assert(nothing is None)

    text = testing.run_parser(kernel, ((testing.MockTensor(gl.int32), 5), 1, None)).str_nodebug()
    assert text.count("%arg") and "%arg2" not in text, "1 and None are constants"


def test_integer_overflow_is_checked_on_request():
    arguments = (testing.MockTensor(gl.int32), testing.MockTensor(gl.int32), 7, 2, 128, gl.int32)
    plain = testing.run_parser(scale, arguments).str_nodebug()
    checked = testing.run_parser(
        scale, arguments, {"sanitize_overflow": True, "debug": True}
    ).str_nodebug()
    assert "tt.assert" not in plain and "tt.assert" in checked


def test_mistakes_in_the_call():
    with pytest.raises(GluonError, match="cannot be called so"):
        testing.run_parser(scale, (1,))
    with pytest.raises(OptionError, match="num_warps"):
        testing.run_parser(scale, (1, 2, 3, 4, 128), {"num_wraps": 1})
    with pytest.raises(TargetError):
        testing.run_parser(scale, (1, 2, 3, 4, 128), target="cuda:11")
    with pytest.raises(GluonError, match="not a kernel"):
        testing.run_parser(print)


def test_normal_form_forgets_how_it_was_written():
    @gluon.jit
    def twice(a):
        return a + a

    @gluon.jit
    def one(p):
        o = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
        unused = gl.zeros([128], gl.float32)  # noqa: F841
        gl.store(p + o, twice(o))

    @gluon.jit
    def other(p):
        o = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(p + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), o + o)

    args = (testing.MockTensor(gl.int32),)
    first, second = testing.ir_of(one, args), testing.ir_of(other, args)
    assert first.replace("@one", "@other") == second
    assert "loc(" not in first and "tt.call" not in first


@testing.filecheck_test
@gluon.jit
def test_filecheck_lines():
    # CHECK: tt.func public @test_filecheck_lines
    # CHECK: tt.make_range {end = 64 : i32, start = 0 : i32}
    gl.arange(0, 64, gl.BlockedLayout([1], [32], [4], [0]))


def test_filecheck_names_the_missing_line():
    @gluon.jit
    def kernel(p):
        # CHECK: tt.histogram
        gl.store(p, 1)

    with pytest.raises(testing.MatchError, match="tt.histogram") as caught:
        testing.run_filecheck_test(kernel, (testing.MockTensor(gl.int32),))
    assert isinstance(caught.value, ValueError) and "kernel does not match" in str(caught.value)
    testing.run_filecheck("text", "some module", "CHECK: module")


def _pytest(*arguments: str, paths: tuple[str, ...] = (), **environment: str) -> str:
    """The output of pytest in a process of its own, with the plugin loaded."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *arguments]
    if not any(
        entry.value == "gluon_core.testing.plugin"
        for entry in metadata.entry_points(group="pytest11")
    ):
        command[3:3] = ["-p", "gluon_core.testing.plugin"]
    path = os.pathsep.join([*paths, str(ROOT), *filter(None, sys.path)])
    env = {k: v for k, v in os.environ.items() if not k.startswith("GLUON_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**env, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    return f"exit {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.once
def test_place_fixture(tmp_path):
    (tmp_path / "test_it.py").write_text(
        """
import numpy, pytest
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def double(p, q, L: gl.constexpr):
    o = gl.arange(0, 128, L)
    gl.store(q + o, gl.load(p + o) * 2)

@pytest.mark.gluon_targets("hopper", "sim:gfx942")
def test_double(gluon_place):
    x, y = gluon_place.array(numpy.arange(128, dtype="float32")), gluon_place.empty(128, "float32")
    double[(1,)](x, y, gl.BlockedLayout([1], [gluon_place.target.warp_size], [4], [0]))
    assert (gluon_place.numpy(y) == 2 * numpy.arange(128)).all()
    print(gluon_place.target)
"""
    )
    output = _pytest(str(tmp_path), "-s", "--rootdir", str(tmp_path), "-c", os.devnull)
    assert "sim:sm_90" in output and "sim:gfx942" in output
    from gluon_core.registry.load import registry

    if any(b.device.target() for b in registry().backends.values() if not b.simulates):
        assert "3 passed" in output
    else:
        assert "2 passed, 1 skipped" in output and "no GPU: " in output, output
        assert "no GPU: " in _pytest(
            str(tmp_path), "--gluon-gpu", "--rootdir", str(tmp_path), "-c", os.devnull
        )


SUITE = ("--pyargs", "gluon_core.testing.conformance")


@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.campaign
@pytest.mark.parametrize("name", ["nvidia", "amd", "sim", "emu"])
def test_conformance_of_ours(name):
    output = _pytest(*SUITE, "--gluon-backend", name)
    assert output.startswith("exit 0") and " passed" in output, output[-3000:]


@pytest.mark.once
def test_conformance_of_a_third_party(tmp_path):
    info = tmp_path / "gluon_acme-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gluon-acme\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[gluon_core.backends]\nacme = gluon_acme.plugin\n")
    paths = (str(tmp_path), str(ROOT / "tests" / "plugin_acme"))
    output = _pytest(*SUITE, "--gluon-backend", "acme", paths=paths)
    assert output.startswith("exit 0") and "[acme:" not in output.partition("FAILED")[2], output[
        -3000:
    ]
    output = _pytest(*SUITE, "--gluon-backend", "sim", "-k", "acme1", paths=paths)
    assert output.startswith("exit 0"), output[-3000:]


@pytest.mark.once
def test_conformance_of_nobody():
    output = _pytest(*SUITE, "--gluon-backend", "nobody")
    assert not output.startswith("exit 0") and "no such backend" in output
