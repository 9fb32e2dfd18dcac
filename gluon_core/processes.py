"""Child processes: forked or started anew, fed through a pipe, limited in time, ended with their own children.

A `Process` sends and receives pickled messages; its output goes into a file. When it aborts, is killed
or takes too long, the process that waits gets `Ended`. A forked one is a copy of this process that
holds no file of the user's open and runs no finalizer of the user's objects. `each` spreads calls over
several processes and replaces those that die.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import math
import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, NoReturn, Optional, Union

__all__ = [
    "Ended",
    "ForkLock",
    "Link",
    "Process",
    "each",
    "fork_lock",
    "no_collection",
    "usable_cores",
]

IDLE = 30.0  # seconds after which a forked process that has nothing to do ends itself
_HEADER = struct.Struct("<4sQ")
_MAGIC = b"gluo"
_MOST = 1 << 34  # bytes of a message; a header that says more is none


class Ended(Exception):
    """A process will say nothing more.

    Args:
        how: in words, why.
        hung: whether it took too long.
    """

    def __init__(self, how: str, hung: bool = False):
        super().__init__(how, hung)
        self.how, self.hung = how, hung

    def __str__(self) -> str:
        return self.how


class ForkLock:
    """A re-entrant lock, for `with`, that a forked child finds free: the thread that held it is not there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *details: Any) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()

# Held while this process forks and while a compiler runs in it, so that no thread of ours is inside
# LLVM when it forks.
fork_lock = ForkLock()


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off: work that makes many objects would have it visit those of the whole process
    again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _frame(data: bytes) -> memoryview:
    return memoryview(_HEADER.pack(_MAGIC, len(data)) + data)


def _read(descriptor: int, size: int, wait: Callable[[], None] = lambda: None) -> bytes:
    """Return `size` bytes, each part after a `wait`; fewer where the other end was closed before."""
    parts: list[bytes] = []
    while size:
        wait()
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_note(board: mmap.mmap, text: str) -> None:
    data = text.encode()[:255]
    board[: 1 + len(data)] = bytes((len(data),)) + data


class Link:
    """The child's ends of the pipes.

    Args:
        jobs: descriptor that jobs come from.
        answers: descriptor that answers go to.
        log: descriptor of the file for output.
        board: memory that both processes see, where this one was forked.
    """

    def __init__(self, jobs: int, answers: int, log: int, board: mmap.mmap):
        self._jobs = jobs
        self._answers = answers
        self._log = log
        self._board = board

    def note(self, text: str) -> None:
        """Note the progress of the work: the result of `Process.noted`, whatever happens next. Nobody
        is
        woken for it, as for a message."""
        _write_note(self._board, text)

    def answer(self, kind: str, value: Any = None) -> None:
        """Send a message; a value that cannot be pickled raises before anything is sent."""
        view = _frame(pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL))
        while view:
            view = view[os.write(self._answers, view) :]

    def next(self, idle: Optional[float] = None) -> Optional[Any]:
        """Return the next job, with the log empty again; None when there will be none.

        Args:
            idle: seconds to wait for it; None for `IDLE`.
        """
        parent, idle = os.getppid(), IDLE if idle is None else idle
        poll = select.poll()
        poll.register(self._jobs, select.POLLIN)
        until = time.monotonic() + idle
        while not poll.poll(min(2.0, idle) * 1000):
            if time.monotonic() > until or os.getppid() != parent:
                return None
        header = _read(self._jobs, _HEADER.size)
        if len(header) < _HEADER.size:
            return None
        size = _HEADER.unpack(header)[1]
        job = _read(self._jobs, size)
        if len(job) < size:
            return None
        with contextlib.suppress(OSError):
            os.ftruncate(self._log, 0)
            os.lseek(self._log, 0, os.SEEK_SET)
        return pickle.loads(job)


class Process:
    """A child process.

    Args:
        work: its function, called with its `Link`; the process ends when that returns. A function runs
            in a fork of this process, "module:function" in a new interpreter.
        name: its name in errors.
        environment: of a new interpreter; None for that of this process.
        loads: reads a message of the child; one that admits no classes for a child that is not trusted.

    Raises:
        OSError: the system gives no process, or no file for its output.
    """

    def __init__(
        self,
        work: Union[str, Callable[[Link], None]],
        name: str = "the process",
        environment: Optional[Mapping[str, str]] = None,
        loads: Callable[[bytes], Any] = pickle.loads,
    ):
        self.owner = os.getpid()
        self._loads = loads
        self.name = name
        self.log = tempfile.TemporaryFile()
        self._board = mmap.mmap(-1, 256)
        pipes: list[int] = []
        try:
            if isinstance(work, str):
                pipes += (*os.pipe(), *os.pipe())
                self.pid = _begun_anew(work, pipes, self.log.fileno(), environment)
            else:
                with fork_lock:
                    pipes += (*os.pipe(), *os.pipe())
                    self.pid = _forked(work, pipes, self.log.fileno(), self._board)
        except BaseException:
            for number in pipes:
                os.close(number)
            self.log.close()
            raise
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # it says so too; whoever is first
        os.close(pipes[0])
        os.close(pipes[3])
        self._jobs: int = pipes[1]
        self._answers: int = pipes[2]
        os.set_blocking(self._jobs, False)
        self._open = True
        _open.add(self)

    def fileno(self) -> int:
        """Return the descriptor that answers come from, for `select`."""
        return self._answers

    def send(self, job: bytes, deadline: float = math.inf) -> None:
        """Hand over a pickled job.

        Raises:
            Ended: it is gone, or does not take it before `deadline` (of `time.monotonic()`).
        """
        _write_note(self._board, "")
        view = _frame(job)
        while view:
            self._wait(self._jobs, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._jobs, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Ended(self._status()) from None

    def receive(self, deadline: float = math.inf) -> tuple[str, Any]:
        """Return its next message.

        Raises:
            Ended: it died, is late, or sent something else.
        """
        magic, size = _HEADER.unpack(self._received(_HEADER.size, deadline))
        if magic != _MAGIC or size > _MOST:
            raise Ended(f"{self.name} sent a malformed answer")
        data = self._received(size, deadline)
        try:
            kind, value = self._loads(data)
        except Exception as error:
            raise Ended(f"{self.name} sent an answer that cannot be read ({error})") from error
        return kind, value

    def _received(self, size: int, deadline: float) -> bytes:
        event = select.POLLIN | select.POLLHUP
        try:
            data = _read(self._answers, size, lambda: self._wait(self._answers, event, deadline))
        except OSError:  # another thread has ended it
            data = b""
        if len(data) < size:
            raise Ended(self._status())
        return data

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()  # select() cannot take descriptors beyond 1023
        poll.register(descriptor, event)
        if not poll.poll(_milliseconds(deadline)):
            raise Ended(f"{self.name} took too long and was ended", hung=True)

    def noted(self) -> str:
        """Return its last note on its job, "" if it did not begin."""
        return self._board[1 : 1 + self._board[0]].decode(errors="replace")

    def output(self) -> str:
        """Return the output since the last job began, nothing once the process was ended here."""
        if not self._open:
            return ""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace")

    def _status(self) -> str:
        """Return how it ended, in words; it has closed its pipe."""
        status = None
        for pause in (0.0, *[0.002] * 1000):
            time.sleep(pause)
            try:
                pid, ended_with = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                return f"{self.name} is gone"
            if pid:
                status = ended_with
                break
        if status is None:
            return f"{self.name} closed its pipe"
        self.pid = 0
        if os.WIFSIGNALED(status):
            try:
                name = signal.Signals(os.WTERMSIG(status)).name
            except ValueError:
                name = f"signal {os.WTERMSIG(status)}"
            return f"{self.name} was killed by {name}"
        return f"{self.name} ended with status {os.WEXITSTATUS(status)}"

    def over(self) -> bool:
        """Return whether it has ended by itself."""
        try:
            if self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            pass
        self.pid = 0
        return True

    def end(self) -> None:
        """End it with its own children, and release its resources here."""
        if not self._open:
            return
        self._open = False
        _open.discard(self)
        if self.owner == os.getpid() and self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, 0)
        os.close(self._jobs)
        os.close(self._answers)
        self.log.close()
        self._board.close()


def _milliseconds(deadline: float) -> Optional[float]:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic()) * 1000


# -- the child's side ------------------------------------------------------------------------------


def _forked(work: Callable[[Link], None], pipes: list[int], log: int, board: mmap.mmap) -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # both would write buffered text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads and fork
        pid = os.fork()
    if pid == 0:
        try:
            _isolate({pipes[0], pipes[3], log}, log)
        except BaseException:
            os._exit(1)
        _live(work, Link(pipes[0], pipes[3], log, board))
    return pid


def _begun_anew(
    work: str, pipes: list[int], log: int, environment: Optional[Mapping[str, str]]
) -> int:
    paths = os.pathsep.join(path for path in sys.path if path)
    descriptors = (pipes[0], pipes[3], log)
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {__name__} as p; p._main()", work, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**(os.environ if environment is None else environment), "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for whoever started it
    )
    process.returncode = 0  # whoever holds the `Process` waits for it
    return process.pid


def _main() -> NoReturn:
    """Return the whole life of a new interpreter."""
    work, jobs, answers, log = sys.argv[1], *map(int, sys.argv[2:])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    module, _, name = work.partition(":")
    _live(
        lambda link: getattr(importlib.import_module(module), name)(link),
        Link(jobs, answers, log, mmap.mmap(-1, 256)),
    )


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _live(work: Callable[[Link], None], link: Link) -> NoReturn:
    """Work, then end without the interpreter's teardown: no cleanup of the parent's may run here."""
    status = 1
    try:
        work(link)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _isolate(keep: set[int], log: int) -> None:
    """Make a fork independent of its parent's state: signals, groups, descriptors, streams."""
    gc.freeze()  # objects of the user's are not ours to finalize
    sys.setprofile(None)
    sys.settrace(None)
    os.setpgid(0, 0)  # so that its children, such as ptxas, end with it; and for Ctrl-C
    for number in signal.valid_signals():
        with contextlib.suppress(Exception):
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, nobody learns how ptxas ended
    with contextlib.suppress(Exception):
        import faulthandler

        faulthandler.disable()  # a crash here is the parent's to report
    os.dup2(log, 1)
    os.dup2(log, 2)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _close_others({0, 1, 2, *keep})
    # pytest and notebooks replace these; the child's words belong into the file
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)


def _close_others(keep: set[int]) -> None:
    """Close the parent's descriptors: a reader sees no end of a pipe that stays open here.

    The numbers stay taken, or a library's log would go into a file of ours.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        numbers = set(range(os.sysconf("SC_OPEN_MAX")))
    for number in numbers - keep - {nothing}:
        with contextlib.suppress(OSError):
            os.fstat(number)  # the folder that was listed is closed
            os.dup2(nothing, number, inheritable=False)


# -- several at once -------------------------------------------------------------------------------


def each(
    function: str,
    jobs: Iterable[tuple[Any, ...]],
    count: int,
    *,
    limit: float = math.inf,
    environment: Optional[Mapping[str, str]] = None,
    spent: Callable[[Any], bool] = lambda answer: False,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Call a function with each job, in `count` new interpreters, and yield (job, answer) as they come.

    Args:
        function: "module:function".
        jobs: the arguments of each call; taken one by one, when there is a process for them.
        limit: seconds of one call.
        environment: of the processes; None for that of this one.
        spent: whether a process that gave this answer takes no other call.

    Yields:
        `Ended` in place of the answer where a process died or was late; another one goes on.

    Raises:
        Exception: the function's exception.
    """
    left = iter(jobs)
    idle: list[Process] = []
    at_work: dict[int, tuple[Process, tuple[Any, ...], float]] = {}

    def begin(job: tuple[Any, ...]) -> None:
        while idle and idle[-1].over():
            idle.pop().end()
        process = idle.pop() if idle else Process(f"{__name__}:_serve", environment=environment)
        at_work[process.fileno()] = process, job, time.monotonic() + limit
        with contextlib.suppress(Ended):  # `receive` says how
            process.send(pickle.dumps((function, job)), time.monotonic() + limit)

    def outcome(number: int) -> Any:
        process, _, deadline = at_work[number]
        try:
            kind, value = process.receive(deadline)
        except Ended as ended:
            kind, value = "done", ended
        del at_work[number]
        if kind == "error" or isinstance(value, Ended) or spent(value):
            process.end()
        else:
            idle.append(process)
        if kind == "error":
            raise value
        return value

    try:
        while True:
            while len(at_work) < count and (job := next(left, None)) is not None:
                begin(job)
            if not at_work:
                return
            poll = select.poll()
            for number in at_work:
                poll.register(number, select.POLLIN | select.POLLHUP)
            first = min(deadline for _, _, deadline in at_work.values())
            ready = {number for number, _ in poll.poll(_milliseconds(first))}
            now = time.monotonic()
            late = {number for number, (_, _, deadline) in at_work.items() if deadline <= now}
            for number in ready | late:
                job = at_work[number][1]
                yield job, outcome(number)
    finally:
        for process in (*idle, *(process for process, _, _ in at_work.values())):
            process.end()


def _serve(link: Link) -> None:
    """Answer calls until there are no more."""
    while (call := link.next(math.inf)) is not None:
        path, arguments = call
        module, _, name = path.partition(":")
        try:
            answer = "done", getattr(importlib.import_module(module), name)(*arguments)
        except Exception as error:
            answer = "error", error
        try:
            link.answer(*answer)
        except Exception as error:  # it cannot be pickled
            link.answer("error", RuntimeError(f"{answer[1]!r} cannot be sent: {error}"))


# -- forks and the end of the interpreter ----------------------------------------------------------

_open: set[Process] = set()


def _after_fork() -> None:
    """In a child of this process: the locks are free, and the processes are the parent's."""
    for lock in _locks:
        lock._lock = threading.RLock()
    for process in list(_open):
        process.end()  # only closes here


def _at_exit() -> None:
    for process in list(_open):
        process.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
