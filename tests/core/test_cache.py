"""The cache on disk: inputs that make another entry, and damaged entries."""

import errno
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
import warnings

import pytest
import triton

import gluon_core as gluon
from gluon_core._triton import storage
from gluon_core.compiler import cache, driver
from gluon_core.errors import GluonError
from tests.core import kernels_for_runtime as kernels

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def runs(monkeypatch):
    """Count the runs of a pipeline."""
    count = []
    real = driver.run_stages

    def counted(*args, **kwargs):
        count.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(driver, "run_stages", counted)
    return count


def build(value=5, target="sm_80", kernel=kernels.put, **options):
    return gluon.compile(
        kernel, target=target, signature={"y": "*fp32"}, constexprs={"VALUE": value}, **options
    )


def files_of(folder, suffix):
    return [path for path in folder.rglob(f"*.{suffix}") if "__grp__" not in path.name]


def test_the_second_compilation_is_read_from_disk(runs):
    first = build()
    second = build()
    assert len(runs) == 1
    assert dict(second.asm) == dict(first.asm) and second.hash == first.hash
    ours, theirs = first.metadata._asdict(), second.metadata._asdict()
    assert set(ours) == set(theirs)
    for name in ("name", "shared", "num_warps", "num_ctas", "target", "hash"):
        assert ours[name] == theirs[name], name
    assert second.n_regs == first.n_regs
    assert sorted(second.metadata_group) == sorted(first.metadata_group)


def test_a_clock_that_goes_back_changes_nothing(monkeypatch, runs, folder):
    """Entries do not depend on times, and listeners get no time before 0."""
    clock, reported = iter(range(10**9, 0, -3600)), []
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **report: reported.append(report)
    )
    first = build()
    for path in folder.rglob("*"):
        os.utime(path, (2**33, 2**33))  # written in the year 2242
    assert dict(build().asm) == dict(first.asm) and len(runs) == 1
    times = [report["times"] for report in reported]
    assert len(times) == 2
    for each in times:
        stages = [spent for _, spent in each.lowering_stages]
        assert min([each.ir_initialization, each.store_results, *stages]) >= 0


def test_each_dependency_of_the_code_makes_another_entry(monkeypatch, runs):
    hashes = {build().hash, build(6).hash, build(5.0).hash, build(True).hash}
    hashes |= {build(num_warps=8).hash, build(target="sm_90").hash}
    hashes.add(build(debug=True).hash)
    source = gluon.GluonASTSource(kernels.put, {"y": "*fp32"}, {"VALUE": 5}, {"y": 16})
    hashes.add(gluon.compile(source, target="sm_80").hash)
    monkeypatch.setattr(cache, "content_hash", lambda packages: "another gluon_core")
    hashes.add(build().hash)
    monkeypatch.setattr(driver._triton, "build_stamp", lambda: "another triton")
    hashes.add(build().hash)
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    hashes.add(build().hash)
    assert len(hashes) == 11 and len(runs) == 11


def test_the_content_of_the_packages_counts(tmp_path, monkeypatch):
    package = tmp_path / "some_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep").mkdir()
    (package / "deep" / "code.py").write_text("a = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = cache.package_hash.__wrapped__("some_plugin")
    (package / "deep" / "code.py").write_text("a = 2")
    assert cache.package_hash.__wrapped__("some_plugin") != before
    packages = driver.packages_of(*_backend_and_target())
    assert {"gluon_core", "gluon_nvidia"} <= set(packages)


def _backend_and_target():
    from gluon_core.registry.load import registry

    target = registry().target("sm_80")
    return registry().backend(target.backend), target


@pytest.mark.parametrize("suffix", ["cubin", "ptx", "ttgir", "json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "emptied", "removed"])
def test_a_damaged_entry_is_compiled_again(folder, runs, suffix, damage):
    first = build()
    (path,) = files_of(folder, suffix)
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 1])
        path.write_bytes(
            {
                "truncated": data[:middle],
                "changed": data[:middle] + flipped + data[middle + 1 :],
                "emptied": b"",
            }[damage]
        )
    second = build()
    assert len(runs) == 2
    assert second.asm["cubin"] == first.asm["cubin"]
    build()
    assert len(runs) == 2  # repaired


def test_a_foreign_entry_is_not_trusted(folder, runs):
    build()
    (path,) = files_of(folder, "json")
    document = json.loads(path.read_text())
    for change in ({"gluon": None}, {"checksum": "0"}, {"num_warps": 8}):
        path.write_text(json.dumps({**document, **change}))
        before = len(runs)
        assert build().metadata.num_warps == 4
        assert len(runs) == before + 1


def test_an_entry_of_another_key_is_not_trusted(folder, runs):
    first, second = build(5), build(6)
    for suffix in ("json", "cubin", "ptx", "llir", "ttgir"):
        one, two = sorted(files_of(folder, suffix), key=lambda p: p.stat().st_mtime_ns)
        two.write_bytes(one.read_bytes())
    assert build(6).asm["ptx"] == second.asm["ptx"] != first.asm["ptx"]
    assert len(runs) == 3


def test_a_kernel_that_does_not_compile_leaves_nothing(folder):
    @gluon.jit
    def broken(y):
        gluon.language.store(y, undefined)  # noqa: F821

    with pytest.raises(GluonError):
        gluon.compile(broken, target="sm_80", signature={"y": "*fp32"})
    assert not folder.exists() or not [p for p in folder.rglob("*") if p.is_file()]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(blocked))
    cache._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="TRITON_CACHE_DIR"):
        assert build().asm["cubin"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build().asm["cubin"]


@pytest.mark.parametrize("call", ["open", "replace"])
@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EACCES", "EDQUOT"])
def test_a_disk_that_takes_nothing_costs_a_warning(folder, monkeypatch, runs, call, code):
    def refuse(path, *args, real=open, **kwargs):
        if call == "open" and not str(path).endswith(".tmp"):
            return real(path, *args, **kwargs)
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)), str(path))

    cache._warn_once.cache_clear()
    with monkeypatch.context() as full:
        full.setattr(storage if call == "open" else os, call, refuse, raising=False)
        with pytest.warns(RuntimeWarning, match="are not kept.*TRITON_CACHE_DIR"):
            assert build().asm["cubin"][:4] == b"\x7fELF"
    assert not [path for path in folder.rglob("*") if path.is_file()]
    build()
    build()
    assert len(runs) == 2


KILLED = """
import os, sys
import gluon_core as gluon
from gluon_core._triton import storage
from tests.core import kernels_for_runtime as kernels
left = int(sys.argv[1])
real = os.replace
def replace(source, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    real(source, target)
os.replace = replace
gluon.compile(kernels.put, target="sm_80", signature={"y": "*fp32"}, constexprs={"VALUE": 5})
"""


@pytest.mark.sampled(4)
@pytest.mark.once
@pytest.mark.parametrize("written", [0, 2, 4, 5])
def test_a_process_killed_while_it_writes_leaves_nothing_that_is_trusted(folder, runs, written):
    root = os.path.dirname(os.path.dirname(gluon.__file__))
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(written)]
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == -9
    assert build().asm["cubin"][:4] == b"\x7fELF"
    assert len(runs) == 1
    build()
    assert len(runs) == 1


@pytest.mark.once
def test_processes_write_one_entry_at_once(folder):
    root = os.path.dirname(os.path.dirname(gluon.__file__))
    body = KILLED.replace("left = int(sys.argv[1])", "left = 1 << 30; import time").replace(
        "\ngluon.compile(",
        "\nsys.stdin.read()\ncompiled = gluon.compile(",
    )
    body += "sys.stdout.buffer.write(compiled.asm['cubin'])"
    command = [sys.executable, "-W", "ignore", "-c", body]
    started = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in started:
        process.stdin.close()
    outputs = [process.stdout.read() for process in started]
    assert [process.wait() for process in started] == [0, 0]
    assert len(set(outputs)) == 1 and outputs[0] == build().asm["cubin"]
    assert not list(folder.rglob("*.tmp"))


def test_constants_without_a_lasting_text_stay_in_memory(folder, runs):
    class Opaque:
        pass

    @gluon.jit
    def kernel(y, WHAT: gluon.language.constexpr):
        gluon.language.store(y, 1.0)

    for _ in range(2):
        gluon.compile(
            kernel, target="sm_80", signature={"y": "*fp32"}, constexprs={"WHAT": Opaque()}
        )
    assert len(runs) == 2 and not files_of(folder, "cubin")


def test_tritons_knobs(tmp_path, monkeypatch, runs):
    dumps = tmp_path / "dump"
    monkeypatch.setenv("TRITON_DUMP_DIR", str(dumps))
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    build()
    build()
    assert len(runs) == 2
    assert {path.suffix for path in dumps.rglob("put.*")} == {
        ".ttgir",
        ".llir",
        ".ptx",
        ".cubin",
        ".sass",
    }
    events = []
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE")
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **fields: events.append(fields)
    )
    build()
    build(7)
    assert [event["cache_hit"] for event in events] == [True, False]
    assert events[1]["times"].total_lowering > 0
    assert events[1]["metadata"]["name"] == "put"


def test_a_user_can_override_a_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path / "dump"))
    assert "7.0" not in build(5.0).asm["ttgir"] and "7.000000e+00" in build(7.0).asm["ttgir"]
    places = {path.parent.name: path for path in (tmp_path / "dump").rglob("put.ttgir")}
    (five,) = [p for p in places.values() if "5.000000e+00" in p.read_text()]
    override = tmp_path / "override" / five.parent.name
    override.mkdir(parents=True)
    (override / "put.ttgir").write_text(five.read_text().replace("5.000000e+00", "9.000000e+00"))
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")
    monkeypatch.setenv("TRITON_OVERRIDE_DIR", str(tmp_path / "override"))
    kernel = build(5.0)
    assert "9.000000e+00" in kernel.asm["ttgir"]
    assert "0f41100000" in kernel.asm["ptx"].lower() or "1091567616" in kernel.asm["ptx"]


@pytest.mark.sampled(1)
def test_an_equal_kernel_of_another_file_has_lines_of_that_file(tmp_path, monkeypatch, runs):
    """So has its helper, which is in a file of its own; texts are those of a compilation there."""
    text = (
        "import gluon_core as gluon\nfrom gluon_core import language as gl\n{0}\n"
        "@gluon.jit(noinline=True)\ndef {1}(y, x: gl.constexpr):\n    {2}\n"
    )

    def compiled(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "moved_helper.py").write_text(text.format("", "helped", "gl.store(y, x)"))
        kernel = text.format("from moved_helper import helped", "moved", "helped(y, x)")
        (folder / "moved_kernel.py").write_text(kernel)
        for imported in ("moved_kernel", "moved_helper"):
            sys.modules.pop(imported, None)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            kernel = importlib.import_module("moved_kernel").moved
            asked = {"signature": {"y": "*i32"}, "constexprs": {"x": 5}}
            return [gluon.compile(kernel, target=target, **asked) for target in ("sm_80", "gfx942")]

    compiled("one")
    moved = compiled("two.(")
    assert len(runs) == 2
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    for one, fresh in zip(moved, compiled("two.(")):
        files = [str(tmp_path / "two.(" / f"moved_{x}.py") for x in ("kernel", "helper")]
        assert one.metadata.source_files == fresh.metadata.source_files == files
        assert all("two.(" in one.asm[stage] for stage in ("ttgir", "llir"))
        assert [one.asm[x] for x in ("ttgir", "llir")] == [fresh.asm[x] for x in ("ttgir", "llir")]
        machine = [x.asm.get("ptx") or x.asm["amdgcn"] for x in (one, fresh)]
        lines, fresh_lines = (re.findall(r"\.file.*", text) for text in machine)
        assert lines == fresh_lines  # paths are also among the numbers of debug sections


def test_another_process_finds_the_entry(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import gluon_core as gluon
            from gluon_core import language as gl
            from gluon_core.compiler import driver

            LAYOUT = gl.BlockedLayout([1], [32], [4], [0])

            @gluon.jit
            def helper(x):
                return x + 1

            @gluon.jit
            def kernel(y, L: gl.constexpr, f: gl.constexpr):
                o = gl.arange(0, 128, layout=L)
                gl.store(y + o, f(o))

            ran = []
            real = driver.run_stages
            driver.run_stages = lambda *a, **k: (ran.append(1), real(*a, **k))[1]
            compiled = gluon.compile(kernel, target="sm_80", signature={"y": "*i32"},
                                 constexprs={"L": LAYOUT, "f": helper})
            print(compiled.hash, len(ran))
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    outputs = [
        subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs[0][0] == outputs[1][0]
    assert [int(line[1]) for line in outputs] == [1, 0]
    script.write_text(script.read_text().replace("x + 1", "x + 2"))
    changed = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert changed[0] != outputs[0][0] and changed[1] == "1"


@pytest.mark.sampled(1)
def test_a_source_without_a_folder_leaves_empty_texts_alone():
    entry = cache.Entry(
        {"llir": '!DIFile("<one>", "")'}, {"source_files": ["<one>"], "note": ""}, {}
    )
    entry.move(["/two/kernel.py"])
    assert entry.asm == {"llir": '!DIFile("/two/kernel.py", "")'}
    assert entry.metadata == {"source_files": ["/two/kernel.py"], "note": ""}
