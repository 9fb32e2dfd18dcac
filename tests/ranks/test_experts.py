"""Dispatch and combine of examples/ranks, right and with anything of their order taken out."""

import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from gluon_core import language as gl
from gluon_sim.errors import SimulatorError
from tests.ranks import mutants

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.once

FILE = "examples/ranks/experts.py"
SIM = "sim:hopper"
EXPERTS, TOKENS, CHOICES, H = 2, 6, 2, 96


def routed(module, calls=2):
    def body(group):
        op = module.Experts(
            group, EXPERTS, TOKENS, CHOICES, H, torch.float32, torch.int32, programs=2
        )
        results = []
        for turn in range(calls):
            generator = torch.Generator().manual_seed(group.rank + 10 * turn)
            x = torch.randint(-4, 5, (TOKENS, H), generator=generator).float()
            most = group.world * EXPERTS
            expert = torch.randint(0, most, (TOKENS * CHOICES,), generator=generator).int()
            weight = torch.randint(1, 4, (TOKENS * CHOICES,), generator=generator).float()
            place = op.dispatch(x, expert)
            scale[(1,)](
                op.inbox.local, op.outbox.local, op.labels.local, op.sizes.local, group.rank,
                op.capacity, group.world, H=H, BLOCK=128,
            )  # fmt: skip
            y = torch.empty(TOKENS, H)
            op.combine(y, expert, place, weight)
            times = (weight * (expert + 1)).view(TOKENS, CHOICES).sum(1)
            results.append((y, x * times[:, None]))
        return results

    return body


@gluon.jit
def scale(
    inbox, outbox, labels, sizes, rank, capacity, world, H: gl.constexpr, BLOCK: gl.constexpr
):  # fmt: skip
    """The experts: each multiplies by a number of its own."""
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], inbox.dtype.element_ty)
    offsets = gl.arange(0, BLOCK, layout=layout)
    for source in range(world):
        for place in range(gl.load(sizes + source)):
            row = source * capacity + place
            times = gl.load(labels + row) + rank * 2 + 1
            value = gl.load(inbox + row * H + offsets, mask=offsets < H)
            gl.store(outbox + row * H + offsets, value * times, mask=offsets < H)


@pytest.mark.parametrize("world", [2, 4])
def test_tokens_come_back(world):
    from examples.ranks import experts

    for turns in distributed.simulate(routed(experts), world, SIM):
        for result, wanted in turns:
            torch.testing.assert_close(result, wanted)


MUTANTS = list(mutants.of_example(FILE))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_a_missing_signal_is_reported(label, text, tmp_path, world=2):
    module = mutants.load(text, tmp_path)
    with pytest.raises(SimulatorError):
        distributed.simulate(routed(module), world, SIM)


@pytest.mark.campaign
@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_more_ranks_report_it_too(label, text, tmp_path, world):
    test_a_missing_signal_is_reported(label, text, tmp_path, world)
