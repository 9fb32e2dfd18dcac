"""The multiplications of examples/ranks: right, and with anything of their order taken out."""

import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from gluon_core import language as gl
from gluon_nvidia.reference import proxy
from gluon_sim.errors import SimulatorError
from tests.ranks import mutants

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

FILE = "examples/ranks/matmul.py"
SIM = "sim:hopper"
BLOCK = (128, 128, 32)


def example():
    from examples.ranks import matmul

    return matmul


def numbers(rank, turn, *shape):
    generator = torch.Generator().manual_seed(rank + 10 * turn)
    return torch.randint(-2, 3, shape, generator=generator).to(torch.bfloat16)


@gluon.jit
def put(to, values, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], to.dtype.element_ty)
    for start in range(0, n, BLOCK):
        offsets = start + gl.arange(0, BLOCK, layout=layout)
        gl.store(to + offsets, gl.load(values + offsets, mask=offsets < n), mask=offsets < n)


def gathered(module, rows=128, N=128, K=32, chunks=1, calls=2, grid=2):
    def body(group):
        op = module.GatheredMatmul(group, rows, K, torch.bfloat16, torch.int32, chunks, programs=2)
        results = []
        for turn in range(calls):
            a, b = numbers(group.rank, turn, rows, K), numbers(group.rank + 5, turn, K, N)
            c = torch.empty(group.world * rows, N, dtype=torch.bfloat16)
            put[(1,)](op.shard(), a, rows * K, BLOCK=4096)
            op(b, c, block=BLOCK, stages=2, grid=grid)
            results.append((a, b, c))
        return results

    return body


def scattered(module, gather, rows=128, N=128, K=32, calls=2, grid=2):
    def body(group):
        op = module.MatmulScattered(
            group, rows, N, torch.bfloat16, torch.int32, block=BLOCK, gather=gather
        )
        results = []
        for turn in range(calls):
            a = numbers(group.rank, turn, group.world * rows, K)
            b = numbers(group.rank + 5, turn, K, N)
            out = None if gather else torch.empty(rows, N, dtype=torch.bfloat16)
            op(a, b, out, stages=2, grid=grid)
            if gather:  # a kernel reads it: what host code reads is not watched
                out = torch.empty(group.world * rows, N, dtype=torch.bfloat16)
                put[(1,)](out, op.result(), out.numel(), BLOCK=4096)
            results.append((a, b, out))
        return results

    return body


def test_all_gather_then_multiply():
    simulation = distributed.simulate(gathered(example(), rows=256, chunks=2), 2, SIM)
    for turn in zip(*simulation):
        whole = torch.cat([a for a, _, _ in turn]).float()
        for _, b, c in turn:
            torch.testing.assert_close(c.float(), whole @ b.float(), atol=0.5, rtol=1e-2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gather", [False, True], ids=["scattered", "gathered"])
def test_multiply_then_sum(gather):
    simulation = distributed.simulate(scattered(example(), gather, N=256, calls=3), 2, SIM)
    for turn in zip(*simulation):
        wanted = sum(a.float() @ b.float() for a, b, _ in turn)
        for rank, (_, _, out) in enumerate(turn):
            rows = slice(None) if gather else slice(rank * 128, rank * 128 + 128)
            torch.testing.assert_close(out.float(), wanted[rows], atol=1.0, rtol=1e-2)


@pytest.mark.campaign
@pytest.mark.parametrize("world", [4, 8])
def test_more_ranks(world):
    simulation = distributed.simulate(gathered(example()), world, SIM)
    whole = torch.cat([a for a, _, _ in next(zip(*simulation))]).float()
    torch.testing.assert_close(
        simulation[-1][0][2].float(), whole @ simulation[-1][0][1].float(), atol=0.5, rtol=1e-2
    )
    simulation = distributed.simulate(scattered(example(), False), world, SIM)
    wanted = sum(a.float() @ b.float() for a, b, _ in next(zip(*simulation)))
    out = torch.cat([one[0][2] for one in simulation]).float()
    torch.testing.assert_close(out, wanted, atol=2.0, rtol=2e-2)


def mutated():
    """Yield mutants whose change makes a difference: copies by engines are not simulated, the launch
    that waits for a copy on a side stream needs nobody to join, and at a launch's end all it stored is there.
    """
    lines = (mutants.ROOT / FILE).read_text().splitlines()
    engines = lines.index("    def _bring(self, turn, times):")
    last = max(i for i, line in enumerate(lines) if "read_only=False" in line)
    for label, text in mutants.of_example(FILE):
        deleted = int(label.split()[1]) - 1
        side = label.endswith("side.join") or (engines < deleted < engines + 16)
        if not side and not (deleted == last and label.endswith("until it is read alone")):
            yield label, text


MUTANTS = list(mutated())


@pytest.fixture
def no_implied_fences(monkeypatch):
    """The compiler adds no fences between the proxies, which it does where the kernel's own is taken out."""
    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)


@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.sampled(20)
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_a_missing_signal_is_reported(label, text, tmp_path, world=2):
    module = mutants.load(text, tmp_path)
    with pytest.raises(SimulatorError):
        distributed.simulate(gathered(module), world, SIM)
        distributed.simulate(scattered(module, True), world, SIM)
        # Several tiles of each kind, one after the other.
        distributed.simulate(scattered(module, False, 256, N=256, calls=1, grid=1), world, SIM)


@pytest.mark.campaign
@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("label, text", MUTANTS, ids=[label for label, _ in MUTANTS])
def test_more_ranks_report_it_too(label, text, tmp_path, world):
    test_a_missing_signal_is_reported(label, text, tmp_path, world)
