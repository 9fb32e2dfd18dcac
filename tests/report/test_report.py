"""The page of `gluon run --html`: its contents. tests/browser opens it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from gluon_core.plugin.compiler import Compiler
from gluon_report.report import pages_of
from tests.report.pages import HERE, written

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


def line_of(name, text):
    lines = (HERE / f"{name}.py").read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return written("banks", folder, "--targets", "sim:hopper,sim:gfx1201").read_text()


class Balanced(HTMLParser):
    """Every element ends where it should; ids are there once."""

    VOID = {"meta", "input", "br", "wbr", "rect", "path", "line"}

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.outside = [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag == "a":
            self.links.append(attributes["href"])
        self.outside += [v for k, v in attrs if k in ("src", "href") and not v.startswith("#")]

    def handle_startendtag(self, tag, attrs):
        self.ids += [v for k, v in attrs if k == "id"]

    def handle_endtag(self, tag):
        # The ends of li may be left out.
        while self.open and self.open[-1] == "li" != tag:
            self.open.pop()
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(banks):
    parser = Balanced()
    parser.feed(banks)
    assert not parser.open and not parser.outside
    assert len(parser.ids) == len(set(parser.ids))
    assert {link[1:] for link in parser.links} <= set(parser.ids)
    assert not re.search(r"https?://(?!www\.w3\.org)", banks)


def test_the_heat_comes_first_and_each_line_has_its_numbers(banks):
    heads = re.search(r'class="sorted profile"><thead><tr>(.*?)</tr>', banks)[1]
    assert re.sub(r"<[^>]+>", " ", heads).split()[:4] == ["least", "time", "line", "source"]
    hopper = pages_of(banks)[0]["kernels"][0]
    most = max(hopper["lines"], key=lambda row: row["by"][0])
    assert most["at"] == f"0:{line_of('banks', 'buffer.load(column)')}"
    assert "shared" in most["cells"][0]


def test_the_cure_of_a_bank_conflict_is_one(banks):
    uses = {use["way"]: use for use in pages_of(banks)[0]["kernels"][0]["banks"]}
    # 32 bits of 64 x 64 elements: 128 passes at best. A lane reads four rows of a column.
    assert (uses["written"]["passes"], uses["written"]["ideal"]) == (128, 128)
    assert (uses["read"]["passes"], uses["read"]["ideal"]) == (1024, 128)
    assert uses["read"]["cured"] == uses["written"]["cured"] == 128
    assert uses["read"]["line"] == line_of("banks", "buffer.load(column)")


def test_the_cure_keeps_its_word(banks, tmp_path):
    cure = next(u["cure"] for u in pages_of(banks)[0]["kernels"][0]["banks"] if u["cure"])
    text = (
        (HERE / "banks.py")
        .read_text()
        .replace("gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", f"gl.{cure}")
    )
    assert cure in text
    file = tmp_path / "cured.py"
    file.write_text(text)
    pages = pages_of(written(file.with_suffix(""), tmp_path).read_text())
    assert [use["passes"] for use in pages[0]["kernels"][0]["banks"]] == [128, 128]


def test_a_page_of_several_targets_has_registers_and_code_of_each(banks):
    codes = {
        code["target"]: code
        for run in pages_of(banks)
        for kernel in run["kernels"]
        for code in kernel["code"]
    }
    assert set(codes) == {"nvidia:sm_90", "amd:gfx1201"}
    names = {t: [entry["name"] for entry in code["entries"]] for t, code in codes.items()}
    assert names == {"nvidia:sm_90": ["sass", "ptx", "ttgir"], "amd:gfx1201": ["amdgcn", "ttgir"]}
    for code in codes.values():
        assert code["facts"]["registers"] > 0 and code["facts"]["occupancy"] > 0
    wanted = {
        "sass": (r"\bLDS\b|\bLDS\.", "buffer.load(column)"),
        "ptx": (r"ld\.shared", "buffer.load(column)"),
        "ttgir": (r"ttg\.local_load", "buffer.load(column)"),
        "amdgcn": (r"\bds_(load|read)", "buffer.load(column)"),
    }
    for code in codes.values():
        for entry in code["entries"]:
            op, source = wanted[entry["name"]]
            lines = [place for text, *place in entry["lines"] if re.search(op, text)]
            assert lines and [f"0:{line_of('banks', source)}"] in lines, entry["name"]


def test_values_tell_their_layouts(banks):
    run = pages_of(banks)[0]
    place = f"0:{line_of('banks', 'buffer.load(column)')}"
    (converted,) = run["kernels"][0]["values"][place]
    assert converted["type"] == "tensor<64x64xfp32>"
    assert converted["layout"].startswith("BlockedLayout(size_per_thread=[4, 1]")
    assert run["pictures"][converted["picture"]]["svg"].startswith("<svg")


def test_a_deadlock_shows_the_cycle_of_waits(tmp_path):
    page = written("deadlock", tmp_path, "-t", "sim:hopper", code=1)
    (run,) = pages_of(page.read_text())
    (trouble,) = run["troubles"]
    parties = trouble["parties"]
    waits = {p["line"]: {parties[i]["line"] for i in p["waits_for"]} for p in parties}
    ready, empty = line_of("deadlock", "wait(ready"), line_of("deadlock", "wait(empty")
    says_ready, says_empty = (
        line_of("deadlock", "arrive(ready"),
        line_of("deadlock", "arrive(empty"),
    )
    assert waits[ready] == {says_ready} and waits[empty] == {says_empty}
    # ... and there is each that should have come.
    assert waits[says_ready] == {empty} and waits[says_empty] == {ready}


def test_a_race_shows_both_lines(tmp_path):
    page = written("race", tmp_path, "-t", "sim:hopper", code=1)
    (trouble,) = pages_of(page.read_text())[0]["troubles"]
    assert trouble["relation"] == "no order"
    lines = {party["line"] for party in trouble["parties"]}
    assert lines == {line_of("race", "async_copy_global"), line_of("race", "buffer.load")}
    assert page.read_text().count('class="party"') == 2


def test_kernels_without_a_launch_are_there(tmp_path):
    text = (HERE / "race.py").read_text().replace("buffer.load(L)", "buffer.load(out)")
    (tmp_path / "wrong.py").write_text(text)
    page = written(tmp_path / "wrong", tmp_path, "-t", "sim:hopper", code=1)
    (trouble,) = pages_of(page.read_text())[0]["troubles"]
    assert trouble["kernel"] == "early" and "wrong.py" in trouble["text"]


def test_impossible_requests_are_refused_at_once(tmp_path):
    with pytest.raises(AssertionError, match="the folder does not exist"):
        written("banks", tmp_path / "nowhere")
    with pytest.raises(AssertionError, match="(?s)only simulated kernels.*--target sim:sm_90"):
        written("banks", tmp_path, "-t", "nvidia:sm_90")


# -- the lines that texts are for ----------------------------------------------------------------------

MODULE = """
#loc1 = loc("a.py":3:4)
module {
  %0 = tt.x : i32 loc(#loc5)
  %1 = tt.y {t = "loc"} loc(callsite(#loc1 at #loc2))
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("b \\"q\\".py":9:1)
#loc5 = loc("n"(#loc2))
"""


def listed(text):
    """The lines of a text, as a backend without a reader of its own lists them."""
    return Compiler().listing("asm", {"asm": text})


def test_places_of_a_module():
    places = {line.text.split()[0]: (line.file, line.line) for line in listed(MODULE)}
    assert places["%0"] == ('b \\"q\\".py', 9)
    assert places["}"] == ("", 0)


def test_an_inlined_op_is_for_the_line_of_the_callee():
    text = MODULE.replace("loc(callsite(#loc1 at #loc2))", "loc(#loc7)")
    text += "#loc7 = loc(callsite(#loc1 at #loc2))\n"
    (line,) = [line for line in listed(text) if "tt.y" in line.text]
    assert (line.file, line.line) == ("a.py", 3) and "loc(" not in line.text


ASSEMBLY = """
\t.file\t1 "/there" "a.py"
\t.loc\t1 5 9 is_stmt 1 ; a.py:5:9
.Ltmp0:
\tv_add v0, v1
label:
\t.loc\t1 6 0, function_name $L__info0, inlined_at 1 9 2
\tv_sub v0, v1
\t.section\t.debug_info
\t.b8 1
"""


def test_places_of_assembly():
    places = [(line.text.strip(), line.line) for line in listed(ASSEMBLY)]
    assert places == [("v_add v0, v1", 5), ("label:", 0), ("v_sub v0, v1", 6)]
    assert listed(ASSEMBLY)[0].file == "/there/a.py"
