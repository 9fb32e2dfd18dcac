"""`gluon judge --mcp`: the judge as a server of the Model Context Protocol, for agents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Optional

from gluon_core.errors import GluonError
from gluon_judge.codes import CODES
from gluon_judge.errors import JudgeError
from gluon_judge.judging import Judge
from gluon_judge.report import schema

__all__ = ["serve", "server"]

_INSTRUCTIONS = (
    "Judge GPU kernels against a reference. `judge` returns a verdict (accepted, rejected, not enough evidence) with findings "
    "and the evidence for them; `explain_finding` says how a finding is detected and what to do about it."
)


def server() -> Any:
    """Return the server with its tools; its judges live as long as it does.

    Raises:
        JudgeError: the protocol's library is not installed.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise JudgeError(
            "the server needs the library of the protocol",
            got=str(error),
            remedy='pip install "gluon-extras[mcp]"',
        ) from None
    served = MCPServer("gluon-judge", instructions=_INSTRUCTIONS)
    judges: dict[Optional[str], Judge] = {}

    @served.tool()  # type: ignore[untyped-decorator]
    def judge(
        candidate: str,
        reference: str,
        problem: str = "",
        target: str = "",
        within: float = 60.0,
        claim: float = 0.0,
        seed: int = -1,
    ) -> dict[str, Any]:
        """Judge a candidate, a path FILE or FILE:FUNCTION, against a reference; return the report as JSON. A seed below 0 is drawn."""
        name = target or None
        try:
            if name not in judges:
                judges[name] = Judge(name)
            report = judges[name].judge(
                candidate,
                reference,
                problem or None,
                within=within,
                claim=claim or None,
                seed=None if seed < 0 else seed,
            )
        except GluonError as error:
            return {"error": error.as_dict()}
        return report.as_dict()

    @served.tool()  # type: ignore[untyped-decorator]
    def explain_finding(code: str) -> dict[str, Any]:
        """Explain the code of a finding: its meaning, its detection, an example and a remedy."""
        known = CODES.get(code)
        return {"error": f"no such code: {code}"} if known is None else asdict(known)

    @served.tool()  # type: ignore[untyped-decorator]
    def report_schema() -> dict[str, Any]:
        """Return the JSON schema of reports."""
        return schema()

    return served


def serve() -> None:
    """Serve on standard input and output until the client closes them."""
    server().run("stdio")
