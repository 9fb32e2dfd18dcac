"""The text of a written kernel that has a form for short launches: the host chooses it.

@triton.heuristics({"FEW": lambda args: few_steps(args)})
@gluon.jit
def attention(q, k, v, out, length, FEW: gl.constexpr):
    if FEW:
        attention_pipelined(q, k, v, out, length)
    else:
        attention_specialized(q, k, v, out, length)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gluon_write.partitions.row_bounds import RowBound
from gluon_write.partitions.short_launches import LEAST, ShortLaunches

__all__ = ["ShortText", "forced_texts", "host_text"]


@dataclass(frozen=True)
class ShortText:
    """Hold the names in the text of a kernel with a form for short launches.

    Attributes:
        flag: the parameter that says which form. host: the function that finds it. name: of the pipelined form.
    """

    flag: str
    host: str
    name: str

    @property
    def entry(self) -> str:
        """Return the flag with its function, as `triton.heuristics` takes them."""
        return f'        "{self.flag}": lambda args: {self.host}(args),'


_ENTRY = re.compile(r'^( +"FEW\w*": lambda args: )few_steps\w*\(args\),$', re.MULTILINE)


def forced_texts(text: str) -> list[str]:
    """Return a file's text with all launches short, and with none; the text alone where no launch has a choice."""
    forced = [_ENTRY.sub(rf"\g<1>{short},", text) for short in (True, False)]
    return list(dict.fromkeys(forced))


def host_text(name: str, short: ShortLaunches, math: str) -> str:
    """Return the definition of the host's function that says which launches are short.

    Args:
        math: the name of that module.
    """
    listed = [_spelled(bound) for bound in short.bounds]
    rows = f"max({', '.join(listed)})" if len(listed) > 1 else listed[0]
    share = "rows" if short.share == 1 else f"{short.share} * rows"
    start = f"{short.start} + " if short.start else ""
    return f'''def {name}(args):
    """Return True where programs of the pipelined form are over before partitions pay."""
    grid = args["grid"](args) if callable(args["grid"]) else args["grid"]
    sizes = grid if isinstance(grid, tuple) else (grid,)
    programs, rows = {math}.prod(sizes), {rows}
    full, rest = divmod(programs, {short.room})  # programs that run at once
    last = {short.slope} if rest > {short.units} else {short.single} if rest else 0
    pipelined = ({short.slope} * full + last) * (rows + {short.begin})
    return pipelined < {start}max({LEAST}, programs / {short.places}) * ({share} + {short.each})
'''


def _spelled(bound: RowBound) -> str:
    size = f'args["{bound.size}"]' if isinstance(bound.size, str) else f"sizes[{bound.size}]"
    return size if bound.factor == 1 else f"{bound.factor} * {size}"
