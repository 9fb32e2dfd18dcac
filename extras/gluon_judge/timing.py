"""Timed calls on a GPU, by functions that are taken before the candidate is loaded."""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

import torch

from gluon_judge.messages import Sample
from gluon_judge.tensors import members, pack_values

__all__ = ["Timer"]

_FLUSHED = 4  # times the L2 cache
_AHEAD = 2_000_000  # cycles of the device, about a millisecond, for which the host may run ahead


class Timer:
    """Events, clocks and synchronization of the device, as they were before anybody could replace them."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda
        self._event, self._synchronize = cuda.Event, cuda.synchronize
        self._now = time.perf_counter
        # A torch without CUDA has the function, and nothing behind it.
        has_sleep = hasattr(torch._C, "_cuda_sleep")
        self._sleep: Callable[[int], None] = cuda._sleep if has_sleep else lambda cycles: None
        cache = getattr(cuda.get_device_properties(0), "L2_cache_size", 0) or 1 << 20
        self._scratch = torch.empty(_FLUSHED * cache, dtype=torch.uint8, device="cuda")

    def sample(
        self, function: Callable[..., Any], values: Sequence[Any], inputs: int, keep: bool
    ) -> Sample:
        """Time one call.

        The device waits and overwrites the cache right before, on the same stream: the host runs ahead of it meanwhile, and
        up to a millisecond of its own time does not count.

        Args:
            inputs: how many values are read; the others are written.
            keep: return the results, too.
        """
        begin, end, copied = (self._event(enable_timing=True) for _ in range(3))
        self._synchronize()
        self._sleep(_AHEAD)
        for byte in (0, 1):
            self._scratch.fill_(byte)
        begin.record()
        answer = function(*values)
        end.record()
        results = _results(answer, values, inputs)
        copies = [one.clone() for one in results]
        copied.record()
        copied.synchronize()
        ended = self._now()
        self._synchronize()
        late = self._now() - ended
        changed = any(not _same(one, two) for one, two in zip(results, copies))
        kept = tuple(pack_values(one) for one in results) if keep else ()
        return Sample(begin.elapsed_time(end) / 1e3, late, changed, kept)

    def repeat(
        self, function: Callable[..., Any], values: Sequence[Any], inputs: int, count: int
    ) -> Sample:
        """Call so many times in a row; the sample has the last result and no time."""
        answer: Any = None
        for _ in range(count):
            answer = function(*values)
        self._synchronize()
        kept = tuple(pack_values(one) for one in _results(answer, values, inputs))
        return Sample(0.0, 0.0, False, kept)


def _results(answer: Any, values: Sequence[Any], inputs: int) -> list[Any]:
    """Return the tensors that a call returned, or those that it wrote."""
    tensors = [one for one in members(answer) if type(one) is torch.Tensor]
    return tensors or [one for one in values[inputs:] if isinstance(one, torch.Tensor)]


def _same(one: Any, other: Any) -> bool:
    raw, copy = (value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
    return bool(torch.equal(raw, copy))
