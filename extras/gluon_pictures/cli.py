"""`gluon layout`: layouts as text and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli.options import Json
from gluon_cli.output import UsageError, print_json
from gluon_cli.parse import parse_value
from gluon_core import layouts

__all__ = ["layout"]

_VIEWS = ("explain", "tensor", "hardware")


def layout(
    expression: Annotated[
        Optional[str],
        typer.Argument(
            metavar="LAYOUT", help="Such as 'BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])'."
        ),
    ] = None,
    shape: Annotated[
        Optional[str],
        typer.Option("--shape", help="Of the tensor or buffer: 64x64. A picture finds one itself."),
    ] = None,
    view: Annotated[str, typer.Option("--view", help="explain, tensor or hardware.")] = "explain",
    compare: Annotated[
        Optional[tuple[str, str]],
        typer.Option(
            "--compare",
            metavar="LAYOUT LAYOUT",
            help="Two register layouts: what a conversion moves how far. A register and a shared "
            "one: the banks that an access hits.",
        ),
    ] = None,
    bits: Annotated[
        Optional[int], typer.Option("--bits", min=1, max=128, help="Of one element; 32.")
    ] = None,
    svg: Annotated[
        Optional[Path], typer.Option("--svg", metavar="FILE", help="Draw it as SVG.")
    ] = None,
    html: Annotated[
        Optional[Path],
        typer.Option("--html", metavar="FILE", help="Draw it as a page that needs no network."),
    ] = None,
    json: Json = False,
) -> None:
    """Which thread, register or address holds which element of a tensor."""
    extents = _extents(shape) if shape is not None else None
    if view not in _VIEWS:
        raise UsageError("no such view", argument="--view", expected=" or ".join(_VIEWS), got=view)
    if (expression is None) == (not compare):
        raise UsageError(
            "one layout, or two to compare",
            argument="LAYOUT",
            expected="LAYOUT, or --compare LAYOUT LAYOUT",
            got="both" if compare else "neither",
        )
    if compare:
        if json or view != "explain":
            raise UsageError(
                "goes with one layout, not with two",
                argument="--json" if json else "--view",
                got="--compare",
            )
        first, second = (_layout(text, "--compare") for text in compare)
        drawn_pair = layouts.compare(first, second, extents, bits=bits)
        print(drawn_pair.text)
        _write(drawn_pair, svg, html)
        return
    drawn = _layout(expression or "", "LAYOUT")
    if svg or html:
        _write(drawn.show(extents, bits=bits), svg, html)
        return
    if extents is None:
        raise UsageError("is missing", argument="--shape", expected="64x64")
    if json:
        bases = drawn.to_linear(extents).bases
        print_json({"layout": repr(drawn), "shape": extents, "bases": bases})
    elif view == "tensor":
        print(drawn.format_tensor_view(extents))
    elif view == "hardware":
        print(drawn.format_hardware_view(extents))
    else:
        print(layouts.explain_layout(drawn, extents))


def _extents(shape: str) -> list[int]:
    try:
        return [int(part) for part in shape.replace(",", "x").split("x")]
    except ValueError:
        raise UsageError(
            "must be numbers", argument="--shape", expected="64x64", got=shape
        ) from None


def _layout(text: str, argument: str) -> layouts.Layout:
    layout = parse_value(text, argument)
    if not isinstance(layout, layouts.Layout):
        raise UsageError("not a layout", argument=argument, got=repr(text))
    return layout


def _write(made: layouts.Picture, svg: Optional[Path], html: Optional[Path]) -> None:
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
