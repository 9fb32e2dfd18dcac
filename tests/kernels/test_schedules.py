"""Every example kernel under schedules of the simulator, with all checks: no order of asynchronous work makes a
result wrong, and nothing is reported.

    python -m pytest tests/kernels/test_schedules.py -m campaign -k matmul_cdna
"""

from __future__ import annotations

import pytest

from gluon_core.registry.load import registry
from tests.kernels import cases
from tests.ranks import test_all_reduce, test_experts, test_matmul

pytestmark = [pytest.mark.once, pytest.mark.campaign]

# Where a kernel runs otherwise than on the first of these that has what it needs.
TARGETS = ("sm_90", "sm_100", "gfx942", "gfx950", "gfx1200", "gfx1250")
PORTABLE = ("gfx942",)


def module(name):
    return cases.module(name)


def runs():
    for file in cases.FILES:
        for example in [*module(file).EXAMPLES, *getattr(module(file), "MORE", ())]:
            able = [t for t in TARGETS if not example.lacks(registry().target(f"sim:{t}"))]
            # Not a set: tests come in the same order in each process.
            for target in dict.fromkeys((able[0], *(PORTABLE if not example.requires else ()))):
                name = f"{file}-{example.name}-{target}".replace(" ", "_").replace(",", "")
                yield pytest.param(example, target, id=name)


@pytest.mark.gluon_schedules(10, checks=True)
@pytest.mark.parametrize("kernel, target", list(runs()))
def test_under_schedules(kernel, target):
    assert kernel.check(registry().target(f"sim:{target}")).problem is None


@pytest.mark.gluon_schedules(10, checks=True)
def test_sums_over_ranks():
    test_all_reduce.test_all_ranks_get_the_sum(2)
    test_all_reduce.test_nothing_is_reported_of_right_kernels()


@pytest.mark.gluon_schedules(10, checks=True)
def test_experts_of_ranks():
    test_experts.test_tokens_come_back(2)


@pytest.mark.gluon_schedules(10, checks=True)
@pytest.mark.parametrize("gather", [False, True])
def test_products_over_ranks(gather):
    test_matmul.test_multiply_then_sum(gather)
    if gather:
        test_matmul.test_all_gather_then_multiply()
