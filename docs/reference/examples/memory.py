import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.BlockedLayout([1], [32], [1], [0])
TILE = gl.BlockedLayout([1, 4], [8, 4], [1, 1], [1, 0])


def run(kernel, *arguments, grid=1):
    """Launch programs of one warp on the simulator, and return the last argument."""
    kernel[(grid,)](*arguments, target="sim:hopper", num_warps=1)
    return arguments[-1]


# -- load, store: of one value, or through a tensor of pointers
@gluon.jit
def copied(x, out):
    first = gl.load(x)
    i = gl.arange(0, 32, ROW)
    gl.store(out + i, gl.load(x + i, mask=i < 5, other=-1.0) + first)


print(run(copied, np.arange(1, 33, dtype=np.float32), np.zeros(32, np.float32))[:8])
#> [2. 3. 4. 5. 6. 0. 0. 0.]

# -- allocate_shared_memory, shared_memory_descriptor, shared_memory_descriptor_type: a buffer, and views of it
@gluon.jit
def transposed(x, out):
    r = gl.arange(0, 8, gl.SliceLayout(1, TILE))[:, None]
    c = gl.arange(0, 16, gl.SliceLayout(0, TILE))[None, :]
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 8, [1, 0])
    buffer = gl.allocate_shared_memory(gl.float32, [8, 16], layout, gl.load(x + r * 16 + c))
    gl.static_print(buffer.type.shape, buffer.permute((1, 0)).shape)
    values = buffer.slice(0, 8, dim=1).permute((1, 0)).load(TILE)
    rows = gl.arange(0, 8, gl.SliceLayout(1, TILE))[:, None]
    columns = gl.arange(0, 8, gl.SliceLayout(0, TILE))[None, :]
    gl.store(out + rows * 8 + columns, values)


x = np.arange(128, dtype=np.float32).reshape(8, 16)
print((run(transposed, x, np.zeros((8, 8), np.float32)) == x[:, :8].T).all())
#> [8, 16] [16, 8]
#> True

# -- bank_conflicts: the cost of an access to a buffer, at compile time
@gluon.jit
def conflicts(out):
    COLUMNS: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 1], [0, 1])
    value = gl.zeros([32, 32], gl.float32, COLUMNS)
    plain = gl.allocate_shared_memory(
        gl.float32, [32, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    swizzled = gl.allocate_shared_memory(
        gl.float32, [32, 32], gl.SwizzledSharedLayout(1, 1, 32, [1, 0])
    )
    gl.store(out, gl.bank_conflicts(value.type, plain.type))
    gl.store(out + 1, gl.bank_conflicts(value.type, swizzled.type))


print(run(conflicts, np.zeros(2, np.int32)))
#> [7 0]

# -- atomic_add, atomic_max, atomic_min: programs that meet at one address
@gluon.jit
def met(out):
    me = gl.program_id(0)
    gl.atomic_add(out, me)
    gl.atomic_max(out + 1, me)
    gl.atomic_min(out + 2, -me)


print(run(met, np.zeros(3, np.int32), grid=8))
#> [28  7 -7]

# -- atomic_and, atomic_or, atomic_xor
@gluon.jit
def flags(out):
    me = gl.program_id(0)
    gl.atomic_and(out, 255 - (1 << me))
    gl.atomic_or(out + 1, 1 << me)
    gl.atomic_xor(out + 2, 3)


print(run(flags, np.array([255, 0, 0], np.int32), grid=4))
#> [240  15   0]

# -- atomic_cas, atomic_xchg: the first that comes gets the ticket
@gluon.jit
def tickets(state, wins):
    before = gl.atomic_cas(state, 0, 1)
    gl.atomic_add(wins, (before == 0).to(gl.int32))
    gl.atomic_xchg(state + 1, 7)


state = np.zeros(2, np.int32)
print(run(tickets, state, np.zeros(1, np.int32), grid=8), state)
#> [1] [1 7]

# -- atomic_load, atomic_store, atomic_poll: one program hands a value to another; from Triton 3.9 on
@gluon.jit
def handed(flag, value, out):
    if gl.program_id(0) == 0:
        gl.store(value, 42)
        gl.atomic_store(flag, 1, sem="release")
    else:
        gl.atomic_poll(flag, 1, sem="acquire")
        gl.store(out, gl.load(value) + gl.atomic_load(flag))


one = [np.zeros(1, np.int32) for _ in range(3)]
print(run(handed, *one, grid=2))
#> [43]

# -- CachePolicy: how an access treats the caches; the simulator has none, so it changes no result; from Triton 3.9 on
@gluon.jit
def streamed(x, out):
    i = gl.arange(0, 32, ROW)
    once: gl.constexpr = gl.CachePolicy(eviction_policy="evict_first")
    gl.store(out + i, gl.load(x + i, cache_policy=once))


print(run(streamed, np.arange(32), np.zeros(32, np.int64))[:4])
#> [0 1 2 3]

# -- fpsan.embed, fpsan.unembed: floats as the integers that the sanitizer computes with; compiled, not simulated; from Triton 3.9 on
@gluon.jit
def there_and_back(x, out):
    i = gl.arange(0, 32, ROW)
    carried = gl.fpsan.embed(gl.load(x + i)) + 1
    gl.store(out + i, gl.fpsan.unembed(carried, gl.float32))


kinds = {"x": "*fp32", "out": "*fp32"}
compiled = gluon.compile(there_and_back, target="sm_90", signature=kinds, num_warps=1)
print("fpsan" in compiled.asm["ttgir"])
#> True
