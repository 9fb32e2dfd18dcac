"""One source in Triton's own Gluon and in ours, each in a process of its own.

`Case(source)` is a kernel as `tests.frontend.oracle` takes them. `verdict(case)` forks a child for
each side, so that neither an abort of the compiler nor anything it leaves behind reaches the next
case. Where we refuse what theirs traces, theirs is compiled to machine code as well: a refusal is
ours alone only if that works. On the command line, for files with such sources:

    python -m tests.compat.sides FILE...
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

from gluon_core import testing
from gluon_core.errors import GluonError
from tests.frontend import oracle

__all__ = ["Answer", "Verdict", "alone", "compiled", "traced_by", "verdict", "warm"]

_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """The end of one side: `ok`, `error`, `foreign` (an error that is none of ours), `abort` or `slow`."""

    how: str
    text: str = ""

    @property
    def first_line(self) -> str:
        lines = [line for line in self.text.splitlines() if line.strip()]
        return lines[0] if lines else ""

    @property
    def last_line(self) -> str:
        lines = [line for line in self.text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


@dataclass(frozen=True)
class Verdict:
    """Both answers, and theirs to a full compile where that decides.

    `kind` is `same`, `differs` (both trace, to other modules), `both refuse`, `theirs refuses`,
    `refused` (ours refuses what theirs compiles), `refused early` (theirs traces it, but its
    compile fails or aborts), `foreign` or `abort` (ours), or `slow` (no end within a minute).
    """

    kind: str
    ours: Answer
    theirs: Answer
    compiled: Optional[Answer] = None


def child(work: Callable[[], str]) -> Answer:
    """Run `work` in a fork; its string, its error, or the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, end = os.pipe()
    noise = tempfile.TemporaryFile()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(out)
            os.dup2(noise.fileno(), 1)
            os.dup2(noise.fileno(), 2)
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(_SECONDS)
            try:
                answer = ("ok", work())
            except GluonError as error:
                answer = ("error", str(error))
            except BaseException as error:
                kind = "foreign"
                answer = (kind, f"{type(error).__name__}: {error}")
            with os.fdopen(end, "wb") as pipe:
                pickle.dump(answer, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(end)
    with os.fdopen(out, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    noise.seek(0)
    printed = noise.read().decode(errors="replace")
    noise.close()
    if data:
        how, text = pickle.loads(data)
        return Answer(how, text if how == "ok" else f"{text}\n{_complaint(printed)}")
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1
    how = "slow" if number == signal.SIGALRM else "abort"
    return Answer(how, f"signal {number}\n{_complaint(printed)}")


def _complaint(printed: str) -> str:
    """Return the message of a compiler about its end, without the module and the stack."""
    lines = [
        line
        for line in printed.splitlines()
        if re.search(r"error:|Assertion|LLVM ERROR|UNREACHABLE|fatal|ptxas", line)
    ]
    return "\n".join(line[:400] for line in lines[:4])


def warm() -> None:
    """Load what every child needs, so that a fork costs milliseconds."""
    import torch  # noqa: F401  # descriptors of host code are made of its tensors

    empty = "@gluon.jit\ndef kernel():\n    pass\n"
    for arch in ("GPUTarget('cuda', 90, 32)", "GPUTarget('hip', 'gfx942', 64)"):
        for side in (oracle.ours, oracle.upstream):
            side(f"{empty}TARGET = {arch}\n")


def traced_by(side: Callable[..., Any], source: str) -> Answer:
    """The module that a side makes of a source, in normal form."""
    return child(lambda: _trimmed(oracle.renamed(testing.normalise(side(source)))))


def _trimmed(module: str) -> str:
    """The text of a module, without blanks around what is assembled inline."""
    return re.sub(r'(elementwise_inline_asm ")(?:\s|\\0A)*(.*?)(?:\s|\\0A)*(?=")', r"\1\2", module)


def compiled(source: str) -> Answer:
    """Compile the source in full with theirs; the kinds of its stages if it works."""
    with tempfile.TemporaryDirectory(prefix="gluon-sides-") as cache:
        return child(lambda: _compile(source, cache))


def _compile(source: str, cache: str) -> str:
    import triton
    from triton.compiler import make_backend
    from triton.experimental.gluon import _runtime
    from triton.runtime.jit import create_function_from_signature

    os.environ["TRITON_CACHE_DIR"] = cache
    module = oracle.load(source, oracle.UPSTREAM)
    kernel, target = module.kernel, module.TARGET
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    kwargs = {"sanitize_overflow": False, **module.KWARGS}
    bound, specialization, options = binder(*module.ARGS, **kwargs)
    options, signature, constexprs, attrs = kernel._pack_args(
        backend, kwargs, bound, specialization, options
    )
    src = _runtime.GluonASTSource(kernel, signature, constexprs, attrs)
    done = triton.compile(src, target=target, options=options.__dict__)
    return " ".join(sorted(done.asm))


def verdict(source: str) -> Verdict:
    """Compare both sides; see `Verdict`."""
    ours = traced_by(oracle.ours, source)
    theirs = traced_by(oracle.upstream, source)
    if ours.how in ("foreign", "abort", "slow"):
        return Verdict(ours.how, ours, theirs)
    if ours.how == "ok":
        if theirs.how != "ok":
            return Verdict("theirs refuses", ours, theirs)
        return Verdict("same" if ours.text == theirs.text else "differs", ours, theirs)
    if theirs.how != "ok":
        return Verdict("both refuse", ours, theirs)
    done = compiled(source)
    kind = {"ok": "refused", "slow": "slow"}.get(done.how, "refused early")
    return Verdict(kind, ours, theirs, done)


def alone(source: str) -> Verdict:
    """Trace a source by ours alone: `accepted`, `refused alone`, or as `verdict` has it."""
    ours = traced_by(oracle.ours, source)
    kind = {"ok": "accepted", "error": "refused alone"}.get(ours.how, ours.how)
    return Verdict(kind, ours, Answer("ok"))


def main(files: list[str]) -> None:
    for path in files:
        began = time.time()
        result = verdict(open(path, encoding="utf-8").read())
        print(f"{path}: {result.kind} ({time.time() - began:.1f} s)")
        for name in ("ours", "theirs", "compiled"):
            answer = getattr(result, name)
            if answer is not None and answer.how != "ok":
                print(f"  {name}: {answer.how}: {answer.text.strip()}".replace("\n", "\n    "))


if __name__ == "__main__":
    main(sys.argv[1:])
