"""The builder that records a program instead of emitting MLIR.

It answers the methods that Triton's Gluon builder answers, by name and position. The semantics of a method is not decided here: an op is recorded under its method's name, with its arguments, and the
machine looks its meaning up (`gluon_sim.executor.ops`, or a vendor's reference models).
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Optional, Sequence

from gluon_sim.errors import SimulatorError
from gluon_sim.tracing import shapes
from gluon_sim.tracing.ir import Block, Op, Value
from gluon_sim.tracing.recorder import Recorder
from gluon_sim.tracing.types import (
    DescriptorType,
    MemDescType,
    OpaqueType,
    PointerType,
    ScalarType,
    TensorType,
    Type,
)

__all__ = ["SimBuilder"]

I1 = ScalarType("i1")
_SCALARS = {
    "int1": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "int128": "i128",
    "half": "fp16", "bf16": "bf16", "float": "fp32", "double": "fp64", "fp8e4nv": "fp8e4nv",
    "fp8e4b8": "fp8e4b8", "fp8e4b15": "fp8e4b15", "fp8e5": "fp8e5", "fp8e5b16": "fp8e5b16",
}  # fmt: skip

# Methods whose result has the type of the argument at this position.
_LIKE = {
    0: "add sub mul sdiv udiv srem urem fadd fsub fmul fdiv frem fneg precise_divf approx_divf and or xor shl "
    "lshr ashr minsi minui maxsi maxui minimumf maximumf minnumf maxnumf clampf fma umulhi fabs iabs exp "
    "exp2 log log2 sin cos sqrt precise_sqrt rsqrt erf floor ceil addptr",
    1: "select",
    2: "dot",
}  # fmt: skip
# Methods that say their result type, and where.
_TYPED = {
    0: "convert_layout splat make_range local_load local_gather",
    1: "bitcast int_cast fp_to_fp fp_ext fp_trunc fp_to_si fp_to_ui si_to_fp ui_to_fp int_to_ptr ptr_to_int",
    2: "cat",
    4: "extern_elementwise",
}  # fmt: skip
_NOTHING = (
    "local_store local_dealloc local_scatter barrier assert assume "
    "print breakpoint branch cond_branch yield_op condition_op map_elementwise_ret "
    "warp_yield warp_return cluster_barrier cluster_sync"
)
_MEMDESC = "memdesc_index memdesc_subslice memdesc_reinterpret"


class SimBuilder(Recorder):
    """Records one program.

    Args:
        context: whatever the frontend passes on; unused.
        target: a `gluon_core.plugin.targets.Target`; only its architecture's facts are used.
        models: looks up the reference model of a builder method, or None.
    """

    def __init__(
        self,
        context: Any = None,
        target: Any = None,
        models: Optional[Callable[[str], Optional[Callable[..., Any]]]] = None,
    ):
        super().__init__()
        self.context = context
        self.target = target
        self._models = models or (lambda name: None)
        self.options: Any = None
        self.codegen_fns: Any = {}
        self.module_map: Any = {}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("get_") and method.endswith("_cache_policy"):
            return self.get_cache_policy  # where data is cached changes no result
        if not method.startswith("create_"):
            raise AttributeError(method)
        name = method[len("create_") :]
        model = self._models(name)
        if model is None:
            architecture = getattr(self.target, "architecture", None)
            vendor = getattr(architecture, "backend", "the target")
            raise SimulatorError(
                f"the simulator has no reference model for the builder op `{name}` of {vendor}",
                remedy=f"The kernel still compiles for {vendor}; a plugin can contribute a function "
                f"`{name}` to its `reference` module.",
            )

        def recorder(*args: Any, **kwargs: Any) -> Any:
            types = _model_results(model, args, kwargs)
            op = self.record(name, args, types, 0, kwargs)
            if not types:
                return op
            return op.results[0] if len(types) == 1 else list(op.results)

        setattr(self, method, recorder)
        return recorder

    def get_op_builder(self) -> "SimBuilder":
        return self

    # ---- types --------------------------------------------------------------------------

    def get_void_ty(self) -> Type:
        return OpaqueType("void")

    def get_ptr_ty(self, element: Type, address_space: Any = 1) -> Type:
        return PointerType(element, address_space)

    def get_block_ty(self, element: Type, shape: Sequence[int]) -> Type:
        return TensorType(element, tuple(int(s) for s in shape))

    def get_distributed_ty(self, element: Type, shape: Sequence[int], layout: Any) -> Type:
        return TensorType(element, tuple(int(s) for s in shape), layout)

    def get_shared_mem_desc_ty(
        self, element: Type, shape: Sequence[int], layout: Any, alloc_shape: Sequence[int]
    ) -> Type:
        return MemDescType(element, tuple(shape), layout, tuple(alloc_shape))

    def get_tensor_mem_desc_ty(
        self, element: Type, shape: Sequence[int], layout: Any, alloc_shape: Sequence[int]
    ) -> Type:
        return MemDescType(element, tuple(shape), layout, tuple(alloc_shape), "tensor")

    def create_tensor_descriptor_type(self, block_type: Type, *rest: Any) -> Type:
        return DescriptorType("descriptor", (block_type, *rest))

    get_tensor_descriptor_layout_type = create_tensor_descriptor_type
    get_tensor_descriptor_im2col_layout_type = create_tensor_descriptor_type

    # ---- layouts: Python objects all the way -------------------------------------------------

    def get_layout(self, layout: Any) -> Any:
        return layout

    def get_gluon_layout_from_tensor(self, value: Value) -> Any:
        return value.resolve().type.layout

    get_gluon_layout_from_memdesc = get_gluon_layout_from_tensor

    def get_shape_from_tensor(self, value: Value) -> list[int]:
        return list(value.type.dims)

    def get_auto_layout(self) -> Any:
        from gluon_core.layouts import AutoLayout

        return AutoLayout()

    def get_coalesced_layout(self) -> Any:
        from gluon_core.layouts import CoalescedLayout

        return CoalescedLayout()

    def is_convert_layout_trivial(self, result_type: TensorType, value: Value) -> bool:
        """Return whether no element leaves its thread: registers may change places, as in Triton."""
        layout = value.type.layout
        return shapes.stays_in_threads(layout, result_type.layout, result_type.shape)

    def to_linear_layout(self, layout: Any, shape: Sequence[int]) -> Any:
        return layout.to_linear(shape)

    # ---- attributes ---------------------------------------------------------------------

    def get_int32_attr(self, value: Any) -> Any:
        return getattr(value, "value", value)

    get_bool_attr = get_string_attr = get_int32_attr

    def hint(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the claims of `multiple_of` and its like about each dimension of a value."""
        return tuple(int(v) for v in values)

    def get_unit_attr(self) -> bool:
        return True

    def get_disable_loop_licm_attr(self) -> str:
        return "disable_licm"

    def get_cache_policy(self, *fields: Any) -> tuple[Any, ...]:
        return fields

    # ---- constants ----------------------------------------------------------------------

    def constant(self, type: Type, value: Any) -> Value:
        return self.record("constant", (value,), [type]).results[0]

    def get_null_value(self, type: Type) -> Value:
        return self.constant(type, 0)

    def get_all_ones_value(self, type: Type) -> Value:
        return self.constant(type, True if type.element == I1 else -1)

    def create_poison(self, type: Type) -> Value:
        return self.record("poison", (), [type]).results[0]

    # ---- structured control flow -----------------------------------------------------------

    def create_if_op(self, types: Sequence[Type], condition: Value, with_else: bool) -> Op:
        op = self.record("if", (condition,), list(types), 2)
        for region in op.regions[: 2 if with_else else 1]:
            region.push_back(Block(None))
        return op

    def create_for_op(self, low: Value, high: Value, step: Value, init: Sequence[Value]) -> Op:
        types = [v.type for v in init]
        op = self.record("for", (low, high, step, list(init)), types, 1)
        op.regions[0].push_back(Block(None, [low.type, *types]))
        return op

    def create_while_op(self, types: Sequence[Type], init: Sequence[Value]) -> Op:
        return self.record("while", (list(init),), list(types), 2)

    # ---- ops whose result type follows from a layout or shape ------------------------------

    def create_get_program_id(self, axis: int) -> Value:
        return self.record("get_program_id", (axis,), [ScalarType("i32")]).results[0]

    def create_get_num_programs(self, axis: int) -> Value:
        return self.record("get_num_programs", (axis,), [ScalarType("i32")]).results[0]

    def create_broadcast(self, value: Value, to: Any) -> Value:
        """`to` is the result type, or its shape."""
        if not isinstance(to, Type):
            to = TensorType(value.type.element, tuple(to), getattr(value.type, "layout", None))
        return self.record("broadcast", (value, to), [to]).results[0]

    def create_expand_dims(self, value: Value, axis: int) -> Value:
        type = shapes.expand_dims(value.type, axis)
        return self.record("expand_dims", (value, axis), [type]).results[0]

    def create_reshape(self, value: Value, shape: Sequence[int], allow_reorder: bool) -> Value:
        type = shapes.reshape(value.type, shape)
        return self.record("reshape", (value, list(shape)), [type]).results[0]

    def create_trans(self, value: Value, order: Sequence[int]) -> Value:
        type = shapes.trans(value.type, order)
        return self.record("trans", (value, list(order)), [type]).results[0]

    def create_join(self, a: Value, b: Value) -> Value:
        return self.record("join", (a, b), [shapes.join(a.type)]).results[0]

    def create_split(self, value: Value) -> tuple[Value, Value]:
        type = shapes.split(value.type)
        op = self.record("split", (value,), [type, type])
        return op.results[0], op.results[1]

    def create_unsplat(self, value: Value) -> Value:
        return self.record("unsplat", (value,), [value.type.element]).results[0]

    def create_gather(self, source: Value, indices: Value, axis: int) -> Value:
        type = indices.type.with_element(source.type.element)
        return self.record("gather", (source, indices, axis), [type]).results[0]

    def create_histogram(
        self, operand: Value, numBins: int, mask: Optional[Value] = None, layout: Any = None
    ) -> Value:
        type = TensorType(ScalarType("i32"), (numBins,), layout)
        return self.record("histogram", (operand, numBins, mask), [type]).results[0]

    def create_fp4_to_fp(self, value: Value, element: Type, axis: int) -> Value:
        type = shapes.unpacked(value.type, element.element, axis)
        return self.record("fp4_to_fp", (value, type, axis), [type]).results[0]

    def create_reduce(self, values: Sequence[Value], axis: int) -> Op:
        types = [shapes.reduce(v.type, axis) for v in values]
        return self.record("reduce", (list(values), axis), types, 1)

    def create_scan(self, values: Sequence[Value], axis: int, reverse: bool) -> Op:
        return self.record("scan", (list(values), axis, reverse), [v.type for v in values], 1)

    def create_reduce_ret(self, *values: Value) -> Op:
        return self.record("reduce_ret", (list(values),))

    def create_scan_ret(self, *values: Value) -> Op:
        return self.record("scan_ret", (list(values),))

    def create_map_elementwise(
        self, values: Sequence[Value], types: Sequence[Type], pack: int
    ) -> Op:
        return self.record("map_elementwise", (list(values), pack), list(types), 1)

    def create_set_auto_layout(self, layout: Any, value: Value) -> Value:
        type = TensorType(value.type.element, value.type.dims, layout)
        op = self.record("convert_layout", (type, value), [type])
        op.set_attr("determines", True)
        return op.results[0]

    def create_inline_asm(
        self, asm: str, constraints: str, args: Sequence[Value], types: Sequence[Type], *rest: Any
    ) -> Op:
        return self.record("inline_asm", (asm, constraints, list(args), *rest), list(types))

    create_threadwise_inline_asm = create_inline_asm

    # ---- memory; hints about caches change no result and are not recorded -------------------

    def _loaded(self, pointer: Value) -> Type:
        element = pointer.type.element
        assert isinstance(element, PointerType)
        return pointer.type.with_element(element.pointee)

    def create_load(self, pointer: Value, *policy: Any) -> Value:
        return self._volatile("load", (pointer,), pointer, policy)

    def _volatile(
        self, name: str, args: tuple[Any, ...], pointer: Value, policy: Sequence[Any]
    ) -> Value:
        op = self.record(name, args, [self._loaded(pointer)])
        if any(p is True for p in policy):
            op.attrs["volatile"] = True
        return op.results[0]

    def create_store(self, pointer: Value, value: Value, *policy: Any) -> Op:
        return self.record("store", (pointer, value))

    def create_masked_load(
        self, ptrs: Value, mask: Value, other: Optional[Value] = None, *policy: Any, **named: Any
    ) -> Value:
        return self._volatile("masked_load", (ptrs, mask, other), ptrs, policy)

    def create_masked_store(
        self, ptrs: Value, val: Value, mask: Value, *policy: Any, **named: Any
    ) -> Op:
        return self.record("masked_store", (ptrs, val, mask))

    def create_atomic_rmw(
        self, kind: Any, ptr: Value, val: Value, mask: Value, *order: Any
    ) -> Value:
        args = (enum_name(kind), ptr, val, mask)
        return self._atomic("atomic_rmw", args, [val.type], order).results[0]

    def _atomic(
        self, name: str, args: tuple[Any, ...], types: Sequence[Type], order: Sequence[Any]
    ) -> Op:
        """`order` holds how it orders other accesses, and for whom; results do not depend on it."""
        op = self.record(name, args, types)
        op.attrs["order"] = tuple(enum_name(o) for o in order)
        return op

    def create_atomic_cas(self, ptr: Value, compare: Value, val: Value, *order: Any) -> Value:
        return self._atomic("atomic_cas", (ptr, compare, val), [val.type], order).results[0]

    def create_atomic_load(self, ptr: Value, mask: Value, *order: Any) -> Value:
        return self._atomic("atomic_load", (ptr, mask), [self._loaded(ptr)], order).results[0]

    def create_atomic_store(self, ptr: Value, val: Value, mask: Value, *order: Any) -> Op:
        return self._atomic("atomic_store", (ptr, val, mask), (), order)

    def create_atomic_poll(self, ptr: Value, expected: Value, timeout: Any, *order: Any) -> Value:
        type = expected.type.with_element(I1)
        return self._atomic("atomic_poll", (ptr, expected, timeout), [type], order).results[0]

    # Values in flight on other targets are so here: a kernel that forgets to wait is wrong on other targets.
    def deferred_store(
        self, dest: Value, value: Value, pointer: Value, mask: Optional[Value]
    ) -> None:
        self.record("deferred_store", (dest, value, pointer, mask))

    def deferred_commit(self) -> None:
        self.record("deferred_commit")

    def deferred_wait(self, pending: int) -> None:
        self.record("deferred_wait", (pending,))

    def deferred_read(self, buffers: Sequence[Value], is_async: bool, alone: bool) -> None:
        self.record("deferred_read", (list(buffers), is_async, alone))

    def deferred_read_wait(self, pending: int) -> None:
        self.record("deferred_read_wait", (pending,))

    def deferred_fence(self) -> None:
        self.record("deferred_fence")

    def call_buffer(self, value: Value, name: str, remedy: str) -> None:
        assert isinstance(value.owner, Op)
        value.owner.attrs["called"] = name, remedy

    def mark_scope(self, name: str, begins: bool, line: int) -> None:
        self.record("scope", (name, begins, line))

    def tiles_begun(self, ring: Value) -> None:
        self.record("tiles_begun", (ring,))

    def tiles_fetched(self, ring: Value, step: Value, pred: Optional[Value]) -> None:
        self.record("tiles_fetched", (ring, step, pred))

    def tiles_awaited(self, ring: Value, step: Value, pending: int) -> None:
        self.record("tiles_awaited", (ring, step, pending))

    def tile_placed(self, place: Sequence[Value], pred: Optional[Value]) -> None:
        self.record("tile_placed", (list(place), pred))

    def create_local_alloc(self, type: Type, value: Optional[Value] = None) -> Value:
        return self.record("local_alloc", (type, value), [type]).results[0]

    def create_memdesc_trans(self, value: Value, order: Sequence[int]) -> Value:
        type = shapes.memdesc_trans(value.type, order)
        return self.record("memdesc_trans", (value, list(order)), [type]).results[0]

    def create_memdesc_reshape(self, value: Value, shape: Sequence[int]) -> Value:
        type = shapes.memdesc_reshape(value.type, shape)
        return self.record("memdesc_reshape", (value, list(shape)), [type]).results[0]

    def create_local_atomic_scatter_rmw(
        self, rmwOp: Any, memDesc: Value, values: Value, indices: Value, mask: Any, axis: int
    ) -> Value:
        args = (enum_name(rmwOp), memDesc, values, indices, mask, axis)
        return self.record("local_atomic_scatter_rmw", args, [values.type]).results[0]

    # ---- warp specialization ----------------------------------------------------------------

    def create_warp_specialize(self, types: Sequence[Type], *rest: Any) -> Op:
        """(types, operands, warps) in 3.6; (types, warps) later, when the operands move to the partitions."""
        operands, warps = rest if len(rest) == 2 else ([], rest[0])
        return self.record("warp_specialize", (list(operands), list(warps)), list(types), 2)

    def create_warp_specialize_partitions(self, *rest: Any) -> Op:
        operands, count = rest if len(rest) == 2 else ([], rest[0])
        return self.record("warp_specialize_partitions", (list(operands), count), (), count)


# ---- the regular rest ---------------------------------------------------------------------------


def enum_name(value: Any) -> str:
    """`ATOMIC_OP.ADD` as "add"; strings stay."""
    name = getattr(value, "name", value)
    return str(name).lower()


def _model_results(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Type]:
    """Return the result types of a vendor's op: those its model declares, else a type among its arguments."""
    declared = getattr(model, "results", None)
    if callable(declared):
        types = declared(*args, **kwargs)
        if types is None:
            return []
        types = types if isinstance(types, (list, tuple)) else [types]
        types = [f.type if isinstance(f, Value) else f for f in types]
        return [ScalarType(f) if isinstance(f, str) else f for f in types]
    return [a for a in args[:1] if isinstance(a, Type)]


# From a method's arguments to its result type; None for no result.
ResultType = Callable[["tuple[Any, ...]"], Optional[Type]]


def _simple(name: str, result: ResultType) -> Callable[..., Any]:
    def method(self: SimBuilder, *args: Any, **kwargs: Any) -> Any:
        args = (*args, *kwargs.values())
        type = result(args)
        op = self.record(name, args, () if type is None else (type,))
        return op if type is None else op.results[0]

    method.__name__ = f"create_{name}"
    return method


def _install() -> None:
    def put(names: str, result: ResultType) -> None:
        for name in names.split():
            setattr(SimBuilder, f"create_{name}", _simple(name, result))

    def like(position: int) -> ResultType:
        return lambda args: args[position].type

    for position, names in _LIKE.items():
        put(names, like(position))
    for position, names in _TYPED.items():
        put(names, itemgetter(position))
    put(_MEMDESC, lambda args: args[0])
    put(_NOTHING, lambda args: None)
    compare = [f"icmp{c}" for c in "EQ NE SGE SGT SLE SLT UGE UGT ULE ULT".split()]
    compare += [f"fcmp{o}{c}" for o in "OU" for c in "EQ NE GE GT LE LT".split()]
    put(" ".join(compare), lambda args: args[0].type.with_element(I1))

    def constant(bits: int) -> Callable[[SimBuilder, int], Value]:
        kind = ScalarType(f"i{bits}")
        return lambda self, value: self.constant(kind, value)

    def floating(name: str) -> Callable[[SimBuilder, float], Value]:
        return lambda self, value: self.constant(ScalarType(name), float(value))

    for bits in (1, 8, 16, 32, 64):
        setattr(SimBuilder, f"get_int{bits}", constant(bits))
        setattr(SimBuilder, f"get_uint{bits}", constant(bits))
    for name in ("fp16", "bf16", "fp32", "fp64"):
        setattr(SimBuilder, f"get_{name}", floating(name))
    for method, scalar in _SCALARS.items():
        kind = ScalarType(scalar)
        setattr(SimBuilder, f"get_{method}_ty", lambda self, kind=kind: kind)


_install()
