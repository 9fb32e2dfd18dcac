"""Ranks side by side in the simulator: shared memory, order, reports."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_distributed as distributed
from gluon_core import errors
from gluon_core import language as gl
from gluon_sim.errors import DeadlockError, LeakError, RaceError, ScopeError

pytestmark = pytest.mark.once

SIM = "sim:hopper"


def line_of(text):
    return next(
        i for i, line in enumerate(open(__file__), 1) if text in line and "line_of" not in line
    )


@gluon.jit
def pass_on(
    x, got, SIGNAL: gl.constexpr, WAIT: gl.constexpr, SCOPE: gl.constexpr, SEM: gl.constexpr
):
    """Each rank writes to the next one, and reads what came from the one before."""
    world: gl.constexpr = len(x.peers)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout=layout)
    after = gl.portable.peer(x.peers, (x.rank + 1) % world)
    gl.store(after + offsets, offsets * 0 + x.rank)  # put
    gl.barrier()
    if SIGNAL:
        pad = gl.portable.peer(x.signals, (x.rank + 1) % world)
        gl.atomic_add(pad + x.rank, 1, sem=SEM, scope=SCOPE)  # tell
    before = (x.rank + world - 1) % world
    if WAIT:
        gl.portable.wait_signal(gl.portable.peer(x.signals, x.rank) + before)  # hear
    gl.store(got + offsets, gl.load(gl.portable.peer(x.peers, x.rank) + offsets))  # get


def passing(signal=True, wait=True, scope="sys", sem="release"):
    def body(group):
        x = group.empty(128, np.int32)
        got = np.full(128, -1, np.int32)
        pass_on[(1,)](x, got, SIGNAL=signal, WAIT=wait, SCOPE=scope, SEM=sem)
        return got

    return body


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_each_rank_has_memory_of_its_own(world):
    got = distributed.simulate(passing(), world, SIM)
    for rank, values in enumerate(got):
        assert (values == (rank - 1) % world).all()


def test_a_missing_wait_is_a_race_between_ranks():
    with pytest.raises(RaceError) as caught:
        distributed.simulate(passing(wait=False), 2, SIM)
    assert caught.value.report == "race.programs"
    assert {access.program.rank for access in caught.value.accesses} == {0, 1}
    lines = {access.span.line for access in caught.value.accesses}
    assert lines == {line_of("# put"), line_of("# get")}
    assert "of rank 0" in str(caught.value) and "of rank 1" in str(caught.value)


def test_a_missing_signal_is_a_deadlock():
    with pytest.raises(DeadlockError) as caught:
        distributed.simulate(passing(signal=False), 2, SIM)
    message = str(caught.value)
    assert "program (0, 0, 0) of rank 0" in message and "program (0, 0, 0) of rank 1" in message
    assert caught.value.span.line == line_of("# hear")
    assert "the host of rank 1" in message and "`pass_on` to end" in message


@pytest.mark.parametrize("scope", ["gpu", "cta"])
def test_a_scope_that_ends_at_the_device(scope):
    with pytest.raises(ScopeError, match="rank") as caught:
        distributed.simulate(passing(scope=scope), 2, SIM)
    assert f"line {line_of('# tell')}" in str(caught.value)
    assert 'scope="sys"' in str(caught.value)


def test_a_signal_that_releases_nothing_is_a_race():
    with pytest.raises(RaceError):
        distributed.simulate(passing(sem="relaxed"), 2, SIM)


def test_signals_without_a_wait_are_reported():
    @gluon.jit
    def tell(x):
        if x.rank == 0:
            gl.portable.signal(x.signals[1] + 3)  # the signal

    def body(group):
        tell[(1,)](group.empty(16, np.int32))

    with pytest.raises(LeakError, match="slot 3 of the signals of rank 1 is 1") as caught:
        distributed.simulate(body, 2, SIM)
    assert caught.value.span.line == line_of("# the signal")


def test_a_launch_knows_the_launches_before_it_on_its_rank_alone():
    @gluon.jit
    def fill(x, value):
        offsets = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(gl.portable.peer(x.peers, x.rank) + offsets, offsets * 0 + value)

    @gluon.jit
    def meet(x):
        gl.portable.rank_barrier(x.signals, x.rank)

    @gluon.jit
    def read_next(x, got):
        offsets = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
        source = gl.portable.peer(x.peers, (x.rank + 1) % len(x.peers))
        gl.store(got + offsets, gl.load(source + offsets))

    def body(group, first, last):
        x, got = group.empty(128, np.int32), np.zeros(128, np.int32)
        for value in (2, 3):
            fill[(1,)](x, value + group.rank)
            if first == "kernel":
                meet[(1,)](x)
            elif first == "host":
                group.barrier()
            read_next[(1,)](x, got)
            if last:
                meet[(1,)](x)
        return got

    for first in ("kernel", "host"):
        simulation = distributed.simulate(lambda g, how=first: body(g, how, True), 3, SIM)
        assert [values[0] for values in simulation] == [4, 5, 3]
        with pytest.raises(RaceError):  # the next round writes what others still read
            distributed.simulate(lambda g, how=first: body(g, how, False), 3, SIM)
    with pytest.raises(RaceError):
        distributed.simulate(lambda g: body(g, "", True), 3, SIM)


def test_counts_serve_many_waiters():
    @gluon.jit
    def counted(x, counter, got, SCOPE: gl.constexpr):
        offsets = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
        if x.rank == 0:
            if gl.program_id(0) == 0:
                gl.store(x.peers[1] + offsets, offsets)
                gl.portable.counter_add(counter.peers[1], 2, scope=SCOPE)
        else:
            gl.portable.counter_wait(counter.peers[1], 2)
            gl.store(got + gl.program_id(0) * 128 + offsets, gl.load(x.peers[1] + offsets))

    def body(group, scope="sys"):
        x, counter = group.empty(128, np.int32), group.zeros(1, np.int32)
        got = np.zeros((3, 128), np.int32)
        counted[(3,)](x, counter, got, SCOPE=scope)
        return got

    simulation = distributed.simulate(body, 2, SIM)
    assert (simulation[1] == np.arange(128)).all()
    with pytest.raises(ScopeError):
        distributed.simulate(lambda g: body(g, "gpu"), 2, SIM)


def test_memory_of_another_rank_is_out_of_reach_unless_symmetric():
    from gluon_sim.errors import OutOfBoundsError

    theirs = {}

    @gluon.jit
    def peek(address, got):
        offsets = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
        source = gl.cast(address, gl.pointer_type(gl.int32))
        gl.store(got + offsets, gl.load(source + offsets))

    def body(group):
        theirs[group.rank] = own = np.zeros(128, np.int32)
        group.barrier()
        peek[(1,)](theirs[1 - group.rank].ctypes.data, own)

    with pytest.raises(OutOfBoundsError):
        distributed.simulate(body, 2, SIM)


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_other_schedules(schedule):
    from gluon_sim.settings import using

    with using(schedule=schedule, seed=3):
        distributed.simulate(passing(), 2, SIM)
        with pytest.raises(RaceError):
            distributed.simulate(passing(wait=False), 2, SIM)


# -- mistakes of host code -------------------------------------------------------------------------


def test_ranks_that_make_different_calls():
    def body(group):
        if group.rank:
            group.barrier()
        else:
            group.gather(1)

    with pytest.raises(errors.RankMismatchError, match="`barrier`|`gather`"):
        distributed.simulate(body, 2, SIM)


def test_ranks_that_want_different_tensors():
    with pytest.raises(errors.RankMismatchError, match="rank 1"):
        distributed.simulate(lambda g: g.empty(16 + g.rank, np.int32), 2, SIM)


def test_a_rank_that_does_not_come():
    with pytest.raises(DeadlockError, match="rank 1 to come to `barrier`"):
        distributed.simulate(lambda g: g.rank or g.barrier(), 2, SIM)


def test_an_error_of_host_code_ends_all_ranks():
    seen = []

    def body(group):
        if group.rank == 1:
            raise KeyError("mine")
        try:
            group.barrier()
        finally:
            seen.append(group.rank)

    with pytest.raises(KeyError, match="mine"):
        distributed.simulate(body, 3, SIM)
    assert 0 in seen


def test_a_tensor_that_is_not_symmetric():
    with pytest.raises(errors.NotSymmetricError, match="group.empty"):
        distributed.simulate(lambda g: g.symmetric(np.zeros(4)), 2, SIM)


def test_ranks_of_different_builds():
    def body(group):
        kernel = gluon.jit(pass_on.fn)
        kernel.__name__ = "one_kernel"
        if group.rank == 1:
            kernel = _Other()
        group.check(kernel)

    class _Other:
        __name__ = "one_kernel"
        cache_key = "another text"

    with pytest.raises(errors.RankBuildError, match="kernel one_kernel.*rank 1"):
        distributed.simulate(body, 2, SIM)
    distributed.simulate(lambda g: g.check(pass_on), 2, SIM)


@pytest.mark.parametrize("world", [0, -1, True, "2"])
def test_no_number_of_ranks(world):
    with pytest.raises(errors.ArgumentError, match="world"):
        distributed.simulate(print, world, SIM)


def test_targets_that_simulate_no_ranks():
    with pytest.raises(errors.CapabilityError, match='such as target="sim:'):
        distributed.simulate(print, 2, "nvidia:sm_90")


def test_schedules_of_ranks_are_not_explored():
    from gluon_sim.settings import using

    with using(schedule="explore"), pytest.raises(errors.ArgumentError, match="explored"):
        distributed.simulate(passing(), 2, SIM)


def test_a_rank_that_there_is_not():
    @gluon.jit
    def reach(x):
        gl.store(gl.portable.peer(x.peers, 2), 1)

    with pytest.raises(errors.ArgumentError, match="the rank is out of range") as caught:
        distributed.simulate(lambda g: reach[(1,)](g.empty(1, np.int32)), 2, SIM)
    assert caught.value.span is not None


def test_signals_are_integers():
    @gluon.jit
    def tell(x):
        gl.portable.signal(x.peers[0])

    with pytest.raises(errors.DtypeError, match="not a counter"):
        distributed.simulate(lambda g: tell[(1,)](g.empty(1, np.float32)), 2, SIM)
