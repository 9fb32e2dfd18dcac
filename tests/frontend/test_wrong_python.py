"""Python that kernels do not have, and beginners' mistakes: the class, the caret, the remedy.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from gluon_core import errors as E
from tests.frontend.wrong import HEAD, KERNEL, launch, load, says
from tests.tables import mistakes

pytestmark = pytest.mark.once

K = E.KernelSyntaxError


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*is not callable:SyntaxWarning")
@mistakes("""
id | error | caret | words | code
plain | HostFunctionError | plain | wrong.py: && @gluon.jit | plain(v)
plain-in-a-function | HostFunctionError | plain | 'plain' && @gluon.jit | around(v)
plain-in-triton | HostFunctionError | plain | 'plain' && @gluon.jit | elsewhere(v)
numpy-ufunc | HostFunctionError | np.log | numpy && Use gl.log | np.log(v)
numpy-function | HostFunctionError | np.sum | numpy && Use gl.sum | np.sum(v)
numpy-array | HostFunctionError | np.zeros | numpy && Use gl.zeros | z = np.zeros(4)
math | HostFunctionError | math.sqrt | Use gl.sqrt | math.sqrt(v)
host-compile | HostFunctionError | gluon.compile | for host code | gluon.compile(one)
global-object | GlobalVariableError | THING | <Thing object> | THING.method(v)
global-list | GlobalVariableError | TABLE | gl.constexpr([1, 2, 3]) | v * TABLE[0]
no-such-axis | ShapeError | - | axis && expected -1 to 0, got 1 | gl.sum(v + n, axis=1)
floor-of-floats | DtypeError | v // 2 | fp32 && Use gl.floor(v / 2) | v // 2
of-cuda | TraceError | gl.syncthreads | Use gl.barrier() | gl.syncthreads()
an-array-as-descriptor | TraceError | x.block_type | x was given an array | x.block_type.shape
set-to-nothing | DtypeError | - | 'mbarrier.init' returns nothing |
    bar = mbarrier.allocate_mbarrier()
    for i in range(n):  # <--
        bar = mbarrier.init(bar, 1)
one-of-several-buffers | ShapeError | s.index(0) | For 2 buffers of [128] the layout is one of 1 dimension |
    s = gl.allocate_shared_memory(gl.float32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    s.index(0)  # <--
abs | KernelSyntaxError | abs | Use gl.abs | abs(v)
sum | KernelSyntaxError | sum | Use gl.sum | sum(v)
enumerate | KernelSyntaxError | enumerate | gl.static_range | for a in enumerate((1, 2)): ;;     v += a
open | KernelSyntaxError | open | host code | open('x')
break | KernelSyntaxError | break | `break` && `while` | for i in range(n): ;;     break  # <--
continue | KernelSyntaxError | continue | `continue` && `if` | for i in range(n): ;;     continue  # <--
function-and-number | KernelSyntaxError | gl.num_ctas == 2 | function && gl.num_ctas() | z = 1 if gl.num_ctas == 2 else 2
lambda | KernelSyntaxError | lambda a: a | `lambda` && @gluon.jit | z = lambda a: a
try | KernelSyntaxError | try: | `try` && `if` | try: ;;     v += 1 ;; except ValueError: ;;     pass
raise | KernelSyntaxError | raise ValueError('x') | `raise` && gl.device_assert | raise ValueError('x')
with | KernelSyntaxError | with v: | `with` | with v: ;;     pass
yield | KernelSyntaxError | yield v | `yield` && Return | yield v
list-comprehension | KernelSyntaxError | [v + i for i in range(3)] | tuple | [v + i for i in range(3)]
set-comprehension | KernelSyntaxError | {i for i in range(3)} | set comprehension | {i for i in range(3)}
generator | KernelSyntaxError | (i for i in (1, 2)) | generator expression | max(i for i in (1, 2))
dictionary | KernelSyntaxError | {1: v} | dictionary && @gl.aggregate | z = {1: v}
set | KernelSyntaxError | {1, 2} | a set && tuple | z = {1, 2}
class | KernelSyntaxError | class A: | `class` && @gl.aggregate | class A: ;;     pass
def | KernelSyntaxError | def inner(a): | `def` && @gluon.jit | def inner(a): ;;     return a
global | KernelSyntaxError | global TABLE | `global` | global TABLE ;; TABLE = 3
import | KernelSyntaxError | import math | `import` && top of the file | import math
del | KernelSyntaxError | del v | `del` | del v
match | KernelSyntaxError | match n: | `match` && `elif` | match n: ;;     case 1: ;;         pass
starred-target | KernelSyntaxError | a, *b = (1, 2, 3) | starred | a, *b = (1, 2, 3)
starred-call | DtypeError | one(*v) | tuple | one(*v)
two-targets | KernelSyntaxError | a = b = v | each of a, b | a = b = v
attribute-assignment | KernelSyntaxError | v.foo = 3 | v.foo && gl.aggregate_replace | v.foo = 3
keyword-only | KernelSyntaxError | extra | 'extra' behind `*` && by its name | by_name(v)
for-else | KernelSyntaxError | for i in range(n): | else | for i in range(n): ;;     v += 1 ;; else: ;;     v += 2
for-list | KernelSyntaxError | for i in [1, 2]: | gl.static_range | for i in [1, 2]: ;;     v += i
for-tensor | KernelSyntaxError | for i in v: | gl.static_range | for i in v: ;;     v += i
in | KernelSyntaxError | n in (1, 2) | `in` && == | z = n in (1, 2)
matmul | KernelSyntaxError | v @ v | gl.portable.mma | z = v @ v
f-string | KernelSyntaxError | f'{n}' | gl.device_print | z = f'{n}'
walrus | KernelSyntaxError <3.8 | k := n | `:=` && line of its own | if (k := n) > 1: ;;     pass
kernel-that-returns | KernelSyntaxError <3.7 | return 5 | a kernel cannot return a value && Store it to memory |
    if n > 3:
        return 5  # <--
no-such-op | TraceError | gl.dot | gl.portable.mma | gl.dot(v, v)
no-such-method | TraceError | v.sums | 'sum' | v.sums(0)
print-without-text | ArgumentError | print(v) | prefix && ('x', x) | print(v)
one-branch | KernelSyntaxError | z | one branch of an `if` && before the `if` |
    if n > 3:
        z = v + 1
    gl.store(x + o, z)  # <--
loop-alone | KernelSyntaxError | z | body of a loop && before the loop |
    for i in range(n):
        z = v + 1
    gl.store(x + o, z)  # <--
set-later | KernelSyntaxError | z | before line && is used | gl.store(x + o, z)  # <-- ;; z = v
misspelt | KernelSyntaxError | layout | 'layuot' | layuot = v ;; gl.store(x + o, layout)  # <--
choice-of-types | DtypeError | v if n > 3 else 1 | gl.where | z = v if n > 3 else 1
branch-types | DtypeError | if n > 3:  # <-- | 'z' && from branch to branch | if n > 3:  # <-- ;;     z = v ;; else: ;;     z = o
branch-changes | DtypeError | v = o | 'v' && as before the `if` | if n > 3: ;;     v = o  # <--
loop-changes | GluonError | v = o | 'v' && as before the loop | for i in range(n): ;;     v = o  # <--
tensor-condition | DtypeError | if v > 0:  # <-- | gl.where | if v > 0:  # <-- ;;     v += 1
too-many | ArgumentError | one(v, v, v) | at most 2 && one(a, b) | one(v, v, v)
too-few | ArgumentError | one(v) | 'b' && one(a, b) | one(v)
unknown-word | ArgumentError | one(v, c=v) | 'c' && one(a, b) | one(v, c=v)
op-too-many | ArgumentError | gl.exp(v, v) | at most 1 && gl.exp(x) | gl.exp(v, v)
op-too-few | ArgumentError | gl.where(v > 0) | 'x', 'y' | gl.where(v > 0)
op-unknown-word | ArgumentError | gl.exp(x=v, y=v) | 'y' | gl.exp(x=v, y=v)
op-twice | ArgumentError | gl.exp(v, x=v) | by place and by name | gl.exp(v, x=v)
library-too-many | ArgumentError | gl.sum(v, 0, 0, 0, 0) | most 4 | gl.sum(v, 0, 0, 0, 0)
call-of-a-number | DtypeError | n(3) | 'n' cannot be called && int32 | n(3)
call-of-a-tensor | DtypeError | v(3) | 'v' cannot be called | v(3)
call-of-a-module | DtypeError | gl(3) | a module | gl(3)
nothing-added | DtypeError | nothing() + 1 | 'nothing()' returns nothing | nothing() + 1
recursion | KernelSyntaxError | spin(a) | cannot call themselves && loop | spin(v)
recursion-of-two | KernelSyntaxError | - | cannot call themselves | ping(v)
two-types | DtypeError | return b | changes its type && int32 && fp32 | two_types(n, f)
return-in-a-loop | KernelSyntaxError | return | after the loop | for i in range(n): ;;     return  # <--
int-of-a-tensor | DtypeError | int(n) | x.to(gl.int32) | int(n)
len-of-a-tensor | DtypeError | len(v) | x.shape[0] | len(v)
kernel-that-returns-a-tensor | KernelSyntaxError | return v | a kernel cannot return a value | return v
too-many-by-place | ArgumentError | - | at most 0 && gl.barrier(*, cluster=False) | gl.barrier(3)
call-of-a-literal | DtypeError | - | (1, 2) cannot be called | (1, 2)()
call-of-a-dtype | DtypeError | - | got fp32 (dtype) | gl.float32(3)
text-among-tensors | DtypeError | - | gl.where cannot work with one of these arguments && gl.where(condition, x, y) && v = fp32[128], 'a' | gl.where(v > 0, v, 'a')
none-among-tensors | DtypeError | - | gl.maximum(x, y && None | gl.maximum(v, None)
list-for-a-text | ArgumentError | - | constraints && =r,r' | gl.inline_asm_elementwise('mov.b32 $0, $1;', ['=r,r'], [v], gl.int32, True, 1)
combine-called | ArgumentError | - | combine_fn && not a call of it | gl.reduce(v, 0, one(v, v))
combine-of-python | ArgumentError | - | @gluon.jit | gl.associative_scan(v, 0, max)
attribute-of-a-number | TraceError | B.foo | 'B' has no 'foo' && 4 (int) | B.foo
attribute-of-a-layout | TraceError | v.type.layout.orders | has no 'orders' && 'order' | z = v.type.layout.orders
attribute-of-a-function | TraceError | - | 'gl.arange' has no 'foo' | gl.arange.foo
item-of-a-number | DtypeError | B[0] | 'B' has no items && 4 (int) | B[0]
compared-with-none | DtypeError | n == None | None is no number && is None | n == None
division-by-zero | ArgumentError | 3 // 0 | a division by zero | 3 // 0
none-in-a-branch | DtypeError | if n > 0:  # <-- | 'z' is None in one branch |
    if n > 0:  # <--
        z = None
    else:
        z = v
condition-of-a-choice | DtypeError | n if v > 0 else 1 | one boolean && gl.where | z = n if v > 0 else 1
tuple-literal-index | DtypeError | (1, 2)[n] | compile-time integer && n: gl.constexpr | (1, 2)[n]
endless-unrolling | LimitError | for i in gl.static_range(1000000000): | unrolled && `range` |
    for i in gl.static_range(1000000000):
        v += 1
static-step-0 | ArgumentError | - | step | for i in gl.static_range(0, 9, 0): ;;     v += 1
step-0 | ArgumentError | - | never ends | for i in range(0, n, 0): ;;     v += 1
float-bound | DtypeError | - | integer && gl.int32 | for i in range(f): ;;     v += 1
no-bound | ArgumentError | - | (start, end, step) | for i in range(): ;;     v += 1
static-float | ArgumentError | - | integers | for i in gl.static_range(2.5): ;;     v += 1
unpack-too-many | ShapeError 3.9+ | a, b = (1, 2, 3) | 2 values for (a, b) | a, b = (1, 2, 3)
unpack-too-few | ShapeError | a, b, c = (1, 2) | 3 values | a, b, c = (1, 2)
unpack-a-tensor | DtypeError | a, b = v | only a tuple | a, b = v
tuple-index | DtypeError | t[n] | compile-time && n: gl.constexpr | t = (v, v) ;; t[n]  # <--
tuple-end | ShapeError | t[9] | -2 to 1 | t = (v, v) ;; t[9]  # <--
""")
def test_the_error_names_the_remedy(error, caret, words, code, tmp_path):
    says(error, caret, words, code, tmp_path)


def test_unrolling_counts_all_loops_of_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("gluon_core.frontend.loops._MOST_UNROLLED", 1 << 12)
    body = "for i in gl.static_range(80):\n    for j in gl.static_range(80):  # <--\n        pass"
    with pytest.raises(E.LimitError, match="one kernel") as caught:
        launch(load(tmp_path, body))
    assert "# <--" in caught.value.span.text
    launch(load(tmp_path, "for i in gl.static_range(0, 1000, 2):\n    pass"))


def test_a_function_that_calls_itself_is_named_once(tmp_path):
    text = """
@gluon.jit
def down(a, depth: gl.constexpr):
    if depth == 6:
        return a
    return down(a, depth - 1)
"""
    module = load(tmp_path, "pass")
    path = tmp_path / "deep.py"
    path.write_text(HEAD + text + KERNEL + "    down(v, 5)\n")
    spec = importlib.util.spec_from_file_location("deep", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(E.KernelSyntaxError, match="call themselves") as caught:
        launch(module)
    assert "times)" in str(caught.value) and str(caught.value).count("called from") < 4
    assert "down(a, depth - 1)" in caught.value.span.text


def test_deep_nesting_is_distinguished_from_recursion(tmp_path):
    chain = "".join(f"elif n == {i}:\n    v = v + {i}\n" for i in range(1500))
    with pytest.raises(E.KernelSyntaxError, match="nested too deep.*functions of their own") as got:
        launch(load(tmp_path, f"if n == -1:  # <--\n    v = v + 1\n{chain}"))
    assert "# <--" in got.value.span.text


def test_a_constant_of_a_mebibyte(tmp_path):
    module = load(tmp_path, "gl.static_assert(len(B) > 1000000)\ngl.store(x + o, v)")
    x, y = np.zeros(512, np.float32), np.zeros(512, np.int32)
    module.kernel[(1,)](x, y, 100, 2.5, "a" * (1 << 20), target="sim:hopper")


def test_a_chain_of_calls_that_no_stack_holds(tmp_path):
    chain = "@gluon.jit\ndef f0(a):\n    return a\n"
    chain += "".join(f"@gluon.jit\ndef f{i}(a):\n    return f{i - 1}(a)\n" for i in range(1, 400))
    module = load(tmp_path, "f399(v)", chain)
    with pytest.raises(
        E.KernelSyntaxError, match="calls below kernel are nested too deep.*setrecursionlimit"
    ):
        launch(module)
