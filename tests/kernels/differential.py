"""The project's kernels on the simulator and on a GPU: launches, arguments, and the comparison.

`outcome_of(name, one, other)` runs a case of `names()` on both targets. Values that a snippet of
`tests/frontend/snippets` computes are kept in an array, so that they can be compared, too.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any, Callable, Iterator, Mapping
from unittest.mock import patch

import ml_dtypes
import numpy as np

from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, GluonError
from gluon_core.plugin.ops import builtin
from gluon_core.registry import load as plugins
from gluon_core.testing import TRITON_VERSION
from gluon_core.testing.conformance.kernels import COLS, KERNELS, ROWS
from gluon_report.differential import Difference, run_both
from gluon_report.example import Arrays
from tests.frontend import oracle, snippets
from tests.kernels import cases
from tests.kernels.explained import INPUTS, TOLERANCE, left_out
from tests.portable_kernels import NUMBERS, one_tile

# Results that differ on a GPU, as ops or functions of a source, and by how many ulps of its type or
# which part of the largest result; see "How accurate is the simulator?" in docs/simulator.md.
INEXACT = {
    r"[^/]/[^/]|fdiv|truediv|div_full|sqrt|rsqrt": 4,
    r"\bexp|\blog|\bsin|\bcos|erf|tanh|softmax|sigmoid|pow|libdevice": 64,
    r"reduce|\bsum\b|\bsum\(|scan|cumsum|cumprod|\bdot|mma|xor_sum": 64,
    r"fast_|approx": 1 << 14,
}
SLOTS, ROOM = 8, 1024  # values kept of a snippet, and the elements of each
KEPT = {"ints": np.int64, "wide": np.float64, "single": np.float32, "half": np.float32}


@dataclass(frozen=True)
class Outcome:
    """The end of a case.

    Args:
        kind: "same", "near" (within what is documented), "differs", "reported" (by the simulator, so
            that the GPU never saw it), "refused" (when it was traced: upstream refuses such
            snippets, too, see tests/frontend/test_same_module.py), "unable" (either target cannot
            run it) or "failed".
        text: what there is to say.
    """

    name: str
    kind: str
    text: str = ""


# ---- keeping the values of snippets -----------------------------------------------------------


@builtin
def keep(
    ints: Any,
    wide: Any,
    single: Any,
    half: Any,
    slot: Any,
    value: Any,
    last: Any,
    _semantic: Any = None,
) -> None:
    """Store the elements of a tensor with those of its kind; of other values nothing.

    With `last`, nothing else uses the tensor, and an AutoLayout becomes a layout here.
    """
    kept = _triton.unwrap(value)
    if isinstance(kept, (tuple, list)) or type(kept).__name__ == "tuple":
        parts = list(kept)
        for part in parts[:1]:
            keep(ints, wide, single, half, slot, part, last, _semantic=_semantic)
        return
    if type(kept).__name__ != "tensor" or kept.dtype.is_ptr() or str(kept.dtype) == "void":
        return
    if kept.shape and isinstance(kept.type.layout, gl.AutoLayout) and _triton.unwrap(last):
        kept = gl.set_auto_layout(kept, _plain(kept, _semantic), _semantic=_semantic)
    flat = _places(kept, _semantic)
    if flat is None:
        return
    dtype = kept.dtype
    if dtype.is_floating():
        out = {64: wide, 32: single}.get(dtype.primitive_bitwidth, half)
        kind = gl.float64 if dtype.primitive_bitwidth == 64 else gl.float32
    else:
        out, kind = ints, gl.int64
    kept = kept.to(kind, _semantic=_semantic)
    address = flat.__add__(_triton.unwrap(slot) * ROOM, _semantic=_semantic) if kept.shape else flat
    pointer = out.__add__(address, _semantic=_semantic)
    gl.store(pointer, kept, _semantic=_semantic)


def _plain(value: Any, semantic: Any) -> Any:
    """A layout for any shape: rows to warps, columns to lanes."""
    ones = [1] * (len(value.shape) - 1)
    warps = semantic.num_warps
    order = list(reversed(range(len(value.shape))))
    return gl.BlockedLayout([*ones, 1], [*ones, 32], [*ones, warps], order)


def _places(value: Any, semantic: Any) -> Any:
    """The number of each element, in the tensor's layout; None where that cannot be made."""
    shape = [int(_triton.unwrap(s)) for s in value.shape]
    if not shape:
        return 0
    layout = value.type.layout
    if int(np.prod(shape)) > ROOM or len(shape) > 1 and isinstance(layout, _AUTO):
        return None
    total, stride = None, 1
    for axis in reversed(range(len(shape))):
        inner = layout
        for other in reversed(range(len(shape))):
            if other != axis:
                inner = gl.SliceLayout(other, inner)
        part = gl.arange(0, shape[axis], layout=inner, _semantic=semantic)
        for other in range(len(shape)):
            if other != axis:
                part = gl.expand_dims(part, other, _semantic=semantic)
        part = part.__mul__(stride, _semantic=semantic)
        total = part if total is None else total.__add__(part, _semantic=semantic)
        stride *= shape[axis]
    return total


_AUTO = (gl.AutoLayout, gl.CoalescedLayout)


def kept(source: str) -> str:
    """A snippet whose kernel also takes `KEPT`, and keeps there what its statements compute."""
    tree = ast.parse(source)
    (kernel,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "kernel")
    kernel.args.args += [ast.arg(name) for name in KEPT]
    loaded = {text for text in snippets.PRELUDE.values()}
    body: list[ast.stmt] = []
    slot = 0
    for statement in kernel.body:
        value, last = None, isinstance(statement, ast.Expr)
        if isinstance(statement, ast.Expr):
            value, statement = statement.value, None
        elif isinstance(statement, ast.Assign) and ast.unparse(statement) not in loaded:
            (to, *more) = statement.targets
            value = ast.Name(to.id) if isinstance(to, ast.Name) and not more else None
        if statement is not None:
            body.append(statement)
        if value is not None:
            slot_at = ast.Constant(min(slot, SLOTS - 1))
            call = ast.Call(
                ast.Name("keep"), [*map(ast.Name, KEPT), slot_at, value, ast.Constant(last)], []
            )
            body.append(ast.Expr(call))
            slot += 1
    kernel.body = body
    return ast.unparse(ast.fix_missing_locations(tree))


# ---- the cases --------------------------------------------------------------------------------


def names(*targets: Any) -> list[str]:
    """Return the names of all cases that `targets` can run, such as `snippet:arange-0`."""
    examples = cases.load_cases().values()
    names = [f"example:{e.name}" for e in examples if not any(e.lacks(t) for t in targets)]
    names += [f"conformance:{name}" for name in KERNELS]
    names += [f"product:{name}" for name in ("fp16", "bf16", "fp32", "i8")]
    return names + [f"snippet:{name}" for name in usable_snippets()]


def usable_snippets() -> list[str]:
    """Snippets that this Triton takes."""
    return [
        name
        for name, (_, since) in snippets.CASES.items()
        if since <= TRITON_VERSION <= snippets.UNTIL.get(name, TRITON_VERSION)
        and not left_out(f"snippet:{name}")
    ]


@dataclass(frozen=True)
class Case:
    launch: Callable[[Mapping[str, Any], Any], Any]
    arguments: Mapping[str, Any]
    ulps: int = 0
    relative: float = 0.0


def example_case(name: str, one: Any) -> Case:
    (example,) = (e for e in cases.load_cases().values() if e.name == name)

    def launch(arguments: Any, target: Any) -> None:
        example.launch(arguments, example.configure(target), target=target)

    arguments = example.arguments(Arrays(one), False)
    relative, _ = TOLERANCE.get(f"example:{name}", (example.tolerance, ""))
    # A value that is inexact before the final rounding may round to a neighbour.
    return Case(launch, arguments, ulps=int(relative > 0), relative=relative)


def conformance_case(name: str, one: Any) -> Case:
    portable = KERNELS[name]

    def launch(arguments: Any, target: Any) -> None:
        portable.kernel[(1,)](*arguments.values(), ROWS * COLS, target.warp_size, target=target)

    arguments = {f"x{i}": values for i, values in enumerate(portable.arrays())}
    arguments["out"] = np.zeros(ROWS * COLS, portable.output)
    return Case(launch, arguments, ulps=16 if name == "softmax_like" else 0)


def product_case(name: str, one: Any) -> Case:
    m, n, k = 64, 64, 32
    rng = np.random.default_rng(0)
    kind = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "i8": np.int8}[name]
    a, b = (rng.integers(-16, 16, s).astype(kind) for s in ((m, k), (k, n)))
    if name != "i8":
        a, b = a / kind(8), b / kind(8)
    arguments = {"a": a, "b": b, "c": np.full((m, n), 3, np.int32 if name == "i8" else np.float32)}
    operand, accumulator = NUMBERS[name]
    constants = {"M": m, "N": n, "K": k, "dtype": operand, "acc_dtype": accumulator}

    def launch(arguments: Any, target: Any) -> None:
        one_tile[(1,)](*arguments.values(), m * k - k - 5, **constants, target=target)

    return Case(launch, arguments)  # small multiples of 1/64: every sum is exact


def snippet_case(name: str, one: Any, keeping: bool = True) -> Case:
    source, _ = snippets.CASES[name]
    head = "from tests.kernels.differential import keep\n"
    module = oracle.load(head + kept(source) if keeping else source, oracle.OURS)
    takes = len(module.ARGS) == 10  # the arguments that snippets share
    arguments = shared_arguments() if takes else dict(_stand_ins(module.ARGS))
    for pattern, limits in INPUTS.items():
        if re.fullmatch(pattern, name):
            for argument, values in limits.items():
                kind = getattr(arguments[argument], "dtype", None)
                arguments[argument] = arguments[argument] % values if kind is not None else values
    if "half" in module.kernel.arg_names:
        arguments.update({name: np.zeros(SLOTS * ROOM, dtype) for name, dtype in KEPT.items()})

    def launch(arguments: Any, target: Any) -> None:
        options = dict(module.KWARGS)
        if target.architecture.backend == "nvidia":
            options["enable_fp_fusion"] = False  # a * b + c is rounded twice
        module.kernel[(1,)](*arguments.values(), target=target, **options)

    body = source[source.index("def kernel") :]
    return Case(
        launch,
        arguments,
        ulps=max((u for p, u in INEXACT.items() if re.search(p, body)), default=0),
    )


def shared_arguments() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    values = rng.integers(1, 64, 1024)
    parts = {
        "fp": np.float32, "hp": np.float16, "bp": ml_dtypes.bfloat16, "ip": np.int32, "up": np.uint32,
        "lp": np.int64, "cp": np.int8, "dp": np.float64,
    }  # fmt: skip
    scaled = {k: values / (8 if np.dtype(d).kind not in "iu" else 1) for k, d in parts.items()}
    return {**{k: scaled[k].astype(d) for k, d in parts.items()}, "n": 100, "f": 2.5}


def _stand_ins(arguments: Any) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(arguments):
        dtype = getattr(value, "dtype", None)
        if dtype is not None:
            name = str(dtype).replace("fp", "float").rpartition(".")[2]
            name = {"bf16": "bfloat16"}.get(name, name)
            kind = getattr(ml_dtypes, name, None) or np.dtype(name)
            yield f"p{i}", (np.arange(1024) % 64).astype(kind)
        else:
            yield f"p{i}", value


CASES = {
    "example": example_case,
    "conformance": conformance_case,
    "product": product_case,
    "snippet": snippet_case,
}


def case_of(name: str, one: Any, **more: Any) -> Case:
    kind, _, rest = name.partition(":")
    return CASES[kind](rest, one, **more)


# ---- running one ------------------------------------------------------------------------------


def outcome_of(name: str, one: Any, other: Any) -> Outcome:
    """Run a case on two targets, the simulator first: cases that it reports never run on a GPU."""
    outcome = _outcome_of(name, one, other)
    if outcome.kind == "unable" and name.startswith("snippet:"):
        outcome = _outcome_of(name, one, other, keeping=False)  # not every value can be kept
        if outcome.kind == "unable" and refused(name.removeprefix("snippet:")):
            return Outcome(name, "refused", outcome.text)
    return outcome


def refused(snippet: str) -> bool:
    """Does tracing a snippet alone raise an error?"""
    if snippet not in snippets.CASES:
        return False
    try:
        oracle.ours(snippets.CASES[snippet][0])
    except GluonError:
        return True
    return False


def _outcome_of(name: str, one: Any, other: Any, **more: Any) -> Outcome:
    seen: list[Any] = []
    try:
        case = case_of(name, one, **more)

        def launch(arguments: Any, target: Any) -> None:
            seen.append(target)
            case.launch(arguments, target)

        with patch.dict(os.environ, GLUON_SIM_TOLERATED="error"):  # what it tolerates differs, too
            difference = run_both(launch, case.arguments, one, other)
    except GluonError as error:
        reported = getattr(error, "report", None) is not None and len(seen) == 1
        where = f"on {seen[-1]}: " if seen else ""
        first = str(error).splitlines()[0]
        kind = "reported" if reported else "unable"
        if len(seen) == 2 and not isinstance(error, CapabilityError):
            kind = "failed"
        return Outcome(name, kind, f"{where}{type(error).__name__}: {first}")
    except Exception as error:
        where = f"on {seen[-1]}: " if seen else ""
        kind = "failed" if len(seen) == 2 else "unable"
        return Outcome(name, kind, f"{where}{type(error).__name__}: {str(error).splitlines()[:1]}")
    bad = [d for d in difference if not d.exact]
    if not bad:
        return Outcome(name, "same")
    text = "; ".join(map(str, bad))
    fine = all(near(d, case) for d in bad)
    return Outcome(name, "near" if fine else "differs", text)


def near(difference: Difference, case: Case) -> bool:
    """Is it within what the case allows? Narrow floats are kept in wider ones, of smaller ulps."""
    narrow = 1 << 16 if difference.name == "half" else 1
    return difference.within(case.relative, case.ulps * narrow)


def main(one: str, other: str, *cases: str) -> None:
    """Print the outcome of each case as a line of JSON."""
    warnings.simplefilter("ignore")
    registry = plugins.registry()
    targets = registry.target(one), registry.target(other)
    for name in cases:
        if name == "dies":  # as a compiler may
            os._exit(7)
        outcome = outcome_of(name, *targets)
        print("\n" + json.dumps(asdict(outcome)), flush=True)
        if outcome.kind == "failed":
            return  # a device may be unable to go on in this process


if __name__ == "__main__":
    main(*sys.argv[1:])
