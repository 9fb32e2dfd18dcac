"""Operations of torch that a candidate calls: their names, their work, and the memory that they hand out."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gluon_judge.tensors import fill

__all__ = ["Operations", "Streams"]

_PLUMBING = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones "
    "full full_like new_full fill zero copy clone detach view _unsafe_view reshape _reshape_alias as_strided expand "
    "permute transpose t unsqueeze squeeze slice select narrow split split_with_sizes unbind cat stack alias "
    "contiguous to _to_copy lift_fresh arange scalar_tensor _local_scalar_dense resize set is_same_size chunk "
    "unfold flatten movedim diagonal item equal pad constant_pad_nd tensor_split view_as_real _conj "
    "record_stream pin_memory is_pinned flip roll repeat".split()
)
_WRITES = frozenset("clone copy _to_copy cat stack repeat flip roll fill zeros ones full".split())
_PRODUCTS = frozenset(
    "mm addmm bmm baddbmm matmul linear dot mv addmv addbmm einsum convolution conv1d conv2d _scaled_mm "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math "
    "scaled_dot_product_attention _int_mm _grouped_mm".split()
)


class Operations(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Sees all operations inside.

    Args:
        byte: that new memory is filled with.

    Attributes:
        names: how often each was called, without plumbing such as views and copies.
        flops: of products.
        elements: results of the other operations and of copies, in elements.
    """

    def __init__(self, byte: int):
        super().__init__()
        self._byte = byte
        self.names: Counter[str] = Counter()
        self.flops = 0.0
        self.elements = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        packet = func.overloadpacket
        name = packet.__name__
        result = func(*args, **(kwargs or {}))
        if func.namespace not in ("aten", "prim", "prims"):  # another library's: its launches count
            return result
        if name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"):
            fill(result, self._byte)
        elif name.rstrip("_") in _WRITES:
            self.elements += result.numel() if isinstance(result, torch.Tensor) else 0
        elif name.rstrip("_") not in _PLUMBING:
            self.names[name] += 1
            counted = flop_registry.get(packet)
            if counted is not None:
                try:
                    self.flops += counted(*args, **(kwargs or {}), out_val=result)
                except Exception:  # a form that torch cannot count
                    self.flops += 0.0
            self.elements += sum(
                one.numel()
                for one in (result if isinstance(result, (tuple, list)) else (result,))
                if isinstance(one, torch.Tensor)
            )
        return result

    def products(self) -> list[str]:
        """Return the names of products among the operations."""
        return sorted(set(self.names) & _PRODUCTS)


class Streams:
    """Streams that were entered and not waited for."""

    def __init__(self) -> None:
        self.pending: dict[Any, None] = {}
        cuda: Any = torch.cuda
        stream, event = cuda.Stream, cuda.Event
        self._default = None
        wait_stream, wait_event = stream.wait_stream, stream.wait_event
        enter: Any = getattr(stream, "__enter__", None)
        synchronize, record_event = stream.synchronize, stream.record_event
        record, event_wait, event_synchronize = event.record, event.wait, event.synchronize
        everything, choose = cuda.synchronize, cuda.set_stream
        watch = self

        def entered(self: Any) -> Any:
            watch._enters(self)
            return enter(self)

        def chosen(stream: Any) -> Any:
            watch._enters(stream)
            return choose(stream)

        def waits_stream(self: Any, other: Any) -> Any:
            watch.pending.pop(other, None)
            return wait_stream(self, other)

        def waits_event(self: Any, event: Any) -> Any:
            watch._ends(event)
            return wait_event(self, event)

        def synchronizes(self: Any) -> Any:
            watch.pending.pop(self, None)
            return synchronize(self)

        def records_event(self: Any, event: Any = None) -> Any:
            recorded = record_event(self, event)
            recorded.recorded_on = self
            return recorded

        def records(self: Any, stream: Any = None) -> Any:
            self.recorded_on = cuda.current_stream() if stream is None else stream
            return record(self, stream)

        def event_waits(self: Any, stream: Any = None) -> Any:
            watch._ends(self)
            return event_wait(self, stream)

        def event_synchronizes(self: Any) -> Any:
            watch._ends(self)
            return event_synchronize(self)

        def all_synchronized(*args: Any, **kwargs: Any) -> Any:
            watch.pending.clear()
            return everything(*args, **kwargs)

        if enter is not None:
            stream.__enter__ = entered
        stream.wait_stream, stream.wait_event = waits_stream, waits_event
        stream.synchronize, stream.record_event = synchronizes, records_event
        event.record, event.wait, event.synchronize = records, event_waits, event_synchronizes
        cuda.synchronize, cuda.set_stream = all_synchronized, chosen

    def _enters(self, stream: Any) -> None:
        if stream is not None and stream != torch.cuda.default_stream():
            self.pending[stream] = None

    def _ends(self, event: Any) -> None:
        self.pending.pop(getattr(event, "recorded_on", None), None)
