"""`gluon judge --mcp`, driven by the protocol's own client."""

from __future__ import annotations

import json
import sys

import pytest

from tests.judge.candidates import CORPUS

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")
pytestmark = pytest.mark.once


def _content(result):
    return json.loads(result.content[0].text)


async def _session():
    import os

    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "gluon_core", "judge", "--mcp"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    async with stdio_client(command) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        tools = {tool.name for tool in (await session.list_tools()).tools}
        folder = CORPUS / "masked"
        files = {"reference": str(folder / "reference.py"), "problem": str(folder / "problem.toml")}
        candidate = str(folder / "cheat_ignores_mask.py")
        verdicts = {}
        texts = {
            "candidate": "def run(x):\n    return x + x\n",
            "reference": "PROBLEM = {'inputs': {'x': {'shape': ['N']}}, 'shapes': [{'N': 64}]}\n\n\n"
            "def run(x):\n    return 2 * x\n",
        }
        answers = {}

        async def ask(name, **asked):  # at the same time; another target would start others
            answers[name] = await session.call_tool("judge", {**asked, "target": "hopper"})

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ask("right", **texts))
            group.start_soon(lambda: ask("cheat_ignores_mask", candidate=candidate, **files))
        for name, answer in answers.items():
            verdicts[name] = _content(answer)
        missing = await session.call_tool("judge", {"candidate": "no.py", **files})
        unknown = await session.call_tool("explain_finding", {"code": "no.such"})
        code = verdicts["cheat_ignores_mask"]["findings"][0]["code"]
        explained = _content(await session.call_tool("explain_finding", {"code": code}))
        schema = _content(await session.call_tool("report_schema", {}))
        return tools, verdicts, (missing, unknown), explained, schema


def test_an_agent_judges_candidates():
    jsonschema = pytest.importorskip("jsonschema")
    tools, verdicts, failures, explained, schema = anyio.run(_session)
    assert tools == {"judge", "explain_finding", "report_schema"}
    assert verdicts["cheat_ignores_mask"]["verdict"] == "rejected"
    assert verdicts["right"]["verdict"] == "accepted"
    missing, unknown = failures
    assert missing.is_error and "no such file" in missing.content[0].text
    assert unknown.is_error and "cache.pointer" in unknown.content[0].text
    assert explained["name"] == "result.wrong" and explained["remedy"]
    for report in verdicts.values():
        jsonschema.validate(report, schema)
