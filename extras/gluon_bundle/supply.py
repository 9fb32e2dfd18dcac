"""`GLUON_BUNDLE`: launches take their code from bundles before anything is compiled."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from gluon_bundle import form as forms
from gluon_bundle.bundle import Bundle, check_same_code, check_same_kernel
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.source import GluonASTSource
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target

__all__ = ["Nearest", "nearest", "take"]

VARIABLE = "GLUON_BUNDLE"


@dataclass(frozen=True)
class Nearest:
    """The reason why no bundle has a form, compared with the nearest one.

    Args:
        differences: (argument, value of the bundle, needed value).
        changed: the kernel's source is another than when the bundle was built.
    """

    differences: tuple[tuple[str, str, str], ...]
    changed: bool


class _Supply:
    """The bundles that the variable named, by function."""

    def __init__(self, paths: str):
        self.bundles = [Bundle.open(path) for path in paths.split(os.pathsep) if path]
        seen: dict[str, Mapping[str, Any]] = {}
        self.kernels: dict[str, list[tuple[Bundle, str, Mapping[str, Any]]]] = {}
        for bundle in self.bundles:
            for name, kernel in bundle.kernels.items():
                there = seen.setdefault(name, kernel)
                check_same_kernel(name, there, kernel)
                check_same_code(name, there, kernel)
                self.kernels.setdefault(kernel["function"], []).append((bundle, name, kernel))


_known: dict[str, _Supply] = {}
_lock = threading.Lock()
_warned: set[str] = set()


def _supply() -> _Supply:
    """Return the bundles that the variable names, read once.

    Raises:
        BundleError: one of them is no bundle, or two have other kernels of one name.
    """
    paths = os.environ[VARIABLE]
    with _lock:
        supply = _known.get(paths)
        if supply is None:
            supply = _known[paths] = _Supply(paths)
    return supply


def take(
    source: GluonASTSource, target: Target, backend: Backend, options: Any
) -> Optional[CompiledKernel]:
    """Return the compiled kernel out of a bundle, None where none has it. Kernels that are simulated
    are not looked for: bundles hold machine code.

    Raises:
        BundleError: a bundle is damaged.
    """
    if not forms.has_code(target):
        return None
    listed = _supply().kernels.get(source.fn.fn.__qualname__)
    if not listed:
        return None
    explicit = forms.given_options(options, backend, target)
    key = forms.form_key(source, target, explicit)
    identity = forms.identity_of(source.fn)
    needed = forms.patterns_of(source)
    fitting: list[tuple[int, Bundle, str, Mapping[str, Any]]] = []
    changed = False
    for bundle, name, kernel in listed:
        for form in kernel["forms"]:
            marks = _marks(form, key, target, explicit, needed)
            if marks is None:
                continue
            if kernel["identity"] and kernel["identity"] == identity:
                fitting.append((marks, bundle, name, form))
            else:
                changed = True
    if fitting:
        _, bundle, name, form = max(fitting, key=lambda item: item[0])
        code = bundle.code(name, form["key"])
        return _compiled(source, target, backend, options, form, code)
    if changed:
        _warn(source.fn.fn.__qualname__)
    return None


def _marks(
    form: Mapping[str, Any],
    key: str,
    target: Target,
    explicit: Mapping[str, Any],
    needed: list[dict[str, Any]],
) -> Optional[int]:
    """Return how many facts about the arguments a form uses; None where it is for others. One that is
    compiled for less than is known is right as well."""
    if form["key"] == key:
        return 2 * len(_leaves(needed)) + 1
    theirs = {name: form["options"][name] for name in form["given"]}
    if form["target"] != str(target) or theirs != explicit:
        return None
    ours, known = _leaves(form["arguments"]), _leaves(needed)
    if len(ours) != len(known) or not all(map(_implied, ours, known)):
        return None
    return sum(bool(leaf.get(mark)) for leaf in ours for mark in ("divisible", "small"))


def _leaves(patterns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    leaves: list[dict[str, Any]] = []
    for pattern in patterns:
        leaves += _leaves(pattern["tuple"]) if "tuple" in pattern else [pattern]
    return leaves


def _implied(ours: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return True if the facts about an argument imply the assumptions of the form."""
    if "type" not in ours or "type" not in known:
        return repr(sorted(ours.items())) == repr(sorted(known.items()))
    if ours["type"] != known["type"]:
        return False
    return all(known[mark] or not ours[mark] for mark in ("divisible", "small"))


def _warn(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{VARIABLE} has {name} from another state of its source, or of a function that it calls; it is not "
            "taken from there. Build the bundle anew.",
            RuntimeWarning,
            stacklevel=2,
        )


def _compiled(
    source: GluonASTSource,
    target: Target,
    backend: Backend,
    options: Any,
    form: Mapping[str, Any],
    code: bytes,
) -> CompiledKernel:
    launch = form["launch"]
    metadata = {
        **vars(options),
        **form["metadata"],
        "name": launch["entry"],
        "shared": launch["shared"],
        "num_warps": launch["num_warps"],
        "num_ctas": launch["num_ctas"],
        "warp_size": launch["warp_size"],
        "launch_cooperative_grid": launch["cooperative"],
        "launch_pdl": launch["dependent"],
        "tensordesc_meta": [
            {theirs: field["map"][ours] for ours, theirs in forms.MAP_FIELDS.items()}
            for field in form["packing"]["fields"]
            if field["code"] == "map"
        ],
        "target": str(target),
    }
    for kind in ("global", "profile"):
        size, align = launch[f"{kind}_scratch"]
        metadata[f"{kind}_scratch_size"], metadata[f"{kind}_scratch_align"] = size, align
    stage = form["code"].rpartition(".")[2]
    asm: dict[str, Any] = {stage: code.rstrip(b"\0").decode() if stage == "ptx" else code}
    return CompiledKernel(source, target, backend, asm, metadata, form["key"])


def nearest(
    source: GluonASTSource, target: Target, backend: Backend, options: Any
) -> Optional[Nearest]:
    """Return the reason why no form of the bundles fits a launch; None where they lack the kernel."""
    listed = _supply().kernels.get(source.fn.fn.__qualname__)
    if not listed or not forms.has_code(target):
        return None
    names = source.fn.arg_names
    identity = forms.identity_of(source.fn)
    needed = forms.spoken(forms.patterns_of(source))
    explicit = forms.given_options(options, backend, target)
    candidates: list[Nearest] = []
    for _, _, kernel in listed:
        for form in kernel["forms"]:
            has = forms.spoken(form["arguments"])
            differences = [
                (name, old, new) for name, old, new in zip(names, has, needed) if old != new
            ]
            theirs = {name: form["options"][name] for name in form["given"]}
            for option in sorted(set(theirs) | set(explicit)):
                old, new = theirs.get(option, "the default"), explicit.get(option, "the default")
                if old != new:
                    differences.append((option, str(old), str(new)))
            if form["target"] != str(target):
                differences.append(("target", form["target"], str(target)))
            candidates.append(Nearest(tuple(differences), kernel["identity"] != identity))
    return min(candidates, key=lambda near: len(near.differences), default=None)
