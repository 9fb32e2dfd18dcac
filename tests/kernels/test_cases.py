"""Every case of a kernel: on the simulator, compiled for each vendor, and on a GPU where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gluon_core.errors import GluonError
from gluon_core.registry.load import registry
from gluon_report.example import Arrays, device_target
from tests.kernels import cases
from tests.kernels.sizes import example_sized

pytestmark = pytest.mark.sampled(4)

SIMULATED = ("sim:sm_75", "sim:sm_90", "sim:gfx942", "sim:gfx950", "sim:gfx1100")


@pytest.mark.once
def test_every_file_is_a_case():
    others = {"__init__", "gemm_parts"}
    on_disk = {p.stem for p in Path(cases.__file__).parent.glob("*.py")} - others
    assert on_disk == set(cases.FILES)


# Errors before any op: types and descriptors of arguments, registers of partitions,
# the size of a cluster.
EARLIER = (
    "cannot run that many blocks together",
    "not supported in this architecture",
    "TDM does not write this layout",
    "cannot give registers to each other",
)


@contextlib.contextmanager
def refused(example, target):
    """An error that says what a kernel needs and `target` lacks, be it the first thing or another."""
    with pytest.raises(GluonError) as caught:
        yield
    text = str(caught.value)
    named = re.search(r"needs ((?:nvidia|amd)\.\w+) ", text)
    if named:
        assert not target.has(named[1]), text
        lacking = example.lacks(target)[0].split(".")[0]
        assert named[1].startswith(lacking + "."), text
    else:
        assert any(words in text for words in EARLIER), text


def somewhere(example):
    """A simulated target that the kernel can run on."""
    specs = (*SIMULATED[1:], "sim:sm_90", "sim:sm_100", "sim:gfx1200", "sim:gfx1250")
    targets = map(registry().target, specs)
    return next(target for target in targets if not example.lacks(target))


@pytest.mark.once
@pytest.mark.sampled(28)
@pytest.mark.parametrize("spec", SIMULATED)
def test_simulated(example, spec):
    target = registry().target(spec)
    if example.lacks(target):
        with refused(example, target):
            example.check(target)
        return
    assert example.check(target).problem is None


@pytest.mark.once
@pytest.mark.sampled(120)
@pytest.mark.parametrize("spec", cases.TARGETS)
def test_compiled(example, spec):
    target = registry().target(spec)
    if example.lacks(target):
        with refused(example, target):
            example.compile(target)
        return
    report = example.compile(target).report()
    assert report.instruction_count == sum(report.instruction_mix.values()) > 5
    assert report.registers > 0
    assert report.spills == 0


# Kernels that exceeded 256 registers, with one Triton or another, before targets had their own choices.
TIGHT = (
    ("matmul, stream-K", "gfx1100"),
    ("matmul, stream-K", "gfx1200"),
    ("attention", "gfx1100"),
    ("matmul, split-K", "gfx1200"),
)


@pytest.mark.once
@pytest.mark.sampled(14)
@pytest.mark.parametrize("name, spec", TIGHT)
def test_portable_kernels_fit_rdna(name, spec):
    (example,) = (e for e in cases.load_cases().values() if e.name == name)
    assert example.compile(registry().target(spec)).report().spills == 0


def machine_code(name, spec):
    examples = cases.load_cases()
    (example,) = (e for e in examples.values() if e.name == name)
    asm = example.compile(registry().target(spec)).asm
    return asm["ptx"] if "ptx" in asm else asm["amdgcn"]


@pytest.mark.sampled(8)
@pytest.mark.once
@pytest.mark.parametrize(
    "name, spec, instruction",
    [
        ("memcpy 1-D", "sm_90", "ld.global.v4"),
        ("memcpy 2-D, by rows", "sm_90", "ld.global.v4"),
        ("memcpy 2-D, by columns", "sm_90", "st.global.v4"),
        ("transpose copy", "sm_90", "ld.global.v4"),
        ("transpose copy", "sm_90", "st.global.v4"),
        ("memcpy 1-D", "gfx942", "global_load_dwordx4"),
        ("add, double-buffered", "sm_80", "cp.async.cg.shared.global"),
        ("matmul", "sm_80", "mma.sync.aligned.m16n8k16"),
        ("matmul", "sm_80", "cp.async.cg.shared.global"),
        ("matmul", "sm_90", "wgmma.mma_async.sync.aligned.m64n256k16"),
        ("matmul", "sm_90", "cp.async.bulk.tensor.2d.shared::"),
        ("matmul", "sm_100", "tcgen05.mma"),
        ("matmul", "gfx942", "v_mfma_f32"),
        ("matmul", "gfx942", "buffer_load_dwordx4"),
        ("matmul", "gfx1100", "v_wmma_f32_16x16x16_f16"),
    ],
)
def test_the_wide_instructions_are_taken(name, spec, instruction):
    assert instruction in machine_code(name, spec)


@pytest.mark.once
@pytest.mark.sampled(8)
def test_a_wrong_result_is_seen(first_example):
    target, right = somewhere(first_example), first_example.reference
    wrong = dataclasses.replace(first_example, reference=lambda args: right(args) + 1)
    problem = wrong.check(target).problem
    assert problem is not None and "elements are wrong" in problem


@pytest.mark.once
def test_a_result_that_is_not_written_is_seen(first_example):
    nothing = dataclasses.replace(first_example, grid=lambda args, config: (0,))
    if hasattr(first_example.kernel, "configs"):
        pytest.skip("a tuned kernel is launched to be tuned")
    before = "0.0" if first_example.name == "split sum" else "nan"  # the sum adds to zero
    assert f"{before} instead of" in nothing.check(somewhere(first_example)).problem


@pytest.mark.once
def test_references_on_a_device_are_those_on_the_host():
    examples = [e for e in cases.load_cases().values() if e.device_reference is not None]
    assert len(examples) >= 5
    for example in examples:
        host = example.arguments(Arrays(registry().target("sim:sm_90")), False)
        tensors = {name: tensor_of(value) for name, value in host.items()}
        wanted, got = example.reference(host), example.device_reference(tensors).numpy()
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max(), example.name


def tensor_of(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f" and value.dtype.name in ("float16", "float32"):
        return torch.from_numpy(value.copy())
    plain = value.view(f"i{value.itemsize}" if value.itemsize > 1 else "u1").copy()
    return torch.from_numpy(plain).view(getattr(torch, value.dtype.name))


@pytest.mark.once
def test_large_arguments_may_have_a_tolerance_of_their_own():
    target = registry().target("sim:sm_90")
    (sums,) = (e for e in cases.load_cases().values() if e.name == "split sum")
    wrong = dataclasses.replace(
        sums,
        reference=lambda args: sums.reference(args) * 1.01,
        arguments=lambda new, large: sums.arguments(new, False),
        large_config=None,
        large_tolerance=0.1,
    )
    assert wrong.check(target).problem and wrong.check(target, large=True).problem is None


@pytest.mark.once
def test_reference_results_are_right():
    examples = cases.load_cases()
    (softmax,) = (e for e in examples.values() if e.name == "row softmax")
    rows = softmax.reference({"src": np.array([[0.0, 0.0], [0.0, np.log(3.0)]])})
    assert np.allclose(rows, [[0.5, 0.5], [0.25, 0.75]])


@pytest.mark.once
@pytest.mark.gpu
def test_on_the_gpu(example):
    target = device_target()
    if target is None:
        pytest.skip("no GPU")
    if example.lacks(target):
        pytest.skip(f"{target} has no {', '.join(example.lacks(target))}")
    assert example.check(target).problem is None


@pytest.mark.once
@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_large_on_the_gpu(example):
    target = device_target()
    if target is None:
        pytest.skip("no GPU")
    if example.lacks(target):
        pytest.skip(f"{target} has no {', '.join(example.lacks(target))}")
    if example.flops is not None and example.device_reference is None:
        pytest.skip("its reference takes minutes on the CPU")
    assert example_sized(example).check(target, large=True).problem is None
