"""One compiled form of a kernel as the manifest of a bundle describes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_bundle.errors import BundleTargetError, BundleUnsupportedError
from gluon_core import _triton
from gluon_core.compiler.cache import key_of
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.parameters import Parameter, parameters_of
from gluon_core.compiler.source import GluonASTSource
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.values.constants import identity, text_of
from gluon_core.values.descriptors import split_descriptor
from gluon_runtime import manifest as manifests
from gluon_runtime import native, rules
from gluon_runtime.driver import WITH_MAPS

__all__ = [
    "RULES",
    "form_key",
    "form_of",
    "given_options",
    "has_code",
    "identity_of",
    "kernel_of",
    "pattern_of",
    "patterns_of",
    "spoken",
]

RULES: Mapping[str, Any] = json.loads(json.dumps(dataclasses.asdict(rules.RULES)))

_CODES = {**native.LETTERS, "bf16": "bf16"}  # as fields of a bundle have them


# -- constants -------------------------------------------------------------------------------------


def constant_of(value: Any) -> dict[str, Any]:
    """Return a constant as the manifest holds it: JSON, or its text where it is none."""
    value = _triton.unwrap(value)
    if _is_plain(value):
        return _written("Constant", value)
    text = repr(value) if not isinstance(value, _triton.dtype) else str(value)
    identity_of_it = hashlib.sha256(text_of(value).encode()).hexdigest()  # texts may be the same
    return _written("Opaque", text, identity_of_it)


def _written(kind: str, /, *values: Any, **fields: Any) -> dict[str, Any]:
    """Return the JSON of one of the manifest's dataclasses."""
    document: dict[str, Any] = manifests.written(getattr(manifests, kind)(*values, **fields))
    return document


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return all(map(_is_plain, value))
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


# -- arguments -------------------------------------------------------------------------------------


def patterns_of(source: GluonASTSource) -> list[dict[str, Any]]:
    """Return the assumptions of a source's code about each parameter.

    Raises:
        BundleUnsupportedError: a parameter is of a type that bundles cannot hold.
    """
    names = source.fn.arg_names
    return [pattern_of(source, source.signature[name], (i,), name) for i, name in enumerate(names)]


def pattern_of(
    source: GluonASTSource, kind: Any, path: tuple[int, ...], name: str
) -> dict[str, Any]:
    """Return the pattern of the parameter, or the item of a tuple, at `path`."""
    if isinstance(kind, (tuple, list)):
        return {"tuple": [pattern_of(source, k, (*path, i), name) for i, k in enumerate(kind)]}
    if kind == "constexpr":
        return constant_of(source.constants.get(path))
    descriptor = split_descriptor(kind)
    if descriptor is not None:
        if descriptor.head != "tensordesc":
            raise BundleUnsupportedError(
                "bundles cannot hold descriptors of this kind",
                argument=f"{source.name}({name})",
                expected="descriptors of tiles, tensordesc<...>",
                got=kind,
                remedy="Compile this kernel where it runs.",
            )
        block = descriptor.block_shape
        return _written("Described", kind, descriptor.element, descriptor.rank, block)
    if not kind.startswith("*") and kind not in _CODES:
        raise BundleUnsupportedError(
            "bundles cannot hold arguments of this type",
            argument=f"{source.name}({name})",
            expected=f"a pointer or one of {', '.join(_CODES)}",
            got=kind,
        )
    marks = {str(pair[0]): pair[1] for pair in source.attrs.get(path, ())}
    divisible = marks.get("tt.divisibility", 1) % RULES["divisibility"] == 0
    return _written("Value", kind, divisible, small="tt.pointer_range" in marks)


def spoken(patterns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return patterns in words."""
    return [manifests.spoken(manifests.pattern_of(p), rules.RULES) for p in patterns]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    document = _written(
        "Parameter",
        name=parameter.name,
        constexpr=parameter.is_constexpr,
        specialize=parameter.specialize,
        align=parameter.align,
        type=parameter.annotation_type,
        kind=parameter.passed,
        default=None,
    )
    if parameter.has_default:
        document["default"] = constant_of(parameter.default)
    return document


def identity_of(fn: Any) -> str:
    """Return the hash of a kernel's source and of all that it refers to; "" if only this process knows it."""
    digest = identity(fn, home=fn.fn.__module__)
    return hashlib.sha256(digest.text.encode()).hexdigest() if digest.lasting else ""


def kernel_of(fn: Any) -> dict[str, Any]:
    """Return a kernel as the manifest describes it, without forms."""
    return {
        "function": fn.fn.__qualname__,
        "module": "" if fn.fn.__module__ == "__main__" else fn.fn.__module__,
        "identity": identity_of(fn),
        "parameters": [_parameter(parameter) for parameter in parameters_of(fn)],
        "forms": [],
    }


# -- packing ---------------------------------------------------------------------------------------


def maps_of(compiled: CompiledKernel) -> list[Any]:
    """Return the encoding of the map of each descriptor.

    Raises:
        BundleUnsupportedError: its driver takes no maps.
    """
    count = sum(split_descriptor(kind) is not None for kind in _flat(compiled.src.types))
    if not count:
        return []
    entries = list(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    driver = _triton.gpu_target(compiled.target).backend
    if driver not in WITH_MAPS or len(entries) != count:
        raise BundleUnsupportedError(
            "bundles cannot hold kernels for this target that take tensor descriptors",
            argument=compiled.name,
            got=str(compiled.target),
            remedy="Pass a pointer, and make the descriptor in the kernel, or compile this kernel "
            "where it runs.",
        )
    named = [{ours: entry[theirs] for ours, theirs in MAP_FIELDS.items()} for entry in entries]
    return [manifests.TensorMap(**fields) for fields in named]


# The manifest's names of the compiler's facts about a descriptor.
MAP_FIELDS: Mapping[str, str] = {
    "swizzle": "swizzle",
    "element_type": "elem_type",
    "element_bytes": "elem_size",
    "fp4_padded": "fp4_padded",
    "box": "block_size",
}


def _flat(kinds: Any) -> Iterator[Any]:
    for kind in kinds:
        if isinstance(kind, (tuple, list)):
            yield from _flat(kind)
        else:
            yield kind


def packing_of(patterns: Sequence[Mapping[str, Any]], maps: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the place of each argument in the parameter buffer; `maps` has the encodings of descriptors."""
    fields: list[Any] = []
    end, left = 0, list(maps)
    for path, pattern in manifests.leaves_of(list(map(manifests.pattern_of, patterns))):
        encoded = None
        if isinstance(pattern, manifests.Described):
            code, encoded = "map", left.pop(0)
        elif isinstance(pattern, manifests.Value):
            code = "Q" if pattern.type.startswith("*") else _CODES[pattern.type]
        else:
            continue
        offset = end + -end % manifests.ALIGNMENTS[code]
        fields.append(manifests.Field(path, code, offset, encoded))
        end = fields[-1].end
    first = end + -end % 8
    return _written("Packing", fields, (first, first + 8), first + 16)


# -- options ---------------------------------------------------------------------------------------

_OF_THIS_MACHINE = ("extern_libs",)  # paths of the compiler's own files


def _options(options: Any) -> dict[str, Any]:
    """Return the parsed options as JSON values."""
    changed = {}
    for name, value in sorted(vars(options).items()):
        if name not in _OF_THIS_MACHINE:
            value = sorted(value) if isinstance(value, (set, frozenset)) else value
            changed[name] = value if _is_plain(value) else repr(value)
    return changed


def given_options(options: Any, backend: Backend, target: Target) -> dict[str, Any]:
    """Return the parsed options that differ from the target's defaults."""
    usual = _options(backend.compiler.options(target, {}))
    return {k: v for k, v in _options(options).items() if k not in usual or usual[k] != v}


# -- forms -----------------------------------------------------------------------------------------


def form_key(source: GluonASTSource, target: Target, options: Mapping[str, Any]) -> str:
    """Return the key of a form: target, types, constants, marks and options."""
    constants = [(path, text_of(_triton.unwrap(v))) for path, v in sorted(source.constants.items())]
    marks = [
        (path, sorted(map(tuple, pairs))) for path, pairs in sorted(source.attrs.items()) if pairs
    ]
    return key_of(
        (target, list(source.signature.items()), constants, marks, sorted(options.items()))
    )


def _scratch(metadata: Any, kind: str) -> tuple[int, int]:
    size = getattr(metadata, f"{kind}_scratch_size", 0) or 0
    return (size, getattr(metadata, f"{kind}_scratch_align", 1) or 1)


def has_code(target: Target) -> bool:
    """Return whether kernels for `target` become code that a driver loads."""
    return not target.simulated or registry().backend(target.backend).simulation.machine_code


def check_target(target: Target) -> None:
    """See that kernels for `target` have machine code. Those for an emulator have the code that it executes.

    Raises:
        BundleTargetError: it simulates, or nothing launches its code.
    """
    if target.architecture.triton_backend is None or not has_code(target):
        raise BundleTargetError(
            "kernels for this target have no machine code",
            argument="target",
            got=str(target),
            remedy=f"Name the hardware: {target.architecture.backend}:{target.architecture.name}.",
        )


def check_one_code(kernel: str, target: Target, others: Sequence[str]) -> None:
    """See that a bundle has machine code or an emulator's code of a kernel for one architecture, not both.

    Raises:
        BundleTargetError: it has the other.
    """
    for other in others:
        if other != str(target) and registry().target(other).architecture == target.architecture:
            raise BundleTargetError(
                f"the bundle has {kernel} for this architecture, as {other}",
                argument="target",
                got=str(target),
                remedy="Build two bundles: one for the hardware, one for the emulator.",
            )


def form_of(
    compiled: CompiledKernel, options: Any, grid: Optional[Sequence[int]]
) -> tuple[dict[str, Any], bytes, str]:
    """Return a form without its code, the code, and the name of the stage that made it.

    Args:
        options: the parsed options that it was compiled with.
        grid: the programs along three axes, where they are always the same.
    """
    metadata, target = compiled.metadata, compiled.target
    explicit = given_options(options, compiled.backend, target)
    patterns = patterns_of(compiled.src)
    hardware = _triton.gpu_target(target)
    launch = _written(
        "Launch",
        entry=metadata.name,
        num_warps=metadata.num_warps,
        warp_size=target.warp_size,
        num_ctas=metadata.num_ctas,
        shared=metadata.shared,
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        dependent=bool(getattr(metadata, "launch_pdl", False)),
        global_scratch=_scratch(metadata, "global"),
        profile_scratch=_scratch(metadata, "profile"),
    )
    form = {
        "target": str(target),
        "driver": hardware.backend,
        "architecture": target.architecture.name,
        "arguments": patterns,
        "options": json.loads(json.dumps(_options(options))),
        "given": sorted(explicit),
        "grid": None if grid is None else list(grid),
        "launch": launch,
        "packing": packing_of(patterns, maps_of(compiled)),
        "key": form_key(compiled.src, target, explicit),
        "metadata": {"tmem_size": getattr(metadata, "tmem_size", 0) or 0},
        "source": None,
    }
    stage = list(compiled.asm)[-1]
    code = compiled.asm[stage]
    if isinstance(code, str):  # drivers read texts up to a zero
        code = code.encode() + b"\0"
    return form, code, stage
