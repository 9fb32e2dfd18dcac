"""Part a loop into the steps that its masks leave as they are, and the others behind them.

    for start in range(0, length, BN):
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)

becomes

    masked_from = gl.cdiv(max(min(length, length - (BN - 1)), 0), BN) * BN
    for start in range(0, masked_from, BN):
        ...
    for start in range(masked_from, length, BN):
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)

A condition within the loop would not do: compilers make selections of short branches, and each step pays for them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Collection, Optional, Sequence

from gluon_write.text.form import Form, bounds_of, factor, free_name, one_line
from gluon_write.text.syntax import is_new, mentions, nodes_in, reads, stores

__all__ = ["Masked", "ends_of", "parts_of", "unmasked"]


@dataclass(frozen=True)
class Masked:
    """Hold a statement `x = where(mask, value, other)` of a loop.

    Attributes:
        condition: that the mask changes the step. plain: the lines of the statement without the mask.
        guarded: its lines with the mask under the condition.
    """

    statement: ast.Assign
    condition: ast.expr
    plain: list[str]
    guarded: list[str]


def parts_of(
    form: Form, space: str, loop: ast.For, masked: Sequence[Masked], constants: Collection[str]
) -> Optional[list[str]]:
    """Return the lines of two loops in place of one, None where masked steps are not the last ones.

    Args:
        space: the name of the language. loop: whose step is not negative. masked: its statements with masks. constants: names of constants.
    """
    ends = ends_of(loop, masked)
    if not ends:
        return None
    assert isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call)
    texts = [one_line(form.text_of(arg)) for arg in loop.iter.args]
    first, last, step = bounds_of(texts)
    if not step.isdigit() and step not in constants:
        return None
    taken = form.names_in_use()
    start = free_name("masked_from", taken)
    least = f"min({', '.join([last, *dict.fromkeys(ends)])})"
    many = f"max({least} - {factor(first)}, 0)" if first != "0" else f"max({least}, 0)"
    begin = f"{space}.cdiv({many}, {step}) * {step}"
    outer, inner = " " * loop.col_offset, " " * loop.body[0].col_offset
    source = form.source.splitlines()
    head, body = f"{outer}for {loop.target.id} in range({{}}, {{}}, {step}):", loop.body
    plain = _unmasked(form, loop, masked)
    return [
        f"{outer}# The masks leave the steps before this one as they are.",
        f"{outer}{start} = {begin if first == '0' else f'{first} + {begin}'}",
        head.format(first, start),
        *(inner + line if line else "" for line in plain),
        f"{outer}# The steps that the masks change.",
        head.format(start, last),
        *source[body[0].lineno - 1 - _above(source, body[0]) : loop.end_lineno],
    ]


def ends_of(loop: ast.For, masked: Sequence[Masked]) -> list[str]:
    """Return values of a loop's variable, before the least of which masks leave steps as they are; none where they are not known."""
    if not isinstance(loop.target, ast.Name) or not isinstance(loop.iter, ast.Call):
        return []
    changed = {name for statement in loop.body for name in stores(statement)}
    bounds = loop.iter
    if bounds.keywords or changed & {n for arg in bounds.args for n in mentions(arg)}:
        return []
    ends = [_end(one.condition, loop.target.id, changed) or "" for one in masked]
    own = [statement.lineno for statement in loop.body]
    if "" in ends or len(set(own)) < len(own) or own[0] == loop.lineno:
        return []
    return ends


def unmasked(form: Form, loop: ast.For, masked: Sequence[Masked]) -> list[str]:
    """Return the lines of a loop without its masks."""
    source = form.source.splitlines()
    head = source[loop.lineno - 1 : loop.body[0].lineno - 1 - _above(source, loop.body[0])]
    inner = " " * loop.body[0].col_offset
    return [*head, *(inner + line if line else "" for line in _unmasked(form, loop, masked))]


def _end(condition: ast.expr, variable: str, changed: Collection[str]) -> Optional[str]:
    """Return the value of the loop's variable from which a condition holds; None where there is none."""
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.Or):
        ends = [_end(side, variable, changed) or "" for side in condition.values]
        return None if "" in ends else ", ".join(dict.fromkeys(ends))
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return None
    left, right, order = condition.left, condition.comparators[0], condition.ops[0]
    if isinstance(order, (ast.Lt, ast.LtE)):  # the limit below: the variable is at the right
        left, right = right, left
    elif not isinstance(order, (ast.Gt, ast.GtE)):
        return None
    rest = _without(left, variable)
    if rest is None or mentions(right) & {*changed, variable}:
        return None
    if any({*changed, variable} & mentions(one) for _, one in rest):
        return None
    end, more = ast.unparse(right), int(isinstance(order, (ast.Gt, ast.Lt)))
    for sign, one in rest:
        if isinstance(one, ast.Constant) and isinstance(one.value, int):
            more -= sign * one.value
        else:
            end += f" {'-' if sign > 0 else '+'} {factor(ast.unparse(one))}"
    return f"{end} {'-' if more < 0 else '+'} {abs(more)}" if more else end


def _without(node: ast.expr, variable: str) -> Optional[list[tuple[int, ast.expr]]]:
    """Return the signed other terms of a sum with the variable in it once; None of other expressions."""
    terms: list[tuple[int, ast.expr]] = []

    def add(part: ast.expr, sign: int) -> None:
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
            add(part.left, sign)
            add(part.right, -sign if isinstance(part.op, ast.Sub) else sign)
        else:
            terms.append((sign, part))

    add(node, 1)
    own = [t for t in terms if t[0] == 1 and isinstance(t[1], ast.Name) and t[1].id == variable]
    return [t for t in terms if t not in own] if len(own) == 1 else None


def _unmasked(form: Form, loop: ast.For, masked: Sequence[Masked]) -> list[str]:
    """Return the lines of the loop's body without masks, and without what only they need."""
    plain = {id(one.statement): one.plain for one in masked}
    needed = {name for one in masked for name in reads(one.statement)}
    kept = [s for s in loop.body if plain.get(id(s)) != []]
    read = {id(s): reads(ast.parse("\n".join(plain[id(s)])) if id(s) in plain else s) for s in kept}
    later = {
        n.id
        for n in nodes_in(form.tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        and not loop.lineno <= n.lineno <= (loop.end_lineno or 0)
    }  # fmt: skip
    later |= {name for name in needed if not is_new(name, loop)}
    changing = True
    while changing:
        changing = False
        for statement in kept:
            others = {n for s in kept if s is not statement for n in read[id(s)]}
            own = stores(statement)
            if _assigns(statement) and own <= needed and not own & (later | others):
                needed |= reads(statement)
                later |= {name for name in reads(statement) if not is_new(name, loop)}
                kept.remove(statement)
                changing = True
                break
    source = form.source.splitlines()
    lines: list[str] = []
    for statement in kept:
        if id(statement) in plain:
            lines += plain[id(statement)]
            continue
        begin = statement.lineno - 1 - _above(source, statement)
        text = source[begin : statement.end_lineno]
        lines += [
            line[min(statement.col_offset, len(line) - len(line.lstrip())) :] for line in text
        ]
    return lines


def _assigns(statement: ast.stmt) -> bool:
    """Return True for an assignment, and for a branch of assignments."""
    if isinstance(statement, ast.If):
        return all(map(_assigns, (*statement.body, *statement.orelse)))
    return isinstance(statement, ast.Assign)


def _above(source: Sequence[str], statement: ast.stmt) -> int:
    """Return the number of lines of comments right above a statement."""
    count = 0
    while source[statement.lineno - 2 - count].lstrip().startswith("#"):
        count += 1
    return count
