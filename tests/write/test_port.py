"""`gluon port`: kernels of plain Triton become Gluon without layouts, and compute the same."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_core.errors import KernelSyntaxError, LayoutError
from gluon_write.porting.port import port
from tests import warm

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.once, pytest.mark.sampled(24)]
FOLDER = Path(__file__).parent / "triton_kernels"
FILES = sorted(FOLDER.glob("*.py"))


def imported(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases():
    for file in FILES:
        text = file.read_text()
        names = text[text.index("CASES = [") :].replace("\n", " ").partition("]")[0]
        for name in names.partition("[")[2].split(","):
            if name.strip():
                yield f"{file.stem}:{name.strip()}"


class Ported(dict):
    """Modules of ported files by name: a file is ported when a test asks for it."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __missing__(self, name):
        source, path = FOLDER / f"{name}.py", self.folder / f"{name}.py"
        path.write_text(port(source.read_text(), str(source)).text)
        self[name] = imported(path, f"ported_{name}")
        return self[name]


@pytest.fixture(scope="session")
def ported(tmp_path_factory):
    return Ported(tmp_path_factory.mktemp("ported"))


@pytest.mark.once
@pytest.mark.sampled(131)
@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942", "sim:sm_80"])
@pytest.mark.parametrize("case", list(cases()))
def test_ported_kernels(ported, case, target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    file, _, name = case.partition(":")
    if name.startswith("assembly") and "gfx" in target:
        pytest.skip("assembly of NVIDIA")
    if (name.startswith("scaled_dot") or "fp8" in name) and "sm_80" in target:
        pytest.skip("no floats of 8 bits")
    result, wanted = getattr(ported[file], name)()
    atol = 2e-2 if result.dtype == torch.float16 else 2e-3
    torch.testing.assert_close(result.float(), wanted.float(), atol=atol, rtol=1e-2)


_RUNS = """

if __name__ == "__main__":
    for case in CASES:
        result, wanted = case()
        atol = 2e-2 if result.dtype == torch.float16 else 2e-3
        torch.testing.assert_close(result.float(), wanted.float(), atol=atol, rtol=1e-2)
"""


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", [file.stem for file in FILES])
def test_explicit_forms_compute_the_same(file, tmp_path, monkeypatch):
    """All cases of a file, in one process each: written with layouts, and run."""
    source = tmp_path / f"{file}.py"
    source.write_text((FOLDER / source.name).read_text() + _RUNS)
    (tmp_path / "shared").symlink_to(FOLDER / "shared")
    folder, around = tmp_path / "written", {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [
        "-m",
        "gluon_cli",
        "port",
        str(source),
        "--explicit",
        "--no-prove",
        "--target",
        "sm_90",
    ]
    run = [sys.executable, "-W", "ignore", *command, "--to", str(folder)]
    done = subprocess.run(run, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (folder / f"{file}_sm_90.py").read_text()
    names = [line for line in text.splitlines() if line.startswith("def ")]
    assert len(names) == len({name.partition("(")[0] for name in names})
    run = [sys.executable, "-W", "ignore", str(folder / f"{file}_sm_90.py")]
    around |= {"GLUON_TARGET": "sim:hopper"}
    done = subprocess.run(run, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "case, target",
    [
        ("decayed", "emu:sm_90"), ("decayed", "emu:gfx950"), ("integer", "emu:gfx950"),
        ("batched", "emu:gfx942"), ("ranks", "emu:sm_90"),
    ],
)  # fmt: skip
def test_ported_kernels_compile(ported, case, target, monkeypatch):
    """Scans have layouts that Triton compiles, and units are found for shallow products."""
    monkeypatch.setenv("GLUON_TARGET", target)
    result, wanted = getattr(ported["imported"], case)()
    torch.testing.assert_close(result.float(), wanted.float(), atol=2e-2, rtol=1e-2)


@pytest.mark.once
def test_tuned_kernels(ported, tmp_path):
    """`triton.autotune` asks Triton for the active device when it is imported."""
    code = "import library; result, wanted = library.tuned(); assert (result - wanted).abs().max() < 1e-6"
    folder = Path(ported["library"].__file__).parent
    around = {**os.environ, "GLUON_TARGET": "sim:hopper", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=around, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_text_stays_but_for_the_kernels():
    text = (FOLDER / "matmul.py").read_text()
    result = port(text, "matmul.py")
    assert result.kernels == ["matmul_kernel"] and result.functions == ["leaky_relu"]
    assert '@gluon.jit(layouts="auto")\ndef matmul_kernel(' in result.text
    assert "@gluon.jit\ndef leaky_relu(x):" in result.text
    assert (
        'acc = gl.portable.mma(a, b, acc, input_precision="tf32")  # the accumulator' in result.text
    )
    assert "import triton.language" not in result.text and "import triton\n" in result.text
    assert text.split("\ndef product(")[1] == result.text.split("\ndef product(")[1]


@pytest.mark.parametrize(
    "body, words",
    [
        ("x = tl.corex_gelu(p)", "tl.corex_gelu has no counterpart"),
        ("x = tl.of_the_future(p)", "tl.of_the_future has no counterpart"),
        ("d = tl.make_tensor_descriptor(p, [4], [1], [4], 'nan')", "outside the tensor are zero"),
    ],
)
def test_ops_without_a_counterpart(body, words):
    text = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p):\n    {body}\n"
    with pytest.raises(KernelSyntaxError, match=words) as error:
        port(text, "kernels.py")
    assert "kernels.py:7:" in str(error.value) and "^" in str(error.value)


def test_library_functions_are_copied_once_and_without_collisions():
    text = (
        "import triton\nimport triton.language as tl\n\n\ndef partner(x):\n    return x\n\n\n@triton.jit\n"
        "def k(p, N: tl.constexpr):\n    i = tl.arange(0, N)\n    x = tl.sort(tl.load(p + i))\n"
        "    tl.store(p + i, tl.sort(x, descending=True))\n"
    )
    result = port(text, "kernels.py").text
    assert result.count("def sort(x") == 1 and "x = sort(gl.load(p + i))" in result
    assert "def partner(x):" in result and "def partner_2(cube" in result
    assert "other = partner_2(cube" in result and "def flip(" not in result


def test_variables_have_other_names_than_the_language():
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p):\n"
        "    gl, gluon = tl.load(p), 2; tl.store(p, gl * gluon)\n"
    )
    result = port(text, "kernels.py").text
    assert "gl_value, gluon_value = gl.load(p), 2; gl.store(p, gl_value * gluon_value)" in result
    helper = "\n\n@triton.jit\ndef helper(gl):\n    return tl.exp(gl)\n"
    text = text.replace("gl * gluon", "helper(gl)") + helper
    assert "def helper(gl_value):\n    return gl.exp(gl_value)" in port(text, "kernels.py").text
    by_name = port(text.replace("p, helper(gl)", "p, helper(gl=gl)"), "kernels.py").text
    assert "def helper(gl):\n    return language.exp(gl)" in by_name


def test_sizes_that_kernels_compute():
    text = (
        "import triton\nimport triton.language as tl\nfrom triton import next_power_of_2\n\n\n@triton.jit\n"
        "def k(p, N: tl.constexpr):\n    B: tl.constexpr = triton.next_power_of_2(N)\n"
        "    i = tl.arange(0, B) + next_power_of_2(N)\n    tl.store(p + i, triton.cdiv(i, N), mask=i < N)\n"
    )
    result = port(text, "kernels.py").text
    assert "B: gl.constexpr = gluon.next_power_of_2(N)" in result and "gl.cdiv(i, N)" in result
    assert "gl.arange(0, B) + gluon.next_power_of_2(N)" in result


def test_functions_of_libdevice_in_early_releases():
    text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p):\n    tl.store(p, {}(tl.load(p)))\n"
    for name in ("tl.libdevice.erf", "tl.math.erfinv", "triton.language.libdevice.tanh"):
        wanted = f"gl.store(p, gl.extra.libdevice.{name.rpartition('.')[2]}(gl.load(p)))"
        assert wanted in port(text.format(name), "kernels.py").text


def test_names_may_have_several_ranks():
    text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(q, h, o, N: tl.constexpr):\n"
    text += "    i = tl.arange(0, N)\n    x = tl.load(q + i[:, None] * N + i[None, :])\n    x = x[:, :, None] * x[:, None, :]\n"
    text += "    x = tl.reshape(x, [N, N * N])\n    tl.store(o, tl.dot(x, h))\n"
    assert "batched_product" not in port(text, "kernels.py").text


def test_bounds_of_unrolled_loops_stay_constants():
    text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(p, K: tl.constexpr, T: tl.constexpr):\n"
    text += "    for t in tl.static_range(triton.cdiv(2 * K, T)):\n        tl.store(p + t, triton.cdiv(t, 2))\n"
    body = port(text, "kernels.py").text
    assert "gl.static_range(((2 * K) + T - 1) // T)" in body and "gl.cdiv(t, 2)" in body


def test_old_names_of_functions():
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def k(p, N: tl.constexpr, D: tl.constexpr = tl.core.CONSTEXPR_0):\n    i = tl.arange(0, N)\n"
        "    kind: tl.constexpr = tl.core.get_int_dtype(bitwidth=32, signed=True)\n"
        "    tl.store(p + i, i.to(kind) + tl.standard._log2(N) + D)\n"
    )
    result = port(text, "kernels.py").text
    assert "D: gl.constexpr = gl.constexpr(0)" in result and "+ log2_of(N) + D" in result
    assert "= integer_of(bitwidth=32, signed=True)" in result


def test_products_add_to_the_variable_that_they_are_added_to():
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(acc, a, b, bias, s):\n"
        "    acc = acc * s[:, None] + tl.dot(a, b)\n    y = bias + tl.dot(a, b)\n    return acc + y\n"
    )
    result = port(text, "kernels.py").text
    assert "acc = gl.portable.mma(a, b, acc * s[:, None], input" in result
    assert "y = bias + gl.portable.mma(a, b, gl.zeros(" in result  # a bias may have another shape


def test_views_keep_the_order_of_the_elements():
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(x, y, N: tl.constexpr):\n"
        "    a = (x + y).view(N, 2)\n    b = tl.reshape(a * 2, (N, 2), can_reorder=True)\n    return a.reshape([2, N]) + b.T\n"
    )
    result = port(text, "kernels.py").text
    assert "a = (x + y).reshape(N, 2)" in result and "b = gl.reshape(a * 2, (N, 2))" in result
    assert "return a.reshape([2, N]) + b.T" in result


def test_a_function_that_is_launched_and_called_is_a_kernel():
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(p):\n    tl.store(p, 1)\n\n\n"
        "@triton.jit\ndef two(p):\n    one(p)\n\n\ndef run(p):\n    one[(1,)](p)\n    two[(1,)](p)\n"
    )
    assert port(text, "kernels.py").kernels == ["one", "two"]


def test_functions_of_other_files_come_with_those_that_they_call():
    result = port((FOLDER / "imported.py").read_text(), str(FOLDER / "imported.py"))
    assert "def quick_gelu(x):" in result.text and "def _scaled(x):" in result.text
    assert (
        "SLOPE = gl.constexpr(1.702)" in result.text and "BASE = gl.constexpr(2.0)" in result.text
    )
    assert "from shared" not in result.text and "triton.language" not in result.text
    assert "from triton import heuristics, next_power_of_2\n" in result.text
    assert "quick_gelu" not in result.kernels and "helped_kernel" in result.kernels


def test_names_that_a_ported_file_cannot_have():
    text = "import triton\nfrom triton.language import *\n\n\n@triton.jit\ndef k(p):\n    return\n"
    with pytest.raises(KernelSyntaxError, match="the names that triton.language has are not"):
        port(text, "kernels.py")


def test_files_keep_names_that_are_the_languages(tmp_path, monkeypatch):
    """The language gets others, in functions of another file, too, which has `gl` for something else again."""
    (tmp_path / "helpers_of_gl.py").write_text(
        "import os as sep\nimport triton\nimport triton.language as tl\nimport glob as gl\n\n"
        "SCALE = tl.constexpr(2.0)\n\n\n@triton.jit\ndef gluon(x, gl):\n"
        "    return x * SCALE + gl * (sep.sep != '')\n\n\ndef files():\n    return gl.glob('*')\n"
    )
    path = tmp_path / "kernels.py"
    path.write_text(
        "import sys as sep\nimport triton\nimport triton.language as tl\n"
        "from helpers_of_gl import (\n    gluon,  # é: a helper\n)\nfrom os import path as gl\n"
        "import glob as language\n\n\n@triton.jit\ndef kernel(x, n, gl, B: tl.constexpr):\n"
        "    i = tl.arange(0, B)\n    v = gluon(tl.load(x + i, mask=i < n), gl=gl)\n"
        "    tl.store(x + i, v, mask=i < n)\n\n\nclass Holder:\n    gl, gluon = 3, 2\n\n\n"
        "def run(x):\n    kernel[(1,)](x, 100, gl=Holder().gl + Holder.gluon, B=128)\n"
        "    return gl.basename('a/b'), language.escape('c'), sep.path\n"
    )
    result = port(path.read_text(), str(path))
    assert result.kernels == ["kernel"] and "from gluon_core import language as language_2\n" in (
        result.text
    )
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    path.write_text(result.text)
    x = torch.arange(100.0)
    assert imported(path, "kernels_of_gl").run(x) == ("b", "c", sys.path)
    assert torch.equal(x, 2 * torch.arange(100.0) + 5)


def test_calls_of_plain_triton_that_make_tensors_are_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    path = tmp_path / "plain.py"
    path.write_text(
        "import triton\nimport triton.language as tl\nimport gluon_core as gluon\n"
        "from gluon_core import language as gl\n\n\n@triton.jit\ndef places(p, N: tl.constexpr):\n"
        "    return p + tl.arange(0, N)\n\n\n@gluon.jit(layouts='auto')\ndef k(p, N: gl.constexpr):\n"
        "    gl.store(places(p, N), 1.0)\n"
    )
    with pytest.raises(LayoutError, match="function of plain Triton") as error:
        imported(path, "plain").k[(1,)](torch.empty(64), 64)
    assert "plain.py:14" in str(error.value) and "gluon port FILE" in str(error.value)


def test_imports_that_share_a_line_or_a_block(tmp_path):
    helper, path = tmp_path / "helper.py", tmp_path / "kernels.py"
    helper.write_text("import triton\n\n\n@triton.jit\ndef g(x):\n    return x * 2\n")
    path.write_text(
        "try:\n    import triton; import triton.language as tl\n    from helper import g\n"
        "except ImportError:\n    triton = None\n\n\n@triton.jit\ndef k(p, N: tl.constexpr):\n"
        "    i = tl.arange(0, N)\n    tl.store(p + i, g(tl.load(p + i)))\n"
    )
    result = port(path.read_text(), str(path)).text
    compile(result, "ported.py", "exec")
    assert "from helper" not in result and result.index("except") < result.index("def g(x):")
    helper.write_text(
        "import triton\nfrom kernels import f\n\n\n@triton.jit\ndef g(x):\n    return f(x)\n"
    )
    path.write_text(path.read_text() + "\n\n@triton.jit\ndef f(x):\n    return x\n")
    with pytest.raises(KernelSyntaxError, match="import each other's functions"):
        port(path.read_text(), str(path))


def test_blocks_of_imports_keep_their_other_statements():
    head = "import triton\ntry:\n    from triton import language as tl\n    from triton.language import arange\n"
    kernel = "except ImportError:\n    raise\n\n\n@triton.jit\ndef k(x):\n    tl.store(x + arange(0, 8), 1)\n"
    text = port(f"{head}    READY = True\n{kernel}", "k.py").text
    assert "language as gl\ntry:\n    READY = True\nexcept" in text
    text = port(head + kernel, "k.py").text
    assert "try:\n    pass\nexcept" in text and text.count("pass") == 1


def test_kernels_of_classes_may_be_named_as_variables():
    text = port(
        "import triton\nimport triton.language as tl\n\n\nclass Ops:\n    @staticmethod\n    @triton.jit\n"
        "    def scale(x, factor):\n        tl.store(x, tl.load(x) * factor)\n\n"
        "    def __call__(self, x):\n        self.scale[(1,)](x, 2.0)\n\n\n"
        "@triton.jit\ndef other(x, scale):\n    tl.store(x, scale)\n",
        "ops.py",
    ).text
    assert '@staticmethod\n    @gluon.jit(layouts="auto")\n    def scale' in text


def test_only_modules_that_kernels_need_are_read(tmp_path, monkeypatch):
    """Kernels get names through two files; what host code imports, and what those files import besides, stays unread."""
    package = tmp_path / "package"
    package.mkdir()
    files = {
        "__init__": "",
        "host": "from package.more import settings\ndef launch(): pass\n",
        "maths": "from package.own import exponential as exp\nfrom package.more import settings\n",
        "own": "import triton.language as tl\nexponential = tl.exp\n",
        "more": "settings = 1\n",
        "kernels": "import triton\nimport triton.language as tl\nfrom package.host import launch\n"
        "from package.maths import exp\n\n\n@triton.jit\ndef kernel(x):\n    tl.store(x, exp(tl.load(x)))\n\n\n"
        "def run(x):\n    launch()\n    kernel[(1,)](x)\n",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    read = []
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda file, *args: read.append(file.stem) or read_text(file, *args)
    )
    text = port(files["kernels"], str(package / "kernels.py")).text
    assert "gl.store(x, gl.exp(gl.load(x)))" in text and set(read) == {"maths", "own"}


def test_host_code_may_have_variables_named_as_the_language():
    text = "import triton\n\n\n@triton.jit\ndef kernel(p):\n    return\n\n\n"
    host = "def run(p):\n    gl = 3\n    kernel[(gl,)](p)\n"
    assert host in port(text + host, "kernels.py").text
    inner = (
        "def make(gl):\n    @triton.jit\n    def kernel(p):\n        return\n    return kernel\n"
    )
    result = port(f"import triton\n{inner}", "kernels.py").text
    assert "from gluon_core import language\n" in result and "def make(gl):" in result


def test_functions_that_are_passed_as_constants_are_no_kernels():
    text = (FOLDER / "fused_attention.py").read_text()
    result = port(text, "fused_attention.py")
    assert {"relative_bias", "causal_window"} <= set(result.functions)
    assert "flex_kernel" in result.kernels
    assert 'if hasattr(desc_or_ptr, "block_shape"):' in result.text
    assert (
        "    if isinstance(desc_q, gl.tuple):\n        desc_q = gl.portable.descriptor("
        in result.text
    )


def test_functions_that_host_code_passes_on_are_kernels_unless_they_return_a_value():
    text = "import triton\n\n\n@triton.jit\ndef kernel(p):\n    return\n\n\n@triton.jit\ndef scaled(x):\n    return 2 * x\n\n\n"
    host = "def run(p):\n    launch(kernel, p)\n    attend(p, score_mod=scaled)\n    other[(1,)](p, FN=kernel_2)\n\n\n"
    text += (
        host
        + "@triton.jit\ndef kernel_2(p):\n    pass\n\n\n@triton.jit\ndef other(p, FN):\n    FN(p)\n"
    )
    result = port(text, "kernels.py")
    assert (result.kernels, result.functions) == (["kernel", "other"], ["scaled", "kernel_2"])


def test_files_without_kernels():
    with pytest.raises(KernelSyntaxError, match="no kernel of plain Triton"):
        port("import triton\nx = 1\n", "plain.py")
    with pytest.raises(
        KernelSyntaxError, match=r"does not parse: [^\n]*\n  at broken.py:1:5\n +def \("
    ):
        port("def (:\n", "broken.py")


def test_command(tmp_path):
    source = tmp_path / "kernels.py"
    source.write_text(
        "import numpy as np\nimport triton\nfrom triton import language as tl\n\n\n"
        "@triton.jit(debug=False)\ndef double(x, n, B: tl.constexpr):\n"
        "    i = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(x + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)\n\n\n"
        'if __name__ == "__main__":\n    x = np.arange(100, dtype=np.float32)\n'
        "    double[(2,)](x, 100, 64)\n    assert (x == 2 * np.arange(100)).all()\n"
    )
    command = ["-m", "gluon_cli", "port", source]
    out = tmp_path / "ported.py"
    done = warm.run([*command, "--to", out])
    assert done.returncode == 0 and "double" in done.stdout, done.stderr
    assert '@gluon.jit(debug=False, layouts="auto")' in out.read_text()
    written = tmp_path / "new" / "explicit.py"
    done = warm.run([*command, "--explicit", "--target", "sm_90", "--to", str(written)])
    assert done.returncode == 0, done.stderr
    assert "gl.BlockedLayout([" in written.read_text()
    done = warm.run([*command, "--explicit", "--target", "sm_90,gfx942", "--to", str(out)])
    assert done.returncode == 2 and "expected a folder" in done.stderr
    missing = warm.run([*command[:-1], "no.py"])
    assert missing.returncode == 2 and "no such file" in missing.stderr
