import numpy as np

import gluon_core as gluon
from gluon_core import errors, values, vendor
from gluon_core import language as gl
from gluon_core.features import Feature
from gluon_core.semantic import Semantic
from gluon_core.values.typing import ConstBool, ConstInt, Int, Operand

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


# -- gluon_core.vendor.builtin, gluon_core.vendor.semantic_layer, gluon_core.vendor.tensor, gluon_core.semantic.Semantic: an op; its body runs while a kernel is traced
@vendor.builtin(name="gl.anvil.scaled")
def scaled(a: vendor.tensor, by: Operand) -> vendor.tensor:
    semantic: Semantic = vendor.semantic_layer()
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

# -- gluon_core.vendor.compile_time_int, gluon_core.vendor.compile_time_bool, gluon_core.vendor.unwrap, gluon_core.vendor.constexpr, gluon_core.vendor.describe: compile-time operands, and how errors call values
@vendor.builtin(name="gl.anvil.facts")
def facts(a: vendor.tensor, rounds: ConstInt, fast: ConstBool = False) -> vendor.constexpr:
    print(vendor.compile_time_bool(fast, "fast"), vendor.unwrap(rounds), vendor.describe(a))
    return vendor.constexpr(vendor.compile_time_int(rounds, "rounds", 1, 8) * 10)


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

# -- gluon_core.vendor.shape_of, gluon_core.vendor.wrap_axis, gluon_core.vendor.scalar_int32, gluon_core.vendor.view_index, gluon_core.vendor.predicate, gluon_core.vendor.items_of, gluon_core.vendor.handle_or_absent: operands that are known when the kernel runs
@vendor.builtin(name="gl.anvil.box")
def box(a: vendor.tensor, axis: ConstInt, at: Int, pred: Operand = True) -> None:
    semantic = vendor.semantic_layer()
    print(vendor.shape_of(a), vendor.wrap_axis(axis, 1))
    print([vendor.scalar_int32(semantic, one, "at").dtype for one in vendor.items_of(at)])
    print(vendor.view_index(semantic, 1).dtype)
    print(vendor.predicate(semantic, pred).dtype, vendor.handle_or_absent(semantic, None))


@gluon.jit
def boxes(x, n):
    box(gl.arange(0, 128, LINE), -1, (n, 3), n > 2)


run(boxes, x, 7)
#> [128] 0
#> [triton.language.int32, triton.language.int32]
#> int32
#> int1 None

# -- gluon_core.vendor.shared_memory, gluon_core.vendor.check_stored, gluon_core.vendor.check_view_size, gluon_core.vendor.check_barrier, gluon_core.vendor.same_bits: buffers and barriers
@vendor.builtin(name="gl.anvil.fill")
def fill(buffer, value, barrier) -> None:
    held = vendor.shared_memory(buffer, "buffer")
    vendor.check_stored(held.type, value)
    vendor.check_view_size(held.type.shape[0], 128, "elements")
    vendor.check_barrier(barrier, "barrier", "allocate_mbarrier() makes one.")
    print(held.dtype, vendor.same_bits(gl.int32, gl.uint32), vendor.same_bits(gl.int32, gl.float32))
    buffer.store(value)


@gluon.jit
def fills(dtype: gl.constexpr):
    barrier = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    fill(gl.allocate_shared_memory(dtype, [128], FLAT), gl.arange(0, 128, LINE), barrier)


run(fills, gl.int32)
refused(lambda: run(fills, gl.float32))
#> int32 True False
#> DtypeError: value: the value does not have the buffer's dtype; expected fp32, got int32. Cast it with value.to(...).

# -- gluon_core.vendor.check_matmul_shapes, gluon_core.vendor.check_matmul_dtypes, gluon_core.vendor.check_k_width: products
vendor.check_matmul_shapes([16, 8], [8, 32], [16, 32])
refused(lambda: vendor.check_matmul_shapes([16, 8], [16, 32], [16, 32]))
sums = {gl.float16: (gl.float32,)}
vendor.check_matmul_dtypes("the Anvil", gl.float16, gl.float16, gl.float32, sums)
refused(lambda: vendor.check_matmul_dtypes("the Anvil", gl.int8, gl.int8, gl.int32, sums))


@vendor.builtin(name="gl.anvil.multiply")
def multiply(a, b) -> None:
    vendor.check_k_width(a, b, 4)


@gluon.jit
def multiplies(WIDTH: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    a = gl.full([16, 16], 1.0, gl.float16, gl.DotOperandLayout(0, mma, WIDTH))
    multiply(a, gl.full([16, 16], 1.0, gl.float16, gl.DotOperandLayout(1, mma, WIDTH)))


refused(lambda: run(multiplies, WIDTH=2))
#> ShapeError: the shapes do not multiply; expected a [M, K], b [K, N], acc [M, N], got [16, 8], [16, 32], [16, 32]
#> DtypeError: a: the Anvil does not take this dtype; expected fp16, got int8
#> LayoutError: k_width: the operands' k_width does not fit; expected one width for both, at least 4 for fp16, got 2 and 2

# -- gluon_core.vendor.check_capabilities, gluon_core.vendor.has, gluon_core.vendor.require: what the target and the installed Triton have; `builtin(requires=..., since=...)` asks both
LATER = Feature((99, 0), "the unit of the Anvil 2")


@vendor.builtin(name="gl.anvil.strike")
def strike() -> None:
    vendor.check_capabilities(vendor.semantic_layer(), "gl.anvil.strike", ("nvidia.wgmma",))
    print(vendor.has(LATER))
    vendor.require(LATER, "gl.anvil.strike(twice=True)")


@gluon.jit
def strikes():
    strike()


refused(lambda: run(strikes, on="sim:gfx942"))
refused(lambda: run(strikes))
#> CapabilityError: gl.anvil.strike needs nvidia.wgmma (sm_90); target is sim:gfx942
#> False
#> CapabilityError: gl.anvil.strike(twice=True) needs Triton >= 99.0

# -- gluon_core.vendor.compile_time, gluon_core.vendor.constexpr_function, gluon_core.vendor.traced, gluon_core.vendor.JITFunction: functions of compile-time values, and functions in the language
@vendor.compile_time
def halves(n):
    return n // 2


@vendor.traced
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
print(out[:3], halves(10), isinstance(cubed, vendor.JITFunction))
print(vendor.constexpr_function is gluon.constexpr_function)
#> [64. 32. 27.] 5 True
#> True

# -- gluon_core.vendor.aggregate: values of several parts, `gluon.aggregate` by another name, from Triton 3.8 on
@vendor.aggregate
class Pair:
    first: gl.tensor
    second: gl.tensor


@gluon.jit
def sums_up(out):
    both = Pair(gl.to_tensor(1.0), gl.to_tensor(2.0))
    gl.store(out, both.first + both.second)


run(sums_up, out)
print(out[0])
#> 3.0

# -- gluon_core.vendor.base_value, gluon_core.vendor.base_type: what values in kernels and their types derive from
print(issubclass(vendor.tensor, vendor.base_value), issubclass(vendor.dtype, vendor.base_type))
#> True True

# -- gluon_core.vendor.tl, gluon_core.vendor.tl_core, gluon_core.vendor.tl_tuple, gluon_core.vendor.tuple_type, gluon_core.vendor.dtype, gluon_core.vendor.block_type, gluon_core.vendor.constexpr_type: Triton's modules and types, whichever release is installed
pair = vendor.tl_tuple([vendor.constexpr(3), vendor.constexpr(4)])
print(len(pair.values), vendor.tl.float32, vendor.tl_core.tensor is vendor.tensor)
print(isinstance(gl.int8, vendor.dtype), vendor.block_type(gl.int8, [16]), vendor.constexpr_type(3))
print(vendor.tuple_type([vendor.tl.int32, vendor.tl.int64]).types)
#> 2 fp32 True
#> True <['16'], int8> constexpr_type[3]
#> [triton.language.int32, triton.language.int64]

# -- gluon_core.vendor.ir, gluon_core.vendor.gluon_ir, gluon_core.vendor.passes, gluon_core.vendor.op_builder, gluon_core.vendor.tool: MLIR, for vendors with a compiler in Triton; programs that its wheel brings
context = vendor.ir.context()
vendor.ir.load_dialects(context)
builder = vendor.op_builder(context, "cuda:90")
builder.set_loc("anvil.py", 1, 0)
module = builder.create_module()
manager = vendor.ir.pass_manager(context)
vendor.passes.common.add_canonicalizer(manager)
manager.run(module, "anvil")
print(isinstance(builder, vendor.gluon_ir.GluonOpBuilder), str(module).split()[0])
print(vendor.tool("ptxas") is not None, vendor.tool("no-such-tool"))
#> True module
#> True None

# -- gluon_core.vendor.code_generator, gluon_core.vendor.is_placeholder: the function that is being traced, to call its other functions; layouts that the compiler chooses later
@vendor.builtin(name="gl.anvil.twice")
def twice(function, a: vendor.tensor) -> vendor.tensor:
    generator = vendor.code_generator()
    once = generator.call_JitFunction(function, [a], {})
    print(vendor.is_placeholder(a.type.layout), vendor.is_placeholder(gl.AutoLayout()))
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
@vendor.builtin(name="gl.anvil.types")
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
    """What an asynchronous op of the Anvil returns."""


print(issubclass(token, vendor.base_value))
#> True

# -- gluon_core.values.unwrap_shape, gluon_core.values.check_block_shape, gluon_core.values.one_of, gluon_core.values.CachePolicy, gluon_core.values.MBarrierLayout: shapes, choices, and layouts that ops of several vendors take
print(values.unwrap_shape((vendor.constexpr(4), 32)), values.one_of("how", "fast", ("fast", "safe")))
refused(lambda: values.one_of("how", "fats", ("fast", "safe")))
refused(lambda: values.check_block_shape([3, 32], "a tile"))
print(values.CachePolicy("cg"), values.MBarrierLayout())
#> [4, 32] fast
#> ArgumentError: how: no such choice; expected 'fast', 'safe', got 'fats'. Did you mean 'fast'?
#> ShapeError: shape: a tile must have power-of-two dimensions; got [3, 32] (dimension 0 is 3). Round up to 4 and mask the rest.
#> CachePolicy(cache_modifier='cg', eviction_policy='evict_normal') MBarrierLayout(vec=1, per_phase=1, max_phase=1, order=[0], cga_layout=[])

# -- gluon_core.vendor.captured: what native tools print on the process's output, kept from the terminal
import os

with vendor.captured() as output:
    os.write(2, b"a tool warns\n")
print(output.text().strip())
#> a tool warns
