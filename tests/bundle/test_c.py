"""The loader for C: built with the compiler that is here, compared with the one in Python, and fed wrong files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_bundle import archive, index
from gluon_core.bundle import Bundle
from gluon_runtime import Pointer, c_sources, container, errors, manifest, native, open_bundle
from gluon_runtime.manifest import Value
from gluon_runtime.rules import RULES
from tests.bundle.double import Double
from tests.bundle.test_bundle import repacked

HERE = Path(__file__).parent
GCC = shutil.which("gcc") or shutil.which("cc")
pytestmark = [
    pytest.mark.once,
    pytest.mark.sampled(4),
    pytest.mark.skipif(GCC is None, reason="there is no C compiler"),
]

OK, FORMAT, VERSION, DAMAGED, KERNEL, TARGET, MISSING, AMBIGUOUS, ARGUMENT, DEVICE, DRIVER = range(
    11
)
IN_HEADER, IN_KERNEL, IN_FORM = 20, 16, 104  # bytes of records of the index
ARGUMENTS = 96  # the place of those of a form in its record
BEFORE = 30 + len("index.bin")  # bytes of the file before the index


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The program, and a libcuda that prints."""
    path = tmp_path_factory.mktemp("c")
    sources = [str(HERE / "program.c"), str(c_sources() / "gluon_bundle.c")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    flags += [f"-I{c_sources()}", "-ldl"]
    checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for more in (checked, []):
        command = [GCC, *sources, *flags, *more, "-o", str(path / "program")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    fake = [GCC, "-shared", "-fPIC", str(HERE / "fake_cuda.c"), "-o", str(path / "libcuda.so.1")]
    subprocess.run(fake, check=True)
    return path


@pytest.fixture(scope="session")
def program(folder):
    def run(*words, **environment):
        done = subprocess.run(
            [str(folder / "program"), *map(str, words)],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **environment},
        )
        assert done.returncode == 0, (done.stdout[-500:], done.stderr[-3000:])
        return done.stdout.splitlines()

    return run


def test_the_engine_compiles_without_warnings():
    flags = [
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    engine = Path(c_sources()) / "engine.c"
    if not engine.is_file():
        pytest.skip("a wheel has no source of the engine")
    done = subprocess.run([GCC, *flags, str(engine)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_header_is_c_plus_plus(tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "a.cpp").write_text(
        '#include "gluon_bundle.h"\nint main() { return gb_integer(3).bits == 3 ? 0 : 1; }\n'
    )
    command = [
        compiler,
        "-Wall",
        "-Werror",
        f"-I{c_sources()}",
        str(tmp_path / "a.cpp"),
        "-o",
        str(tmp_path / "a"),
    ]
    assert subprocess.run(command).returncode == 0
    assert subprocess.run([str(tmp_path / "a")]).returncode == 0


@pytest.mark.parametrize("kind", ["i8", "u8", "i32", "u32", "i64", "u64"])
def test_conditions_of_integers_are_those_of_the_rules(kind, bundle_file):
    """A type costs nothing where the rules choose it, and two points where they choose a narrower one."""
    parsed = manifest.parse(container.read(bundle_file).members["manifest.json"], "test")
    kernel, fits = parsed.kernels["ones"], []
    form = next(form for form in kernel.forms if isinstance(form.arguments[1], Value))
    parts = {form.code: b"code"}
    for annotation in ("", kind):
        parameters = (kernel.parameters[0], replace(kernel.parameters[1], type=annotation))
        only = replace(form, arguments=(Value("*i32"), Value(kind)))
        kernels = {"ones": replace(kernel, parameters=parameters, forms=(only,))}
        opened = native.engine.open(index.build(replace(parsed, kernels=kernels), parts))

        def fit(value, opened=opened):
            pointer, number = (0, 64), (2 if value >= 2**63 else 1, value)
            rest = (0.0, None, 2**64 - 1, ((), (), ()))
            wrong, points, first = native.engine.fit(opened, 0, 0, [pointer + rest, number + rest])
            assert not wrong or (wrong, first) == (1, 1)
            return None if wrong else -points

        fits.append(fit)
    bits, signed = int(kind[1:]), kind[0] == "i"
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    limits = [limit for b in (7, 8, 31, 32, 63, 64) for limit in (2**b, -(2**b))]
    for value in {0, 3, *limits, *(n - 1 for n in limits), *(n + 1 for n in limits)}:
        usual = RULES.integer_type(value) == kind
        if -(2**63) <= value < 2**64:
            expected = (0 if usual else -2) if least <= value <= most else None
            assert fits[0](value) == expected, value
            assert fits[1](value) == (None if expected is None else 0), value


def test_it_reads_the_manifest(program, bundle_file):
    lines = program("list", bundle_file)
    bundle = Bundle.open(bundle_file)
    expected = []
    for name, kernel in sorted(bundle.kernels.items()):
        expected.append(f"kernel {name}")
        for form in kernel["forms"]:
            launch = form["launch"]
            options = json.dumps(
                {n: form["options"][n] for n in form["given"]}, separators=(",", ":")
            )
            grid = form["grid"] or [0, 0, 0]
            words = ["form", form["target"], form["driver"], form["architecture"], launch["entry"]]
            words += [options, launch["num_warps"], launch["warp_size"], launch["num_ctas"]]
            words += [launch["shared"], int(form["grid"] is not None), ",".join(map(str, grid))]
            words.append(len(bundle.file(form["code"])))
            expected.append(" ".join(map(str, words)))
    assert lines == expected


class TestWrongFiles:
    def check(self, program, tmp_path, files):
        paths = []
        for number, data in enumerate(files):
            paths.append(tmp_path / f"{number}.glb")
            paths[-1].write_bytes(data)
        return [(int(line.split()[0]), line) for line in program("check", *paths)]

    def test_each_has_its_status(self, program, tmp_path, bundle_file):
        data = bundle_file.read_bytes()
        flipped = bytearray(data)
        flipped[BEFORE + 1000] ^= 16
        new = data.replace(b"GLBINDEX\x07", b"GLBINDEX\x08")
        files = [data, b"", b"\x7fELF" + bytes(500), data[:-1], data[:3], bytes(flipped), new]
        statuses = self.check(program, tmp_path, files)
        expected = [OK, FORMAT, FORMAT, OK, FORMAT, DAMAGED, VERSION]
        assert [status for status, _ in statuses] == expected
        assert "has version 8, this loader reads 7" in statuses[6][1]
        (missing,) = program("check", tmp_path / "none.glb")
        assert missing.startswith(f"{FORMAT} ") and "cannot be read" in missing

    def test_every_length(self, program, tmp_path, bundle_file):
        """Nothing but the index and code objects is missed."""
        data, codes = bundle_file.read_bytes(), 0
        for name, content in container.unpack(data, "test").members.items():
            if name.startswith("code/"):
                codes = max(codes, data.index(content) + len(content))
        lengths = [*range(1, 60), *range(60, len(data), 997), codes - 1, codes, len(data) - 1]
        statuses = self.check(program, tmp_path, [data[:length] for length in lengths])
        for length, (status, _) in zip(lengths, statuses):
            head = BEFORE + IN_HEADER
            assert status == (FORMAT if length < head else OK if length >= codes else DAMAGED), (
                length
            )

    def test_flipped_bits(self, program, tmp_path, bundle_file):
        data, files, draw = bundle_file.read_bytes(), [], random.Random(0)
        size = len(container.unpack(data, "test").members["index.bin"])
        places = [BEFORE, BEFORE + 8, *(BEFORE + draw.randrange(size) for _ in range(60))]
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << draw.randrange(8)
            files.append(bytes(changed))
        statuses = [status for status, _ in self.check(program, tmp_path, files)]
        assert statuses.pop(1) == VERSION and {*statuses} == {DAMAGED}

    def test_an_index_that_leads_out_of_the_file(self, program, tmp_path, bundle_file):
        """Whoever computes the checksums anew still reaches nothing outside of the file."""
        data = bundle_file.read_bytes()
        index = container.unpack(data, "test").members["index.bin"]
        kernel = IN_HEADER
        (form,) = struct.unpack_from("<I", index, kernel + 8)
        (argument,) = struct.unpack_from("<I", index, form + ARGUMENTS)
        rows = (
            (0, IN_HEADER + IN_KERNEL),
            (form, form + IN_FORM),
            (argument, argument + 24),
        )
        places = [place for first, end in rows for place in range(first, end, 4)]
        files = []
        for place in places:

            def exchange(members):
                changed = bytearray(index)
                struct.pack_into("<I", changed, place, 2**32 - 256)
                members["index.bin"] = bytes(changed)

            files.append(repacked(data, exchange))
        statuses = dict(zip(places, self.check(program, tmp_path, files)))
        refused = {place for place, (status, _) in statuses.items() if status}
        assert {statuses[place][0] for place in refused} <= {DAMAGED, VERSION}
        links = {form + 4 * word for word in range(9)}  # itself, its kernel, five texts, the code
        assert {*range(IN_HEADER + IN_KERNEL)[::4]} | links <= refused
        assert {form + ARGUMENTS, form + ARGUMENTS + 4} <= refused
        assert {argument, argument + 4, argument + 8, argument + 20} <= refused
        for number, place in enumerate(places):
            members = container.unpack(files[number], "test").members
            if place in refused:
                with pytest.raises(ValueError, match="not as this release reads it"):
                    native.engine.open(
                        members["index.bin"][: None if place - form not in (28, 32) else 0]
                    )
            else:
                program("list", tmp_path / f"{number}.glb")


def with_manifest(data, change):
    """The file `data` with `change(manifest)` made, and the index that follows."""

    def exchange(members):
        document = json.loads(members["manifest.json"])
        change(document)
        parsed = manifest.parse(archive.canonical(document), "test")
        behind = {name: members[name] for name in parsed.members if name != "index.bin"}
        members["index.bin"] = index.build(parsed, behind)
        document["members"]["index.bin"] = hashlib.sha256(members["index.bin"]).hexdigest()
        members["manifest.json"] = archive.canonical(document)

    return repacked(data, exchange)


def words_of(values):
    """Arguments of the program for values of Python."""
    collected = []
    for value in values:
        if isinstance(value, Pointer):
            collected.append(f"p{value.dtype or ''}@{value.address:x}")
        elif isinstance(value, bool):
            collected.append(f"b{int(value)}")
        elif isinstance(value, int):
            collected.append(f"i{value}" if value < 2**63 else f"u{value}")
        elif isinstance(value, float):
            collected.append(f"f{value!r}")
        elif isinstance(value, tuple):
            collected += words_of(value)
        elif isinstance(value, str):
            collected.append(f"c{value}")
        else:
            collected.append("-")
    return collected


class TestSameAsPython:
    def both(self, program, folder, path, name, values):
        """The blocks and the bytes of each argument in C and in Python."""
        driver = Double()
        kernel = open_bundle(path, driver=driver)[name]
        kernel[1](*values)
        (launched,), ((form, _),) = driver.launches, [(f.form, f) for f in kernel._loaded.values()]
        places = [place for field in form.packing.fields for place in field.places]
        sizes = [struct.calcsize({"bf16": "H"}.get(f.code, f.code)) for f in form.packing.fields]
        parts = [launched.content[place:][:size].hex() for place, size in zip(places, sizes)]
        declared = kernel.kernel.parameters[len(values) :]
        lines = program(
            *("launch", path, name, 1, 1, 1, 7),
            *words_of([*values, *(None for _ in declared)]),
            LD_LIBRARY_PATH=str(folder),
            FAKE_SIZES="".join(f"{size}," for size in sizes),
        )
        theirs = f"block {launched.threads} ", f"attributes {' '.join(parts)}"
        return next(line for line in lines if line.startswith("launch")), theirs

    def test_bytes(self, program, folder, bundle_file):
        x, y = Pointer(0x1000, "fp32"), Pointer(0x2000, "fp32")
        for values in (
            (x, y, 500, 2.5, 512),
            (x, y, 512, -0.1, 512),
            (x, y, -16, 1e30, 1024),
            (Pointer(0x1000), y, 0, 0.0, 512),
            (0x1000, 0x2000, 16, 0.0, 512),
        ):
            ours, (block, arguments) = self.both(program, folder, bundle_file, "scale", values)
            assert block in ours and ours.endswith(arguments)
        values = (Pointer(0x20, "i32"), 1)
        ours, (block, arguments) = self.both(program, folder, bundle_file, "ones", values)
        assert block in ours and ours.endswith(arguments)

    def test_every_width(self, program, folder, bundle_file):
        @settings(max_examples=15, deadline=None)
        @given(
            st.integers(-128, 127),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(width=32, allow_nan=False),
            st.floats(-65000, 65000),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.integers(-(2**15), 2**15 - 1),
            st.floats(allow_nan=False),
        )
        def same(a, b, c, d, e, flag, first, second):
            values = (Pointer(0x30, "fp32"), a, b, c, d, e, flag, (first, second))
            ours, (block, arguments) = self.both(program, folder, bundle_file, "many", values)
            assert block in ours and ours.endswith(arguments)

        same()

    @pytest.mark.parametrize(
        "values, status, error, message",
        [
            (
                (0x1004, 0x2000, 500, 2.5, 512),
                MISSING,
                errors.BundleMissingError,
                "x: scale is not in",
            ),
            ((0x1000, 0x2000, 2**31, 2.5, 512), MISSING, errors.BundleMissingError, "n: scale"),
            ((0x1000, 0x2000, 50, 2.5, 64), MISSING, errors.BundleMissingError, "BLOCK: scale"),
            ((0x1000, 0x2000, 50, 3, 512), MISSING, errors.BundleMissingError, "factor: scale"),
            ((0x1000, 0x2000, 50, 2.5, None), AMBIGUOUS, errors.BundleAmbiguousError, "several"),
        ],
    )
    def test_missing_packages(self, program, bundle_file, values, status, error, message):
        x, y, n, factor, block = values
        pointers = Pointer(x, "fp32"), Pointer(y, "fp32")
        words = words_of([*pointers, n, factor, block, None])
        (line,) = program("select", bundle_file, "scale", "cuda", "sm_90", *words)
        assert line.startswith(f"{status} ") and message in line
        named = {} if block is None else {"BLOCK": block}
        with pytest.raises(error):
            open_bundle(bundle_file, driver=Double())["scale"][1](*pointers, n, factor, **named)

    @pytest.mark.parametrize(
        "value, fits",
        [
            (512, ("i512", "u512", "c512", "-")),
            (1, ("i1", "u1", "c1", "-")),
            (0, ("i0", "u0", "c0", "-")),
            (-5, ("i-5", "c-5", "-")),
            (2**63 + 1, (f"u{2**63 + 1}", f"c{2**63 + 1}", "-")),
            (2**64 + 1, (f"c{2**64 + 1}", "-")),
            (True, ("b1", "ctrue", "-")),
            (False, ("b0", "cfalse", "-")),
            ("relu", ('c"relu"', "-")),
            (None, ("cnull", "-")),
        ],
    )
    def test_constants(self, program, bundle_file, tmp_path, value, fits):
        """A program in C names one by its JSON, or as the number or boolean that it is."""

        def exchange(document):
            kernel = document["kernels"]["scale"]
            kernel["forms"] = [form for form in kernel["forms"] if form["driver"] == "cuda"][:1]
            kernel["forms"][0]["arguments"][4] = {"constant": value}

        path = tmp_path / "constant.glb"
        path.write_bytes(with_manifest(bundle_file.read_bytes(), exchange))
        words = {*fits, "i1", "i0", "i-5", "u1", f"u{2**64 - 5}", "i512", "b0", "b1", "c1", "f1"}
        call = (path, "scale", "cuda", "sm_90", "pfp32@1000", "pfp32@2000", "i512", "f2.5")
        selected = {word: program("select", *call, word, "-")[0] for word in words}
        assert {word for word, line in selected.items() if line.startswith("0 ")} == {*fits}
        assert all(line.startswith((f"{OK} ", f"{MISSING} BLOCK")) for line in selected.values())

    def test_further_mistakes(self, program, bundle_file):
        (line,) = program("select", bundle_file, "scales", "cuda", "sm_90", "i1")
        assert line == f"{KERNEL} the bundle has no kernel 'scales'"
        (line,) = program("select", bundle_file, "scale", "cuda", "sm_75", "i1")
        assert line == f"{TARGET} scale was not compiled for sm_75"
        (line,) = program("select", bundle_file, "scale", "cuda", "sm_90", "i1")
        assert line == f"{ARGUMENT} scale takes 6 arguments, got 1"


class TestLaunch:
    def test_without_a_bundle_or_a_kernel(self, program, bundle_file, folder):
        """A program may look at the status of the launch alone."""
        library = {"LD_LIBRARY_PATH": str(folder)}
        (line,) = program("launch", bundle_file.with_name("none"), "scale", 1, 1, 1, 0)
        assert line.startswith(f"{FORMAT} ") and "cannot be read" in line
        line = program("launch", bundle_file, "scales", 1, 1, 1, 0, **library)[-1]
        assert line == f"{KERNEL} sm_90 the bundle has no kernel 'scales'"
        line = program("launch", bundle_file, "#99", 1, 1, 1, 0, **library)[-1]
        assert line == f"{MISSING} sm_90 no device, or no kernel to launch"

    ARGUMENTS = ("pfp32@1000", "pfp32@2000", "i500", "f2.5", "c512", "-")

    def test_through_the_driver(self, program, bundle_file, folder):
        lines = program(
            "launch",
            bundle_file,
            "scale",
            4,
            2,
            1,
            33,
            *self.ARGUMENTS,
            LD_LIBRARY_PATH=str(folder),
        )
        launch = (
            "launch 0xf0 grid 4,2,1 block 128 shared 0 stream 0x21 extra (nil) attributes "
            "arguments 1000 2000 500 2.5 0 0"
        )
        assert lines == ["load ELF", "function scale of 0xd0", launch, launch, "0 sm_90 "]

    def test_over_the_grid_of_the_bundle(self, program, bundle_file, folder):
        words = ("launch", bundle_file, "scale", 9999, 1, 1, 0)
        lines = program(*words, *self.ARGUMENTS, LD_LIBRARY_PATH=str(folder))
        assert "grid 4,2,1" in lines[2]

    def test_clusters_shared_memory_and_scratch(self, program, bundle_file, folder, tmp_path):
        def exchange(document):
            for form in document["kernels"]["scale"]["forms"]:
                form["launch"].update(num_ctas=16, cooperative=True, dependent=True, shared=100000)
                form["launch"]["global_scratch"] = [64, 512]

        path = tmp_path / "large.glb"
        path.write_bytes(with_manifest(bundle_file.read_bytes(), exchange))
        words = ("launch", path, "scale", 4, 2, 1, 5, *self.ARGUMENTS)
        lines = program(*words, LD_LIBRARY_PATH=str(folder))
        assert lines[2:4] == ["set 8 to 231448", "set 14 to 1"]
        assert lines[4] == f"allocate {64 * 8 * 16 + 512} on 0x5"
        assert "grid 64,2,1" in lines[5] and "attributes 6=1 2=1 4=16 5=1" in lines[5]
        assert lines[5].endswith("500 2.5 abc000 0") and lines[6] == "free abc000 on 0x5"
        failed = program(*words, LD_LIBRARY_PATH=str(folder), FAKE_FAIL="cuLaunchKernelEx")
        assert failed.count("free abc000 on 0x5") == 2

    def test_through_the_driver_of_amd(self, program, bundle_file, tmp_path):
        fake = [GCC, "-shared", "-fPIC", str(HERE / "fake_hip.c"), "-o"]
        subprocess.run([*fake, str(tmp_path / "libamdhip64.so")], check=True)
        words = ("launch", bundle_file, "scale", 4, 2, 1, 33, *self.ARGUMENTS)
        lines = program(*words, LD_LIBRARY_PATH=str(tmp_path))
        if " sm_" in lines[-1]:
            pytest.skip("this machine has NVIDIA's driver")
        launch = (
            "launch 0xf0 grid 4,2,1 block 256,1,1 shared 0 stream 0x21 extra (nil) "
            "arguments 1000 2000 500 2.5"
        )
        assert lines == ["load ELF", "function scale of 0xd0", launch, launch, "0 gfx942 "]

    @pytest.mark.parametrize(
        "call, message",
        [
            ("cuModuleLoadData", "scale cannot be loaded: error 700"),
            ("cuLaunchKernelEx", "refused the launch of scale over 4 x 2 x 1: error 700"),
        ],
    )
    def test_refusals_of_the_driver(self, program, bundle_file, folder, call, message):
        words = ("launch", bundle_file, "scale", 4, 2, 1, 33, *self.ARGUMENTS)
        lines = program(*words, LD_LIBRARY_PATH=str(folder), FAKE_FAIL=call)
        assert lines[-1].startswith(f"{DRIVER} sm_90") and message in lines[-1]

    def test_code_that_was_exchanged(self, program, bundle_file, folder, tmp_path):
        def exchange(members):
            for name in [name for name in members if name.endswith(".cubin")]:
                members[name] = members[name][:-1] + b"!"

        path = tmp_path / "evil.glb"
        path.write_bytes(repacked(bundle_file.read_bytes(), exchange))
        words = ("launch", path, "scale", 4, 2, 1, 33, *self.ARGUMENTS)
        lines = program(*words, LD_LIBRARY_PATH=str(folder))
        assert len(lines) == 1 and lines[0].startswith(
            f"{DAMAGED} sm_90 the code of scale is damaged"
        )

    def test_a_machine_without_a_driver(self, program, bundle_file):
        (line,) = program("launch", bundle_file, "scale", 4, 2, 1, 33, *self.ARGUMENTS)
        if not line.startswith(f"{DEVICE} "):
            pytest.skip("this machine has a driver")
        assert line.endswith("neither libcuda.so.1 nor libamdhip64.so has a device 0")
