"""Port block pointers and tensor descriptors: to blocks of gluon_write.porting.library, and to portable tiles."""

from __future__ import annotations

import ast
from typing import Any, Callable, Iterator, Optional

from gluon_write.porting.kinds import BLOCK, TILES
from gluon_write.text.form import free_name
from gluon_write.text.syntax import arguments, nodes_in

__all__ = ["arguments", "blocks_in", "own_names", "ported_access", "ported_maker", "ported_method"]

_ATOMICS = ("add", "min", "max", "and", "or", "xor")
_CHECKS = ("boundary_check", "padding_option")
_HOW = ("cache_modifier", "eviction_policy")
_LOADS = ("pointer", "mask", "other", *_CHECKS, *_HOW, "volatile")
_STORES = ("pointer", "value", "mask", _CHECKS[0], *_HOW)
_TMA = 'gl.target.has("nvidia.tma")'
_TILE_FUNCTIONS = {"load_tensor_descriptor": "load", "store_tensor_descriptor": "store"}


def own_names(
    jit: ast.FunctionDef, language: Callable[[ast.AST], Optional[str]], taken: set[str]
) -> dict[int, str]:
    """Return new names for blocks that a function makes under one name in several places, by the id of a node.

    A block pointer has one type whatever it points into; a block's type holds which of its sizes and distances are
    constants. A loop would carry the block that was made before it, under the name that it gives its own.
    """
    regions: dict[str, list[list[ast.Name]]] = {}  # a name -> the nodes of each block of that name
    for body in blocks_in(jit):
        for place, statement in enumerate(body):
            name = _made(statement, language)
            if name is None:
                continue
            assert isinstance(statement, ast.Assign)
            nodes = [n for n in nodes_in(statement.targets[0]) if isinstance(n, ast.Name)]
            for later in body[place + 1 :]:
                if any(_made(inner, language) == name for inner in nodes_in(later)):
                    break
                nodes += [n for n in nodes_in(later) if isinstance(n, ast.Name) and n.id == name]
            regions.setdefault(name, []).append(nodes)
    names: dict[int, str] = {}
    for name, blocks in regions.items():
        mentioned = [n for n in nodes_in(jit) if isinstance(n, ast.Name) and n.id == name]
        own = [id(node) for nodes in blocks for node in nodes]
        stored = sum(isinstance(node.ctx, ast.Store) for node in mentioned)
        if len(own) == len(set(own)) == len(mentioned) and stored == len(blocks):
            for nodes in sorted(blocks, key=lambda nodes: nodes[0].lineno)[1:]:
                new = free_name(name, taken)
                names |= {id(node): new for node in nodes}
    return names


def blocks_in(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements in a function, in the order of their first lines."""
    blocks = (getattr(inner, kind, None) for inner in nodes_in(node) for kind in ("body", "orelse"))
    lists = [block for block in blocks if isinstance(block, list) and block]
    yield from sorted(lists, key=lambda block: block[0].lineno)


def _made(statement: ast.AST, language: Callable[[ast.AST], Optional[str]]) -> Optional[str]:
    """Return the name that a statement gives a new block; None of others."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    makes = isinstance(value, ast.Call) and language(value.func) == "make_block_ptr"
    return target.id if makes and isinstance(target, ast.Name) else None


def _tuple(port: Any, node: ast.expr) -> str:
    """Return the text of a sequence as a tuple."""
    if not isinstance(node, (ast.List, ast.Tuple)):
        text: str = port.text_of(node)
        return text
    parts = [port.text_of(part) for part in node.elts]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def ported_maker(port: Any, node: ast.Call, name: str) -> bool:
    """Port a call that makes or moves a block pointer or a descriptor; False for other calls."""
    if name == "make_block_ptr":
        words = arguments(node, ("base", "shape", "strides", "offsets", "block_shape", "order"))
        sequences = (words[n] for n in ("shape", "strides", "offsets", "block_shape"))
        parts = [port.text_of(words["base"]), *(_tuple(port, node) for node in sequences)]
        port.replace(node, f"{port.need('block_of')}({', '.join(parts)})")
    elif name == "advance":
        words = arguments(node, ("base", "offsets"))
        parts = [port.text_of(words["base"]), _tuple(port, words["offsets"])]
        port.replace(node, f"{port.need('block_moved')}({', '.join(parts)})")
    elif name == "make_tensor_descriptor":
        names = ("base", "shape", "strides", "block_shape")
        words = arguments(node, (*names, "padding_option"))
        padding = words.get("padding_option")
        if padding is not None and getattr(padding, "value", "") != "zero":
            raise port.error(
                padding,
                "tiles outside the tensor are zero",
                "Use block pointers, or pointers with a mask.",
            )
        parts = [port.text_of(words[n]) for n in names]
        if not _is_parameter(port, words["base"]):
            parts[0] = f"gl.multiple_of({parts[0]}, 16 if {_TMA} else 1)"
        parts[2] = _aligned_strides(port, words["strides"], words["base"])
        port.replace(node, f"gl.portable.descriptor({', '.join(parts)})")
    elif name in _TILE_FUNCTIONS:
        parts = [port.text_of(arg) for arg in node.args]
        port.replace(node, f"gl.portable.{_TILE_FUNCTIONS[name]}({', '.join(parts)})")
    else:
        return False
    return True


def _is_parameter(port: Any, node: ast.expr) -> bool:
    """Return True for a parameter that keeps its value: launches know its alignment."""
    return isinstance(node, ast.Name) and node.id in port.kept


def _aligned_strides(port: Any, node: ast.expr, base: ast.expr) -> str:
    """Return the text of a descriptor's strides, which Triton demands to be multiples of 16 bytes."""
    if not isinstance(node, (ast.List, ast.Tuple)):
        text: str = port.text_of(node)
        return text
    steps = []
    for step in node.elts:
        text = port.text_of(step)
        if not isinstance(step, ast.Constant) and text not in port.constants:
            demanded = f"{port.need('multiple')}({_pointer(port, base)}.dtype, {_TMA})"
            text = f"gl.multiple_of(gl.to_tensor({text}), {demanded})"
        steps.append(text)
    return f"[{', '.join(steps)}]"


def ported_access(port: Any, node: ast.Call, name: str) -> bool:
    """Port a load or store through a block pointer; False for other calls."""
    words = arguments(node, _LOADS if name == "load" else _STORES)
    pointer = words.get("pointer")
    checked = words.pop("boundary_check", None)
    padding = words.pop("padding_option", None)
    if pointer is None or checked is None and port.kind_of(pointer) != BLOCK:
        return False
    words.pop("pointer")
    block = port.text_of(pointer)
    parts = [f"{port.need('block_pointers')}({block})"]
    if "value" in words:
        parts.append(port.text_of(words.pop("value")))
    if checked is not None and not (isinstance(checked, ast.Tuple) and not checked.elts):
        parts.append(f"mask={port.need('block_mask')}({block}, {_tuple(port, checked)})")
        if name == "load":
            nan = getattr(padding, "value", "") == "nan"
            parts.append('other=float("nan")' if nan else "other=0")
    parts += [f"{word}={port.text_of(value)}" for word, value in words.items()]
    port.replace(node, f"gl.{name}({', '.join(parts)})")
    return True


def ported_method(port: Any, node: ast.Call) -> bool:
    """Port a call of a descriptor's method, or of one that tensors do not have here; False for other calls."""
    assert isinstance(node.func, ast.Attribute)
    owner, name = node.func.value, node.func.attr
    if port.kind_of(owner) != TILES:
        if name == "advance" and port.kind_of(owner) == BLOCK:
            return ported_maker(port, _as_function(node), name)
        if name in ("histogram", "store") and name not in port.methods:
            call = _as_function(node)
            if not (name == "store" and ported_access(port, call, name)):
                words = [f"{w.arg}={port.text_of(w.value)}" for w in call.keywords]
                texts = [*(port.text_of(arg) for arg in call.args), *words]
                port.replace(call, f"gl.{name}({', '.join(texts)})")
            return True
        return name in ("view", "reshape") and _reshaped(port, node)
    tiles, parts = port.text_of(owner), [port.text_of(arg) for arg in node.args]
    parts += [port.text_of(word.value) for word in node.keywords]
    passed = ", ".join([tiles, *parts])
    kind: Optional[str] = name.removeprefix("atomic_")
    if name in ("load", "store"):
        port.replace(node, f"gl.portable.{name}({passed})")
    elif name == "gather":
        port.replace(node, f"{port.need('gathered_rows')}({passed})")
    elif name == "scatter":
        port.replace(node, f"{port.need('scattered_rows')}({passed})")
    elif name.startswith("atomic_") and kind in _ATOMICS:
        block = f"{port.need('tile_block')}({tiles}, {_tuple(port, node.args[0])})"
        mask = f"{port.need('block_mask')}({block}, (0, 1, 2))"
        pointers = f"{port.need('block_pointers')}({block})"
        port.replace(node, f"gl.{name}({pointers}, {parts[1]}, mask={mask})")
    else:
        return False
    return True


def _as_function(node: ast.Call) -> ast.Call:
    """Return the call of a method as one of a function."""
    assert isinstance(node.func, ast.Attribute)
    call = ast.Call(node.func, [node.func.value, *node.args], node.keywords)
    return ast.copy_location(call, node)


def _reshaped(port: Any, node: ast.Call) -> bool:
    """Port `x.view(...)` and `x.reshape(...)`, which keep the order of the elements here."""
    assert isinstance(node.func, ast.Attribute)
    kept = [port.text_of(arg) for arg in node.args]
    words = [w for w in node.keywords if w.arg != "can_reorder"]
    kept += [f"{w.arg}={port.text_of(w.value)}" for w in words]
    owner: str = port.text_of(node.func.value)
    if not isinstance(node.func.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        owner = f"({owner})"
    port.replace(node, f"{owner}.reshape({', '.join(kept)})")
    return True


def _pointer(port: Any, node: ast.expr) -> str:
    """Return the text of an address that an attribute can follow."""
    text: str = port.text_of(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) else f"({text})"
