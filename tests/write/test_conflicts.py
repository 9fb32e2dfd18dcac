"""Kernels without a solution, and problems that are too large to solve exactly."""

import importlib.util
import itertools
import re
from textwrap import indent

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import (
    DtypeError,
    GluonError,
    KernelWarning,
    LayoutError,
    LimitError,
    ShapeError,
)
from gluon_core.registry.load import registry
from gluon_write.command import written
from gluon_write.solver import eliminate
from gluon_write.solver.eliminate import Tables
from gluon_write.tracing import budget

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def halves(x, out, B: gl.constexpr):
    i = gl.arange(0, B)
    low, high = gl.split(gl.reshape(gl.load(x + i), [B // 2, 2]))
    place = gl.arange(0, B // 2, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + place, low + high + place)


def test_error_names_the_ops_and_the_layout_to_write():
    """Halves have the layout of their split, which is none that the kernel's source can demand."""
    x, out = np.arange(256, dtype=np.float32), np.zeros(128, np.float32)
    with pytest.raises(LayoutError) as error:
        halves[(1,)](x, out, 256, target="sim:hopper")
    words, line = str(error.value), halves.fn.__code__.co_firstlineno + 3
    assert "no layouts fit" in words and "gl.split" in words
    assert f"test_conflicts.py:{line}" in words
    assert re.search(
        rf"by hand: gl.convert_layout\(each result of gl.split, gl.Blo.* in line {line}", words
    )
    assert f"for the kernel's source, line {line + 1}" in words


def tables_of(seed, sizes, pairs, impossible=0.0):
    rng = np.random.default_rng(seed)
    factors = [((n,), rng.integers(0, 20, size).astype(float)) for n, size in sizes.items()]
    for one, other in pairs:
        table = rng.integers(0, 50, (sizes[one], sizes[other])).astype(float)
        table[rng.random(table.shape) < impossible] = np.inf
        factors.append(((one, other), table))
    return Tables(sizes, factors)


@pytest.mark.parametrize("seed", range(6))
def test_best_choice(seed, monkeypatch):
    sizes = {n: 3 + (n + seed) % 3 for n in range(6)}
    pairs = [pair for i, pair in enumerate(itertools.combinations(range(6), 2)) if (i + seed) % 3]
    tables = tables_of(seed, sizes, pairs, 0.3)
    totals = [
        tables.total(dict(enumerate(places)))
        for places in itertools.product(*(range(sizes[n]) for n in range(6)))
    ]
    best = tables.best()
    assert best.exact and best.total == min(totals)
    monkeypatch.setattr(eliminate, "_MOST_CELLS", 20)  # as if the tables were too large
    monkeypatch.setattr(eliminate, "_SPLIT_CELLS", 20)
    monkeypatch.setattr(Tables.eliminated, "__defaults__", (None, 20, False))
    rough = tables.best()
    assert rough.bound <= min(totals) <= rough.total
    assert rough.total == np.inf or rough.total == tables.total(rough.picked)
    assert rough.exact == (rough.bound >= rough.total)


def test_no_choice_is_proved():
    tables = tables_of(1, {0: 4, 1: 4, 2: 4}, [(0, 1), (1, 2), (0, 2)])
    tables.factors.append(((0,), np.full(4, np.inf)))
    best = tables.best()
    assert best.total == best.bound == np.inf


def test_large_problems_say_how_good_their_layouts_are(monkeypatch):
    monkeypatch.setattr(eliminate, "_SPLIT_CELLS", 4)
    monkeypatch.setattr(Tables.eliminated, "__defaults__", (None, 4, False))

    @gluon.jit(layouts="auto")
    def scaled(x, out, B: gl.constexpr):
        i = gl.arange(0, B)
        rows = gl.load(x + i[:, None] * B + i[None, :])
        gl.store(out + i[:, None] + i[None, :] * B, rows / gl.sum(rows, axis=1)[:, None])

    x = np.random.default_rng(0).random((32, 32)).astype(np.float32)
    out = np.zeros_like(x)
    with pytest.warns(
        KernelWarning, match="best layouts that the search reached, and others cost at most"
    ):
        scaled[(1,)](x, out, 32, target="sim:hopper")
    assert np.allclose(out, (x / x.sum(1, keepdims=True)).T)


def test_a_choice_ends_when_its_steps_are_used_up(monkeypatch):
    """Layouts are then those of the first form that was solved, on every machine the same, and a warning says so."""
    kernels = []
    for _ in range(2):

        @gluon.jit(layouts="auto")
        def moved(x, out, N: gl.constexpr):
            i = gl.arange(0, N)
            tile = gl.load(x + i[:, None] * N + i[None, :])
            gl.store(out + i[:, None] + i[None, :] * N, tile + i[None, :])

        kernels.append(moved)
    x, out = np.random.default_rng(0).random((64, 64)).astype(np.float32), np.zeros((64, 64))
    out = out.astype(np.float32)
    kernels[0][(1,)](x, out, 64, target="sim:hopper")  # no warning: those are errors
    assert np.allclose(out, (x + np.arange(64)).T)
    monkeypatch.setattr(budget, "MOST", 1)
    out[:] = 0
    with pytest.warns(KernelWarning, match="best layouts that the search reached, and others"):
        kernels[1][(1,)](x, out, 64, target="sim:hopper")
    assert np.allclose(out, (x + np.arange(64)).T)


def mixed_text(count):
    """Return a kernel in which the layout of each of some matrices depends on those of all others."""
    lines = [f"v{i} = gl.load(x + ({i} * N + i[:, None]) * N + i[None, :])" for i in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        first, second = (one, other) if (one + other) % 2 else (other, one)
        lines.append(f"v{first} = v{first} + v{second}.T")
    for i in range(count):
        lines.append(f"gl.store(out + ({i} * N + i[:, None]) * N + i[None, :], v{i})")
    head = 'import gluon_core as gluon\nfrom gluon_core import language as gl\n\n\n@gluon.jit(layouts="auto")\n'
    body = "".join(f"    {line}\n" for line in ["i = gl.arange(0, N)", *lines])
    return f"{head}def mixed(x, out, N: gl.constexpr):\n{body}"


def test_a_kernel_beyond_the_solver_gets_the_best_layouts_found_with_their_bound(tmp_path):
    """Eight matrices, each pair added transposed: no order of elimination has small tables."""
    count = 8
    launch = f"import numpy as np\nx = np.zeros(({count}, 32, 32), np.float32)\nmixed[(1,)](x, x.copy(), 32)\n"
    path = tmp_path / "mixed.py"
    path.write_text(f'{mixed_text(count)}\n\nif __name__ == "__main__":\n{indent(launch, "    ")}')
    spec = importlib.util.spec_from_file_location("mixed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = np.random.default_rng(0).random((count, 32, 32)).astype(np.float32)
    wanted, out = [*x], np.zeros_like(x)
    for one, other in itertools.combinations(range(count), 2):
        first, second = (one, other) if (one + other) % 2 else (other, one)
        wanted[first] = wanted[first] + wanted[second].T
    with pytest.warns(KernelWarning, match="too large to solve exactly") as notes:
        module.mixed[(1,)](x, out, 32, target="sim:hopper")
        text, names = written(str(path), registry().target("sm_90"))
    assert np.allclose(out, np.stack(wanted), rtol=1e-5)
    (percents,) = {re.search(r"others cost at most (\d+)% less", str(n.message))[1] for n in notes}
    assert 0 < int(percents) < 60
    assert names == ["mixed"] and f"others cost at most {percents}% less" in text


@gluon.jit(layouts="auto")
def two_written(x, out, N: gl.constexpr):
    """Use a value with two layouts of the source."""
    value = gl.load(x + gl.arange(0, N))
    narrow = value + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    wide = value * gl.arange(0, N, layout=gl.BlockedLayout([4], [32], [4], [0]))
    gl.store(out + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0])), narrow)
    gl.store(out + N + gl.arange(0, N, layout=gl.BlockedLayout([4], [32], [4], [0])), wide)


def test_two_layouts_of_the_source_are_named_with_both_lines():
    x, out = np.zeros(512, np.float32), np.zeros(1024, np.float32)
    with pytest.raises(LayoutError) as report:
        two_written[(1,)](x, out, 512, target="sim:sm_90")
    first = two_written.fn.__code__.co_firstlineno
    text = str(report.value)
    assert "value: two ops demand different layouts" in text
    for per_thread, line in ((1, first + 4), (4, first + 5)):
        where = f"for the kernel's source, line {line}"
        assert re.search(rf"size_per_thread=\[{per_thread}\](, \w+=\[[^=]*)+\) {where}", text)


CONFLICTS = {
    "two layouts": """
    value = gl.load(x + gl.arange(0, N))
    narrow = value + gl.arange(0, N, layout=gl.BlockedLayout([1], [T], [4], [0]))
    wide = VALUE * gl.arange(0, N, layout=gl.BlockedLayout([4], [T], [4], [0]))
    gl.store(out + gl.arange(0, N), narrow + gl.convert_layout(wide, gl.BlockedLayout([1], [T], [4], [0])))
""",
    "halves": """
    pairs = gl.reshape(gl.load(x + gl.arange(0, 2 * N)), [N, 2])
    low, high = gl.split(pairs)
    LOW; HIGH
    place = gl.arange(0, N, layout=gl.BlockedLayout([1], [T], [4], [0]))
    gl.store(out + place, low + high * place)
""",
}
BY_HAND = {
    "two layouts": {"VALUE": "value"},
    "halves": {"LOW": "low", "HIGH": "high"},
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"])
@pytest.mark.parametrize("case", CONFLICTS)
def test_the_layouts_to_write_by_hand_are_enough(case, target, tmp_path):
    N, threads = 256, 64 if target.startswith("gfx") else 32
    body = CONFLICTS[case].replace("[T]", f"[{threads}]")
    head = 'import gluon_core as gluon\nfrom gluon_core import language as gl\n@gluon.jit(layouts="auto")\n'
    x, out = np.arange(2 * N, dtype=np.float32), np.zeros(N, np.float32)

    def launch(name, texts):
        path = tmp_path / f"{name}.py"
        text = body
        for word, new in texts.items():
            text = text.replace(word, new)
        path.write_text(f"{head}def kernel(x, out, N: gl.constexpr):\n{text}")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.kernel[(1,)](x, out, N, target=f"sim:{target}")

    with pytest.raises(LayoutError) as error:
        launch("wrong", BY_HAND[case])
    written = re.search(r"by hand.*gl.convert_layout\([^,]*, (gl\..*?\))\)", str(error.value))[1]
    by_hand = {
        word: f"gl.convert_layout({name}, {written})" for word, name in BY_HAND[case].items()
    }
    if case == "halves":
        by_hand = {word: f"{word.lower()} = {call}" for word, call in by_hand.items()}
    launch("right", by_hand)
    number = np.arange(N)
    wanted = x[:N] + number + x[:N] * number
    assert np.array_equal(out, x[::2] + x[1::2] * number if case == "halves" else wanted)


@gluon.jit(layouts="auto")
def of_three_buffers(x, out, N: gl.constexpr):
    i = gl.arange(0, N)
    first = gl.allocate_shared_memory(
        gl.float32, [N, N], value=gl.load(x + i[:, None] * N + i[None, :])
    )
    second = gl.allocate_shared_memory(gl.float32, [N, N], value=first.load() * 2)
    third = gl.allocate_shared_memory(gl.float32, [N, N], value=first.load() * 3)
    gl.store(out + i[:, None] * N + i[None, :], first.load() + second.load() + third.load())


@pytest.mark.parametrize(
    ("target", "most"), [("sm_120", 101376), ("gfx942", 65536), ("gfx950", 163840)]
)
def test_more_shared_memory_than_there_is(target, most):
    asked = {"signature": {"x": "*fp32", "out": "*fp32"}, "constexprs": {"N": 128}}
    with pytest.raises(LimitError, match=f"at most {most} bytes, got 196608"):
        gluon.compile(of_three_buffers, target=target, **asked)


WIDE = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit(layouts="auto")
def changed_in_a_branch(x, out, flag, CASE: gl.constexpr, N: gl.constexpr):
    value = gl.load(x + gl.arange(0, N))
    if CASE == "converted":
        value = gl.convert_layout(value, WIDE)
    if flag > 1:
        if CASE == "shape":
            value = gl.load(x + gl.arange(0, N // 2))
        else:
            value = gl.load(x + gl.arange(0, N, layout=WIDE)) * 2
    gl.store(out + gl.arange(0, N), value)


@gluon.jit(layouts="auto")
def changed_in_a_loop(x, out, flag, CASE: gl.constexpr, N: gl.constexpr):
    value = gl.load(x + gl.arange(0, N, layout=WIDE))
    for i in range(flag):
        value = gl.load(x + gl.arange(0, N)) * 2
    gl.store(out + gl.arange(0, N), value)


@pytest.mark.parametrize(
    ("kernel", "case", "words"),
    [
        (changed_in_a_branch, "layout",
         "'value' changes its layout in one branch of an `if`; expected one that is left out, as before the `if`, got Blocked"),
        (changed_in_a_branch, "shape",
         "'value' changes its shape in one branch of an `if`; expected [512], as before the `if`, got [256]"),
        (changed_in_a_loop, "layout",
         "'value' changes its layout in a loop; expected BlockedLayout"),
    ],
)  # fmt: skip
def test_values_that_change_in_a_branch_or_loop(kernel, case, words):
    x, out = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    with pytest.raises(ShapeError if case == "shape" else LayoutError) as report:
        kernel[(1,)](x, out, 3, case, 512, target="sim:sm_90")
    text = str(report.value)
    assert words in text and "AutoLayout" not in text
    if case == "layout":
        assert "got one that is left out" in text or "expected one that is left out" in text
        assert "gl.convert_layout(value, gl.BlockedLayout(size_per_thread=[4]" in text
    shown = (
        "value = gl.load(x + gl.arange(0, N)) * 2" if kernel is changed_in_a_loop else "if flag > 1"
    )
    assert shown in text  # the statement that sets it, or the branch that has several


def test_the_remedy_of_a_changed_layout_helps():
    x, out = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    for flag in (0, 3):
        changed_in_a_branch[(1,)](x, out, flag, "converted", 512, target="sim:sm_90")
        assert np.array_equal(out, x * (2 if flag > 1 else 1))


UNIT = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))


@gluon.jit(layouts="auto")
def mistaken(x, out, CASE: gl.constexpr, N: gl.constexpr):
    other: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    i = gl.arange(0, N, layout=gl.SliceLayout(1, UNIT))
    j = gl.arange(0, N, layout=gl.SliceLayout(0, UNIT))
    values = gl.load(x + i[:, None] * N + j[None, :])
    if CASE == "scan":
        values = gl.cumsum(values, 1)
    elif CASE == "dtype":
        values = gl.load(x + i[:, None] * N + j[None, :]).to("float99")
    elif CASE == "size":
        values += gl.arange(0, N * N)[:, None] * gl.arange(0, N * N)[None, :]
    elif CASE == "pointer":
        values = gl.load(gl.arange(0, N))
    elif CASE == "hands":
        values += gl.full([N, N], 1.0, gl.float32, layout=other)
    else:
        values = gl.portable.mma(values, gl.zeros([N // 2, N], gl.float32), values)
    gl.store(out + i[:, None] * N + j[None, :], values)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("case", "kind", "words", "line"),
    [
        ("scan", LayoutError, "which the kernel's source, line {4} demands. Put gl.convert_layout in front of the scan.", 4),
        ("hands", LayoutError, "The one comes from line {2}, the other from line {14}", 14),
        ("shapes", ShapeError, "the shapes do not multiply; expected a [M, K], b [K, N], acc [M, N], got [32, 32], [16, 32]", 16),
        ("dtype", DtypeError, "not a dtype; expected a dtype such as gl.float16, got 'float99'", 8),
        ("size", ShapeError, "expected at most 1048576, got 16777216 in [4096, 4096]. Use a smaller tile.", 10),
        ("pointer", DtypeError, "expected a pointer or a tensor of pointers, got a tensor of int32, [32]\n", 12),
    ],
)  # fmt: skip
def test_mistakes_of_layouts_and_shapes_are_shown_where_they_are(case, kind, words, line):
    x, out = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    with pytest.raises(kind) as report:
        mistaken[(1,)](x, out, case, 64 if case == "size" else 32, target="sim:sm_90")
    first, text = mistaken.fn.__code__.co_firstlineno + 1, str(report.value)
    assert re.sub(r"{(\d+)}", lambda n: str(first + int(n[1])), words) in text
    assert f"test_conflicts.py:{first + line}:" in text


@gluon.jit(layouts="auto")
def narrow(a, out, CASE: gl.constexpr, M: gl.constexpr):
    i = gl.arange(0, M)
    x = gl.load(a + i[:, None] * M + i[None, :])
    if CASE == "rows" or CASE == "target":
        tile = gl.allocate_shared_memory(gl.float16, [M, M], value=x)
        x = gl.nvidia.hopper.warpgroup_mma(tile, tile, gl.zeros([M, M], gl.float32))
    elif CASE == "swizzle":
        tile = gl.allocate_shared_memory(
            gl.float16, [M, M], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
        x = gl.nvidia.hopper.warpgroup_mma(tile, tile, gl.zeros([M, M], gl.float32))
    elif CASE == "sum":
        plain: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        acc = gl.zeros([M, M], gl.float32, layout=plain)
        x = gl.nvidia.ampere.mma_v2(x, x, acc)
    elif CASE == "unit":
        blocked: gl.constexpr = gl.BlockedLayout([1, 4], [16, 4], [4, 1], [1, 0])
        x = gl.amd.cdna3.mfma(x, x, gl.zeros([M, M], gl.float32, layout=blocked))
    else:
        x = gl.sum(x, 2)
    gl.store(out + i[:, None] * M + i[None, :], x)


@pytest.mark.parametrize(
    ("case", "target", "words", "line"),
    [
        ("rows", "sm_90", "takes, got fp16 [32, 32] @ fp16 [32, 32] with 4 warps. Use larger tiles, or gl.portable.mma", 6),
        ("swizzle", "sm_90", "got SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0], cga_layout=[]). gl.NVMMASharedLayout.get_default_for([64, 64], dtype) is one", 11),
        ("target", "sm_120", "gl.nvidia.hopper.warpgroup_mma needs", 6),
        ("sum", "sm_120", "cga_layout=[]). The layout comes from line {14}: leave it out there, or convert the value", 15),
        ("unit", "gfx950", "acc: not the accumulator of MFMA; expected AMDMFMALayout(...), got BlockedLayout(", 18),
        ("axis", "sm_90", "axis: the axis is out of range; expected -2 to 1, got 2", 20),
    ],
)  # fmt: skip
def test_operands_that_an_op_does_not_take(case, target, words, line):
    size = 64 if case == "swizzle" else 32
    a, out = np.zeros((size, size), np.float16), np.zeros((size, size), np.float32)
    with pytest.raises(GluonError) as report:
        narrow[(1,)](a, out, case, size, target=f"sim:{target}")
    first, text = narrow.fn.__code__.co_firstlineno, str(report.value)
    words = re.sub(r"{(\d+)}", lambda number: str(first + int(number[1])), words)
    assert words in text and "called from" not in text
    assert f"test_conflicts.py:{first + line}:" in text


@gluon.jit(layouts="auto")
def raised(x, N: gl.constexpr):
    i = gl.arange(0, N)
    gl.store(x + i, gl.load(x + i) + 1)


def test_a_tile_that_no_registers_hold_is_named():
    x = np.zeros(1 << 19, np.float32)
    line = raised.fn.__code__.co_firstlineno + 2
    with pytest.warns(KernelWarning, match=rf"i \(line {line}\) has 4096 elements in each thread"):
        raised[(1,)](x, 1 << 19, target="sim:sm_90")
    assert (x == 1).all()


def test_a_cluster_is_refused_with_its_reason(tmp_path):
    path = tmp_path / "cluster.py"
    path.write_text(
        "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        '@gluon.jit(layouts="auto")\ndef kernel(x, B: gl.constexpr):\n    gl.store(x + gl.arange(0, B), 1.0)\n'
        'if __name__ == "__main__":\n    kernel[(2,)](np.zeros(64, np.float32), 64, num_ctas=2)\n'
    )
    with pytest.raises(LayoutError, match="layouts are chosen for one block"):
        written(str(path), registry().target("sm_90"))


@gluon.jit(layouts="auto")
def summed(x, out, n, B: gl.constexpr):
    i = gl.arange(0, B)
    acc = 0.0
    for k in range(n):
        acc += gl.load(x + k * B + i)
    gl.store(out + i, acc)


def test_a_sum_of_tensors_begins_with_one():
    x, out = np.ones(256, np.float32), np.zeros(128, np.float32)
    with pytest.raises(ShapeError, match=r"in a loop; .*Begin with .*: gl.full\(\[128\], value"):
        summed[(1,)](x, out, 2, 128, target="sim:sm_90")
