"""`gluon layout`: a layout as text."""

from __future__ import annotations

from gluon_core.cli.output import UsageError, print_json
from gluon_core.cli.parse import parse_value
from gluon_core.layouts import Layout, explain_layout

__all__ = ["show"]

_VIEWS = ("explain", "tensor", "hardware")


def show(expression: str, shape: str, view: str, json: bool) -> None:
    layout = parse_value(expression, "LAYOUT")
    if not isinstance(layout, Layout):
        raise UsageError("not a layout", argument="LAYOUT", got=repr(expression))
    try:
        extents = [int(part) for part in shape.replace(",", "x").split("x")]
    except ValueError:
        raise UsageError(
            "must be numbers", argument="--shape", expected="64x64", got=shape
        ) from None
    if view not in _VIEWS:
        raise UsageError("no such view", argument="--view", expected=" or ".join(_VIEWS), got=view)
    if json:
        bases = layout.to_linear(extents).bases
        print_json({"layout": repr(layout), "shape": extents, "bases": bases})
    elif view == "tensor":
        print(layout.format_tensor_view(extents))
    elif view == "hardware":
        print(layout.format_hardware_view(extents))
    else:
        print(explain_layout(layout, extents))
