"""Port products: `tl.dot` becomes `gl.portable.mma`, which adds to an accumulator."""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_write.porting.kinds import BLOCK, TILES
from gluon_write.porting.ranks import Ranks
from gluon_write.text.syntax import arguments

__all__ = ["accumulated", "added", "ported_product"]

_NAMES = "input other acc input_precision allow_tf32 max_num_imprecise_acc out_dtype".split()
_LOADS = ("load", "load_tensor_descriptor")
_MATRIX = 2
_SUMMED_IN_FLOAT32 = ("float16", "bfloat16", "float32", "float8e4nv", "float8e5")
_PARTS = ("tf32x3", "bf16x3", "bf16x6")


def _constant(node: Optional[ast.expr]) -> Any:
    """Return the value of a literal; None for other expressions, and of None."""
    return node.value if isinstance(node, ast.Constant) else None


def ported_product(port: Any, node: ast.Call, acc: Optional[str] = None) -> None:
    """Port a product; `acc` is the text of the sum that it is added to."""
    words = arguments(node, _NAMES)
    a, b = words["input"], words["other"]
    addend = words.get("acc")
    if addend is not None and not (isinstance(addend, ast.Constant) and addend.value is None):
        acc = port.text_of(addend)
    operands = f"{port.text_of(a)}, {port.text_of(b)}"
    batched = _batched(port, a, b)
    if acc is None:
        acc = _zeros(port, words, batched)
    chosen = _constant(words.get("input_precision"))
    if batched:
        how = [f'"{chosen}"'] if chosen in _PARTS else _precision(port, words)
        args = ", ".join([operands, acc, *(one.removeprefix("input_precision=") for one in how)])
        port.replace(node, f"{port.need('batched_product')}({args})")
        return
    if chosen in _PARTS:
        port.replace(node, f'{port.need("product_in_parts")}({operands}, {acc}, "{chosen}")')
        return
    args = ", ".join([operands, acc, *_precision(port, words)])
    product = f"gl.portable.mma({args})"
    named = words.get("input_precision")
    if named is not None and not isinstance(named, ast.Constant) and "allow_tf32" not in words:
        kind = port.text_of(named)
        parts = f"{port.need('product_in_parts')}({operands}, {acc}, {kind})"
        product = f"({parts} if {port.need('in_parts')}({kind}) else {product})"
    port.replace(node, product)


def _batched(port: Any, a: ast.expr, b: ast.expr) -> bool:
    ranks: Ranks = port.ranks
    return any((ranks.of(operand) or 0) > _MATRIX for operand in (a, b))


def _zeros(port: Any, words: dict[str, ast.expr], batched: bool) -> str:
    """Return the text of a sum that begins with zeros."""
    a, b = words["input"], words["other"]
    own, other = shape_of(port, a), shape_of(port, b)
    if "out_dtype" in words:
        dtype = port.text_of(words["out_dtype"])
    else:
        dtype = _sum_dtype(port, a)
    sizes = [f"{own}[0]", f"{own}[1]", f"{other}[2]"] if batched else None
    if sizes is None:
        sizes = [_size(port, a, 0), _size(port, b, 1)]
    return f"gl.zeros([{', '.join(sizes)}], {dtype})"


def _sum_dtype(port: Any, node: ast.expr) -> str:
    """Return the text of the dtype of a sum of products of an operand."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "to" and len(node.args) == 1 and port.language(node.func) is None:
            name = port.language(node.args[0]) or ""
            if name in _SUMMED_IN_FLOAT32:
                return "gl.float32"
            return f"{port.need('sum_dtype')}({port.text_of(node.args[0])})"
    return f"{port.need('sum_dtype')}({_value(port, node)}.dtype)"


def _value(port: Any, node: ast.expr) -> str:
    """Return the text of an expression that an attribute can follow."""
    text: str = port.text_of(node)
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if plain else f"({text})"


def shape_of(port: Any, node: ast.expr) -> str:
    """Return the text of an operand's shape."""
    return f"{_value(port, node)}.shape"


def _size(port: Any, node: ast.expr, dim: int) -> str:
    """Return the text of a size of an operand with two."""
    while True:
        inner = _same_shape(node)
        if inner is not None:
            node = inner
            continue
        swapped = _transposed(port, node)
        if swapped is None:
            break
        node, dim = swapped, 1 - dim
        port.parts(node)  # whose edits the transposition has replaced
    return f"{_loaded_shape(port, node) or shape_of(port, node)}[{dim}]"


def _loaded_shape(port: Any, node: ast.expr) -> Optional[str]:
    """Return the text of the shape of a load from a block or a descriptor, without the load; None of other values."""
    if not isinstance(node, ast.Call):
        return None
    name, owner = port.language(node.func), node.func
    if name is None and isinstance(owner, ast.Attribute) and owner.attr == "load":
        source: Optional[ast.expr] = owner.value
    else:
        source = node.args[0] if node.args and name in _LOADS else None
    fields = {TILES: "block_shape", BLOCK: "sizes"}
    field = fields.get(port.kind_of(source)) if source is not None else None
    return f"{port.text_of(source)}.{field}" if field else None


def _transposed(port: Any, node: ast.expr) -> Optional[ast.expr]:
    if isinstance(node, ast.Call) and port.language(node.func) == "trans" and len(node.args) == 1:
        return node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return node.value
    return None


def _same_shape(node: ast.expr) -> Optional[ast.expr]:
    """Return the operand whose shape an expression has, where the text shows it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == "to" else None
    if isinstance(node, ast.UnaryOp):
        return node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        return node.left
    return None


def _precision(port: Any, words: dict[str, ast.expr]) -> list[str]:
    """Return the argument for the rounding of float32 operands: tf32 is Triton's default."""
    allowed, chosen = words.get("allow_tf32"), words.get("input_precision")
    for node in (allowed, chosen):
        if node is not None and not isinstance(node, ast.Constant):
            return [f"input_precision={port.need('precision_of')}({port.text_of(node)})"]
    if _constant(allowed) is False or _constant(chosen) == "ieee":
        return []
    return ['input_precision="tf32"']


def _plain(port: Any, node: ast.expr) -> bool:
    """Return True for a product without an accumulator of its own."""
    return (
        isinstance(node, ast.Call)
        and port.language(node.func) == "dot"
        and "acc" not in arguments(node, _NAMES)
    )


def _is_sum(port: Any, name: str) -> bool:
    """Return False for a variable that is loaded or cast: the sum has the type of the product."""
    for value in port.values.get(name, ()):
        if isinstance(value, ast.Subscript):
            return False
        if not isinstance(value, ast.Call):
            continue
        function = port.language(value.func)
        cast = isinstance(value.func, ast.Attribute) and value.func.attr == "to"
        wide = value.args and isinstance(value.args[0], ast.Attribute)
        if cast and wide and port.language(value.args[0]) in ("float32", "int32"):
            continue
        if cast or function in ("load", "cast", "broadcast_to", "expand_dims"):
            return False
    return True


def accumulated(port: Any, node: ast.AugAssign) -> None:
    """Port `acc += tl.dot(a, b)`: the product adds to its accumulator itself."""
    if not isinstance(node.op, ast.Add) or not _plain(port, node.value):
        return
    if isinstance(node.target, ast.Name) and not _is_sum(port, node.target.id):
        return
    acc = port.data[slice(*port.span(node.target))].decode()
    port.replace(node, f"{acc} = {_product(port, node.value, acc)}")


def added(port: Any, node: ast.Assign) -> None:
    """Port `acc = acc * scale + tl.dot(a, b)`: the product adds to its accumulator itself."""
    total, (target, *more) = node.value, node.targets
    if more or not isinstance(target, ast.Name) or not _is_sum(port, target.id):
        return
    if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add):
        return
    sides = total.left, total.right
    for product, other in (sides, sides[::-1]):
        scaled = isinstance(other, ast.BinOp) and isinstance(other.op, (ast.Mult, ast.Div))
        first = other.left if scaled and isinstance(other, ast.BinOp) else other
        if not isinstance(first, ast.Name) or first.id != target.id:
            continue  # only the variable itself surely has the product's shape
        if _plain(port, product):
            port.replace(total, _product(port, product, port.text_of(other)))
            return


def _product(port: Any, product: ast.expr, acc: str) -> str:
    """Return the text of a product that is added to `acc`."""
    assert isinstance(product, ast.Call)
    first, last = port.span(product)
    port.edits = [e for e in port.edits if not (e[0] == first and e[1] == last)]
    for argument in (*product.args, *(word.value for word in product.keywords)):
        port.parts(argument)
    ported_product(port, product, acc)
    text: str = port.text_of(product)
    return text
