"""Functions of Triton's language that Gluon has in other forms: `gluon port` copies those that a file uses.

Each is layout-free, and complete with the functions that it calls.
"""

from __future__ import annotations

import gluon_core as gluon
from gluon_core import language as gl


@gl.aggregate
class Block:
    """A block of a tensor in global memory: the tensor, where the block begins, and its sizes."""

    base: gl.tensor
    shape: gl.tuple
    strides: gl.tuple
    offsets: gl.tuple
    sizes: gl.tuple

    def __init__(self, base, shape, strides, offsets, sizes):
        self.base = base
        self.shape = shape
        self.strides = strides
        self.offsets = offsets
        self.sizes = sizes


@gluon.jit
def block_of(base, shape, strides, offsets, sizes):
    """Return a block of the tensor at `base`."""
    if len(sizes) == 1:
        start = (gl.to_tensor(offsets[0]),)
    elif len(sizes) == 2:
        start = (gl.to_tensor(offsets[0]), gl.to_tensor(offsets[1]))
    else:
        gl.static_assert(len(sizes) == 3, "blocks have 1 to 3 dimensions")
        start = (gl.to_tensor(offsets[0]), gl.to_tensor(offsets[1]), gl.to_tensor(offsets[2]))
    return Block(base, shape, strides, start, sizes)


@gluon.jit
def block_moved(block, steps):
    """Return the block that begins `steps` further."""
    start = block.offsets
    if len(steps) == 1:
        start = (start[0] + steps[0],)
    elif len(steps) == 2:
        start = (start[0] + steps[0], start[1] + steps[1])
    else:
        start = (start[0] + steps[0], start[1] + steps[1], start[2] + steps[2])
    return gl.aggregate_replace(block, offsets=start)


@gluon.jit
def block_index(block, dim: gl.constexpr):
    """Return the indices of a block's elements along a dimension, in the tensor."""
    return block.offsets[dim] + gl.arange(0, block.sizes[dim])


@gluon.jit
def block_pointers(block):
    """Return the pointers to a block's elements."""
    first = block_index(block, 0).to(gl.int64)
    if len(block.sizes) == 1:
        return block.base + first * block.strides[0]
    elif len(block.sizes) == 2:
        rows = block.base + first[:, None] * block.strides[0]
        return rows + block_index(block, 1).to(gl.int64)[None, :] * block.strides[1]
    else:
        rows = block.base + first[:, None, None] * block.strides[0]
        columns = block_index(block, 1).to(gl.int64)[None, :, None] * block.strides[1]
        last = block_index(block, 2).to(gl.int64)[None, None, :] * block.strides[2]
        return rows + columns + last


@gluon.constexpr_function
def lists(dims, dim):
    """Return True if `dim` is one of `dims`."""
    return dim in dims


@gluon.jit
def block_inside(block, dim: gl.constexpr, dims: gl.constexpr):
    """Return which indices along a dimension lie within the tensor; True unless `dims` lists it."""
    index = block_index(block, dim)
    if lists(dims, dim):
        return (index >= 0) & (index < block.shape[dim])
    else:
        return index == index


@gluon.jit
def block_mask(block, dims: gl.constexpr):
    """Return which elements of a block lie within the tensor, in some dimensions."""
    if len(block.sizes) == 1:
        return block_inside(block, 0, dims)
    elif len(block.sizes) == 2:
        if lists(dims, 0) and lists(dims, 1):
            return block_inside(block, 0, dims)[:, None] & block_inside(block, 1, dims)[None, :]
        elif lists(dims, 0):
            return block_inside(block, 0, dims)[:, None]
        else:
            return block_inside(block, 1, dims)[None, :]
    else:
        rows = block_inside(block, 0, dims)[:, None, None]
        columns = block_inside(block, 1, dims)[None, :, None]
        return rows & columns & block_inside(block, 2, dims)[None, None, :]


@gluon.jit
def tile_block(tiles, offsets):
    """Return a tile of a descriptor as a block."""
    if len(tiles.block_shape) == 1:
        return block_of(
            tiles.base, (tiles.extents[0],), (1,), offsets, (gl.constexpr(tiles.block_shape[0]),)
        )
    elif len(tiles.block_shape) == 2:
        return block_of(
            tiles.base,
            (tiles.extents[0], tiles.extents[1]),
            (tiles.strides[0], 1),
            offsets,
            (gl.constexpr(tiles.block_shape[0]), gl.constexpr(tiles.block_shape[1])),
        )
    else:
        gl.static_assert(len(tiles.block_shape) == 3, "tiles have 1 to 3 dimensions")
        return block_of(
            tiles.base,
            (tiles.extents[0], tiles.extents[1], tiles.extents[2]),
            (tiles.strides[0], tiles.strides[1], 1),
            offsets,
            (
                gl.constexpr(tiles.block_shape[0]),
                gl.constexpr(tiles.block_shape[1]),
                gl.constexpr(tiles.block_shape[2]),
            ),
        )


@gluon.constexpr_function
def multiple(dtype, tma):
    """Return how many elements descriptors demand rows to be multiples of: 16 bytes, for TMA alone."""
    return 128 // dtype.element_ty.primitive_bitwidth if tma else 1


@gluon.constexpr_function
def cube_of(size, steps):
    """Return a shape with a dimension of two for each bit of the last index."""
    return [size >> steps] + [2] * steps


@gluon.constexpr_function
def log2_of(size):
    """Return the binary logarithm of a power of two."""
    return size.bit_length() - 1


@gluon.constexpr_function
def integer_of(bitwidth, signed):
    """Return the integer dtype of so many bits."""
    kinds = {8: (gl.uint8, gl.int8), 16: (gl.uint16, gl.int16)}
    kinds |= {32: (gl.uint32, gl.int32), 64: (gl.uint64, gl.int64)}
    return kinds[bitwidth][1 if signed else 0]


@gluon.constexpr_function
def bits_of(dtype):
    """Return the integer dtype with as many bits."""
    return {8: gl.int8, 16: gl.int16, 32: gl.int32, 64: gl.int64}[dtype.primitive_bitwidth]


@gluon.jit
def keys_of(x):
    """Return integers that are in the order of the elements."""
    if x.dtype.is_floating():
        bits = x.to(bits_of(x.dtype), bitcast=True)
        last: gl.constexpr = x.dtype.primitive_bitwidth - 1
        return bits ^ ((bits >> last) & ((1 << last) - 1))
    else:
        return x


@gluon.jit
def values_of(keys, dtype: gl.constexpr):
    """Return the elements of a dtype that have these keys."""
    if dtype.is_floating():
        last: gl.constexpr = dtype.primitive_bitwidth - 1
        return (keys ^ ((keys >> last) & ((1 << last) - 1))).to(dtype, bitcast=True)
    else:
        return keys


@gluon.jit
def partner(cube, axis: gl.constexpr):
    """Return the elements on the other side of an axis of two."""
    return cube ^ gl.xor_sum(cube, axis, keep_dims=True)


@gluon.jit
def merged(cube, length: gl.constexpr, descending: gl.constexpr):
    """Sort bitonic runs of 2**length elements, every other one downwards, the odd (or even) ones."""
    steps: gl.constexpr = len(cube.shape) - 1
    index = gl.reshape(gl.arange(0, cube.numel), cube.shape) & ((1 << steps) - 1)
    downwards = ((index >> length) & 1) != descending
    for j in gl.static_range(length):
        other = partner(cube, steps - length + j + 1)
        larger = (((index >> (length - 1 - j)) & 1) != 0) != downwards
        cube = gl.where((cube > other) != larger, other, cube)
    return cube


@gluon.jit
def sort(x, dim: gl.constexpr = None, descending: gl.constexpr = False):
    """Sort along the last dimension: a bitonic network."""
    gl.static_assert(
        dim is None or dim == len(x.shape) - 1 or dim == -1, "sorts the last dimension"
    )
    steps: gl.constexpr = log2_of(x.shape[len(x.shape) - 1])
    cube = gl.reshape(keys_of(x), cube_of(x.numel, steps))
    for length in gl.static_range(1, steps + 1):
        cube = merged(cube, length, descending)
    return values_of(gl.reshape(cube, x.shape), x.dtype)


@gluon.jit
def bitonic_merge(x, dim: gl.constexpr = None, descending: gl.constexpr = False):
    """Sort runs along the last dimension that rise, then fall, or the other way round."""
    gl.static_assert(
        dim is None or dim == len(x.shape) - 1 or dim == -1, "sorts the last dimension"
    )
    steps: gl.constexpr = log2_of(x.shape[len(x.shape) - 1])
    cube = gl.reshape(keys_of(x), cube_of(x.numel, steps))
    return values_of(gl.reshape(merged(cube, steps, descending), x.shape), x.dtype)


@gluon.constexpr_function
def shape_with(shape, size):
    """Return a shape with another last dimension."""
    return [*shape[:-1], size]


@gluon.jit
def topk(x, k: gl.constexpr, dim: gl.constexpr = None):
    """Return the k largest elements along the last dimension, the largest first; k is a power of two."""
    gl.static_assert(
        dim is None or dim == len(x.shape) - 1 or dim == -1, "takes the last dimension"
    )
    steps: gl.constexpr = log2_of(x.shape[len(x.shape) - 1])
    kept: gl.constexpr = log2_of(k)
    cube = gl.reshape(keys_of(x), cube_of(x.numel, steps))
    for length in gl.static_range(1, kept + 1):
        cube = merged(cube, length, True)
    for halving in gl.static_range(steps - kept):
        # The larger elements of two runs, one up and one down, are a bitonic run.
        cube = merged(gl.max(cube, steps - kept - halving).to(cube.dtype), kept, True)
    return values_of(gl.reshape(cube, shape_with(x.shape, k)), x.dtype)


@gluon.constexpr_function
def bits_apart(shape, dim):
    """Return a shape with a dimension of two for each bit of the index along `dim`."""
    return [*shape[:dim], *([2] * (shape[dim].bit_length() - 1)), *shape[dim + 1 :]]


@gluon.jit
def flip(x, dim: gl.constexpr = None):
    """Reverse the order of the elements along a dimension, the last by default: swap along each bit of the index."""
    axis: gl.constexpr = len(x.shape) - 1 if dim is None else dim % len(x.shape)
    if x.dtype.is_bool():
        return flip(x.to(gl.int8), axis) != 0
    else:
        cube = x.to(bits_of(x.dtype), bitcast=True) if x.dtype.is_floating() else x
        cube = gl.reshape(cube, bits_apart(x.shape, axis))
        for bit in gl.static_range(log2_of(x.shape[axis])):
            cube = partner(cube, axis + bit)
        cube = gl.reshape(cube, x.shape)
        return cube.to(x.dtype, bitcast=True) if x.dtype.is_floating() else cube


@gluon.jit
def interleave(a, b):
    """Return the elements of two tensors in turn, along the last dimension."""
    return gl.reshape(gl.join(a, b), shape_with(a.shape, 2 * a.shape[len(a.shape) - 1]))


@gluon.jit
def cat(a, b, can_reorder: gl.constexpr = False):
    """Return the elements of one vector, then those of another."""
    return gl.reshape(gl.permute(gl.join(a, b), (1, 0)), [2 * a.numel])


@gluon.jit
def gathered_rows(tiles, rows, column):
    """Return rows of a descriptor's tensor, from a column on; zeros for those outside."""
    columns = column + gl.arange(0, tiles.block_shape[1])
    inside = (rows >= 0) & (rows < tiles.extents[0])
    place = rows[:, None].to(gl.int64) * tiles.strides[0] + columns[None, :]
    mask = inside[:, None] & (columns < tiles.extents[1])[None, :]
    return gl.load(tiles.base + place, mask=mask, other=0)


@gluon.jit
def scattered_rows(tiles, value, rows, column):
    """Store rows of a tensor to rows of a descriptor's tensor, from a column on."""
    columns = column + gl.arange(0, tiles.block_shape[1])
    inside = (rows >= 0) & (rows < tiles.extents[0])
    place = rows[:, None].to(gl.int64) * tiles.strides[0] + columns[None, :]
    mask = inside[:, None] & (columns < tiles.extents[1])[None, :]
    gl.store(tiles.base + place, value, mask=mask)


@gluon.constexpr_function
def float_of(kind):
    """Return the dtype of a format of 8 bits."""
    return {"e4m3": gl.float8e4nv, "e5m2": gl.float8e5}[kind]


@gluon.jit
def microscaled(x, scale, kind: gl.constexpr):
    """Return rows of microscaled elements in bfloat16: a scale, a power of two, for each 32 of a row."""
    if kind == "e2m1":
        codes = gl.reshape(gl.join(x & 0xF, x >> 4), shape_with(x.shape, 2 * x.shape[1])).to(
            gl.uint32
        )
        # Two bits of exponent and one of mantissa, in their places: 2**-126 of the number, subnormal ones, too.
        small = (((codes & 8) << 28) | ((codes & 7) << 22)).to(gl.float32, bitcast=True)
        wide = small * 8.507059173023462e37
    elif kind == "e4m3" or kind == "e5m2":
        wide = x.to(float_of(kind), bitcast=True).to(gl.float32)
    else:
        wide = x.to(gl.float32)
    if scale is None:
        scaled = wide
    else:
        factor = (scale.to(gl.int32) << 23).to(gl.float32, bitcast=True)
        groups: gl.constexpr = wide.shape[1] // scale.shape[1]
        # Units of pairs multiply bfloat16 twice as fast; a power of two changes no bit of the mantissa.
        multiplied: gl.constexpr = gl.bfloat16 if gl.target.has("nvidia.cp_async") else gl.float32
        parts = gl.reshape(wide.to(multiplied), [wide.shape[0], scale.shape[1], groups])
        scaled = gl.reshape(parts * factor.to(multiplied)[:, :, None], wide.shape)
    return scaled.to(gl.bfloat16)


@gluon.constexpr_function
def sum_dtype(dtype):
    """Return the dtype of a sum of products: float32, or int32 and float64 for operands of these kinds."""
    if dtype.is_int():
        return gl.int32
    return gl.float64 if dtype.is_fp64() else gl.float32


@gluon.constexpr_function
def precision_of(allowed):
    """Return the precision of a product: "tf32" where Triton allows it, as by default."""
    return "tf32" if allowed is None or allowed is True or allowed == "tf32" else "ieee"


@gluon.constexpr_function
def in_parts(kind):
    """Return True for the precision of a product that is the sum of products of parts."""
    return kind in ("tf32x3", "bf16x3", "bf16x6")


@gluon.jit
def halves(x):
    """Return both halves of a batch."""
    pairs = gl.reshape(x, [2, x.shape[0] // 2, x.shape[1], x.shape[2]])
    return gl.split(gl.permute(pairs, (1, 2, 3, 0)))


@gluon.jit
def batched_product(a, b, acc, kind: gl.constexpr = "ieee"):
    """Return products of the matrices in two batches, added to those of a third."""
    if a.shape[0] == 1:
        x, y = gl.reshape(a, [a.shape[1], a.shape[2]]), gl.reshape(b, [b.shape[1], b.shape[2]])
        total = gl.reshape(acc, [acc.shape[1], acc.shape[2]])
        if kind == "ieee" or kind == "tf32":
            one = gl.portable.mma(x, y, total, input_precision=kind)
        else:
            one = product_in_parts(x, y, total, kind)
        return gl.reshape(one, acc.shape)
    else:
        a_first, a_second = halves(a)
        b_first, b_second = halves(b)
        first, second = halves(acc)
        first = batched_product(a_first, b_first, first, kind)
        second = batched_product(a_second, b_second, second, kind)
        return gl.reshape(gl.permute(gl.join(first, second), (3, 0, 1, 2)), acc.shape)


@gluon.jit
def coarse(x, kind: gl.constexpr):
    """Return float32 values rounded toward zero to the bits that a matrix unit reads."""
    if kind == "tf32x3":
        return (x.to(gl.int32, bitcast=True) & -8192).to(gl.float32, bitcast=True)
    else:
        return x.to(gl.bfloat16).to(gl.float32)


@gluon.jit
def tiles_written():
    """Wait until the tiles that a program stored are in memory."""
    if gl.target.has("nvidia.tma"):
        gl.nvidia.hopper.tma.store_wait(0, read_only=False)
    gl.thread_barrier()


@gluon.constexpr_function
def part_dtype(kind):
    """Return the dtype of the parts of float32 operands."""
    return gl.float32 if kind == "tf32x3" else gl.bfloat16


@gluon.jit
def product_in_parts(a, b, acc, kind: gl.constexpr):
    """Return a product of float32 operands as the sum of products of their parts, the smallest first."""
    if a.dtype != gl.float32:
        acc = gl.portable.mma(a, b, acc)
    else:
        narrow: gl.constexpr = part_dtype(kind)
        # Once, for all parts.
        a = gl.convert_layout(a)  # type: ignore[call-arg]
        b = gl.convert_layout(b)  # type: ignore[call-arg]
        high_a, high_b = coarse(a, kind), coarse(b, kind)
        low_a, low_b = coarse(a - high_a, kind), coarse(b - high_b, kind)
        x, y = high_a.to(narrow), high_b.to(narrow)
        u, v = low_a.to(narrow), low_b.to(narrow)
        if kind == "bf16x6":
            rest_a = (a - high_a - low_a).to(narrow)
            rest_b = (b - high_b - low_b).to(narrow)
            acc = gl.portable.mma(rest_a, y, acc)
            acc = gl.portable.mma(x, rest_b, acc)
            acc = gl.portable.mma(u, v, acc)
        acc = gl.portable.mma(u, y, acc, input_precision="tf32")
        acc = gl.portable.mma(x, v, acc, input_precision="tf32")
        acc = gl.portable.mma(x, y, acc, input_precision="tf32")
    return acc


@gluon.jit
def dot_scaled(  # noqa: PLR0913 - the arguments of Triton's
    lhs, lhs_scale, lhs_format: gl.constexpr, rhs, rhs_scale, rhs_format: gl.constexpr,
    acc=None, fast_math: gl.constexpr = False, lhs_k_pack: gl.constexpr = True,
    rhs_k_pack: gl.constexpr = True, out_dtype: gl.constexpr = gl.float32,
):  # fmt: skip
    """Return a product of microscaled operands, which are multiplied in bfloat16."""
    gl.static_assert(lhs_k_pack and rhs_k_pack, "elements of 4 bits are packed along K")
    a = microscaled(lhs, lhs_scale, lhs_format)
    b = gl.permute(microscaled(gl.permute(rhs, (1, 0)), rhs_scale, rhs_format), (1, 0))
    if acc is None:
        total = gl.portable.mma(a, b, gl.zeros([a.shape[0], b.shape[1]], gl.float32))
    else:
        total = gl.portable.mma(a, b, acc)
    return total.to(out_dtype)


def tensor_map(base, shape, strides, block_shape):
    """Return the descriptor that a launch makes for the TMA of a GPU; None where the GPU or the tensor has none."""
    if not getattr(base, "is_cuda", False):
        return None
    import torch

    if torch.version.hip or torch.cuda.get_device_capability(base.device) < (9, 0):
        return None
    bits = {1: gl.int8, 2: gl.int16, 4: gl.int32, 8: gl.int64}[base.element_size()]
    try:
        layout = gl.NVMMASharedLayout.get_default_for(list(block_shape), bits)
        return gluon.nvidia.hopper.TensorDescriptor(base, shape, strides, block_shape, layout)
    except gluon.errors.GluonError:
        return None


class TensorDescriptor(tuple[object, ...]):
    """A tensor on the host that a kernel moves in blocks; kernels of every target take it."""

    _fields = ("base", "shape", "strides", "block_shape", "host")

    def __new__(cls, base, shape, strides, block_shape, padding="zero"):
        if padding != "zero":
            raise ValueError("blocks outside the tensor are zero")
        sizes = tuple(gl.constexpr(size) for size in block_shape)
        host = tensor_map(base, list(shape), list(strides), list(block_shape))
        return super().__new__(cls, (base, tuple(shape), tuple(strides), sizes, host))

    @classmethod
    def _make(cls, values):
        return super().__new__(cls, values)

    @classmethod
    def from_tensor(cls, tensor, block_shape, padding="zero"):
        """Describe a whole tensor."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape, padding)


class ChangedDescriptor:
    """A tensor on the host that a kernel moves in blocks; hooks of configurations set `block_shape`."""

    def __init__(self, base, shape, strides, block_shape, padding="zero"):
        if padding != "zero":
            raise ValueError("blocks outside the tensor are zero")
        self.base, self.shape, self.strides = base, shape, strides
        self.block_shape, self.padding = block_shape, padding
        self.last = None

    @classmethod
    def from_tensor(cls, tensor, block_shape, padding="zero"):
        """Describe a whole tensor."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape, padding)

    def passed(self):
        """Return the descriptor of the blocks that are set now."""
        sizes = tuple(self.block_shape)
        if self.last is None or self.last[0] is not self.base or self.last[1] != sizes:
            tensor = TensorDescriptor(self.base, self.shape, self.strides, sizes)
            self.last = self.base, sizes, tensor
        return self.last[2]


class passing_descriptors:
    """A kernel that takes each `ChangedDescriptor` with the blocks of the launch's configuration."""

    def __init__(self, fn):
        self.fn = fn

    def __getattr__(self, name):
        return getattr(self.fn, name)

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, **kwargs):
        """Launch, or compile where `warmup` is true."""
        taken = [one.passed() if isinstance(one, ChangedDescriptor) else one for one in args]
        named = {
            name: one.passed() if isinstance(one, ChangedDescriptor) else one
            for name, one in kwargs.items()
        }
        return self.fn.run(*taken, **named)
