import numpy as np

import gluon_core as gluon
from gluon_core import errors, values
from gluon_core import language as gl
from gluon_core.features import Feature
from gluon_core.plugin import ops
from gluon_core.plugin.semantic import Memory, MemoryType, SemanticLayer
from gluon_core.plugin.typing import Const, Operand, Scalar

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
x = np.arange(128, dtype=np.float32)


def run(kernel, *arguments, on="sim:hopper", **constants):
    kernel[(1,)](*arguments, target=on, **constants)


def refused(call):
    try:
        call()
    except errors.GluonError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0].partition(', found')[0]}")


# -- gluon_core.plugin.ops.builtin, gluon_core.plugin.ops.semantic_layer, gluon_core.plugin.ops.tensor, gluon_core.plugin.semantic.SemanticLayer: an op; its body runs while a kernel is traced
@ops.builtin(name="gl.anvil.scaled")
def scaled(a: ops.tensor, by: Operand) -> ops.tensor:
    semantic: SemanticLayer = ops.semantic_layer()
    return semantic.mul(a, semantic.to_tensor(by), True)


@gluon.jit
def doubles(x, out):
    i = gl.arange(0, 128, LINE)
    gl.store(out + i, scaled(gl.load(x + i), 2.0))


out = np.zeros_like(x)
run(doubles, x, out)
print(out[:4])
refused(lambda: scaled(x, 2.0))
#> [0. 2. 4. 6.]
#> NotInKernelError: gl.anvil.scaled was called outside a kernel. Call it from a function decorated with @gluon.jit.

# -- gluon_core.plugin.ops.unwrap, gluon_core.plugin.ops.constexpr: compile-time operands, and how errors call values
@ops.builtin(name="gl.anvil.facts")
def facts(a: ops.tensor, rounds: Const[int], fast: Const[bool] = False) -> ops.constexpr:
    semantic: SemanticLayer = ops.semantic_layer()
    print(semantic.compile_time_bool(fast, "fast"), ops.unwrap(rounds), semantic.describe(a))
    return ops.constexpr(semantic.compile_time_int(rounds, "rounds", 1, 8) * 10)


@gluon.jit
def asks(x, ROUNDS: gl.constexpr):
    gl.store(x, facts(gl.load(x), ROUNDS))


run(asks, x, ROUNDS=3)
print(x[0])
refused(lambda: run(asks, x, ROUNDS=9))
#> False 3 fp32
#> 30.0
#> False 9 fp32
#> ArgumentError: rounds: out of range; expected 1 to 8, got 9

# -- gluon_core.plugin.semantic.SemanticLayer: operands that are known when the kernel runs
@ops.builtin(name="gl.anvil.box")
def box(a: ops.tensor, axis: Const[int], corner: Scalar[int], pred: Operand = True) -> None:
    semantic: SemanticLayer = ops.semantic_layer()
    print(semantic.shape_of(a), semantic.wrap_axis(axis, 1))
    print([semantic.scalar_int32(one, "at").dtype for one in semantic.items_of(corner)])
    print(semantic.predicate(pred).dtype, semantic.handle_or_absent(None))


@gluon.jit
def boxes(x, n):
    box(gl.arange(0, 128, LINE), -1, (n, 3), n > 2)


run(boxes, x, 7)
#> [128] 0
#> [triton.language.int32, triton.language.int32]
#> int1 None

# -- gluon_core.plugin.semantic.SemanticLayer, gluon_core.plugin.semantic.Memory, gluon_core.plugin.semantic.MemoryType: buffers and barriers
@ops.builtin(name="gl.anvil.fill")
def fill(buffer: Memory, value, barrier) -> None:
    semantic: SemanticLayer = ops.semantic_layer()
    held = semantic.shared_memory(buffer, "buffer")
    kind: MemoryType = held.type
    semantic.check_stored(kind, value)
    semantic.check_view_size(kind.shape[0], 128, "elements")
    semantic.check_barrier(barrier, "barrier", "allocate_mbarrier() makes one.")
    print(held.dtype, semantic.same_bits(gl.int32, gl.uint32), semantic.same_bits(gl.int32, gl.float32))
    buffer.store(value)


@gluon.jit
def fills(dtype: gl.constexpr):
    barrier = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    fill(gl.allocate_shared_memory(dtype, [128], FLAT), gl.arange(0, 128, LINE), barrier)


run(fills, gl.int32)
refused(lambda: run(fills, gl.float32))
#> int32 True False
#> DtypeError: value: the value does not have the buffer's dtype; expected fp32, got int32. Cast it with value.to(...).

# -- gluon_core.plugin.semantic.SemanticLayer: products
@ops.builtin(name="gl.anvil.multiply")
def multiply(a, b, acc) -> None:
    semantic: SemanticLayer = ops.semantic_layer()
    semantic.check_matmul_shapes(*(semantic.shape_of(value) for value in (a, b, acc)))
    sums = {gl.float16: (gl.float32,)}
    semantic.check_matmul_dtypes("the Anvil", a.dtype, b.dtype, acc.dtype, sums)
    semantic.check_k_width(a, b, 4)


@gluon.jit
def multiplies(K: gl.constexpr, dtype: gl.constexpr, WIDTH: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    a = gl.full([16, K], 1, dtype, gl.DotOperandLayout(0, mma, WIDTH))
    b = gl.full([16, 16], 1, dtype, gl.DotOperandLayout(1, mma, WIDTH))
    multiply(a, b, gl.zeros([16, 16], gl.float32, mma))


refused(lambda: run(multiplies, 32, gl.float16, 4))
refused(lambda: run(multiplies, 16, gl.int8, 4))
refused(lambda: run(multiplies, 16, gl.float16, 2))
#> ShapeError: the shapes do not multiply; expected a [M, K], b [K, N], acc [M, N], got [16, 32], [16, 16], [16, 16]
#> DtypeError: a: the Anvil does not take this dtype; expected fp16, got int8
#> LayoutError: k_width: the operands' k_width does not fit; expected one width for both, at least 4 for fp16, got 2 and 2

# -- gluon_core.plugin.ops.has, gluon_core.plugin.ops.require: the features of the target and the installed Triton; `builtin(requires=..., since=...)` asks both
LATER = Feature((99, 0), "the unit of the Anvil 2")


@ops.builtin(name="gl.anvil.strike")
def strike() -> None:
    ops.semantic_layer().check_capabilities("gl.anvil.strike", ("nvidia.wgmma",))
    print(ops.has(LATER))
    ops.require(LATER, "gl.anvil.strike(twice=True)")


@gluon.jit
def strikes():
    strike()


refused(lambda: run(strikes, on="sim:gfx942"))
refused(lambda: run(strikes))
#> CapabilityError: gl.anvil.strike needs nvidia.wgmma (sm_90); target is sim:gfx942
#> False
#> CapabilityError: gl.anvil.strike(twice=True) needs Triton >= 99.0

# -- gluon_core.plugin.ops.compile_time, gluon_core.plugin.ops.constexpr_function, gluon_core.plugin.ops.traced, gluon_core.plugin.ops.JITFunction: functions of compile-time values, and functions in the language
@ops.compile_time
def halves(n):
    return n // 2


@ops.traced
def cubed(v):
    return v * v * v


@gluon.jit
def computes(out):
    half: gl.constexpr = halves(128)
    quarter: gl.constexpr = gluon.constexpr_function(halves)(half)
    gl.store(out, half)
    gl.store(out + 1, quarter)
    gl.store(out + 2, cubed(3.0))


run(computes, out)
print(out[:3], halves(10), isinstance(cubed, ops.JITFunction))
print(ops.constexpr_function is gluon.constexpr_function)
#> [64. 32. 27.] 5 True
#> True

# -- gluon_core.plugin.ops.is_builtin, gluon_core.plugin.ops.TracedFunction: ops, and functions that kernels trace
print(ops.is_builtin(scaled), ops.is_builtin(cubed), isinstance(cubed, ops.TracedFunction))
#> True False True

# -- gluon_core.plugin.ops.base_value, gluon_core.plugin.ops.base_type: the base classes of values in kernels and of their types
print(issubclass(ops.tensor, ops.base_value), issubclass(ops.dtype, ops.base_type))
#> True True

# -- gluon_core.plugin.ops.tl, gluon_core.plugin.ops.tl_core, gluon_core.plugin.ops.tl_tuple, gluon_core.plugin.ops.tuple_type, gluon_core.plugin.ops.dtype, gluon_core.plugin.ops.block_type, gluon_core.plugin.ops.constexpr_type: Triton's modules and types, whichever release is installed
pair = ops.tl_tuple([ops.constexpr(3), ops.constexpr(4)])
print(len(pair.values), ops.tl.float32, ops.tl_core.tensor is ops.tensor)
print(isinstance(gl.int8, ops.dtype), ops.block_type(gl.int8, [16]), ops.constexpr_type(3))
print(ops.tuple_type([ops.tl.int32, ops.tl.int64]).types)
#> 2 fp32 True
#> True <['16'], int8> constexpr_type[3]
#> [triton.language.int32, triton.language.int64]

# -- gluon_core.plugin.ops.ir, gluon_core.plugin.ops.gluon_ir, gluon_core.plugin.ops.passes, gluon_core.plugin.ops.op_builder: MLIR, for vendors with a compiler in Triton
context = ops.ir.context()
ops.ir.load_dialects(context)
builder = ops.op_builder(context, "cuda:90")
builder.set_loc("anvil.py", 1, 0)
module = builder.create_module()
manager = ops.ir.pass_manager(context)
ops.passes.common.add_canonicalizer(manager)
manager.run(module, "anvil")
print(isinstance(builder, ops.gluon_ir.GluonOpBuilder), str(module).split()[0])
#> True module

# -- gluon_core.plugin.ops.code_generator: the function that is being traced, to call its other functions; layouts that the compiler chooses later
@ops.builtin(name="gl.anvil.twice")
def twice(function, a: ops.tensor) -> ops.tensor:
    generator = ops.code_generator()
    once = generator.call_JitFunction(function, [a], {})
    semantic: SemanticLayer = ops.semantic_layer()
    print(semantic.is_placeholder(a.type.layout), semantic.is_placeholder(gl.AutoLayout()))
    return generator.call_JitFunction(function, [once], {})


@gluon.jit
def grown(v):
    return v + 1.0


@gluon.jit
def grows(out):
    i = gl.arange(0, 128, LINE)
    gl.store(out + i, twice(grown, i.to(gl.float32)))


run(grows, out)
print(out[:3])
#> False True
#> [2. 3. 4.]

# -- gluon_core.values.distributed_type, gluon_core.values.shared_memory_descriptor, gluon_core.values.shared_memory_descriptor_type, gluon_core.values.memory_descriptor, gluon_core.values.memory_descriptor_type: the types of tensors and of on-chip memory
@ops.builtin(name="gl.anvil.types")
def types(a, buffer) -> None:
    assert isinstance(a.type, values.distributed_type)
    assert isinstance(buffer, values.shared_memory_descriptor)
    assert issubclass(values.shared_memory_descriptor, values.memory_descriptor)
    assert isinstance(buffer.type, values.shared_memory_descriptor_type)
    assert issubclass(values.shared_memory_descriptor_type, values.memory_descriptor_type)
    print(a.type.shape, type(buffer.type.layout).__name__, buffer.type.alloc_shape)


@gluon.jit
def typed():
    types(gl.arange(0, 128, LINE), gl.allocate_shared_memory(gl.int8, [4, 32], FLAT).index(1))


run(typed)
#> ['128'] SwizzledSharedLayout [32]

# -- gluon_core.values.handle_value: a value that is one handle of the builder, such as an accumulator under way
class token(values.handle_value):
    """The result of an asynchronous op of the Anvil."""


print(issubclass(token, ops.base_value))
#> True

# -- gluon_core.values.unwrap_shape, gluon_core.values.check_block_shape, gluon_core.values.one_of, gluon_core.values.CachePolicy, gluon_core.values.MBarrierLayout: shapes, choices, and layouts that ops of several vendors take
print(values.unwrap_shape((ops.constexpr(4), 32)), values.one_of("how", "fast", ("fast", "safe")))
refused(lambda: values.one_of("how", "fats", ("fast", "safe")))
refused(lambda: values.check_block_shape([3, 32], "a tile"))
print(values.CachePolicy("cg"), values.MBarrierLayout())
#> [4, 32] fast
#> ArgumentError: how: unknown choice; expected 'fast', 'safe', got 'fats'. Did you mean 'fast'?
#> ShapeError: shape: a tile must have power-of-two dimensions; got [3, 32] (dimension 0 is 3). Round up to 4 and mask the rest.
#> CachePolicy(cache_modifier='cg', eviction_policy='evict_normal') MBarrierLayout(vec=1, per_phase=1, max_phase=1, order=[0], cga_layout=[])
