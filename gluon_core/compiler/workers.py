"""Processes that compile: forked from this one, fed through a pipe, replaced when they die.

A `Process` runs one piece of work; a warm one runs job after job. It is a copy of this process as it
was, so a `Pool` lends a process only to jobs that would find the same surroundings now: another
environment, working directory, knob or backend forks another. It holds no file of the
user's open, runs no finalizer of the user's objects, and goes away on its own: when this process
does, when it has been idle for a while (the memory it shares with us is copied page by page as we
write to ours), and when the interpreter exits.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import tempfile
import threading
import time
import warnings
from typing import Any, Callable, NoReturn, Optional

from gluon_core._triton.locks import ForkLock
from gluon_core.errors import OptionError

__all__ = ["Ended", "Link", "Pool", "Process", "fork_lock", "limit", "timeout"]

_OTHERS = 2  # idle ones kept for other surroundings, as when kernels are compiled for two vendors
IDLE = 30.0  # seconds after which a process that has nothing to do ends itself
_HEADER = struct.Struct("<4sQ")
_MAGIC = b"gluo"
_MOST = 1 << 34  # bytes of a message; a header that says more is none


def timeout() -> float:
    """`GLUON_COMPILE_TIMEOUT`: seconds that one compilation may take; 600 unless set, 0 for no limit.

    Raises:
        OptionError: it is no number of seconds.
    """
    text = os.environ.get("GLUON_COMPILE_TIMEOUT", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise OptionError(
            "not a time", argument="GLUON_COMPILE_TIMEOUT", expected="seconds, 0 for none", got=text
        )
    return seconds or float("inf")


def limit() -> int:
    """`GLUON_COMPILE_WORKERS`: how many processes compile at once; the cores of this one unless set.

    Raises:
        OptionError: it is no positive integer.
    """
    text = os.environ.get("GLUON_COMPILE_WORKERS", "")
    if not text:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if not text.isdecimal() or not int(text):
        raise OptionError(
            "not a number of processes",
            argument="GLUON_COMPILE_WORKERS",
            expected="an integer from 1 on",
            got=text,
        )
    return int(text)


class Ended(Exception):
    """A process will say nothing more.

    Args:
        how: in words, why.
    """

    def __init__(self, how: str):
        super().__init__(how)
        self.how = how


# Held while this process forks and while a compiler runs in it, so that no thread of ours is inside
# LLVM when it forks.
fork_lock = ForkLock()


def _write_note(board: mmap.mmap, text: str) -> None:
    data = text.encode()[:255]
    board[: 1 + len(data)] = bytes((len(data),)) + data


class Link:
    """The child's ends of the pipes.

    Args:
        jobs: descriptor that jobs come from.
        answers: descriptor that answers go to.
        log: descriptor of the file that takes what is printed.
        board: memory that both processes see.
    """

    def __init__(self, jobs: int, answers: int, log: int, board: mmap.mmap):
        self._jobs = jobs
        self._answers = answers
        self._log = log
        self._board = board

    def note(self, text: str) -> None:
        """Say where the work stands: what `Process.noted` answers, whatever happens next. Nobody is
        woken for it, as for a message."""
        _write_note(self._board, text)

    def tell(self, kind: str, value: Any = None) -> None:
        """Send a message; a value that cannot be pickled raises before anything is sent."""
        data = pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL)
        view = memoryview(_HEADER.pack(_MAGIC, len(data)) + data)
        while view:
            view = view[os.write(self._answers, view) :]

    def next(self) -> Optional[Any]:
        """The next job with its log begun anew; None when there will be none."""
        parent = os.getppid()
        poll = select.poll()
        poll.register(self._jobs, select.POLLIN)
        until = time.monotonic() + IDLE
        while not poll.poll(min(2.0, IDLE) * 1000):
            if time.monotonic() > until or os.getppid() != parent:
                return None
        data = b""
        while len(data) < _HEADER.size:
            part = os.read(self._jobs, _HEADER.size - len(data))
            if not part:
                return None
            data += part
        parts, left = [], _HEADER.unpack(data)[1]
        while left:
            part = os.read(self._jobs, min(left, 1 << 20))
            if not part:
                return None
            parts.append(part)
            left -= len(part)
        with contextlib.suppress(OSError):
            os.ftruncate(self._log, 0)
            os.lseek(self._log, 0, os.SEEK_SET)
        return pickle.loads(b"".join(parts))


class Process:
    """A forked child.

    Args:
        work: what it does, with its `Link`; it ends when that returns.

    Raises:
        OSError: the system gives no process, or no file for its output.
    """

    def __init__(self, work: Callable[[Link], None]):
        self.owner = os.getpid()
        self.log = tempfile.TemporaryFile()
        self._board = mmap.mmap(-1, 256)
        pipes: list[int] = []
        try:
            with fork_lock:
                pipes += os.pipe()
                pipes += os.pipe()
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(Exception):
                        stream.flush()  # what is buffered would be written by both
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads and fork
                    self.pid = os.fork()
                if self.pid == 0:
                    link = Link(pipes[0], pipes[3], self.log.fileno(), self._board)
                    _live(work, link, pipes)
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

    def send(self, job: bytes, deadline: float) -> None:
        """Hand over a pickled job.

        Raises:
            Ended: it is gone, or does not take it before `deadline` (of `time.monotonic()`).
        """
        _write_note(self._board, "")
        view = memoryview(_HEADER.pack(_MAGIC, len(job)) + job)
        poll = select.poll()
        poll.register(self._jobs, select.POLLOUT)
        while view:
            if not poll.poll(_milliseconds(deadline)):
                raise Ended(_late())
            try:
                view = view[os.write(self._jobs, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Ended(self._status()) from None

    def receive(self, deadline: float) -> tuple[str, Any]:
        """Its next message.

        Raises:
            Ended: it died, is late, or sent something else.
        """
        magic, size = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if magic != _MAGIC or size > _MOST:
            raise Ended("the compiler's process sent something that is no answer")
        data = self._read(size, deadline)
        try:
            kind, value = pickle.loads(data)
        except Exception as error:
            raise Ended(
                f"the compiler's process sent an answer that cannot be read ({error})"
            ) from error
        return kind, value

    def _read(self, size: int, deadline: float) -> bytes:
        poll = select.poll()  # select() cannot take descriptors beyond 1023
        poll.register(self._answers, select.POLLIN | select.POLLHUP)
        parts: list[bytes] = []
        while size:
            if not poll.poll(_milliseconds(deadline)):
                raise Ended(_late())
            part = os.read(self._answers, min(size, 1 << 20))
            if not part:
                raise Ended(self._status())
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def noted(self) -> str:
        """What it noted last of its job, "" if it did not begin."""
        return self._board[1 : 1 + self._board[0]].decode(errors="replace")

    def said(self) -> str:
        """What was printed since the last job began."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace")

    def _status(self) -> str:
        """In words, how it ended; it has closed its pipe."""
        status = None
        for pause in (0.0, *[0.002] * 1000):
            time.sleep(pause)
            try:
                pid, found = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                return "the compiler's process is gone"
            if pid:
                status = found
                break
        if status is None:
            return "the compiler's process closed its pipe"
        self.pid = 0
        if os.WIFSIGNALED(status):
            try:
                name = signal.Signals(os.WTERMSIG(status)).name
            except ValueError:
                name = f"signal {os.WTERMSIG(status)}"
            return f"the compiler was killed by {name}"
        return f"the compiler ended with status {os.WEXITSTATUS(status)}"

    def over(self) -> bool:
        """Whether it has ended by itself."""
        try:
            if self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            pass
        self.pid = 0
        return True

    def end(self) -> None:
        """End it with what it started, and give back what it holds here."""
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


def _late() -> str:
    return f"it took more than {timeout():g} s (GLUON_COMPILE_TIMEOUT) and was ended"


def _milliseconds(deadline: float) -> Optional[float]:
    if deadline == float("inf"):
        return None
    return max(0.0, deadline - time.monotonic()) * 1000


def _live(work: Callable[[Link], None], link: Link, pipes: list[int]) -> NoReturn:
    """The child's whole life: no cleanup of the parent's may run in it."""
    try:
        gc.freeze()  # objects of the user's are not ours to finalize
        sys.setprofile(None)
        sys.settrace(None)
        os.setpgid(0, 0)  # so that what it starts, such as ptxas, ends with it; and for Ctrl-C
        for number in signal.valid_signals():
            with contextlib.suppress(Exception):
                if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
                    signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, nobody learns how ptxas ended
        with contextlib.suppress(Exception):
            import faulthandler

            faulthandler.disable()  # a crash here is the parent's to report
        log = link._log
        os.dup2(log, 1)
        os.dup2(log, 2)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        _close_others({0, 1, 2, pipes[0], pipes[3], log})
        # pytest and notebooks replace these; the child's words belong into the file
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        work(link)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(0)


def _close_others(keep: set[int]) -> None:
    """Give up what the parent had open: an end of a pipe that lives on here never tells its reader.

    The numbers stay taken, or what a library writes to its log would go into a file of ours.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        found = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        found = set(range(os.sysconf("SC_OPEN_MAX")))
    for number in found - keep - {nothing}:
        with contextlib.suppress(OSError):
            os.fstat(number)  # the folder that was listed is closed
            os.dup2(nothing, number, inheritable=False)


_WARMING = 0.15  # seconds that the first job of a process takes beyond others
_NEWEST = 0.3  # weight of the newest measurement in a mean


class _Warm:
    """A process of the pool and the surroundings it was forked in."""

    def __init__(self, process: Process, surroundings: Any):
        self.process = process
        self.surroundings = surroundings
        self.since = 0.0  # when it was lent
        self.jobs = 0


class Pool:
    """Warm processes, at most `limit()` at work at once, or `most` where that is more. Another one is
    forked where what is left to do takes longer without it: to fork a process that uses a GPU takes
    long, and all of it stands still meanwhile.

    Args:
        work: what each does, with its `Link`.

    Attributes:
        left: jobs that somebody will still ask for, as far as that is known.
        asked: somebody said how many processes, and gets as many.
        forking, job: seconds that a fork and a job took of late.
    """

    def __init__(self, work: Callable[[Link], None]):
        self._work = work
        self.most = 0
        self.left = 0
        self.asked = False
        self.forking = 0.02
        self.job = 0.1
        self._waited = 0.0  # seconds, by all, since the last fork
        self._renew()
        _pools.append(self)

    def _renew(self) -> None:
        self._free = threading.Condition()
        self._idle: list[_Warm] = []
        self._lent: list[_Warm] = []

    def take(self, surroundings: Any) -> Process:
        """A process that was forked in these surroundings, and is nobody else's until given back.

        Raises:
            OSError: the system gives no process.
        """
        with self._free:
            while True:
                for warm in [warm for warm in self._idle if warm.process.over()]:
                    self._idle.remove(warm)
                    warm.process.end()
                most = max(limit(), self.most)
                fitting = [warm for warm in self._idle if warm.surroundings == surroundings]
                if len(self._lent) >= most or not (fitting or self._pays(surroundings)):
                    begun = time.monotonic()
                    self._free.wait(1.0)
                    self._waited += time.monotonic() - begun
                    continue
                if fitting:
                    warm = fitting[-1]
                    self._idle.remove(warm)
                else:
                    if len(self._idle) + len(self._lent) >= most + _OTHERS:
                        self._idle.pop(0).process.end()
                    begun = time.monotonic()
                    warm = _Warm(Process(self._work), surroundings)
                    took = time.monotonic() - begun
                    self.forking = max(took, self.forking + _NEWEST * (took - self.forking))
                    self._waited = 0.0
                warm.since = time.monotonic()
                self._lent.append(warm)
                return warm.process

    def _pays(self, surroundings: Any) -> bool:
        """Whether one more process saves more time than it takes to fork it: of what is known to be left,
        or, as nobody may know that, of what was waited for lately."""
        count = sum(warm.surroundings == surroundings for warm in self._lent)
        cost = self.forking + _WARMING
        if self.left:
            pays = self.left * self.job > cost * count * (count + 1)
        else:
            pays = self._waited > cost * count
        return self.asked or not count or pays

    def give(self, process: Process, usable: bool) -> None:
        """Give a process back; one that is not usable is ended."""
        with self._free:
            mine = [warm for warm in self._lent if warm.process is process]
            for warm in mine:  # none where this process was forked meanwhile
                self._lent.remove(warm)
                if warm.jobs:
                    self.job += _NEWEST * (time.monotonic() - warm.since - self.job)
                warm.jobs += 1
                if usable:
                    self._idle.append(warm)
            if not usable:
                process.end()
            self._free.notify()

    def close(self) -> None:
        """End those that are idle; the pool can be used on."""
        with self._free:
            while self._idle:
                self._idle.pop().process.end()

    def pids(self) -> list[int]:
        """The processes there are."""
        with self._free:
            return [warm.process.pid for warm in (*self._idle, *self._lent)]


_pools: list[Pool] = []
_open: set[Process] = set()


def _after_fork() -> None:
    """In a child of this process: the workers are the parent's."""
    for pool in _pools:
        pool._renew()
    for process in list(_open):
        process.end()  # only closes here


def _at_exit() -> None:
    for pool in _pools:
        pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
