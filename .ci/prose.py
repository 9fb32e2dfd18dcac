"""Check the prose of the project: banned words, openings, the rate of "what", docstring first lines.

    python .ci/prose.py            # print the counts per package; exit 1 where a limit is exceeded
    python .ci/prose.py --list     # print every place, too
    python .ci/prose.py --commits  # check the subjects of commits since the rule, or of a RANGE

CONTRIBUTING.md holds the rule with examples.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[1]

#: Words with a better one: the field's term, or plain English.
BANNED = {
    "told": "say the verb: report, pass, print",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "mending": "fixing",
    "beside": "next to, in addition to",
    "stands": "is",
    "lies": "is",
    "turned": "transposed, rotated, converted",
}
#: Phrases in which a banned word is right.
ALLOWED = re.compile(
    r"stands? for|stands?[ _]in(?:_for)?\b|turned (?:on|off|into|out)\b|underlies|\blies (?:in|on) the (?:path|way)"
)
OPENINGS = re.compile(r"^(?:What|Whether|Of|Who)\b(?! course)")
QUOTED = re.compile(r"'[^' ]*'|\"[^\" ]*\"")
WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")  # noqa: RUF001
#: Names that say nothing of their value; of parameters, fields and locals, imports and captures included.
LOCALS = {
    "found",
    "made",
    "given",
    "told",
    "heard",
    "at",
    "said",
    "what",
    "who",
    "turned",
    "beside",
}

#: Other spellings of terms of docs/glossary.md.
SPELLINGS = {
    re.compile(pattern): term
    for pattern, term in {
        r"\b[sS]plit_?K\b": "split-K",
        r"\b[sS]tream[ _]?K\b": "stream-K",
        r"\b[sS]wap[ _]?AB\b": "swap-AB",
        r"\b[pP]ing[ _]?pong\b": "ping-pong",
        r"\bGemms?\b": "GEMM",
        r"\b(?:KV|kv)-caches?\b|\bkv caches?\b|\b[kK]ey[-/]value caches?\b": "KV cache",
        r"\b[wW]arp[- ]speciali[sz]ations?\b(?<!arp specialization)": "warp specialization",
        r"\b[mM]ain loops?\b": "mainloop",
        r"\b[aA]ll reduces?\b": "all-reduce",
        r"\b[aA]ll gathers?\b": "all-gather",
        r"\b[lL]og sum exp\b|\b[lL]ogsumexp\b": "log-sum-exp",
        r"\b[oO]n-line softmax\b": "online softmax",
        r"\b[cC]uda graphs?\b": "CUDA graph",
        r"\b[vV]ector-clocks?\b": "vector clock",
        r"\b[lL]ive-ranges?\b": "live range",
        r"\b[rR]oof line\b": "roofline",
        r"\b[mM]ulti-cast\w*\b": "multicast",
        r"\b[tT]op k\b": "top-k",
    }.items()
}

#: A word that begins like one of them: the spellings one by one took a quarter of the time.
ANY_SPELLING = re.compile(
    r"\bgemms?\b|\b(?:split|stream|swap|ping|kv|key|warp|main|all|log|on-line|cuda|vector|live|roof|multi|top)[ _/-]?\w",
    re.IGNORECASE,
)

MOST_WHAT = 3.0  # per 1,000 words, in each package
LEAST_YOU = 3.0  # per 1,000 words, over the guides

SUBJECT = re.compile(r"[a-z0-9_./ ,-]+: [a-z]\S*")
SUBJECT_LETTERS = 72

#: A verb in the third person or a noun where an imperative belongs is left to review; these cannot be one.
NO_VERB = re.compile(r"^(?:What|Whether|Of|Who|How|Why|Where|When|That)\b")

#: Names of tests in which a clause with "what" or a banned word stands for the noun or verb of the field.
TEST_NAME = re.compile(
    r"test_(?:\w*_)?(?:what|whatever|who|whoever|told|tells|heard|said|mended|turned|stands|beside|lies)(?:_|$)"
)

#: Docstrings of functions are imperatives; those of classes and modules may be noun phrases, and a test's states a fact.
#: A literal, in which a # begins no comment, or a comment.
STRING_OR_COMMENT = re.compile(
    r"""(\"{3}|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL
)
NOUN = re.compile(r"^(?:A|An|The|Its?|This|These|Each|All|Every|One|Two|Both|There|No)\b")


@dataclass
class Counts:
    """The counts of one package or one set of pages."""

    words: int = 0
    whats: int = 0
    you: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def what_rate(self) -> float:
        return 1000 * self.whats / self.words if self.words else 0.0

    @property
    def you_rate(self) -> float:
        return 1000 * self.you / self.words if self.words else 0.0


def tracked(*patterns: str) -> list[Path]:
    """Return the files under version control that match the patterns."""
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def without_code(text: str) -> str:
    """Return markdown without code: fenced blocks, spans, links' targets, comments."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"`[^`]*`", "`code`", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each paragraph of a text."""
    line, collected, start = 0, [], 1
    for line, content in enumerate(text.splitlines(), 1):
        if content.strip():
            if not collected:
                start = line
            collected.append(content.strip())
        elif collected:
            yield start, " ".join(collected)
            collected = []
    if collected:
        yield start, " ".join(collected)


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph at the ends of its sentences."""
    return [part.lstrip("-*>#|0123456789. ") for part in re.split(r"(?<=[.!?:])\s+", paragraph)]


def judge(counts: Counts, place: str, line: int, text: str) -> None:
    """Add the words and the problems of one text, which begins at `line` of `place`."""
    for first, paragraph in paragraphs(text):
        plain = re.sub(r"`[^`]*`", "`code`", paragraph)
        words = [word.lower() for word in WORD.findall(plain)]
        counts.words += len(words)
        counts.whats += len(WHAT.findall(plain)) if "what" in plain.lower() else 0
        counts.you += sum(words.count(word) for word in ("you", "your", "yours"))
        where = f"{place}:{line + first - 1}"
        if not BANNED.keys().isdisjoint(words):
            for word in WORD.findall(ALLOWED.sub(" ", plain)):
                if word.lower() in BANNED:
                    counts.problems.append(f"{where}: {word!r}: {BANNED[word.lower()]}")
        if ANY_SPELLING.search(plain) and place != "docs/glossary.md":
            unquoted = QUOTED.sub(" ", plain)
            for spelling, term in SPELLINGS.items():
                for other in spelling.findall(unquoted):
                    counts.problems.append(f"{where}: {other!r}: spell it {term!r}")
        for sentence in sentences(plain):
            if OPENINGS.match(sentence) and not sentence.rstrip().endswith("?"):
                counts.problems.append(
                    f"{where}: starts with {sentence.split()[0]!r}: {sentence[:60]}"
                )


def bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the names that one node of a syntax tree binds, other than functions and classes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield "local", name
        case ast.arg(arg=name):
            yield "argument", name
        case ast.alias(asname=str(name)):
            yield "import", name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield "capture", name
        case ast.MatchMapping(rest=str(name)) | ast.ExceptHandler(name=str(name)):
            yield "capture", name


#: The nodes for which `bound` yields something, other than loads of names: those are a third of all nodes.
BINDING = (
    ast.arg,
    ast.alias,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.MatchMapping,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Fields without nodes that anything here looks at, such as a name's context.
PLAIN = {"attr", "ctx", "conversion", "id", "kind", "level", "module", "op", "ops", "type_comment"}


@functools.cache
def holders(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold others."""
    return () if kind is ast.Constant else tuple(f for f in kind._fields if f not in PLAIN)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree, each before those that it holds; `ast.walk` takes three times as long."""
    todo = [tree]
    for node in todo:
        yield node
        for name in holders(type(node)):
            value = getattr(node, name, None)
            if type(value) is list:
                todo += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                todo.append(value)


def judge_python(counts: Counts, place: str, source: str) -> None:
    """Judge docstrings, comments, messages and the names of locals of a Python file."""
    docstrings = set()
    for node in nodes(ast.parse(source)):
        kind = type(node)
        if kind is ast.Name:
            if node.id in LOCALS:
                judge_names(counts, place, node)
        elif kind is ast.Constant:
            if type(node.value) is str and node.value.count(" ") >= 3:
                if id(node) not in docstrings:
                    judge(counts, place, node.lineno, node.value)
        elif kind in DOCUMENTED:
            if text := ast.get_docstring(node):
                docstrings.add(id(node.body[0].value))
                judge_docstring(counts, place, node, text)
            if isinstance(node, ast.FunctionDef) and TEST_NAME.match(node.name):
                counts.problems.append(f"{place}:{node.lineno}: test name {node.name!r}")
        elif kind in BINDING:
            judge_names(counts, place, node)
    line, seen = 1, 0
    for token in STRING_OR_COMMENT.finditer(source):
        comment = token.group()
        if comment[0] == "#" and not comment.startswith(("#!", "#>", "# noqa", "# type:")):
            line, seen = line + source.count("\n", seen, token.start()), token.start()
            judge(counts, place, line, comment.lstrip("#: "))


def judge_names(counts: Counts, place: str, node: ast.AST) -> None:
    """Judge the names that a node binds."""
    for kind, name in bound(node):
        if name in LOCALS:
            counts.problems.append(f"{place}:{node.lineno}: {kind} {name!r}: name what it holds")


def judge_docstring(counts: Counts, place: str, node: ast.AST, text: str) -> None:
    """Judge a docstring: its words, and how its first line opens."""
    line = node.body[0].lineno
    judge(counts, place, line, text)
    first = text.splitlines()[0]
    if NO_VERB.match(first) and not OPENINGS.match(first):
        counts.problems.append(f"{place}:{line}: docstring opens with {first[:50]!r}")
    function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if function and NOUN.match(first) and not place.startswith("tests/"):
        counts.problems.append(f"{place}:{line}: no imperative: {first[:50]!r}")


def judge_c(counts: Counts, place: str, source: str) -> None:
    """Judge the comments of a C file."""
    for comment in re.finditer(r"/\*.*?\*/|//[^\n]*", source, re.S):
        line = source.count("\n", 0, comment.start()) + 1
        judge(counts, place, line, re.sub(r"^[\s/*]+|\s*\*/$", "", comment.group(), flags=re.M))


def package_of(path: Path) -> str:
    """Return the package that a file is counted with."""
    parts = path.relative_to(ROOT).parts
    if path.suffix == ".md":
        return "guides" if "guides" in parts else "pages"
    if parts[0] == "backends" or parts[0] in ("extras", "kernels", "runtime"):
        return next((part for part in parts if part.startswith("gluon_")), parts[0])
    return parts[0]


def measure() -> dict[str, Counts]:
    """Return the counts of each package, of the pages and of the guides."""
    packages: dict[str, Counts] = {}
    gc.disable()  # trees hold no cycles
    for path in tracked("*.py", "*.md", "*.c", "*.h"):
        place = str(path.relative_to(ROOT))
        if place == ".ci/prose.py" or place.startswith(("docs/pictures", "docs/_build")):
            continue
        text = path.read_text(encoding="utf-8")
        counts = packages.setdefault(package_of(path), Counts())
        if path.suffix == ".md":
            judge(counts, place, 1, without_code(text))
        elif path.suffix == ".py":
            judge_python(counts, place, text)
        else:
            judge_c(counts, place, text)
    return packages


def since_the_rule() -> str:
    """Return the range of commits after the one that added this file; all where history is cut."""
    added = subprocess.run(
        ["git", "log", "--diff-filter=A", "--format=%H", "--", ".ci/prose.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return f"{added[-1]}..HEAD" if added else "HEAD"


def commit_problems(revisions: str) -> list[str]:
    """Return the subjects in a range of commits that break the rule."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h %s", revisions],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    problems = []
    for line in log.stdout.splitlines():
        commit, subject = line.split(" ", 1)
        if len(subject) > SUBJECT_LETTERS:
            problems.append(
                f"{commit}: {len(subject)} letters in the subject, at most {SUBJECT_LETTERS}"
            )
        if not SUBJECT.match(subject):
            problems.append(f"{commit}: the subject is not `area: imperative`: {subject}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every place")
    parser.add_argument("--only", help="print places of this package only")
    parser.add_argument(
        "--commits", metavar="RANGE", nargs="?", const="", help="check commit subjects instead"
    )
    options = parser.parse_args()
    if options.commits is not None:
        problems = commit_problems(options.commits or since_the_rule())
        print("\n".join(problems) or "commit subjects: ok")
        return bool(problems)
    packages = measure()
    print(f"{'package':<20} {'words':>8} {'what/1000':>10} {'you/1000':>9} {'problems':>9}")
    failed = False
    for name, counts in sorted(packages.items()):
        print(
            f"{name:<20} {counts.words:>8} {counts.what_rate:>10.1f} {counts.you_rate:>9.1f} "
            f"{len(counts.problems):>9}"
        )
        if counts.what_rate > MOST_WHAT or counts.problems:
            failed = True
        if options.list and options.only in (None, name):
            print("\n".join(f"    {problem}" for problem in counts.problems))
    guides = packages.get("guides")
    if guides and guides.you_rate < LEAST_YOU:
        print(f"guides: 'you' {guides.you_rate:.1f} per 1,000 words, at least {LEAST_YOU}")
        failed = True
    kinds = Counter(
        problem.split(": ", 1)[1].split(":")[0].split(" ")[0]
        for c in packages.values()
        for problem in c.problems
    )
    print("most frequent:", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(12)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
