"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from gluon_judge.codes import CODES
from gluon_judge.report import Finding, Report

__all__ = ["page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { display: inline-block; padding: .2rem .8rem; border-radius: .4rem; color: #fff; }
.accepted { background: #1a7f37 } .rejected { background: #b42318 } .open { background: #8a6100 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d0d7de; vertical-align: top }
pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; white-space: pre-wrap }
.error, .failed { color: #b42318 } .doubt, .warning, .skipped { color: #8a6100 } .passed { color: #1a7f37 }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } pre { background: #161b22 } }
"""


def page(report: Report) -> str:
    """Return the page of a report: the verdict, each finding with its meaning and remedy, the evidence."""
    kind = {"accepted": "accepted", "rejected": "rejected"}.get(report.verdict, "open")
    evidence = "".join(
        f'<tr><td class="{one.status}">{one.status}</td><td>{escape(one.name)}</td>'
        f"<td>{escape(one.text)}</td><td>{'needed' if one.needed else ''}</td></tr>"
        for one in report.evidence
    )
    isolation = "".join(f"<li>{escape(line)}</li>" for line in report.isolation)
    measured = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>"
        for name, value in report.measured.items()
    )
    findings = "".join(map(_finding, report.findings)) or "<p>None.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(report.verdict)}: {escape(report.candidate)}</title><style>{_STYLE}</style></head><body>"
        f'<h1><span class="verdict {kind}">{escape(report.verdict)}</span> {escape(report.candidate)}</h1>'
        f"<p>Against {escape(report.reference)} on {escape(report.target)}, {report.seconds:.1f} s.</p>"
        f"<h2>Findings</h2>{findings}"
        f"<h2>Evidence</h2><table>{evidence}</table>"
        + (f"<h2>Measured</h2><table>{measured}</table>" if measured else "")
        + f"<h2>Isolation</h2><ul>{isolation}</ul></body></html>\n"
    )


def _finding(one: Finding) -> str:
    code = CODES[one.code]
    where = f" at {one.file}:{one.line}" if one.line else ""
    case = f"<p>Inputs: {escape(one.case)}</p>" if one.case else ""
    evidence = f"<pre>{escape(one.evidence)}</pre>" if one.evidence else ""
    return (
        f'<h3 id="{code.name}"><span class="{one.severity}">{one.severity}</span> {code.name} ({escape(one.family)})</h3>'
        f"<p>{escape(one.text)}{escape(where)}</p>{case}{evidence}"
        f"<p>{escape(code.meaning)} Remedy: {escape(code.remedy)}</p>"
    )
