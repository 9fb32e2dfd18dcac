"""Layouts as pictures: SVG and HTML that need no script, no font and no network.

Hovering over a cell tells the element and everything that holds it: the titles of the cells hold all
that the picture says, so that a picture can be read without eyes, too.
"""

from __future__ import annotations

import hashlib
from colorsys import hls_to_rgb
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Optional, Sequence, Union
from uuid import uuid4

from gluon_core.errors import ArgumentError, LayoutError
from gluon_core.layouts.later import np
from gluon_core.layouts.linear import LinearLayout
from gluon_pictures.render import explain_layout

if TYPE_CHECKING:
    from gluon_core.layouts.base import Layout

__all__ = ["Panel", "Picture", "bases_panel", "escape", "natural_shape", "picture"]

_MOST_ELEMENTS = 1 << 14
_MOST_INPUTS = 1 << 16
_LABELLED = 2048  # cells with text in them; more are colours only
_WRAP = 32  # elements of a vector on one line
_FONT = 5.5  # width of a character of the labels, in pixels
_CELL = 18

_STYLE = """text{font:9px ui-monospace,Menlo,Consolas,monospace;fill:#1d1d1f}
text.h{font-size:12px;font-weight:600}text.n{font-size:11px}text.m{text-anchor:middle}
rect{stroke:#fff;stroke-width:.6}rect.gap{fill:#e4e4e7}rect.one{fill:#334155}rect.nil{fill:#f1f5f9}
.c:hover rect{stroke:#111;stroke-width:2}"""


@dataclass(frozen=True)
class Panel:
    """A part of a picture: a caption above SVG elements in a box of pixels."""

    caption: str
    body: str
    width: float
    height: float


@dataclass(frozen=True)
class Picture:
    """A drawn layout. Notebooks show it by itself; `save` writes it.

    Attributes:
        title: one line.
        text: the caption of the whole picture.
        panels: its parts, from top to bottom.
        choices: the choices of a page, such as "warp": class prefix of the cells and count.
    """

    title: str
    text: str
    panels: tuple[Panel, ...]
    choices: dict[str, tuple[str, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self._part(uuid4().hex[:8])  # a notebook may show one picture twice

    def svg(self) -> str:
        """Return the picture as one SVG document."""
        lines = self.text.splitlines()
        y, parts = 20.0, [_text(8, 14, self.title, "h")]
        for panel in self.panels:
            parts.append(_text(8, y + 16, panel.caption, "n"))
            parts.append(f'<g transform="translate(8 {y + 24:g})">{panel.body}</g>')
            y += panel.height + 40
        for line in lines:
            y += 14
            parts.append(_text(8, y, line, "n"))
        widest = max([7.0 * len(line) for line in [self.title, *lines]])
        widest = max([widest, *(max(p.width, len(p.caption) * 7) for p in self.panels)])
        return _svg("".join(parts), widest + 16, y + 12)

    def html(self) -> str:
        """Return the picture as a page of its own."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{escape(self.title)}</title></head><body>{self._part()}</body></html>\n"
        )

    def save(self, path: Union[str, Path]) -> None:
        """Write the picture to a file whose name ends in .svg or .html.

        Raises:
            ArgumentError: another ending.
        """
        path = Path(path)
        page = {".svg": self.svg, ".html": self.html}.get(path.suffix.lower())
        if page is None:
            raise ArgumentError(
                "not a name for a picture", argument="path", expected=".svg or .html", got=str(path)
            )
        path.write_text(page(), encoding="utf-8")

    def _part(self, unique: str = "") -> str:
        """Return HTML for a page that may hold other things, and other pictures.

        Args:
            unique: part of the ids, where the page may hold this picture already.
        """
        drawn = "".join(
            f"<figure><figcaption>{escape(panel.caption)}</figcaption>"
            f"{_svg(panel.body, panel.width, panel.height)}</figure>"
            for panel in self.panels
        )
        key = "g" + hashlib.sha256((self.text + drawn).encode()).hexdigest()[:10] + unique
        rules, inputs = [], []
        for noun, (prefix, count) in self.choices.items():
            buttons = [_button(key, noun, prefix, None)]
            for i in range(count):
                buttons.append(_button(key, noun, prefix, i))
                rules.append(
                    f"#{key}:has(#{key}{prefix}{i}:checked) .c:not(.{prefix}{i}){{opacity:.1}}"
                )
            inputs.append(f"<div>{''.join(buttons)}</div>")
        style = (
            f"#{key}{{font:13px system-ui,sans-serif;color:#1d1d1f;background:#fff;padding:8px;"
            f"overflow-x:auto}}#{key} figure{{margin:12px 0}}#{key} label{{margin-right:10px}}"
            + "".join(f"#{key} {rule}}}" for rule in _STYLE.replace("\n", "").split("}") if rule)
            + "".join(rules)
        )
        return (
            f'<div id="{key}" class="gluon-picture"><style>{style}</style>'
            f"<b>{escape(self.title)}</b>{''.join(inputs)}{drawn}"
            f"<pre>{escape(self.text)}</pre></div>"
        )


def _button(key: str, noun: str, prefix: str, index: Optional[int]) -> str:
    name = f"{key}{prefix}{'' if index is None else index}"
    text = f"all {noun}s" if index is None else f"{noun} {index}" if index == 0 else str(index)
    checked = ' checked=""' if index is None else ""
    return (
        f'<input type="radio" name="{key}{prefix}" id="{name}"{checked}/>'
        f'<label for="{name}">{text}</label>'
    )


def _svg(body: str, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" xml:space="preserve">{escape(text)}</text>'


def cell(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    title: str,
    label: str = "",
    kinds: Iterable[str] = (),
) -> str:
    """Draw one cell: a colour, a label where one fits, and a tooltip."""
    text = ""
    if label and len(label) * _FONT <= width:
        text = (
            f'<text class="m" x="{x + width / 2:g}" y="{y + height / 2 + 3:g}">{escape(label)}'
            "</text>"
        )
    return (
        f'<g class="{" ".join(["c", *kinds])}"><title>{escape(title)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>{text}</g>'
    )


def colour(group: int, groups: int, position: int, count: int) -> str:
    """Return a hue for each group; within one, lighter to darker."""
    hue = 360 * group / max(groups, 1) + 210
    light = 88 - 30 * position / max(count - 1, 1)
    rgb = hls_to_rgb(hue % 360 / 360, light / 100, 0.65)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def coord_text(coord: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, coord)) + ")"


# -- the shape of a picture ----------------------------------------------------------------------


def natural_shape(layout: Layout) -> list[int]:
    """Return a small shape that shows the layout once: its own, or one tile of its threads.

    Raises:
        LayoutError: the layout has no linear form.
    """
    own = getattr(layout, "shape", None)
    if own:
        return list(own)
    rank = layout._rank_or_none() or 2
    last: Optional[LayoutError] = None
    for shape in _CANDIDATES.get(rank, [[2] * (rank - 2) + [8, 32]]):
        try:
            linear = layout.to_linear(shape)
        except LayoutError as error:
            last = error
            continue
        if "lane" not in linear.in_dims:
            return shape
        try:
            linear = layout.to_linear([_LARGE.get(rank, 16)] * rank)
        except LayoutError:
            return shape
        rows = [row for dim in ("lane", "warp", "block") for row in linear.bases.get(dim, [])]
        # Above the threads registers repeat the tile; of a matrix unit's tile some belong to it.
        tile = [*getattr(layout, "instr_shape", ()), *[1] * rank] if rank == 2 else [1] * rank
        reached = [
            1 << max(row[d].bit_length() for row in rows or [[0] * rank]) for d in range(rank)
        ]
        return [max(size, tile[d], 1 if size > 1 else 4) for d, size in enumerate(reached)]
    raise last or LayoutError(f"{type(layout).__name__} has no shape that could be drawn")


_LARGE = {1: 4096, 2: 512, 3: 64}
_CANDIDATES = {
    1: [[1024], [128]],
    2: [[8, 32], [8, 64], [8, 128], [16, 16], [64, 64], [128, 64], [128, 128]],
}


def checked(layout: Layout, shape: Sequence[int]) -> LinearLayout:
    """Return the linear map that is drawn.

    Raises:
        LayoutError: no linear form, a shape that does not fit, or one too large for a picture.
    """
    linear = layout.to_linear(shape)
    if linear.total_out_size > _MOST_ELEMENTS or linear.total_in_size > _MOST_INPUTS:
        raise LayoutError(
            "too large to draw",
            argument="shape",
            expected=f"at most {_MOST_ELEMENTS} elements and {_MOST_INPUTS} places",
            got=list(shape),
            remedy="Draw a smaller shape: a layout repeats its tile.",
        )
    return linear


# -- panels --------------------------------------------------------------------------------------


class Grid:
    """The places of a tensor's elements in a picture: its last two dimensions as rows and
    columns, one such table below the other; a vector wraps."""

    def __init__(self, shape: Sequence[int], longest: int):
        self.shape = tuple(shape)
        self.labelled = prod(shape) <= _LABELLED
        self.width = max(_CELL, longest * _FONT + 6) if self.labelled else 9.0
        self.height = float(_CELL) if self.labelled else 9.0
        self.columns = min(self.shape[-1], _WRAP) if len(self.shape) == 1 else self.shape[-1]
        self.rows = self.shape[-1] // self.columns if len(self.shape) == 1 else self.shape[-2]
        self.tables = prod(self.shape[:-2])
        self.left = 24.0
        self.table_height = self.rows * self.height + 16

    def place(self, coord: Sequence[int]) -> tuple[float, float]:
        """Return the upper left corner of an element's cell."""
        if len(self.shape) == 1:
            table, (row, column) = 0, divmod(coord[0], self.columns)
        else:
            table = (
                int(np.ravel_multi_index(tuple(coord[:-2]), self.shape[:-2])) if coord[2:] else 0
            )
            row, column = coord[-2], coord[-1]
        top = table * self.table_height + 12
        return self.left + column * self.width, top + row * self.height

    def size(self) -> tuple[float, float]:
        return self.left + self.columns * self.width + 2, self.tables * self.table_height

    def frame(self) -> str:
        """Numbers of rows and columns."""
        out = []
        every = 1 if self.labelled else 8
        for table in range(self.tables):
            top = table * self.table_height + 12
            if self.tables > 1:
                index = np.unravel_index(table, self.shape[:-2])
                out.append(_text(0, top - 3, f"{list(map(int, index))}"[:-1] + ", ...]"))
            else:
                for column in range(0, self.columns, every):
                    x = self.left + (column + 0.5) * self.width
                    out.append(_text(x, top - 3, str(column), "m"))
            for row in range(0, self.rows, every):
                number = row * self.columns if len(self.shape) == 1 else row
                out.append(_text(0, top + row * self.height + self.height - 5, str(number)))
        return "".join(out)


def _walk(linear: LinearLayout) -> tuple[list[tuple[int, ...]], list[dict[str, int]]]:
    """Draw every place of the hardware, and the element that it holds."""
    names = list(linear.in_dims)
    tables = linear.table()
    coords = np.stack([np.ravel(tables[dim]) for dim in linear.out_dims], axis=-1)
    places = [dict(zip(names, indices)) for indices in np.ndindex(*linear.in_dims.values())]
    return [tuple(row) for row in coords.tolist()], places


def _bank(layout: Layout, place: dict[str, int], bits: int, banks: int) -> tuple[int, int, int]:
    """(offset in elements with gaps, first byte, bank) of a place in shared memory."""
    offset = int(layout.place(place["offset"]))
    byte = offset * bits // 8
    return offset, byte, byte // 4 % banks


def place_text(
    linear: LinearLayout, layout: Layout, place: dict[str, int], bits: int, banks: int
) -> str:
    """Words for one place of the hardware."""
    words = [f"block {place['block']}"] if linear.in_size("block") > 1 else []
    if "offset" in place:
        offset, byte, bank = _bank(layout, place, bits, banks)
        return ", ".join([*words, f"offset {offset}", f"byte {byte}", f"bank {bank}"])
    if "lane" in place:
        thread = place["warp"] * linear.in_size("lane") + place["lane"]
        words += [f"{dim} {place[dim]}" for dim in ("warp", "lane", "register")]
        return ", ".join(words) + f" (thread {thread})"
    words += [f"{dim} {value}" for dim, value in place.items() if dim != "block"]
    return ", ".join(words)


def _label(linear: LinearLayout, layout: Layout, place: dict[str, int]) -> str:
    head = f"B{place['block']}:" if linear.in_size("block") > 1 else ""
    if "offset" in place:
        return f"{head}{layout.place(place['offset'])}"
    if "lane" in place:
        thread = place["warp"] * linear.in_size("lane") + place["lane"]
        return f"{head}T{thread}:{place['register']}"
    return head + ",".join(str(v) for dim, v in place.items() if dim != "block")


def _fill(
    linear: LinearLayout, layout: Layout, place: dict[str, int], bits: int, banks: int
) -> str:
    if "offset" in place:
        return colour(_bank(layout, place, bits, banks)[2], banks, 0, 2)
    if "lane" in place:
        warps = linear.in_size("warp")
        group = place.get("block", 0) * warps + place["warp"]
        return colour(group, warps * linear.in_size("block"), place["lane"], linear.in_size("lane"))
    first = next(iter(place))
    return colour(place[first], linear.in_size(first), 0, 2)


def tensor_panel(linear: LinearLayout, layout: Layout, bits: int, banks: int) -> Panel:
    """Draw each element in its place of the tensor, with all that hold it."""
    coords, places = _walk(linear)
    held: dict[tuple[int, ...], list[dict[str, int]]] = {}
    for coord, place in zip(coords, places):
        held.setdefault(coord, []).append(place)
    shape = list(linear.out_dims.values())
    labels = {}
    for coord, owners in held.items():
        more = f"+{len(owners) - 1}" if len(owners) > 1 else ""
        labels[coord] = _label(linear, layout, owners[0]) + more
    grid = Grid(shape, max(map(len, labels.values())))
    parts = [grid.frame()]
    for coord in np.ndindex(*shape):
        if coord not in held:
            parts.append(
                cell(
                    *grid.place(coord),
                    grid.width,
                    grid.height,
                    "#fff",
                    f"element {coord_text(coord)}: nothing holds it",
                )
            )
            continue
        owners = held[coord]
        words = [place_text(linear, layout, place, bits, banks) for place in owners]
        kinds = sorted({f"w{p['warp']}" for p in owners if "warp" in p})
        kinds += sorted({f"r{p['register']}" for p in owners if "register" in p})
        parts.append(
            cell(
                *grid.place(coord),
                grid.width,
                grid.height,
                _fill(linear, layout, owners[0], bits, banks),
                f"element {coord_text(coord)}\n" + "\n".join(words),
                labels[coord] if grid.labelled else "",
                kinds,
            )
        )
    caption = "The tensor: " + (
        f"each element with its offset, coloured by bank (elements of {bits} bits)"
        if "offset" in linear.in_dims
        else "each element with its thread and register (T5:0), one hue per warp, darker with the "
        "lane"
        if "lane" in linear.in_dims
        else f"each element with its {', '.join(linear.in_dims)}"
    )
    return Panel(caption, "".join(parts), *grid.size())


def registers_panel(linear: LinearLayout, layout: Layout) -> Panel:
    """Draw each warp as a table of registers and lanes, with the elements that they hold."""
    warps, lanes = linear.in_size("warp"), linear.in_size("lane")
    blocks, registers = linear.in_size("block"), linear.in_size("register")
    coords, places = _walk(linear)
    some = linear.total_in_size > _LABELLED * 2
    labels = [",".join(map(str, coord)) for coord in coords]
    width = max(_CELL, max(map(len, labels)) * _FONT + 4)
    height = registers * _CELL + 34
    parts = []
    for coord, place, label in zip(coords, places, labels):
        block, warp = place.get("block", 0), place["warp"]
        if some and (block or warp):
            continue
        top = (block * warps + warp) * height + 28
        parts.append(
            cell(
                26 + place["lane"] * width,
                top + place["register"] * _CELL,
                width,
                _CELL,
                _fill(linear, layout, place, 32, 32),
                f"{place_text(linear, layout, place, 32, 32)}\nelement {coord_text(coord)}",
                label,
                (f"w{warp}", f"r{place['register']}"),
            )
        )
    tables = 1 if some else blocks * warps
    for table in range(tables):
        block, warp = divmod(table, warps)
        head = f"block {block}, warp {warp}" if blocks > 1 else f"warp {warp}"
        parts.append(_text(0, table * height + 12, f"{head}: lanes across, registers down"))
        for lane in range(lanes):
            parts.append(_text(26 + (lane + 0.5) * width, table * height + 25, str(lane), "m"))
        for register in range(registers):
            parts.append(_text(0, table * height + 28 + register * _CELL + 12, f"r{register}"))
    caption = "The hardware: elements of each lane" + (
        f" (warp 0 of {warps}, block 0 of {blocks})" if some else ""
    )
    return Panel(caption, "".join(parts), 28 + lanes * width, tables * height)


def memory_panel(linear: LinearLayout, layout: Layout, bits: int, banks: int) -> Panel:
    """Shared memory: the banks across, rows of all banks down, gaps where padding is."""
    coords, places = _walk(linear)
    blocks, shape = linear.in_size("block"), list(linear.out_dims.values())
    label = max(len(",".join(map(str, coord))) for coord in coords) * _FONT + 2
    bank_width = max(24.0, 12.0 * 32 / bits, min(64.0, label * 32 / bits))
    last = max(int(layout.place(p["offset"])) for p in places)
    row_bits = banks * 32
    rows = ((last + 1) * bits - 1) // row_bits + 1
    width, height = bits / 32 * bank_width, rows * _CELL + 34
    parts = []
    for block in range(blocks):
        top = block * height + 28
        if blocks > 1:
            parts.append(_text(0, top - 16, f"block {block}"))
        used = (last + 1) * bits
        for row in range(rows):
            share = min(1.0, (used - row * row_bits) / row_bits)
            parts.append(
                f'<rect class="gap" x="40" y="{top + row * _CELL}" '
                f'width="{share * banks * bank_width:g}" height="{_CELL}"/>'
            )
            parts.append(_text(0, top + row * _CELL + 12, str(row * row_bits // 8)))
        for bank in range(banks):
            parts.append(_text(40 + (bank + 0.5) * bank_width, top - 4, str(bank), "m"))
    for coord, place in zip(coords, places):
        start = int(layout.place(place["offset"])) * bits
        row, bit = divmod(start, row_bits)
        strip = coord[-2] if len(coord) > 1 else coord[0] // banks
        strips = shape[-2] if len(shape) > 1 else max(1, shape[0] // banks)
        parts.append(
            cell(
                40 + bit / 32 * bank_width,
                place.get("block", 0) * height + 28 + row * _CELL,
                width,
                _CELL,
                colour(strip, strips, 0, 2),
                f"{place_text(linear, layout, place, bits, banks)}\nelement {coord_text(coord)}",
                ",".join(map(str, coord)),
            )
        )
    caption = (
        f"Shared memory: {banks} banks of 4 bytes across, first byte of each row at its left; "
        "one hue per row of the tensor, grey is padding"
    )
    return Panel(caption, "".join(parts), 44 + banks * bank_width, blocks * height)


def bases_panel(linear: LinearLayout) -> Panel:
    """Return the matrix over F2: a column per bit of the hardware's index, a row per bit of the
    element's."""
    columns = [
        (f"{dim}={1 << i}", row) for dim, rows in linear.bases.items() for i, row in enumerate(rows)
    ]
    rows = [
        (f"{dim}={1 << bit}", d, bit)
        for d, (dim, size) in enumerate(linear.out_dims.items())
        for bit in range(size.bit_length() - 1)
    ]
    left = 12 + max((len(name) for name, _, _ in rows), default=0) * _FONT
    width = max([_CELL, *(len(name) * _FONT + 6 for name, _ in columns)])
    parts = []
    for x, (name, basis) in enumerate(columns):
        parts.append(_text(left + (x + 0.5) * width, 10, name, "m"))
        for y, (out, d, bit) in enumerate(rows):
            hot = basis[d] >> bit & 1
            parts.append(
                f'<g class="c"><title>{name} {"moves" if hot else "does not move"} {out}</title>'
                f'<rect class="{"one" if hot else "nil"}" x="{left + x * width:g}" '
                f'y="{16 + y * _CELL}" width="{width:g}" height="{_CELL}"/></g>'
            )
    for y, (out, _, _) in enumerate(rows):
        parts.append(_text(0, 16 + y * _CELL + 12, out))
    caption = "The bases: which bits of the element's index (rows) a bit of the hardware's flips"
    return Panel(caption, "".join(parts), left + len(columns) * width + 4, 20 + len(rows) * _CELL)


# -- one layout ----------------------------------------------------------------------------------


def escape(text: str) -> str:
    """As `html.escape`, whose module loads a table of entities: only pictures need it."""
    import html

    return html.escape(text)


def picture(
    layout: Layout,
    shape: Optional[Sequence[int]] = None,
    *,
    bits: Optional[int] = None,
    banks: int = 32,
) -> Picture:
    """Return a layout drawn for a tensor or a buffer of `shape`, by default a small one that shows it.

    Args:
        bits: of one element; by default those of the layout, or 32. Tells addresses and banks.
        banks: of shared memory, 4 bytes each.

    Raises:
        LayoutError: the layout has no linear form, or does not fit the shape; or the picture
            would have more than 16384 elements.
        ArgumentError: `bits` or `banks` is no power of two.
    """
    bits = getattr(layout, "element_bitwidth", 32) if bits is None else bits
    for name, value in (("bits", bits), ("banks", banks)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & value - 1:
            raise ArgumentError(
                "not a power of two", argument=name, expected="1, 2, ...", got=value
            )
    extents = natural_shape(layout) if shape is None else list(shape)
    linear = checked(layout, extents)
    panels = [tensor_panel(linear, layout, bits, banks)]
    choices = {}
    if "offset" in linear.in_dims:
        panels.append(memory_panel(linear, layout, bits, banks))
    elif "lane" in linear.in_dims:
        panels.append(registers_panel(linear, layout))
        counts = {
            "warp": ("w", linear.in_size("warp")),
            "register": ("r", linear.in_size("register")),
        }
        choices = {noun: choice for noun, choice in counts.items() if 1 < choice[1] <= 32}
    panels.append(bases_panel(linear))
    title = f"{type(layout).__name__} of shape {extents}"
    return Picture(title, explain_layout(layout, extents), tuple(panels), choices)
