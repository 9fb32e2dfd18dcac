"""The operators of `gluon_kernels` where no GPU is: machine code on the emulator, schedules of the simulator, spills."""

from __future__ import annotations

import importlib
from unittest.mock import patch

import pytest
import torch

from gluon_core.portable import common
from gluon_core.registry.load import registry
from gluon_emu.settings import using
from gluon_kernels.gemm.problem import MATMUL
from tests.kernels.launched import launches_of, on_target

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.sampled(4),
]

FAMILIES = ("gemm", "moe", "attention", "norm", "quant", "topk", "linear_attention")
PROBLEMS = [
    problem
    for family in FAMILIES
    for problem in getattr(importlib.import_module(f"gluon_kernels.{family}"), "PROBLEMS", ())
    or getattr(importlib.import_module(f"gluon_kernels.{family}.problem"), "PROBLEMS", ())
]
SMALL = [
    pytest.param(problem, shape, id=f"{problem.name}-{i}")
    for problem in PROBLEMS
    for i, shape in enumerate(problem.small)
]
# Calls without rows or sums launch nothing.
LAUNCHING = [p for p in SMALL if all(p.values[1].get(size, 1) for size in ("K", "rows"))]
SPECS = ("sm_80", "sm_90", "gfx942", "gfx1100", "gfx1201")
SIMULATED = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1250")


NAMED = [
    ("sm_100", "NN", "matmul_blackwell"),
    ("gfx942", "NT", "matmul_cdna3"),
    ("gfx950", "NT", "matmul_cdna4"),
    ("gfx1201", "NT", "matmul_rdna4"),
    ("gfx1250", "NT", "matmul_tdm"),
]


@pytest.mark.parametrize("spec, stored, kernel", NAMED)
@pytest.mark.parametrize(
    "size", [(72, 200, 80), pytest.param((600, 520, 144), marks=pytest.mark.campaign)]
)
def test_a_target_takes_the_kernel_of_its_units(spec, stored, kernel, size):
    """Others, such as the other way of storing B, or with a bias, are the portable kernel's."""
    shape = {**dict(zip("MNK", size)), "dtype": "bfloat16"}

    def name(**more):
        arguments = MATMUL.arguments({**shape, **more}, "cpu")
        (launch,) = launches_of(lambda: MATMUL.op(**arguments), f"sim:{spec}")
        return launch.kernel.fn.__name__

    with on_target(f"sim:{spec}"):
        assert MATMUL.check({**shape, "stored": stored}, "cpu") is None
    assert name(stored=stored) == kernel
    assert name(stored=stored, bias=True) == name(stored="NT" if stored == "NN" else "NN") == "gemm"


def test_every_family_has_problems():
    assert len({problem.name for problem in PROBLEMS}) >= 15


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("problem, shape", SMALL)
def test_machine_code(problem, shape, spec):
    with on_target(f"emu:{spec}"), using(timeout=110):
        assert problem.check(shape, "cpu") is None


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("spec", SIMULATED)
@pytest.mark.parametrize("problem, shape", SMALL)
def test_simulated(problem, shape, spec):
    with on_target(f"sim:{spec}"):
        assert problem.check(shape, "cpu") is None


# Both branches of gates in 128 registers, three sums of 64 x 128 next to two of 64 x 64, and addresses that two passes share; weights, slopes of a cap and changes of
# 64 x 128; the places of operands of 256 columns, which ptxas computes before the loop.
SPILLING = {
    "varlen_gradients_atomic": 128, "wide_query_gradients": 96,
    "prepare_channels": 512, "prepare_flagged": 1024, "channel_gradients": 2560, "gradients_flagged": 2560,
}  # fmt: skip


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("spec", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx950", "gfx1250"])
@pytest.mark.parametrize("problem, shape", SMALL)
def test_compiled(problem, shape, spec):
    """Each kernel that a call launches compiles, and at small sizes none spills much."""
    arguments = problem.arguments(shape, "cpu")
    for launch in launches_of(lambda: problem.op(**arguments), f"sim:{spec}"):
        values = launch.fresh()
        compiled = launch.kernel.warmup(
            *values, grid=launch.grid, target=registry().target(spec), **launch.options
        )
        report = compiled.report()
        most = SPILLING.get(launch.kernel.fn.__name__, 64)
        assert report.registers > 0 and report.spills <= most, (launch.kernel, report.spills)


@pytest.mark.campaign
@pytest.mark.gluon_schedules(6, checks=True)
@pytest.mark.parametrize("spec", ["sm_90", "gfx942"])
@pytest.mark.parametrize("problem, shape", LAUNCHING)
def test_under_schedules(problem, shape, spec):
    with on_target(f"sim:{spec}"):
        assert problem.check(shape, "cpu") is None


def test_a_launch_runs_again():
    """A recorded launch has the arrays as they were before it."""
    problem, shape = PROBLEMS[0], PROBLEMS[0].small[0]
    arguments = problem.arguments(shape, "cpu")
    result = []
    launches = launches_of(lambda: result.append(problem.op(**arguments)), "sim:sm_90")
    assert len(launches) == 1
    values = launches[0].fresh()
    with on_target("sim:sm_90"):
        launches[0].kernel[launches[0].grid](*values, **launches[0].options)
    right = result[0]
    before, after = launches[0].fresh(), values
    changed = [
        now
        for was, now in zip(before, after)
        if isinstance(now, torch.Tensor) and not torch.equal(was, now)
    ]
    assert any(now.shape == right.shape and torch.equal(now, right) for now in changed)


WIDE = [
    ("mla_decode", {"lengths": (9,), "page": 5, "heads": 3, "latent": 512, "rotated": 32, "dtype": "float16"}),
    ("attention", {"batch": 1, "heads": 1, "length": 40, "width": 208, "causal": True}),
    ("attention and gradients", {"batch": 1, "heads": 1, "length": 40, "width": 224, "causal": True}),
    ("gated_delta_rule and gradients", {"batch": 1, "length": 20, "heads": 1, "width": 72, "values": 24}),
]  # fmt: skip


@pytest.mark.parametrize("name, shape", WIDE)
def test_products_of_16_bits_take_the_matrix_unit(name, shape):
    """Its products have 32 elements along K on gfx1250: tiles of fewer would be sums of single elements."""
    (problem,) = [one for one in PROBLEMS if one.name == name]
    chosen = []

    def recorded(op, *request, **options):
        selection = select(op, *request, **options)
        chosen.extend([selection.chosen.name] if op == "mma" else [])
        return selection

    select = common.select
    with patch.object(common, "select", recorded), on_target("sim:gfx1250"):
        assert problem.check(shape, "cpu") is None
    assert set(chosen) == {"wmma"}
