"""Builders: the methods that the core calls on one, and the attributes that it sets.

A kernel is traced by calls on a builder, one method `create_x` for each op. Triton's own builder
emits MLIR; a vendor whose compiler is one of Triton's returns it (`gluon_core.plugin.ops.op_builder`), or
an object that adds its ops to it. The simulator's records a program instead. The core passes the
results of one method to others and calls nothing on them but the methods named here.

Triton's methods come and go: the core calls none that the installed Triton's builder lacks.
Ops of a vendor are methods of its own builder and of the simulator's reference models; only the
vendor's language module calls those. The conformance suite asks a builder for each method.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable, Mapping, Protocol, Sequence

from gluon_core.plugin.options import CompileOptions

__all__ = ["EXPERIMENTS", "METHODS", "RESULTS", "Builder", "Value"]

# Opaque to the core: it gets them from one method of a builder and hands them to another.
Type = Any
Attribute = Any
Location = Any
InsertPoint = Any
Enum = Any  # one of Triton's enums in `ir`: a cache modifier, a memory order, a rounding mode

# The methods of a builder that make types, attributes, constants and ops, by their parameters. Operands
# and results are values; `type` and `types` are types, `layout` and `policy` attributes, and a name in
# capitals is a member of Triton's enum. `*` stands for parameters that differ between ops or Tritons.
METHODS: Mapping[str, str] = MappingProxyType(
    {
        # Types and attributes.
        "get_{}_ty()": """void int1 int8 int16 int32 int64 half bf16 float double fp8e4nv fp8e4b8
            fp8e4b15 fp8e5 fp8e5b16""",
        "get_{}(type, address_space)": "ptr_ty",
        "get_{}(type, shape)": "block_ty",
        "get_{}(types, results)": "function_ty",
        "get_{}(type, shape, layout)": "distributed_ty",
        "get_{}(type, shape, layout, alloc_shape)": "shared_mem_desc_ty",
        "get_{}(block_type, is_signed, layout)": "tensor_descriptor_layout_type",
        "get_{}(value)": """int32_attr string_attr int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64
            fp16 bf16 fp32 fp64""",
        "get_{}()": "unit_attr disable_loop_licm_attr auto_layout coalesced_layout",
        "get_{}(PRIMARY, SECONDARY)": "cache_policy",
        "get_{}(type)": "null_value all_ones_value",
        # Layouts; the parameters of each are the fields of the layout of its name.
        "get_{}_layout(*)": """blocked slice distributed_linear dot_operand swizzled_shared padded_shared
            shared_linear""",
        "is_{}(type, value)": "convert_layout_trivial",  # no element changes its place
        # One op for each element of tensors, or of scalars.
        "create_{}(x)": """fneg fabs iabs ceil floor exp exp2 log log2 sin cos erf sqrt precise_sqrt rsqrt
            unsplat assume split local_dealloc""",
        "create_{}(x, y)": """add sub mul sdiv udiv srem urem fadd fsub fmul fdiv frem precise_divf
            approx_divf and or xor shl lshr ashr minsi minui maxsi maxui minimumf maximumf minnumf maxnumf
            umulhi icmpEQ icmpNE icmpSGE icmpSGT icmpSLE icmpSLT icmpUGE icmpUGT icmpULE icmpULT fcmpOEQ
            fcmpOGE fcmpOGT fcmpOLE fcmpOLT fcmpUNE addptr join local_store""",
        "create_{}(x, y, z)": "fma select cond_branch",
        "create_{}(x, low, high, NAN)": "clampf",
        "create_{}(x, type)": """bitcast int_to_ptr ptr_to_int fp_ext fp_trunc fp_to_si fp_to_ui si_to_fp
            ui_to_fp broadcast""",
        "create_{}(x, type, is_signed)": "int_cast",
        "create_{}(x, type, ROUNDING)": "fp_to_fp",
        "create_{}(x, type, axis)": "fp4_to_fp",
        "create_{}(library, path, symbol, values, type, pure)": "extern_elementwise",
        "create_{}(text, constraints, values, types, pure, pack)": "inline_asm",
        "create_{}(text, constraints, values, types, *)": "threadwise_inline_asm",
        "create_{}(values, types, pack)": "map_elementwise",
        "create_{}(values)": "map_elementwise_ret yield_op warp_yield",
        # Shapes, layouts, and ops along a dimension.
        "create_{}(type)": "poison",
        "create_{}(type, start, end)": "make_range",
        "create_{}(type, x)": "splat convert_layout local_load memdesc_reinterpret",
        "create_{}(layout, x)": "set_auto_layout",
        "create_{}(x, axis)": "expand_dims",
        "create_{}(x, shape, reorder)": "reshape",
        "create_{}(x, numbers)": "trans memdesc_trans memdesc_reshape",
        "create_{}(x, y, type)": "cat",
        "create_{}(x, index, axis)": "gather",
        "create_{}(x, bins, mask, layout)": "histogram",
        "create_{}(a, b, acc, PRECISION, imprecise)": "dot",
        "create_{}(values, axis)": "reduce",
        "create_{}(values, axis, reverse)": "scan",
        "create_{}(*values)": "reduce_ret scan_ret",
        # Programs and control flow.
        "create_{}(axis)": "get_program_id get_num_programs",
        "create_{}(types, condition, has_else)": "if_op",
        "create_{}(start, end, step, values)": "for_op",
        "create_{}(types, values)": "while_op",
        "create_{}(condition, values)": "condition_op",
        "create_{}(block, values)": "branch",
        "create_{}(condition, text)": "assert",
        "create_{}(prefix, hex, values, signs)": "print",
        "create_{}()": "barrier cluster_sync warp_return",
        "create_{}(relaxed=False)": "cluster_barrier",
        "create_{}(*)": """warp_specialize warp_specialize_partitions masked_load masked_store atomic_load
            atomic_store atomic_poll local_alloc local_atomic_scatter_rmw""",
        # Global and shared memory.
        "create_{}(pointer, CACHE, EVICTION, volatile)": "load",
        "create_{}(pointer, value, CACHE, EVICTION)": "store",
        "create_{}(OP, pointer, value, mask, SEM, SCOPE)": "atomic_rmw",
        "create_{}(pointer, compare, value, SEM, SCOPE)": "atomic_cas",
        "create_{}(type, memory, indices, axis)": "local_gather",
        "create_{}(memory, values, indices, axis)": "local_scatter",
        "create_{}(type, memory, index)": "memdesc_index",
        "create_{}(type, memory, offsets)": "memdesc_subslice",
    }
)
# Ops that Triton calls experimental (`gl.fpsan`). A builder may lack them; a kernel that wants one is then
# refused.
EXPERIMENTS = frozenset({f"create_experimental_fpsan_{op}" for op in ("embed", "unembed")})


class Value(Protocol):
    """The result of an op, or the argument of a block."""

    def get_type(self) -> Type: ...
    def get_loc(self) -> Location: ...
    def set_loc(self, location: Location) -> None: ...
    def set_attr(self, name: str, value: Attribute) -> None:
        """Promise a property of the value: `tt.divisibility`, `tt.contiguity`, `tt.constancy`."""

    def replace_all_uses_with(self, other: Any) -> None:
        """Replace a loop's placeholder by its induction variable."""


# The further results of its methods, and their methods by parameters.
RESULTS: Mapping[str, str] = MappingProxyType(
    {
        # Ops in order. `merge_block_before` moves all ops to the front of the other.
        "block": """add_argument(type) add_argument_at(type, location) arg(index) get_parent() erase()
            has_terminator() merge_block_before(block) replace_use_in_block_with(old, new)""",
        # Blocks that an op holds.
        "region": "size() push_back(block)",
        # An op that has no result, several, or regions. Each has the methods of its kind: only an `if` has
        # a then-block; `verify` is of reductions and scans; registers are those of a thread of each partition.
        "operation": """get_result(index) get_num_results() get_operation() set_attr(name, attribute) verify()
            get_body(index) get_induction_var() get_before() get_after() get_then_block() get_else_block()
            get_region(index) get_default_region() get_partition_op_holder()
            set_requested_registers(registers)""",
        # A kernel, or a function that kernels call. Attributes of arguments promise properties, such as
        # `tt.divisibility` 16; `reset_type` comes with the results, once the body was traced.
        "function": """add_entry_block() args(index) get_num_args() set_arg_attr(index, name, value)
            set_attr(name, attribute) reset_type(type) finalize()""",
        # A traced kernel with all that it calls: the input of the first stage. The core sets its `context`,
        # and the attributes `ttg.target` (`Compiler.target_attribute`), `ttg.num-warps`, `ttg.num-ctas`,
        # `ttg.threads-per-warp`, and `ttg.maxnreg` where that is an option. `verify` prints a
        # fault to standard error; `str_nodebug` is the text without locations.
        "module": """context push_back(function) has_function(name) get_function(name) verify() str_nodebug()
            set_attr(name, attribute)""",
    }
)


class Builder(Protocol):
    """The answer to `Compiler.builder(context, target)`; one for each traced function.

    It has the `METHODS` as well, and the ops of its vendor.

    Attributes:
        options: the answer of `Compiler.options`; the core sets it.
        codegen_fns: the answer of `Compiler.codegen`; the core sets it.
        module_map: the answer of `Compiler.module_map`; the core sets it.
    """

    options: CompileOptions
    codegen_fns: Mapping[str, Any]
    module_map: Mapping[str, Any]

    def __getattr__(self, name: str) -> Callable[..., Any]: ...

    # -- the place of the next op, and its line ----------------------------------------------------

    def get_insertion_block(self) -> Any: ...
    def get_insertion_point(self) -> InsertPoint: ...
    def restore_insertion_point(self, point: InsertPoint) -> None: ...
    def set_insertion_point_to_start(self, block: Any) -> None: ...
    def set_insertion_point_to_end(self, block: Any) -> None: ...
    def set_insertion_point_after(self, operation: Any) -> None: ...
    def create_block(self) -> Any:
        """Add a block behind the current one, in its region; ops go there from now on."""

    def create_block_with_parent(self, region: Any, types: Sequence[Type]) -> Any:
        """Add a block with arguments of `types` at the end of `region`; ops go there from now on."""

    def new_block(self) -> Any:
        """Return a block that is in no region yet."""

    def create_loc(self, file: str, line: int, column: int) -> Location: ...
    def create_name_loc(self, name: str, child_loc: Location = None) -> Location:
        """Return `child_loc`, of a value that the kernel calls `name`."""

    def get_loc(self) -> Location: ...
    def set_loc(self, *where: Any) -> None:
        """Set a location, or file, line and column."""

    # -- modules and functions ---------------------------------------------------------------------

    def create_module(self) -> Any: ...
    def get_or_insert_function(
        self, module: Any, name: str, type: Type, visibility: str, noinline: bool
    ) -> Any:
        """Return the function `name` of `module`, a new one if need be; `visibility` is `public` for a
        kernel, else `private`."""

    def call(self, function: Any, arguments: Sequence[Any]) -> Any: ...
    def ret(self, values: Sequence[Any]) -> Any: ...

    # -- layouts that the builder inferred ---------------------------------------------------------

    def get_gluon_layout_from_tensor(self, value: Any) -> Any:
        """Return the layout of a tensor: one of ours, or of Triton's class of the same name and fields."""

    def get_gluon_layout_from_memdesc(self, value: Any) -> Any:
        """Return the layout of a view of shared memory, likewise."""
