"""Tensor descriptors: their text in signatures, the rules of plugins, their value in models."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.errors import DtypeError, LayoutError, PluginError
from gluon_core.frontend.signature import parse_type
from gluon_core.layouts import BlockedLayout, PaddedSharedLayout, SwizzledSharedLayout
from gluon_core.plugin.reference import Descriptor
from gluon_core.registry.load import load
from gluon_core.values.descriptors import (
    descriptor_text,
    parse_descriptor,
    split_descriptor,
    tensor_descriptor_type,
)
from tests.core.fakes import Plugin, acme

PADDED = PaddedSharedLayout.with_identity_for([[64, 4]], [64, 64], [1, 0])
PLAIN = SwizzledSharedLayout(1, 1, 1, [1, 0])
TYPES = {"tensordesc": tensor_descriptor_type, "tensordesc_other": tensor_descriptor_type}


@pytest.mark.parametrize("layout", [PADDED, PLAIN])
@pytest.mark.parametrize("head, rank", [("tensordesc", None), ("tensordesc_other", 4)])
def test_text_says_all_there_is_to_say(layout, head, rank):
    text = descriptor_text("bf16", [64, 64], layout, head, rank)
    parts = split_descriptor(text)
    assert (parts.head, parts.element, parts.block_shape) == (head, "bf16", (64, 64))
    assert parts.rank == (rank or 2)
    descriptor = parse_descriptor(text, parse_type, TYPES)
    assert descriptor.layout == layout and str(descriptor.block_type.element_ty) == "bf16"
    assert [str(t) for t in descriptor.shape_type.types] == ["int32"] * parts.rank
    assert [str(t) for t in descriptor.strides_type.types] == ["int64"] * parts.rank
    assert descriptor == parse_descriptor(text, parse_type, TYPES) and hash(descriptor) == hash(
        descriptor
    )
    assert descriptor.nbytes_per_cta == 8192


def test_text_that_says_nothing():
    for text, error, match in [
        ("fp16", DtypeError, "no descriptors of kind 'fp16'"),
        ("tensordesc<fp16[64 x 64],X()>", DtypeError, "not a descriptor"),
        (f"tensordesc_third<fp16[64, 64],{PLAIN}>", DtypeError, "'tensordesc', 'tensordesc_other'"),
        ("tensordesc<fp16[64, 64],Nowhere()>", LayoutError, "not a layout"),
        ("tensordesc<fp16[64, 64],SwizzledSharedLayout(print(1))>", LayoutError, "not a layout"),
        (f"tensordesc<fp16[64, 64],{BlockedLayout([1], [32], [4], [0])}>", LayoutError, "shared"),
        (f"tensordesc<fp16[64],{PLAIN}>", LayoutError, "rank of the layout"),
    ]:
        with pytest.raises(error, match=match):
            parse_descriptor(text, parse_type, TYPES)
    with pytest.raises(DtypeError, match="no descriptors at all"):
        parse_type(descriptor_text("fp16", [64, 64], PLAIN))
    with pytest.raises(DtypeError, match="made from an array, or its text: 'tensordesc<fp16"):
        parse_type("<class 'any.TensorDescriptor'>")


@pytest.mark.parametrize("value", [["tensordesc"], {"tensordesc": 3}, {"tensordesc": "module"}])
def test_plugins_whose_descriptors_cannot_be(value):
    with pytest.raises(PluginError, match="descriptors"):
        load([], [Plugin("newcomer", acme(descriptors=value))])


def described(base=1000, shape=(10, 20), block=(4, 8)):
    pack = lambda values: tuple(np.array(v, np.int64).reshape(-1) for v in values)  # noqa: E731
    return Descriptor(
        np.array(base, np.int64).reshape(-1), pack(shape), pack((20, 1)), np.dtype("f4"), block
    )


def test_a_box_has_addresses_and_an_inside():
    addresses, inside = described().box([np.array([8]), np.array([-2])])
    assert addresses.shape == inside.shape == (1, 4, 8)
    assert addresses[0, 0, 2] == 1000 + 8 * 20 * 4
    rows, columns = np.ogrid[8:12, -2:6]
    np.testing.assert_array_equal(inside[0], (rows < 10) & (columns >= 0))


def test_boxes_of_many_programs():
    many = described(base=[0, 4000, 8000])
    addresses, inside = many.box([np.array([0, 1, 2]), np.array([0])])
    assert addresses.shape == (3, 4, 8) and inside.all()
    np.testing.assert_array_equal(addresses[:, 0, 0], [0, 4080, 8160])
    one = many.select(np.array([2]))
    np.testing.assert_array_equal(one.base, [8000])
    parts = [(np.array([0, 2]), many.select(np.array([0, 2]))), (np.array([1]), described(base=7))]
    np.testing.assert_array_equal(Descriptor.merged(parts, 3).base, [0, 7, 8000])
    other = (np.array([1]), described(block=(8, 8)))
    with pytest.raises(ValueError, match="different kinds"):
        Descriptor.merged([parts[0], other], 3)


def test_operands_of_some_programs():
    from gluon_sim.executor.task import Task

    select = Task.select
    where = np.array([True, False, True])
    np.testing.assert_array_equal(select(np.arange(3), where), [0, 2])
    assert select(np.arange(1), where).size == 1 and select(None, where) is None
    many = described(base=[0, 4000, 8000])
    np.testing.assert_array_equal(select(many, where).base, [0, 8000])
    assert select(many, None) is many and select(many, np.array([False])) is many
