"""What a builder is: all that the core calls on one, and sets on one.

A kernel is traced by calls on a builder, one method `create_x` for each op. Triton's own builder
emits MLIR; a vendor whose compiler is one of Triton's returns it (`gluon_core.plugin.ops.op_builder`), or
an object that adds its ops to it. The simulator's records a program instead. Whatever a builder makes
is opaque to the core but for the methods named here.

Triton's methods come and go: what the installed Triton's builder has not, the core does not call.
Ops of a vendor are methods of its own builder and of the simulator's reference models; only the
vendor's language module calls those. The conformance suite asks a builder for each method.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

from gluon_core.plugin.call_sites import CallSite
from gluon_core.plugin.options import Options

__all__ = [
    "Block",
    "Builder",
    "Experiments",
    "Function",
    "Module",
    "Operation",
    "Recorder",
    "Region",
    "Value",
    "members",
]

# Opaque to the core: it gets them from one method of a builder and hands them to another.
Type = Any
Attribute = Any
Location = Any
InsertPoint = Any
Enum = Any  # one of Triton's enums in `ir`: a cache modifier, a memory order, a rounding mode


class Value(Protocol):
    """The result of an op, or the argument of a block."""

    def get_type(self) -> Type: ...

    def get_loc(self) -> Location: ...

    def set_loc(self, location: Location) -> None: ...

    def set_attr(self, name: str, value: Attribute) -> None:
        """A promise about the value: `tt.divisibility`, `tt.contiguity`, `tt.constancy`."""

    def replace_all_uses_with(self, other: Any) -> None:
        """The induction variable of a loop stands for its placeholder from here on."""


class Block(Protocol):
    """Ops in order."""

    def add_argument(self, type: Type) -> Value: ...

    def add_argument_at(self, type: Type, location: Location) -> Value: ...

    def arg(self, index: int) -> Value: ...

    def get_parent(self) -> Region: ...

    def has_terminator(self) -> bool: ...

    def merge_block_before(self, other: Any) -> None:
        """Move all ops to the front of `other`."""

    def replace_use_in_block_with(self, old: Any, new: Any) -> None: ...

    def erase(self) -> None: ...


class Region(Protocol):
    """Blocks that an op holds."""

    def size(self) -> int: ...

    def push_back(self, block: Any) -> None: ...


class Operation(Protocol):
    """What a method makes that has no result, several, or regions.

    Each has those of these methods that its kind has: only an `if` has a then-block.
    """

    def get_result(self, index: int) -> Value: ...

    def get_num_results(self) -> int: ...

    def get_region(self, index: int) -> Region: ...

    def get_body(self, index: int) -> Block:
        """Of a `for`."""

    def get_induction_var(self) -> Value:
        """Of a `for`."""

    def get_before(self) -> Region:
        """Of a `while`: computes the condition."""

    def get_after(self) -> Region:
        """Of a `while`: the body."""

    def get_then_block(self) -> Block:
        """Of an `if`."""

    def get_else_block(self) -> Block:
        """Of an `if`."""

    def get_default_region(self) -> Region:
        """Of `warp_specialize`."""

    def get_partition_op_holder(self) -> Region:
        """Of `warp_specialize`."""

    def set_requested_registers(self, registers: Sequence[int]) -> None:
        """Of `warp_specialize`: registers of a thread of each partition."""

    def get_operation(self) -> Any: ...

    def set_attr(self, name: str, value: Attribute) -> None: ...

    def verify(self) -> bool:
        """Whether a reduction or scan is well formed."""


class Function(Protocol):
    """A kernel, or a function that kernels call."""

    def add_entry_block(self) -> Block: ...

    def args(self, index: int) -> Value: ...

    def get_num_args(self) -> int: ...

    def set_arg_attr(self, index: int, name: str, value: Any) -> None:
        """What is known of a parameter, such as `tt.divisibility` 16."""

    def set_attr(self, name: str, value: Attribute) -> None: ...

    def reset_type(self, type: Type) -> None:
        """The type with the results, which are known once the body was traced."""

    def finalize(self) -> None:
        """The body is complete."""


class Module(Protocol):
    """What a kernel turns into, and what the first stage of a pipeline gets.

    Attributes:
        context: the MLIR context it was traced in; the core sets it.
    """

    context: Any

    def push_back(self, function: Any) -> None: ...

    def has_function(self, name: str) -> bool: ...

    def get_function(self, name: str) -> Function: ...

    def set_attr(self, name: str, value: Attribute) -> None:
        """`ttg.target` (`Compiler.target_attribute`), `ttg.num-warps`, `ttg.num-ctas`,
        `ttg.threads-per-warp`, and `ttg.maxnreg` where that is an option."""

    def verify(self) -> bool:
        """Whether it is well formed; what is wrong goes to standard error."""

    def str_nodebug(self) -> str:
        """As text without locations."""


Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]
Ternary = Callable[[Any, Any, Any], Any]
ToType = Callable[[Any, Type], Any]  # a value and the type that it becomes
Variadic = Callable[..., Any]


class Positions(Protocol):
    """Where the next op goes, and which line it is of."""

    def get_insertion_block(self) -> Any: ...
    def get_insertion_point(self) -> InsertPoint: ...
    def restore_insertion_point(self, point: InsertPoint) -> None: ...
    def set_insertion_point_to_start(self, block: Any) -> None: ...
    def set_insertion_point_to_end(self, block: Any) -> None: ...
    def set_insertion_point_after(self, operation: Any) -> None: ...
    def create_block(self) -> Any:
        """A block behind the current one, in its region; ops go there from now on."""

    def create_block_with_parent(self, region: Any, types: Sequence[Type]) -> Any:
        """A block with arguments of `types` at the end of `region`; ops go there from now on."""

    def new_block(self) -> Any:
        """A block that stands nowhere yet."""

    def create_loc(self, file: str, line: int, column: int) -> Location: ...
    def create_name_loc(self, name: str, child_loc: Location = None) -> Location:
        """`child_loc`, of a value that the kernel calls `name`."""

    def get_loc(self) -> Location: ...
    def set_loc(self, *where: Any) -> None:
        """A location, or file, line and column."""


class Functions(Protocol):
    """Modules and functions."""

    def create_module(self) -> Any: ...
    def get_or_insert_function(
        self, module: Any, name: str, type: Type, visibility: str, noinline: bool
    ) -> Any:
        """The function `name` of `module`, made if need be; `visibility` is `public` for a kernel,
        else `private`."""

    def call(self, function: Any, arguments: Sequence[Any]) -> Any: ...
    def ret(self, values: Sequence[Any]) -> Any: ...


class Types(Protocol):
    """Types and attributes."""

    get_void_ty: Callable[[], Type]
    get_int1_ty: Callable[[], Type]
    get_int8_ty: Callable[[], Type]
    get_int16_ty: Callable[[], Type]
    get_int32_ty: Callable[[], Type]
    get_int64_ty: Callable[[], Type]
    get_half_ty: Callable[[], Type]
    get_bf16_ty: Callable[[], Type]
    get_float_ty: Callable[[], Type]
    get_double_ty: Callable[[], Type]
    get_fp8e4nv_ty: Callable[[], Type]
    get_fp8e4b8_ty: Callable[[], Type]
    get_fp8e4b15_ty: Callable[[], Type]
    get_fp8e5_ty: Callable[[], Type]
    get_fp8e5b16_ty: Callable[[], Type]

    def get_ptr_ty(self, element: Type, address_space: int) -> Type: ...
    def get_block_ty(self, element: Type, shape: Sequence[int]) -> Type: ...
    def get_function_ty(self, inputs: Sequence[Type], outputs: Sequence[Type]) -> Type: ...
    def get_distributed_ty(
        self, element: Type, shape: Sequence[int], layout: Attribute
    ) -> Type: ...
    def get_shared_mem_desc_ty(
        self, element: Type, shape: Sequence[int], layout: Attribute, alloc_shape: Sequence[int]
    ) -> Type: ...
    def get_tensor_descriptor_layout_type(
        self, block_type: Type, is_signed: bool, layout: Attribute
    ) -> Type: ...

    get_int32_attr: Callable[[int], Attribute]
    get_string_attr: Callable[[str], Attribute]
    get_unit_attr: Callable[[], Attribute]
    get_disable_loop_licm_attr: Callable[[], Attribute]
    get_cache_policy: Callable[[Enum, Enum], Attribute]


class Layouts(Protocol):
    """Layouts as attributes; what each takes are the fields of the layout of its name."""

    get_auto_layout: Callable[[], Attribute]
    get_coalesced_layout: Callable[[], Attribute]
    get_blocked_layout: Variadic
    get_slice_layout: Callable[[int, Attribute], Attribute]
    get_distributed_linear_layout: Variadic
    get_dot_operand_layout: Callable[[int, Attribute, int], Attribute]
    get_swizzled_shared_layout: Variadic
    get_padded_shared_layout: Variadic
    get_shared_linear_layout: Variadic

    def get_gluon_layout_from_tensor(self, value: Any) -> Any:
        """The layout of a tensor: one of ours, or of Triton's class of the same name and fields."""

    def get_gluon_layout_from_memdesc(self, value: Any) -> Any:
        """The same of a view of shared memory."""

    def is_convert_layout_trivial(self, result_type: Type, value: Any) -> bool:
        """Whether a tensor of that type has its elements where `value` has them."""


class Constants(Protocol):
    """Compile-time numbers as values."""

    get_int1: Callable[[bool], Any]
    get_int8: Callable[[int], Any]
    get_int16: Callable[[int], Any]
    get_int32: Callable[[int], Any]
    get_int64: Callable[[int], Any]
    get_uint8: Callable[[int], Any]
    get_uint16: Callable[[int], Any]
    get_uint32: Callable[[int], Any]
    get_uint64: Callable[[int], Any]
    get_fp16: Callable[[float], Any]
    get_bf16: Callable[[float], Any]
    get_fp32: Callable[[float], Any]
    get_fp64: Callable[[float], Any]
    get_null_value: Callable[[Type], Any]
    get_all_ones_value: Callable[[Type], Any]
    create_poison: Callable[[Type], Any]


class Arithmetic(Protocol):
    """One op for each element of tensors, or of scalars."""

    create_add: Binary
    create_sub: Binary
    create_mul: Binary
    create_sdiv: Binary
    create_udiv: Binary
    create_srem: Binary
    create_urem: Binary
    create_fadd: Binary
    create_fsub: Binary
    create_fmul: Binary
    create_fdiv: Binary
    create_frem: Binary
    create_fneg: Unary
    create_precise_divf: Binary
    create_approx_divf: Binary
    create_and: Binary
    create_or: Binary
    create_xor: Binary
    create_shl: Binary
    create_lshr: Binary
    create_ashr: Binary
    create_minsi: Binary
    create_minui: Binary
    create_maxsi: Binary
    create_maxui: Binary
    create_minimumf: Binary
    create_maximumf: Binary
    create_minnumf: Binary
    create_maxnumf: Binary
    create_clampf: Callable[[Any, Any, Any, Enum], Any]
    create_fma: Ternary
    create_umulhi: Binary
    create_fabs: Unary
    create_iabs: Unary
    create_ceil: Unary
    create_floor: Unary
    create_exp: Unary
    create_exp2: Unary
    create_log: Unary
    create_log2: Unary
    create_sin: Unary
    create_cos: Unary
    create_erf: Unary
    create_sqrt: Unary
    create_precise_sqrt: Unary
    create_rsqrt: Unary
    create_icmpEQ: Binary
    create_icmpNE: Binary
    create_icmpSGE: Binary
    create_icmpSGT: Binary
    create_icmpSLE: Binary
    create_icmpSLT: Binary
    create_icmpUGE: Binary
    create_icmpUGT: Binary
    create_icmpULE: Binary
    create_icmpULT: Binary
    create_fcmpOEQ: Binary
    create_fcmpOGE: Binary
    create_fcmpOGT: Binary
    create_fcmpOLE: Binary
    create_fcmpOLT: Binary
    create_fcmpUNE: Binary
    create_select: Ternary
    create_addptr: Binary
    create_bitcast: ToType
    create_int_cast: Callable[[Any, Type, bool], Any]
    create_int_to_ptr: ToType
    create_ptr_to_int: ToType
    create_fp_ext: ToType
    create_fp_trunc: ToType
    create_fp_to_fp: Callable[[Any, Type, Optional[Enum]], Any]
    create_fp_to_si: ToType
    create_fp_to_ui: ToType
    create_si_to_fp: ToType
    create_ui_to_fp: ToType
    create_fp4_to_fp: Callable[[Any, Type, int], Any]

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, values: Sequence[Any], type: Type, pure: bool
    ) -> Any:
        """A function of a vendor's math library."""

    def create_inline_asm(
        self,
        text: str,
        constraints: str,
        values: Sequence[Any],
        types: Sequence[Type],
        pure: bool,
        pack: int,
    ) -> Any: ...

    def create_threadwise_inline_asm(
        self,
        text: str,
        constraints: str,
        values: Sequence[Any],
        types: Sequence[Type],
        *more: Any,
    ) -> Any: ...

    def create_map_elementwise(
        self, values: Sequence[Any], types: Sequence[Type], pack: int
    ) -> Any: ...

    def create_map_elementwise_ret(self, values: Sequence[Any]) -> Any: ...


class Tensors(Protocol):
    """Shapes, layouts, and ops along a dimension."""

    create_make_range: Callable[[Type, int, int], Any]
    create_splat: Callable[[Type, Any], Any]
    create_unsplat: Unary
    create_broadcast: ToType
    create_expand_dims: Callable[[Any, int], Any]
    create_reshape: Callable[[Any, Sequence[int], bool], Any]
    create_trans: Callable[[Any, Sequence[int]], Any]
    create_join: Binary
    create_split: Callable[[Any], Sequence[Any]]
    create_cat: Callable[[Any, Any, Type], Any]
    create_convert_layout: Callable[[Type, Any], Any]
    create_set_auto_layout: Callable[[Attribute, Any], Any]
    create_gather: Callable[[Any, Any, int], Any]
    create_histogram: Callable[[Any, int, Optional[Any], Attribute], Any]
    create_dot: Callable[[Any, Any, Any, Enum, int], Any]
    create_reduce: Callable[[Sequence[Any], int], Any]
    create_reduce_ret: Variadic
    create_scan: Callable[[Sequence[Any], int, bool], Any]
    create_scan_ret: Variadic


class Control(Protocol):
    """Programs, control flow, and what is said while a kernel runs."""

    create_get_program_id: Callable[[int], Any]
    create_get_num_programs: Callable[[int], Any]
    create_if_op: Callable[[Sequence[Type], Any, bool], Any]
    create_for_op: Callable[[Any, Any, Any, Sequence[Any]], Any]
    create_while_op: Callable[[Sequence[Type], Sequence[Any]], Any]
    create_condition_op: Callable[[Any, Sequence[Any]], Any]
    create_yield_op: Callable[[Sequence[Any]], Any]
    create_branch: Callable[[Any, Sequence[Any]], Any]
    create_cond_branch: Ternary
    create_assert: Callable[[Any, str], Any]
    create_assume: Unary
    create_print: Callable[[str, bool, Sequence[Any], Sequence[int]], Any]
    create_barrier: Callable[[], Any]

    def create_cluster_barrier(self, relaxed: bool = False) -> Any: ...

    create_cluster_sync: Callable[[], Any]
    create_warp_specialize: Variadic
    create_warp_specialize_partitions: Variadic
    create_warp_yield: Callable[[Sequence[Any]], Any]
    create_warp_return: Callable[[], Any]


class Memory(Protocol):
    """Global and shared memory."""

    create_load: Callable[[Any, Enum, Enum, bool], Any]
    create_store: Callable[[Any, Any, Enum, Enum], Any]
    create_masked_load: Variadic
    create_masked_store: Variadic
    create_atomic_rmw: Callable[[Enum, Any, Any, Any, Enum, Enum], Any]
    create_atomic_cas: Callable[[Any, Any, Any, Enum, Enum], Any]
    create_atomic_load: Variadic
    create_atomic_store: Variadic
    create_atomic_poll: Variadic
    create_local_alloc: Callable[..., Any]
    create_local_dealloc: Unary
    create_local_load: Callable[[Type, Any], Any]
    create_local_store: Binary
    create_local_gather: Callable[[Type, Any, Any, int], Any]
    create_local_scatter: Callable[[Any, Any, Any, int], Any]
    create_local_atomic_scatter_rmw: Variadic
    create_memdesc_index: Callable[[Type, Any, Any], Any]
    create_memdesc_subslice: Callable[[Type, Any, Sequence[int]], Any]
    create_memdesc_trans: Callable[[Any, Sequence[int]], Any]
    create_memdesc_reshape: Callable[[Any, Sequence[int]], Any]
    create_memdesc_reinterpret: Callable[[Type, Any], Any]


class Builder(
    Positions,
    Functions,
    Types,
    Layouts,
    Constants,
    Arithmetic,
    Tensors,
    Control,
    Memory,
    Protocol,
):
    """The answer to `Compiler.builder(context, target)`; one for each traced function.

    Attributes:
        options: what `Compiler.options` answered; the core sets it.
        codegen_fns: what `Compiler.codegen` answered; the core sets it.
        module_map: what `Compiler.module_map` answered; the core sets it.
    """

    options: Options
    codegen_fns: Mapping[str, Any]
    module_map: Mapping[str, Any]


class Experiments(Protocol):
    """Ops that Triton calls experimental (`gl.fpsan`). A builder may lack them; a kernel that wants one
    is then refused."""

    create_experimental_fpsan_embed: ToType
    create_experimental_fpsan_unembed: ToType


class Recorder(Builder, Protocol):
    """What a builder that makes no MLIR answers besides.

    Each of these the core asks for by name, so that a builder may have some of them.
    """

    def get_layout(self, layout: Any) -> Attribute:
        """A layout of ours as this builder keeps it; instead of all methods of `Layouts` that make one."""

    def hint(self, values: Sequence[int]) -> Attribute:
        """A promise about each dimension of a value, for `Value.set_attr`; else an MLIR attribute."""

    def bind_name(self, name: str, values: Sequence[Any]) -> None:
        """Note that the kernel assigned these values, or one constant, to a variable; each part of a tuple
        or an aggregate comes by itself, under the expression for it."""

    def enter_call(self, site: Optional[CallSite]) -> Optional[CallSite]:
        """Ascribe what is built next to this call of the kernel; return the call before, which is
        entered again behind it."""

    def call_buffer(self, value: Value, name: str, remedy: str) -> None:
        """What reports call the shared memory that a building block allocated, such as the barriers of
        a ring, and what to do where a wait there never ends or too many arrive."""

    def create_breakpoint(self) -> None:
        """`breakpoint()` in a kernel; without it that is an error."""

    def deferred_store(
        self, dest: Value, value: Value, pointer: Value, mask: Optional[Value]
    ) -> None:
        """A store to shared memory of what was loaded from `pointer`, which counts as done only after its
        group was closed and waited for: a portable copy on a target that copies at once; else
        `create_local_store`."""

    def deferred_commit(self) -> None:
        """Close the group of those stores."""

    def deferred_wait(self, pending: int) -> None:
        """Until at most `pending` groups of them are left."""

    def deferred_read(self, buffers: Sequence[Value], is_async: bool, alone: bool) -> None:
        """A portable product reads buffers here; by the contract it does so on its own, behind a
        `deferred_fence`, and with `is_async` until a `deferred_read_wait`. `alone` says that the
        target's unit is such a one: then the op that follows reads them."""

    def deferred_read_wait(self, pending: int) -> None:
        """Until at most `pending` of those are left."""

    def deferred_fence(self) -> None:
        """What threads stored to shared memory is visible to those."""

    def tiles_begun(self, ring: Value) -> None:
        """A pipeline of tiles begins; `ring` is the first of its buffers, and has a stage per entry.
        With the two that follow, who records a kernel can hold it to the order of steps."""

    def tiles_fetched(self, ring: Value, step: Value, pred: Optional[Value]) -> None:
        """The tiles of a step (int32) are fetched next; where `pred` is false, nothing is copied."""

    def tiles_awaited(self, ring: Value, step: Value, pending: int) -> None:
        """They are waited for next, while `pending` later steps may still be on their way."""

    def tile_placed(self, place: Sequence[Value], pred: Optional[Value]) -> None:
        """A tile is copied or stored next whose first element is at `place`, an int32 for each dimension,
        which are not negative by the contract; where `pred` is false, it is not."""


def members(protocol: type) -> frozenset[str]:
    """The names of the attributes and methods that a protocol declares, inherited ones included."""
    found: set[str] = set()
    for cls in protocol.__mro__:
        if cls.__module__.startswith("gluon_core."):
            found.update(cls.__dict__.get("__annotations__", ()))  # noqa: RUF063
            found.update(name for name in vars(cls) if not name.startswith("_"))
    return frozenset(found)
