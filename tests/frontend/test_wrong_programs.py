"""Programs whose values do not fit: compile-time values, indices, shapes, layouts, dtypes, buffers.

Each runs on the simulator and compiles for a GPU, and ends in the same error under the same line.
"""

from __future__ import annotations

import warnings

import pytest

from gluon_core import errors as E
from gluon_core.testing import triton_at_least
from tests.frontend.wrong import launch, load, says

pytestmark = pytest.mark.once

K = E.KernelSyntaxError

# name: (body, class, what the caret is under, words in the message ...)
CASES = {
    # compile-time values
    "layout-unmarked": (
        "layout = gl.BlockedLayout([1], [32], [4], [0])",
        E.DtypeError,
        "layout = gl.BlockedLayout([1], [32], [4], [0])",
        "layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])",
    ),
    "portable-layout-unmarked": (
        "layout = gl.portable.blocked_layout([128], gl.float32)",
        E.DtypeError,
        "layout = gl.portable.blocked_layout([128], gl.float32)",
        "Annotate it: layout: gl.constexpr = ",
    ),
    "text-unmarked": (
        "mode = 'relu'",
        E.DtypeError,
        "mode = 'relu'",
        "mode: gl.constexpr = 'relu'",
    ),
    "size-unmarked": (
        "size = 128\ngl.zeros([size], gl.float32, L)  # <--",
        E.ShapeError,
        "gl.zeros([size], gl.float32, L)",
        "'size' where it is set: size: gl.constexpr",
    ),
    "parameter-as-shape": (
        "gl.zeros([n], gl.float32, L)",
        E.ShapeError,
        "gl.zeros([n], gl.float32, L)",
        "a run-time value",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-end": (
        "gl.arange(0, n, layout=L)",
        E.ArgumentError,
        "gl.arange(0, n, layout=L)",
        "end",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-layout": (
        "gl.zeros([128], gl.float32, n)",
        E.LayoutError,
        "gl.zeros([128], gl.float32, n)",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-a-layout": (
        "z: gl.constexpr = gl.BlockedLayout([n], [32], [4], [0])",
        E.LayoutError,
        "gl.BlockedLayout([n], [32], [4], [0])",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-as-axis": (
        "gl.sum(v, n)",
        E.DtypeError,
        "gl.sum(v, n)",
        "compile-time",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-reshape": (
        "v.reshape([n, 2])",
        E.DtypeError,
        "v.reshape([n, 2])",
        "the parameter: n: gl.constexpr",
    ),
    "parameter-in-static-range": (
        "for i in gl.static_range(n):\n    v += i",
        E.DtypeError,
        "for i in gl.static_range(n):",
        "the parameter: n: gl.constexpr",
        "`range`",
    ),
    "parameter-in-static-assert": (
        "gl.static_assert(n > 3)",
        K,
        "gl.static_assert(n > 3)",
        "the parameter: n: gl.constexpr",
        "gl.device_assert",
    ),
    # indices
    "pointer-index": ("z = x[o]", K, "x[o]", "gl.load(x + o)"),
    "pointer-constant-index": ("z = x[0]", K, "x[0]", "gl.load(x + 0)"),
    "pointer-slice": ("z = x[0:4]", K, "x[0:4]", "gl.load(x + gl.arange("),
    "pointer-assignment": ("x[0] = 1.0", K, "x[0] = 1.0", "gl.store(x + 0, 1.0)"),
    "tensor-index": ("z = v[n]", K, "v[n]", "gl.gather"),
    "tensor-assignment": ("v[0] = 1.0", K, "v[0] = 1.0", "gl.where"),
    "float-offset": (
        "gl.load(x + f)",
        E.DtypeError,
        "x + f",
        "integer",
        "float32",
        "f.to(gl.int32)",
    ),
    "pointer-times": ("gl.load(x * 2)", E.DtypeError, "x * 2", "gl.load"),
    "two-pointers": ("gl.load(x + y)", E.DtypeError, "x + y", "two pointers"),
    # shapes, layouts, dtypes, buffers
    "shape-a-text": (
        "gl.zeros('ab', gl.int32, L)",
        E.ShapeError,
        "gl.zeros('ab', gl.int32, L)",
        "'ab'",
    ),
    "shape-none": (
        "gl.zeros(None, gl.int32, L)",
        E.ShapeError,
        "gl.zeros(None, gl.int32, L)",
        "None",
    ),
    "volatile-at-run-time": (
        "gl.load(x + o, volatile=n)",
        E.ArgumentError,
        None,
        "volatile",
        "compile-time",
        "n: gl.constexpr",
    ),
    "hex-as-a-text": ("gl.device_print('x', n, hex='a')", E.ArgumentError, None, "hex", "'a'"),
    "pointer-of-32-bits": (
        "n.to(gl.pointer_type(gl.float32), bitcast=True)",
        E.DtypeError,
        None,
        "64 bits",
        "x.to(gl.int64)",
    ),
    "shape-and-dtype-swapped": (
        "gl.allocate_shared_memory([128], gl.float32, SH)",
        E.ShapeError,
        None,
        "shape",
        "got fp32",
    ),
    "reduced-buffer": (
        "s = gl.allocate_shared_memory(gl.float32, [128], SH)\ngl.sum(s, 0)  # <--",
        (E.DtypeError, E.TraceError),
        None,
        "Load the buffer first",
    ),
    "reshape-none": ("v.reshape(None)", E.ShapeError, "v.reshape(None)", "not a shape"),
    "layout-a-text": (
        "gl.zeros([128], gl.int32, 'a')",
        E.LayoutError,
        None,
        "BlockedLayout",
        "'a'",
    ),
    "dtype-a-text": ("v.to('float16')", E.DtypeError, "v.to('float16')", "gl.float16"),
    "bins-17": (
        "gl.histogram(v.to(gl.int32), 17, layout=L)",
        E.ShapeError,
        None,
        "num_bins",
        "Round up to 32",
    ),
    "bins-run-time": ("gl.histogram(v.to(gl.int32), n)", E.ArgumentError, None, "n: gl.constexpr"),
    "buffer-index": (
        "s = gl.allocate_shared_memory(gl.float32, [4, 128], SH)\ns[0]  # <--",
        K,
        "s[0]",
        "s.index(i)",
    ),
    "buffer-sum": (
        "s = gl.allocate_shared_memory(gl.float32, [128], SH)\ns + 1  # <--",
        E.DtypeError,
        "s + 1",
        "buffer.load(layout)",
    ),
    "buffer-index-float": (
        "s = gl.allocate_shared_memory(gl.float32, [4, 128], SH)\ns.index(f)  # <--",
        E.DtypeError,
        "s.index(f)",
        "index",
        "scalar integer",
    ),
    "barriers-of-rank-2": (
        "b = gl.allocate_shared_memory(gl.int64, [2, 1], MB)\nmbarrier.init(b, 1)  # <--",
        E.ShapeError,
        "mbarrier.init(b, 1)",
        "not one barrier",
        ".index(i)",
    ),
    "barrier-of-a-tensor": ("mbarrier.init(v, 1)", E.DtypeError, None, "not shared memory"),
    "barrier-of-int32": (
        "b = gl.allocate_shared_memory(gl.int32, [1], MB)\nmbarrier.init(b, 1)  # <--",
        E.DtypeError,
        None,
        "int64",
        "allocate_mbarrier()",
    ),
    "rows-under-16-bytes": (
        "tma.make_tensor_descriptor(x, [16, 16], [16, 1], [16, 2], gl.NVMMASharedLayout(32, 32, 2))",
        E.ShapeError,
        None,
        "block_shape",
        "at least 4 x fp32",
    ),
    "strides-under-16-bytes": (
        "tma.make_tensor_descriptor(x, [16, 3], [3, 1], [16, 8], gl.NVMMASharedLayout(32, 32, 2))",
        E.ShapeError,
        None,
        "strides",
        "multiple of 16 bytes",
    ),
    "constraints": (
        "gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r,r', [v], gl.int32, True, 1)",
        E.ArgumentError,
        None,
        "constraints",
        "expected 1, got 2",
    ),
    "reshape-to-another-size": ("v.reshape([16, 4])", E.ShapeError, None, "128 elements"),
    "floats-shifted": ("v << 1", E.DtypeError, "v << 1", "works on integers", "v.to(gl.int32)"),
    "prefix-missing": ("gl.device_print(v)", E.ArgumentError, None, "prefix", "('x', x)"),
    "combine-of-none": (
        "gl.reduce(v, 0, nothing)",
        E.ArgumentError,
        None,
        "combine_fn",
        "2 parameters",
        "nothing()",
    ),
    "combine-of-a-pair": (
        "gl.associative_scan((v, v), 0, one)",
        E.ArgumentError,
        None,
        "4 parameters",
        "one(a, b)",
    ),
    "store-nothing": ("gl.store(x + o, None)", E.DtypeError, None, "value", "None"),
    "text-added": ("v + 'a'", E.DtypeError, "v + 'a'", "cannot be combined"),
    "integer-too-wide": ("v + (1 << 80)", E.ArgumentError, None, "64 bits"),
    "worker-arguments": (
        "gl.warp_specialize([(nothing, ()), (one, (v,))], [4], [24])",
        E.ArgumentError,
        None,
        "functions_and_args[1]",
        "one(a, b)",
    ),
    "texts-in-a-shape": ("gl.zeros(['a'], gl.float32, L)", E.ShapeError, None, "integer", "'a'"),
    "no-layout": ("gl.convert_layout(v, None)", E.LayoutError, None, "layout", "BlockedLayout"),
    "constant-of-a-run-time-value": (
        "c: gl.constexpr = n\ngl.arange(0, c, layout=L)  # <--",
        E.ArgumentError,
        None,
        "compile-time integer",
        "Set 'c', a gl.constexpr,",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_to_do(name, tmp_path):
    says(CASES[name], tmp_path)


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
    for told in mine:
        assert told.source is None
        assert "# <--" in (folders[0] / "wrong.py").read_text().split("\n")[told.lineno - 1]
