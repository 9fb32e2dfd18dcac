"""Triton's own tools on a machine without a GPU, when GLUON_TARGET names a simulated target."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")


def script(tmp_path, code: str, target: str):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    environment = {**os.environ, "GLUON_TARGET": target, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )


AUTOTUNED = """
    import torch, triton
    import gluon_core as gluon
    from gluon_core import language as gl

    @triton.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (256, 512)], key=["n"])
    @gluon.jit
    def copy(src, dst, n, BLOCK: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [4], [0])
        at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
        gl.store(dst + at, gl.load(src + at, mask=at < n), mask=at < n)

    print(triton.runtime.driver.active.get_current_target())
    x, y = torch.randn(1000), torch.zeros(1000)
    copy[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, 1000)
    assert torch.equal(x, y)
    print(copy.best_config.kwargs["BLOCK"] in (256, 512))
    print(triton.testing.do_bench(lambda: copy[(4,)](x, y, 1000), warmup=1, rep=1) > 0)
"""


@pytest.mark.parametrize("target, arch", [("sim:sm_80", "80"), ("sim:gfx942", "gfx942")])
def test_autotune_and_do_bench_work_without_a_gpu(tmp_path, target, arch):
    done = script(tmp_path, AUTOTUNED, target)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert arch in lines[0]
    assert lines[1:3] == ["True", "True"]


@pytest.mark.parametrize("target", ["", "sm_90"])
def test_no_driver_unless_a_simulated_target_is_asked_for(tmp_path, target):
    done = script(
        tmp_path,
        """
        import triton
        import gluon_core as gluon
        gluon.jit
        triton.runtime.driver.active
        """,
        target,
    )
    assert "0 active drivers" in done.stderr
