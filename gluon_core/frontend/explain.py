"""Explain mistakes in the words of the language, where Triton uses words of its own.

Nothing here refuses anything: `explained` is asked after the code generator has failed, with the
expression that failed and the values that the names in it have.
"""

from __future__ import annotations

import ast
import builtins
import re
from types import ModuleType
from typing import Any, Iterator, Optional

from gluon_core import _triton, language
from gluon_core._triton import tl
from gluon_core.errors import (
    DtypeError,
    GluonError,
    KernelSyntaxError,
    TraceError,
    did_you_mean,
    without_addresses,
)
from gluon_core.frontend import constructs, statements
from gluon_core.frontend.calls import explain_call
from gluon_core.frontend.host_calls import host_function
from gluon_core.frontend.scope import as_operand, make_constant, value_of
from gluon_core.frontend.unfit import (
    no_item,
    no_variadic,
    unfit_attribute,
    unfit_item,
    unfit_number,
)
from gluon_core.values import shared_memory_descriptor
from gluon_core.values.tensors import describe

__all__ = ["add_remedy", "explained", "reworded"]

_OPERANDS = re.compile(r"invalid operands of type (\S+) and (\S+)")


def reworded(text: str) -> str:
    """`text` of Triton's without its own names and the addresses of objects."""
    text = without_addresses(text)
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"\bconstexpr\[([^\[\]]*)\]", r"\1", text)
    text = re.sub(r"^cannot convert None of type NoneType to tensor$", "None is no number", text)
    text = re.sub(r"^cannot convert (.*) of type (\w+) to tensor$", r"\1 (\2) is no number", text)
    text = re.sub(
        r"^Nonrepresentable integer (-?\d+)\.?$", r"the integer \1 does not fit 64 bits", text
    )
    text = text.replace("triton.language.", "").replace("tl.static_range", "gl.static_range")
    return text.replace("@triton.jit", "@gluon.jit").replace(" in triton", " in kernels")


def explained(generator: Any, node: Any, root: Optional[BaseException]) -> Optional[GluonError]:
    """Return our error for a failure at `node`; None where there is nothing better to say.

    Args:
        generator: the `KernelGenerator` that visited `node`.
        root: the exception.
    """
    if isinstance(root, GluonError):
        if isinstance(node, ast.Call) and root.span is None:
            host = host_function(ast.unparse(node.func), value_of(generator, node.func))
            if host is not None:
                host.span = generator._span(node.func)
                return host
        return None
    unfinished = _unfinished(generator, node, root)
    if unfinished is not None:
        unfinished.span = generator._span(node)
        return unfinished
    for kinds, explain in _EXPLAIN:
        if isinstance(node, kinds):
            error: Optional[GluonError] = explain(generator, node, root)
            if error is not None:
                error.span = error.span or generator._span(node)
                return error
    return None


def _not_yet_tensors(generator: Any, node: Any) -> Iterator[tuple[Any, Any]]:
    """(node, value) of the operands that become tensors only when something is done first."""
    operands: list[ast.AST]
    if isinstance(node, ast.Call):
        operands = [*node.args, *(word.value for word in node.keywords)]
    else:
        operands = list(ast.iter_child_nodes(node))
    for operand in operands:
        value = value_of(generator, operand)
        # Compare its class: the tuples of some releases raise another error for missing items.
        if hasattr(type(value), "how_to_tensor"):
            yield operand, value


def _unfinished(generator: Any, node: Any, root: Any) -> Optional[GluonError]:
    called = isinstance(node, ast.Call)
    if not called and not isinstance(
        node, (ast.BinOp, ast.Compare, ast.UnaryOp, ast.Attribute, ast.Subscript)
    ):
        return None
    for operand, value in _not_yet_tensors(generator, node):
        if (
            called
            and type(value).__name__ not in str(root)
            and not isinstance(root, AttributeError)
        ):
            continue
        return DtypeError(
            f"{ast.unparse(operand)!r} is not a tensor yet",
            expected="a tensor",
            got=type(value).__name__,
            remedy=value.how_to_tensor,
        )
    return None


# -- names --------------------------------------------------------------------------------------


def _name(generator: Any, node: ast.Name, root: Any) -> Optional[GluonError]:
    if not isinstance(root, NameError):
        return None
    name = node.id
    tree = generator.jit_fn.parse()
    if any(one.arg == name for one in tree.body[0].args.kwonlyargs):
        return KernelSyntaxError(
            f"the parameter {name!r} behind `*` is not supported in kernels",
            remedy="Leave the `*` out: any parameter can be passed by its name.",
        )
    variadic = tree.body[0].args.vararg
    if variadic is not None and variadic.arg == name:
        return no_variadic(name)
    stored = _first_store(tree, name)
    if stored is not None:
        place, around = stored
        line = generator.begin_line + place.lineno
        if place.lineno > node.lineno:
            message = f"{name!r} is used before line {line} sets it"
            return KernelSyntaxError(message, remedy="Set it before it is used.")
        if isinstance(around, (ast.For, ast.While)):
            message = (
                f"{name!r} is set at line {line} in the body of a loop, which may run no round"
            )
            remedy = f"Give {name!r} a value of the same type before the loop."
        else:
            message = f"{name!r} is set at line {line} in one branch of an `if` alone"
            remedy = f"Give {name!r} a value of the same type before the `if`, or in both branches."
        return KernelSyntaxError(message, remedy=remedy)
    if hasattr(builtins, name):
        message = f"Python's {name!r} is not supported in kernels"
        return KernelSyntaxError(message, remedy=constructs.INSTEAD.get(name))
    near = did_you_mean(name, [*generator.lscope, *generator.gscope])
    return KernelSyntaxError(f"{name!r} is not defined", remedy=near)


def _first_store(tree: ast.AST, name: str) -> Optional[tuple[Any, Optional[ast.AST]]]:
    """Return the first store to `name`, and the `if` or loop around it."""
    stores: list[tuple[Any, Optional[ast.AST]]] = []

    def walk(node: ast.AST, around: Optional[ast.AST]) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            stores.append((node, around))
        if isinstance(node, (ast.If, ast.For, ast.While)):
            around = node
        for child in ast.iter_child_nodes(node):
            walk(child, around)

    walk(tree, None)
    return min(stores, key=lambda pair: (pair[0].lineno, pair[0].col_offset)) if stores else None


# -- expressions --------------------------------------------------------------------------------


def _subscript(generator: Any, node: ast.Subscript, root: Any) -> Optional[GluonError]:
    value = value_of(generator, node.value)
    if isinstance(value, _triton.tl_tuple):
        return _item(generator, node, value)
    if isinstance(value, shared_memory_descriptor):
        name = ast.unparse(node.value)
        return KernelSyntaxError(
            "a buffer cannot be indexed with []",
            got=ast.unparse(node),
            remedy=f"Use {name}.index(i) for one of several, or {name}.slice(start, length, dim).",
        )
    if not isinstance(value, tl.tensor):
        return unfit_item(generator, node, root)
    base, index = ast.unparse(node.value), ast.unparse(node.slice)
    if value.dtype.is_ptr():
        if isinstance(node.slice, ast.Slice):
            index = "gl.arange(start, end, layout)"
        return KernelSyntaxError(
            "a pointer cannot be indexed",
            got=ast.unparse(node),
            remedy=f"Load from the address: gl.load({base} + {index}).",
        )
    return KernelSyntaxError(
        "a tensor in registers has no index of its elements",
        expected="`:` and `None`, which add dimensions",
        got=ast.unparse(node),
        remedy="Load the elements that are needed, or use gl.gather or a reduction.",
    )


def _item(generator: Any, node: ast.Subscript, value: Any) -> GluonError:
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if isinstance(index, int):
        return no_item(node, len(value.values))
    return DtypeError(
        "the index of a tuple is a compile-time integer",
        got=ast.unparse(node),
        remedy=make_constant(generator, [node.slice]) or None,
    )


def _binary(generator: Any, node: Any, root: Any) -> Optional[GluonError]:
    operation = node.op
    number = unfit_number(node, root)
    if number is not None:
        return number
    if isinstance(operation, ast.MatMult):
        return KernelSyntaxError(
            "`@` is not supported in kernels",
            remedy="Multiply matrices with gl.portable.mma, or gl.dot_fma without a matrix unit.",
        )
    sides = (node.left, node.right)
    pair = (ast.Tuple, ast.List)
    if "NoneType" in str(root) and isinstance(operation, ast.Add):
        held = [value_of(generator, side) for side in sides]
        if any(isinstance(s, pair) or isinstance(v, tl.tuple) for s, v in zip(sides, held)):
            return DtypeError(
                "`+` cannot join these tuples, for there is None in them",
                got=ast.unparse(node),
                remedy="Write the new tuple out, entry by entry: (a[0], a[1], None).",
            )
    if "NoneType" in str(root):
        nothing = next((side for side in sides if isinstance(side, ast.Call)), None)
        message = f"{ast.unparse(nothing)!r} returns nothing" if nothing else "None is no number"
        return DtypeError(message, got=ast.unparse(node))
    kind = re.search(r"'(\w+)' object has no attribute|for \S+: '(\w+)' and '(\w+)'", str(root))
    if kind is not None:
        memory = "shared_memory_descriptor" in kind[0]
        return DtypeError(
            f"these operands cannot be combined: {ast.unparse(node)}",
            got=" and ".join(filter(None, kind.groups())),
            remedy="Load the buffer first: buffer.load(layout)." if memory else None,
        )
    match = _OPERANDS.search(str(root))
    if match is None and isinstance(operation, ast.FloorDiv) and "unexpected type" in str(root):
        quotient = ast.unparse(ast.BinOp(node.left, ast.Div(), node.right))
        return DtypeError(
            f"`//` divides integers: {ast.unparse(node)}",
            got=str(root).rpartition(" ")[2],
            remedy=f"Use gl.floor({quotient}).",
        )
    if match is None:
        return None
    if "pointer<" not in match[0]:
        return _not_whole(generator, node, match[1])
    types = [text.replace("triton.language.", "") for text in match.groups()]
    other = next((text for text in types if not text.startswith("pointer<")), None)
    if not isinstance(operation, (ast.Add, ast.Sub)):
        return DtypeError(
            f"arithmetic on a pointer: {ast.unparse(node)}",
            expected="an integer added to a pointer, or subtracted from it",
            remedy="Load its value with gl.load, and compute with that.",
        )
    if other is None:
        return DtypeError(
            f"two pointers cannot be combined: {ast.unparse(node)}",
            expected="a pointer and an integer",
            remedy="Load the value of one with gl.load, or subtract them as integers: "
            "p.to(gl.int64).",
        )
    # The pointer is the operand that the message of the types names first, or second.
    offset = node.right if types[0].startswith("pointer<") else node.left
    return DtypeError(
        f"a pointer moves by whole elements: {ast.unparse(node)}",
        expected="an integer offset",
        got=other,
        remedy=f"Convert the offset: {as_operand(offset)}.to(gl.int32).",
    )


def _not_whole(generator: Any, node: ast.BinOp, promoted: str) -> Optional[GluonError]:
    """Explain an operator of integers that got floats; both operands were promoted to one dtype."""
    sides = (node.left, node.right)
    values = [value_of(generator, side) for side in sides]
    tensors = [value for value in values if isinstance(value, tl.tensor)]
    floats = [
        side
        for side, value in zip(sides, values)
        if isinstance(value, tl.tensor) and value.dtype.is_floating()
    ]
    if not floats and "float" in promoted:  # calls, which are not evaluated a second time
        floats = [side for side, value in zip(sides, values) if value is None]
    if not floats:
        return None
    return DtypeError(
        f"this operator works on integers: {ast.unparse(node)}",
        got=" and ".join(map(describe_type, tensors)) or promoted.rpartition(".")[2],
        remedy=f"Convert it first: {as_operand(floats[0])}.to(gl.int32).",
    )


def _compare(generator: Any, node: ast.Compare, root: Any) -> Optional[GluonError]:
    if any(isinstance(operation, (ast.In, ast.NotIn)) for operation in node.ops):
        return KernelSyntaxError(
            "`in` is not supported in kernels",
            got=ast.unparse(node),
            remedy="Compare with each item: (x == a) | (x == b).",
        )
    if "NoneType" in str(root) and not isinstance(root, GluonError):
        return DtypeError(
            "None is no number",
            got=ast.unparse(node),
            remedy="Ask with `is None`, or `is not None`.",
        )
    if isinstance(root, AttributeError) or "unsupported operand" in str(root):
        values = [value_of(generator, side) for side in (node.left, *node.comparators)]
        return DtypeError(
            f"these cannot be compared: {ast.unparse(node)}",
            expected="numbers and tensors of them",
            got=", ".join(describe(v) for v in values if v is not None) or None,
        )
    if len(node.ops) > 1 and "comparison" in str(root):
        return KernelSyntaxError(
            "a chain of comparisons is not supported in kernels",
            got=ast.unparse(node),
            remedy="Write (a < b) & (b < c).",
        )
    return None


def _unary(generator: Any, node: ast.UnaryOp, root: Any) -> Optional[GluonError]:
    value = value_of(generator, node.operand)
    if not isinstance(value, tl.tensor):
        return None
    operand = ast.unparse(node.operand)
    remedy = f"Compare with 0: {operand} == 0." if isinstance(node.op, ast.Not) else None
    if isinstance(node.op, ast.Invert):
        remedy = f"Convert it first: ~{operand}.to(gl.int32)."
    return DtypeError(
        f"this operator does not work on {describe_type(value)}: {ast.unparse(node)}",
        remedy=remedy,
    )


def describe_type(value: Any) -> str:
    """Return the element type of a tensor in words."""
    return str(value.dtype).replace("triton.language.", "")


def _choice(generator: Any, node: ast.IfExp, root: Any) -> Optional[GluonError]:
    types = re.search(r"inconsistent types (.*) and (.*)", str(root))
    if types is None:
        return None
    return DtypeError(
        "the two values of `a if condition else b` have different types",
        expected=types[1],
        got=types[2],
        remedy="Convert one with .to(dtype), make a tensor of the scalar with gl.full, or use gl.where.",
    )


_OF_LISTS = frozenset(name for name in dir(list) if not name.startswith("_")) - set(dir(tuple))


def _attribute(generator: Any, node: ast.Attribute, root: Any) -> Optional[GluonError]:
    owner = value_of(generator, node.value)
    if isinstance(owner, (_triton.tl_tuple, tuple, list)) and node.attr in _OF_LISTS:
        shown = ast.unparse(node.value)
        return TraceError(
            f"{shown!r} is a tuple in a kernel, and cannot change: it has no {node.attr!r}",
            remedy=f"Make another one: {shown} = {shown} + (item,), with {shown} = () at first.",
        )
    if not isinstance(root, AttributeError):
        return None
    number = re.match(r"'(int|float|bool)' object has no attribute", str(root))
    if number is not None and hasattr(tl.tensor, node.attr):
        shown = ast.unparse(node.value)
        return TraceError(
            f"{shown} is a compile-time {number[1]}, and has no {node.attr!r}",
            remedy=f"Make a run-time value of it: gl.to_tensor({shown}).{node.attr}.",
        )
    if owner is None:
        return unfit_attribute(generator, node, root)
    if isinstance(owner, ModuleType):
        if owner is not language:
            return None
        message = f"gl has no {node.attr!r}"
        near = re.search(r"(Did you mean .*?\?)", str(root))
        return TraceError(message, remedy=_ELSEWHERE.get(node.attr) or (near[1] if near else None))
    if isinstance(owner, _triton.base_value) and not isinstance(owner, tl.constexpr):
        known = [name for name in dir(owner) if not name.startswith("_")]
        return TraceError(
            f"{ast.unparse(node.value)!r} has no {node.attr!r}",
            got=str(owner.type).replace("triton.language.", ""),
            remedy=_descriptor_expected(owner, node)
            or did_you_mean(node.attr, known)
            or ("Load the buffer first: buffer.load(layout)." if hasattr(owner, "load") else None),
        )
    return unfit_attribute(generator, node, root)


def _descriptor_expected(owner: Any, node: ast.Attribute) -> Optional[str]:
    """Return the argument to pass, where a kernel treats a pointer as a tensor descriptor."""
    kept = ("block_type", "block_shape", "layout", "strides")
    if node.attr not in kept or not isinstance(owner, tl.tensor) or not owner.dtype.is_ptr():
        return None
    return f"{ast.unparse(node.value)} was given an array: pass a tensor descriptor of it."


# Names of Triton's language that this one has under another name or not at all.
_ELSEWHERE = {
    "dot": "Multiply matrices with gl.portable.mma, or gl.dot_fma without a matrix unit.",
    "dot_scaled": "Multiply matrices with the target's own op, from gluon_core.language.<vendor>.",
    "make_block_ptr": "Compute the addresses: pointer + offsets.",
    "make_tensor_descriptor": "Make the descriptor in host code, with gluon_core.<vendor>.",
    "range": "Loop over Python's `range`.",
    "softmax": "Write it with gl.max, gl.exp and gl.sum.",
    "trans": "Use x.permute(...) or gl.permute.",
    "broadcast_to": "Use gl.broadcast, or x.expand_dims.",
    "sigmoid": "Write 1 / (1 + gl.exp(-x)).",
    "tensor": "Make one with gl.full, gl.zeros or gl.load.",
    "debug_barrier": "Use gl.barrier().",
    "syncthreads": "Use gl.barrier().",
    "synchronize": "Use gl.barrier().",
    "thread_id": "A layout says which thread holds which element: gl.arange(0, N, layout).",
    "threadIdx": "A layout says which thread holds which element: gl.arange(0, N, layout).",
    "blockIdx": "Use gl.program_id(axis).",
    "gridDim": "Use gl.num_programs(axis).",
    "atomicAdd": "Use gl.atomic_add.",
    "shared": "Use gl.allocate_shared_memory(dtype, shape, layout).",
    "alloc_shared": "Use gl.allocate_shared_memory(dtype, shape, layout).",
    "copy": "Use gl.load and gl.store, or gl.portable.async_copy.",
}


def _text(generator: Any, node: ast.JoinedStr, root: Any) -> Optional[GluonError]:
    return KernelSyntaxError(
        "an f-string in a kernel is a compile-time text",
        got=f"a run-time value in {ast.unparse(node)}",
        remedy="Print run-time values with gl.device_print.",
    )


def _comprehension(generator: Any, node: ast.ListComp, root: Any) -> Optional[GluonError]:
    return KernelSyntaxError(
        "a list comprehension in a kernel goes over one tuple",
        got=ast.unparse(node),
        remedy="Loop over gl.static_range, or write the items out as a tuple.",
    )


# -- compile-time values --------------------------------------------------------------------------


def add_remedy(generator: Any, node: Any, error: GluonError) -> None:
    """Say which name of a failed call is the run-time value, where a compile-time one belongs."""
    if error.remedy is not None or not isinstance(node, ast.Call):
        return
    for _, value in _not_yet_tensors(generator, node):
        if type(value).__name__ in str(error.got):
            error.remedy = value.how_to_tensor
            return
    text = f"{error.message} {error.expected} {error.got}"
    if "compile-time" not in text and "tensor object at 0x" not in text:
        return
    remedy = make_constant(generator, [*node.args, *(word.value for word in node.keywords)])
    error.remedy = remedy or None


_EXPLAIN: Any = (
    (ast.Name, _name),
    (ast.Subscript, _subscript),
    (ast.BinOp, _binary),
    (ast.Compare, _compare),
    (ast.UnaryOp, _unary),
    (ast.Attribute, _attribute),
    (ast.IfExp, _choice),
    (ast.JoinedStr, _text),
    (ast.ListComp, _comprehension),
    (ast.Call, explain_call),
    *statements.EXPLAIN,
)
