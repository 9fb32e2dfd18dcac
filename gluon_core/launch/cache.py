"""The compiled forms of one kernel that this process holds, and how a new one gets there."""

from __future__ import annotations

import os
import threading
from typing import Any, Mapping, NamedTuple, NoReturn, Optional, Sequence

from gluon_core import _triton
from gluon_core.compiler.driver import compile_source
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.source import GluonASTSource
from gluon_core.errors import GlobalVariableError, RecompileError
from gluon_core.launch.ahead import compile_configurations
from gluon_core.launch.arguments import ATTRIBUTES
from gluon_core.launch.key import Specialization
from gluon_core.registry.load import registry
from gluon_core.values.constants import Read, changed

__all__ = ["Forms", "source_of"]


class Form(NamedTuple):
    """A compiled form, the call that it was compiled for, and the variables that it read."""

    compiled: CompiledKernel
    specialization: Specialization
    reads: tuple[Read, ...]


class Forms:
    """The compiled forms of one kernel.

    Args:
        kernel: the jit function.

    Attributes:
        globals: the variables that any form read.
    """

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._lock = threading.RLock()
        self._forms: dict[str, Form] = {}  # by key
        self._compiling: dict[str, Any] = {}  # the locks of those on their way, by key
        self.globals: list[Read] = []

    def __len__(self) -> int:
        return len(self._forms)

    def forget(self) -> None:
        """Drop all forms; those on disk stay."""
        with self._lock:
            for held in (self._forms, self._compiling, self.globals):
                held.clear()

    def obtain(self, specialization: Specialization, warmup: bool) -> Optional[CompiledKernel]:
        """Return the compiled kernel, from memory, from disk or by compiling; None where a hook of Triton's took over.

        Raises:
            RecompileError: it is not there, and `GLUON_NO_JIT` is set.
            GlobalVariableError: a variable that it read has another value.
        """
        key, backend = specialization.key, specialization.backend
        form = self._forms.get(key)
        if form is not None and self._is_current(form):
            return form.compiled
        source = source_of(self._kernel, specialization)
        reads = source.identity().reads
        if backend.compiler.isolate:
            compile_configurations(self._kernel)
        with self._lock:
            turn = self._compiling.setdefault(key, threading.RLock())
        with turn:  # other forms of this kernel may be compiled meanwhile
            form = self._forms.get(key)
            if form is not None:
                return form.compiled
            record = {
                "signature": source.signature,
                "device": specialization.device,
                "constants": source.constants,
                "attrs": source.attrs,
                "options": specialization.options,
                "warmup": warmup,
            }
            hooks = _triton.knobs.runtime
            if hooks.jit_cache_hook is not None:
                if self._hooked(hooks.jit_cache_hook, specialization, record):
                    return None
            strict = not warmup and os.environ.get("GLUON_NO_JIT", "0") not in ("", "0")
            wanted = (source, specialization.target, backend, specialization.options)
            bundles = registry().service("bundle.code") if os.environ.get("GLUON_BUNDLE") else None
            compiled = None if bundles is None else bundles.take(*wanted)
            compiled = compiled or compile_source(*wanted, load_only=strict)
            if compiled is None:
                self._refuse(specialization, None if bundles is None else bundles.nearest(*wanted))
            with self._lock:
                self._forms[key] = Form(compiled, specialization, reads)
                latest = {read.place: read for read in (*self.globals, *reads)}
                self.globals[:] = latest.values()
            if hooks.jit_post_compile_hook is not None:
                self._hooked(hooks.jit_post_compile_hook, specialization, record)
            return compiled

    def _hooked(self, hook: Any, specialization: Specialization, record: Mapping[str, Any]) -> Any:
        target = specialization.target
        shown = _triton.gpu_target(target) if target.architecture.triton_backend else target
        return hook(**_triton.jit_hook_arguments(self._kernel, specialization.key, record, shown))

    def _refuse(self, wanted: Specialization, near: Any) -> NoReturn:
        """Name the argument that asks for code that is not there: the difference to the nearest in memory, or in a bundle."""
        name, names = self._kernel.__name__, self._kernel.arg_names
        with self._lock:
            known = [form.specialization for form in self._forms.values()]
        differences = [] if near is None else list(near.differences)
        if known:
            differences = min([one.differences(wanted, names) for one in known], key=len)
        elif near is not None and near.changed:
            differences.append(("source", "as when the bundle was built", "another"))
        raise RecompileError(
            f"this launch of {name} would compile and GLUON_NO_JIT is set",
            argument=", ".join(name for name, _, _ in differences) or None,
            expected="; ".join(f"{name}: {old}" for name, old, _ in differences) or None,
            got="; ".join(f"{name}: {new}" for name, _, new in differences) or None,
            remedy="Warm it up, add it to a bundle, or keep the argument from changing the key "
            "(do_not_specialize, do_not_specialize_on_alignment).",
        )

    def _is_current(self, form: Form) -> bool:
        """Return whether the variables that a compiled form read still have their values; drop it otherwise.

        An object that is known as itself alone may have been replaced by its equal, as when a test
        puts a mock in the place of a logger: the kernel is compiled again.

        Raises:
            GlobalVariableError: a variable has another value.
        """
        others = [read for read in form.reads if changed([read])]
        for read in others:
            if read.by_value:
                raise GlobalVariableError(
                    f"the global {read.name} has changed since {self._kernel.__name__} was compiled",
                    argument=read.name,
                    expected=read.value,
                    got=read.scope.get(read.name, "nothing"),
                    remedy="Pass it as a constexpr argument instead.",
                )
        if others:
            with self._lock:
                self._forms.pop(form.specialization.key, None)
        return not others


def source_of(kernel: Any, specialization: Specialization) -> GluonASTSource:
    """Return the kernel with the types, constants and attributes of a call."""
    parts = signature_of(kernel.arg_names, specialization.described)
    return GluonASTSource(kernel, *parts, specialization.strict)


def signature_of(
    names: Sequence[str], described: Sequence[Any]
) -> tuple[dict[str, Any], dict[tuple[int, ...], Any], dict[tuple[int, ...], list[Any]]]:
    """Return the types of parameters by name, and the constants and attributes of a source by their paths.

    Args:
        described: an `Argument` for each.
    """
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[Any]] = {}

    def walk(kind: Any, marks: Any, path: tuple[int, ...]) -> None:
        if isinstance(kind, tuple):
            for index, item in enumerate(kind):
                walk(item, marks[index], (*path, index))
        elif kind == "constexpr":
            constants[path] = marks
        elif isinstance(marks, str) and marks:
            attributes[path] = [list(ATTRIBUTES[mark]) for mark in marks]

    for index, known in enumerate(described):
        walk(known.kind, known.attributes, (index,))
    return dict(zip(names, [known.kind for known in described])), constants, attributes
