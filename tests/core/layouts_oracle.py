"""The compiler as a second opinion on layouts: a builder, and its answers as our layouts."""

from __future__ import annotations

import triton
from triton._C.libtriton import gluon_ir, ir

from gluon_core import layouts as L

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


class Oracle:
    """A builder inside an empty function. An illegal call aborts the process."""

    def __init__(self):
        self.context = ir.context()
        ir.load_dialects(self.context)
        try:
            self.builder = gluon_ir.GluonOpBuilder(self.context)
        except TypeError:
            self.builder = gluon_ir.GluonOpBuilder(self.context, "sm_90")
        b = self.builder
        self.module = b.create_module()
        b.set_loc(b.create_loc("layouts.py", 1, 1) if hasattr(b, "create_loc") else None)
        function = b.get_or_insert_function(
            self.module, "kernel", b.get_function_ty([], []), "public", False
        )
        self.module.push_back(function)
        self.entry = function.add_entry_block()
        b.set_insertion_point_to_start(self.entry)

    def linear(self, layout, shape):
        """`builder.to_linear_layout`, as a LinearLayout with our dim names."""
        linear_layout = self.builder.to_linear_layout(layout._emit(self.builder), list(shape))
        return translate(linear_layout).own_linear()

    def tensor(self, layout, shape):
        b = self.builder
        ty = b.get_distributed_ty(b.get_int32_ty(), list(shape), layout._emit(b))
        return b.create_splat(ty, b.get_int32(0))

    def buffer(self, layout, shape):
        b = self.builder
        ty = b.get_shared_mem_desc_ty(b.get_half_ty(), list(shape), layout._emit(b), list(shape))
        return b.create_local_alloc(ty)

    def of_tensor(self, value):
        return translate(self.builder.get_gluon_layout_from_tensor(value))

    def of_buffer(self, value):
        return translate(self.builder.get_gluon_layout_from_memdesc(value))

    def bank_conflicts(self, register, shared, shape, bits):
        b = self.builder
        return b.get_shared_bank_conflicts(register._emit(b), shared._emit(b), list(shape), bits)


def translate(theirs):
    """Their layout object as ours, by class name and fields."""
    cls = getattr(L, type(theirs).__name__)
    fields = {}
    for name, value in vars(theirs).items():
        fields[name] = translate(value) if name == "parent" else value
    return cls(**fields)
