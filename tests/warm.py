"""New Python processes that need not import other projects again.

`run` is `subprocess.run` of this interpreter: a process of its own, its own working folder,
environment and output, forked from one that has imported NumPy, Triton, pytest and what draws tables.
It has imported nothing of Gluon Core, or the command `gluon` where that is to run. Starting these anew
took a third of the time of the tests that run commands.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Mapping, Optional, Sequence, Union

__all__ = ["run"]

# The command `gluon`, up to where it reads its arguments: none of these looks at the environment.
_COMMAND = (
    "gluon_cli.app",
    "gluon_core.language",
    "gluon_core.compiler.driver",
    "gluon_core.launch.miss",
)
# `torch.testing` imports the second at its first comparison, which takes longer than torch itself.
_TORCH = ("torch", "torch.distributed.tensor")
_SERVER = Path(__file__).parent / "warm_server.py"
# By the process that started it, and what it has imported beyond the others.
_servers: dict[tuple[int, tuple[str, ...]], subprocess.Popen] = {}


def run(
    words: Sequence[Union[str, Path]],
    *,
    cwd: Union[str, Path, None] = None,
    env: Optional[Mapping[str, str]] = None,
    timeout: float = 300.0,
    torch: bool = False,
    path: Sequence[Union[str, Path]] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `python words...`, with its output as text: `words` are a file, or -m and a module,
    and their arguments. With `torch`, that is imported already: for programs that would import it
    first. The folders of `path` come before the others that modules are looked for in.

    Raises:
        subprocess.TimeoutExpired: it ran longer than `timeout` seconds, and was killed.
    """
    words = [str(word) for word in words]
    environment = dict(os.environ if env is None else env)
    if _of_python(environment) != _of_python(os.environ):
        # The interpreter reads these when it starts.
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    command = _COMMAND if words[0] == "-m" and words[1] in ("gluon_cli", "gluon_core") else ()
    server = _server((*(_TORCH if torch else ()), *command))
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        asked = {"words": words, "cwd": str(cwd or os.getcwd()), "env": environment, "files": files}
        asked["path"] = [str(folder) for folder in path]
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        pid = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], timeout)[0]:
            os.kill(pid, 9)
            server.stdout.readline()
            raise subprocess.TimeoutExpired(words, timeout)
        code = int(server.stdout.readline())
        out, err = (Path(file).read_text() for file in files)
    return subprocess.CompletedProcess(words, code, out, err)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


def _server(more: tuple[str, ...]) -> subprocess.Popen:
    server = _servers.get((os.getpid(), more))
    if server is None or server.poll() is not None:
        server = subprocess.Popen(
            [sys.executable, str(_SERVER), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        _servers[os.getpid(), more] = server
    return server
