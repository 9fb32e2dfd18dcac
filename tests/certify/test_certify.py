"""`gluon certify`: verdicts, exit codes and the content of certificates."""

import json
import textwrap

import numpy as np
import pytest

from gluon_certify import Plan, certify
from gluon_certify.limits import not_modelled
from gluon_certify.text import lines
from tests import warm

pytestmark = [pytest.mark.once, pytest.mark.sampled(2), pytest.mark.filterwarnings("ignore")]
HEAD = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl
"""


def gluon(*arguments):
    return warm.run(["-m", "gluon_core", *arguments])


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


TWICE = """
@gluon.jit
def twice(x, out, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.portable.blocked_layout([BLOCK], gl.float32))
    if n > 10000:
        gl.store(out, 7.0)
    gl.store(out + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)

x = np.arange(500, dtype=np.float32)
out = np.zeros_like(x)
for _ in range(3):
    twice[(2,)](x, out, 500, BLOCK=256)
assert (out == 2 * x).all()
"""

# Each block of a cluster gathers within its own half: docs/known-compiler-bugs.md.
GATHER = """
@gluon.jit
def reverse(x):
    offsets = gl.arange(0, 256, gl.BlockedLayout([1], [32], [4], [0], cga_layout=[(1,)]))
    gl.store(x + offsets, gl.gather(gl.load(x + offsets), 255 - offsets, 0))

x = np.arange(256, dtype=np.float32)
reverse[(1,)](x, num_ctas=2)
assert x[0] == 255
"""

OUTSIDE = """
@gluon.jit
def shifted(out):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, 128, layout)
    gl.store(out + i, i)
    gl.store(out + i + 1, i)

shifted[(1,)](np.zeros(128, np.int32))
"""

PLAN = Plan(schedules=3, launches=2)


def test_right_kernels_are_certified_for_each_target(tmp_path):
    certificate = certify(program(tmp_path, TWICE), ["sm_90", "gfx942"], plan=PLAN)
    assert certificate.verdict == "certified" and certificate.exit == 0
    assert [target.target for target in certificate.targets] == ["nvidia:sm_90", "amd:gfx942"]
    for target in certificate.targets:
        (kernel,) = target.kernels
        assert kernel.name == "twice" and len(kernel.launches) == 2 and kernel.unexamined == 1
        assert kernel.launches[0].simulated == ["latest", "eager", "random, seed 0"]
        assert [one.differing for one in kernel.launches[0].arrays] == [0, 0]
        assert 0 < kernel.coverage.executed < kernel.coverage.instructions
        assert kernel.coverage.taken < kernel.coverage.sides
        assert any("7.0" in text or "40e00000" in text.lower() or "st.global" in text or "store" in text
                   for text in kernel.coverage.missed)  # fmt: skip
        assert kernel.not_modelled
    nvidia, amd = (target.kernels[0].code for target in certificate.targets)
    assert {"ttgir", "ptx", "cubin"} <= nvidia.keys() and {"ttgir", "amdgcn", "hsaco"} <= amd.keys()
    again = certify(program(tmp_path, TWICE), ["sm_90", "gfx942"], plan=PLAN)
    assert again.as_json() == certificate.as_json()


def test_wrong_machine_code_is_found_and_the_program_goes_on_with_the_right_results(tmp_path):
    certificate = certify(program(tmp_path, GATHER), ["sm_90"], plan=PLAN)
    (kernel,) = certificate.targets[0].kernels
    assert certificate.verdict == "wrong" and certificate.exit == 1
    assert certificate.targets[0].problem == ""  # the program saw what the simulator computed
    assert [finding.of for finding in kernel.findings] == ["results"]
    (array,) = kernel.launches[0].arrays
    assert array.differing == 256 and not array.passed
    assert "256 of 256 elements differ" in "\n".join(lines(certificate.as_json()))


def test_a_report_of_the_simulator_is_the_kernels_mistake(tmp_path):
    certificate = certify(program(tmp_path, OUTSIDE), ["sm_80"], plan=PLAN)
    (kernel,) = certificate.targets[0].kernels
    assert certificate.verdict == "wrong" and kernel.findings[0].of == "simulator"
    assert kernel.findings[0].file == "program.py" and kernel.findings[0].line == 11


def test_nothing_launched_and_other_targets_are_no_success(tmp_path):
    nothing = certify(program(tmp_path, "x = 1"), ["sm_90"], plan=PLAN)
    assert nothing.verdict == "incomplete" and nothing.exit == 3
    fixed = TWICE.replace("BLOCK=256)", 'BLOCK=256, target="sim:gfx942")')
    elsewhere = certify(program(tmp_path, fixed), ["sm_90"], plan=PLAN)
    assert elsewhere.exit == 3 and elsewhere.targets[0].elsewhere == ["twice on sim:gfx942"]


def test_a_program_that_fails_is_not_certified(tmp_path):
    failing = certify(program(tmp_path, TWICE + "raise SystemExit(4)"), ["sm_80"], plan=PLAN)
    assert failing.exit == 3 and "exit code 4" in failing.targets[0].problem


def test_only_the_named_kernel_is_examined(tmp_path):
    both = TWICE + OUTSIDE.replace("import", "")
    certificate = certify(program(tmp_path, both), ["sm_80"], plan=PLAN, kernel="twice")
    assert [one.name for one in certificate.targets[0].kernels] == ["twice"]


def test_the_command_prints_and_writes_the_certificate(tmp_path):
    path, output = program(tmp_path, TWICE), tmp_path / "certificate.json"
    done = gluon("certify", path, "--target", "sm_80", "--schedules", "2", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("certified: ") and "coverage: " in done.stdout
    content = json.loads(output.read_text())
    assert content["format"] == "gluon-certificate/1" and content["verdict"] == "certified"
    assert gluon("certify", path, "--target", "sm_80", "--schedules", "0").returncode == 2
    assert gluon("certify", path, "--target", "nowhere").returncode == 2
    assert gluon("certify", str(tmp_path / "none.py"), "--target", "sm_80").returncode == 2


def test_differences_are_judged_by_the_narrowest_type():
    from gluon_certify.regions import Memory, Region
    from gluon_certify.subject import compared

    x = np.ones(8, np.float32)
    memory = Memory((Region("x", "fp32", x.view(np.uint8)),), (), ())
    other = np.ones(8, np.float32)
    other[3] += 2.0**-10
    (strict,) = compared(memory, [other.view(np.uint8)], 0.0)
    (loose,) = compared(memory, [other.view(np.uint8)], 2.0**-6)
    assert not strict.passed and loose.passed and strict.differing == loose.differing == 1


def test_bundles_keep_the_certificate_and_the_runtime_shows_it(tmp_path):
    import gluon_runtime
    from gluon_bundle import Bundle

    path, out = program(tmp_path, TWICE), tmp_path / "kernels.gluon"
    build = [
        "bundle",
        str(out),
        f"{path}:twice",
        "--target",
        "sm_80",
        "-s",
        "*fp32,*fp32,i32",
        "-c",
        "BLOCK=256",
    ]
    assert gluon(*build).returncode == 0 and gluon_runtime.open_bundle(out).certificate is None
    done = gluon(*build, "--certify", path)
    assert done.returncode == 0, done.stdout + done.stderr
    certificate = gluon_runtime.open_bundle(out).certificate
    assert (
        certificate["verdict"] == "certified"
        and certificate["targets"][0]["target"] == "nvidia:sm_80"
    )
    assert Bundle.open(out).certificate == certificate
    assert "certified: " in gluon("bundle", "inspect", str(out)).stdout
    assert gluon("bundle", "verify", str(out)).returncode == 0
    out.unlink()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(HEAD + OUTSIDE)
    assert gluon(*build, "--certify", str(wrong)).returncode == 1 and not out.exists()


@pytest.mark.parametrize("arch, marked", [(90, False), (100, True), (103, True)])
def test_architectures_without_a_measured_gpu_are_marked(arch, marked):
    lines = not_modelled("nvidia", arch, ["add.s32"], [])
    assert any("not been compared with silicon" in line for line in lines) == marked


UNTAKEN = """
import triton

@triton.autotune([triton.Config({"N": 128}), triton.Config({"N": 256})], key=["n"])
@gluon.jit
def clipped(x, n, limit, N: gl.constexpr):
    i = gl.program_id(0) * N + gl.arange(0, N, gl.portable.blocked_layout([N], gl.float32))
    if limit > 0:
        gl.store(x + i, limit.to(gl.float32) * 7, mask=i < n)
    gl.store(x + 512 + i, i.to(gl.float32), mask=i < n)

clipped[lambda meta: (gluon.cdiv(500, meta["N"]),)](np.zeros(1024, np.float32), 500, 0)
"""


def test_code_behind_a_branch_that_no_launch_takes_is_named_by_its_line(tmp_path):
    file = program(tmp_path, UNTAKEN)
    certificate = certify(file, ["sm_90", "gfx942"], plan=PLAN)
    assert certificate.verdict == "certified"
    source = (HEAD + UNTAKEN).splitlines()
    untaken, launch = (
        next(i for i, text in enumerate(source, 1) if part in text) for part in ("* 7", "clipped[")
    )
    for target in certificate.targets:
        assert len(target.kernels) == 2
        for kernel in target.kernels:
            missed = kernel.coverage.missed
            assert kernel.coverage.taken < kernel.coverage.sides
            assert any(text.startswith(f"program.py:{untaken}, line ") for text in missed)
            assert not any(text.endswith(": }") for text in missed)
            assert {one.where.rpartition("/")[2] for one in kernel.launches} == {
                f"program.py:{launch}"
            }


PLAIN = """
import torch, triton
import triton.language as tl

@triton.jit
def one(x):
    tl.store(x, 1)

one[(1,)](torch.zeros(1))
"""


def test_a_kernel_of_plain_triton_is_not_certified(tmp_path):
    done = gluon("certify", program(tmp_path, PLAIN), "--target", "sm_90")
    assert done.returncode == 3, done.stdout
    assert "no kernel was launched" in done.stdout and "gluon port FILE" in done.stdout
