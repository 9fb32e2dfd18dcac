"""Load for the next step of a loop of sums as soon as this step has used its own elements.

    for start in range(0, N, BN):
        n = start + gl.arange(0, BN)
        tile = gl.load(a + m[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
        acc += tile * gl.load(x + n, mask=n < N, other=0.0)[None, :]

ptxas adds the elements of one load up before it starts the next load of the step, which saves registers: few loads are
under way. Elements that a step carries to the next one need their registers in any case, so that all loads start together in

    tile_ahead, factor_ahead = ...  # those of the first step
    for start in range(0, N, BN):
        acc += tile_ahead * factor_ahead[None, :]
        ...
        tile_ahead = gl.load(a + m[:, None] * N + n_ahead[None, :], mask=..., other=0.0)
        factor_ahead = gl.load(x + n_ahead, mask=..., other=0.0)

Each load comes behind the same reads and before the same ones as it did.
"""

from __future__ import annotations

import ast
from typing import Any, Mapping, Optional

from gluon_core import language
from gluon_write.pipelines.loads_ahead import AheadLoop, AheadReader, read_by
from gluon_write.tracing.sketch import Place, Sketch

__all__ = ["summed_ahead"]

_ADDED = (  # ops that compute each element by itself in a few instructions, and a sum of its own
    language.load, language.arange, language.where, language.maximum, language.minimum, language.full, language.zeros,
    language.abs, language.fma, language.multiple_of, language.max_contiguous, language.expand_dims, language.cast,
    language.histogram,
)  # fmt: skip
_METHODS = ("to", "expand_dims")
_BUILTINS = ("min", "max", "abs")
_LEAST_LOADS = 2  # instructions of a thread in a step
# Registers of a thread for loads, their addresses and sums, and those where loads need at least as many as sums. On an
# H200 a matrix times a vector took 0.88 of the time with 166, 66 of them for loads of float32, and 1.17 with 132 and loads of
# halves, which left 3 blocks of 4.
_MOST_WORDS, _MOST_WORDS_OF_LOADS = 120, 168
# At most as many for addresses as for the loads: a matrix of halves times a vector, where rows may begin anywhere, took 1.41
# of the time with single elements loaded ahead.
_ADDRESS = 2
# For each register that a step loads; more take as long as the loads. On an H200 sums and squares of 64 channels, four registers
# for each of the load's, took 0.42 of the time.
_MOST_SUMS = 4


def summed_ahead(fn: Any, drawn: Sketch, threads: int, together: Mapping[Place, int]) -> Any:
    """Return a kernel whose loops of sums load for the next step, or the kernel.

    Args:
        threads: of the program.
        together: place of a load -> neighbours that one instruction moves.
    """
    return read_by(_Sums, fn, drawn, threads, together, tidy=True)


class _Sums(AheadReader):
    note = "A step loads for the next one once it has used its own elements."
    late = True

    def _loop(self, node: ast.For, threads: int) -> Optional[AheadLoop]:
        """Return a loop that adds up what it loads, if its loads are many; None of other loops."""
        calls = self.calls_of(node)
        if not calls or not all(map(self._is_added, calls)):
            return None
        loads = [load for s in node.body for load in self.loads_of(s, threads)]
        if len(loads) < sum(self.called(call) is language.load for call in calls):
            return None
        loop = self._loop_of_loads(node, loads)
        if loop is None or loop.inner:
            return None
        sums = self.carried_words(loop, threads)
        words = sum(load.words for load in loads)
        count = sum(self.instructions(load.call, threads) for load in loads)
        addresses = _ADDRESS * count
        most = _MOST_WORDS if sums > words else _MOST_WORDS_OF_LOADS
        fits = words + addresses + sums <= most and 0 < sums <= _MOST_SUMS * words
        return loop if fits and count >= _LEAST_LOADS and addresses <= words else None

    def _is_added(self, call: ast.Call) -> bool:
        """Return True for a call that a loop of sums may have."""
        called = self.called(call)
        if called is not None:
            return any(called is one for one in _ADDED)
        if isinstance(call.func, ast.Attribute):
            return call.func.attr in _METHODS
        return isinstance(call.func, ast.Name) and call.func.id in _BUILTINS
