"""Each example with only its import lines changed is a kernel of Triton's own Gluon, and back."""

from __future__ import annotations

import ast
from types import ModuleType

import numpy as np
import pytest

from benchmarks import amd, upstream
from gluon_core import testing
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from tests.kernels import cases

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

# `gl.portable`, `gl.target` and rings are ours alone, and kernels for AMD's units are below.
FILES = [
    name
    for name in cases.FILES
    if not any(
        word in upstream.source_of(name)
        for word in ("gl.portable", "gl.target", "AMDWMMALayout", "tma_ring")
    )
]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
STORES = ("tt.store", "buffer_store", "tt.atomic_rmw", "async_tma_copy_local_to_global")
SIMULATED = ("sm_90", "sm_100", "gfx942", "gfx950", "gfx1201", "gfx1250")


def pair(name):
    """The examples of a file under our imports and under upstream's. Both modules have one name,
    because mangled names of nested functions contain it."""
    text = upstream.source_of(name)
    ours = upstream.load("example", text)
    theirs = upstream.load("example", upstream.to_upstream(text))
    return list(zip(ours.EXAMPLES, theirs.EXAMPLES))


class Shapes:
    """Replaces `Arrays`: tensors without elements, of which either package makes descriptors."""

    def random(self, shape, dtype="float32"):
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def integers(self, shape, low, high, dtype="uint8"):
        return self.random(shape, dtype)

    empty = random


def call(example, target):
    """Arguments and keywords as Triton's parser takes them."""
    config = example.configure(target, True)
    args = example.values(example.arguments(Shapes(), True), config)
    tuned = getattr(example.kernel, "configs", None)
    if tuned:
        config = {**config, **tuned[0].all_kwargs()}
    return args, config


def kernel_of(example):
    kernel = example.kernel
    return kernel.fn if hasattr(kernel, "configs") else kernel


@pytest.mark.sampled(12)
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
        assert any(op in expected for op in STORES)


def lacking(module, text):
    """The names of `text` that the packages of Triton do not have which `module` imports."""
    for node in ast.walk(ast.parse(text)):
        names = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            continue
        value, path = getattr(module, node.id, None), node.id
        for name in names:
            if not (isinstance(value, ModuleType) and value.__name__.startswith("triton.")):
                break
            path += f".{name}"
            if not hasattr(value, name):
                yield f"line {node.lineno}: {path}"
                break
            value = getattr(value, name)


def test_upstream_has_every_name_of_the_examples():
    """Those of host code, too, which no comparison of modules runs."""
    gfx942 = registry().target("gfx942")
    texts = {name: upstream.source_of(name) for name in FILES}
    for name in amd.FILES:
        texts[name] = upstream.without_our_own(upstream.source_of(name), gfx942, 4)
    if not triton_at_least(3, 8):
        del texts["matmul_tdm"]  # imports what came later
    for name, text in texts.items():
        text = upstream.to_upstream(text)
        module = upstream.load("example", text)
        assert not list(lacking(module, text)), name
        for example in module.EXAMPLES:
            for large in (False, True):
                config = example.configure(gfx942, large)
                assert example.grid(example.arguments(Shapes(), large), config)


@pytest.mark.once
@pytest.mark.parametrize("name", FILES)
def test_from_upstream_to_ours(name):
    """A file written for upstream runs here once its import lines are changed."""
    text = upstream.source_of(name)
    theirs = upstream.to_upstream(text)
    assert "triton.experimental" in theirs
    changed = [
        (a, b) for a, b in zip(text.splitlines(), theirs.splitlines(), strict=True) if a != b
    ]
    assert changed and all(b.startswith(("import ", "from ")) for _, b in changed)
    for example in upstream.load("example", upstream.to_ours(theirs)).EXAMPLES:
        targets = [registry().target(f"sim:{spec}") for spec in SIMULATED]
        target = next(target for target in targets if not example.lacks(target))
        assert example.check(target).problem is None


AMD = [
    (file, index, example.name, target)
    for file, index, example, target in amd.examples()
    # Before 3.8 upstream knows neither ".cs" nor linear layouts in copies to LDS, and ours holds products of WMMA in
    # their block, which its LLVM moves behind masks (docs/known-compiler-bugs.md).
    if triton_at_least(3, 8)
    or not (file in ("memcpy_cdna", "matmul_rdna4") or "CDNA4" in example.name)
]


@pytest.mark.once
@pytest.mark.sampled(20)
@pytest.mark.parametrize("file, index, name, target", AMD)
def test_the_same_machine_code_for_amd(file, index, name, target):
    mine = amd.machine_code(file, index, target, False)
    assert mine == amd.machine_code(file, index, target, True)
    assert any(one.startswith(("buffer_store", "global_store")) for one in mine)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FILES)
def test_both_run_on_the_gpu(name):
    from gluon_report.example import Arrays, device_target

    target = device_target()
    if target is None:
        pytest.skip("no GPU")
    for ours, theirs in pair(name):
        if ours.lacks(target):
            pytest.skip(f"{target} has no {', '.join(ours.lacks(target))}")
        results = []
        for example in (ours, theirs):
            args = example.arguments(Arrays(target), False)
            example.launch(args, example.configure(target))
            results.append(args[example.output].cpu())
        mine, other = (np.asarray(r.float()) for r in results)
        if ours.any_order:  # float atomics
            assert ours.difference(mine, other) is None
        else:
            np.testing.assert_array_equal(mine, other)
