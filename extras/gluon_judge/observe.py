"""Observers in the candidate's process: audit events, clocks, the environment, hooks."""

from __future__ import annotations

import contextvars
import os
import sys
import sysconfig
import threading
import time
import types
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Callable, Iterable

from gluon_judge.guard import Guard
from gluon_judge.messages import Event
from gluon_judge.snapshot import owner_of

__all__ = ["Observer"]

_CONFIGURATION = (
    "TRITON_", "GLUON_", "TORCH", "PYTORCH_", "CUDA_", "HIP_", "ROCR_", "NVIDIA_", "OMP_", "MKL_", "NCCL_", "CUBLAS_",
    "XDG_", "LD_", "LC_",
)  # fmt: skip
_USUAL = {
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "USER",
    "SHELL",
    "TERM",
    "PWD",
    "PYTHONPATH",
    "TMP",
    "TEMP",
}
_CLOCKS = (
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime",
    "ctime", "strftime",
)  # fmt: skip
_OTHER_CLOCKS = (
    ("os", "times"), ("resource", "getrusage"), ("timeit", "default_timer"), ("timeit", "timeit"), ("uuid", "uuid1"),
)  # fmt: skip
_TIMERS = (
    ("triton.testing", "do_bench"), ("triton.testing", "do_bench_cudagraph"), ("torch.utils.benchmark.Timer", "timeit"),
    ("torch.utils.benchmark.Timer", "blocked_autorange"), ("torch.cuda.Event", "elapsed_time"),
)  # fmt: skip
_STREAMS = (
    "stdin",
    "stdout",
    "stderr",
    "__stdout__",
    "__stderr__",
    "displayhook",
    "excepthook",
    "unraisablehook",
)
_RUN_BY_ITSELF = ("sitecustomize", "usercustomize", "conftest")
_STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "os.spawn",
    "pty.spawn",
)
_INSPECTS = (
    "sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.settrace",
    "sys.setprofile", "sys._getframemodulename",
)  # fmt: skip
_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame", "__code__")
_MAKES = ("function.__new__", "code.__new__", "marshal.loads", "marshal.load", "pickle.find_class")
_SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill", "os.abort")
_HOOKS = (
    ("signal", "signal"), ("signal", "setitimer"), ("signal", "alarm"), ("signal", "sigwait"),
    ("atexit", "register"), ("faulthandler", "dump_traceback_later"), ("faulthandler", "register"),
)  # fmt: skip
_LOADS = (
    "ctypes.dlopen",
    "ctypes.dlsym",
    "ctypes.dlsym/handle",
    "ctypes.cdata",
    "ctypes.string_at",
    "ctypes.memmove",
)
_HARMLESS = (
    "/dev/null",
    "/dev/urandom",
    "/dev/zero",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/cgroup",
)


_GUARD = Guard.find_spec.__code__.co_filename  # between a candidate and what its builtins call


def _is_imported(path: str) -> bool:
    """Return True for a file that an interpreter runs in the place of a library, or by itself."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    known = stem in sys.stdlib_module_names or stem in _RUN_BY_ITSELF or stem in sys.modules
    return suffix == ".pth" or (suffix in (".py", ".pyc", ".so") and known)


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    import torch

    return {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    }


class Observer:
    """Notes what a candidate does, from `install` to the end of the process.

    Args:
        folder: with the files of the candidate.
        libraries: folders and files that everybody may read.
        secrets: names of the files that hold the reference and the problem.
    """

    def __init__(self, folder: str, libraries: Iterable[str], secrets: Iterable[str]):
        self._folder = os.path.realpath(folder) + os.sep
        archives = [one for one in sys.path if one.endswith(".zip")]
        self._libraries = tuple(os.path.realpath(one) for one in (*libraries, *archives))
        self._secrets = {os.path.basename(one) for one in secrets if one}
        self._modules = {os.path.splitext(one)[0] for one in self._secrets}
        self._importable = {os.path.realpath(one) for one in sys.path if one}
        self._standard = sysconfig.get_paths()["stdlib"] + os.sep
        self._events: dict[Event, None] = {}
        self._busy = threading.local()
        self._threads: list[threading.Thread] = []
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._settings = {
            name: (read, write, read()) for name, (read, write) in _settings().items()
        }
        self.operations: Any = None  # of the call that is under way

    def install(self) -> None:
        """Begin to observe; nothing ends it."""
        self._watch_clocks()
        self._watch_environment()
        self._watch_host_reads()
        self._watch_threads()
        self._watch_hooks()
        sys.addaudithook(self._audit)

    def taken(self) -> list[Event]:
        """Return the events since the last call of this."""
        events, self._events = list(self._events), {}
        return events

    def note(self, code: str, text: str, frame: Any = None, severity: str = "") -> None:
        """Add an event at a frame of the candidate."""
        file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        if file.startswith(self._folder):
            file = file[len(self._folder) :]
        self._events[Event(code, text, file, line, severity)] = None

    def left(self) -> None:
        """Note finders, streams and settings of the interpreter that the candidate leaves behind, and take them away."""
        for name in ("meta_path", "path_hooks"):
            finders = getattr(sys, name)
            for one in [one for one in finders if self._is_of_candidate(one)]:
                finders.remove(one)
                self.note("patched.module", f"the candidate adds a finder to `sys.{name}`")
        for name, value in self._streams.items():
            if getattr(sys, name) is not value:
                setattr(sys, name, value)
                self.note("patched.module", f"the candidate replaces `sys.{name}`")
        for name, (read, write, before) in self._settings.items():
            if read() != before:
                write(before)
                self.note("patched.module", f"the candidate leaves another {name} behind")

    def _is_of_candidate(self, value: Any) -> bool:
        kind = value if isinstance(value, (type, types.FunctionType)) else type(value)
        module = sys.modules.get(kind.__module__)
        return str(getattr(module, "__file__", None) or "").startswith(self._folder)

    # ---- frames ---------------------------------------------------------------------------------

    def is_own(self, frame: Any) -> bool:
        """Return True for a frame of the candidate's code, compiled strings included."""
        file = frame.f_code.co_filename
        if file.startswith(self._folder):
            return True
        own = frame.f_globals.get("__file__") or ""
        return file == "<string>" and str(own).startswith(self._folder)

    def nearest(self, frame: Any, through: tuple[str, ...] = ()) -> Any:
        """Return the candidate's frame that acts: the caller, across frames of Python's own library.

        Args:
            through: modules of that library alone; empty for all.
        """
        while frame is not None:
            if self.is_own(frame):
                return frame
            name = frame.f_globals.get("__name__", "")
            file = frame.f_code.co_filename
            if file == _GUARD:
                frame = frame.f_back
                continue
            crossed = file.startswith((self._standard, "<frozen")) and "site-packages" not in file
            if not crossed or (through and name.partition(".")[0] not in through):
                return None
            frame = frame.f_back
        return None

    def within(self, frame: Any) -> Any:
        """Return the innermost frame of the candidate, whatever it called."""
        while frame is not None and not self.is_own(frame):
            frame = frame.f_back
        return frame

    # ---- audit events -----------------------------------------------------------------------------

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if getattr(self._busy, "now", False):
            return
        handler = _HANDLERS.get(event) or (
            _HANDLERS["socket"] if event.startswith("socket.") else None
        )
        if handler is None:
            return
        self._busy.now = True
        try:
            handler(self, event, args, sys._getframe(1))
        finally:
            self._busy.now = False

    def _opens(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        path = args[0] if args else None
        if isinstance(path, int) or path is None:
            return
        own = self.within(frame)
        if own is None:
            return
        try:
            name = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError):
            return
        library = (
            f"{name}{os.sep}".startswith((self._folder, *self._libraries)) or name in _HARMLESS
        )
        if name.startswith("/proc/") and name not in _HARMLESS:
            own = self.nearest(frame)  # libraries look at their process
            library = own is None
        if own is None:
            return
        if os.path.basename(name) in self._secrets and not library:
            self.note("reads.reference", f"the candidate opens {os.path.basename(name)}", own)
            return
        mode = args[1] if event == "open" and len(args) > 1 else None
        flags = args[2] if event == "open" and len(args) > 2 and isinstance(args[2], int) else 0
        writes = flags & (os.O_WRONLY | os.O_RDWR) or (
            isinstance(mode, str) and set("wax+") & set(mode)
        )
        if writes:
            if self.nearest(frame) is not None and name not in _HARMLESS:
                severity = "error" if _is_imported(name) else ""
                text = f"the candidate writes {os.path.basename(name)}"
                self.note("writes.files", text, own, severity)
            return
        if not library and name not in self._importable:
            self.note("reads.files", f"the candidate opens {name}", own)

    def _lists(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        name = os.path.realpath(os.fsdecode(args[0])) if isinstance(args[0], (str, bytes)) else "."
        known = f"{name}{os.sep}".startswith((self._folder, *self._libraries))
        if own is not None and not known and name not in self._importable:  # imports list these
            self.note("reads.files", f"the candidate lists the folder {args[0]!s}", own)

    def _imports(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        self.imports(str(args[0]), frame)

    def imports(self, name: str, frame: Any) -> None:
        """Note the import of a module that no candidate needs."""
        own = self.nearest(frame)
        if own is None:
            return
        if name.partition(".")[0] in self._modules and name not in sys.modules:
            self.note("reads.reference", f"the candidate imports `{name}`", own)
        elif name.partition(".")[0] == "gluon_judge":  # its modules are gone from `sys.modules`
            self.note("reads.harness", "the candidate imports the judge", own)

    def _starts(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if own is not None:
            self.note("left.process", f"the candidate starts a process ({event})", own)

    def _inspects(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        if frame.f_code.co_filename == _GUARD:  # which needs its caller's frame
            return
        own = self.nearest(frame, ("inspect", "traceback", "gc", "sys"))
        if own is not None:
            self.note("reads.harness", f"the candidate inspects its caller ({event})", own)

    def _reads_frames(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        if len(args) > 1 and args[1] in _FRAMES and self.is_own(frame):
            self.note("reads.harness", f"the candidate reads `{args[1]}`", frame, "doubt")

    def _makes(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        if self.is_own(frame):
            self.note("reads.harness", f"the candidate makes code ({event})", frame, "doubt")

    def _signals(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if own is not None:
            self.note("reads.harness", f"the candidate sends a signal ({event})", own, "error")

    def _hooks(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if own is not None:
            self.note("left.hook", f"the candidate leaves a hook ({event})", own)

    def _sets_variable(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if own is not None and args:
            key = os.fsdecode(args[0])
            severity = "note" if key.startswith(_CONFIGURATION) else "warning"
            self.note("reads.environment", f"the candidate sets ${key}", own, severity)

    def _loads(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if own is not None:
            self.note("native.code", f"the candidate calls native code ({event})", own, "error")

    def _connects(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.within(frame)
        if own is not None:
            self.note("network.used", f"the candidate uses the network ({event})", own)

    def _exchanges(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        own = self.nearest(frame)
        if (
            own is not None
            and len(args) > 1
            and args[1] in ("__code__", "__defaults__", "__kwdefaults__")
        ):
            name = getattr(args[0], "__qualname__", "a function")
            module = str(getattr(args[0], "__module__", ""))
            if module not in ("", own.f_globals.get("__name__")):
                self.note(
                    "patched.module", f"the candidate exchanges the code of {module}.{name}", own
                )

    def _begins(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        if self.is_own(frame):
            self.note("left.thread", f"the candidate starts a bare thread ({event})", frame)

    # ---- clocks, environment, the host --------------------------------------------------------------

    def _watch_clocks(self) -> None:
        for name in _CLOCKS:
            clock = getattr(time, name, None)
            if clock is not None:
                setattr(time, name, self._reporting(clock, "reads.clock", f"time.{name}"))
        for module, name in _OTHER_CLOCKS:
            owner = import_module(module)
            if hasattr(owner, name):
                clock = getattr(owner, name)
                setattr(owner, name, self._reporting(clock, "reads.clock", f"{module}.{name}"))

        for path, name in _TIMERS:  # that the autotuner of Triton calls, too
            owner = owner_of(path)
            if hasattr(owner, name):
                inner = getattr(owner, name)
                setattr(owner, name, self._reporting(inner, "reads.clock", f"{path}.{name}"))

    def _watch_hooks(self) -> None:
        for module, name in _HOOKS:
            owner = import_module(module)
            if hasattr(owner, name):
                inner = getattr(owner, name)
                setattr(owner, name, self._reporting(inner, "left.hook", f"{module}.{name}"))

    def _reporting(self, function: Any, code: str, name: str, severity: str = "") -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            own = self.nearest(sys._getframe(1))
            if own is not None:
                self.note(code, f"the candidate calls `{name}`", own, severity)
            return function(*args, **kwargs)

        call.__name__ = getattr(function, "__name__", name)
        call.__doc__ = function.__doc__
        return call

    def _watch_environment(self) -> None:
        kind: Any = type(os.environ)
        read = kind.__getitem__

        def __getitem__(environment: Any, name: Any) -> Any:
            own, key = self.nearest(sys._getframe(1)), name
            if own is not None:
                key = os.fsdecode(key) if isinstance(key, bytes) else str(key)
                known = key.startswith(_CONFIGURATION) or key in _USUAL
                severity = "note" if known else ""
                self.note("reads.environment", f"the candidate reads ${key}", own, severity)
            return read(environment, name)

        every = kind.__iter__

        def __iter__(environment: Any) -> Any:
            own = self.nearest(sys._getframe(1))
            if own is not None:
                self.note("reads.environment", "the candidate lists the environment", own)
            return every(environment)

        kind.__getitem__, kind.__iter__ = __getitem__, __iter__

    def _watch_threads(self) -> None:
        kind: Any = threading.Thread
        start = kind.start

        def begin(thread: Any) -> Any:
            if self.nearest(sys._getframe(1)) is not None:
                self._threads.append(thread)
                work, context, operations = thread.run, contextvars.copy_context(), self.operations

                def run() -> None:  # its launches and operations count, too
                    with nullcontext() if operations is None else operations.of_thread():
                        context.run(work)

                thread.run = run
            return start(thread)

        kind.start = begin

    def living_threads(self) -> bool:
        """Return True if a thread that the candidate started still runs."""
        self._threads = [one for one in self._threads if one.is_alive()]
        return bool(self._threads)

    def _watch_host_reads(self) -> None:
        import torch

        tensor: Any = torch.Tensor
        for name, severity in (
            ("numpy", ""), ("tolist", ""), ("__array__", ""), ("item", "warning"), ("__dlpack__", "doubt"),
            ("__reduce_ex__", "doubt"), ("untyped_storage", "warning"), ("storage", "warning"),
        ):  # fmt: skip
            inner = getattr(tensor, name)
            setattr(
                tensor, name, self._reporting(inner, "library.host", f"Tensor.{name}", severity)
            )
        storage: Any = torch.UntypedStorage
        for name in ("tolist", "__getitem__", "__iter__", "byte", "float", "half"):
            inner = getattr(storage, name, None)
            if inner is not None:
                setattr(storage, name, self._reporting(inner, "library.host", f"Storage.{name}"))
        self._watch_operators()
        inner = torch.utils.dlpack.to_dlpack
        torch.utils.dlpack.to_dlpack = self._reporting(inner, "library.host", "to_dlpack", "doubt")

    def _watch_operators(self) -> None:
        """Note implementations of the library's own operators."""
        import torch.library

        kind: Any = torch.library.Library
        begin = kind.__init__

        def __init__(library: Any, ns: str, *rest: Any, **named: Any) -> None:
            frame: Any = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == torch.library.__file__:
                frame = frame.f_back
            own = self.nearest(frame)
            if own is not None and ns in ("aten", "prims", "prim"):
                self.note("patched.module", f"the candidate implements operators of `{ns}`", own)
            begin(library, ns, *rest, **named)

        kind.__init__ = __init__


_HANDLERS: dict[str, Callable[..., None]] = {
    "open": Observer._opens,
    "os.listdir": Observer._lists,
    "os.scandir": Observer._lists,
    "glob.glob": Observer._lists,
    "import": Observer._imports,
    "socket": Observer._connects,
    "_thread.start_new_thread": Observer._begins,
    "object.__setattr__": Observer._exchanges,
    "object.__getattr__": Observer._reads_frames,
    "os.putenv": Observer._sets_variable,
    "sys.addaudithook": Observer._hooks,
    "sys.monitoring.register_callback": Observer._hooks,
    "sys.excepthook": Observer._hooks,
    **dict.fromkeys(_MAKES, Observer._makes),
    **dict.fromkeys(_SIGNALS, Observer._signals),
    **dict.fromkeys(_STARTS, Observer._starts),
    **dict.fromkeys(_INSPECTS, Observer._inspects),
    **dict.fromkeys(_LOADS, Observer._loads),
}
