"""Mistakes that Triton's Gluon refuses, and the classes that it raises for them.

A line of `_TABLE` is a target, the classes that the releases raise, a title, and the statements of a kernel
that makes the mistake; `host` marks an expression of host code. `_MORE` holds the mistakes that need more than that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MISTAKES", "Mistake"]


@dataclass(frozen=True)
class Mistake:
    """A wrong program.

    Args:
        title: a few words.
        classes: names of the classes that releases raise for it; a release may also accept it.
        source: a text that `tests.frontend.oracle` takes. Its `go()` makes the mistake on the host, without one
            the warm-up of its `kernel` does; `LOADED` says that the compiled kernel must be loaded, too.
    """

    title: str
    classes: tuple[str, ...]
    source: str


_HEAD = """\
import importlib, torch
def _host(path):
    try:
        return importlib.import_module(f"{gluon.__name__}.{path}")
    except ImportError:
        return None
host, amd_host = _host("nvidia.hopper"), _host("amd.gfx1250")
hopper, blackwell = gl.nvidia.hopper, gl.nvidia.blackwell
tma, mbarrier = hopper.tma, hopper.mbarrier
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
B = gl.BlockedLayout([1], [32], [4], [0])
B2 = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
"""

_SHORT = {
    "shared(": "gl.allocate_shared_memory(",
    "columns(": "blackwell.allocate_tensor_memory(",
    "FLAT": "gl.SwizzledSharedLayout(1, 1, 1, [0])",
    "TILE": "gl.NVMMASharedLayout(128, 16, 2)",
    "SUMS": "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])",
    "BARRIER": "mbarrier.MBarrierLayout()",
    "COLUMNS": "blackwell.TensorMemoryLayout((128, 64), col_stride=1)",
    "MFMA": "gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [4, 1])",
    "TENSOR": "torch.empty(64, 64, dtype=torch.float16)",
}
_WORD = re.compile("|".join(rf"\b{re.escape(word)}" + r"\b" * word.isupper() for word in _SHORT))
_POINTERS = "ptr(gl.float32), 5, ptr(gl.float16), ptr(gl.int8)"
_DESCRIPTOR = "host.TensorDescriptor(ptr(gl.float16), [64, 64], [64, 1], [32, 64], TILE)"


def _spelled(text: str) -> str:
    return _WORD.sub(lambda match: _SHORT[match[0]], text)


def _kernel(
    where: str,
    *lines: str,
    args: str = "",
    params: str = "",
    kwargs: str = "{}",
    before: str = "",
    after: str = "",
) -> str:
    """Return a kernel of these lines; `L` and `L2` are layouts of one and of two dimensions, `p`, `h` and `c`
    pointers to float32, float16 and int8, `n` an integer."""
    amd = where.startswith("gfx")
    lanes = 64 if where.startswith("gfx9") else 32
    target = f"'hip', '{where}', {lanes}" if amd else f"'cuda', {where.removeprefix('sm_')}, 32"
    params = params or ("p, n, h, c" if amd else "p, n, h, c, desc")
    args = args or (_POINTERS if amd else f"{_POINTERS}, {_DESCRIPTOR}")
    layouts = (
        f"L: gl.constexpr = gl.BlockedLayout([1], [{lanes}], [4], [0])",
        f"L2: gl.constexpr = gl.BlockedLayout([1, 1], [{lanes // 8}, 8], [4, 1], [1, 0])",
    )
    body = "".join(f"    {line}\n" for line in (*layouts, *lines))
    return _spelled(
        f"{_HEAD}{before}@gluon.jit\ndef kernel({params}):\n{body}"
        f"ARGS, KWARGS, TARGET = ({args},), {kwargs}, GPUTarget({target})\n{after}"
    )


def _go(line: str) -> str:
    return _spelled(f"{_HEAD}def go():\n    {line}\n")


def _rows(table: str) -> list[Mistake]:
    rows = []
    for line in filter(None, table.splitlines()):
        where, classes, title, body = line.split(" | ", 3)
        lines = body.split(" ;; ")
        source = _go(*lines) if where == "host" else _kernel(where, *lines)
        rows.append(Mistake(title, tuple(classes.split(", ")), source))
    return rows


_TABLE = """
sm_90 | CompilationError | undefined name | x = undefined_name
sm_90 | CompilationError | attribute of a module | x = gl.no_such_op(1)
sm_90 | CompilationError | attribute of a tensor | x = gl.arange(0, 32, L).nothing
sm_90 | CompilationError | too many arguments of an op | gl.arange(0, 32, L, 1, 2)
sm_90 | CompilationError | unknown keyword of an op | gl.arange(0, 32, L, whatever=1)
sm_90 | CompilationError | missing argument of an op | gl.load()
sm_90 | CompilationError | arange not a power of two | gl.arange(0, 33, L)
sm_90 | CompilationError | arange reversed | gl.arange(8, 0, L)
sm_90 | CompilationError | arange of values | gl.arange(0, n, L)
sm_90 | CompilationError | shapes do not broadcast | gl.arange(0, 32, L) + gl.arange(0, 64, L)
sm_90 | CompilationError | layouts differ | gl.arange(0, 32, L) + gl.arange(0, 32, gl.SliceLayout(0, L2))
sm_90 | CompilationError | and of floats | gl.full([32], 1.0, gl.float32, L) & gl.full([32], 1.0, gl.float32, L)
sm_90 | CompilationError | load from a number | gl.load(n)
sm_90 | CompilationError | load from floats | gl.load(gl.full([32], 1.0, gl.float32, L))
sm_90 | CompilationError | mask of another shape | gl.load(p + gl.arange(0, 32, L), mask=gl.arange(0, 64, L) < 3)
sm_90 | CompilationError | other without a mask | gl.load(p + gl.arange(0, 32, L), other=0.0)
sm_90 | CompilationError | cache modifier | gl.load(p + gl.arange(0, 32, L), cache_modifier='.zz')
sm_90 | CompilationError | eviction policy | gl.load(p + gl.arange(0, 32, L), eviction_policy='zz')
sm_90 | CompilationError | store to a number | gl.store(n, 1)
sm_90 | CompilationError | store of a wrong shape | gl.store(p + gl.arange(0, 32, L), gl.arange(0, 64, L))
sm_90 | CompilationError | atomic semantics | gl.atomic_add(p, 1.0, sem='zz')
sm_90 | CompilationError | atomic scope | gl.atomic_add(p, 1.0, scope='zz')
sm_90 | CompilationError | exp of integers | gl.exp(gl.arange(0, 32, L))
sm_90 | CompilationError | cast to nothing | gl.arange(0, 32, L).to(5)
sm_90 | CompilationError | bitcast of another width | gl.arange(0, 32, L).to(gl.float16, bitcast=True)
sm_90 | CompilationError | reduce over an axis that is none | gl.sum(gl.arange(0, 32, L), axis=3)
sm_90 | CompilationError | reshape to another size | gl.reshape(gl.arange(0, 32, L), [3, 7])
sm_90 | CompilationError | expand_dims without a slice | gl.expand_dims(gl.arange(0, 32, L), 0)
sm_90 | CompilationError | join of different shapes | gl.join(gl.arange(0, 32, L), gl.arange(0, 64, L))
sm_90 | CompilationError | split of a wide tensor | gl.split(gl.full([4, 8], 0, gl.int32, L2))
sm_90 | CompilationError | permute by too few | gl.permute(gl.full([4, 8], 0, gl.int32, L2), (0,))
sm_90 | CompilationError | gather of another rank | gl.gather(gl.full([4, 8], 0, gl.int32, L2), gl.arange(0, 32, L), 0)
sm_90 | CompilationError | where of shapes | gl.where(gl.arange(0, 32, L) < 3, gl.arange(0, 64, L), 0)
sm_90 | CompilationError | program id of axis 3 | gl.program_id(3)
sm_90 | CompilationError | num_programs of axis 3 | gl.num_programs(7)
sm_90 | CompilationError | histogram bins | gl.histogram(gl.full([32], 1.0, gl.float32, L), 32, layout=L)
sm_90 | UnsupportedLanguageConstruct | a tensor as a condition | if gl.arange(0, 32, L) < 3: ;;     gl.store(p, 1.0)
sm_90 | CompilationError | loop changes a type | x = 0 ;; for i in range(n): ;;     x = x + 1.0
sm_90 | CompilationError | branches of two types | if n > 0: ;;     x = 1.0 ;; else: ;;     x = gl.arange(0, 32, L) ;; gl.store(p, x)
sm_90 | UnsupportedLanguageConstruct | try | try: ;;     x = 1 ;; except ValueError: ;;     pass
sm_90 | CompilationError | list comprehension | x = [i for i in range(3)]
sm_90 | UnsupportedLanguageConstruct | lambda | f = lambda x: x ;; f(1)
sm_90 | UnsupportedLanguageConstruct | break | for i in range(n): ;;     break
sm_90 | CompilationError | with | with open('a') as f: ;;     pass
sm_90 | UnsupportedLanguageConstruct | chained comparison | x = 0 < n < 3
sm_90 | CompilationError | unpacking too few | a, b, c = (n, n)
sm_90 | CompileTimeAssertionFailure | static_assert | gl.static_assert(False, 'why')
sm_90 | CompileTimeAssertionFailure | static_assert without words | gl.static_assert(1 == 2)
sm_90 | CompilationError | static_assert of a run-time value | gl.static_assert(n == 2)
sm_90 | CompilationError | static_print of a wrong keyword | gl.static_print(n, color=1)
sm_90 | CompilationError | device_print prefix | gl.device_print(n, n)
sm_90 | CompilationError | division of pointers | p // 2
sm_90 | CompilationError | shift of floats | 1.5 << gl.arange(0, 32, L)
sm_90 | RuntimeError | inline asm constraints | gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r', [gl.arange(0, 32, L)], gl.int32, True, 0)
sm_90 | CompilationError | arange of floats | gl.arange(0, 32.5, L)
sm_90 | CompilationError | index of a tensor | gl.arange(0, 32, L)[0]
sm_90 | CompilationError | iterate over a tensor | for i in gl.arange(0, 32, L): ;;     pass
sm_90 | CompilationError | range of floats | for i in range(1.5): ;;     pass
sm_90 | CompilationError | call of a number | x = 3 ;; x(1)
sm_90 | UnsupportedLanguageConstruct | f-string of a value | x: gl.constexpr = f'{n}'
sm_90 | UnsupportedLanguageConstruct | a class in a kernel | class A: ;;     pass
sm_90 | CompilationError | while with else | while n > 3: ;;     n = n - 1 ;; else: ;;     n = 1
sm_90 | UnsupportedLanguageConstruct | delete | del n
sm_90 | UnsupportedLanguageConstruct | raise in a kernel | raise ValueError('x')
sm_90 | UnsupportedLanguageConstruct | import in a kernel | import os
sm_90 | UnsupportedLanguageConstruct | yield | yield n
sm_90 | UnsupportedLanguageConstruct | dictionary | x = {1: 2}
sm_90 | CompilationError | set attribute | n.a = 3
sm_90 | UnsupportedLanguageConstruct | nested function | def f(): ;;     pass

host | AssertionError | layout: ranks | gl.BlockedLayout([1], [32], [4], [0, 1])
sm_90 | CompilationError | layout: ranks in a kernel | X: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0, 1])
sm_90 | RuntimeError | layout: threads per warp | gl.arange(0, 64, gl.BlockedLayout([1], [64], [4], [0]))
sm_90 | CompilationError | layout: rank of a tensor | gl.full([4, 4], 0, gl.int32, L)
host | AssertionError | layout: swizzle byte width | gl.NVMMASharedLayout(100, 16, 2)
host | AssertionError | layout: element bit width | gl.NVMMASharedLayout(128, 7, 2)
host | TypeError | layout: missing argument | gl.BlockedLayout([1], [32])
host | TypeError | layout: unknown keyword | gl.BlockedLayout([1], [32], [4], [0], whatever=1)
host | AssertionError | layout: linear bases | gl.DistributedLinearLayout([[1, 0]], [[2]], [], [], [4])
host | AssertionError | layout: shared linear | gl.SharedLinearLayout([])
host | AssertionError | layout: padded interval | gl.PaddedSharedLayout.with_identity_for([[3, 4]], [64, 64], [1, 0])
host | AssertionError | layout: padded twice | gl.PaddedSharedLayout.with_identity_for([[64, 4], [64, 8]], [64, 64], [1, 0])
host | AssertionError | layout: padded nothing | gl.PaddedSharedLayout.with_identity_for([], [64, 64], [1, 0])
host | AssertionError | layout: MFMA version | gl.amd.AMDMFMALayout(9, [32, 32, 8], True, [4, 1])
host | AssertionError | layout: MFMA shape | gl.amd.AMDMFMALayout(3, [31, 32, 8], True, [4, 1])
host | AssertionError | layout: MFMA element width | gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [4, 1], element_bitwidth=16)
host | AssertionError | layout: WMMA version | gl.amd.AMDWMMALayout(0, True, [])
host | AssertionError | layout: tensor memory block rank | blackwell.TensorMemoryLayout((128,), col_stride=1)
sm_90 | CompilationError | layout: not one | gl.full([32], 0, gl.int32, 5)
sm_90 | CompilationError | convert_layout to none | gl.convert_layout(gl.arange(0, 32, L), 5)
sm_90 | CompilationError | convert_layout trivially | gl.convert_layout(gl.full([4, 8], 0, gl.int32, L2), gl.BlockedLayout([1, 1], [8, 4], [1, 4], [0, 1]), assert_trivial=True)
host | AssertionError | layout: MFMA of another version | gl.amd.AMDMFMALayout(0, [32, 32, 8], True, [4, 1])
host | AssertionError | layout: shared linear alignment | gl.SharedLinearLayout([[1]], [], 3)
host | AssertionError | layout: padded by 3 | gl.PaddedSharedLayout.with_identity_for([[64, 3]], [64, 64], [1, 0])
host | AssertionError | layout: tensor memory stride | blackwell.TensorMemoryLayout((128, 64), col_stride=3)

sm_90 | CompilationError | shared: layout of registers | shared(gl.float32, [32], L)
sm_90 | RuntimeError | shared: shape of a value | shared(gl.float32, [64], FLAT, gl.full([32], 0.0, gl.float32, L))
sm_90 | RuntimeError | shared: dtype of a value | shared(gl.float32, [32], FLAT, gl.full([32], 0, gl.int32, L))
sm_90 | CompilationError | shared: store of another shape | s = shared(gl.float32, [64], FLAT) ;; s.store(gl.full([32], 0.0, gl.float32, L))
sm_90 | CompilationError | shared: store of another dtype | s = shared(gl.float32, [32], FLAT) ;; s.store(gl.full([32], 0, gl.int32, L))
sm_90 | CompilationError | shared: load without a layout | s = shared(gl.float32, [64], FLAT) ;; s.load(3)
sm_90 | RuntimeError | shared: slice outside | s = shared(gl.float32, [64], FLAT) ;; s.slice(60, 8)
sm_90 | RuntimeError | shared: slice not aligned | s = shared(gl.float32, [64, 64], gl.NVMMASharedLayout(128, 32, 2)) ;; s.slice(3, 16).load(L2)
sm_90 | CompilationError | shared: slice of a dim that is none | s = shared(gl.float32, [64], FLAT) ;; s.slice(0, 8, dim=4)
sm_90 | CompilationError | shared: index of a vector | s = shared(gl.float32, [64], FLAT) ;; s.index(0)
sm_90 | CompilationError | shared: index by a float | s = shared(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])) ;; s.index(1.5)
sm_90 | CompilationError | shared: permute | s = shared(gl.float32, [64], FLAT) ;; s.permute((0, 1))
sm_90 | CompilationError | shared: reshape | s = shared(gl.float32, [64], FLAT) ;; s.reshape([65])
sm_90 | CompilationError | shared: reinterpret | s = shared(gl.float32, [64], FLAT) ;; s._reinterpret(gl.float64, [64], FLAT)
sm_90 | CompilationError | shared: no power of two | shared(gl.float32, [33], FLAT)

host | AssertionError | descriptor: element width | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], gl.NVMMASharedLayout(128, 32, 2))
host | AssertionError | descriptor: alignment of strides | host.TensorDescriptor(TENSOR, [64, 60], [60, 1], [32, 64], TILE)
host | AssertionError | descriptor: alignment of the address | host.TensorDescriptor(torch.empty(65 * 64, dtype=torch.float16)[1:], [64, 64], [64, 1], [32, 64], TILE)
host | AssertionError | descriptor: rank of strides | host.TensorDescriptor(TENSOR, [64, 64], [64], [32, 64], TILE)
host | AssertionError | descriptor: rank of the box | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32], TILE)
host | AssertionError | descriptor: last dimension | host.TensorDescriptor(TENSOR, [64, 64], [64, 2], [32, 64], TILE)
host | AssertionError | descriptor: rank 0 | host.TensorDescriptor(TENSOR, [], [], [], TILE)
host | AssertionError | descriptor: rank 6 | host.TensorDescriptor(torch.empty(2,2,2,2,2,64, dtype=torch.float16), [2,2,2,2,2,64], [2048,1024,512,256,64,1], [1,1,1,1,1,64], gl.NVMMASharedLayout(128, 16, 6))
host | AssertionError | descriptor: padding | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], TILE, padding='zz')
host | AssertionError | descriptor: nan of integers | host.TensorDescriptor(torch.empty(64, 64, dtype=torch.int16), [64, 64], [64, 1], [32, 64], TILE, padding='nan')
host | AssertionError | descriptor: no layout | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], 3)
host | AssertionError | descriptor: rank of the layout | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], gl.NVMMASharedLayout(128, 16, 3))
host | AssertionError | descriptor: another layout | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
host | ValueError | descriptor: box not a power | host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [33, 64], TILE)
host | TypeError | descriptor: missing argument | host.TensorDescriptor(TENSOR, [64, 64], [64, 1])
host | AssertionError | descriptor: from a strided tensor | host.TensorDescriptor.from_tensor(TENSOR.T, [32, 64], TILE)
host | AssertionError | descriptor: negative shape | host.TensorDescriptor(TENSOR, [-1, 64], [64, 1], [32, 64], TILE)
host | AssertionError | tdm: alignment | amd_host.TensorDescriptor(torch.empty(64, 60, dtype=torch.float16), [64, 60], [60, 2], [32, 64], gl.PaddedSharedLayout.with_identity_for([[64, 4]], [32, 64], [1, 0]))
host | AssertionError | tdm: layout | amd_host.TensorDescriptor(TENSOR, [64, 64], [64, 1], [32, 64], TILE)
host | AssertionError | tdm: rank | amd_host.TensorDescriptor(TENSOR, [64, 64], [64], [32, 64], gl.PaddedSharedLayout.with_identity_for([[64, 4]], [32, 64], [1, 0]))

host | ValueError | launch: language outside | gl.arange(0, 32, B)
host | ValueError | launch: load outside | gl.load(3)
host | RuntimeError | launch: device function outside | gl.sum(3)
gfx000 | RuntimeError | launch: gfx of nothing | 
sm_90 | CompilationError | launch: fp8 of Volta | gl.full([32], 1.0, gl.float8e4b15, L)

sm_90 | RuntimeError | mbarrier: dtype | b = shared(gl.int32, [1], BARRIER) ;; mbarrier.init(b, count=1)
sm_90 | CompilationError | mbarrier: count of a value | b = shared(gl.int64, [1], BARRIER) ;; mbarrier.init(b, count=n)
sm_90 | RuntimeError | mbarrier: count of 0 | b = shared(gl.int64, [1], BARRIER) ;; mbarrier.init(b, count=0)
sm_90 | RuntimeError | mbarrier: no barrier | mbarrier.wait(n, 0)
sm_90 | RuntimeError | mbarrier: shape | b = shared(gl.int64, [4], BARRIER) ;; mbarrier.wait(b, 0)
sm_80 | PTXASError | mbarrier: on sm_80 | b = shared(gl.int64, [1], BARRIER) ;; mbarrier.init(b, count=1) ;; mbarrier.expect(b, 4) ;; mbarrier.wait(b, 0)
sm_90 | CompilationError, RuntimeError | cp.async: 2 bytes | s = shared(gl.float16, [128], FLAT) ;; blackwell.async_copy.async_copy_global_to_shared(s, h + gl.arange(0, 128, L))
sm_90 | CompilationError | cp.async: shape | s = shared(gl.float32, [64], FLAT) ;; gl.nvidia.blackwell.async_copy.async_copy_global_to_shared(s, p + gl.arange(0, 128, L))
sm_90 | CompilationError, RuntimeError | cp.async: dtype | s = shared(gl.float16, [128], FLAT) ;; gl.nvidia.blackwell.async_copy.async_copy_global_to_shared(s, p + gl.arange(0, 128, L))
sm_90 | RuntimeError | tma: shape of the buffer | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [64, 64], desc.layout) ;; load(desc, [0, 0], bar, s)
sm_90 | RuntimeError | tma: dtype of the buffer | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float32, [32, 64], gl.NVMMASharedLayout(128, 32, 2)) ;; load(desc, [0, 0], bar, s)
sm_90 | RuntimeError | tma: layout of the buffer | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], gl.NVMMASharedLayout(64, 16, 2)) ;; load(desc, [0, 0], bar, s)
sm_90 | RuntimeError | tma: swizzled buffer | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])) ;; load(desc, [0, 0], bar, s)
sm_90 | RuntimeError | tma: coordinates | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], desc.layout) ;; load(desc, [0], bar, s)
sm_90 | CompilationError | tma: coordinate of a float | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], desc.layout) ;; load(desc, [0, 1.5], bar, s)
sm_90 | CompilationError, RuntimeError | tma: store of a tensor | bar = shared(gl.int64, [1], BARRIER) ;; tma.async_copy_shared_to_global(desc, [0, 0], gl.full([32, 64], 0.0, gl.float16, L2))
sm_90 | RuntimeError | tma: no descriptor | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], desc.layout) ;; load(p, [0, 0], bar, s)
sm_100 | RuntimeError | tma: gather of floats | bar = shared(gl.int64, [1], BARRIER) ;; s = shared(gl.float16, [32, 64], desc.layout) ;; blackwell.tma.async_gather(desc, gl.full([32], 0.0, gl.float32, L), 0, bar, s)
sm_90 | CompilationError | tma: descriptor in a kernel, layout | tma.make_tensor_descriptor(h, [64, 64], [64, 1], [32, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
sm_90 | CompilationError | tma: descriptor in a kernel, stride | tma.make_tensor_descriptor(h, [64, 64], [64, 2], [32, 64], TILE)
sm_90 | CompilationError | tma: descriptor in a kernel, rank | tma.make_tensor_descriptor(h, [64], [64, 1], [32, 64], TILE)
sm_90 | RuntimeError | mbarrier: phase of a float | b = shared(gl.int64, [1], BARRIER) ;; mbarrier.wait(b, 1.5)
sm_90 | CompilationError | mbarrier: expect of a tensor | b = shared(gl.int64, [1], BARRIER) ;; mbarrier.expect(b, gl.arange(0, 32, L))
sm_90 | CompilationError | descriptor in a kernel: no power of two | tma.make_tensor_descriptor(h, [64, 64], [64, 1], [33, 64], TILE)

sm_90 | RuntimeError | wgmma: K | a = shared(gl.float16, [64, 64], TILE) ;; b = shared(gl.float16, [32, 64], TILE) ;; acc = gl.full([64, 64], 0.0, gl.float32, SUMS) ;; d = hopper.warpgroup_mma(a, b, acc)
sm_90 | RuntimeError | wgmma: accumulator shape | a = shared(gl.float16, [64, 64], TILE) ;; b = shared(gl.float16, [64, 64], TILE) ;; acc = gl.full([64, 128], 0.0, gl.float32, SUMS) ;; d = hopper.warpgroup_mma(a, b, acc)
sm_90 | RuntimeError | wgmma: 32-bit integers | a = shared(gl.int32, [64, 64], gl.NVMMASharedLayout(128, 32, 2)) ;; b = shared(gl.int32, [64, 64], gl.NVMMASharedLayout(128, 32, 2)) ;; acc = gl.full([64, 64], 0.0, gl.float32, SUMS) ;; d = hopper.warpgroup_mma(a, b, acc)
sm_90 | CompilationError | wgmma: wait without deps | hopper.warpgroup_mma_wait(0)
sm_90 | CompilationError | mma_v2: layouts | a = gl.full([16, 16], 0.0, gl.float16, L2) ;; gl.nvidia.ampere.mma_v2(a, a, gl.full([16, 16], 0.0, gl.float32, L2))
sm_90 | CompilationError | dot_fma: layouts | a = gl.full([16, 16], 0.0, gl.float32, L2) ;; gl.dot_fma(a, a, a)
sm_100 | CompilationError | tmem: layout of registers | columns(gl.float32, [128, 64], L2)
sm_100 | CompilationError | tmem: shape | columns(gl.float32, [100, 64], COLUMNS)
sm_100 | CompilationError | tmem: 3 dimensions | columns(gl.float32, [2, 2, 128, 64], COLUMNS)
sm_100 | CompilationError | tmem: too many columns | t = columns(gl.float32, [128, 1024], blackwell.TensorMemoryLayout((128, 1024), col_stride=1))
sm_100 | RuntimeError | tmem: load into another layout | t = columns(gl.float32, [128, 64], COLUMNS) ;; t.load(L2)
sm_100 | CompilationError | tmem: store of another dtype | t = columns(gl.float32, [128, 64], COLUMNS) ;; t.store(gl.full([128, 64], 0, gl.int32, L2))
sm_90 | RuntimeError | tmem: on sm_90 | t = columns(gl.float32, [128, 64], COLUMNS)
sm_100 | RuntimeError | tmem: slice | t = columns(gl.float32, [128, 64], COLUMNS) ;; t.slice(60, 16)
sm_100 | CompilationError | tcgen05: accumulator | a = shared(gl.float16, [64, 64], TILE) ;; b = shared(gl.float16, [64, 64], TILE) ;; acc = gl.full([64, 64], 0.0, gl.float32, L2) ;; d = blackwell.tcgen05_mma(a, b, acc)
sm_100 | RuntimeError | tcgen05: K | a = shared(gl.float16, [128, 64], TILE) ;; b = shared(gl.float16, [32, 64], TILE) ;; t = columns(gl.float32, [128, 64], COLUMNS) ;; blackwell.tcgen05_mma(a, b, t)
sm_100 | RuntimeError | tcgen05: barriers and predicates | a = shared(gl.float16, [128, 64], TILE) ;; bar = shared(gl.int64, [1], BARRIER) ;; t = columns(gl.float32, [128, 64], COLUMNS) ;; blackwell.tcgen05_mma(a, a.permute((1, 0)), t, mbarriers=[bar], mbarrier_preds=[True, True])
sm_100 | RuntimeError | tmem: store from another layout | t = columns(gl.float32, [128, 64], COLUMNS) ;; t.store(gl.full([128, 64], 0.0, gl.float32, L2))
sm_100 | RuntimeError | tmem: a value of another shape | t = columns(gl.float32, [128, 64], COLUMNS, gl.full([64, 64], 0.0, gl.float32, L2))
sm_100 | CompilationError | tmem: index of what is no array | t = columns(gl.float32, [128, 64], COLUMNS) ;; t.index(0)
sm_100 | RuntimeError | tcgen05: commit of no barrier | blackwell.tcgen05_commit(n)
sm_100 | RuntimeError | tcgen05: copy between shapes | a = shared(gl.float32, [64, 64], gl.NVMMASharedLayout(128, 32, 2)) ;; t = columns(gl.float32, [128, 64], COLUMNS) ;; blackwell.tcgen05_copy(a, t)
sm_90 | CompilationError | wgmma: precision | a = shared(gl.float16, [64, 64], TILE) ;; b = shared(gl.float16, [64, 64], TILE) ;; acc = gl.full([64, 64], 0.0, gl.float32, SUMS) ;; d = hopper.warpgroup_mma(a, b, acc, precision='zz')

gfx942 | RuntimeError | mfma: layouts | a = gl.full([32, 32], 0.0, gl.float16, L2) ;; gl.amd.cdna3.mfma(a, a, gl.full([32, 32], 0.0, gl.float32, L2))
gfx942 | CompilationError | mfma: K | a = gl.full([128, 16], 0.0, gl.float16, gl.DotOperandLayout(0, MFMA, 4)) ;; b = gl.full([32, 32], 0.0, gl.float16, gl.DotOperandLayout(1, MFMA, 4)) ;; gl.amd.cdna3.mfma(a, b, gl.full([128, 32], 0.0, gl.float32, MFMA))
gfx1250 | RuntimeError | mfma: on gfx1250 | a = gl.full([128, 16], 0.0, gl.float16, gl.DotOperandLayout(0, MFMA, 4)) ;; b = gl.full([16, 32], 0.0, gl.float16, gl.DotOperandLayout(1, MFMA, 4)) ;; gl.amd.cdna3.mfma(a, b, gl.full([128, 32], 0.0, gl.float32, MFMA))
gfx1250 | CompilationError | wmma: layouts | a = gl.full([32, 32], 0.0, gl.float16, L2) ;; gl.amd.gfx1250.wmma(a, a, gl.full([32, 32], 0.0, gl.float32, L2))
gfx942 | CompilationError | buffer: pointer tensor | gl.amd.cdna3.buffer_load(p + gl.arange(0, 32, L), gl.arange(0, 32, L))
gfx942 | CompilationError | buffer: float offsets | gl.amd.cdna3.buffer_load(p, gl.full([32], 1.0, gl.float32, L))
gfx942 | CompilationError | buffer: 64-bit offsets | gl.amd.cdna3.buffer_load(p, gl.full([32], 1, gl.int64, L))
gfx942 | CompilationError | buffer: mask shape | gl.amd.cdna3.buffer_load(p, gl.arange(0, 64, L), mask=gl.arange(0, 32, L) < 3)
gfx942 | CompilationError | buffer: cache | gl.amd.cdna3.buffer_load(p, gl.arange(0, 64, L), cache='.zz')
gfx942 | CompilationError, RuntimeError | buffer: store shape | gl.amd.cdna3.buffer_store(gl.arange(0, 32, L), p, gl.arange(0, 64, L))
gfx942 | CompilationError | buffer: atomic of int8 | gl.amd.cdna3.buffer_atomic_add(c, gl.arange(0, 64, L), gl.full([64], 1, gl.int8, L))
gfx950 | RuntimeError | lds: 2 bytes to LDS | s = shared(gl.float16, [64], FLAT) ;; gl.amd.cdna4.async_copy.buffer_load_to_shared(s, h, gl.arange(0, 64, L))
gfx1250 | RuntimeError | gfx1250: 2-byte copies | s = shared(gl.float16, [128], FLAT) ;; gl.amd.gfx1250.async_copy.global_to_shared(s, h + gl.arange(0, 128, L))
gfx1250 | RuntimeError | gfx1250: 1-byte copies | s = shared(gl.int8, [128], FLAT) ;; gl.amd.gfx1250.async_copy.global_to_shared(s, c + gl.arange(0, 128, L))
gfx1250 | CompilationError | gfx1250: tdm layout | d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], gl.NVMMASharedLayout(128, 32, 2))
gfx950 | RuntimeError | gfx950: 1-byte copies | s = shared(gl.int8, [64], FLAT) ;; gl.amd.cdna4.async_copy.buffer_load_to_shared(s, c, gl.arange(0, 64, L))
gfx950 | RuntimeError | gfx950: global_load_to_shared of 2 bytes | s = shared(gl.float16, [64], FLAT) ;; gl.amd.cdna4.async_copy.global_load_to_shared(s, h + gl.arange(0, 64, L))
gfx1250 | CompilationError | gfx1250: copies into another shape | s = shared(gl.float32, [64], FLAT) ;; gl.amd.gfx1250.async_copy.global_to_shared(s, p + gl.arange(0, 128, L))
gfx1250 | CompilationError | gfx1250: stores of 2 bytes | s = shared(gl.float16, [128], FLAT) ;; gl.amd.gfx1250.async_copy.shared_to_global(h + gl.arange(0, 128, L), s)
gfx1250 | CompilationError | gfx1250: scaled of another format | a = gl.full([32, 32], 0, gl.uint8, L2) ;; gl.amd.gfx1250.wmma_scaled(a, a, 'zz', a, a, 'zz', gl.full([32, 32], 0.0, gl.float32, L2))
gfx1250 | CompilationError | gfx1250: tdm offsets | P: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0]) ;; d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], P) ;; s = shared(gl.float32, [32, 32], P) ;; gl.amd.gfx1250.tdm.async_load(d, [0], s)
"""

_MORE = [
    (
        "global variable",
        "CompilationError",
        _kernel("sm_90", "x = GLOBAL + 1", before="GLOBAL = 3\n"),
    ),
    (
        "returns of two types",
        "CompilationError",
        _kernel(
            "sm_90",
            "f(n)",
            before="@gluon.jit\ndef f(n):\n    if n > 3:\n        return 1.0\n    return 2\n",
        ),
    ),
    (
        "host function",
        "RuntimeError",
        _kernel("sm_90", "x = host_function(n)", before="def host_function(n):\n    return n\n"),
    ),
    (
        "recursion",
        "CompilationError",
        _kernel("sm_90", "f(n)", before="@gluon.jit\ndef f(n):\n    return f(n)\n"),
    ),
    (
        "static_assert in a function",
        "CompilationError",
        _kernel(
            "sm_90", "f(n)", before="@gluon.jit\ndef f(n):\n    gl.static_assert(False, 'why')\n"
        ),
    ),
    (
        "static_assert in two functions",
        "CompilationError",
        _kernel(
            "sm_90",
            "g(n)",
            before="@gluon.jit\ndef f(n):\n    gl.static_assert(False, 'why')\n@gluon.jit\ndef g(n):\n    f(n)\n",
        ),
    ),
    (
        "a function raises",
        "CompilationError",
        _kernel(
            "sm_90",
            "x: gl.constexpr = f(3)",
            before="@gluon.constexpr_function\ndef f(n):\n    raise KeyError('why')\n",
        ),
    ),
    (
        "wrong argument in a function",
        "CompilationError",
        _kernel(
            "sm_90",
            "f(n)",
            before="@gluon.jit\ndef f(n):\n    gl.arange(0, 33, B)\nB = gl.constexpr(B)\n",
        ),
    ),
    (
        "function given too many",
        "CompilationError",
        _kernel("sm_90", "f(n, n)", before="@gluon.jit\ndef f(n):\n    pass\n"),
    ),
    (
        "function given too few",
        "CompilationError",
        _kernel("sm_90", "f()", before="@gluon.jit\ndef f(n):\n    pass\n"),
    ),
    (
        "device_assert of a string",
        "CompilationError",
        _kernel("sm_90", "gl.device_assert('a')", kwargs="dict(debug=True)"),
    ),
    (
        "associative_scan of shapes",
        "CompilationError",
        _kernel(
            "sm_90",
            "gl.associative_scan((gl.arange(0, 32, L), gl.arange(0, 64, L)), 0, f)",
            before="@gluon.jit\ndef f(a, b, c, d):\n    return a + c, b + d\n",
        ),
    ),
    (
        "reduce by too few",
        "CompilationError",
        _kernel(
            "sm_90",
            "gl.reduce(gl.arange(0, 32, L), 0, f)",
            before="@gluon.jit\ndef f(a):\n    return a\n",
        ),
    ),
    (
        "layout: warps of another launch",
        "RuntimeError",
        _kernel("sm_90", "gl.arange(0, 32, L)", kwargs="dict(num_warps=8)"),
    ),
    (
        "shared: too large",
        "OutOfResources",
        _kernel(
            "sm_90",
            "s = gl.allocate_shared_memory(gl.float32, [65536], gl.SwizzledSharedLayout(1, 1, 1, [0]))",
            "s.store(gl.full([65536], 0.0, gl.float32, L))",
            "gl.store(p + gl.arange(0, 65536, L), s.load(L))",
            after="LOADED = True",
        ),
    ),
    (
        "launch: missing argument",
        "TypeError",
        _kernel("sm_90", args="ptr(gl.float32)", params="p, n"),
    ),
    (
        "launch: too many",
        "TypeError",
        _kernel("sm_90", args="ptr(gl.float32), 5, 6", params="p, n"),
    ),
    (
        "launch: twice",
        "TypeError",
        _kernel("sm_90", args="ptr(gl.float32), 5", kwargs="dict(n=3)", params="p, n"),
    ),
    (
        "launch: unknown keyword",
        "KeyError",
        _kernel("sm_90", kwargs="dict(whatever=3)"),
    ),
    (
        "launch: a string",
        "TypeError",
        _kernel("sm_90", args="ptr(gl.float32), 'abc'", params="p, n"),
    ),
    (
        "launch: an object",
        "TypeError",
        _kernel("sm_90", args="ptr(gl.float32), object()", params="p, n"),
    ),
    ("launch: a list", "TypeError", _kernel("sm_90", args="ptr(gl.float32), [1]", params="p, n")),
    (
        "launch: wide integer",
        "OverflowError",
        _kernel("sm_90", args="ptr(gl.float32), 2**70", params="p, n"),
    ),
    (
        "launch: num_warps of 3",
        "AssertionError",
        _kernel("sm_90", kwargs="dict(num_warps=3)"),
    ),
    (
        "launch: num_warps of 0",
        "AssertionError",
        _kernel("sm_90", kwargs="dict(num_warps=0)"),
    ),
    (
        "launch: num_warps of 64",
        "OutOfResources",
        _kernel("sm_90", kwargs="dict(num_warps=64)", after="LOADED = True"),
    ),
    (
        "launch: num_warps of text",
        "TypeError",
        _kernel("sm_90", kwargs="dict(num_warps='4')"),
    ),
    (
        "launch: maxnreg of text",
        "TypeError",
        _kernel("sm_90", kwargs="dict(maxnreg='a')"),
    ),
    (
        "launch: backend of nothing",
        "RuntimeError",
        _kernel("sm_90").replace("'cuda', 90", "'zzz', 90"),
    ),
    (
        "launch: without a grid",
        "RuntimeError",
        _HEAD + "@gluon.jit\ndef kernel():\n    pass\ndef go():\n    kernel()\n",
    ),
    (
        "launch: constexpr of a tensor",
        "CompilationError",
        _kernel(
            "sm_90",
            "gl.store(p, X)",
            params="p, n, X: gl.constexpr",
            args="ptr(gl.float32), 5, torch.zeros(3)",
        ),
    ),
    (
        "launch: an integer for a grid",
        "TypeError",
        _HEAD + "@gluon.jit\ndef kernel():\n    pass\ndef go():\n    kernel[object()]()\n",
    ),
    (
        "partitions: registers",
        "CompilationError",
        _kernel(
            "sm_90",
            "gl.warp_specialize([(f, (n,)), (f, (n,))], [4], [24, 24])",
            before="@gluon.jit\ndef f(n):\n    pass\n",
        ),
    ),
    (
        "partitions: warps",
        "RuntimeError",
        _kernel(
            "sm_90",
            "gl.warp_specialize([(f, (n,)), (f, (n,))], [3], [24])",
            before="@gluon.jit\ndef f(n):\n    pass\n",
        ),
    ),
    (
        "partitions: no function",
        "CompilationError",
        _kernel(
            "sm_90",
            "gl.warp_specialize([(3, (n,)), (f, (n,))], [4], [24])",
            before="@gluon.jit\ndef f(n):\n    pass\n",
        ),
    ),
]

MISTAKES = _rows(_TABLE) + [Mistake(title, (name,), source) for title, name, source in _MORE]
