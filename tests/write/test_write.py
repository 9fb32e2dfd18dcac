"""`gluon write`: explicit source that compiles to the code of the kernel without layouts."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_cli.launched import forms
from gluon_cli.output import UsageError
from gluon_core.compiler import driver
from gluon_core.errors import GluonError, LayoutError, StaticAssertionError
from gluon_core.registry.load import registry
from gluon_write import command
from gluon_write.command import written
from gluon_write.preferred import preferred_form
from gluon_write.text.tidy import tidied
from tests import warm

pytestmark = [pytest.mark.once, pytest.mark.sampled(6)]

FILE = '''"""A softmax of rows, a transpose and a product."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def softmax(x, out, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    """Normalize ROWS rows."""
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    column = gl.arange(
        0,
        BLOCK,
    )
    inside = column[None, :] < N  # the rest is padding
    place = row[:, None] * N + column[None, :]
    values = gl.load(x + place, mask=inside, other=-float("inf"))
    values = gl.exp(values - gl.max(values, 1)[:, None])
    gl.store(out + place, values / gl.sum(values, axis=1)[:, None], mask=inside)


@gluon.jit(layouts="auto", debug=False)
def transpose(x, out, M, N, BLOCK: gl.constexpr):
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    gl.store(out + column * M + row, gl.load(x + row * N + column))


@gluon.jit(layouts="auto")
def product(a, b, c, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    place = i[:, None] * BLOCK + i[None, :]
    acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32)
    gl.store(c + place, gl.portable.mma(gl.load(a + place), gl.load(b + place), acc))


@gluon.jit(layouts="auto")
def exchanged(x, out, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """Exchange the axes of a tile, whose indices the store needs in another layout."""
    row = gl.program_id(0) * BM + gl.arange(0, BM)
    column = gl.program_id(1) * BN + gl.arange(0, BN)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tile = gl.permute(gl.load(x + row[:, None] * N + column[None, :], mask=inside), [1, 0])
    inside = (column[:, None] < N) & (row[None, :] < M)
    gl.store(out + column[:, None] * M + row[None, :], tile, mask=inside)


if __name__ == "__main__":
    x = np.arange(32 * 64, dtype=np.float32).reshape(32, 64) / 100
    out, transposed = np.zeros_like(x), np.zeros((64, 32), np.float32)
    softmax[(4,)](x, out, 64, 8, 64)
    assert np.allclose(out.sum(1), 1, atol=1e-5)
    transpose[(1, 2)](x, transposed, 32, 64, 32)
    assert (transposed == x.T).all()
    a = np.eye(64, dtype=np.float16)
    c = np.zeros((64, 64), np.float32)
    product[(1,)](a, a, c, 64)
    assert (c == a).all()
    transposed[:] = 0
    exchanged[(1, 2)](x, transposed, 32, 64, 32, 32)
    assert (transposed == x.T).all()
'''
SUMS = '''

@gluon.jit(layouts="auto")
def gemv(a, x, keep, y, N, BM: gl.constexpr, BN: gl.constexpr):
    """Multiply a matrix by a vector, and by the part of it that is kept."""
    m = gl.arange(0, BM)
    acc = gl.zeros([BM, BN], gl.float32)
    for start in range(0, N, BN):
        n = start + gl.arange(0, BN)
        factor = gl.load(x + n, mask=n < N, other=0.0)
        acc += gl.load(a + m[:, None] * N + n[None, :]) * factor[None, :]
    tile = m[:, None] * BN + gl.arange(0, BN)[None, :]
    kept = gl.load(keep + 1 + tile) != 0
    acc += gl.load(a + tile, mask=kept, other=0.0)
    gl.store(y + m, gl.sum(acc, axis=1))


if __name__ == "__main__":
    a, y = np.ones((16, 256), np.float32), np.zeros(16, np.float32)
    gemv[(1,)](a, a[0], np.ones(4097, np.int8), y, 256, 16, 256)
    assert (y == 512).all()
'''
FORMS = {
    "softmax": ({"x": "*fp32:16", "out": "*fp32:16", "N": "i32:16"}, {"ROWS": 8, "BLOCK": 64}),
    "transpose": (
        {"x": "*fp32:16", "out": "*fp32:16", "M": "i32:16", "N": "i32:16"},
        {"BLOCK": 32},
    ),
    "product": ({"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16"}, {"BLOCK": 64}),
    "exchanged": (
        {"x": "*fp32:16", "out": "*fp32:16", "M": "i32:16", "N": "i32:16"},
        {"BM": 32, "BN": 32},
    ),
    "gemv": (
        {"a": "*fp32:16", "x": "*fp32:16", "keep": "*i8:16", "y": "*fp32:16", "N": "i32:16"},
        {"BM": 16, "BN": 256},
    ),
}


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(module, name, target, key):
    signature, constexprs = FORMS[name]
    kernel = getattr(module, name)
    text = gluon.compile(kernel, target=target, signature=signature, constexprs=constexprs).asm[key]
    lines = (line.partition("//")[0].partition(";")[0].rstrip() for line in text.splitlines())
    debug = (".loc", ".file", ".section", ".b8", ".b32", ".b64", ".ascii", ".Ltmp", "$L__tmp")
    kept = [line for line in lines if line and not line.strip().startswith(debug)]
    ends = [i for i, line in enumerate(kept) if "s_endpgm" in line or line.strip() == "ret"]
    assert ends and ends[-1] > 20
    return kept[: ends[-1]]


@pytest.mark.parametrize("target, key", [("sm_90", "ptx"), ("gfx942", "amdgcn")])
def test_written_source_is_the_same_code(tmp_path, target, key):
    path = tmp_path / "auto.py"
    path.write_text(FILE + SUMS)
    text, kernels = written(str(path), registry().target(target))
    assert kernels == ["softmax", "transpose", "product", "exchanged", "gemv"]
    for note in ("# A step loads for the next one", "# All loads above start"):
        assert (note in text) == (target == "sm_90")
    assert 'layouts="auto"' not in text and "# the rest is padding" in text
    assert "next best" in text and "# demanded by the matrix unit" in text
    # Reasons name what an access reaches: another form of a kernel has other lines.
    assert "# load of x: " in text and "# store to out: " in text
    assert not re.search(r"#.*\bline \d", text)
    explicit = tmp_path / "explicit.py"
    explicit.write_text(text)
    auto, by_hand = imported(path), imported(explicit)
    for name in kernels:
        assert getattr(by_hand, name).layouts is None
        assert code(auto, name, target, key) == code(by_hand, name, target, key), name


def test_command_proves_and_keeps(tmp_path):
    path = tmp_path / "auto.py"
    path.write_text(FILE)
    command = ["-m", "gluon_core", "write", path, "-t", "sm_90"]
    done = warm.run([*command, "--to", tmp_path / "out"], timeout=120)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "auto_sm_90.py").read_text()
    assert "# proved: product" in text and "\nproved: product on sim:sm_90" in done.stdout
    assert text.startswith('"""A softmax')
    several = warm.run([*command[:-1], "sm_90,gfx942"], timeout=120)
    assert several.returncode == 0, several.stderr
    heads = [line for line in several.stdout.splitlines() if line.startswith("# ====")]
    assert heads == ["# ==== auto_sm_90.py ====", "# ==== auto_gfx942.py ===="]
    unknown = warm.run([*command[:-1], "sm_90,,gfx942", "--to", tmp_path / "none"], timeout=120)
    assert unknown.returncode == 2 and not (tmp_path / "none").exists()
    nothing = tmp_path / "nothing.py"
    nothing.write_text("x = 1\n")
    done = warm.run([*command[:3], nothing], timeout=120)
    assert done.returncode != 0


SEVERAL = '''"""One kernel with two tiles, two dtypes, and a switch."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def scaled(x, y):
    return x * gl.sum(y, axis=1)[:, None]


@gluon.jit(layouts="auto")
def rows(x, out, N, ROWS: gl.constexpr, BLOCK: gl.constexpr, ACROSS: gl.constexpr):
    """Store rows times their sums, or columns."""
    if ACROSS:
        i, j = gl.arange(0, BLOCK), gl.arange(0, ROWS)
        gl.store(out + j[None, :] * N + i[:, None], gl.load(x + j[None, :] * N + i[:, None]))
    else:
        place = gl.arange(0, ROWS)[:, None] * N + gl.arange(0, BLOCK)[None, :]
        values = gl.load(x + place)
        gl.store(out + place, scaled(values, values))


if __name__ == "__main__":
    for dtype, size, across, warps in (
        (np.float32, 64, False, 4), (np.float32, 32, False, 4), (np.float16, 64, False, 4),
        (np.float32, 64, True, 4), (np.float32, 64, False, 8), (np.int8, 64, True, 4), (np.uint16, 64, True, 4),
    ):
        x = (np.arange(16 * size) % 7).astype(dtype).reshape(16, size)
        out = np.zeros_like(x)
        rows[(1,)](x, out, size, 16, size, across, num_warps=warps)
        assert (out == (x if across else x * x.sum(1, keepdims=True))).all()
'''


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_kernel_with_several_constants_chooses_among_functions(tmp_path, monkeypatch, target):
    path = tmp_path / "several.py"
    path.write_text(SEVERAL)
    text, kernels = written(str(path), registry().target(target))
    assert kernels == ["rows"] and "auto" not in text and "def rows_1(" in text
    assert "if ROWS" not in text and "static_assert(" in text
    explicit = tmp_path / "explicit.py"
    explicit.write_text(text)
    monkeypatch.setenv("GLUON_TARGET", f"sim:{target}")
    runpy.run_path(str(explicit), run_name="__main__")
    rows = runpy.run_path(str(explicit))["rows"]
    x = np.zeros((16, 128), np.float32)
    with pytest.raises(StaticAssertionError, match="rows has no layouts for these arguments"):
        rows[(1,)](x, x, 128, 16, 128, False, target=f"sim:{target}")


SWITCH = """import numpy as np
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def moved(x, B: gl.constexpr, UP: gl.constexpr):
    if UP:
        gl.store(x + gl.arange(0, B), gl.load(x + gl.arange(0, B)) + 1)
    else:
        gl.store(x + gl.arange(0, 4), -1.0)


if __name__ == "__main__":
    for up in (True, False):
        moved[(1,)](np.zeros(128, np.float32), 128, up)
"""


def test_two_sides_of_a_switch_need_no_assertion(tmp_path):
    path = tmp_path / "switch.py"
    path.write_text(SWITCH)
    text, _ = written(str(path), registry().target("sm_90"))
    assert "    if UP:\n        moved_1(x, B, UP)\n    else:\n        moved_2(x, B, UP)\n" in text
    assert "static_assert" not in text.partition("def moved(")[2]


ALIGNED = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def spread(x, out, n, down, across, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    i, j = gl.arange(0, ROWS)[:, None], gl.arange(0, BLOCK)[None, :]
    inside = j < n
    values = gl.load(x + i * down + j * across, mask=inside)
    gl.store(out + i * down + j * across, values + 1, mask=inside)


if __name__ == "__main__":
    for n, strides in ((64, (64, 1)), (50, (50, 1)), (64, (1, 64))):
        x, out = np.arange(64 * n, dtype=np.float32), np.zeros(64 * n, np.float32)
        spread[(1,)](x, out, n, *strides, 64, 64)
        assert (out == x + 1).all()
"""


def test_launches_of_other_alignment_have_functions_of_their_own(tmp_path, monkeypatch):
    """The host finds multiples of 16; a stride of 1 is known when the kernel is compiled."""
    target = registry().target("sm_90")
    path, explicit = tmp_path / "spread.py", tmp_path / "explicit.py"
    path.write_text(ALIGNED)
    text, _ = written(str(path), target)
    assert 'for name in ("down", "n"))' in text and "import triton\n" in text
    assert "if isinstance(down, gl.tensor):" in text and "        if ALIGNED:\n" in text
    assert "# store to out: 16 bytes a thread" in text and "# store to out: 4 bytes" in text
    explicit.write_text(text)
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    runpy.run_path(str(explicit), run_name="__main__")
    codes = []
    for file in (path, explicit):
        compiled = [
            gluon.compile(form.source, target=target, options=form.options)
            for form in forms(str(file), target, None, {}, {})
        ]
        listed = (re.findall(r"\b(?:ld|st)\.global[.\w]*", one.asm["ptx"]) for one in compiled)
        codes.append(list(listed))
    assert codes[0] == codes[1] and "st.global.v4.b32" in codes[0][0]


def test_stages_are_those_of_the_launch(tmp_path):
    path = tmp_path / "staged.py"
    text = (Path(__file__).parents[2] / "examples" / "written" / "gemm.py").read_text()
    path.write_text(text.replace("128, 128, 64)", "128, 128, 64, num_stages=4)"))
    with preferred_form("pipelined"):
        text, _ = written(str(path), registry().target("sm_90"))
    assert "A ring of 4 buffers" in text


def test_the_reason_of_the_prover(tmp_path, monkeypatch, capsys):
    path = tmp_path / "several.py"
    path.write_text(SEVERAL)
    real = command.Runs
    monkeypatch.setattr(command, "Runs", lambda **words: real(**{**words, "within": 1e-9}))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    assert command.show(str(path), "sm_90", tmp_path / "out", prove=True) == 3
    note = "not decided: rows on sim:sm_90: the time is over"
    assert (
        note in capsys.readouterr().out
        and "# " + note in (tmp_path / "out" / "several_sm_90.py").read_text()
    )


def test_a_proof_is_of_the_kernel_of_that_name_alone(tmp_path, monkeypatch, capsys):
    path = tmp_path / "names.py"
    one = '@gluon.jit(layouts="auto")\ndef {}(x, B: gl.constexpr):\n    gl.store(x + gl.arange(0, B), 1.0)\n'
    path.write_text(
        "import pathlib\nimport numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        + one.format("add")
        + one.format("add_many")
        + "x = np.zeros(128, np.float32)\nadd_many[(1,)](x, 128)\n"
        + f"if pathlib.Path(__file__).parent == pathlib.Path({str(tmp_path)!r}):\n    add[(1,)](x, 128)\n"
    )
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    assert command.show(str(path), "sm_90", tmp_path / "out", prove=True) == 3
    shown = capsys.readouterr().out
    assert "not decided: add: the file does not launch it" in shown and "proved: add_many" in shown


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("raise AssertionError('as before')", 0, "proved: add"),
        ("add[(1,)](x, 3)", 0, "line 10, ended with ShapeError: end: arange needs a positive"),
        ("add[(1,)](x, 256)", 1, "fails: add on sim:sm_90: its launch ends with the error above"),
        ("assert 'layouts=' in text, 'changed'", 1, "ends with AssertionError: changed"),
        ("raise SystemExit(0 if 'layouts=' in text else 4)", 1, "ends with exit code 4"),
    ],
)
def test_a_written_file_that_fails_is_not_kept(tmp_path, monkeypatch, capsys, end, code, words):
    """A written file may end with an exception if the file itself does."""
    path = tmp_path / "checked.py"
    path.write_text(
        "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        '@gluon.jit(layouts="auto")\ndef add(x, B: gl.constexpr):\n    gl.store(x + gl.arange(0, B), 1.0)\n'
        "text = open(__file__).read().partition('x =')[0]\n"
        f"x = np.zeros(128, np.float32)\nadd[(1,)](x, 128)\n{end}\n"
    )
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    assert command.show(str(path), "sm_90", tmp_path / "out", prove=True) == code
    shown = capsys.readouterr()
    assert words in shown.out + shown.err and "Traceback" not in shown.err
    assert (tmp_path / "out" / "checked_sm_90.py").is_file() == (code == 0)


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_file_that_launches_nothing_says_so(tmp_path, kernels):
    path = tmp_path / "quiet.py"
    head = "import gluon_core as gluon\nfrom gluon_core import language as gl\n"
    one = '@gluon.jit(layouts="auto")\ndef kernel_{}(x, B: gl.constexpr):\n    gl.store(x + gl.arange(0, B), 1.0)\n'
    path.write_text(head + "".join(one.format(i) for i in range(kernels)))
    for spec, word in ((path, "kernel"), (f"{path}:kernel_0", "kernel_0")):
        with pytest.raises(UsageError, match=f"quiet.py launches no {word}; .*__main__"):
            written(str(spec), registry().target("sm_90"))
    with pytest.raises(UsageError, match="has no kernel 'kernel_7'"):
        written(f"{path}:kernel_7", registry().target("sm_90"))
    path.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UsageError, match="quiet.py cannot be imported: SystemExit: 3"):
        written(str(path), registry().target("sm_90"))
    for last, word in (('kernel_0[(1,)]("text", 8)\n', "kernel_0"), (one.format(2), "auto")):
        path.write_text(head + one.format(0) + last.replace('"auto"', '"Auto"'))
        with pytest.raises(GluonError) as caught:
            written(str(path), registry().target("sm_90"))
        assert (caught.value.span.line, word in caught.value.span.text.lower()) == (6, True)


def test_vectors_that_no_step_reads_are_left_out():
    text = "def kernel(x, n, B):\n    for k in range(0, n, B):\n        ks = k + gl.arange(0, B, layout=lay)\n        x += 1\n    return x\n"
    assert tidied(text, text, "gl") == text.replace(
        "        ks = k + gl.arange(0, B, layout=lay)\n", ""
    )


def runs_as_written(path, monkeypatch, target="sm_90"):
    """Return the written text of a file whose checks hold as before."""
    text, _ = written(str(path), registry().target(target))
    path.write_text(text)
    monkeypatch.setenv("GLUON_TARGET", f"sim:{target}")
    runpy.run_path(str(path), run_name="__main__")
    return text


def test_functions_of_other_files(tmp_path, monkeypatch):
    """Functions are copied, and the file imports the names that their texts read."""
    monkeypatch.syspath_prepend(str(tmp_path))
    head = "import gluon_core as gluon\nfrom gluon_core import language as gl\n"
    (tmp_path / "shared_steps.py").write_text(
        "from gluon_core import jit, language as lang\nONE = lang.constexpr(1.0)\nK = lang.constexpr(2.0)\n"
        "@jit\ndef ones(N: lang.constexpr):\n    return lang.full([N], ONE, lang.float32)\n"
        "@jit\ndef twice(x):\n    return x * K\n"
        "@jit\ndef grown(x, N: lang.constexpr):\n    return twice(x) + ones(N)\n"
        "def factory(by):\n    @jit\n    def added(x, N: lang.constexpr):\n        return x + lang.full([N], by, lang.float32)\n"
        "    return added\nadded = factory(lang.constexpr(3.0))\n"
    )
    path = tmp_path / "kernel.py"
    path.write_text(
        f"import numpy as np\n{head}import shared_steps as steps\nfrom shared_steps import grown as more\nK = 7\n"
        '@gluon.jit(layouts="auto")\ndef kernel(x, N: gl.constexpr):\n    i = gl.arange(0, N)\n'
        "    gl.store(x + i, steps.added(steps.grown(more(gl.load(x + i), N), N), N))\n"
        'if __name__ == "__main__":\n    x = np.zeros(64, np.float32)\n    kernel[(1,)](x, 64)\n    assert (x == 6).all() and K == 7\n'
    )
    text = runs_as_written(path, monkeypatch)
    assert "# From shared_steps.py." in text and "steps.added" not in text
    imports = text[: text.index("import gluon_core")].splitlines()
    assert (
        "from shared_steps import ONE" in imports
        and "from gluon_core import language as lang" not in imports
    )


def test_constants_that_are_no_numbers_tell_launches_apart(tmp_path, monkeypatch):
    """Functions, tuples, layouts, and what the function around a kernel passes it; else an error names them."""
    head = "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
    text = (
        f"{head}@gluon.jit\ndef plain(x):\n    return x + 1\n"
        "def factory(by):\n    @gluon.jit\n    def ramp(x):\n        return x + by * gl.arange(0, 64)\n"
        '    @gluon.jit(layouts="auto")\n    def kernel(x):\n        i = gl.arange(0, by * 64)\n        gl.store(x + i, by + gl.sum(gl.load(x + i), 0))\n'
        "    return ramp, kernel\n"
        "ramp, one = factory(gl.constexpr(1))\n_, more = factory(gl.constexpr(16))\n"
        '@gluon.jit(layouts="auto")\ndef kernel(x, F: gl.constexpr, W: gl.constexpr):\n    i = gl.arange(0, 64)\n    x += i\n'
        "    for j in gl.static_range(len(W)):\n        gl.store(x, F(gl.load(x)) * W[j])\n"
        'if __name__ == "__main__":\n    for F, W, end in FORMS:\n        x = np.zeros(64, np.float32)\n'
        "        kernel[(1,)](x, F, W)\n        assert x[1] == end\n"
        "    for k, by in (one, 1), (more, 16):\n        x = np.ones(1024, np.float32)\n        k[(1,)](x)\n        assert x[0] == 65 * by\n"
    )
    path = tmp_path / "kernel.py"
    forms = "[(plain, (2,), 2), (ramp, (2, 3), 9), (ramp, (), 0), (plain, (2, 4), 12)]"
    path.write_text(text.replace("FORMS", forms))
    changed = runs_as_written(path, monkeypatch)
    assert all(word in changed for word in ("F == plain", "len(W) == 2", "by == 1")), changed
    path.write_text(
        text.replace("FORMS", "[(factory(gl.constexpr(n))[0], (1,), n) for n in (1, 2)]")
    )
    with pytest.raises(
        LayoutError, match="launches of kernel with .* need functions of their own, and F is no"
    ):
        written(str(path), registry().target("sm_90"))


def test_two_kernels_of_one_name(tmp_path, monkeypatch):
    path = tmp_path / "kernel.py"
    kernel = '@gluon.jit(layouts="auto")\ndef kernel(x):\n    gl.store(x + gl.arange(0, 64), {})\n'
    path.write_text(
        "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        f"{kernel.format(1)}one = kernel\n{kernel.format(2)}\nx = np.zeros(64, np.float32)\n"
        "one[(1,)](x)\nassert (x == 1).all()\nkernel[(1,)](x)\nassert (x == 2).all()\n"
    )
    assert "auto" not in runs_as_written(path, monkeypatch)


def test_a_text_wants_no_machine_code(tmp_path, monkeypatch):
    """The simulator says how a kernel is launched; its machine code, which may take minutes, is not asked for."""
    names = []
    run_stages = driver.run_stages

    def noted(stages, *args, **words):
        names.extend(stage.name for stage in stages)
        return run_stages(stages, *args, **words)

    monkeypatch.setattr(driver, "run_stages", noted)
    path = tmp_path / "text.py"
    head = "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
    path.write_text(
        f'{head}@gluon.jit(layouts="auto")\ndef filled(x, B: gl.constexpr):\n    gl.store(x + gl.arange(0, B), 7.0)\n'
        'if __name__ == "__main__":\n    filled[(1,)](np.zeros(64, np.float32), 64, num_warps=2)\n'
    )
    text, kernels = written(str(path), registry().target("sm_90"))
    assert kernels == ["filled"] and "[2], [0])" in text
    assert not {"ptx", "cubin"} & set(names)


TABS = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def pairs(v, N: gl.constexpr):
    for s in gl.static_range(2):
        low, high = gl.split(gl.reshape(v, [N >> s + 1, 2]))
        v = low + high
    return v


@gluon.jit(layouts="auto")
def gemm(a, b, c, K, B: gl.constexpr):
    row, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.load(a + row * K + k + lane)
        acc = gl.portable.mma(x, gl.load(b + (k + row) * B + lane), acc)
    gl.store(c + gl.arange(0, B // 4), pairs(gl.sum(acc, 1), B))


a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float16)
c = np.zeros(8, np.float32)
gemm[(1,)](a, b, c, 32, 32)
wanted = (a.astype(np.float32) @ b.astype(np.float32)).reshape(8, 4, 32).sum((1, 2))
"""


def test_tabs_indent_as_spaces_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    path = tmp_path / "tabs.py"
    path.write_text(TABS.replace("    ", "\t"))
    path.write_text(written(str(path), registry().target("sm_80"))[0])
    assert "\tgl" not in path.read_text()
    names = runpy.run_path(str(path))
    np.testing.assert_allclose(names["c"], names["wanted"], atol=1e-2)


DECORATED = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl


def registered():
    return lambda kernel: kernel


@registered()  # with parentheses
# The kernel of the registry:
@gluon.jit(
    do_not_specialize=['n'], layouts="auto"
)
def double(x, n, B: gl.constexpr):
    lane = gl.arange(0, B)
    gl.store(x + lane, 2 * gl.load(x + lane), mask=lane < n)


x = np.ones(32, np.float32)
double[(1,)](x, 20, 32)
assert x.sum() == 52
"""


def test_other_decorators_stay_as_they_are(tmp_path):
    path = tmp_path / "decorated.py"
    path.write_text(DECORATED)
    text, kernels = written(str(path), registry().target("sm_90"))
    above = "@registered()  # with parentheses\n# The kernel of the registry:\n@gluon.jit("
    assert kernels and f"{above}do_not_specialize=['n'])\ndef double(" in text
