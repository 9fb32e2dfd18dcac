"""Programs that ask torch for an accelerator, and the simulated device that answers them."""

from __future__ import annotations

import ast
import re
import sys
from types import TracebackType
from typing import Iterator, Optional

from gluon_core.errors import GluonError
from gluon_core.registry.load import registry

__all__ = ["activate", "asks", "begin", "lines", "requires"]

_QUESTIONS = {"is_available", "device_count", "is_initialized"}


def activate(wanted: str) -> None:
    """Give Triton its driver if `wanted`, the value of GLUON_TARGET, is a simulated target."""
    from gluon_standin.driver import activate

    activate(wanted)


def requires(source: str, kind: str) -> bool:
    """Return whether Python `source` names torch's device type `kind` and has no way around it.

    A program that branches on `torch.<kind>.is_available()` decides for itself, unless it only
    refuses to run without the device: `assert torch.cuda.is_available()`, or an `if not` of that.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # for Python to report
        return False
    refusals: set[int] = set()
    for node in ast.walk(tree):
        test = node.test if isinstance(node, (ast.Assert, ast.If)) else None
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if test is not None and (isinstance(node, ast.Assert) or negated):
            refusals.update(map(id, ast.walk(test)))
        elif isinstance(node, ast.Call) and _name(node.func) == "skipif":
            refusals.update(id(inner) for one in node.args for inner in ast.walk(one))
    named = False
    for node in ast.walk(tree):
        if _is_question(node, kind) and id(node) not in refusals:
            return False
        named = named or _names_device(node, kind)
    return named


def _name(node: ast.AST) -> Optional[str]:
    return getattr(node, "attr", getattr(node, "id", None))


def _is_question(node: ast.AST, kind: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _QUESTIONS and _name(node.value) == kind


def _names_device(node: ast.AST, kind: str) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(re.fullmatch(rf"{kind}(:\d+)?", node.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # tensor.cuda()
        return node.func.attr == kind
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == kind
        and node.attr not in _QUESTIONS
    )


def asks(error: BaseException) -> bool:
    """Return whether `error` is torch's answer that the accelerator it was asked for is not there."""
    frame: Optional[TracebackType] = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or not isinstance(error, (AssertionError, RuntimeError)):
        return False
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return frame.tb_frame.f_code.co_name == "_lazy_init" and module.startswith("torch.")


def begin(wanted: Optional[str], source: Optional[str] = None, instead: bool = False) -> bool:
    """Let the simulated device answer from now on, if that is possible; return whether it does.

    Args:
        wanted: the target; None for the one that kernels run on unasked.
        source: of the program; without a need for the device in it nothing happens.
        instead: answer in the place of a device that this machine has.
    """
    try:
        target = registry().target(wanted)
        if not registry().backend(target.backend).simulates:
            return False
        kind = registry().backend(target.architecture.backend).device.tensor_device
        if source is not None and (kind is None or not requires(source, kind)):
            return False
        from gluon_standin.torch_device import stand_in, standing

        if standing() is None:
            stand_in(str(target), instead)
            print(f"gluon: {_description()}", file=sys.stderr)
    except (GluonError, ImportError):  # the program reports the error
        return False
    return True


def _description() -> str:
    from gluon_standin.torch_device import standing

    answering = standing()
    assert answering is not None
    return f'{answering.target} answers for torch\'s "{answering.kind}" (the stand-in; tensors are on the CPU)'


def lines(announced: bool = False) -> Iterator[str]:
    """Yield the lines of a run's report on the stand-in: none where there is no stand-in.

    Args:
        announced: whether the output says already who answers.
    """
    module = sys.modules.get("gluon_standin.torch_device")
    if module is None or module.standing() is None:
        return
    if not announced:
        yield f"stand-in: {_description()}"
    plain = sys.modules.get("gluon_standin.plain")
    if plain is not None:
        yield from (f"stand-in: {line}" for line in plain.summary())
