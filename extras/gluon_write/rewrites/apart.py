"""Give each tensor and each index of a program in a common assignment a statement of its own, which other forms can read.

    m, n = gl.arange(0, BM), gl.arange(0, BN)

becomes

    m = gl.arange(0, BM)
    n = gl.arange(0, BN)

and a loop that assigns its own variable

    for start in range(0, length, BN):
        start = gl.multiple_of(start, BN)

counts with another one:

    for start_step in range(0, length, BN):
        start = gl.multiple_of(start_step, BN)
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_write.text.form import edited, free_name
from gluon_write.text.syntax import mentions, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["apart"]


def apart(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel without common assignments of tensors, or the kernel."""
    return _SingleNames.rewrite(fn, drawn)


class _SingleNames(TracedForm):
    def text(self) -> Optional[str]:
        counted = self._counted()
        if counted is not None:  # statements after that have other places in the trace
            return counted
        edits: list[tuple[ast.stmt, list[str]]] = []
        for statement in nodes_in(self.tree):
            pairs = self._pairs(statement) if isinstance(statement, ast.Assign) else []
            if pairs and self.begins_line(statement) and self.ends_line(statement):
                assert isinstance(statement, ast.Assign)
                indent = " " * statement.col_offset
                lines = [f"{indent}{name} = {value}" for name, value in pairs]
                last = self.encoded[(statement.end_lineno or 0) - 1]
                lines[-1] += last[statement.end_col_offset or 0 :].decode()
                edits.append((statement, lines))
        return self.with_lines(edits)

    def _counted(self) -> Optional[str]:
        """Return the text with a variable of its own for each loop that assigns its variable; None where none does."""
        taken = self.names_in_use()
        edits: list[tuple[ast.Name, str]] = []
        for node in nodes_in(self.tree):
            if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
                continue
            name = node.target.id
            users = [s for s in node.body if name in mentions(s)]
            first = users[0] if users else None
            if not isinstance(first, ast.Assign) or name not in stores(first):
                continue
            fresh = free_name(f"{name}_step", taken)
            edits.append((node.target, fresh))
            edits += [(n, fresh) for n in nodes_in(first.value)
                      if isinstance(n, ast.Name) and n.id == name]  # fmt: skip
        return edited(self.source, edits) if edits else None

    def _pairs(self, statement: ast.Assign) -> list[tuple[str, str]]:
        """Return the names and values of a common assignment with tensors or indices; none where their order counts."""
        target, value = statement.targets[0], statement.value
        if len(statement.targets) != 1 or not isinstance(target, ast.Tuple):
            return []
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
            return []
        names = [node.id for node in target.elts if isinstance(node, ast.Name)]
        if len(names) != len(target.elts) or any(isinstance(v, ast.Starred) for v in value.elts):
            return []
        if any(reads(v) & set(names[:i]) for i, v in enumerate(value.elts)):
            return []
        if not any(self.is_tensor(v) or self._is_index(v) for v in value.elts):
            return []
        texts = [self.text_of(v) for v in value.elts]
        return [(n, f"({t})" if "\n" in t else t) for n, t in zip(names, texts)]

    def _is_index(self, node: ast.expr) -> bool:
        """Return True for the index of a program, of which blocks may need one and not the other."""
        return self.called(node) is language.program_id
