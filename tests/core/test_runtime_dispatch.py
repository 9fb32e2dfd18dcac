"""Launching: which compiled kernel runs, where, and every way in which a call is refused."""

import linecache
import threading

import numpy as np
import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    DeviceError,
    GlobalVariableError,
    GluonError,
    KernelWarning,
    LaunchError,
    NotInKernelError,
    OptionError,
    RecompileError,
    TargetError,
)
from gluon_core.launch import place
from gluon_core.launch.key import Specialization
from gluon_core.plugin.device import Device
from gluon_core.registry.load import registry
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32, L64
from tests.core.launching import OnDevice, compiled_count, fresh, plug_in, scaled  # noqa: F401

pytestmark = pytest.mark.once


def test_a_launch_computes_and_answers_with_the_compiled_kernel():
    compiled = scaled()
    assert isinstance(compiled, gluon.CompiledKernel)
    assert compiled.target.simulated
    assert scaled() is compiled


def test_numpy_arrays_and_tensors_run_alike():
    scaled()
    scaled(x=np.arange(1000, dtype=np.float32))
    scaled()


def test_calls_that_differ_in_nothing_the_code_depends_on_share_it():
    first = scaled(n=1000)
    assert scaled(n=1001) is first
    assert scaled(n=1003, factor=5.0) is first
    second = scaled(n=992)
    assert second is not first
    assert scaled(n=512) is second
    assert scaled(n=992, num_warps=4) is second  # the default, spelled out
    assert scaled(n=992, num_warps=4) is second
    assert scaled(n=1000) is first
    assert compiled_count(kernels.scale) == 2


@pytest.mark.parametrize("warps", [2, 8])
def test_a_parameter_named_like_an_option_is_both(warps):
    y = np.zeros(256, np.int32)
    kernels.warps_told[1](y, num_warps=warps, target="sim:sm_90")
    assert (y == 11 * warps).all()


def test_dependencies_of_the_code_make_another():
    y = torch.zeros(16)
    for value in (1, True, 1.0, 2, -0.0, 0.0):
        kernels.put[(1,)](y, value)
        assert y[0] == float(value)
    assert compiled_count(kernels.put) == 6
    kernels.put[(1,)](torch.zeros(16, dtype=torch.float64), 2)
    assert compiled_count(kernels.put) == 7
    kernels.put[(1,)](y[1:], 2)
    assert compiled_count(kernels.put) == 8


@pytest.mark.parametrize("value", [1, 5, 16, True, 2.5, 2**31 - 1, 1, 5, False])
def test_a_runtime_value_keeps_its_type_and_value(value):
    y = torch.zeros(4, dtype=torch.float64)
    kernels.put_runtime[(1,)](y, value)
    kernels.put_runtime[(1,)](y, value)
    assert y[0].item() == value


def test_integers_of_every_width_and_sign_in_turn():
    y = torch.zeros(2, dtype=torch.int64)
    for value in (1, 3, 16, 2**31, 2**40, 2**31 + 16, -(2**31), -(2**31) - 1, 0, 1, 2**31):
        kernels.put_runtime[(1,)](y, value)
        assert y[0].item() == value


def test_tuples_and_named_tuples():
    y = torch.zeros(2, dtype=torch.int64)
    for both in ((3, 4), (1, 4), (16, 32), (2**40, 5), (3, 4)):
        kernels.pair[(1,)](y, both)
        assert y[0].item() == sum(both)


def test_do_not_specialize():
    y = torch.zeros(64)
    x = torch.ones(64)
    for n in (1, 16, 17):
        kernels.loose[(1,)](x, y, n, 64, L32)
        kernels.loose[(1,)](x[16:], y[1:], n, 64, L32)
    assert compiled_count(kernels.loose) == 1


@pytest.mark.parametrize("name", ["zz", 9])
@pytest.mark.parametrize("option", ["do_not_specialize", "do_not_specialize_on_alignment"])
def test_an_unknown_parameter_warns_at_its_line(option, name):
    with pytest.warns(
        KernelWarning, match=f"{option} of put names no parameter: {name!r}"
    ) as warned:
        gluon.jit(**{option: [name]})(kernels.put.fn)
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize("grid", [(1.0,), (1, 1.0), (1, 1.0, 1), (1.0, 1, 1), (1, 1, 1.0)])
def test_a_float_is_no_grid_after_the_integer_that_it_equals(grid):
    x = torch.ones(8)
    kernels.put[tuple(map(int, grid))](x, 2)
    kernels.put[tuple(map(int, grid))](x, 2)
    with pytest.raises(LaunchError, match="not a grid"):
        kernels.put[grid](x, 2)


def test_grids():
    x, y = torch.ones(8), torch.zeros(8)
    seen = []

    def grid(meta):
        seen.append(meta["n"])
        return (1,)

    for form in (1, (1,), [1, 1], (1, 1, 1), grid, lambda meta: 1):
        y.zero_()
        kernels.scale[form](x, y, 8, 3.0, 64, L32)
        assert y.sum() == 24
    assert seen == [8]
    y.zero_()
    for empty in (0, (0,), (4, 0), lambda meta: (0,)):
        kernels.scale[empty](x, y, 8, 3.0, 64, L32)
    assert y.sum() == 0


@pytest.mark.parametrize(
    "grid", [(), (1, 1, 1, 1), (1.5,), ("x",), None, -1, (2**31,), (1, 65536), (1, 1, 65536)]
)
@pytest.mark.parametrize("warm", [False, True])
def test_a_bad_grid_is_refused(grid, warm):
    x, y = torch.ones(8), torch.zeros(8)
    if warm:
        kernels.scale[1](x, y, 8, 3.0, 64, L32)
    with pytest.raises(LaunchError, match="grid"):
        kernels.scale[grid](x, y, 8, 3.0, 64, L32)


def test_arguments_that_kernels_cannot_take_are_named():
    x = torch.ones(8)
    with pytest.raises(ArgumentError, match=r"scale\(n\)"):
        kernels.scale[1](x, x, "many", 3.0, 64, L32)
    with pytest.raises(TypeError, match="missing"):
        kernels.scale[1](x, x)
    with pytest.raises(NotInKernelError, match=r"scale\[grid\]"):
        kernels.scale(x, x)


def test_numpy_arrays_must_be_contiguous_and_writable():
    good = np.ones((8, 8), np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    for bad, word in ((good.T, "contiguous"), (good[:, ::2], "contiguous"), (frozen, "writable")):
        with pytest.raises(ArgumentError, match=word) as caught:
            kernels.scale[1](good, bad, 8, 3.0, 64, L32)
        assert "scale(y)" in str(caught.value)
    kernels.scale[1](good, good.copy(), 8, 3.0, 64, L32)
    with pytest.raises(ArgumentError, match="contiguous"):  # also once a launch is remembered
        kernels.scale[1](good, good[:, ::2], 8, 3.0, 64, L32)


@pytest.mark.parametrize("same", [4.0, np.int32(4), 4 + 0j])
def test_an_option_that_equals_an_integer_is_one_after_every_launch(same):
    x = torch.ones(8)

    def launched(warps, **more):
        return kernels.scale[1](x, x, 8, 3.0, 64, L32, num_warps=warps, **more)

    kernels.scale.forget()
    first = launched(same)
    assert type(first.metadata.num_warps) is int and first.metadata.num_warps == 4
    assert launched(4) is first and launched(same) is first
    for wrong in (4.5, float("nan"), "4", 3.0):
        with pytest.raises(OptionError, match="num_warps must be a power of two"):
            launched(wrong)
    one = launched(4, num_ctas=True)
    assert type(one.metadata.num_ctas) is int and launched(4, num_ctas=1) is one
    kernels.scale.forget()


def test_unknown_options_and_targets_suggest_the_nearest():
    x = torch.ones(8)
    with pytest.raises(OptionError, match="num_warps"):
        kernels.scale[1](x, x, 8, 3.0, 64, L32, num_warp=4)
    with pytest.raises(TargetError, match="hopper"):
        kernels.scale[1](x, x, 8, 3.0, 64, L32, target="hoper")


def test_the_simulator_is_announced_once(capfd, monkeypatch):
    monkeypatch.setattr(place, "_noticed", set())
    scaled()
    scaled(n=64)
    output = capfd.readouterr().err
    assert output.count("simulator") == 1
    monkeypatch.setattr(place, "_noticed", set())
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    kernels.scale.forget()
    scaled()
    assert not capfd.readouterr().err


def test_the_target_decides_before_the_environment_and_the_environment_before_the_tensors(
    monkeypatch,
):
    assert scaled(target="sim:sm_80").target.name == "sim:sm_80"
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")
    assert scaled().target.name == "sim:sm_100"
    assert scaled(target="sim:sm_80").target.name == "sim:sm_80"
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_89")
    assert scaled().target.name == "sim:sm_89"
    assert scaled(num_warps=4).target.name == "sim:sm_89"
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    assert scaled(num_warps=4).target.name == "sim:sm_90"


def test_cpu_tensors_with_a_gpu_plugged_in_are_an_error(monkeypatch):
    plug_in(monkeypatch)
    with pytest.raises(DeviceError) as caught:
        scaled()
    assert ".cuda()" in str(caught.value) and "GLUON_TARGET=sim:sm_90" in str(caught.value)
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    scaled()
    with pytest.raises(DeviceError, match="cuda"):
        scaled(target="nvidia:sm_90")


def test_a_target_that_is_not_there_is_an_error(monkeypatch):
    with pytest.raises(DeviceError, match="no nvidia:sm_90|works on cuda"):
        scaled(target="sm_90")
    plug_in(monkeypatch)
    monkeypatch.setattr(Device, "tensor_device", None)
    monkeypatch.setattr(type(registry().backend("nvidia").device), "tensor_device", None)
    with pytest.raises(DeviceError, match="device 0 is not nvidia:sm_80"):
        scaled(target="sm_80")


def test_tensors_on_different_devices_are_an_error(monkeypatch):
    plug_in(monkeypatch, count=2)
    a, b, c = OnDevice("cuda", 0), OnDevice("cuda", 1), torch.zeros(4)
    with pytest.raises(DeviceError, match="x on cuda:0, y on cuda:1"):
        kernels.scale[1](a, b, 8, 3.0, 64, L32)
    with pytest.raises(DeviceError, match="different devices"):
        kernels.scale[1](a, c, 8, 3.0, 64, L32)
    with pytest.raises(DeviceError, match="works on CPU tensors"):
        kernels.scale[1](a, a, 8, 3.0, 64, L32, target="sim:sm_90")
    with pytest.raises(DeviceError, match="nvidia:sm_90 works on cuda tensors") as caught:
        kernels.scale[1](OnDevice("xpu"), OnDevice("xpu"), 8, 3.0, 64, L32)
    assert caught.value.got == "x on xpu:0, y on xpu:0"
    with pytest.raises(DeviceError, match="nvidia:sm_90 works on cuda tensors") as caught:
        kernels.scale[1](c, c, 8, 3.0, 64, L32)
    assert "with .cuda()" in caught.value.remedy and "GLUON_TARGET=sim:sm_90" in caught.value.remedy


def test_tensors_where_nothing_is_plugged_in_are_an_error(monkeypatch):
    device = type(registry().backend("nvidia").device)
    monkeypatch.setattr(device, "problem", lambda self: "The driver is too old.")
    for kind in ("cuda", "xpu", "meta"):
        with pytest.raises(DeviceError, match="works on CPU tensors") as caught:
            kernels.scale[1](OnDevice(kind), OnDevice(kind), 8, 3.0, 64, L32)
        assert caught.value.got == f"x on {kind}:0, y on {kind}:0"
        assert "The driver is too old." in caught.value.remedy
        assert "Installed backends: " in caught.value.remedy


def test_strict_mode_compares_while_another_thread_compiles(monkeypatch):
    x, y = torch.ones(64), torch.zeros(64)
    for n in (64, 33):
        kernels.scale[1](x, y, n, 2.0, 64, L32)
    monkeypatch.setenv("GLUON_NO_JIT", "1")
    differences = Specialization.differences

    def compared(self, other, names):
        thread = threading.Thread(
            target=lambda: kernels.scale.warmup(x, y, 64, 2.0, 128, L32, grid=(1,))
        )
        thread.start()
        thread.join()
        return differences(self, other, names)

    monkeypatch.setattr(Specialization, "differences", compared)
    with pytest.raises(RecompileError, match="num_warps"):
        kernels.scale[1](x, y, 64, 2.0, 64, L32, num_warps=8)


def test_strict_mode_says_which_argument_changed_the_key(monkeypatch):
    x, y = torch.ones(64), torch.zeros(64)
    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    monkeypatch.setenv("GLUON_NO_JIT", "1")
    kernels.scale[1](x, y, 32, 2.0, 64, L32)
    with pytest.raises(RecompileError) as caught:
        kernels.scale[1](x, y, 33, 2.0, 64, L32)
    assert caught.value.argument == "n"
    assert "i32 divisible by 16" in str(caught.value)
    with pytest.raises(RecompileError, match="LAYOUT"):
        kernels.scale[1](x, y, 64, 2.0, 64, gl.BlockedLayout([1], [32], [4], [0]))
    with pytest.raises(RecompileError, match="num_warps"):
        kernels.scale[1](x, y, 64, 2.0, 64, L32, num_warps=8)
    kernels.put.forget()
    with pytest.raises(RecompileError, match="launch of put would compile"):
        kernels.put[1](y, 5)
    kernels.put.warmup(torch.float32, 5)
    kernels.put[1](y, 5)
    assert y[0] == 5


def test_prepare_launches_its_own_call():
    x, y = torch.ones(64), torch.zeros(64)
    handle = kernels.scale.prepare(x, y, 64, 2.0, 64, L32, grid=(1,))
    assert y.sum() == 0
    handle(x, y, 64, 2.0, 64, L32)
    assert y.sum() == 128
    other = torch.zeros(64)
    handle(y, other, 64, 3.0, 64, L32)
    assert other.sum() == 384
    other.zero_()
    handle(y, other, 64, 3.0, 64, L32, grid=lambda meta: 0)
    assert other.sum() == 0


def test_warmup_compiles_without_tensors():
    compiled = kernels.scale.warmup(
        torch.float32, torch.float32, 64, 2.0, 64, L64, grid=(1,), target="gfx942"
    )
    assert compiled.asm["hsaco"][:4] == b"\x7fELF"
    again = kernels.scale.warmup(torch.float32, torch.float32, 48, 2.0, 64, L64, target="gfx942")
    assert again is compiled
    meta = torch.empty(4, device="meta")
    assert kernels.scale.warmup(meta, meta, 48, 2.0, 64, L32, target="sm_80").asm["ptx"]


def test_a_compiled_kernel_launches_itself():
    x, y = torch.ones(64), torch.zeros(64)
    compiled = kernels.scale[1](x, y, 64, 2.0, 64, L32)
    y.zero_()
    compiled[(1,)](x, y, 64, 4.0, 64, L32)
    assert y.sum() == 256
    with pytest.raises(ArgumentError, match="6 arguments"):
        compiled[(1,)](x, y)


def test_a_record_of_one_process_preloads_in_another():
    records = []
    runtime = triton.knobs.runtime
    runtime.jit_cache_hook = lambda **kwargs: records.append(
        kwargs["compile"]["specialization_data"]
    )
    try:
        kernels.put.warmup(torch.float32, 5, target="sm_80")
    finally:
        runtime.jit_cache_hook = None
    first = kernels.put.warmup(torch.float32, 5, target="sm_80")
    kernels.put.forget()
    assert kernels.put.preload(records[0]).hash == first.hash
    with pytest.raises(ArgumentError, match="another kernel"):
        kernels.scale.preload(records[0])


def test_autotune_and_heuristics():
    configs = [triton.Config({"BLOCK": size}, num_warps=4) for size in (128, 512)]
    tried = []

    def bench(call, quantiles):
        call()
        tried.append(1)
        return [float(len(tried))] * 3

    tuned = triton.autotune(configs, key=["n"], do_bench=bench)(
        triton.heuristics({"LAYOUT": lambda args: L32})(gluon.jit(kernels.scale.fn))
    )
    x, y = torch.ones(700), torch.zeros(700)
    tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, 700, 2.0)
    assert y.sum() == 1400 and len(tried) == 2
    y.zero_()
    tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, 700, 2.0)
    assert y.sum() == 1400 and len(tried) == 2 and tuned.best_config.kwargs["BLOCK"] == 128


def test_a_global_that_changed_is_an_error():
    y = torch.zeros(4)
    kernels.biased[1](y)
    assert y[0] == 3
    old = kernels.BIAS
    try:
        kernels.BIAS = gl.constexpr(3)
        kernels.biased[1](y)
        kernels.BIAS = gl.constexpr(4)
        with pytest.raises(GlobalVariableError, match="BIAS has changed"):
            kernels.biased[1](y)
    finally:
        kernels.BIAS = old
    kernels.biased[1](y)


def test_threads_may_launch_the_first_time_together():
    errors = []

    def work():
        try:
            scaled(n=512)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and compiled_count(kernels.scale) == 1


def test_parameters_may_have_any_name():
    x, y = torch.ones(8), torch.zeros(8)

    @gluon.jit
    def odd(grid, key, values, hit, options):
        gl.store(key, gl.load(grid) + values + hit + options)

    for _ in range(2):
        odd[(1,)](x, y, 2, 3, options=4)
        assert y[0] == 10
    odd.prepare(x, y, 2, 3, 4, grid=(1,))(x, y, 3, 3, 4)
    assert y[0] == 11


def test_defaults():
    @gluon.jit
    def kernel(y, a=2, b: gl.constexpr = 3):
        gl.store(y, a + b)

    y = torch.zeros(4)
    for _ in range(2):
        kernel[1](y)
        assert y[0] == 5
        kernel[1](y, 10, b=20)
        assert y[0] == 30


def test_the_decorated_function_still_looks_like_one():
    assert kernels.scale.is_gluon()
    assert kernels.scale.__name__ == "scale" and kernels.scale.arg_names[0] == "x"
    assert "scale" in repr(kernels.scale)
    with pytest.raises(ArgumentError):
        gluon.jit(5)
    with pytest.raises(GluonError):
        gluon.jit(eval("lambda x: x"))


def test_cells_of_a_notebook_redefine_functions():
    """Launches of a known form see a function that another cell defines again, and one that it calls."""
    space = {"__name__": "__main__", "gl": gl, "jit": gluon.jit, "np": np}

    def cell(number, text):
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), space)

    cell(1, "@jit\ndef inner(v):\n    return v + 10\n")
    cell(2, "@jit\ndef helper(v):\n    return inner(v) + 1\n")
    cell(3, "@jit\ndef kernel(x):\n    gl.store(x, helper(gl.load(x)))\n")
    x = np.zeros(1, np.float32)

    def launched():
        x[:] = 0
        space["kernel"][(1,)](x, target="sim:hopper")
        return x[0]

    assert [launched(), launched()] == [11, 11]
    cell(4, "@jit\ndef helper(v):\n    return inner(v) + 2\n")
    assert launched() == 12
    cell(5, "@jit\ndef inner(v):\n    return v + 20\n")
    assert launched() == 22
