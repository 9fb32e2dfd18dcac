"""Aggregates for test_aggregates.py; their annotations are no strings."""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.aggregate
class Mean:
    total: gl.tensor
    count: gl.tensor
    scale: gl.constexpr = 2

    @gluon.jit
    def push(self, value):
        return Mean(self.total + value, self.count + 1)

    @gluon.jit
    def value(self):
        return self.total / self.count


@gluon.aggregate
class Pair:
    first: gl.tuple
    second: gl.tensor


def decorated(cls):
    """Decorate a class of another module."""
    return gluon.aggregate(cls)
