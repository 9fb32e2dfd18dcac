"""Packed arithmetic and pairs of float32: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import itertools

import pytest

import gluon_core
from gluon_core.compiler import compile
from gluon_core.errors import CapabilityError, DtypeError
from gluon_core.testing import TRITON_VERSION, MockTensor, bind
from gluon_nvidia.language import packed
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SETUP = """
from GLUON.language.nvidia.{generation} import {names}
TARGET = GPUTarget("cuda", {arch}, 32)
L = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))
M = gl.constexpr(gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))
"""
VALUES = """
@gluon.jit
def kernel(p, f, n):
    f32 = gl.full([32, 64], 1.0, gl.float32, L)
    other = gl.full([32, 64], 1.0, gl.float32, M)
    column = gl.full([32, 1], 1.0, gl.float32, L)
    short = gl.full([32, 32], 1.0, gl.float32, L)
    f64 = gl.full([32, 64], 1.0, gl.float64, L)
    f16 = gl.full([32, 64], 1.0, gl.float16, L)
    bf16 = gl.full([32, 64], 1.0, gl.bfloat16, L)
    e4 = gl.full([32, 64], 1.0, gl.float8e4nv, L)
    e5 = gl.full([32, 64], 1.0, gl.float8e5, L)
    x = {call}  # HERE
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(p + rows[:, None] * 64 + columns[None, :], x.to(gl.float32))
ARGS = (ptr(gl.float32), 3.5, 7)
"""
NAMES = {
    "blackwell": "add2, fma2, max2, min2, mul2, sub2",
    "rubin": "add2, fma2, max2, min2, mul2, sub2, add4, fma4, mul4, sub4",
}
FLOATS = {
    "f32": "gl.float32",
    "f16": "gl.float16",
    "bf16": "gl.bfloat16",
    "e4": "gl.float8e4nv",
    "e5": "gl.float8e5",
}


def source(call, generation="blackwell"):
    setup = SETUP.format(
        generation=generation,
        names=NAMES[generation],
        arch={"blackwell": 100, "rubin": 107}[generation],
    )
    return setup + VALUES.format(call=call)


def gpu(arch):
    return gluon_core._triton.GPUTarget("cuda", arch, 32)


CALLS = [
    "add2(f32, f32)",
    "sub2(f16, f16)",
    "mul2(bf16, bf16)",
    "fma2(f32, f32, f32)",
    "min2(f16, f16)",
    "max2(bf16, bf16)",
    "add2(e4, e5)",
    "mul2(e4, e5)",
    "mul2(e4, e5, gl.float8e5)",
    "fma2(e4, e5, e4)",
    # scalars take the result's dtype
    "add2(f32, 1.0)",
    "add2(1, f16)",
    "add2(f32, f)",
    "add2(f32, n)",
    "fma2(f32, 2.0, f)",
    "fma2(1.0, e4, e5)",
    "fma2(e5, e4, 1.0)",
    # shapes broadcast
    "add2(f32, column)",
    "fma2(column, f32, column)",
]


MIXED = [
    "add2(f16, f32)",
    "add2(f32, f32, gl.float16)",
    "mul2(f32, f32, dtype=gl.bfloat16)",
    "mul2(f16, bf16)",
    "fma2(bf16, f32, f32)",
    "mul2(1.0, f16, gl.bfloat16)",
    "fma2(f16, f32, 1.0)",
]


@since(3, 8)
@pytest.mark.parametrize("call", CALLS)
def test_packed_arithmetic(call):
    assert "packed_arith" in agree(source(call))


@since(3, 9)
@pytest.mark.parametrize("call", MIXED)
def test_operands_of_several_dtypes(call):
    agree(source(call, "rubin"))
    refuse(source(call), CapabilityError, "nvidia.packed_mixed .*sm_107")


@since(3, 8)
@pytest.mark.parametrize(
    "call",
    ["add2(f16, f16)", "mul2(bf16, bf16)", "min2(f16, f16)", "fma2(bf16, bf16, 1.0)"],
)
def test_pairs_of_16_bits_are_older_than_those_of_float32(call):
    agree(source(call), gpu(90))
    refuse(source("add2(f32, f32)"), CapabilityError, "nvidia.f32x2", gpu(90))
    older = source("add2(bf16, bf16)").replace("float8e4nv", "float8e5")
    refuse(older, CapabilityError, "nvidia.packed_bf16 .*sm_90", gpu(80))
    agree(source("fma2(bf16, bf16, bf16)").replace("float8e4nv", "float8e5"), gpu(80))


@since(3, 9)
def test_a_scalar_of_the_kernel_has_its_own_dtype_where_it_leads():
    assert "f16, #blocked>, tensor<32x64xf32" in agree(source("add2(f16, f)", "rubin"))
    refuse(source("add2(f16, f)"), CapabilityError, "nvidia.packed_mixed")


CODES = (
    VALUES.replace("    x = {call}", """    codes = (gl.full([32, 32], 0, gl.int32, M) + n).to(gl.uint8)
    bytes = (gl.full([32, 32], 0, gl.int32, M) + n).to(gl.int8)
    wrong = (gl.full([32, 32], 0, gl.int32, L) + n).to(gl.uint8)
    tall = (gl.full([16, 64], 0, gl.int32, L) + n).to(gl.uint8)
    x = {call}""")
    .replace("    gl.store(p + rows[:, None] * 64 + columns[None, :], x.to(gl.float32))",
             "    gl.store(p + gl.zeros(x.shape, gl.int32, x.type.layout), x.to(gl.float32))")
    .replace("e5 = gl.full([32, 64], 1.0, gl.float8e5, L)", "e5 = f32.to(gl.float8e5)")
    .replace("e4 = gl.full([32, 64], 1.0, gl.float8e4nv, L)", "e4 = f32.to(gl.float8e4nv)")
)  # fmt: skip


def codes(call, arch=100):
    setup = SETUP.format(generation="blackwell", names=NAMES["blackwell"], arch=arch)
    return setup + CODES.format(call=call)


@since(3, 8)
@pytest.mark.parametrize(
    "call",
    [
        "add2(codes, e4)",
        "sub2(bytes, e5, gl.float8e5)",
        "mul2(codes, bytes, gl.float8e4nv)",
        "mul2(e4, codes, gl.float8e5)",
        "mul2(codes, e5)",
        "fma2(codes, bytes, e4)",
        "fma2(codes, 2.0, e5)",
        "fma2(e4, codes, e5)",
        "fma2(codes, e4, 1.0, gl.float8e4nv)",
    ],
)
def test_fp4(call):
    assert "packed_arith" in agree(codes(call))


@since(3, 8)
@mistakes("""
error | match | call
ArgumentError | fp4 operands alone | mul2(codes, codes)
ArgumentError | rhs.*a tensor of fp8 as well | mul2(codes, 2.0, gl.float8e4nv)
DtypeError | no packed add | add2(codes, codes, gl.float8e4nv)
DtypeError | no packed add | add2(e4, codes)
DtypeError | no such result | add2(codes, e4, gl.float8e5)
DtypeError | no packed min | min2(codes, codes, gl.float8e5)
LayoutError | lhs.*holds different elements | add2(wrong, e4)
ShapeError | rhs.*two to a byte | mul2(codes, tall, gl.float8e4nv)
""")
def test_fp4_errors(call, error, match):
    refuse(codes(call), error, match)
    with pytest.raises(Exception):  # noqa: B017  # upstream's verifier, or its own errors
        agree(codes(call))


@since(3, 8)
def test_fp8_is_not_everywhere():
    refuse(source("add2(e4, e4)"), CapabilityError, "nvidia.packed_fp8 .*sm_100", gpu(120))


RUBIN = [
    *(f"{kind}4({a}, {b})" for kind in ("add", "sub", "mul") for a in ("e4", "e5") for b in ("e4", "e5")),
    "fma4(e4, e5, e4)",
    "fma4(e5, e5, e4)",
    "add2(e4, e5)",
    "mul4(e4, e5, gl.float8e5)",
    "add4(e4, 1.0)",
]  # fmt: skip


@pytest.mark.sampled(8)
@since(3, 9)
@pytest.mark.parametrize("call", [*RUBIN, "add2(codes, e5)", "mul2(codes, bytes, gl.float8e4nv)"])
def test_rubin_traces_fp8_that_its_assembler_does_not_know(call):
    text = codes(call, 107) if "codes" in call else source(call, "rubin")
    assert "packed_arith" in agree(text)
    for target in ("nvidia:sm_107", "sim:sm_107"):
        with pytest.raises(CapabilityError, match="needs nvidia.packed_fp8") as caught:
            instructions(text, target)
        assert "HERE" in caught.value.span.text


@since(3, 9)
@pytest.mark.parametrize(
    "call",
    ["add4(f32, f32)", "sub4(f16, f32)", "mul4(f16, f16)", "fma4(f32, f32, f32)", "add2(f32, f32)"],
)
def test_four_at_once(call):
    agree(source(call, "rubin"))


def accepted(call):
    """Return True if upstream accepts a call."""
    try:
        oracle.upstream(source(call).replace("GLUON", "triton.experimental.gluon"))
    except Exception:
        return False
    return True


@pytest.mark.sampled(4)
@since(3, 8)
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "fma", "min", "max"])
def test_the_forms_are_upstreams(kind, capfd):
    short = {str(eval(text, {"gl": gluon_core.language})): name for name, text in FLOATS.items()}
    mine = {
        tuple(short[str(t)] for t in operands): {short[str(t)] for t in results}
        for operands, results in packed._FORMS[kind].items()
        if packed._FP4 not in operands
    }
    for operands in itertools.product(FLOATS, repeat=3 if kind == "fma" else 2):
        call = f"{kind}2({', '.join(operands)}"
        if operands not in mine:
            assert not accepted(f"{call})"), call
            continue
        for name, dtype in FLOATS.items():
            known = name in mine[operands]
            assert accepted(f"{call}, dtype={dtype})") == known, (call, dtype)


PAIRS = """
from GLUON.language.nvidia.blackwell import float2
TARGET = GPUTarget("cuda", 100, 32)
L = gl.constexpr(gl.BlockedLayout([2, 4], [4, 8], [4, 1], [1, 0]))
@gluon.jit
def kernel(p, n):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    ptrs = p + rows[:, None] * 64 + columns[None, :]
    a = gl.load(ptrs)
    h = a.to(gl.float16)
    {body}
ARGS = (ptr(gl.float32), 7)
"""
BODIES = {
    "roundtrip": """
    for axis in gl.static_range(2):
        x = float2.pack(a, axis)
        a = float2.unpack(x * x, axis)
    gl.store(ptrs, a)
""",
    "arithmetic": """
    x = float2.pack(a, 1)
    y = float2.full_like(x, gl.to_tensor(2.0))
    z = float2.fma(x, y, x + y) - x
    gl.store(ptrs, float2.unpack(z, 1))
""",
    "loop": """
    x = float2.pack(a, 1)
    y = float2.full_like(x, 0.0 * n)
    for i in range(n):
        y = float2.fma(x, y, x)
    gl.store(ptrs, float2.unpack(y, 1))
""",
    "two": """
    x = float2.pack2(a, a + 1)
    lo, hi = float2.unpack2(x + x)
    gl.store(ptrs, lo + hi)
""",
    "sum": """
    x = float2.pack(a, 1).sum(1)
    lo, hi = float2.unpack2(x)
    gl.store(p + gl.arange(0, 32, layout=lo.type.layout), lo + hi)
""",
}


@before(3, 8)
@pytest.mark.parametrize("body", BODIES)
def test_pairs(body):
    assert "f32x2" in agree(PAIRS.format(body=BODIES[body].lstrip()))


@pytest.mark.parametrize("body", BODIES)
def test_pairs_with_every_triton(body):
    parse(PAIRS.format(body=BODIES[body].lstrip()))


@since(3, 8)
@mistakes("""
error | match | call
DtypeError | no packed add | add2(f64, f64)
DtypeError | got fp32, fp16 | add2(f32, f16)
DtypeError | plain arithmetic | min2(f32, f32)
DtypeError | floating-point | add2(f32, f32, gl.int32)
DtypeError | has no such result | add2(f32, f32, gl.float8e5)
ArgumentError | at least one tensor | add2(1.0, 2.0)
ArgumentError | at least one tensor | add2(f, f)
DtypeError | pointer | add2(f32, p)
DtypeError | not a tensor | add2(f32, 'x')
LayoutError | different layouts | add2(f32, other)
ShapeError | cannot broadcast | fma2(f32, f32, short)
""")
def test_mistakes(call, error, match):
    refuse(source(call), error, match)


@mistakes("""
error | match | body
DtypeError | got a tensor of fp16 | float2.pack(h, 1)  # HERE
ShapeError | the axis is out of range | float2.pack(a, 2)  # HERE
DtypeError | fill_value | float2.full_like(float2.pack(a, 1), n)  # HERE
ShapeError | odd number | float2.pack(gl.sum(a.reshape(1, 2048), 1), 0)  # HERE
ShapeError | the axis is out of range | float2.unpack(float2.pack(a, 1), -3)  # HERE
DtypeError | x: not pairs | float2.unpack2(a)  # HERE
DtypeError | b: not pairs | float2.fma(float2.pack(a, 1), a, 2.0)  # HERE
""")
def test_mistakes_with_pairs(body, error, match):
    refuse(PAIRS.format(body=body), error, match)


def test_a_number_is_no_pair():
    with pytest.raises(DtypeError, match="right operand: not pairs"):
        parse(PAIRS.format(body="float2.pack(a, 1).__mul__(2.0)"))


@pytest.mark.parametrize("call", ["add2(f32, f32)", "fma2(f32, f32, f32)"])
def test_targets_without_them(call):
    if TRITON_VERSION < (3, 8):
        assert not hasattr(gluon_core.language.nvidia.blackwell, call.split("(")[0])
    else:
        refuse(source(call), CapabilityError, "nvidia.f32x2 .*sm_100", gpu(90))
        refuse(source("add4(f32, f32)", "rubin"), CapabilityError, "nvidia.f32x2", gpu(90))


@since(3, 8)
def test_four_at_once_are_two_at_a_time_on_blackwell():
    four, two = (source(call, "rubin") for call in ("add4(f32, f32)", "add2(f32, f32)"))
    assert agree(four, gpu(100)) == agree(two, gpu(100))


def test_pairs_need_the_unit():
    with pytest.raises(CapabilityError, match="nvidia.f32x2"):
        parse(PAIRS.format(body=BODIES["two"].lstrip()), gpu(90))


def instructions(text, target):
    import torch

    module = oracle.load(text.replace("GLUON", "gluon_core"), oracle.OURS)
    arguments = (MockTensor(torch.float32), *module.ARGS[1:])
    bound, _ = bind(module.kernel, arguments, {})
    return compile(bound, target=target).asm["ptx"]


def test_instructions_of_pairs():
    ptx = instructions(PAIRS.format(body=BODIES["arithmetic"].lstrip()), "nvidia:sm_100")
    assert all(f"{name}.f32x2" in ptx for name in ("add", "sub", "fma.rn"))


@since(3, 8)
@pytest.mark.parametrize("target", ["nvidia:sm_100", "nvidia:sm_120"])
@pytest.mark.parametrize(
    "call, wanted", [("fma2(x, x, x)", "fma.rn.f32x2"), ("add2(x, f)", "add.f32x2")]
)
def test_instructions(call, wanted, target):
    text = source(call)
    start, end = text.index("    f32 = "), text.index("    x = ")
    text = (
        text[:start]
        + "    x = gl.load(p + gl.arange(0, 64, layout=gl.SliceLayout(0, L))[None, :] + gl.arange(0, 32, layout=gl.SliceLayout(1, L))[:, None] * 64)\n"
        + text[end:]
    )
    assert wanted in instructions(text, target)
