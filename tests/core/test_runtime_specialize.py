"""The specialization of the arguments of a launch is Triton's."""

from collections import namedtuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.amd.compiler import HIPBackend
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature, native_specialize_impl

import gluon_core as gluon
from gluon_core.errors import ArgumentError
from gluon_core.launch import arguments
from gluon_core.launch.cache import source_of

Pair = namedtuple("Pair", ["a", "b"])


class Address:
    def __init__(self, dtype, address):
        self.dtype = dtype
        self._address = address

    def data_ptr(self):
        return self._address


TENSOR = torch.zeros(100)
VALUES = {
    "aligned": TENSOR,
    "shifted": TENSOR[1:],
    "int8": torch.zeros(4, dtype=torch.int8),
    "bool tensor": torch.zeros(4, dtype=torch.bool),
    "fp8": torch.zeros(4, dtype=torch.float8_e4m3fn),
    "fp8 uz": torch.zeros(4, dtype=torch.float8_e4m3fnuz),
    "uint16": torch.zeros(4, dtype=torch.uint16),
    "bf16": torch.zeros(4, dtype=torch.bfloat16),
    "object": Address(torch.float16, 24),
    "object aligned": Address(torch.float16, 48),
    "one": 1,
    "zero": 0,
    "sixteen": 16,
    "seven": 7,
    "wide": 2**31,
    "narrowest": -(2**31),
    "negative wide": -(2**31) - 1,
    "unsigned": 2**63,
    "largest": 2**64 - 1,
    "minus 16": -16,
    "float": 1.5,
    "float one": 1.0,
    "true": True,
    "false": False,
    "none": None,
    "numpy double": np.float64(2),
    "tuple": (1, 2, TENSOR),
    "nested": (16, (1, None, 2.5)),
    "named": Pair(1, TENSOR),
}
WAYS = [(False, True, True), (True, True, True), (False, False, True), (False, True, False)]


@pytest.mark.once
@pytest.mark.parametrize("backend, bits", [(CUDABackend, None), (HIPBackend, 32)])
@pytest.mark.parametrize("way", WAYS, ids=["plain", "const", "unspecialized", "unaligned"])
@pytest.mark.parametrize("name", VALUES)
def test_every_decision_is_tritons(backend, bits, way, name):
    const, specialize, align = way
    theirs = native_specialize_impl(backend, VALUES[name], const, specialize, align)
    ours = arguments.describe(
        VALUES[name], const=const, specialize=specialize, align=align, pointer_range_bits=bits
    )
    assert (ours.kind, ours.attributes) == theirs
    assert type(ours.kind) is type(theirs[0])


@pytest.mark.parametrize(
    "value", ["text", [1, 2], {}, torch.float32, 2**64, -(2**63) - 1, object()]
)
def test_objects_that_kernels_cannot_take_are_refused(value):
    with pytest.raises(ArgumentError):
        arguments.describe(value)


# ruff: noqa: F722, F821 - Triton reads these annotations as types
def annotated(
    a,
    b: "i64",
    c: "*fp32",
    d: "const *fp32",
    e: "fp32",
    f: "u1",
    g: tl.constexpr,
    h=5,
    i: "i32" = 1,
):
    pass


CALLS = [
    (TENSOR, 1, TENSOR, TENSOR, 1.0, True, 4),
    (TENSOR[1:], 16, TENSOR[1:], TENSOR[1:], 2, 1, "text", 1),
    (16, 7, TENSOR, TENSOR[1:], 1, False, None, 2**40, 48),
    (None, 2**40, TENSOR, TENSOR, 0.5, True, (1, 2), (1, 16), 5),
    ((TENSOR, 1, None), 3, TENSOR, TENSOR, 0.5, True, 2, True),
]


@pytest.mark.once
@pytest.mark.parametrize("target", ["nvidia:sm_90", "amd:gfx942"])
@pytest.mark.parametrize(
    "options",
    [{}, {"do_not_specialize": ["a", "h", "b"]}, {"do_not_specialize_on_alignment": ["a", "c", 7]}],
)
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_signature_constants_and_attributes_are_tritons(target, options, call):
    ours = gluon.jit(**options)(annotated)
    theirs = triton.jit(**options)(annotated)
    gpu = GPUTarget("cuda", 90, 32) if "sm" in target else GPUTarget("hip", "gfx942", 64)
    backend = CUDABackend(gpu) if "sm" in target else HIPBackend(gpu)
    binder = create_function_from_signature(theirs.signature, theirs.params, backend)
    bound, specialization, attributes = binder(*call)
    _, signature, constants, attrs = theirs._pack_args(
        backend, {}, bound, specialization, attributes
    )

    dispatcher = ours.dispatcher
    values, rest = dispatcher.bind(call, {"target": target})
    source = source_of(ours, dispatcher.specialize(values, rest, running=False))
    assert source.signature == signature
    assert source.constants == constants
    # Triton lists the marks of a text constant as (empty) attributes; they say nothing.
    assert source.attrs == {path: value for path, value in attrs.items() if value}


def test_a_string_constant_is_not_taken_for_marks():
    @gluon.jit
    def kernel(a, MODE: tl.constexpr):
        pass

    values, options = kernel.dispatcher.bind((TENSOR[1:], "DS"), {"target": "sm_80"})
    specialization = kernel.dispatcher.specialize(values, options, running=False)
    assert source_of(kernel, specialization).attrs == {}


def test_plugins_can_register_a_kind_of_argument(monkeypatch):
    class Box:
        value = 7

    monkeypatch.setattr(arguments, "_registered", [])
    with pytest.raises(ArgumentError):
        arguments.describe(Box())
    arguments.register_argument_kind(arguments.ArgumentKind(Box, lambda box: ("i32", "")))
    assert arguments.describe(Box()) == arguments.Argument("i32", "")
