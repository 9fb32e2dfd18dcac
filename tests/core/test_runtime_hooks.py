"""Triton's hooks on launches and compilations."""

import pytest
import torch
import triton

import gluon_core as gluon
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32
from tests.core.launching import fresh, scaled  # noqa: F401 - a fixture

pytestmark = pytest.mark.once


def test_launch_hooks_see_every_launch():
    x, y = torch.ones(64), torch.zeros(64)
    launches = []

    def enter(metadata):
        launches.append(("enter", metadata.get()["name"]))

    def leave(metadata):
        launches.append(("leave", metadata.get()["name"]))

    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    runtime = triton.knobs.runtime
    runtime.launch_enter_hook.add(enter)
    runtime.launch_exit_hook.add(leave)
    try:
        kernels.scale[1](x, y, 64, 2.0, 64, L32)
    finally:
        runtime.launch_enter_hook.remove(enter)
        runtime.launch_exit_hook.remove(leave)
    kernels.scale[1](x, y, 64, 2.0, 64, L32)
    assert launches == [("enter", "scale"), ("leave", "scale")]


def test_launch_metadata_reaches_the_hooks():
    def described(grid, metadata, args):
        return {"name": f"copy of {args['n']}", "bytes": 4 * args["n"]}

    kernel = gluon.jit(launch_metadata=described)(kernels.loose.fn)
    x, y, names = torch.ones(64), torch.zeros(64), []
    runtime = triton.knobs.runtime
    hook = lambda metadata: names.append(metadata.get())  # noqa: E731
    runtime.launch_enter_hook.add(hook)
    try:
        kernel[1](x, y, 64, 64, L32)
    finally:
        runtime.launch_enter_hook.remove(hook)
    assert names[0]["name"] == "copy of 64" and names[0]["bytes"] == 256


def test_pre_run_hooks_see_every_launch():
    kernel = gluon.jit(kernels.loose.fn)
    x, y, seen = torch.ones(64), torch.zeros(64), []
    kernel[1](x, y, 64, 64, L32)
    kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(args[2]))
    kernel[1](x, y, 32, 64, L32)
    assert seen == [32]


def test_tritons_compile_hooks_are_called():
    seen = []

    def hook(**event):
        seen.append(
            (event["fn"].name, event["compile"]["signature"]["n"], event["is_manual_warmup"])
        )

    runtime = triton.knobs.runtime
    runtime.jit_post_compile_hook = hook
    runtime.jit_cache_hook = lambda **event: seen.append("before")
    try:
        scaled()
        scaled()
    finally:
        runtime.jit_post_compile_hook = runtime.jit_cache_hook = None
    assert seen == ["before", ("scale", "i32", False)]
