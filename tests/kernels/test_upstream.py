"""Each example with only its import lines changed is a kernel of Triton's own Gluon, and back."""

from __future__ import annotations

import pytest

from benchmarks import upstream
from gluon_core import testing
from gluon_core.cli.demo import examples_package
from gluon_core.cli.example import Placeholders
from gluon_core.plugins import registry

# `gl.portable` is ours alone.
FILES = [name for name in examples_package().FILES if name not in ("matmul", "attention")]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def pair(name):
    """The examples of a file under our imports and under upstream's. Both modules have one name,
    because mangled names of nested functions contain it."""
    text = (upstream.EXAMPLES / f"{name}.py").read_text()
    ours = upstream.load("example", text)
    theirs = upstream.load("example", upstream.to_upstream(text))
    return list(zip(ours.EXAMPLES, theirs.EXAMPLES))


def call(example, target):
    """Arguments and keywords as Triton's parser takes them."""
    import triton.language as tl
    from triton.runtime.jit import MockTensor

    config = example.configure(target, True)
    tuned = getattr(example.kernel, "configs", None)
    if tuned:
        config = {**config, **tuned[0].all_kwargs()}
    args = [
        value if isinstance(value, (int, float)) else MockTensor(getattr(tl, str(value.dtype)))
        for value in example.arguments(Placeholders(), True).values()
    ]
    return args, config


def kernel_of(example):
    kernel = example.kernel
    return kernel.fn if hasattr(kernel, "configs") else kernel


@pytest.mark.parametrize("spec", TARGETS)
@pytest.mark.parametrize("name", FILES)
def test_the_same_ttgir(name, spec):
    from triton._filecheck import run_parser
    from triton.backends.compiler import GPUTarget

    target = registry().target(spec)
    arch = target.architecture
    gpu_target = GPUTarget(arch.triton_backend, arch.arch, arch.warp_size)
    for ours, theirs in pair(name):
        if ours.lacks(target):
            continue
        args, config = call(ours, target)
        their_args, their_config = call(theirs, target)
        mine = testing.run_parser(kernel_of(ours), args, config, gpu_target)
        other = run_parser(kernel_of(theirs), their_args, their_config, gpu_target)
        expected = testing.normalise(other).replace("triton.experimental.gluon", "gluon_core")
        assert testing.normalise(mine) == expected
        assert any(op in expected for op in ("tt.store", "buffer_store", "tt.atomic_rmw"))


@pytest.mark.parametrize("name", FILES)
def test_from_upstream_to_ours(name):
    """A file written for upstream runs here once its import lines are changed."""
    text = (upstream.EXAMPLES / f"{name}.py").read_text()
    theirs = upstream.to_upstream(text)
    assert "triton.experimental" in theirs
    changed = [
        (a, b) for a, b in zip(text.splitlines(), theirs.splitlines(), strict=True) if a != b
    ]
    assert changed and all(b.startswith(("import ", "from ")) for _, b in changed)
    target = registry().target("sim:sm_90")
    for example in upstream.load("example", upstream.to_ours(theirs)).EXAMPLES:
        assert example.check(target).problem is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", FILES)
def test_both_run_on_the_gpu(name):
    from gluon_core.cli.example import Arrays, device_target

    target = device_target()
    if target is None:
        pytest.skip("there is no GPU here")
    for ours, theirs in pair(name):
        if ours.lacks(target):
            pytest.skip(f"{target} has no {', '.join(ours.lacks(target))}")
        results = []
        for example in (ours, theirs):
            args = example.arguments(Arrays(target), False)
            example.launch(args, example.configure(target))
            results.append(args[example.output].cpu())
        assert (results[0] == results[1]).all()
