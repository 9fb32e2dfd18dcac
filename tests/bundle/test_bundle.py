"""Bundles as files: their contents, that they are the same every time, and that every wrong one is refused."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_core as gluon
from gluon_bundle import archive
from gluon_core import errors
from gluon_core import language as gl
from gluon_core.bundle import Bundle, export_cache, import_cache
from gluon_runtime import container
from tests.bundle import kernels
from tests.bundle.conftest import build

pytestmark = pytest.mark.once


def repacked(data, change):
    """The file `data` with `change(members)` made to its parts, and a hash that is right again."""
    members = dict(container.unpack(data, "test").members)
    change(members)
    return archive.pack(members)


def manifest_of(members):
    return json.loads(members["manifest.json"])


@gluon.jit
def wrong(y):
    gl.static_assert(False, "wrong")


class TestBuilding:
    def test_the_same_kernels_make_the_same_bytes(self, bundle_file):
        assert build().to_bytes() == bundle_file.read_bytes()

    def test_order_of_adding_does_not_matter(self):
        def one(order):
            bundle = Bundle()
            for stride in order:
                bundle.add(kernels.ones, {"y": "*i32", "stride": stride}, target="hopper")
            return bundle.to_bytes()

        assert one(["i32", "i32:16"]) == one(["i32:16", "i32"])

    def test_kernels_are_compiled_side_by_side(self, monkeypatch):
        import threading

        from gluon_bundle import bundle
        from gluon_core.compiler import driver

        monkeypatch.setenv("GLUON_COMPILE_WORKERS", "2")
        both = threading.Barrier(2, timeout=60)  # broken unless two compile at once

        def compile(*wanted):
            both.wait()
            return driver.compile(*wanted)

        monkeypatch.setattr(bundle, "compile", compile)
        package = Bundle()
        for stride in ("i32", "i32:16"):
            package.add(kernels.ones, {"y": "*i32", "stride": stride}, target="hopper")
        package.compile()
        first, second = (form["arguments"][1] for form in package.kernels["ones"]["forms"])
        assert (first["divisible"], second["divisible"]) == (False, True)

    def test_a_kernel_that_does_not_compile_is_reported_and_the_others_stay(self):
        bundle = Bundle()
        bundle.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper")
        bundle.add(wrong, {"y": "*i32"}, target="hopper")
        for _ in range(2):
            with pytest.raises(errors.GluonError, match="wrong"):
                bundle.to_bytes()
        assert len(bundle._waiting) == 2

    def test_any_tool_reads_the_archive(self, bundle_file):
        with zipfile.ZipFile(bundle_file) as archive:
            assert archive.testzip() is None
            names = archive.namelist()
            assert (names[0], names[-1]) == ("index.bin", "manifest.json")
            assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())

    def test_the_manifest_says_how_to_launch(self, bundle_file):
        bundle = Bundle.open(bundle_file)
        assert set(bundle) == {"scale", "loose", "many", "ones"}
        (amd,) = (f for f in bundle.kernels["scale"]["forms"] if f["driver"] == "hip")
        assert amd["architecture"] == "gfx942" and amd["launch"]["warp_size"] == 64
        assert amd["grid"] == [4, 2, 1]
        assert amd["arguments"][0] == {"type": "*fp32", "divisible": True, "small": False}
        assert amd["arguments"][4] == {"constant": 512}
        warps = [f for f in bundle.kernels["ones"]["forms"] if f["given"] == ["num_warps"]]
        assert [f["launch"]["num_warps"] for f in warps] == [8]
        n = bundle.kernels["loose"]["parameters"][2]
        assert (n["name"], n["specialize"], n["constexpr"]) == ("n", False, False)
        assert bundle.kernels["loose"]["parameters"][1]["align"] is False
        (stride,) = (
            f["arguments"][1] for f in bundle.kernels["ones"]["forms"] if f["driver"] == "hip"
        )
        assert stride == {"constant": 1}

    def test_the_code_is_the_compilers(self, bundle_file):
        bundle = Bundle.open(bundle_file)
        for name, target in (("nvidia:sm_90", "cubin"), ("amd:gfx942", "hsaco")):
            constants = kernels.HOPPER if target == "cubin" else kernels.CDNA3
            compiled = gluon.compile(
                kernels.scale, name, signature=kernels.SCALE, constexprs=constants
            )
            form = next(
                f
                for f in bundle.kernels["scale"]["forms"]
                if f["target"] == name and f["grid"] is not None
            )
            assert bundle.code("scale", form["key"]) == compiled.asm[target]

    def test_a_source_map_leads_to_lines_of_the_kernel(self, bundle_file):
        bundle = Bundle.open(bundle_file)
        for form in bundle.kernels["scale"]["forms"]:
            if form["source"]:
                document = json.loads(bundle.file(form["source"]))
                assert document["file"] == "kernels.py" and "def scale" in document["text"]
                lines = {line for _, file, line, _ in document["locations"] if file == "kernels.py"}
                source = Path(kernels.__file__).read_text().splitlines()
                texts = {source[line - 1].strip() for line in lines}
                assert "return value * factor" in texts  # of a function that was inlined
                assert any(text.startswith("gl.store(y + offsets") for text in texts)
                assert source[document["line"] - 1] == "@gluon.jit"
                number = document["locations"][0][0]
                assert ".loc" in document["assembly"].splitlines()[number - 1]

    def test_verify_lists_its_evidence(self, bundle_file):
        report = Bundle.open(bundle_file).verify()
        assert (report.kernels, report.forms) == (4, 10)
        assert report.members >= 10 and report.digest == bundle_file.read_bytes()[-64:].decode()
        assert build().verify().digest is None

    def test_two_kernels_of_one_name(self):
        bundle = Bundle()
        bundle.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper", name="k")
        with pytest.raises(errors.BundleNameError, match="called 'k'.*scale"):
            bundle.add(kernels.scale, kernels.SCALE, kernels.HOPPER, target="hopper", name="k")

    def test_simulated_targets_have_no_code(self):
        with pytest.raises(errors.BundleTargetError, match="nvidia:sm_90"):
            Bundle().add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="sim:hopper")

    def test_a_wrong_kernel_leaves_the_bundle_as_it_was(self):
        @gluon.jit
        def wrong(x, N: gl.constexpr):
            gl.static_assert(N == 1, "N is not 1")

        bundle = Bundle()
        bundle.add(wrong, {"x": "*fp32"}, {"N": 2}, target="hopper")
        for _ in range(2):
            with pytest.raises(errors.StaticAssertionError, match="N is not 1"):
                bundle.compile()

    def test_a_file_that_cannot_be_written(self, tmp_path):
        bundle = Bundle()
        with pytest.raises(errors.BundleFormatError, match="cannot be written"):
            bundle.write(tmp_path / "none" / "k.glb")


class TestReading:
    """Each way in which a file may be no such bundle has an error of its own."""

    def test_no_file(self, tmp_path):
        with pytest.raises(errors.BundleFormatError, match="cannot be read: No such file"):
            Bundle.open(tmp_path / "none.glb")

    @pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(300), b"PK\x05\x06" + bytes(18)])
    def test_no_bundle(self, tmp_path, content):
        path = tmp_path / "other"
        path.write_bytes(content)
        with pytest.raises(errors.BundleFormatError, match="not a bundle"):
            Bundle.open(path)

    def test_another_archive(self, tmp_path):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("hello.txt", "hello")
        (tmp_path / "other.zip").write_bytes(buffer.getvalue())
        with pytest.raises(errors.BundleFormatError, match="not a bundle"):
            Bundle.open(tmp_path / "other.zip")

    def test_another_version_of_the_format(self, bundle_file, tmp_path):
        data = bundle_file.read_bytes().replace(b"gluon-bundle/1 ", b"gluon-bundle/7 ")
        (tmp_path / "new.glb").write_bytes(data)
        with pytest.raises(errors.BundleVersionError, match="expected format 1, got format 7"):
            Bundle.open(tmp_path / "new.glb")

    @pytest.mark.parametrize("keep", [1, 10, 60, 5000, -1, -40, -64, -80, -150])
    def test_truncated(self, bundle_file, tmp_path, keep):
        data = bundle_file.read_bytes()
        (tmp_path / "short.glb").write_bytes(data[:keep])
        with pytest.raises(errors.BundleTruncatedError, match="the end of the file is missing"):
            Bundle.open(tmp_path / "short.glb")

    def test_any_flipped_bit(self, bundle_file):
        data = bundle_file.read_bytes()
        tail = len(data) - 64 - len(" sha256=") - len("gluon-bundle/1")

        @settings(max_examples=150, deadline=None)
        @given(st.integers(0, 8 * len(data) - 1))
        def flip(bit):
            place = bit // 8
            changed = bytearray(data)
            changed[place] ^= 1 << bit % 8
            # In the last words of the file the flip may hit what says that it is a bundle.
            inside = Exception if place >= tail else container.BundleDamagedError
            with pytest.raises(inside) as caught:
                container.unpack(bytes(changed), "test")
            assert type(caught.value).__module__ == "gluon_runtime.errors"

        flip()

    def test_a_code_object_exchanged_together_with_its_hash(self, bundle_file, tmp_path):
        def exchange(members):
            name = next(name for name in members if name.endswith(".cubin"))
            members[name] = members[name][:-1] + b"!"

        path = tmp_path / "evil.glb"
        path.write_bytes(repacked(bundle_file.read_bytes(), exchange))
        bundle = Bundle.open(path)  # intact as a file
        with pytest.raises(errors.BundleHashError, match=r"code/.*exchanged; expected sha256"):
            bundle.verify()
        named = [f["key"] for f in bundle.kernels["scale"]["forms"] if f["driver"] == "cuda"]
        named = [("scale", key) for key in named]
        named += [(k, f["key"]) for k in bundle if k != "scale" for f in bundle.kernels[k]["forms"]]
        refused = 0
        for kernel, key in named:
            try:
                bundle.code(kernel, key)
            except errors.BundleHashError:
                refused += 1
        assert refused == 1

    def test_an_index_that_says_something_else(self, bundle_file, tmp_path):
        def exchange(members):
            index = bytearray(members["index.bin"])
            index[index.index(b"scale")] = ord("S")
            members["index.bin"] = bytes(index)
            document = manifest_of(members)
            document["members"]["index.bin"] = hashlib.sha256(bytes(index)).hexdigest()
            members["manifest.json"] = archive.canonical(document)

        path = tmp_path / "evil.glb"
        path.write_bytes(repacked(bundle_file.read_bytes(), exchange))
        with pytest.raises(errors.BundleHashError, match="index does not match the manifest"):
            Bundle.open(path).verify()

    def test_another_bundle_than_the_one_asked_for(self, bundle_file):
        right = bundle_file.read_bytes()[-64:].decode()
        assert Bundle.open(bundle_file, digest=right).digest == right
        with pytest.raises(errors.BundleHashError, match="not the requested bundle"):
            Bundle.open(bundle_file, digest="0" * 64)

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda d: d.update(more=1), "no further field, got more"),
            (lambda d: d.pop("rules"), r"rules: .*expected a value, got nothing"),
            (lambda d: d["kernels"]["scale"].update(forms=3), "forms: .*expected list"),
            (lambda d: d["kernels"]["scale"]["forms"][0].update(code="../x"), "a member of the"),
            (
                lambda d: d["kernels"]["scale"]["parameters"][0].update(name="x=f()"),
                "a name of Python",
            ),
            (
                lambda d: d["kernels"]["scale"]["parameters"][0].update(name="if"),
                "a name of Python",
            ),
            (
                lambda d: d["kernels"]["scale"]["parameters"][0].update(name="y"),
                "names that differ",
            ),
            (lambda d: first(d)["launch"].update(num_warps=-1), "0 to 2"),
            (lambda d: first(d)["launch"].update(num_warps=4000), "1 to 1024 threads"),
            (lambda d: first(d)["launch"].update(entry=7), "expected str"),
            (lambda d: first(d).update(arguments=[]), "patterns"),
            (lambda d: first(d).update(grid=[1, -1, 1]), "three sizes"),
            (lambda d: first(d)["packing"]["fields"].pop(), "one for each argument"),
            (lambda d: first(d)["packing"]["fields"][0].update(offset=4), "aligned place"),
            (lambda d: first(d)["packing"].update(scratch=[0, 8]), "behind the arguments"),
            (lambda d: first(d)["packing"]["fields"][0].update(code="s"), "a known code"),
            (lambda d: first(d).update(given=["nope"]), "names of options"),
        ],
    )
    def test_a_manifest_that_is_not_as_the_format_says(
        self, bundle_file, tmp_path, change, message
    ):
        def exchange(members):
            document = manifest_of(members)
            change(document)
            members["manifest.json"] = archive.canonical(document)

        path = tmp_path / "odd.glb"
        path.write_bytes(repacked(bundle_file.read_bytes(), exchange))
        with pytest.raises(errors.BundleFormatError, match=message):
            Bundle.open(path)

    def test_a_manifest_that_is_no_json(self, bundle_file, tmp_path):
        def exchange(members):
            members["manifest.json"] = b"__import__('os').system('true')"

        path = tmp_path / "odd.glb"
        path.write_bytes(repacked(bundle_file.read_bytes(), exchange))
        with pytest.raises(errors.BundleFormatError, match="not JSON"):
            Bundle.open(path)

    def test_members_that_are_packed_otherwise(self, bundle_file, tmp_path):
        data = bytearray(bundle_file.read_bytes())
        struct.pack_into("<H", data, 8, 8)  # deflated, says the first header
        body = bytes(data[:-64])
        (tmp_path / "odd.glb").write_bytes(body + hashlib.sha256(body).hexdigest().encode())
        with pytest.raises(errors.BundleFormatError, match="not stored as bundles do"):
            Bundle.open(tmp_path / "odd.glb")


def first(document):
    return document["kernels"]["scale"]["forms"][0]


class TestTwoBundles:
    @pytest.fixture
    def pair(self):
        one, other = Bundle(), Bundle()
        one.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper")
        other.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="gfx942")
        return one, other

    def test_merged_they_are_fat(self, pair, tmp_path):
        one, other = pair
        one.merge(other)
        one.write(tmp_path / "fat.glb")
        bundle = Bundle.open(tmp_path / "fat.glb")
        assert [f["target"] for f in bundle.kernels["ones"]["forms"]] == [
            "amd:gfx942",
            "nvidia:sm_90",
        ]
        assert bundle.verify().forms == 2
        direct = Bundle()
        direct.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target=["hopper", "gfx942"])
        assert bundle.diff(direct) == []

    def test_differences(self, pair):
        one, other = pair
        assert one.diff(one) == []
        lines = one.diff(other)
        assert "- ones for nvidia:sm_90 (*i32, i32)" in lines
        assert "+ ones for amd:gfx942 (*i32, i32)" in lines
        other.add(kernels.many, kernels.MANY, target="hopper")
        assert "+ many" in one.diff(other) and "- many" in other.diff(one)

    def test_two_kernels_of_one_name(self, pair):
        one, _ = pair
        other = Bundle()
        other.add(kernels.many, kernels.MANY, target="hopper", name="ones")
        with pytest.raises(
            errors.BundleNameError, match="two kernels that differ are called 'ones'"
        ):
            one.merge(other)
        assert [f["target"] for f in one.kernels["ones"]["forms"]] == ["nvidia:sm_90"]

    def test_other_code_for_the_same_form(self, pair, tmp_path):
        one, _ = pair
        one.write(tmp_path / "one.glb")

        def exchange(members):
            name = next(name for name in members if name.endswith(".cubin"))
            code = members.pop(name) + b"!"
            digest = hashlib.sha256(code).hexdigest()
            members[f"code/{digest}.cubin"] = code
            text = members["manifest.json"].replace(name[5:-6].encode(), digest.encode())
            members["manifest.json"] = text

        data = repacked((tmp_path / "one.glb").read_bytes(), exchange)
        (tmp_path / "other.glb").write_bytes(data)
        with pytest.raises(errors.BundleNameError, match="other code for the same form of 'ones'"):
            one.merge(Bundle.open(tmp_path / "other.glb"))


def test_the_cache_goes_from_one_machine_to_another(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "here"))
    options = {"signature": {"y": "*i32", "stride": "i32"}}
    compiled = gluon.compile(kernels.ones, "hopper", **options)
    bundle = Bundle()
    assert export_cache(bundle) == 1
    bundle.write(tmp_path / "cache.glb")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "there"))
    assert import_cache(Bundle.open(tmp_path / "cache.glb")) == 1

    def refuse(*args, **kwargs):
        raise AssertionError("compiled although the cache has it")

    monkeypatch.setattr("gluon_core.compiler.driver.run_stages", refuse)
    again = gluon.compile(kernels.ones, "hopper", **options)
    assert again.asm["cubin"] == compiled.asm["cubin"] and again.hash == compiled.hash


def test_a_cache_that_is_not_there(tmp_path):
    with pytest.raises(errors.CacheError, match="there is no compilation cache"):
        export_cache(Bundle(), str(tmp_path / "none"))
