"""Control flow: the batch splits where programs part ways, and the results are those of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_sim.errors import DeadlockError

rng = np.random.default_rng(3)


@gluon.jit
def by_case(x, n):
    if n > 3:
        return x + 1
    return x * 2


@gluon.jit
def loops_kernel(a, b, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], order=[0])
    pid = gl.program_id(0)
    o = pid * BLOCK + gl.arange(0, BLOCK, layout=layout)
    acc = gl.zeros((BLOCK,), gl.float32, layout)
    for i in range(0, n, 2):
        x = gl.load(a + o + i, mask=o < n, other=0.0)
        if i > 4:
            acc += x
        else:
            acc -= by_case(x, i)
    for i in range(5, 0, -1):
        acc += i
    j = n
    while j > 0:
        j = j - 3
    if pid == 3:
        return
    gl.store(b + o, acc + j)


def test_uniform_loops_calls_and_early_return():
    n, block = 20, 64
    a = rng.integers(-9, 9, block * 8 + n).astype(np.float32)
    b = np.zeros(block * 8, np.float32)
    loops_kernel[(8,)](a, b, n, block)
    wanted = np.zeros_like(b)
    for pid in range(8):
        o = pid * block + np.arange(block)
        acc = np.zeros(block, np.float32)
        for i in range(0, n, 2):
            x = np.where(o < n, a[o + i], np.float32(0))
            acc = acc + x if i > 4 else acc - (x + 1 if i > 3 else x * 2)
        if pid != 3:
            wanted[o] = acc + 15 - 1
    np.testing.assert_array_equal(b, wanted)


@gluon.jit
def diverging(a, b, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], order=[0])
    pid = gl.program_id(0)
    x = gl.load(a + pid)
    acc = gl.zeros((BLOCK,), gl.int32, layout)
    for i in range(x % 5, x, 1 + x % 3):
        if i % 2 == 0:
            acc += i
        else:
            if i % 3 == 0:
                acc += 7
    y = x
    k = 0
    while y > 1:
        if y % 2 == 0:
            y = y // 2
        else:
            y = 3 * y + 1
        k += 1
    out = b + pid * BLOCK + gl.arange(0, BLOCK, layout=layout)
    if x > 90:
        gl.store(out, acc - 1)
        return
    elif x > 80:
        return
    gl.store(out, acc + k * 1000)


def _diverging(x: int):
    acc = 0
    for i in range(x % 5, x, 1 + x % 3):
        if i % 2 == 0:
            acc += i
        elif i % 3 == 0:
            acc += 7
    y, k = x, 0
    while y > 1:
        y = y // 2 if y % 2 == 0 else 3 * y + 1
        k += 1
    return acc - 1 if x > 90 else -7 if x > 80 else acc + k * 1000


def test_programs_that_part_ways_at_every_construct():
    a = rng.integers(0, 120, 500).astype(np.int32)
    b = np.full((500, 4), -7, np.int32)
    diverging[(500,)](a, b, 4)
    np.testing.assert_array_equal(
        b, np.array([_diverging(int(x)) for x in a])[:, None].repeat(4, 1)
    )


@gluon.jit
def two_results(x):
    return x + 1, x * 2


@gluon.jit
def nested(x):
    a, b = two_results(x)
    c, d = two_results(a)
    return c + by_case(b, 4) + d, a


@gluon.jit
def nesting(a, b, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [32], [4], [0]))
    x, y = nested(gl.load(a + o))
    gl.store(b + o, x - y)


def test_nested_functions_with_several_results():
    a = np.arange(32, dtype=np.int32)
    b = np.zeros_like(a)
    nesting[(1,)](a, b, 32)
    np.testing.assert_array_equal(b, (a + 2) + (a * 2 + 1) + (a + 1) * 2 - (a + 1))


@gluon.jit
def grid_kernel(out):
    x, y, z = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    nx, ny, nz = gl.num_programs(0), gl.num_programs(1), gl.num_programs(2)
    gl.store(out + (z * ny + y) * nx + x, x + 10 * y + 100 * z + 1000 * nz)


def test_grid_of_three_dimensions():
    out = np.zeros((2, 3, 5), np.int32)
    grid_kernel[(5, 3, 2)](out)
    z, y, x = np.indices(out.shape)
    np.testing.assert_array_equal(out, x + 10 * y + 100 * z + 2000)


def test_a_grid_larger_than_one_batch(monkeypatch):
    from gluon_sim.executor import machine

    monkeypatch.setattr(machine, "BATCH_BYTES", 1 << 12)
    a = rng.integers(0, 120, 700).astype(np.int32)
    b = np.full((700, 4), -7, np.int32)
    diverging[(700,)](a, b, 4)
    assert (b[:, 0] == [_diverging(int(x)) for x in a]).all()


@gluon.jit
def locked_increment(lock, counter):
    while gl.atomic_cas(lock, 0, 1) == 1:
        pass
    gl.store(counter, gl.load(counter) + 1)
    gl.atomic_xchg(lock, 0)


def test_a_spin_lock_lets_every_program_through():
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
    locked_increment[(50,)](lock, counter)
    assert counter[0] == 50 and lock[0] == 0


@gluon.jit
def relay(flags, order, n):
    # Each waits for the next, so the last must run before the first can go on.
    pid = gl.program_id(0)
    while gl.atomic_add(flags + pid + 1, 0) == 0:
        pass
    gl.atomic_add(order, 1)
    gl.atomic_xchg(flags + pid, 1)


def test_programs_may_wait_for_later_ones():
    flags, order = np.zeros(21, np.int32), np.zeros(1, np.int32)
    flags[20] = 1
    relay[(20,)](flags, order, 20)
    assert (flags == 1).all() and order[0] == 20


@gluon.jit
def counting_relay(flags, tries):
    pid = gl.program_id(0)
    count = 0
    while gl.atomic_add(flags + pid + 1, 0) == 0:
        count += 1
    gl.store(tries + pid, count)
    gl.atomic_xchg(flags + pid, 1)


def test_a_loop_that_counts_while_it_waits_lets_others_run():
    flags, tries = np.zeros(6, np.int32), np.full(5, -1, np.int32)
    flags[5] = 1
    counting_relay[(5,)](flags, tries)
    assert (flags == 1).all() and tries[4] == 0 and (tries[:4] > 0).all()


@gluon.jit
def takes_and_keeps(lock):
    while gl.atomic_cas(lock, 0, 1) == 1:
        pass


def test_a_lock_that_nobody_releases_is_an_error_not_a_hang():
    with pytest.raises(DeadlockError) as caught:
        takes_and_keeps[(3,)](np.zeros(1, np.int32))
    text = str(caught.value)
    assert "program (1, 0, 0)" in text and "program (2, 0, 0)" in text
    assert "while gl.atomic_cas(lock, 0, 1) == 1:" in text
    assert isinstance(caught.value, GluonError)


@gluon.jit
def endless(a):
    x = gl.load(a)
    while x == 0:
        pass


def test_a_loop_that_cannot_end_is_an_error_not_a_hang():
    with pytest.raises(DeadlockError, match="nothing that its condition depends on changes"):
        endless[(1,)](torch.zeros(1, dtype=torch.int32))


@gluon.jit
def pick(a, out, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], order=[0])
    o = gl.arange(0, BLOCK, layout=layout)
    x = gl.load(a + o)
    s = gl.sum(x, 0)
    t = s if s > 0 else -s
    gl.store(out, t)
    gl.store(out + 1, gl.where(s > 0, 1, 2))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_conditional_expression_on_a_runtime_value(sign):
    a, out = np.full(32, sign, np.int32), np.zeros(2, np.int32)
    pick[(1,)](a, out, 32)
    assert out.tolist() == [32, 1 if sign > 0 else 2]


@gluon.jit
def once_more(i):
    return i * 2, i // 3


@gluon.jit
def same_name(out, rounds):
    total = 0
    limit, spare = once_more(total)
    for turn in range(gl.load(rounds + gl.program_id(0))):
        for spare in range(0, 2 - turn):
            total += 1
            if total >= limit:
                limit, spare = once_more(total)
    gl.store(out + gl.program_id(0), total + limit)


def test_a_name_of_a_loop_that_some_programs_do_not_begin():
    """Its value behind the loop is unknown and unused."""
    out = np.zeros(4, np.int32)
    same_name[(4,)](out, np.array([1, 0, 2, 0], np.int32), target="sim:sm_90")
    assert out.tolist() == [6, 0, 7, 0]
