"""`gluon types`, and the language in editors and checkers with it.

jedi stands for the editors that complete with it, pyright for VS Code's, and both see what an
ordinary install shows them, what an editable one does, and a plugin that nobody here knows.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gluon_core
from gluon_cli.app import app

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "gluon_core": ROOT,
    "gluon_nvidia": ROOT / "backends" / "nvidia",
    "gluon_amd": ROOT / "backends" / "amd",
    "gluon_sim": ROOT / "backends" / "sim",
    "extras": ROOT / "extras",
    "gluon_kernels": ROOT / "kernels",
    "gluon_acme": ROOT / "tests" / "plugin_acme",
}

PYRIGHT = [sys.executable, "-m", "pyright"] if importlib.util.find_spec("pyright") else None
if PYRIGHT is None and shutil.which("pyright"):
    PYRIGHT = ["pyright"]


def types(*arguments, code=0):
    result = CliRunner().invoke(app, ["types", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


# -- the command -----------------------------------------------------------------------------------


def test_it_writes_the_names_of_plugins_and_knows_when_they_are_stale(tmp_path):
    assert "stale" in types("--to", tmp_path, "--check", code=1)
    assert "amd, nvidia" in types("--to", tmp_path)
    written = tmp_path / "gluon_core-stubs"
    assert (written / "py.typed").read_text() == "partial\n"
    language = (written / "language" / "__init__.pyi").read_text()
    assert "from gluon_core.language import nvidia as nvidia\n" in language
    assert "from gluon_nvidia.layouts import NVMMASharedLayout as NVMMASharedLayout\n" in language
    assert (written / "nvidia" / "hopper" / "__init__.pyi").exists()
    assert (written / "language" / "amd" / "cdna4" / "async_copy" / "__init__.pyi").exists()
    types("--to", tmp_path, "--check")

    old = written / "language" / "gone" / "__init__.pyi"
    old.parent.mkdir()
    old.write_text("")
    types("--to", tmp_path, "--check", code=1)
    types("--to", tmp_path)
    assert not old.exists(), "what an earlier run wrote goes"


def test_gluon_info_says_when_it_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr("gluon_cli.types._site", lambda: tmp_path)

    def info(*arguments):
        return CliRunner().invoke(app, ["info", *arguments], env={"COLUMNS": "200"}).output

    assert "run `gluon types`" in info() and json.loads(info("--json"))["types"] is False
    types()
    assert "run `gluon types`" not in info() and json.loads(info("--json"))["types"] is True


def test_it_keeps_files_that_it_did_not_write(tmp_path):
    mine = tmp_path / "gluon_core-stubs" / "mine.pyi"
    mine.parent.mkdir()
    mine.write_text("x: int")
    assert "not written by" in str(CliRunner().invoke(app, ["types", "--to", tmp_path]).output)
    assert mine.read_text() == "x: int"


def test_it_says_where_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    types("--to", tmp_path / "file", code=3)


def test_a_module_has_the_names_that_it_has(tmp_path):
    """The stubs are written without running the plugins; here they run."""
    pytest.importorskip("triton", reason="needs Triton")
    types("--to", tmp_path)
    root = tmp_path / "gluon_core-stubs"
    for file in root.rglob("__init__.pyi"):
        name = ".".join(("gluon_core", *file.parent.relative_to(root).parts))
        module = importlib.import_module(name)
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        names = {line.rsplit(" as ", 1)[1] for line in lines if " as " in line}
        names |= {line.partition(" = ")[0] for line in lines if " = " in line}
        names = {name for name in names if not name.startswith("_") or name == "__version__"}
        absent = {name for name in names if not hasattr(module, name)}
        for name in absent:  # stubs are for all releases of Triton
            with pytest.raises(AttributeError, match="needs Triton"):
                getattr(module, name)
        names -= absent
        assert names or absent, file
        if {"nvidia", "amd", "language"} & set(file.parent.relative_to(root).parts):
            own = {name for name in dir(module) if not name.startswith(("_", "@"))}  # @: pytest's
            assert own - {"annotations"} == names, file  # of `from __future__`


# -- editors and checkers ------------------------------------------------------------------------

KERNEL = """\
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def kernel(p, n, BLOCK: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    x = gl.load(p + gl.arange(0, BLOCK, LAYOUT))
    smem = gl.allocate_shared_memory(gl.float16, [2, BLOCK], gl.NVMMASharedLayout(32, 16))
    """

# After the kernel above: callee -> its first parameters, as an editor shows them.
SIGNATURES = {
    "gl.load": ["pointer", "mask", "other"],
    "gl.store": ["pointer", "value", "mask"],
    "gl.atomic_max": ["pointer", "val", "mask", "sem", "scope"],
    "gl.amd.cdna3.buffer_atomic_max": ["ptr", "offsets", "value", "mask", "sem", "scope"],
    "gl.nvidia.hopper.tma.async_atomic_add": ["tensor_desc", "coord", "src"],
    "gl.add": ["x", "y", "sanitize_overflow"],
    "gl.exp2": ["x"],
    "gl.sum": ["input", "axis", "keep_dims", "dtype"],
    "gl.zeros": ["shape", "dtype", "layout"],
    "gl.warp_specialize": ["functions_and_args", "worker_num_warps", "worker_num_regs"],
    "gl.static_assert": ["cond", "msg"],
    "gl.target.has": ["capability"],
    "gl.BlockedLayout": ["size_per_thread", "threads_per_warp", "warps_per_cta", "order"],
    "gl.NVMMASharedLayout": ["swizzle_byte_width", "element_bitwidth", "rank"],
    "gl.portable.mma": ["a", "b", "acc", "input_precision", "is_async"],
    "gl.portable.pipeline": ["descriptors", "stages"],
    "gl.nvidia.hopper.tma.async_load": ["tensor_desc", "coord", "barrier", "result", "pred"],
    "gl.nvidia.blackwell.tcgen05_commit": ["barrier", "pred"],
    "gl.amd.cdna3.mfma": ["a", "b", "acc"],
    "mbarrier.arrive": ["mbarrier", "count", "pred"],
    "TensorDescriptor.from_tensor": ["tensor", "block_shape", "layout"],
    "x.to": ["dtype", "fp_downcast_rounding", "bitcast"],
    "x.sum": ["axis", "keep_dims"],
    "x.min": ["axis", "return_indices"],
    "x.atomic_max": ["val", "mask", "sem", "scope"],
    "smem.index": ["index"],
    "smem.index(0).load": ["layout"],
    "gluon.compile": ["fn", "target", "options"],
}
COMPLETIONS = {
    "gl.": ["load", "constexpr", "float16", "portable", "nvidia", "NVMMASharedLayout"],
    "gl.portable.": ["mma", "load", "pipeline"],
    "gl.nvidia.": ["hopper", "blackwell"],
    "gl.nvidia.hopper.tma.": ["async_load", "store_wait"],
    "gluon.nvidia.hopper.": ["TensorDescriptor"],
    "x.": ["to", "sum", "dtype", "shape", "reshape"],
    "(x + 1 < n).": ["to", "dtype"],
    "gl.max(x, 0).": ["to"],
    "gl.zeros([4], gl.float32).": ["to"],
    "smem.": ["index", "load", "store", "permute"],
    "gl.float16.": ["is_floating", "primitive_bitwidth"],
}
# Names for the code of gluon_core, of no use in kernels.
NOISE = {"Any", "annotations", "Optional", "tl", "unwrap", "builtin", "semantic_layer", "importlib"}

ACME = f"from gluon_core.acme.anvil import TileMap\n{KERNEL}"
ACME_SIGNATURES = {
    "gl.acme.anvil.add_clamped": ["a", "b", "low", "high"],
    "TileMap": ["base", "shape", "strides", "block_shape"],
}
ACME_COMPLETIONS = {"gl.": ["acme"], "gl.acme.": ["anvil"], "gl.acme.anvil.": ["start_tile"]}

# A program that is right, and mistakes in it: the line that replaces `x.sum()` -> the message of pyright.
CORRECT = (
    KERNEL.rstrip(" ")
    + """\
    y: gl.constexpr = BLOCK // 2
    steps = gl.cdiv(n, y)
    for i in range(0, steps, 2):
        x = gl.maximum(x, x + min(i, n))
    for i in gl.static_range(4):
        x += i
    gl.nvidia.hopper.fence_async_shared()
    smem.index(0).store(x.to(gl.float16))
    gl.store(p, helper(x, 4), mask=gl.arange(0, BLOCK, LAYOUT) < n)
    x.sum()


@gluon.jit
def helper(x, FACTOR: gl.constexpr):
    return x * FACTOR


def launch(p, desc: TensorDescriptor):
    compiled = kernel[(4, 1)](p, 3, BLOCK=128, num_warps=4)
    return compiled.asm["ttgir"], gluon.compile(kernel).n_regs, desc.block_shape
"""
)
MISTAKES = {
    "gl.laod(x)": 'laod" is not a known attribute',
    "gl.load(p, msk=x)": 'No parameter named "msk"',
    "gl.nvidia.hoper": 'hoper" is not a known attribute',
    "gl.nvidia.hopper.tma.async_load(x)": "Arguments missing for parameters",
    "x.too(gl.float16)": 'Cannot access attribute "too"',
    "gl.atomic_xor(p, 1, masks=x)": 'No parameter named "masks"',
    "x = x - [1]": 'Operator "-" not supported',
    "gl.zeros([4], 'fp16')": "cannot be assigned to parameter",
}


def sources(folder):
    """Each package with its pyproject, apart from this checkout."""
    for name, project in PACKAGES.items():
        target = folder / name
        target.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "build", "dist")
        for part in (*project.glob("gluon_*/"), project / "examples"):
            if part.is_dir():
                shutil.copytree(part, target / part.name, ignore=ignored)
        for part in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
            if (project / part).exists():
                shutil.copy(project / part, target / part)
        yield str(target)


# As `pip install -e` builds them, with three processes for each.
EDITABLE = """
import os, sys
from hatchling.build import build_editable

for project in sys.argv[2:]:
    os.chdir(project)
    build_editable(sys.argv[1])
"""


def pip(python, *arguments):
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-deps", "--no-build-isolation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(
    scope="module",
    params=[pytest.param("ordinary", marks=pytest.mark.campaign), "editable"],
)
def installed(request, tmp_path_factory):
    """The interpreter of an environment with the packages in it, and with `gluon types` run."""
    if importlib.util.find_spec("jedi") is None and PYRIGHT is None:
        pytest.skip("needs jedi or pyright")
    work = tmp_path_factory.mktemp(request.param)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(work / "venv")], check=True)
    python = work / "venv" / "bin" / "python"
    process = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # Their dependencies are at the same place as ours; our own packages there are not seen first.
    shared = Path(process.stdout.strip()) / "zz_shared.pth"
    shared.write_text(sysconfig.get_path("purelib") + "\n")
    wanted = list(sources(work / "sources"))
    if request.param == "editable":
        command = [sys.executable, "-c", EDITABLE, work, *wanted]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        wheels = map(str, work.glob("*.whl"))
        wanted = ["--no-index", "--force-reinstall", *wheels]  # ours are seen through the link
    pip(python, *wanted)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "gluon_cli", "types"], capture_output=True, text=True, env=clean
    )
    assert done.returncode == 0 and "acme" in done.stdout, done.stdout + done.stderr
    assert (shared.parent / "gluon_core-stubs").is_dir()
    return python


@functools.cache
def environment_of(folder):
    """The environment that jedi sees; each has a process of its own."""
    return jedi_there().create_environment(str(folder), safe=False)


def jedi_there():
    return pytest.importorskip("jedi", reason="needs jedi")


def editor(python, text):
    """jedi's view of a file with the cursor at its end, in the environment of `python`."""
    jedi, environment = jedi_there(), environment_of(python.parents[1])
    script = jedi.Script(text, path=python.parents[2] / "kernel.py", environment=environment)
    return script, text.count("\n") + 1, len(text.rsplit("\n", 1)[-1])


def check_signatures(python, kernel, expected):
    """Ask at each call of one file: a file of its own for each infers everything anew."""
    indent = " " * (len(kernel) - len(kernel.rstrip(" ")))
    calls = f"()\n{indent}".join(expected)
    script, last, _ = editor(python, f"{kernel}{calls}()")
    for line, (called, parameters) in enumerate(expected.items(), last - len(expected) + 1):
        signature = script.get_signatures(line, len(f"{indent}{called}("))
        assert signature, f"{called}( shows nothing"
        names = [p.name for p in signature[-1].params if p.name != "*"]
        assert names[: len(parameters)] == parameters, called
        assert not [name for name in names if name.startswith("_")], called


def check_completions(python, kernel, expected):
    for typed, wanted in expected.items():
        script, line, column = editor(python, kernel + typed)
        names = {c.name for c in script.complete(line, column)}
        assert not set(wanted) - names, f"{typed} lacks {set(wanted) - names}"
        assert not names & NOISE, f"{typed} offers {names & NOISE}"


def test_an_editor_shows_the_signatures_of_a_kernel(installed):
    check_signatures(installed, KERNEL, SIGNATURES)


def test_an_editor_completes_a_kernel(installed):
    check_completions(installed, KERNEL, COMPLETIONS)


def test_an_editor_knows_a_plugin_that_nobody_here_knows(installed):
    check_signatures(installed, ACME, ACME_SIGNATURES)
    check_completions(installed, ACME, ACME_COMPLETIONS)


def test_an_editor_shows_the_docstring_of_an_op(installed):
    text = KERNEL + "gl.nvidia.hopper.tma.async_load("
    script, line, column = editor(installed, text)
    (signature,) = script.get_signatures(line, column)
    assert "Start copying a box" in signature.docstring()


def left_out(python):
    """Return the names that `shutil.copytree` leaves out of the examples of an environment."""
    written = ("attention_*.py",) if "editable" in str(python) else ()
    return shutil.ignore_patterns("__pycache__", *written)


@pytest.fixture(scope="module")
def diagnostics(installed, tmp_path_factory):
    """Pyright's messages on the examples, a program and mistakes in it, in the environment: it starts once.

    Written kernels take as long as all other examples together: those for many targets are a campaign.
    """
    if PYRIGHT is None:
        pytest.skip("needs pyright")
    folder = tmp_path_factory.mktemp("checked")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=left_out(installed))
    (folder / "correct.py").write_text(CORRECT)
    for number, mistake in enumerate(MISTAKES):
        text = CORRECT.replace("x.sum()", mistake)
        (folder / f"mistake_{number}.py").write_text(text)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*PYRIGHT, "--outputjson", "--pythonpath", str(installed)],
        cwd=folder, capture_output=True, text=True, env=clean,
    )  # fmt: skip
    if not done.stdout.startswith("{"):
        pytest.skip(
            "pyright does not start: " + (done.stderr.strip() or "no node").splitlines()[-1]
        )
    document = json.loads(done.stdout)
    files = 1 + len(MISTAKES) + len(list((folder / "examples").rglob("*.py")))
    assert document["summary"]["filesAnalyzed"] == files
    shown = [d for d in document["generalDiagnostics"] if d["severity"] in ("error", "warning")]
    absent = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    imports = tuple(f'Import "{name}' for name in absent)  # what the examples can be read without
    return [
        f"{Path(d['file']).relative_to(folder)}:{d['range']['start']['line'] + 1}: {d['message']}"
        for d in shown
        if not d["message"].startswith(imports)
    ]


def test_a_checker_accepts_the_examples(diagnostics):
    assert not [line for line in diagnostics if line.startswith("examples")]


def test_a_checker_accepts_a_program_and_finds_mistakes_in_it(diagnostics):
    assert not [line for line in diagnostics if line.startswith("correct")]
    for number, message in enumerate(MISTAKES.values()):
        mine = [line for line in diagnostics if line.startswith(f"mistake_{number}.py")]
        assert len(mine) == 1 and message in mine[0], mine


def test_a_strict_checker_can_read_the_exports_of_modules():
    """Lists of names without expressions, which no checker evaluates."""
    for file in Path(gluon_core.__file__).parent.rglob("__init__.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                ast.literal_eval(node.value)
