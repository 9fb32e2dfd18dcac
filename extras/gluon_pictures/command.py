"""`gluon layout`: layouts as text and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

from gluon_cli.output import UsageError, print_json
from gluon_cli.parse import parse_value
from gluon_core.layouts import Layout, Picture, compare, explain_layout

__all__ = ["show"]

_VIEWS = ("explain", "tensor", "hardware")


def show(
    expression: Optional[str],
    pair: Optional[Sequence[str]],
    shape: Optional[str],
    view: str,
    bits: Optional[int],
    svg: Optional[Path],
    html: Optional[Path],
    json: bool,
) -> None:
    extents = _extents(shape) if shape is not None else None
    if view not in _VIEWS:
        raise UsageError("no such view", argument="--view", expected=" or ".join(_VIEWS), got=view)
    if (expression is None) == (not pair):
        raise UsageError(
            "one layout, or two to compare",
            argument="LAYOUT",
            expected="LAYOUT, or --compare LAYOUT LAYOUT",
            got="both" if pair else "neither",
        )
    if pair:
        if json or view != "explain":
            raise UsageError(
                "goes with one layout, not with two",
                argument="--json" if json else "--view",
                got="--compare",
            )
        first, second = (_layout(text, "--compare") for text in pair)
        made = compare(first, second, extents, bits=bits)
        print(made.text)
        _write(made, svg, html)
        return
    layout = _layout(expression or "", "LAYOUT")
    if svg or html:
        _write(layout.show(extents, bits=bits), svg, html)
        return
    if extents is None:
        raise UsageError("is missing", argument="--shape", expected="64x64")
    if json:
        bases = layout.to_linear(extents).bases
        print_json({"layout": repr(layout), "shape": extents, "bases": bases})
    elif view == "tensor":
        print(layout.format_tensor_view(extents))
    elif view == "hardware":
        print(layout.format_hardware_view(extents))
    else:
        print(explain_layout(layout, extents))


def _extents(shape: str) -> list[int]:
    try:
        return [int(part) for part in shape.replace(",", "x").split("x")]
    except ValueError:
        raise UsageError(
            "must be numbers", argument="--shape", expected="64x64", got=shape
        ) from None


def _layout(text: str, argument: str) -> Layout:
    layout = parse_value(text, argument)
    if not isinstance(layout, Layout):
        raise UsageError("not a layout", argument=argument, got=repr(text))
    return layout


def _write(made: Picture, svg: Optional[Path], html: Optional[Path]) -> None:
    for option, path, content in (("--svg", svg, made.svg), ("--html", html, made.html)):
        if path is None:
            continue
        try:
            path.write_text(content(), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                "cannot be written", argument=option, got=f"{path}: {error.strerror}"
            ) from None
        print(f"wrote {path}: {made.title}")
