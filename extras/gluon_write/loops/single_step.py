"""Tell which loops have one step at most: masked steps behind all whole ones.

    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    for start in range(0, masked_from, BN):
        ...
    for start in range(masked_from, length, BN):
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)

Whole steps end where fewer than BN elements are left. Partitions write the other one without a loop, and find tiles that all steps
read by the slot before the next one: ptxas computes the descriptor of an operand in shared memory in the first loop alone,
even where that has no step, unless it cannot tell that the operand is the same.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.text.form import Form, bounds_of
from gluon_write.text.step_masks import Terms, terms_of
from gluon_write.text.syntax import mentions, nodes_in, stores

__all__ = ["follows_whole_steps", "has_at_most_one_step", "has_one_step", "is_sure", "loop_before"]

_MOST_DEEP = 4  # definitions of names within definitions


def has_one_step(form: Form, loop: ast.For) -> bool:
    """Return True if a loop surely has no second step, because of where whole steps end."""
    ends = _ends_before(form, loop)
    if not ends or not isinstance(loop.iter, ast.Call):
        return False
    _, last, step = form.bounds(loop)
    limit = _terms(form, _parsed(last))
    return all(_leaves_one(_terms(form, one), limit, step) for one in ends)


def has_at_most_one_step(form: Form, loop: ast.For) -> bool:
    """Return True if a loop surely has no second step, of a form that knows the trace of its kernel."""
    if not isinstance(loop.iter, ast.Call):
        return False
    first, last, step = form.bounds(loop)
    begin, size = (_numbers(form, _terms(form, _parsed(text))) for text in (first, step))
    ends = (_numbers(form, _terms(form, one)) for one in _least(form, _parsed(last)))
    return has_one_step(form, loop) or any(_is_within(end, begin, size) for end in ends)


def is_sure(tree: ast.AST, loop: ast.For, bounds: Sequence[str]) -> bool:
    """Return True for a loop in a branch where another loop with such bounds has steps."""
    branches = (n for n in nodes_in(tree) if isinstance(n, ast.If) and loop in n.body)
    return any(ast.unparse(n.test) == f"{bounds[0]} < {bounds[1]}" for n in branches)


def follows_whole_steps(form: Form, loop: ast.For) -> bool:
    """Return True for the masked steps behind the whole ones of a loop."""
    return bool(_ends_before(form, loop))


def loop_before(form: Form, loop: ast.For) -> Optional[ast.For]:
    """Return the loop right before another one that goes on where it ends; None of others."""
    before = _before(form.tree, loop)
    if before is None:
        return None
    whole = before[1]
    return whole if _ends_before(form, loop) or _goes_on(form, whole, loop) else None


def _goes_on(form: Form, whole: ast.For, loop: ast.For) -> bool:
    """Return True for a loop whose first step is where another loop ends."""
    bounds = [one.iter for one in (whole, loop)]
    if not all(isinstance(one, ast.Call) and len(one.args) == 3 for one in bounds):
        return False
    (_, end, own), (first, _, step) = (
        bounds_of([form.text_of(arg) for arg in one.args])  # type: ignore[attr-defined]
        for one in bounds
    )
    if any(stores(s) & (mentions(loop.iter) | mentions(whole.iter)) for s in whole.body):
        return False
    last, begin = (_numbers(form, _terms(form, _parsed(text))) for text in (end, first))
    return own == step and _is_within(last, begin, Counter(), True)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _least(form: Form, node: ast.expr) -> list[ast.expr]:
    """Return numbers of which the least is the value of an expression."""
    value = _definition(form, node.id) if isinstance(node, ast.Name) else node
    if isinstance(value, ast.Call) and not value.keywords:
        if _calls(value, "min") or form.called(value) is language.minimum:
            return value.args
    return [node]


def _numbers(form: Form, terms: Terms) -> Terms:
    """Return terms with the constants that a trace knows in place of their names."""
    drawn = getattr(form, "drawn", None)
    known = {} if drawn is None else {n: unwrap(value) for n, value in drawn.constants.items()}
    numbers: Terms = Counter()
    for product, count in terms.items():
        whole: Terms = Counter({(): count})
        for part in product:
            value = int(part) if part.isdigit() else known.get(part)
            own: Terms = Counter({(): value}) if type(value) is int else terms_of(_parsed(part))
            if len(own) > 1:
                own = _numbers(form, own)
            pairs = [(one, other) for one in whole.items() for other in own.items()]
            whole = Counter()
            for (left, times), (right, number) in pairs:
                whole[tuple(sorted([*left, *right]))] += times * number
        numbers.update(whole)
    return numbers


def _is_within(last: Terms, first: Terms, size: Terms, equal: bool = False) -> bool:
    """Return True for `last - first <= size`, or an equation, of terms without the names of constants."""
    rest = Counter(last)
    rest.subtract(first)
    rest.subtract(size)
    number = rest.pop((), 0)
    return not any(rest.values()) and (number == 0 if equal else number <= 0)


def _ends_before(form: Form, loop: ast.For) -> list[ast.expr]:
    """Return the numbers of which the least is where whole steps end, in a loop before; none if there is no such loop."""
    before = _before(form.tree, loop)
    if before is None or not isinstance(loop.iter, ast.Call):
        return []
    first, _, step = form.bounds(loop)
    begin, whole = before
    if any(stores(statement) & mentions(loop.iter) for statement in whole.body):
        return []
    if not isinstance(begin, ast.Assign) or ast.unparse(begin.targets[0]) != first:
        return []
    if not isinstance(whole.iter, ast.Call) or len(whole.iter.args) != 3:
        return []
    start, end, own = form.bounds(whole)
    return _ends(form, begin.value, start, step) if end == first and own == step else []


def _before(tree: ast.AST, loop: ast.For) -> Optional[tuple[ast.stmt, ast.For]]:
    """Return the two statements before a loop, of which the second is a loop, too."""
    todo: list[ast.AST] = [tree]
    for node in todo:  # which grows, by statements alone
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if not isinstance(block, list):
                continue
            if loop in block:
                index = block.index(loop)
                other = block[index - 1] if index > 1 else None
                return (block[index - 2], other) if isinstance(other, ast.For) else None
            todo += block
    return None


def _ends(form: Form, value: ast.expr, start: str, step: str) -> list[ast.expr]:
    """Return the numbers of which the least is where whole steps end: `start + cdiv(max(min(...) - start, 0), step) * step`."""
    if start != "0":
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return []
        if ast.unparse(value.left) != start:
            return []
        value = value.right
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return []
    count = value.left
    if ast.unparse(value.right) != step or form.called(count) is not language.cdiv:
        return []
    assert isinstance(count, ast.Call)
    if len(count.args) != 2 or ast.unparse(count.args[1]) != step:
        return []
    left = count.args[0]
    if not _calls(left, "max") or len(left.args) != 2 or ast.unparse(left.args[1]) != "0":  # type: ignore[attr-defined]
        return []
    least = left.args[0]  # type: ignore[attr-defined]
    if start != "0":
        if not isinstance(least, ast.BinOp) or not isinstance(least.op, ast.Sub):
            return []
        if ast.unparse(least.right) != start:
            return []
        least = least.left
    return least.args if _calls(least, "min") else []


def _calls(node: ast.AST, name: str) -> bool:
    """Return True for a call of a function of the language itself."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name and not node.keywords


def _terms(form: Form, node: ast.expr, deep: int = _MOST_DEEP) -> Terms:
    """Return the terms of a sum, with names replaced by what they are assigned once."""
    terms: Terms = Counter()
    for product, count in terms_of(node).items():
        value = _definition(form, product[0]) if deep and len(product) == 1 else None
        inner = _terms(form, value, deep - 1) if value is not None else Counter([product])
        for one, times in inner.items():
            terms[one] += count * times
    return terms


def _definition(form: Form, name: str) -> Optional[ast.expr]:
    """Return the only value that a name is assigned; None of a parameter, and of several values."""
    if not name.isidentifier():  # a number, or an expression that is no sum
        return None
    nodes = nodes_in(form.tree)
    stored = [
        n
        for n in nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    if len(stored) != 1 or name in {a.arg for a in nodes if isinstance(a, ast.arg)}:
        return None
    for statement in nodes:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if target is stored[0]:
            return value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts)
            own = next((v for t, v in pairs if t is stored[0]), None)
            if own is not None and len(target.elts) == len(value.elts):
                return own
    return None


def _leaves_one(end: Terms, limit: Terms, step: str) -> bool:
    """Return True if fewer elements than two steps have are left from the first step at `end` or behind it: limit - end < step."""
    rest = Counter(end)
    rest.subtract(limit)
    number = sum(count * int(p[0]) for p, count in rest.items() if _is_number(p))
    left = {p: count for p, count in rest.items() if count and not _is_number(p)}
    if left == {(step,): -1}:
        return number >= 1
    return not left and number >= (1 - int(step) if step.isdigit() else 0)


def _is_number(product: tuple[str, ...]) -> bool:
    return len(product) == 1 and product[0].isdigit()
