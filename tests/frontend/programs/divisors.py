"""The greatest common divisor and the least common multiple of pairs of numbers, and how many steps to them: scalars in a loop that ends
when it may, programs that have nothing to do."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.jit
def divisors(pairs, out, multiples, steps, count):
    me = gl.program_id(0)
    if me >= count:
        return
    a, b = gl.load(pairs + 2 * me), gl.load(pairs + 2 * me + 1)
    product = a * b
    taken = 0
    while a != b:
        if a > b:
            a = a - b
        else:
            b = b - a
        taken += 1
    gl.store(out + me, a)
    gl.store(multiples + me, product // a)
    gl.store(steps + me, taken)


def data(rng):
    pairs = rng.integers(1, 60, (6, 2), dtype=np.int32)
    steps = np.full(6, -1)
    for i, (a, b) in enumerate(pairs[:4].tolist()):
        steps[i] = 0
        while a != b:
            a, b = min(a, b), abs(a - b)
            steps[i] += 1
    divisors, multiples = (
        np.where(np.arange(6) < 4, divisor, -1) for divisor in (np.gcd(*pairs.T), np.lcm(*pairs.T))
    )
    outs = [np.full(6, -1, np.int32) for _ in range(3)]
    return [pairs, *outs, 4], {"out": divisors, "multiples": multiples, "steps": steps}


LAUNCHES = [Launch(divisors, "sm_90", data, grid=(6,))]
