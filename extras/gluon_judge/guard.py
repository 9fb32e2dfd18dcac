"""The modules of a candidate: their builtins report reflection, and strings that become code stay the candidate's."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, Callable, Mapping, Optional, Sequence

__all__ = ["REFLECTIVE", "Guard", "seal"]

REFLECTIVE = frozenset(
    "__subclasses__ __globals__ __closure__ cell_contents __code__ co_filename co_code gi_frame cr_frame ag_frame "
    "tb_frame f_back f_globals f_locals f_builtins _getframe _current_frames __builtins__ create_builtin exec_builtin "
    "module_from_spec get_referrers get_referents get_objects addaudithook setprofile settrace "
    "_disable_current_modes _disabled_torch_function_impl DisableTorchFunction DisableTorchFunctionSubclass _pop_mode "
    "_pop_mode_temporarily _push_mode _DisableTorchDispatch _DisablePythonDispatcher _ExcludeDispatchKeyGuard "
    "_ForceDispatchKeyGuard _IncludeDispatchKeyGuard _dispatch_tls_set_dispatch_key_excluded "
    "_dispatch_tls_set_dispatch_key_included _pop_torch_dispatch_stack _push_on_torch_dispatch_stack "
    "_unset_dispatch_mode _set_dispatch_mode _get_dispatch_mode _get_dispatch_stack_at "
    "_get_current_dispatch_mode _get_current_dispatch_mode_stack _pop_torch_function_stack "
    "_push_on_torch_function_stack redispatch _unsafe_set_version_counter _disable_profiler _enable_profiler "
    "_disable_profiler_legacy _enable_profiler_legacy _dispatch_call_boxed _jit_get_operation "
    "_dispatch_library _RestorePythonTLSSnapshot PyThreadState_SetAsyncExc".split()
)
"""Names that reach behind a call: frames, other code's variables, and the observers of torch's dispatcher."""

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_FLAGS_OFFSET = 168  # of tp_flags in CPython's PyTypeObject of 64 bits

Note = Callable[[str, str, Any, str], None]


class Guard(importlib.abc.MetaPathFinder):
    """Loads the modules in a candidate's folder with builtins that report.

    Args:
        folder: of the candidate.
        note: called with a code, a text, the frame and a severity.
        signs: called with the text of code that is built at run time; reports the signs in it.
        imported: called with the name of each module that is looked for, and the frame.
    """

    def __init__(
        self, folder: str, note: Note, signs: Callable[[str], None], imported: Callable[[str, Any], None]
    ):  # fmt: skip
        self._folder, self._note, self._signs = folder, note, signs
        self._imported = imported
        self.builtins: dict[str, Any] = {
            **vars(builtins),
            "getattr": self._named(getattr),
            "setattr": self._named(setattr),
            "delattr": self._named(delattr),
            "eval": self._evaluates(eval, "eval"),
            "exec": self._evaluates(exec, "exec"),
            "compile": self._compiles,
            "__import__": self._imports,
        }

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Return the specification of a module in the folder; None for all others."""
        self._imported(fullname, sys._getframe(1))
        places = [self._folder] if path is None else list(path)
        if not all(str(place).startswith(self._folder) for place in places):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, places, target)
        return None if spec is None or not spec.origin else self.spec(fullname, spec.origin)

    def spec(self, name: str, path: str) -> Optional[importlib.machinery.ModuleSpec]:
        """Return the specification of a module of a file."""
        package = [os.path.dirname(path)] if os.path.basename(path) == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, path, loader=_Loader(name, path, self), submodule_search_locations=package
        )

    def _named(self, function: Any) -> Any:
        def call(value: Any, name: Any, *rest: Any) -> Any:
            known = isinstance(name, str) and name in REFLECTIVE
            if known or (value is sys and name == "modules"):
                text = f"the candidate reaches for `{name}`"
                self._note("reads.harness", text, sys._getframe(1), "doubt")
            return function(value, name, *rest)

        call.__name__ = function.__name__
        return call

    def _evaluates(self, function: Any, mode: str) -> Any:
        def call(
            source: Any, globals: Optional[dict[str, Any]] = None, locals: Any = None, /, **more: Any
        ) -> Any:  # fmt: skip
            caller = sys._getframe(1)
            if globals is None:
                globals, locals = caller.f_globals, caller.f_locals if locals is None else locals
            globals.setdefault("__builtins__", self.builtins)
            code = self._compiles(source, "<string>", mode) if _is_text(source) else source
            if locals is None:
                return function(code, globals, **more)
            return function(code, globals, locals, **more)

        call.__name__ = function.__name__
        return call

    def _compiles(self, source: Any, filename: Any, mode: str, *rest: Any, **named: Any) -> Any:
        if _is_text(source):
            self._signs(
                source if isinstance(source, str) else bytes(source).decode("utf-8", "replace")
            )
        return compile(source, os.path.join(self._folder, "<string>"), mode, *rest, **named)

    def _imports(
        self, name: str, globals: Optional[Mapping[str, Any]] = None, locals: Any = None,
        fromlist: Sequence[str] = (), level: int = 0,
    ) -> Any:  # fmt: skip
        root = name.partition(".")[0]
        if not level and root in ("gluon_judge", "__main__"):
            text = "the candidate imports " + (
                "the judge" if root == "gluon_judge" else "`__main__`"
            )
            self._note("reads.harness", text, sys._getframe(1), "")
        return __import__(name, globals, locals, fromlist, level)


def _is_text(source: Any) -> bool:
    return isinstance(source, (str, bytes, bytearray, memoryview))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, guard: Guard):
        super().__init__(name, path)
        self._guard = guard

    def exec_module(self, module: Any) -> None:
        module.__dict__["__builtins__"] = self._guard.builtins
        super().exec_module(module)


def seal(*kinds: type[Any]) -> None:
    """Make classes immutable for the rest of the process, as those of the interpreter are, where it is CPython."""
    import ctypes

    for kind in kinds:
        flags = ctypes.c_ulong.from_address(id(kind) + _FLAGS_OFFSET)
        if flags.value == kind.__flags__:  # another layout is left alone
            flags.value |= _IMMUTABLE
