"""`gluon.torch.with_gradient`, by `torch.autograd.Function` and by the nodes in C++; and the build of the latter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch

import gluon_core as gluon
from gluon_torch import shortcut
from tests.torch.squares import operands, refuses_second_gradients

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


def scaled_square(again: bool = True):
    """Return `f(x, factor, nothing)`, x * x * factor of tensors, with its gradients."""

    def forward(ctx, x, factor, nothing):
        assert not torch.is_grad_enabled() and nothing is None
        ctx.to_save = (x, factor, None)
        return x * x * factor

    def gradients(ctx, grad):
        x, factor, nothing = ctx.saved_tensors
        assert nothing is None and len(ctx.needs_input_grad) == 3
        to_x, to_factor, _ = ctx.needs_input_grad
        return 2 * x * factor * grad if to_x else None, x * x * grad if to_factor else None, None

    return gluon.torch.with_gradient(forward, gradients, gradients if again else None)


def test_gradients_of_all_orders():
    x, factor = operands()
    call = scaled_square()
    of_both = lambda x, factor: call(x, factor, None)  # noqa: E731
    assert torch.autograd.gradcheck(of_both, (x, factor))
    assert torch.autograd.gradgradcheck(of_both, (x, factor))
    assert torch.autograd.gradcheck(lambda x: call(x, factor.detach(), None), (x,))
    assert torch.autograd.gradcheck(lambda f: call(x.detach(), f, None), (factor,))


def test_gradients_without_gradients_say_so():
    refuses_second_gradients(scaled_square(False))


def test_gradients_that_depend_on_nothing_need_none():
    def forward(ctx, x, factor):
        ctx.to_save = (factor,)
        return x * factor

    call = gluon.torch.with_gradient(forward, lambda ctx, grad: grad * ctx.saved_tensors[0])
    x, factor = operands()
    out = call(x, factor.detach())
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
    assert not grad.requires_grad
    torch.testing.assert_close(grad, factor.detach())


def test_a_graph_is_used_once():
    x, factor = operands()
    out = scaled_square()(x, factor, None).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_kept_tensors_must_not_change():
    x, factor = operands()
    inner = x * 1
    out = scaled_square()(inner, factor, None).sum()
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_hooks_see_kept_tensors_and_gradients():
    x, factor = operands()
    kept, seen = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = scaled_square()(x, factor, None)
    assert len(kept) == 2
    out.register_hook(lambda grad: seen.append(grad) or grad * 2)
    out.sum().backward()
    assert torch.equal(seen[0], torch.ones(3, 4, dtype=torch.float64))
    torch.testing.assert_close(x.grad, 4 * x * factor)


def test_checkpoints_compute_again():
    x, factor = operands()
    calls = []
    call = scaled_square()
    out = torch.utils.checkpoint.checkpoint(
        lambda x: calls.append(1) or call(x, factor, None), x, use_reentrant=False
    )
    out.sum().backward()
    assert len(calls) == 2
    torch.testing.assert_close(x.grad, 2 * x * factor)


def test_no_result_outlives_its_graph():
    def forward(ctx, x):
        result = x.exp()
        ctx.to_save = (result,)
        return result

    out = gluon.torch.with_gradient(forward, lambda ctx, grad: grad * ctx.saved_tensors[0])(
        operands()[0]
    )
    held = weakref.ref(out)
    del out
    assert held() is None


def test_errors_of_formulas_reach_the_caller():
    def broken(ctx, *arguments):
        raise ValueError("broken")

    def fine(ctx, x):
        ctx.to_save = ()
        return x * 2

    x = operands()[0]
    with pytest.raises(ValueError, match="broken"):
        gluon.torch.with_gradient(broken, broken)(x)
    out = gluon.torch.with_gradient(fine, broken)(x)
    with pytest.raises(ValueError, match="broken"):
        out.sum().backward()


@pytest.mark.campaign
def test_the_nodes_in_c_do_the_same(tmp_path):
    """The tests above, with the compiled file; its build takes a quarter of a minute of a core."""
    environment = {
        **os.environ,
        "GLUON_TORCH_SHORTCUT": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    built = subprocess.run(
        [sys.executable, "-m", "gluon_torch.shortcut"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    probe = "import gluon_torch.shortcut as s; assert s.loaded() is not None; import gluon_core as g; assert type(g.torch.route) is type(len)"
    subprocess.run([sys.executable, "-c", probe], env=environment, check=True)
    files = [f"tests/torch/test_{name}.py" for name in ("shortcut", "sequences", "prepared")]
    files += ["tests/kernels/norm", "tests/kernels/topk/test_cumsum.py"]
    again = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stdout[-4000:]


WAYS = """
import torch, gluon_core as gluon
from torch.utils._python_dispatch import TorchDispatchMode
ways, x, p = {}, torch.ones(3, device="cuda"), torch.nn.Parameter(torch.ones(3, device="cuda"))
def ask(name, *tensors):
    ways.setdefault(name, gluon.torch.route(*(tensors or (x, None, p))))
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        return function(*arguments, **(keywords or {}))
class Other(torch.Tensor): pass
ask("plain", x), ask("gradient"), ask("subclass", x.as_subclass(Other)), ask("host", x.cpu()), ask("number", 1)
ask("negative", torch.ones(2, dtype=torch.complex64, device="cuda").conj().imag)
for name, mode in {
    "no_grad": torch.no_grad(), "inference": torch.inference_mode(), "autocast": torch.autocast("cuda"), "device": torch.device("meta"),
    "dispatch": Mode(), "forward": torch.autograd.forward_ad.dual_level(), "profiler": torch.profiler.profile(), "debug": gluon.torch.debug(),
}.items():
    with mode:
        ask(name)
torch.vmap(lambda y: ask("vmap") or y)(x)
torch.func.grad(lambda y: ask("grad") or y.sum())(x)
torch.jit.trace(lambda y: ask("trace") or y * 2, x, check_trace=False)
ask("after")
print(type(gluon.torch.route) is type(len), ways)
"""


@pytest.mark.gpu
@pytest.mark.campaign
def test_both_ways_of_a_call_are_equal(tmp_path):
    environment = {
        **os.environ,
        "GLUON_TORCH_SHORTCUT": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-m", "gluon_torch.shortcut"], env=environment, check=True)
    ways = []
    for folder in (str(tmp_path), "0"):
        command = [sys.executable, "-W", "ignore", "-c", WAYS]
        environment["GLUON_TORCH_SHORTCUT"] = folder
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        ways.append(done.stdout.split(" ", 1))
    assert [way[0] for way in ways] == ["True", "False"]
    assert ways[0][1] == ways[1][1]


# -- the build, with compilers that take no time -----------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TORCH_SHORTCUT", str(tmp_path / "built"))
    return tmp_path


def compiler(folder, monkeypatch, text):
    path = folder / "cxx"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nresult = sys.argv[sys.argv.index('-o') + 1]\n{text}\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def wait_for(path):
    for _ in range(300):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {path}")


def test_a_build_in_the_background(folder, monkeypatch):
    compiler(folder, monkeypatch, "open(result, 'w').write('built')")
    result = shortcut.target()
    assert result.parent == folder / "built" and not result.parent.exists()
    shortcut.build_soon()
    wait_for(result)
    assert result.read_text() == "built"
    assert [path.name for path in result.parent.glob("*.tmp")] == []


def test_a_build_that_fails_is_not_tried_again(folder, monkeypatch):
    compiler(folder, monkeypatch, "sys.exit('no such header')")
    result = shortcut.target()
    shortcut.build_soon()
    log = result.with_suffix(".log")
    wait_for(log)
    assert "no such header" in log.read_text() and not result.exists()
    compiler(folder, monkeypatch, "open(result, 'w').write('built')")
    shortcut.build_soon()
    time.sleep(0.5)
    assert not result.exists()
    assert shortcut.build() == "" and result.exists() and not log.exists()  # but when asked for


def test_a_build_under_way_is_left_alone(folder, monkeypatch):
    compiler(folder, monkeypatch, "open(result, 'w').write('built')")
    result = shortcut.target()
    result.parent.mkdir()
    log = result.with_suffix(".log")
    log.touch()
    shortcut.build_soon()
    time.sleep(0.5)
    assert not result.exists()
    os.utime(log, (1, 1))  # the process that built it has ended long ago
    shortcut.build_soon()
    wait_for(result)


def test_a_build_that_is_impossible_is_left_out(folder, monkeypatch):
    monkeypatch.setenv("CXX", str(folder / "missing"))
    assert "no C++ compiler" in shortcut.build()
    monkeypatch.setenv("GLUON_TORCH_SHORTCUT", "0")
    assert shortcut.target() is None
    shortcut.build_soon()
    assert "GLUON_TORCH_SHORTCUT=0" in shortcut.build()
    occupied = folder / "file"
    occupied.touch()
    monkeypatch.setenv("GLUON_TORCH_SHORTCUT", str(occupied / "in"))
    shortcut.build_soon()


def test_a_file_that_does_not_fit_is_ignored(folder, monkeypatch):
    monkeypatch.setattr(shortcut, "_module", None)
    monkeypatch.setattr(shortcut, "_unfit", None)
    monkeypatch.setattr(shortcut, "_waiting", [])
    result = shortcut.target()
    result.parent.mkdir()
    result.write_bytes(b"no library")
    taken = []
    shortcut.when_loaded(taken.append)
    shortcut.seek()
    assert shortcut.loaded() is None and not taken


def test_functions_made_before_the_build_use_it(folder, monkeypatch):
    class Module:
        def function(self, forward, backward, context):
            return lambda *arguments: "in C++"

    monkeypatch.setattr(shortcut, "_module", None)
    monkeypatch.setattr(shortcut, "_waiting", [])
    x, factor = operands()
    call = scaled_square()
    assert torch.equal(call(x, factor, None), x * x * factor)
    monkeypatch.setattr(shortcut, "_module", Module())
    shortcut.seek()
    assert call(x, factor, None) == "in C++" == scaled_square()(x, factor, None)
