"""Operations of torch that a candidate calls: their names, their work, and the memory that they hand out."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional

import torch
from torch.autograd import profiler_legacy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gluon_judge.tensors import fill, pack

__all__ = ["Operations", "Streams", "traced"]

_PLUMBING = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones "
    "full full_like new_full fill zero copy clone detach view _unsafe_view reshape _reshape_alias as_strided expand "
    "permute transpose t unsqueeze squeeze slice select narrow split split_with_sizes unbind cat stack alias "
    "contiguous to _to_copy lift_fresh arange scalar_tensor _local_scalar_dense resize set is_same_size chunk "
    "unfold flatten movedim diagonal item equal pad constant_pad_nd tensor_split view_as_real _conj "
    "record_stream pin_memory is_pinned flip roll repeat result_type resolve_conj resolve_neg view_as "
    "expand_as empty_permuted new_empty_strided _to_cpu _nested_tensor_size is_nonzero lift _has_same_storage_numel "
    "block_diag hstack vstack concat concatenate numpy_T matrix_H mT mH T swapaxes swapdims real".split()
)
_EMPTY = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split()
)
_OF_METADATA = frozenset(
    "set_ resize_ resize_as_ detach_ t_ transpose_ squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ record_stream "
    "requires_grad_ rename_".split()
)
_LIBRARIES = frozenset(
    "aten prim prims mkldnn mkl quantized onednn onednn_graph _quantized sparse mkldnn_prepacked xnnpack inductor _inductor_test "
    "fbgemm torchao torchvision torchaudio xformers flash_attn vllm sgl_kernel c10d symm_mem".split()
)
_WRITES = frozenset("clone copy _to_copy cat stack repeat flip roll fill zeros ones full".split())
_PRODUCTS = frozenset(
    "mm addmm bmm baddbmm matmul linear dot mv addmv addbmm einsum convolution conv1d conv2d _scaled_mm "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math "
    "scaled_dot_product_attention _int_mm _grouped_mm".split()
)


class Operations(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Sees all operations inside, in this thread and in those that the candidate starts.

    Args:
        byte: that new memory is filled with.
        inputs: addresses of storages that the call must not change -> the name of the argument, and their bytes.
        whole: the observer that this one counts for, in another thread; None for one of its own.

    Attributes:
        names: how often each was called, without plumbing such as views and copies.
        seen: the same with plumbing.
        flops: of products.
        elements: results of the other operations, in elements.
        copied: bytes that copies and fills wrote.
        scalars: values that became numbers of Python.
        written: names of arguments that an operation wrote.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: a mode that torch's compiler has to skip imports that compiler, which takes seconds."""
        return False

    def __init__(
        self,
        byte: int,
        inputs: Optional[Mapping[int, tuple[str, bytes]]] = None,
        whole: Optional[Operations] = None,
    ):
        super().__init__()
        self._byte = byte
        self._inputs = inputs or {}
        self._whole = whole or self
        self.names: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.flops = 0.0
        self.elements = self.copied = self.scalars = 0
        self.written: dict[str, None] = {}

    def of_thread(self) -> Operations:
        """Return an observer for another thread, which counts for this one."""
        return Operations(self._byte, self._inputs, self._whole)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._whole._count(func, args, kwargs, result)
        return result

    def _count(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        packet = func.overloadpacket
        name = packet.__name__
        self.seen[name] += 1
        if self._inputs and func._schema.is_mutable and name not in _OF_METADATA:
            self._note_writes(func, args, kwargs)
        if func.namespace not in _LIBRARIES:  # of somebody's own: what it calls counts
            return
        plain = name.rstrip("_")
        if name in _EMPTY:
            fill(result, self._byte)
        elif plain == "_local_scalar_dense":
            self.scalars += 1
        elif plain in _WRITES:
            self.copied += _bytes(result)
        elif plain not in _PLUMBING:
            self.names[name if func.namespace == "aten" else f"{func.namespace}.{name}"] += 1
            counted = flop_registry.get(packet)
            if counted is not None:
                try:
                    self.flops += counted(*args, **kwargs, out_val=result)
                except Exception:  # a form that torch cannot count
                    self.flops += 0.0
            several = result if isinstance(result, (tuple, list)) else (result,)
            self.elements += sum(one.numel() for one in several if isinstance(one, torch.Tensor))

    def _note_writes(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            several = value if isinstance(value, (tuple, list)) else (value,)
            for one in several:
                if isinstance(one, torch.Tensor) and one.numel():
                    name, before = self._inputs.get(one.untyped_storage().data_ptr(), ("", b""))
                    if name and pack(one).data != before:
                        self.written[name] = None

    def products(self) -> list[str]:
        """Return the names of products among the operations."""
        return sorted(set(self.names) & _PRODUCTS)


def _bytes(result: Any) -> int:
    if not isinstance(result, torch.Tensor):
        return 0
    return int(result.numel() * result.element_size())


@contextmanager
def traced(hidden: Counter[str], operations: Operations) -> Iterator[None]:
    """Count the operations inside that `operations` does not see.

    Torch's own profiler hears of each operation, within operators that somebody defines, and where the dispatcher skips its Python modes.
    """
    with profiler_legacy.profile() as profile:
        yield
    recorded = Counter(
        event.name.partition("::")[2]
        for event in profile.function_events or ()
        if event.name.partition("::")[0] in _LIBRARIES and not _composite(event.name)
    )
    for name, count in recorded.items():
        if name.rstrip("_") not in _PLUMBING and count > operations.seen[name]:
            hidden[name] += count - operations.seen[name]


@functools.lru_cache(None)
def _composite(name: str) -> bool:
    """Return True for an operation that is made of others in each of its overloads."""
    space, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, space), plain, None)
    overloads = packet.overloads() if packet is not None else []
    for one in overloads:
        full = name if one == "default" else f"{name}.{one}"
        try:
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(
                full, "CompositeImplicitAutograd"
            )
        except RuntimeError:  # TorchScript's own, which the dispatcher does not know
            continue
        if not composite:
            return False
    return True


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
