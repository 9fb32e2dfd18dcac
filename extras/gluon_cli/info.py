"""`gluon info`: list installed packages, their features, and each broken part with its reason."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any, Mapping, Optional

from rich.markup import escape
from rich.text import Text

from gluon_cli.output import Exit, byte_count, console, print_json, table
from gluon_cli.types import current
from gluon_core import __version__
from gluon_core.errors import GluonError, TargetError, did_you_mean
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Architecture
from gluon_core.registry.load import Contribution, Registry, registry

__all__ = ["gather", "show"]


def gather() -> dict[str, Any]:
    """Everything that `gluon info` knows, ready for JSON."""
    plugins = registry()
    return {
        "versions": _versions(),
        "default_target": _default_target(),
        "plugins": [_plugin(plugin, plugins.backends) for plugin in plugins.plugins.values()],
        "broken": [
            {
                "name": failure.name,
                "distribution": failure.distribution,
                "reason": failure.reason,
                "traceback": failure.traceback,
            }
            for failure in plugins.failures.values()
        ],
        "clashes": [clash._asdict() for clash in plugins.clashes],
        "left_out": sorted(plugins.skipped),
        "types": current(),
        "devices": _devices(),
        "architectures": [_architecture(arch) for arch in plugins.architectures()],
        "capabilities": {
            name: [arch.name for arch in archs] for name, archs in _capabilities(plugins).items()
        },
    }


def _capabilities(plugins: Registry) -> dict[str, list[Architecture]]:
    """Return capability -> the architectures that have it, sorted by capability."""
    known = plugins.architectures()
    names = sorted({name for arch in known for name in arch.capabilities})
    return {name: [arch for arch in known if name in arch.capabilities] for name in names}


def _plugin(plugin: Contribution, backends: Mapping[str, Backend]) -> dict[str, Any]:
    """Return what a plugin contributes, without backends whose name another plugin claims, too."""
    own = [backend for backend in plugin.backends if backends.get(backend.name) is backend]
    lowerings = (*(low for b in own for low in b.language.lowerings), *plugin.lowerings)
    return {
        "name": plugin.plugin,
        "distribution": plugin.distribution,
        "backends": [backend.name for backend in own],
        "lowerings": [f"{low.op}/{low.name}" for low in lowerings],
        "offers": [f"{kind} {name}" for kind, names in plugin.offers.items() for name in names],
    }


def _versions() -> dict[str, Optional[str]]:
    versions: dict[str, Optional[str]] = {
        "gluon-core": __version__,
        "python": platform.python_version(),
    }
    for name in ("numpy", "torch", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    try:
        from gluon_core import _triton

        versions["triton"] = _triton.VERSION_TEXT
    except GluonError as error:
        versions["triton"] = f"unusable: {error}"
    return versions


def _default_target() -> str:
    try:
        return str(registry().target(None))
    except GluonError as error:
        return f"none: {error}"


def _devices() -> list[dict[str, Any]]:
    rows = []
    for backend in registry().backends.values():
        if backend.simulates:
            continue
        problem = backend.device.problem()
        targets = [backend.device.target(i) for i in range(backend.device.count())]
        rows.append(
            {
                "backend": backend.name,
                "devices": [str(t) for t in targets if t is not None],
                "problem": problem,
            }
        )
    return rows


def _architecture(arch: Architecture) -> dict[str, Any]:
    return {
        "name": arch.name,
        "backend": arch.backend,
        "aliases": list(arch.aliases),
        "description": arch.description,
        "warp_size": arch.warp_size,
        "shared_memory": arch.limits.shared_memory,
        "max_warps": arch.limits.max_warps,
        "max_registers": arch.limits.max_registers,
        "tensor_memory_columns": arch.limits.tensor_memory_columns,
        "max_ctas_per_cluster": arch.limits.max_ctas_per_cluster,
        "min_triton": ".".join(map(str, arch.min_triton)),
        "capabilities": sorted(arch.capabilities),
    }


def show(subject: Optional[str], json: bool) -> int:
    if subject is not None:
        _show_one(subject, json)
        return Exit.OK
    facts = gather()
    code = Exit.UNAVAILABLE if facts["broken"] else Exit.OK
    if json:
        print_json(facts)
        return code
    out = console()
    versions = ", ".join(f"{k} {v or 'not installed'}" for k, v in facts["versions"].items())
    out.print(escape(versions), highlight=False, soft_wrap=True)
    out.print(f"default target: {escape(facts['default_target'])}", highlight=False, soft_wrap=True)
    plugins = [
        (
            p["name"],
            p["distribution"],
            ", ".join(p["backends"]),
            len(p["lowerings"]) or "",
            ", ".join(p["offers"]),
        )
        for p in facts["plugins"]
    ]
    columns = ("name", "distribution", "backends", ">lowerings", "offers")
    out.print(table("plugins", columns, plugins))
    devices = [
        (d["backend"], "\n".join(d["devices"]) or "none", d["problem"] or "")
        for d in facts["devices"]
    ]
    out.print(table("devices", ("backend", "devices", "problem"), devices))
    architectures: list[Any] = []
    for arch in facts["architectures"]:
        if architectures and architectures[-1][0] != arch["backend"]:
            architectures.append(None)
        architectures.append(
            (
                arch["backend"],
                arch["name"],
                ", ".join(arch["aliases"]),
                arch["warp_size"],
                f"{arch['shared_memory'] // 1024} KiB",
                arch["min_triton"],
                len(arch["capabilities"]),
            )
        )
    shown = ("backend", "name", "aliases", ">lanes", ">shared", ">Triton from", ">capabilities")
    out.print(table("architectures", shown, architectures))
    out.print("lanes: of a warp; shared: memory of a block at most")
    out.print(Text("capabilities", style="bold"), Text(", ".join(facts["capabilities"])))
    out.print("gluon info NAME tells all about an architecture or a capability\n")
    for failure in facts["broken"]:
        title = f"{failure['name']} ({failure['distribution'] or 'unknown'}) did not load"
        out.print(f"[bold red]{escape(title)}[/]")
        out.print(escape(failure["traceback"].rstrip()), highlight=False, soft_wrap=True)
    for clash in facts["clashes"]:
        text = f"{clash['text']}. {clash['remedy']}"
        out.print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)
    if not facts["types"]:
        out.print("editors and checkers do not know these plugins: run `gluon types`")
    for name in facts["left_out"]:
        out.print(f"{escape(name)} is left out by GLUON_PLUGINS")
    return code


def _with_unit(key: str, value: Any) -> Any:
    if key == "shared_memory":
        return f"{byte_count(value)} ({value} B) per block"
    units = {
        "warp_size": "lanes",
        "max_warps": "per block",
        "max_registers": "per thread",
        "max_ctas_per_cluster": "blocks",
    }
    return f"{value} {units[key]}" if key in units else value


def _show_one(subject: str, json: bool) -> None:
    """Return all about one capability or one target."""
    having = _capabilities(registry()).get(subject)
    if having is not None:
        if json:
            print_json({subject: [arch.name for arch in having]})
        else:
            rows = [(a.backend, a.name, a.description) for a in having]
            console().print(table(subject, ("backend", "architecture", ""), rows))
        return
    try:
        target = registry().target(subject)
    except TargetError as error:
        close = did_you_mean(subject, _capabilities(registry()))
        error.remedy = " ".join(filter(None, (error.remedy, close)))
        raise
    arch = _architecture(target.architecture)
    arch["target"] = str(target)
    if json:
        print_json(arch)
        return
    facts: list[tuple[Any, ...]] = [
        (
            key.replace("_", " "),
            "\n".join(value) if isinstance(value, list) else _with_unit(key, value),
        )
        for key, value in arch.items()
    ]
    console().print(table(str(target), ("", ""), facts))
