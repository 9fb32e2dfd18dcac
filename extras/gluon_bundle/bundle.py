"""`Bundle`: collect kernels, compile them, write and read the file, compare and join such files."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from gluon_bundle import archive, index, source_map
from gluon_bundle import form as forms
from gluon_bundle.errors import (
    BundleFormatError,
    BundleHashError,
    BundleKernelError,
    BundleNameError,
)
from gluon_bundle.reader import translated
from gluon_core import _triton
from gluon_core.compiler.driver import compile, shared_options
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.many import compile_many
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import ArgumentError, LaunchError, did_you_mean
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_runtime import container
from gluon_runtime import manifest as manifests
from gluon_runtime.grid import check_grid

__all__ = ["Bundle", "Evidence"]

FilePath = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Evidence:
    """The parts that `Bundle.verify` checked.

    Args:
        kernels, forms: how many of them the manifest names.
        members: parts whose hash is that of the manifest.
        digest: of the whole file; None for a bundle that was not read from one.
    """

    kernels: int
    forms: int
    members: int
    digest: Optional[str]


@dataclass
class _Request:
    """A form that is still to be compiled."""

    name: str
    source: GluonASTSource
    target: Target
    backend: Backend
    explicit: Mapping[str, Any]
    options: Any  # the same, parsed
    grid: Optional[tuple[int, int, int]]
    mapped: bool


def compile_all(requests: Sequence[_Request]) -> Iterable[CompiledKernel]:
    """Compile requested forms concurrently and return them in order. The one place of bundles that
    calls the compiler."""
    return compile_many([partial(compile, r.source, r.target, r.explicit) for r in requests])


class Bundle:
    """Kernels with their compiled forms.

    Attributes:
        kernels: name -> kernel, as the manifest describes it (docs/bundles.md).
        digest: of the file it was read from, None for a new one.
    """

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.cache: dict[str, dict[str, str]] = {}
        self.digest: Optional[str] = None
        self._members: dict[str, bytes] = {}
        self._tools: dict[str, str] = {}
        self._waiting: list[_Request] = []
        self._read: Optional[Mapping[str, bytes]] = None  # the parts of the file
        self._stated: Mapping[str, str] = {}  # their hashes, as its manifest has them

    # -- building ----------------------------------------------------------------------------------

    def add(
        self,
        kernel: Any,
        signature: Optional[Mapping[str, Any]] = None,
        constexprs: Optional[Mapping[Any, Any]] = None,
        attrs: Optional[Mapping[Any, Any]] = None,
        *,
        target: Any = None,
        name: Optional[str] = None,
        grid: Union[int, Sequence[int], None] = None,
        source_map: bool = False,
        **options: Any,
    ) -> None:
        """Add a form of a kernel; it is compiled by `compile`, `write` or whatever looks into the bundle.

        Args:
            kernel: a kernel, or a `GluonASTSource`.
            signature, constexprs, attrs: as `gluon_core.compile` takes them.
            target: one target or a list of them, in any spelling; None for the device that is there.
            name: the name of the kernel in the bundle; None for the name of its function.
            grid: how many programs, where that is the same for every launch.
            source_map: keep which line of the source each part of the code came from.
            options: compile options such as `num_warps`.

        Raises:
            BundleTargetError: a target without machine code.
            BundleNameError: another kernel has that name.
            BundleUnsupportedError: the kernel takes arguments that bundles cannot hold.
            ArgumentError: `kernel` is no kernel, or its parameters are not all described.
        """
        if isinstance(kernel, GluonASTSource):
            if signature is not None or constexprs is not None or attrs is not None:
                raise ArgumentError("a source brings its own signature", argument="signature")
            source = kernel
        else:
            source = GluonASTSource(kernel, signature or {}, constexprs, attrs)
        sizes = None if grid is None else check_grid(grid, LaunchError)
        names = source.fn.arg_names
        constants = {names[p[0]]: v for p, v in source.constants.items() if len(p) == 1}
        for wanted in target if isinstance(target, (list, tuple)) else [target]:
            chosen = registry().target(wanted)
            forms.check_target(chosen)
            backend = registry().backend(chosen.backend)
            explicit = {"debug": bool(source.fn.debug), **options}
            explicit = {**shared_options(constants, backend, chosen), **explicit}
            self._add(name, source, chosen, backend, explicit, sizes, source_map)

    def _add(
        self,
        name: Optional[str],
        source: GluonASTSource,
        target: Target,
        backend: Backend,
        explicit: Mapping[str, Any],
        grid: Optional[tuple[int, int, int]],
        mapped: bool,
    ) -> None:
        options = backend.compiler.options(target, explicit)
        forms.patterns_of(source)  # refuses before anything is compiled
        called = name or source.fn.__name__
        kernel = forms.kernel_of(source.fn)
        there = self.kernels.setdefault(called, kernel)
        check_same_kernel(called, there, kernel)
        others = [form["target"] for form in there["forms"]]
        others += [str(r.target) for r in self._waiting if r.name == called]
        forms.check_one_code(called, target, others)
        key = forms.form_key(source, target, forms.given_options(options, backend, target))
        known = {form["key"] for form in there["forms"]}
        known |= {_key(r) for r in self._waiting if r.name == called}
        if key not in known:
            self._waiting.append(
                _Request(called, source, target, backend, explicit, options, grid, mapped)
            )

    def add_recorded(
        self, recording: Iterable[Any], *, target: Any = None, source_map: bool = False
    ) -> None:
        """Add the launches that `record` collected.

        Args:
            target: compile for these instead of where it was recorded; one target or a list.

        Raises:
            BundleError: as in `add`.
        """
        for launch in recording:
            wanted = launch.hardware if target is None else target
            for one in wanted if isinstance(wanted, (list, tuple)) else [wanted]:
                chosen = registry().target(one)
                forms.check_target(chosen)
                backend = registry().backend(chosen.backend)
                explicit = {"debug": bool(launch.source.fn.debug), **launch.options}
                self._add(None, launch.source, chosen, backend, explicit, launch.grid, source_map)

    def compile(self) -> None:
        """Compile the forms that are not compiled yet.

        Raises:
            GluonError: a kernel is wrong, or a compiler failed.
        """
        waiting, self._waiting = self._waiting, []
        try:
            for request, compiled in zip(waiting, compile_all(waiting)):
                self._keep(request, compiled)
        except BaseException:
            self._waiting = waiting
            raise

    def _keep(self, request: _Request, compiled: CompiledKernel) -> None:
        document, code, stage = forms.form_of(compiled, request.options, request.grid)
        digest = manifests.digest_of(code)
        document["code"] = f"code/{digest}.{stage}"
        self._members[document["code"]] = code
        if request.mapped:
            text = source_map.of(compiled)
            document["source"] = f"source/{manifests.digest_of(text)}.json"
            self._members[document["source"]] = text
        self._read, self.digest = None, None
        mine = self.kernels[request.name]["forms"]
        if document["key"] not in {form["key"] for form in mine}:
            mine.append(document)

    # -- the file ----------------------------------------------------------------------------------

    def members(self) -> dict[str, bytes]:
        """Return the parts of the file by name: manifest, index, code objects, source maps, cache."""
        self.compile()
        used = self._used()
        parts = {name: self._members[name] for name in used}
        document: dict[str, Any] = {
            "format": container.FORMAT,
            "tools": self._tools or _tools(),
            "rules": forms.RULES,
            "kernels": {
                name: {**kernel, "forms": sorted(kernel["forms"], key=_order)}
                for name, kernel in self.kernels.items()
            },
            "members": {name: manifests.digest_of(data) for name, data in parts.items()},
            "cache": self.cache,
        }
        with translated():
            packed = index.build(manifests.parse(archive.canonical(document), "manifest"), parts)
        document["members"][container.INDEX] = manifests.digest_of(packed)
        return {
            container.MANIFEST: archive.canonical(document),
            container.INDEX: packed,
            **parts,
        }

    def _used(self) -> list[str]:
        used = {f["code"] for k in self.kernels.values() for f in k["forms"]}
        used |= {f["source"] for k in self.kernels.values() for f in k["forms"] if f["source"]}
        used |= {member for files in self.cache.values() for member in files.values()}
        used |= {container.CERTIFICATE} & self._members.keys()
        return sorted(used)

    def to_bytes(self) -> bytes:
        """Return the file; the same for the same kernels, targets and tools."""
        return archive.pack(self.members())

    def certify(self, certificate: Mapping[str, Any]) -> None:
        """Keep a certificate of the program that launches these kernels; readers find it in the file.

        Args:
            certificate: as JSON, of `gluon_core.certify`.
        """
        name = container.CERTIFICATE
        self._members[name] = json.dumps(certificate, indent=1, sort_keys=True).encode()

    @property
    def certificate(self) -> Optional[Mapping[str, Any]]:
        """Return the certificate in the bundle; None without one."""
        data = self._members.get(container.CERTIFICATE)
        content: Optional[Mapping[str, Any]] = None if data is None else json.loads(data)
        return content

    def write(self, path: FilePath) -> str:
        """Compile the remaining forms and write the file; return its sha256.

        Raises:
            BundleFormatError: the file cannot be written.
        """
        data = self.to_bytes()
        temporary = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            raise BundleFormatError(
                f"the bundle cannot be written: {error.strerror or error}", argument=str(path)
            ) from error
        self.digest = data[-64:].decode()
        return self.digest

    @classmethod
    def open(cls, path: FilePath, digest: Optional[str] = None) -> Bundle:
        """Read a bundle. Nothing in it is evaluated.

        Args:
            digest: the sha256 that it must have.

        Raises:
            BundleError: one class for each way in which a file may be no such bundle.
        """
        with translated():
            read = container.read(path, digest)
            manifests.parse(read.members[container.MANIFEST], str(path))
        document = json.loads(read.members[container.MANIFEST])
        bundle = cls()
        bundle.kernels, bundle.cache = document["kernels"], document["cache"]
        bundle._tools, bundle.digest = document["tools"], read.digest
        bundle._read = read.members
        bundle._members = dict(read.members)
        bundle._stated = document["members"]
        missing = [name for name in bundle._used() if name not in read.members]
        if missing:
            raise BundleHashError("a part is missing", argument=f"{path}:{missing[0]}")
        return bundle

    # -- looking -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def inspect(self) -> dict[str, Any]:
        """Return all that the manifest says, with the sizes of the parts; JSON values."""
        self.compile()
        sizes = {name: len(self._members[name]) for name in self._used()}
        return {
            "digest": self.digest,
            "tools": self._tools or _tools(),
            "kernels": self.kernels,
            "members": sizes,
            "cache": self.cache,
            **({"certificate": self.certificate} if self.certificate else {}),
        }

    def code(self, kernel: str, key: str) -> bytes:
        """Return the code object of the form `key` of a kernel, once its hash is right.

        Raises:
            BundleKernelError: there is no such kernel or form.
            BundleHashError: it was exchanged.
        """
        entry = self.kernels.get(kernel)
        if entry is None:
            raise BundleKernelError(
                f"the bundle has no kernel {kernel!r}", remedy=did_you_mean(kernel, self.kernels)
            )
        form = next((form for form in entry["forms"] if form["key"] == key), None)
        if form is None:
            raise BundleKernelError(f"{kernel} has no such form", argument="key", got=key)
        return self._checked(form["code"])

    def _checked(self, member: str) -> bytes:
        data, stated = self._members[member], self._stated.get(member)
        really = manifests.digest_of(data)
        if stated is not None and really != stated:
            raise BundleHashError(
                "a part of the bundle was exchanged",
                argument=member,
                expected=f"sha256 {stated}",
                got=really,
            )
        return data

    def verify(self) -> Evidence:
        """Check that every part matches the manifest, the index follows from the manifest, and the
        manifest written in the one way there is.

        Raises:
            BundleHashError: a part is another.
            BundleFormatError: the manifest is not in its canonical form, or there are other parts.
        """
        parts = self.members() if self._read is None or self._waiting else self._read
        text = parts[container.MANIFEST]
        with translated():
            manifest = manifests.parse(text, container.MANIFEST)
        if archive.canonical(json.loads(text)) != text:
            raise BundleFormatError("the manifest is not in its canonical form")
        for name, stated in manifest.members.items():
            really = manifests.digest_of(parts.get(name, b""))
            if really != stated:
                raise BundleHashError(
                    "a part of the bundle was exchanged",
                    argument=name,
                    expected=f"sha256 {stated}",
                    got=really if name in parts else "nothing",
                )
        others = set(parts) - set(manifest.members) - {container.MANIFEST}
        if others:
            raise BundleFormatError("parts that the manifest does not name", got=sorted(others))
        behind = {name: parts[name] for name in manifest.members if name != container.INDEX}
        if index.build(manifest, behind) != parts[container.INDEX]:
            raise BundleHashError("the index does not match the manifest", argument=container.INDEX)
        count = sum(len(kernel.forms) for kernel in manifest.kernels.values())
        return Evidence(len(manifest.kernels), count, len(manifest.members), self.digest)

    def diff(self, other: Bundle) -> list[str]:
        """Return the differences, a line each; empty for bundles that launch the same code the same way."""
        self.compile()
        other.compile()
        lines = [f"- {name}" for name in sorted(set(self.kernels) - set(other.kernels))]
        lines += [f"+ {name}" for name in sorted(set(other.kernels) - set(self.kernels))]
        for name in sorted(set(self.kernels) & set(other.kernels)):
            lines += _kernel_diff(name, self.kernels[name], other.kernels[name])
        lines += [f"- cache {key}" for key in sorted(set(self.cache) - set(other.cache))]
        lines += [f"+ cache {key}" for key in sorted(set(other.cache) - set(self.cache))]
        return lines

    def merge(self, other: Bundle) -> None:
        """Take the kernels and forms of another bundle as well.

        Raises:
            BundleNameError: a kernel of the same name is another, or has other code for the same form.
        """
        self.compile()
        other.compile()
        for name, theirs in other.kernels.items():
            mine = self.kernels.get(name)
            if mine is not None:
                check_same_kernel(name, mine, theirs)
                check_same_code(name, mine, theirs)
        for name, theirs in other.kernels.items():
            mine = self.kernels.setdefault(name, {**theirs, "forms": []})
            known = {form["key"] for form in mine["forms"]}
            mine["forms"] += [form for form in theirs["forms"] if form["key"] not in known]
        self.cache.update(other.cache)
        tools = {**(self._tools or _tools())}
        for tool, version in (other._tools or _tools()).items():
            versions = sorted({*tools.get(tool, version).split(", "), version})
            tools[tool] = ", ".join(versions)
        self._tools = tools
        for member in other._used():
            self._members[member] = other._checked(member)
        self._read, self.digest, self._stated = None, None, {}

    def add_file(self, name: str, data: bytes) -> None:
        """Keep a part that `cache` refers to."""
        self._members[name] = data

    def file(self, name: str) -> bytes:
        """Return a part, once its hash is right."""
        return self._checked(name)


def _key(request: _Request) -> str:
    explicit = forms.given_options(request.options, request.backend, request.target)
    return forms.form_key(request.source, request.target, explicit)


def _tools() -> dict[str, str]:
    ours = sys.modules["gluon_core"].__version__  # no room may import the package's own file
    return {"gluon-core": ours, "triton": _triton.VERSION_TEXT}


def _order(form: Mapping[str, Any]) -> tuple[str, str]:
    return form["target"], form["key"]


_INTERFACE = ("function", "identity", "parameters")


def check_same_kernel(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """See that two kernels of one name are the same.

    Raises:
        BundleNameError: they are not.
    """
    differing = [key for key in _INTERFACE if mine[key] != theirs[key]]
    if differing:
        raise BundleNameError(
            f"two kernels that differ are called {name!r}",
            argument="name",
            expected=_origin(mine),
            got=f"{_origin(theirs)}; they differ in {' and '.join(differing)}",
            remedy="Give one of them another name.",
        )


def _origin(kernel: Mapping[str, Any]) -> str:
    where = f"{kernel['module']}." if kernel["module"] else ""
    return f"{where}{kernel['function']} (source {kernel['identity'][:12] or 'of one process'})"


def check_same_code(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """See that two bundles have the same code where both have the same form of a kernel.

    Raises:
        BundleNameError: they do not.
    """
    known = {form["key"]: form for form in mine["forms"]}
    for form in theirs["forms"]:
        there = known.get(form["key"])
        if there is not None and there["code"] != form["code"]:
            raise BundleNameError(
                f"two bundles have other code for the same form of {name!r}",
                argument=f"{name} for {form['target']}",
                expected=there["code"],
                got=form["code"],
                remedy="Build both with the same tools, or leave one out.",
            )


def _kernel_diff(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    lines = [f"! {name}: {key} differs" for key in _INTERFACE if mine[key] != theirs[key]]
    ours = {form["key"]: form for form in mine["forms"]}
    others = {form["key"]: form for form in theirs["forms"]}
    lines += [f"- {name} for {spoken(ours[key])}" for key in ours if key not in others]
    lines += [f"+ {name} for {spoken(others[key])}" for key in others if key not in ours]
    for key in ours:
        if key in others and ours[key] != others[key]:
            names = [field for field in ours[key] if ours[key][field] != others[key][field]]
            lines.append(f"! {name} for {spoken(ours[key])}: {', '.join(names)} differs")
    return lines


def spoken(form: Mapping[str, Any]) -> str:
    """Describe a form in words: target, what it assumes of each parameter, options."""
    words = ", ".join(forms.spoken(form["arguments"]))
    options = "".join(f", {name}={form['options'][name]!r}" for name in form["given"])
    return f"{form['target']} ({words}){options}"
