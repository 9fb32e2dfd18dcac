"""The text of a recorded program."""

from __future__ import annotations

from typing import Any, Iterable

from gluon_sim.tracing.ir import Block, Function, Op, Region, Value
from gluon_sim.tracing.types import MemDescType, TensorType, Type

__all__ = ["render"]


class _Layouts:
    """Short names for layouts, defined at the top of the text."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}

    def name(self, layout: Any) -> str:
        if layout not in self.names:
            stem = type(layout).__name__.removesuffix("Layout").lower() or "layout"
            self.names[layout] = f"#{stem}{len(self.names)}"
        return self.names[layout]

    def type(self, type: Type) -> str:
        if isinstance(type, TensorType):
            dims = "x".join(map(str, type.shape))
            layout = "" if type.layout is None else f", {self.name(type.layout)}"
            return f"tensor<{dims}x{self.type(type.elem)}{layout}>"
        if isinstance(type, MemDescType):
            dims = "x".join(map(str, type.shape))
            return f"memdesc<{dims}x{type.elem}, {self.name(type.layout)}, {type.space}>"
        return str(type)


class _Printer:
    def __init__(self, locations: bool, layouts: _Layouts):
        self.locations = locations
        self.layouts = layouts
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.next: dict[str, int] = {}  # by stem: no lower number is free
        self.blocks: dict[int, str] = {}

    def name(self, value: Value) -> str:
        value = value.resolve()
        if value not in self.names:
            wish = f"%{value.name}" if value.name else None
            if wish is None or wish in self.taken:
                stem = f"{wish}_" if wish else "%"
                count = self.next.get(stem, 0)
                while f"{stem}{count}" in self.taken:
                    count += 1
                wish = f"{stem}{count}"
                self.next[stem] = count + 1
            self.taken.add(wish)
            self.names[value] = wish
        return self.names[value]

    def argument(self, arg: Any) -> str:
        if isinstance(arg, Value):
            return self.name(arg)
        if isinstance(arg, Block):
            return self.blocks.setdefault(id(arg), f"^bb{len(self.blocks)}")
        if isinstance(arg, (list, tuple)):
            return "[" + ", ".join(self.argument(a) for a in arg) + "]"
        if isinstance(arg, Function):
            return f"@{arg.name}"
        if isinstance(arg, str):
            return repr(arg)
        if hasattr(arg, "tobytes") and hasattr(arg, "ravel"):
            return str(arg.ravel()[0])
        return str(arg)

    def op(self, op: Op, pad: str) -> None:
        text = ""
        if op.results:
            text = ", ".join(self.name(r) for r in op.results) + " = "
        parts = [self.argument(a) for a in op.args if not isinstance(a, Type)]
        parts += [f"{k}={self.argument(v)}" for k, v in op.kwargs.items()]
        text += f"{op.name} {', '.join(parts)}".rstrip()
        if op.attrs:
            text += " {" + ", ".join(f"{k} = {v}" for k, v in op.attrs.items()) + "}"
        if op.results:
            text += " : " + ", ".join(self.layouts.type(r.type) for r in op.results)
        if self.locations and op.loc.line:
            text += f"  # {op.loc.line}:{op.loc.column + 1}"
        self.lines.append(pad + text + (" {" if op.regions else ""))
        for i, region in enumerate(op.regions):
            if i:
                self.lines.append(pad + "} {")
            self.region(region, pad + "  ", bool(region.blocks and region.blocks[0].arguments))
        if op.regions:
            self.lines.append(pad + "}")

    def region(self, region: Region, pad: str, heads: bool) -> None:
        for i, block in enumerate(region.blocks):
            if heads or i:
                args = ", ".join(
                    f"{self.name(a)}: {self.layouts.type(a.type)}" for a in block.arguments
                )
                self.lines.append(f"{pad[:-1]}{self.argument(block)}({args}):")
            for op in block.ops:
                self.op(op, pad)

    def function(self, function: Function) -> None:
        args = []
        for i, value in enumerate(function.arguments):
            attrs = function.arg_attrs.get(i)
            args.append(
                f"{self.name(value)}: {self.layouts.type(value.type)}"
                + (f" {attrs}" if attrs else "")
            )
        outputs = ", ".join(map(self.layouts.type, function.type.outputs))
        head = "kernel" if function.public else "function"
        loc = f"  # {function.loc}" if self.locations and function.loc.line else ""
        self.lines.append(
            f"{head} @{function.name}({', '.join(args)})"
            f"{' -> ' + outputs if outputs else ''} {{{loc}"
        )
        self.region(function.body, "  ", False)
        self.lines.append("}")


def render(functions: Iterable[Function], locations: bool) -> str:
    lines: list[str] = []
    layouts = _Layouts()
    for function in functions:
        printer = _Printer(locations, layouts)
        printer.function(function)
        lines += printer.lines
    head = [f"{name} = {layout}" for layout, name in layouts.names.items()]
    return "\n".join(head + lines) + "\n"
