"""Programs whose values do not fit: compile-time values, indices, shapes, layouts, dtypes, buffers.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import warnings

import pytest

from gluon_core import errors as E
from gluon_core.testing import triton_at_least
from tests.frontend.wrong import launch, load, says
from tests.tables import mistakes

pytestmark = pytest.mark.once

K = E.KernelSyntaxError


@pytest.mark.sampled(2)
@mistakes("""
id | error | caret | words | code
layout-unmarked | DtypeError | layout = gl.BlockedLayout([1], [32], [4], [0]) | layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0]) | layout = gl.BlockedLayout([1], [32], [4], [0])
portable-layout-unmarked | DtypeError | layout = gl.portable.blocked_layout([128], gl.float32) | Annotate it: layout: gl.constexpr =  | layout = gl.portable.blocked_layout([128], gl.float32)
text-unmarked | DtypeError | mode = 'relu' | mode: gl.constexpr = 'relu' | mode = 'relu'
size-unmarked | ShapeError | gl.zeros([size], gl.float32, L) | 'size' where it is set: size: gl.constexpr |
    size = 128
    gl.zeros([size], gl.float32, L)  # <--
parameter-as-shape | ShapeError | gl.zeros([n], gl.float32, L) | a run-time value && the parameter: n: gl.constexpr | gl.zeros([n], gl.float32, L)
parameter-as-end | ArgumentError | gl.arange(0, n, layout=L) | end && the parameter: n: gl.constexpr | gl.arange(0, n, layout=L)
parameter-as-layout | LayoutError | gl.zeros([128], gl.float32, n) | the parameter: n: gl.constexpr | gl.zeros([128], gl.float32, n)
parameter-in-a-layout | LayoutError | gl.BlockedLayout([n], [32], [4], [0]) | the parameter: n: gl.constexpr | z: gl.constexpr = gl.BlockedLayout([n], [32], [4], [0])
parameter-as-axis | DtypeError | gl.sum(v, n) | compile-time && the parameter: n: gl.constexpr | gl.sum(v, n)
parameter-in-reshape | DtypeError | v.reshape([n, 2]) | the parameter: n: gl.constexpr | v.reshape([n, 2])
parameter-in-static-range | DtypeError | for i in gl.static_range(n): | the parameter: n: gl.constexpr && `range` |
    for i in gl.static_range(n):
        v += i
parameter-in-static-assert | KernelSyntaxError | gl.static_assert(n > 3) | the parameter: n: gl.constexpr && gl.device_assert | gl.static_assert(n > 3)
pointer-index | KernelSyntaxError | x[o] | gl.load(x + o) | z = x[o]
pointer-constant-index | KernelSyntaxError | x[0] | gl.load(x + 0) | z = x[0]
pointer-slice | KernelSyntaxError | x[0:4] | gl.load(x + gl.arange( | z = x[0:4]
pointer-assignment | KernelSyntaxError | x[0] = 1.0 | gl.store(x + 0, 1.0) | x[0] = 1.0
tensor-index | KernelSyntaxError | v[n] | gl.gather | z = v[n]
tensor-assignment | KernelSyntaxError | v[0] = 1.0 | gl.where | v[0] = 1.0
float-offset | DtypeError | x + f | integer && float32 && f.to(gl.int32) | gl.load(x + f)
pointer-times | DtypeError | x * 2 | gl.load | gl.load(x * 2)
two-pointers | DtypeError | x + y | two pointers | gl.load(x + y)
shape-a-text | ShapeError | gl.zeros('ab', gl.int32, L) | 'ab' | gl.zeros('ab', gl.int32, L)
shape-none | ShapeError | gl.zeros(None, gl.int32, L) | None | gl.zeros(None, gl.int32, L)
volatile-at-run-time | ArgumentError | - | volatile && compile-time && n: gl.constexpr | gl.load(x + o, volatile=n)
hex-as-a-text | ArgumentError | - | hex && 'a' | gl.device_print('x', n, hex='a')
pointer-of-32-bits | DtypeError | - | 64 bits && x.to(gl.int64) | n.to(gl.pointer_type(gl.float32), bitcast=True)
shape-and-dtype-swapped | ShapeError | - | shape && got fp32 | gl.allocate_shared_memory([128], gl.float32, SH)
reduced-buffer | DtypeError/TraceError | - | Load the buffer first |
    s = gl.allocate_shared_memory(gl.float32, [128], SH)
    gl.sum(s, 0)  # <--
reshape-none | ShapeError | v.reshape(None) | not a shape | v.reshape(None)
layout-a-text | LayoutError | - | BlockedLayout && 'a' | gl.zeros([128], gl.int32, 'a')
dtype-a-text | DtypeError | v.to('float16') | gl.float16 | v.to('float16')
bins-17 | ShapeError | - | num_bins && Round up to 32 | gl.histogram(v.to(gl.int32), 17, layout=L)
bins-run-time | ArgumentError | - | n: gl.constexpr | gl.histogram(v.to(gl.int32), n)
buffer-index | KernelSyntaxError | s[0] | s.index(i) | s = gl.allocate_shared_memory(gl.float32, [4, 128], SH) ;; s[0]  # <--
buffer-sum | DtypeError | s + 1 | buffer.load(layout) | s = gl.allocate_shared_memory(gl.float32, [128], SH) ;; s + 1  # <--
buffer-index-float | DtypeError | s.index(f) | index && scalar integer |
    s = gl.allocate_shared_memory(gl.float32, [4, 128], SH)
    s.index(f)  # <--
barriers-of-rank-2 | ShapeError | mbarrier.init(b, 1) | not one barrier && .index(i) |
    b = gl.allocate_shared_memory(gl.int64, [2, 1], MB)
    mbarrier.init(b, 1)  # <--
barrier-of-a-tensor | DtypeError | - | not shared memory | mbarrier.init(v, 1)
barrier-of-int32 | DtypeError | - | int64 && allocate_mbarrier() |
    b = gl.allocate_shared_memory(gl.int32, [1], MB)
    mbarrier.init(b, 1)  # <--
rows-under-16-bytes | ShapeError | - | block_shape && at least 4 x fp32 | tma.make_tensor_descriptor(x, [16, 16], [16, 1], [16, 2], gl.NVMMASharedLayout(32, 32, 2))
strides-under-16-bytes | ShapeError | - | strides && multiple of 16 bytes | tma.make_tensor_descriptor(x, [16, 3], [3, 1], [16, 8], gl.NVMMASharedLayout(32, 32, 2))
constraints | ArgumentError | - | constraints && expected 1, got 2 | gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r,r', [v], gl.int32, True, 1)
reshape-to-another-size | ShapeError | - | 128 elements | v.reshape([16, 4])
floats-shifted | DtypeError | v << 1 | works on integers && v.to(gl.int32) | v << 1
prefix-missing | ArgumentError | - | prefix && ('x', x) | gl.device_print(v)
combine-of-none | ArgumentError | - | combine_fn && 2 parameters && nothing() | gl.reduce(v, 0, nothing)
combine-of-a-pair | ArgumentError | - | 4 parameters && one(a, b) | gl.associative_scan((v, v), 0, one)
store-nothing | DtypeError | - | value && None | gl.store(x + o, None)
text-added | DtypeError | v + 'a' | cannot be combined | v + 'a'
integer-too-wide | ArgumentError | - | 64 bits | v + (1 << 80)
worker-arguments | ArgumentError | - | functions_and_args[1] && one(a, b) | gl.warp_specialize([(nothing, ()), (one, (v,))], [4], [24])
texts-in-a-shape | ShapeError | - | integer && 'a' | gl.zeros(['a'], gl.float32, L)
no-layout | LayoutError | - | layout && BlockedLayout | gl.convert_layout(v, None)
constant-of-a-run-time-value | ArgumentError | - | compile-time integer && Set 'c', a gl.constexpr, |
    c: gl.constexpr = n
    gl.arange(0, c, layout=L)  # <--
""")
def test_the_error_names_the_remedy(error, caret, words, code, tmp_path):
    says(error, caret, words, code, tmp_path)


# name: (body, words in the warning ...); `# <--` marks the line.
SUSPICIOUS = {
    "atomic": ("gl.atomic_add(y, 1.5)  # <--", "gl.atomic_add", "cut to int32"),
    "store-of-a-large-constant": ("gl.store(y, 1 << 40)  # <--", "gl.store", "keeps 32 bits"),
    "atomic-of-a-large-constant": (
        "gl.atomic_max(y + o, 1 << 40)  # <--",
        "gl.atomic_max",
        "keeps 32 bits",
    ),
    "store": ("gl.store(y + o, v)  # <--", "gl.store", "value.to(gl.int32)"),
    "some-paths": ("gl.store(y, sometimes(n))", "sometimes", "some paths alone"),
    "worker-returns": (
        "gl.warp_specialize([(nothing, ()), (answers, ())], [4], [24])  # <--",
        "answers",
        "Store it to memory",
    ),
}


if not triton_at_least(3, 8):  # which drops them before anybody sees; 3.9 refuses
    SUSPICIOUS["unpack-too-many"] = ("k, j = (1, 2, 3)  # <--", "of 3 values the first 2", "(k, j)")
if triton_at_least(3, 7):
    SUSPICIOUS["kernel-that-returns"] = ("return n  # <--", "kernel is a kernel", "nobody gets")


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_the_suspicious_warns_at_its_line(name, tmp_path):
    body, *words = SUSPICIOUS[name]
    module = load(tmp_path, body)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launch(module)
    mine = [warning for warning in caught if warning.category is E.KernelWarning]
    assert len(mine) == 1
    for word in words:
        assert word in str(mine[0].message)
    text = (tmp_path / "wrong.py").read_text().split("\n")[mine[0].lineno - 1]
    assert mine[0].filename == str(tmp_path / "wrong.py")
    assert "# <--" in text or name == "some-paths" and "if a > 3" in text


def test_the_suspicious_is_accepted_in_silence(tmp_path):
    module = load(tmp_path, "gl.atomic_add(y, 1.5)\ngl.store(y + o, v.to(gl.int32))\nnothing()")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=E.KernelWarning)
        warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
        launch(module)
    clean = load(tmp_path, "gl.atomic_add(y, 1)\ngl.store(y + o, v.to(gl.int32))\ngl.store(x, 1)")
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=E.KernelWarning)
        launch(clean)


def test_and_of_tensors_warns_once_at_its_line(tmp_path):
    """As Python shows warnings by default, in two files alike."""
    body = "many = (o < n) and (o > 2)  # <--\ngl.store(x + o, v, mask=many)"
    folders = [tmp_path / "one", tmp_path / "another"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for folder in folders:
            folder.mkdir()
            launch(load(folder, body))
    mine = [w for w in caught if "'&' or '|'" in str(w.message)]
    assert [w.filename for w in mine] == [str(folder / "wrong.py") for folder in folders]
    for message in mine:
        assert message.source is None
        assert "# <--" in (folders[0] / "wrong.py").read_text().split("\n")[message.lineno - 1]
