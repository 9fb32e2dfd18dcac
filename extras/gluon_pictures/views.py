"""Provide the service `pictures`, which draws for `gluon_core.layouts`."""

from gluon_pictures.draw import picture
from gluon_pictures.draw_pair import compare
from gluon_pictures.dump import dump
from gluon_pictures.render import explain, explain_layout, hardware_view, tensor_view

__all__ = [
    "compare",
    "dump",
    "explain",
    "explain_layout",
    "hardware_view",
    "picture",
    "tensor_view",
]
