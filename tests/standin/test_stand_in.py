"""Triton's own tools on a machine without a GPU, when GLUON_TARGET names a simulated target."""

import os
import textwrap

import pytest

from tests import warm

# Triton asks a driver for little, and for the same in its releases.
pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]

pytest.importorskip("torch")


# No GPU, also where there is one.
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def script(tmp_path, code: str, target: str, torch: bool = True):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    environment = {**os.environ, **HIDDEN, "GLUON_TARGET": target}
    return warm.run([path], env=environment, timeout=120, torch=torch)


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


@pytest.mark.parametrize(
    "target, arch",
    [("sim:sm_80", "80"), pytest.param("sim:gfx942", "gfx942", marks=pytest.mark.campaign)],
)
def test_autotune_and_do_bench_work_without_a_gpu(tmp_path, target, arch):
    done = script(tmp_path, AUTOTUNED, target)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert arch in lines[0]
    assert lines[1:3] == ["True", "True"]


@pytest.mark.parametrize("target", ["", pytest.param("sm_90", marks=pytest.mark.campaign)])
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


DRIVER_AFTER_IMPORT = """
    import gluon_core, triton

    print(triton.runtime.driver.active.get_current_target())

    @triton.jit
    def plain(x):
        triton.language.store(x + 1, 7)

    import torch
    x = torch.zeros(4)
    plain[(1,)](x)
    print(x.tolist())
"""


def test_importing_the_package_is_enough(tmp_path):
    done = script(tmp_path, DRIVER_AFTER_IMPORT, "sim:sm_80")
    assert done.returncode == 0, done.stderr
    target, values = done.stdout.strip().split("\n")
    assert "80" in target and values == "[0.0, 7.0, 0.0, 0.0]"


WITHOUT_TORCH = """
    import sys
    import numpy as np
    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def put(x): gl.store(x, 7)

    x = np.zeros(1, np.int32)
    put[(1,)](x)
    assert x[0] == 7 and "torch" not in sys.modules

    import triton
    print(triton.runtime.driver.active.get_current_target())
    print(type(triton.runtime.driver.active).__name__)
"""


def test_torch_is_not_imported_before_somebody_asks_for_the_driver(tmp_path):
    done = script(tmp_path, WITHOUT_TORCH, "sim:sm_80", torch=False)
    assert done.returncode == 0, done.stderr
    target, driver = done.stdout.strip().split("\n")
    assert "80" in target and driver == "StandInDriver"


FOR_A_GPU = """
    import torch, triton
    import gluon_core as gluon
    from gluon_core import language as gl

    DEVICE = "cuda"

    @gluon.jit
    def add(x, y, out, n, BLOCK: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [4], [0])
        at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
        gl.store(out + at, gl.load(x + at, at < n) + gl.load(y + at, at < n), at < n)

    def test_add():
        torch.manual_seed(0)
        seeded = torch.Generator(device=DEVICE).manual_seed(1)
        x = torch.rand(1000, device=DEVICE, generator=seeded)
        assert isinstance(seeded, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
        y = torch.rand(1000).cuda().to(0).to("cuda", torch.float32).pin_memory()
        out = torch.empty_like(x, device=torch.device("cuda", 0))
        assert x.is_cuda and y.is_pinned()
        started = torch.cuda.Event(enable_timing=True)
        started.record()
        with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            zeros = torch.zeros(3)
        add[(4,)](x, y, out, 1000, BLOCK=256)
        torch.cuda.synchronize()
        torch.testing.assert_close(out, x + y)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        print(torch.cuda.get_device_capability(), torch.version.hip)
        print(torch.cuda.get_device_properties(DEVICE).multi_processor_count)
        assert gluon.multiprocessors(x) == torch.cuda.get_device_properties(x.device).multi_processor_count
        print(triton.testing.do_bench(lambda: add[(4,)](x, y, out, 1000, BLOCK=256), rep=1) > 0)

    if __name__ == "__main__":
        test_add()
"""


@pytest.mark.parametrize(
    "target, printed",
    [
        ("sim:hopper", ["(9, 0) None", "132"]),
        pytest.param("sim:gfx942", ["(9, 4) 7.0.0", "304"], marks=pytest.mark.campaign),
    ],
)
def test_a_script_for_a_gpu_runs_unchanged(tmp_path, target, printed):
    path = tmp_path / "for_a_gpu.py"
    path.write_text(textwrap.dedent(FOR_A_GPU))
    command = ["-m", "gluon_core.standin", "--target", target, str(path)]
    environment = {**os.environ, **HIDDEN}
    done = warm.run(command, timeout=120, cwd=tmp_path, env=environment, torch=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [*printed, "True"]


def test_a_suite_for_a_gpu_runs_unchanged(tmp_path):
    (tmp_path / "conftest.py").write_text("import torch; assert torch.cuda.is_available()\n")
    (tmp_path / "test_for_a_gpu.py").write_text(textwrap.dedent(FOR_A_GPU))
    command = ["-m", "pytest", "-q", "--gluon-standin", "sim:sm_80", tmp_path]
    done = warm.run(command, timeout=120, cwd=tmp_path, env={**os.environ, **HIDDEN}, torch=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


FOR_ITS_DEVICE = """
    import pytest
    import torch
    import triton
    import triton.language as tl
    from triton.runtime import _allocation

    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def double(x, n, BLOCK: gl.constexpr):
        i = gl.arange(0, BLOCK, gl.portable.blocked_layout([BLOCK], gl.float32))
        gl.store(x + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)

    @triton.jit
    def copy(x, out, n, BLOCK: tl.constexpr):
        source = tl.make_tensor_descriptor(x, [n, n], [n, 1], [BLOCK, BLOCK])
        target = tl.make_tensor_descriptor(out, [n, n], [n, 1], [BLOCK, BLOCK])
        target.store([0, 0], source.load([0, 0]))

    def test_tensors_of_the_host_are_refused():
        x = torch.ones(64, device="cuda")
        double[(1,)](x, 64, BLOCK=64)
        with pytest.raises(gluon.errors.DeviceError, match=r"host memory.*\\.cuda\\(\\)"):
            double[(1,)](x.cpu(), 64, BLOCK=64)
        assert (x == 2).all()

    def test_parameters_of_a_module_move():
        layer = torch.nn.Linear(8, 8)
        with pytest.raises(gluon.errors.DeviceError, match="host memory"):
            double[(1,)](layer.weight, 64, BLOCK=64)
        weight = layer.weight.detach().clone()
        double[(1,)](layer.to("cuda").weight, 64, BLOCK=64)
        assert torch.equal(layer.weight, weight * 2)

    def test_a_stream_sleeps_on():
        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(side):
            begin.record()
            torch.cuda._sleep(20_000_000)
            double[(1,)](torch.ones(64, device="cuda"), 64, BLOCK=64)
            end.record()
        assert not side.query() and not end.query() and begin.query() and other.query()
        other.wait_event(end)
        assert not other.query()
        side.synchronize()
        assert side.query() and begin.elapsed_time(end) > 5
        torch.cuda.synchronize()
        assert other.query()

    def test_scratch_memory_is_that_of_the_program():
        asked = []

        def allocate(size, alignment, stream):
            asked.append(stream)
            return torch.empty(size, dtype=torch.int8, device="cuda")

        triton.set_allocator(allocate)
        x = torch.randn(32, 32, device="cuda")
        out = torch.zeros_like(x)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            copy[(1,)](x, out, 32, BLOCK=32)
        assert torch.equal(x, out) and asked == [side.cuda_stream]
"""


@pytest.mark.once
def test_an_emulated_device_has_streams_and_memory_of_its_own(tmp_path):
    (tmp_path / "test_for_its_device.py").write_text(textwrap.dedent(FOR_ITS_DEVICE))
    command = ["-m", "pytest", "-q", "--gluon-standin", "emu:sm_90", tmp_path]
    done = warm.run(command, timeout=120, cwd=tmp_path, env={**os.environ, **HIDDEN}, torch=True)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("target, words", [("sm_90", "simulated"), ("sim:hoper", "hopper")])
def test_functions_without_a_stand_in_are_named(tmp_path, target, words):
    done = warm.run(
        ["-m", "gluon_core.standin", "--target", target, "x.py"], timeout=120, torch=True
    )
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_script_that_is_not_there():
    command = ["-m", "gluon_core.standin", "nowhere.py"]
    done = warm.run(command, timeout=120, env={**os.environ, **HIDDEN}, torch=True)
    assert done.returncode == 2 and done.stderr.strip().endswith("no such file: nowhere.py")


def test_a_script_that_fails_shows_its_own_frames(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("def f():\n    1 / 0\n\n\nf()\n")
    command = ["-m", "gluon_core.standin", "--target", "sim:hopper", str(path)]
    done = warm.run(command, timeout=120, env={**os.environ, **HIDDEN}, torch=True)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "runpy" not in done.stderr
    assert done.stderr.count('File "') == 2
