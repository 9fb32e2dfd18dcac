"""`gluon judge --mcp`: the judge as a server of the Model Context Protocol, for agents."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from gluon_core.errors import GluonError
from gluon_judge.codes import CODES
from gluon_judge.errors import JudgeError
from gluon_judge.judging import Judge
from gluon_judge.report import schema

__all__ = ["serve", "server"]

_INSTRUCTIONS = (
    "Judge GPU kernels against a reference. `judge` returns a verdict (accepted, rejected, not enough evidence) with findings "
    "and the evidence for them; `explain_finding` says how a finding is detected and what to do about it. A problem without "
    "a file of its own is a name PROBLEM in the reference: a dict with `inputs`, `shapes`, `dims`, `dtypes` and `forbids`."
)


def server() -> Any:
    """Return the server with its tools; its judges live as long as it does.

    Raises:
        JudgeError: the protocol's library is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise JudgeError(
            "the server needs the library of the protocol",
            got=str(error),
            remedy='pip install "gluon-extras[mcp]"',
        ) from None
    served = MCPServer("gluon-judge", instructions=_INSTRUCTIONS)
    judges: dict[Optional[str], Judge] = {}
    one_at_a_time = threading.Lock()  # calls come in threads, and a judge has one set of processes

    @served.tool()  # type: ignore[untyped-decorator]
    def judge(
        candidate: str,
        reference: str,
        problem: str = "",
        target: str = "",
        on_gpu: bool = False,
        within: float = 60.0,
        patience: float = 30.0,
        claim: float = 0.0,
        seed: int = -1,
    ) -> dict[str, Any]:
        """Judge a candidate against a reference; return the report as JSON, which follows `report_schema`.

        Args:
            candidate: FILE or FILE:FUNCTION, or the text of a Python file.
            reference: the same, of the right results.
            problem: TOML or Python file with the inputs, or the text of a TOML file; "" where the reference states it.
            target: architecture such as "hopper", whose simulator runs the kernels; "" for the default.
            on_gpu: compare results and measure rates on the GPU of this machine, too.
            within: seconds after which no further check begins.
            patience: seconds of one call, after which it is killed.
            claim: seconds that the author claims for the largest case; 0 for none.
            seed: of the inputs; below 0 for a drawn one, which the report names.
        """
        name = target or None
        with one_at_a_time, tempfile.TemporaryDirectory(prefix="gluon-judge-files-") as folder:
            try:
                if name not in judges:
                    judges[name] = Judge(name)
                report = judges[name].judge(
                    _file(candidate, folder, "candidate.py"),
                    _file(reference, folder, "reference.py"),
                    _file(problem, folder, "problem.toml") or None,
                    on_gpu=on_gpu,
                    within=within,
                    patience=patience,
                    claim=claim or None,
                    seed=None if seed < 0 else seed,
                )
            except GluonError as error:
                raise ToolError(str(error)) from None
        return report.as_dict()

    @served.tool()  # type: ignore[untyped-decorator]
    def explain_finding(code: str) -> dict[str, Any]:
        """Explain the code of a finding, such as "cache.pointer": its meaning, its detection, an example and a remedy."""
        known = CODES.get(code)
        if known is None:
            raise ToolError(f"no such code: {code}. Known codes: {', '.join(sorted(CODES))}")
        return asdict(known)

    @served.tool()  # type: ignore[untyped-decorator]
    def report_schema() -> dict[str, Any]:
        """Return the JSON schema of reports."""
        return schema()

    return served


def _file(text: str, folder: str, name: str) -> str:
    """Return the path of a file, which is written first where its text is given."""
    if "\n" not in text:
        return text
    path = Path(folder, name)
    path.write_text(text, encoding="utf-8")
    return str(path)


def serve() -> None:
    """Serve on standard input and output until the client closes them."""
    server().run("stdio")
