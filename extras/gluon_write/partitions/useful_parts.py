"""Count the parts of blocks along an axis that store anything: rows behind the end of a result need no work.

A launch has whole blocks, the last of which may have a part without a row. The result's descriptor knows how many rows there are.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from gluon_core import portable
from gluon_write.partitions.shared_walk import Sharing
from gluon_write.text.form import Form, factor
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import argument, calls_in, reads, stores
from gluon_write.tracing.index_forms import IndexForms, NoIndex
from gluon_write.tracing.sketch import Sketch

__all__ = ["useful_parts"]

_AT_MOST_ONE = re.compile(r"min\(max\(\w+, 0\), 1\)")


def useful_parts(fn: Any, drawn: Sketch, sharing: Sharing, side: str) -> str:
    """Return the number of parts along the axis that store anything, or that of all parts where it is not known.

    Args:
        fn: a kernel of one part of the rows, and `drawn`, its trace. side: the number of blocks along the axis.
    """
    every = f"{factor(side)} * {sharing.parts}"
    try:
        rows, height = _Stored(fn, drawn).rows(sharing)
    except NoIndex:
        return every
    space = Form(fn).space
    return f"{space}.minimum({every}, {space}.cdiv({rows}, {height}))"


class _Stored(IndexForms):
    """Read where a kernel stores its only result."""

    def rows(self, sharing: Sharing) -> tuple[str, int]:
        """Return the number of rows of a kernel's only result, and those of a part.

        Raises:
            NoIndex: it has several results, or rows of another form.
        """
        calls = calls_in(self.tree)
        wrote = [
            c for c in calls if re.search("store|atomic|print|device_assert", ast.unparse(c.func))
        ]
        if len(wrote) != 1 or self.called(wrote[0]) is not portable.store:
            raise NoIndex
        tiles, place = argument(wrote[0], 0, "ptr"), argument(wrote[0], 1, "offsets")
        maker = self.reaching(tiles.id, wrote[0]) if isinstance(tiles, ast.Name) else None
        described = maker.value if isinstance(maker, ast.Assign) else None
        if self.called(described) is not portable.descriptor or not isinstance(place, ast.List):
            raise NoIndex
        assert isinstance(described, ast.Call)
        shape, block = argument(described, 1, "shape"), argument(described, 3, "block_shape")
        if not isinstance(shape, ast.List) or not isinstance(block, ast.List):
            raise NoIndex
        for number, one in enumerate(place.elts):
            size = shape.elts[number]
            form = self.form_of(one)
            along = [n for n in form.names if self._is_index(n, sharing.axis)]
            if not along:
                continue
            if len(place.elts) - number > len(block.elts):  # the index of a matrix
                raise NoIndex
            inner = self.form_of(block.elts[number - len(place.elts)]).number
            each = form.terms.get((along[0],), 0)
            known = reads(size) <= {*self.parameters, "min", "max"} - stores(self.tree)
            if inner is None or each != inner * sharing.parts or not known:
                raise NoIndex
            if sum(along[0] in names for names in form.terms) > 1 or not self._rests(form):
                raise NoIndex
            return self.text_of(size), inner
        raise NoIndex

    def _rests(self, form: Polynomial) -> bool:
        """Return True for a place that is not below 0 in the first block: no argument is added to it."""
        least = form.terms.get((), 0)
        for names, count in form.terms.items():
            if count < 0 and len(names) == 1 and _AT_MOST_ONE.fullmatch(names[0]):
                least += count
            elif count < 0 or len(names) == 1 and names[0] in self.parameters:
                return False
        return least >= 0

    def _is_index(self, name: str, axis: int) -> bool:
        """Return True for the index of a block along an axis."""
        return re.fullmatch(rf"\w+\.program_id\((axis=)?{axis}\)", name) is not None
