"""`gluon layout`: layouts as text and as pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli.options import Json, TargetName
from gluon_cli.output import UsageError, print_json
from gluon_cli.parse import parse_value
from gluon_core import layouts
from gluon_core.registry.load import registry

__all__ = ["layout"]

_VIEWS = ("explain", "tensor", "hardware")


Expression = Annotated[
    Optional[str],
    typer.Argument(
        metavar="LAYOUT",
        help="Such as 'BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])'; or FILE:LINE, of a layout-free kernel.",
    ),
]
Shape = Annotated[
    Optional[str],
    typer.Option(
        "--shape", help="Shape of the tensor or buffer: 64x64. A picture finds one itself."
    ),
]
View = Annotated[str, typer.Option("--view", help="explain, tensor or hardware.")]
Compare = Annotated[
    Optional[tuple[str, str]],
    typer.Option(
        "--compare",
        metavar="LAYOUT LAYOUT",
        help="Two register layouts: the distance that each element moves in a conversion. A register and a shared "
        "one: the banks that an access hits.",
    ),
]
Bits = Annotated[
    Optional[int], typer.Option("--bits", min=1, max=128, help="Bits of one element; 32.")
]
Svg = Annotated[Optional[Path], typer.Option("--svg", metavar="FILE", help="Draw it as SVG.")]
Html = Annotated[
    Optional[Path],
    typer.Option("--html", metavar="FILE", help="Draw it as a page that needs no network."),
]


def layout(
    expression: Expression = None,
    shape: Shape = None,
    view: View = "explain",
    compare: Compare = None,
    bits: Bits = None,
    svg: Svg = None,
    html: Html = None,
    json: Json = False,
    target: TargetName = None,
) -> None:
    """Which thread, register or address holds which element of a tensor.

    FILE:LINE shows the layouts that were chosen for the values of a line, on --target; FILE:LINE:NAME one of them.
    """
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
                "takes one layout, not two",
                argument="--json" if json else "--view",
                got="--compare",
            )
        first, second = (_layout(text, "--compare") for text in compare)
        picture = layouts.compare(first, second, extents, bits=bits)
        print(picture.text)
        _write(picture, svg, html)
        return
    place = re.fullmatch(r"(.+\.py):(\d+)(?::(\w+))?", expression or "")
    if place is not None:
        _chosen(place[1], int(place[2]), place[3], target, view, json, (svg, html))
        return
    if re.match(r"[^(]+\.py(:|$)", expression or ""):
        raise UsageError(
            "a file has many layouts",
            argument="LAYOUT",
            expected="FILE:LINE, with a number",
            got=expression,
        )
    single = _layout(expression or "", "LAYOUT")
    if svg or html:
        _write(single.show(extents, bits=bits), svg, html)
    elif extents is None:
        raise UsageError("is missing", argument="--shape", expected="64x64")
    else:
        _print(single, extents, view, json)


def _chosen(
    file: str,
    line: int,
    name: Optional[str],
    target: Optional[str],
    view: str,
    json: bool,
    pictures: tuple[Optional[Path], Optional[Path]],
) -> None:
    """Show the layouts that were chosen for the values of a line."""
    layouts_of = registry().service("write.layouts")
    of_line = layouts_of(file, line, target)
    chosen = [c for c in of_line if name in (None, c.name)]
    names = ", ".join(dict.fromkeys(c.name for c in of_line))
    if not chosen or any(pictures) and len(chosen) > 1:
        raise UsageError(
            "one value makes a picture" if chosen else "no such value with a layout",
            argument="LAYOUT",
            expected=f"{file}:{line}:NAME, NAME one of {names}",
            got=f"{file}:{line}" + (f":{name}" if name else ""),
        )
    if json:
        keys = ("kernel", "name", "shape", "bits", "notes")
        print_json([{k: getattr(c, k) for k in keys} | {"layout": repr(c.layout)} for c in chosen])
        return
    for one in chosen:
        print(f"{one.name} of {one.kernel}: {one.layout}")
        print("".join(f"  {note}\n" for note in one.notes), end="")
        if any(pictures):
            _write(one.layout.show(list(one.shape), bits=max(one.bits, 8)), *pictures)
        else:
            _print(one.layout, list(one.shape), view, False)


def _print(layout: layouts.Layout, extents: list[int], view: str, json: bool) -> None:
    if json:
        bases = layout.to_linear(extents).bases
        print_json({"layout": repr(layout), "shape": extents, "bases": bases})
    elif view == "tensor":
        print(layout.format_tensor_view(extents))
    elif view == "hardware":
        print(layout.format_hardware_view(extents))
    else:
        print(layouts.explain_layout(layout, extents))


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


def _write(picture: layouts.Picture, svg: Optional[Path], html: Optional[Path]) -> None:
    for option, path, content in (("--svg", svg, picture.svg), ("--html", html, picture.html)):
        if path is None:
            continue
        try:
            path.write_text(content(), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                "cannot be written", argument=option, got=f"{path}: {error.strerror}"
            ) from None
        print(f"wrote {path}: {picture.title}")
