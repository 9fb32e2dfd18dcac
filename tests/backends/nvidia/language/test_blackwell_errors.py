"""Tensor memory and tcgen05: errors under the kernel's line instead of aborts."""

from __future__ import annotations

import pytest

from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    GluonError,
    LayoutError,
    ShapeError,
)
from tests.backends.nvidia.language.blackwell_programs import (
    SETUP,
    body,
    gpu,
    pairs,
    scaled,
)
from tests.backends.nvidia.language.test_blackwell import NEWER_CALLS
from tests.frontend.vendor_oracle import before, refuse, since
from tests.tables import mistakes

pytestmark = pytest.mark.once  # checks of our own


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"a_shape": [128, 64]}, ShapeError, "do not multiply"),
        ({"acc_shape": [256, 128]}, ShapeError, "do not multiply"),
        ({"a_shape": [128, 16], "b_shape": [16, 128], "dtype": "gl.int8", "a":
          "gl.NVMMASharedLayout(0, 8, 2)", "acc_type": "gl.int32", "b": "S8"}, GluonError, "a: K is smaller|needs Triton >= 3.8"),
        ({"b_type": "gl.int16"}, DtypeError, "does not multiply"),
        ({"dtype": "gl.int16"}, DtypeError, "does not multiply"),
        ({"dtype": "gl.bfloat16", "acc_type": "gl.float16",
          "acc": "TensorMemoryLayout([128, 128], 2)"}, DtypeError, "acc"),
        ({"acc_type": "gl.int32"}, DtypeError, "acc"),
        ({"acc_type": "gl.float16"}, LayoutError, "col_stride=2"),
        ({"b": "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"}, LayoutError, "does not read"),
        ({"a": "gl.NVMMASharedLayout(128, 8, 2)"}, LayoutError, "a different width"),
        ({"a": "gl.NVMMASharedLayout(0, 16, 2)"}, LayoutError, "not swizzled"),
        ({"dtype": "gl.float32"}, LayoutError, "K contiguous"),
        ({"acc_shape": [128, 8], "b_shape": [128, 8], "b": "gl.NVMMASharedLayout(0, 16, 2)",
          "acc": "TensorMemoryLayout([128, 8], 1)"}, ShapeError, "acc: not the N of"),
        ({"call": "tcgen05_mma(acc, b, acc)"}, DtypeError, "does not multiply"),
        ({"call": "tcgen05_mma(n, b, acc)"}, DtypeError, "a: not shared memory"),
        ({"call": "tcgen05_mma(a, acc, acc)"}, DtypeError, "b: not shared memory"),
        ({"call": "tcgen05_mma(a, b, b)"}, DtypeError, "acc: not tensor memory"),
        ({"call": "tcgen05_mma(a, b, acc, use_acc=n)"}, DtypeError, "use_acc"),
        ({"call": "tcgen05_mma(a, b, acc, pred=1)"}, DtypeError, "pred"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[a])"}, DtypeError, "mbarriers"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[bar], mbarrier_preds=[True, True])"},
         ArgumentError, "mbarrier_preds"),
        ({"call": "tcgen05_mma(a, b, acc, mbarriers=[bar], mbarrier_preds=[n])"}, DtypeError,
         "mbarrier_preds"),
        ({"call": "tcgen05_mma(a, b, acc, multicast=n)"}, GluonError, "multicast"),
        ({"call": "tcgen05_commit(a)"}, DtypeError, "barrier"),
        ({"call": "tcgen05_commit(bar, descs=[acc])"}, DtypeError, "descs"),
        ({"call": "tcgen05_copy(a, acc)"}, DtypeError, "src"),
        ({"call": "tcgen05_copy(acc, acc)"}, DtypeError, "src"),
        ({"call": "tcgen05_copy(a, b)"}, DtypeError, "dst"),
        ({"call": "tcgen05_copy(gl.allocate_shared_memory(gl.float32, [128, 64], "
                  "gl.NVMMASharedLayout(128, 32, 2)), acc)"}, ShapeError, "src"),
        ({"call": "tcgen05_copy(gl.allocate_shared_memory(gl.float32, [128, 128], "
                  "gl.NVMMASharedLayout(128, 32, 2, transposed=True)), acc)"}, LayoutError, "src"),
        ({"call": "tcgen05_copy(a, allocate_tensor_memory(gl.float16, [128, 128], A))"},
         LayoutError, "dst"),
    ],
)  # fmt: skip
def test_mma_errors(changes, error, match):
    refuse(body(**changes), error, match)


@pytest.mark.once
@mistakes("""
error | match | call
LimitError | 1024 columns | allocate_tensor_memory(gl.float32, [128, 1024], A)
LimitError | 1024 columns | allocate_tensor_memory(gl.float32, [8, 128, 128], A)
DtypeError | element_ty | allocate_tensor_memory(gl.float64, [128, 128], A)
DtypeError | element_ty | allocate_tensor_memory(gl.int1, [128, 128], A)
DtypeError | element_ty | allocate_tensor_memory(n, [128, 128], A)
ShapeError | shape | allocate_tensor_memory(gl.float32, [128], A)
ShapeError | shape | allocate_tensor_memory(gl.float32, [1, 2, 128, 128], A)
ShapeError | shape | allocate_tensor_memory(gl.float32, [128, 96], A)
ShapeError | shape | allocate_tensor_memory(gl.float32, [128, n], A)
LayoutError | smaller than a block | allocate_tensor_memory(gl.float32, [64, 128], A)
LayoutError | tensor memory | allocate_tensor_memory(gl.float32, [128, 128], S)
LayoutError | tensor memory | allocate_tensor_memory(gl.float32, [128, 128], REG)
LayoutError | col_stride | allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], 2))
DtypeError | scales | allocate_tensor_memory(gl.float32, [128, 8], TensorMemoryScalesLayout())
ShapeError | no copies | allocate_tensor_memory(gl.int8, [2, 128, 8], TensorMemoryScalesLayout())
LayoutError | num_ctas | allocate_tensor_memory(gl.float32, [256, 128], TensorMemoryLayout([128, 128], 1, [[1, 0]]))
LayoutError | block | allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 96], 1))
DtypeError | value | allocate_tensor_memory(gl.float32, [128, 128], A, x.to(gl.float16))
ShapeError | value | allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1), x)
ShapeError | value | allocate_tensor_memory(gl.float32, [128, 128], A, n)
LayoutError | no instruction | allocate_tensor_memory(gl.float32, [128, 128], A, gl.convert_layout(x, ROWS))
LayoutError | no instruction | acc.store(gl.convert_layout(x, ROWS))
DtypeError | pred | acc.store(x, pred=1)
ShapeError | value | acc.store(1.0)
LayoutError | no instruction | acc.load(ROWS)
LayoutError | layout | acc.load(S)
LayoutError | must be known | acc.load(gl.AutoLayout())
LayoutError | no instruction | acc.load(gl.BlockedLayout([1, 64], [32, 1], [2, 2], [0, 1]))
ShapeError | copies | copies.load(REG)
ShapeError | copies | copies.store(x)
ShapeError | index | copies.index(2)
DtypeError | index | copies.index(0.5)
ShapeError | no leading dimension | acc.index(0)
ShapeError | length | acc.slice(0, 48)
ShapeError | length | acc.slice(0, 256)
ShapeError | start | acc.slice(96, 64)
ShapeError | a multiple of 64 | blocks.slice(32, 64)
ShapeError | a multiple of (2|64) | packed.slice(1, 64)
ShapeError | start | acc.slice(128, 64)
ArgumentError | start | acc.slice(n, 64)
ShapeError | dim | acc.slice(0, 64, dim=2)
CapabilityError <3.9 | slice of scales | scales.slice(0, 4)
ShapeError 3.9+ | dimension 1 | scales.slice(6, 4)
ShapeError 3.9+ | a part of each buffer | copies.slice(0, 32, 2).index(0)
LayoutError | scales | scales.load()
ShapeError 3.8+ | larger | acc.reinterpret(gl.float32, [128, 256])
ShapeError 3.9+ | at most 64, got 128 | allocate_tensor_memory(gl.float32, [64, 128], TensorMemoryLayout([64, 128], 1)).reinterpret(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))
DtypeError | element_ty | acc.reinterpret(gl.float64)
LayoutError | tensor memory | acc.reinterpret(layout=S)
LayoutError | instr_variant | acc.get_reg_layout(instr_variant='32x32')
LayoutError | num_warps | acc.get_reg_layout(2)
CapabilityError <3.7 | Triton >= 3.7 | acc.load_min()
LayoutError | shared memory | gl.allocate_shared_memory(gl.float32, [128, 128], A)
""")
def test_memory_errors(call, error, match):
    refuse(
        SETUP
        + f"""
@gluon.jit
def kernel(n):
    acc = allocate_tensor_memory(gl.float32, [128, 128], A)
    copies = allocate_tensor_memory(gl.float32, [2, 128, 128], A)
    scales = allocate_tensor_memory(gl.int8, [128, 8], TensorMemoryScalesLayout())
    blocks = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 32], 1))
    packed = allocate_tensor_memory(gl.float16, [128, 128], A)
    x = gl.full([128, 128], 0, gl.float32, REG)
    {call}  # HERE
ARGS = (5,)
""",
        error,
        match,
    )


@since(3, 7)
def test_which_nan_there_are():
    call = "acc.load_min(REG, propagate_nan=True)  # HERE"
    refuse(body(call), ArgumentError, r"expected triton\.language\.PropagateNan\.NONE", gpu(103))


@pytest.mark.parametrize(
    "changes, error, match",
    [
        ({"a_kind": "e3m2"}, ArgumentError, "a_type"),
        ({"b_type": "gl.float16", "b": "gl.NVMMASharedLayout(128, 16, 2)"}, DtypeError, "b: not"),
        ({"x_shape": [128, 8]}, ShapeError, "a_scale"),
        ({"y_shape": [64, 4]}, ShapeError, "b_scale"),
        ({"scale": "gl.float8e4nv"}, DtypeError, "for fp4"),
        ({"scale": "gl.float8e5"}, DtypeError, "a_scale: not the dtype"),
        ({"x": "TensorMemoryLayout([128, 4], 1)"}, LayoutError, "a_scale"),
        ({"a": "gl.NVMMASharedLayout(128, 8, 2, fp4_padded=True)"}, LayoutError, "padded"),
        ({"b_shape": [256, 128]}, ShapeError, "do not multiply"),
        ({"rest": ", use_acc=1"}, DtypeError, "use_acc"),
    ],
)  # fmt: skip
def test_scaled_errors(changes, error, match):
    named = {"k": 128, "scale": "gl.int8"}
    if changes.get("scale") == "gl.float8e4nv":
        named = {"k": 128}
    kinds = {key: changes.pop(key) for key in ("a_kind",) if key in changes}
    source = scaled(**{**named, **changes})
    if kinds:
        source = source.replace('"e4m3", "e4m3"', '"e3m2", "e4m3"')
    refuse(source, error, match)


@pytest.mark.parametrize("warps", [1, 2])
def test_fewer_warps_than_a_group(warps):
    one = f"gl.BlockedLayout([1, 128], [32, 1], [{warps}, 1], [0, 1])"
    source = body(f"acc.load({one})", kwargs={"num_warps": warps})
    refuse(source, LayoutError, "groups of four warps")


def test_pairs_split_the_rows():
    source = pairs(True).replace("cga_layout=[[1, 0]], two", "cga_layout=[[0, 1]], two")
    source = source.replace("cta_split_num=[2, 1]", "cta_split_num=[1, 2]")
    source = source.replace("acc = allocate", "acc = allocate").replace("ACC)\n", "ACC)  # HERE\n")
    refuse(source, LayoutError, "pair of blocks")


@pytest.mark.parametrize("number", [90, 120])
def test_other_generations_have_none_of_it(number):
    source = body().replace("A)\n    a =", "A)  # HERE\n    a =")
    refuse(source, CapabilityError, "nvidia.tcgen05.*sm_100.*Instead", gpu(number))


@since(3, 8)
def test_integers_are_not_for_every_blackwell():
    source = body(dtype="gl.int8", acc_type="gl.int32")
    refuse(source, CapabilityError, "nvidia.tcgen05_i8", gpu(103))


@before(3, 7)
def test_features_of_a_newer_triton_are_refused():
    for call in NEWER_CALLS:
        refuse(body(call), CapabilityError, "Triton >= 3.7, found")


@before(3, 9)
def test_slices_of_rows_need_a_newer_triton():
    refuse(body("acc.slice(0, 64, dim=0)"), CapabilityError, "Triton >= 3.9, found")
