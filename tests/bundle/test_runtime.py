"""Launching from a bundle over a double of the driver: choice of the kernel, packing, errors."""

from __future__ import annotations

import ast
import ctypes
import os
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_bundle import form as forms
from gluon_core.bundle import Bundle
from gluon_core.launch.miss import Dispatcher
from gluon_runtime import Pointer, errors, open_bundle
from tests.bundle import kernels
from tests.bundle.double import Double, Tensor

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


@pytest.fixture
def driver():
    return Double()


@pytest.fixture
def bundle(bundle_file, driver):
    return open_bundle(bundle_file, driver=driver)


def alone(bundle_file, program, *arguments):
    """Run `program` in a process where importing triton, gluon_core, torch or numpy raises."""
    text = textwrap.dedent(
        """
        import sys
        class Wall:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("triton", "gluon_core", "torch", "numpy"):
                    raise ImportError(f"{name} was imported")
        sys.meta_path.insert(0, Wall())
        try:
            import gluon_core
        except ImportError as error:
            assert str(error) == "gluon_core was imported"
        else:
            raise SystemExit("there is no wall")
        path = sys.argv[1]
        """
    ) + textwrap.dedent(program)
    where = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "tests" / "bundle")])
    done = subprocess.run(
        [sys.executable, "-c", text, str(bundle_file), *arguments],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_can_import_neither_triton_nor_gluon_core_launches(bundle_file):
    out = alone(
        bundle_file,
        """
        from gluon_runtime import open_bundle
        from double import Double, Tensor
        driver = Double()
        kernels = open_bundle(path, driver=driver)
        kernels["scale"][(4, 2)](Tensor(0x1000), Tensor(0x2000), 500, 2.5, 1024)
        kernels["many"][3](Tensor(0x7fff00000010), -3, -2**40, 1.5, 0.5, -2.0, True, (-7, 3.25))
        for launch in driver.launches:
            print(launch.entry, launch.grid, launch.threads, launch.stream, launch.content.hex())
        code = driver.loads[0][1]
        print(code[:4] == b"\\x7fELF", len(driver.loads))
        """,
    )
    lines = out.splitlines()
    scale = struct.pack("<QQif", 0x1000, 0x2000, 500, 2.5) + bytes(16)
    assert lines[0] == f"scale (4, 2, 1) 128 7 {scale.hex()}"
    many = struct.pack("<Qb7xqfe", 0x7FFF00000010, -3, -(2**40), 1.5, 0.5)
    many += struct.pack("<HBxh", 0xC000, 1, -7) + bytes(4) + struct.pack("<dQQ", 3.25, 0, 0)
    assert lines[1] == f"many (3, 1, 1) 128 7 {many.hex()}"
    assert lines[2] == "True 2"


def test_the_command_of_the_drivers_is_clear_where_there_is_none(bundle_file):
    out = alone(
        bundle_file,
        """
        from gluon_runtime import errors, open_bundle
        kernels = open_bundle(path)
        try:
            kernels["ones"][1](16, 5)
        except errors.BundleDeviceError as error:
            print(error)
        """,
    )
    if "libcuda.so.1 is not installed" not in out:
        pytest.skip("this machine has a driver")
    assert "expected cuda or hip" in out and "libamdhip64.so is not installed" in out


class TestChoice:
    """The form that is taken is the one that the JIT would compile."""

    def test_constants_marks_and_options(self, bundle, driver):
        x, y = Tensor(0x1000), Tensor(0x2000)
        chosen = []
        for arguments, options in [
            ((x, y, 500, 2.5, 512), {}),  # n is i32
            ((x, y, 512, 2.5, 512), {}),  # n is divisible by 16
            ((x, y, 512, 2.5, 1024), {}),  # only there without that mark
        ]:
            bundle["scale"][1](*arguments, **options)
            chosen.append(driver.loads[-1][1])
        bundle["ones"][1](y_int(), 1)
        bundle["ones"][1](y_int(), 3)
        bundle["ones"][1](y_int(), 3, num_warps=8)
        assert len({*chosen}) == 3
        assert [launch.threads for launch in driver.launches[3:]] == [128, 128, 256]
        # A constant 1 is no argument of the code.
        sizes = [len(launch.content) for launch in driver.launches[3:]]
        assert sizes == [24, 32, 32]

    def test_a_loaded_kernel_is_launched_again(self, bundle, driver):
        for n in (500, 501, 502, 500):
            bundle["scale"][1](Tensor(0x1000), Tensor(0x2000), n, 2.5, 512)
        assert len(driver.loads) == 1 and len(driver.launches) == 4
        assert [struct.unpack_from("<i", c.content, 16)[0] for c in driver.launches] == [
            500,
            501,
            502,
            500,
        ]

    def test_the_hit_of_one_call_does_not_serve_another(self, bundle):
        launch = bundle["scale"][1]
        launch(Tensor(0x1000), Tensor(0x2000), 500, 2.5, 512)
        for wrong in (
            (Tensor(0x1004), Tensor(0x2000), 500, 2.5, 512),
            (Tensor(0x1000, "float16"), Tensor(0x2000), 500, 2.5, 512),
            (Tensor(0x1000), Tensor(0x2000), 2**31, 2.5, 512),
            (Tensor(0x1000), Tensor(0x2000), 500, 2, 512),
            (Tensor(0x1000), Tensor(0x2000), 500, 2.5, 512.0),
            (Tensor(0x1000), Tensor(0x2000), None, 2.5, 512),
            (Tensor(0x1000), Tensor(0x2000), True, 2.5, 512),
        ):
            with pytest.raises(errors.BundleMissingError):
                launch(*wrong)
        with pytest.raises(errors.BundleDeviceError):
            launch(Tensor(0x1000, device="cpu"), Tensor(0x2000), 500, 2.5, 512)

    @settings(max_examples=120, deadline=None)
    @given(
        st.integers(0, 64).map(lambda k: 0x1000 + 4 * k),
        st.one_of(
            st.integers(-(2**33), 2**33),
            st.sampled_from([0, 1, 16, 2**31 - 1, 2**31, -(2**31), 2**63 - 1]),
        ),
    )
    def test_as_the_jit_describes_arguments(self, address, n):
        """Over a bundle that has all forms, the marks of the chosen one are those of the JIT."""
        kernel, declared = _everything()
        driver = Double()
        kernel.bundle._driver = driver
        kernel.forget()
        kernel._loaded.clear()
        from gluon_core.launch import arguments

        class Here(Tensor):
            dtype = "torch.int32"

        kernel[1](Here(address, "int32"), n)
        (hit,) = kernel._loaded.values()
        pointer = arguments.describe(Here(address, "int32"))
        number = arguments.describe(n)
        first, second = hit.form.arguments
        assert (first.type, first.divisible) == (pointer.kind, "D" in pointer.attributes)
        if number.kind == "constexpr":
            assert second.value == number.attributes
        else:
            assert (second.type, second.divisible) == (number.kind, "D" in number.attributes)

    def test_parameters_that_must_not_be_specialized(self, bundle, driver):
        bundle["loose"][1](Tensor(0x1000, "float16"), Tensor(0x2002, "float16"), 1, 512)
        assert struct.unpack_from("<q", driver.launches[0].content, 16) == (1,)

    def test_a_constexpr_that_is_left_out(self, bundle):
        with pytest.raises(
            errors.BundleAmbiguousError, match=r"BLOCK: .*BLOCK: constant 1024 or constant 512"
        ):
            bundle["scale"][1](Tensor(0x1000), Tensor(0x2000), 500, 2.5)

    def test_a_layout_as_its_text(self, bundle):
        x, y = Tensor(0x1000), Tensor(0x2000)
        bundle["scale"][1](x, y, 500, 2.5, 512, repr(kernels.L32))
        bundle["scale"][1](x, y, 500, 2.5, BLOCK=512, LAYOUT=kernels.L32)
        with pytest.raises(errors.BundleMissingError, match="LAYOUT: .*threads_per_warp=.32."):
            bundle["scale"][1](x, y, 500, 2.5, 512, repr(kernels.L64))

    def test_the_other_vendor(self, bundle_file):
        driver = Double("hip", "gfx942")
        bundle = open_bundle(bundle_file, driver=driver)
        bundle["scale"](Tensor(0x1000), Tensor(0x2000), 500, 2.5)
        assert driver.launches[0].threads == 256 and driver.launches[0].grid == (4, 2, 1)


def y_int():
    return Tensor(0x2000, "int32")


_all_forms = []


def _everything():
    if not _all_forms:
        bundle = Bundle()
        kinds = ["i32", "i32:16", "i64", "i64:16", "i32:1"]
        for pointer in ("*i32", "*i32:16"):
            for kind in kinds:
                bundle.add(kernels.ones, {"y": pointer, "stride": kind}, target="hopper")
        from gluon_runtime import container
        from gluon_runtime.bundle import Bundle as Reader

        _all_forms.append(Reader(container.unpack(bundle.to_bytes(), "test"), "test")["ones"])
        _all_forms.append(None)
    return _all_forms


class TestArguments:
    def test_dlpack(self, bundle, driver):
        class OnDevice:
            """An array of the host that says it is on the device."""

            def __init__(self, array):
                self.array = array

            def __dlpack__(self):
                capsule = self.array.__dlpack__()
                get = ctypes.pythonapi.PyCapsule_GetPointer
                get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
                ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value = 2
                return capsule

        room = numpy.zeros(128, numpy.float32)
        skip = -room.ctypes.data // 4 % 4
        one, other = room[skip:][:64], room[skip:][64:]
        assert not one.ctypes.data % 16 and not other.ctypes.data % 16
        bundle["scale"][1](OnDevice(one), OnDevice(other), 50, 1.0, 512)
        expected = struct.pack("<QQ", one.ctypes.data, other.ctypes.data)
        assert driver.launches[0].content[:16] == expected

    def test_raw_pointers(self, bundle, driver):
        bundle["scale"][1](Pointer(0x1000, "fp32"), 0x2000, 50, 1.0, 512)
        bundle["scale"][1](0x1000, Pointer(0x2000), 50, 1.0, 512)
        expected = struct.pack("<QQ", 0x1000, 0x2000)
        assert [launch.content[:16] for launch in driver.launches] == [expected] * 2
        with pytest.raises(errors.BundleMissingError, match=r"x: .*'fp16'"):
            bundle["scale"][1](Pointer(0x1000, "fp16"), 0x2000, 50, 1.0, 512)

    def test_raw_pointers_with_their_device(self, bundle_file):
        driver = Double(count=2)
        bundle = open_bundle(bundle_file, driver=driver)
        bundle["scale"][1](Pointer(0x1000, "fp32", device=("cuda", 1)), 0x2000, 50, 1.0, 512)
        assert driver.launches[0].device == 1
        with pytest.raises(errors.BundleDeviceError, match=r"scale\(x\).*got cpu"):
            bundle["scale"][1](Pointer(0x1000, device=("cpu", 0)), 0x2000, 50, 1.0, 512)

    def test_host_memory_is_no_device_memory(self, bundle):
        with pytest.raises(errors.BundleDeviceError, match=r"scale\(x\).*got cpu.*\.cuda\(\)"):
            bundle["scale"][1](numpy.zeros(64, "f4"), Tensor(0x2000), 50, 1.0, 512)

    def test_tensors_on_two_devices(self, bundle_file):
        driver = Double(count=2)
        bundle = open_bundle(bundle_file, driver=driver)
        with pytest.raises(errors.BundleDeviceError, match="x on cuda:0, y on cuda:1"):
            bundle["scale"][1](Tensor(0x1000), Tensor(0x2000, index=1), 50, 1.0, 512)
        bundle["scale"][1](Tensor(0x1000, index=1), Tensor(0x2000, index=1), 50, 1.0, 512)
        assert driver.launches[0].device == 1

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ((), "missing 4 .*'n', 'factor'; expected x, y, n, factor, BLOCK, LAYOUT"),
            (
                (1, 2, 3, 4, 5, 6, 7),
                r"scale\(\) takes from 0 to 6 positional arguments but 7 were given",
            ),
            ((Tensor(0, "complex64"), Tensor(0), 1, 1.0), r"scale\(x\).*elements.*complex64"),
            ((numpy.zeros(4, ">f4"), Tensor(0), 1, 1.0), r"scale\(x\)"),
        ],
    )
    def test_wrong_arguments(self, bundle, arguments, message):
        with pytest.raises(errors.BundleArgumentError, match=message):
            bundle["scale"][1](*arguments)

    def test_an_object_of_no_use(self, bundle):
        with pytest.raises(errors.BundleMissingError, match=r"x: .*expected \*fp32.*got <object "):
            bundle["scale"][1](object(), Tensor(0), 1, 1.0, 512)

    def test_given_twice_and_unknown(self, bundle):
        x, y = Tensor(0x1000), Tensor(0x2000)
        with pytest.raises(
            errors.BundleArgumentError, match=r"scale\(\) got multiple values for argument 'n'"
        ):
            bundle["scale"][1](x, y, 50, 1.0, n=3)
        with pytest.raises(
            errors.BundleMissingError, match="warps: .*expected one of x, y, n.* got 3"
        ):
            bundle["scale"][1](x, y, 50, 1.0, 512, warps=3)

    def test_numbers_that_do_not_fit(self, bundle):
        with pytest.raises(errors.BundleMissingError, match="a: .*expected i8, got 300"):
            bundle["many"][1](Tensor(0x10), 300, 0, 1.0, 0.5, 0.5, True, (1, 1.0))
        arguments = Tensor(0x10), 3, 0, 1.0, 0.5, 0.5, True, (1, 1.0)
        bundle["many"][1](*arguments)
        wide = (*arguments[:4], 1e30, *arguments[5:])
        for launch in (bundle["many"][1], bundle["many"].prepare(*arguments, grid=1)):
            with pytest.raises(errors.BundleMissingError, match="d: .*expected fp16, got 1e\\+30"):
                launch(*wide)


class TestMissing:
    @pytest.mark.parametrize(
        "arguments, message",
        [
            (
                (Tensor(0x1004), Tensor(0x2000), 50, 1.0, 512),
                r"x: scale is not in the bundle for these arguments; expected \*fp32 divisible by 16, "
                r"got Pointer\(0x1004, 'fp32', size=4096, device=\('cuda', 0\)\)\. Add this form",
            ),
            (
                (Tensor(0x1000), Tensor(0x2000), 2**40, 1.0, 512),
                "n: .*expected i32 or i32 divisible by 16, got 1099511627776",
            ),
            (
                (Tensor(0x1000), Tensor(0x2000), 50, 1.0, 64),
                "BLOCK: .*expected constant 1024 or constant 512, got 64",
            ),
            ((Tensor(0x1000), Tensor(0x2000), 50, None, 512), "factor: .*expected fp32, got None"),
        ],
    )
    def test_the_argument_is_named(self, bundle, driver, arguments, message):
        with pytest.raises(errors.BundleMissingError, match=message):
            bundle["scale"][1](*arguments)
        assert not driver.launches

    def test_the_option_is_named(self, bundle):
        with pytest.raises(
            errors.BundleMissingError,
            match="num_warps: .*expected 4 or 8, got 2",
        ):
            bundle["ones"][1](y_int(), 3, num_warps=2)

    def test_the_architecture_is_named(self, bundle_file):
        bundle = open_bundle(bundle_file, driver=Double(architecture_="sm_80"))
        with pytest.raises(
            errors.BundleTargetError,
            match="expected sm_80, got gfx942, sm_90. Build .*--target sm_80",
        ):
            bundle["scale"][1](Tensor(0x1000), Tensor(0x2000), 50, 1.0, 512)

    def test_the_kernel_is_named(self, bundle):
        with pytest.raises(errors.BundleKernelError, match="no kernel 'scales'; .* scale"):
            bundle["scales"]

    def test_code_that_was_exchanged_is_not_loaded(self, bundle_file, tmp_path, driver):
        from tests.bundle.test_bundle import repacked

        def exchange(members):
            for name in [name for name in members if name.endswith(".cubin")]:
                members[name] = members[name][:-1] + b"!"

        (tmp_path / "evil.glb").write_bytes(repacked(bundle_file.read_bytes(), exchange))
        with pytest.raises(errors.BundleHashError, match="exchanged"):
            open_bundle(tmp_path / "evil.glb", driver=driver)["ones"][1](y_int(), 3)
        assert not driver.loads


class TestGrid:
    def test_forms_of_grids(self, bundle, driver):
        x, y = Tensor(0x1000), Tensor(0x2000)
        grids = [3, (3,), [2, 3], (1, 2, 3), numpy.int64(4), lambda a: (a["n"] // a["BLOCK"] + 1,)]
        for grid in grids:
            bundle["scale"][grid](x, y, 2000, 1.0, 1024)
        assert [launch.grid for launch in driver.launches] == [
            (3, 1, 1),
            (3, 1, 1),
            (2, 3, 1),
            (1, 2, 3),
            (4, 1, 1),
            (2, 1, 1),
        ]

    def test_the_grid_of_the_bundle(self, bundle, driver):
        bundle["scale"](Tensor(0x1000), Tensor(0x2000), 51, 1.0, 512)
        assert driver.launches[0].grid == (4, 2, 1)
        with pytest.raises(
            errors.BundleGridError, match="grid: not a grid; expected an int.* got None"
        ):
            bundle["ones"](y_int(), 3)

    def test_a_function_knows_a_constexpr_that_was_left_out(self, bundle_file):
        driver = Double("hip", "gfx942")
        bundle = open_bundle(bundle_file, driver=driver)
        bundle["scale"][lambda a: a["BLOCK"]](Tensor(0x1000), Tensor(0x2000), 50, 1.0)
        assert driver.launches[0].grid == (512, 1, 1)

    def test_an_empty_grid_launches_nothing(self, bundle, driver):
        bundle["scale"][0](Tensor(0x1000), Tensor(0x2000), 50, 1.0, 512)
        assert not driver.launches

    @pytest.mark.parametrize("grid", [-1, (1, 2, 3, 4), (1, 70000), "x", 1.5, (), 2**31])
    def test_no_grid(self, bundle, grid):
        with pytest.raises(errors.BundleGridError, match="not a grid|axis . of the grid"):
            bundle["scale"][grid](Tensor(0x1000), Tensor(0x2000), 50, 1.0, 512)


class TestLaunch:
    def test_streams(self, bundle, driver):
        class Torch:
            cuda_stream = 11

        class CuPy:
            ptr = 12

        for stream in (None, 9, Torch(), CuPy()):
            bundle["ones"][1](y_int(), 3, stream=stream)
        assert [launch.stream for launch in driver.launches] == [7, 9, 11, 12]

    def test_prepared(self, bundle, driver):
        handle = bundle["scale"].prepare(Tensor(0x1000), Tensor(0x2000), 50, 1.0, 512, grid=3)
        handle(Tensor(0x3000), Tensor(0x4000), 60, 2.0, 512)
        handle(Tensor(0x3000), Tensor(0x4000), 60, 2.0)
        expected = struct.pack("<QQif", 0x3000, 0x4000, 60, 2.0) + bytes(16)
        assert [(c.content, c.grid) for c in driver.launches] == [(expected, (3, 1, 1))] * 2

    def test_scratch_memory(self, bundle_file, driver):
        bundle = open_bundle(bundle_file, driver=driver)
        from dataclasses import replace

        kernel = bundle["ones"]
        changed = []
        for form in kernel.kernel.forms:
            launch = replace(form.launch, global_scratch=(100, 512), num_ctas=2)
            changed.append(replace(form, launch=launch))
        kernel.kernel = replace(kernel.kernel, forms=tuple(changed))
        kernel[(3, 2)](y_int(), 3)
        assert driver.memory == [("allocate", 100 * 6 * 2 + 512, 7), ("free", 0x7F0000000100, 7)]
        first, second = struct.unpack_from("<QQ", driver.launches[0].content, 16)
        assert first == 0x7F0000000200 and second == 0

    def test_from_many_threads(self, bundle, driver):
        def work(number):
            for step in range(50):
                n = 1000 * number + step
                bundle["scale"][1](Tensor(0x1000), Tensor(0x2000), n, 2.5, 1024)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = {struct.unpack_from("<i", c.content, 16)[0] for c in driver.launches}
        assert seen == {1000 * n + step for n in range(1, 5) for step in range(50)}
        assert len(driver.loads) == 1


def test_the_rules_of_the_manifest_are_those_of_the_jit():
    """Every parameter as the dispatcher sees it is in the manifest."""
    for kernel in (kernels.scale, kernels.loose, kernels.many):
        parameters = forms.kernel_of(kernel)["parameters"]
        for parameter, entry in zip(Dispatcher(kernel).parameters, parameters):
            assert entry["specialize"] == parameter.specialize
            assert entry["align"] == parameter.align
            assert entry["constexpr"] == parameter.is_constexpr
            assert entry["type"] == parameter.annotation_type


def test_the_distribution_imports_nothing_but_pythons_own_library():
    collected = set()
    for path in (ROOT / "runtime" / "gluon_runtime").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                collected |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                collected.add(str(node.module).partition(".")[0])
    assert collected - {"gluon_runtime"} <= sys.stdlib_module_names
    assert {"ctypes", "gluon_runtime"} <= collected


def test_prepared_with_a_tuple_and_with_too_few_arguments(bundle, driver):
    arguments = (Tensor(0x10), -3, 5, 1.5, 0.5, -2.0, True, (-7, 3.25))
    handle = bundle["many"].prepare(*arguments, grid=1)
    handle(Tensor(0x20), *arguments[1:])
    bundle["many"][1](Tensor(0x20), *arguments[1:])
    assert driver.launches[0] == driver.launches[1]
    with pytest.raises(errors.BundleArgumentError, match="flag, pair"):
        handle(*arguments[:6])
    scale = bundle["scale"].prepare(Tensor(0x1000), Tensor(0x2000), 50, 1.0, 512, grid=3)
    with pytest.raises(errors.BundleArgumentError, match="factor: .*missing 1 .*; expected x, y"):
        scale(Tensor(0x1000), Tensor(0x2000), 50)
