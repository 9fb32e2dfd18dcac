"""Every block of Python and every `$` command of the documentation runs.

On a page, blocks run in order in one folder with the examples in it. A Python block that starts with
`# name.py` is saved under that name, and not run by itself where a command of the page runs it and
says how it fails, or where the page shows what it prints there alone; `exit code N` behind it or behind a command gives its exit code. `$ cat NAME`
shows a file, which is saved. The text below a command, or in a `text` block right below one of Python, is what it prints: `...` is anything.
Blocks of `sh`, `py` and `toml` are not run: they install things, need a GPU, or are fragments.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_build"))

import reference  # noqa: E402

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "guides").glob("*.md"),
        ROOT / "examples" / "README.md",
    ]
)
BLOCK = re.compile(
    r"^```(python|console)\n(.*?)^```$(?:\n\n?```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)


def blocks(page):
    return BLOCK.findall(page.read_text())


def commands(text):
    """The `$` lines of a block, each with what it shows of their output."""
    collected = []
    for line in text.splitlines():
        if line.startswith("$ "):
            collected.append((line, []))
        elif collected:
            collected[-1][1].append(line)
    return [(line, "\n".join(shown).strip("\n")) for line, shown in collected]


def check(shown, output, where):
    """Does a page show what came? Long lines are wrapped on a page."""
    if not shown:
        return
    pattern = ".*?".join(re.escape(" ".join(part.split())) for part in shown.split("..."))
    pattern = pattern.replace(".*?", r"\s*.*?\s*")
    came = " ".join(output.split())
    assert re.fullmatch(pattern, came, re.DOTALL), f"{where} prints\n{output}\nand not\n{shown}"


def run(command, folder, environment):
    done = warm.run(command, cwd=folder, env=environment)
    # A page says where a file of its own is as its reader has it.
    return done.returncode, (done.stdout + done.stderr).replace(f"{folder}/", "")


def command_line(line, environment):
    """The words of a `$` line, for our interpreter in place of the commands on the path."""
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    ours = {"python": [], "gluon": ["-m", "gluon_cli"]}
    return [*ours[words[0]], *words[1:]]


# Output is 80 columns wide; what Triton 3.9 says of a default of its own is no output of ours.
SAME = {"COLUMNS": "80", "NO_COLOR": "1", "TRITON_DEFAULT_FP_FUSION": "1"}

# The plugin on this page is installed first: test_plugin_page.py.
INSTALLED = {"plugins"}
NEEDS = {"prove": "z3", "first-kernel": "z3"}  # what a page cannot do without
RUN = [page for page in PAGES if blocks(page) and page.stem not in INSTALLED]


# The newcomer's path always runs; pages that others' tests cover as well are a campaign (tox -e docs).
COVERED = {
    "kernels", "tuning", "tutorials", "torch", "profiling", "bundles", "emulator", "emulator-ptx", "suites",
    "getting-started", "simulator", "bugs-it-finds", "prove",
}  # fmt: skip
COVERED_PAGES = {page for page in RUN if page.parent.name == "guides" or page.stem in COVERED}


def runs_later(name, printed, text):
    """Does a command of the page run a file that is to fail, or of which nothing is shown by itself?"""
    match = re.search(rf"^\$ gluon run {re.escape(name)}\b(.*)", text, re.MULTILINE)
    return bool(match) and ("# exit code" in match.group(1) or not printed)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem, marks=[pytest.mark.campaign] if page in COVERED_PAGES else []
        )
        for page in RUN
    ],
)
def test_a_page_runs(page, tmp_path):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    common = {k: v for k, v in os.environ.items() if k != "GLUON_TARGET"}
    common |= SAME
    for number, (kind, text, printed) in enumerate(blocks(page)):
        if kind == "python":
            name = re.match(r"# (\w+\.py)(?:, which ends with exit code (\d))?\n", text)
            file = tmp_path / (name.group(1) if name else "block.py")
            file.write_text(text)
            if name and runs_later(name.group(1), printed, page.read_text()):
                continue
            code, output = run([file], tmp_path, dict(common))
            wanted = int(name.group(2) or 0) if name else 0
            assert code == wanted, f"{page.name}, block {number}:\n{text}\n{output}"
            check(printed, output, f"{page.name}, block {number}")
            continue
        for line, shown in commands(text):
            if line.startswith("$ cat "):
                (tmp_path / line.removeprefix("$ cat ")).write_text(shown + "\n")
                continue
            environment = dict(common)
            command = command_line(line[2:], environment)
            wanted = re.search(r"# exit code (\d)", line)
            code, output = run(command, tmp_path, environment)
            assert code == int(wanted.group(1) if wanted else 0), f"{line}\n{output}"
            check(shown, output, line)


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.stem)
def test_every_command_shows_its_output(page):
    every = [one for kind, text, _ in blocks(page) if kind == "console" for one in commands(text)]
    silent = [line for line, shown in every if not shown]
    assert not silent, silent


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_links_lead_somewhere(page):
    generated = {str(ROOT / "docs" / path) for path in reference.pages()}
    prose = re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)\)", prose):
        place = os.path.normpath(page.parent / target)
        assert place in generated or os.path.exists(place), target


def test_the_list_of_examples_has_every_file():
    examples = ROOT / "examples"
    listed = re.findall(
        r"^\| `(\w+/\w+\.py)` \|", (examples / "README.md").read_text(), re.MULTILINE
    )
    others = ("ranks", "tutorials", "written")
    on_disk = {
        str(p.relative_to(examples)) for p in examples.glob("*/*.py") if p.parent.name not in others
    }
    assert sorted(on_disk) == sorted(listed)


def test_every_term_of_the_glossary_is_used():
    glossary = ROOT / "docs" / "glossary.md"
    terms = re.findall(r"^\| (?!term|---)([^|]+?) \|", glossary.read_text(), flags=re.MULTILINE)
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p != glossary]
    text = " ".join(re.sub(r"\s+", " ", page.read_text()).lower() for page in pages)
    unused = [term for term in terms if term.lower().removesuffix("s") not in text]
    assert len(terms) >= 80 and not unused
