"""Random operands of AMD's own ops: scaled conversions, slices, stages, hints, clusters, moved descriptors."""

from __future__ import annotations

from typing import Callable

from gluon_core.testing import TRITON_VERSION
from tests.compat.amd import _hip, _kernel
from tests.compat.hardware import _chance, _more, _right, _right_int
from tests.fuzz.draw import Draw

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]
_SPACES = {"gfx942": "gl.amd.cdna3", "gfx950": "gl.amd.cdna4", "gfx1250": "gl.amd.gfx1250"}
_STORE = (
    "gl.store(q + gl.full(y.shape, 0, gl.int32, y.type.layout) + n, y.to(gl.float32).to(gl.int32))"
)


def conversions(d: Draw) -> str:
    """Between scaled small floats and wide ones."""
    arch = d.pick(["gfx942", "gfx950", "gfx950", "gfx1250"])
    lanes = 32 if arch == "gfx1250" else 64
    space = _SPACES[arch]
    kinds = ["up", "up", "up4"]
    if RELEASE >= (3, 9):
        kinds += ["layout", "layout"] + (
            ["down", "down", "repacked", "repacked"] if arch != "gfx942" else []
        )
    kind = d.pick(kinds)
    each = _right_int(d, 8, [2, 4, 16, 1])
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, {each}], [{lanes // 8}, 8], [4, 1], [1, 0])",
        f"W: gl.constexpr = gl.BlockedLayout([1, {2 * each}], [{lanes // 8}, 8], [4, 1], [1, 0])",
        f"H: gl.constexpr = gl.BlockedLayout([2, {each}], [{lanes // 8}, 8], [4, 1], [1, 0])",
        "i = gl.full([32, 64], 0, gl.int32, L) + n",
        "x = gl.load(p + i)",
    ]
    wide = _right(d, d.pick(["gl.bfloat16", "gl.float16"]), ["gl.float32", "gl.float8e5", "None", "gl.uint8"], 0.93)  # fmt: skip
    scale_type = _right(
        d, d.pick(["uint8", "int8"]), ["int32", "float32", "bfloat16", "float8e5"], 0.95
    )
    axis = _right(d, d.pick(["1", "1", "-1", "0"]), ["2", "None", "n", "True"], 0.94)
    if kind == "up":
        small = _right(d, d.pick(["float8e4nv", "float8e5"]), ["float8e4b8", "float16", "float8e5b16", "uint8", "float8e4b15"], 0.93)  # fmt: skip
        shape = _right(d, "[32, 64]", ["[32, 2]", "[32, 1]", "[64, 64]"], 0.94)
        layout = _right(d, "L", ["W", "gl.AutoLayout()", "gl.SliceLayout(1, L)"], 0.95)
        body.append(f"s = gl.full({shape}, 127, gl.{scale_type}, {layout})")
        more = "" if _chance(d, 0.93) else f", {axis}"
        body.append(f"y = {space}.scaled_upcast(x.to(gl.{small}), s, {wide}{more})")
    elif kind == "up4":
        at0 = axis == "0"
        shape = _right(
            d, "[64, 64]" if at0 else "[32, 128]", ["[32, 64]", "[32, 4]", "[64, 64]"], 0.94
        )
        layout = _right(d, "H" if at0 else "W", ["L", "gl.AutoLayout()"], 0.93)
        body.append(f"s = gl.full({shape}, 127, gl.{scale_type}, {layout})")
        small = _right(d, d.pick(["uint8", "int8"]), ["float8e5", "int16", "int32"], 0.95)
        body.append(
            f"y = {space}.scaled_upcast(i.to(gl.{small}), s, {wide}, {_right(d, 'axis=', [''])}{axis})"
        )
    elif kind == "layout":
        factor = _right_int(d, d.pick([32, 16]), [3, 0, 64, 1])
        shape = f"[{64 if axis == '0' else 32}, {64 if axis == '0' else 128} // {factor or 1}]"
        if axis == "0":
            shape = f"[64 // {factor or 1}, 64]"
        body.append(
            f"S: gl.constexpr = {space}.get_scaled_upcast_fp4_scale_layout(i.to(gl.uint8), {factor}, {wide}, {axis})"
        )
        body.append(f"y = gl.full({shape}, 127, gl.{scale_type}, S)")
    elif kind == "down":
        source = _right(d, d.pick(["x", "x.to(gl.float16)", "x.to(gl.bfloat16)"]), ["i", "x.to(gl.float64)", "x.to(gl.float8e5)", "2.0"], 0.94)  # fmt: skip
        form = _right(d, d.pick(["'e2m1'", "'e4m3'", "'e5m2'"]), ["'fp16'", "None", "'E4M3'"], 0.95)
        shape = _right(d, "[32, 2]", ["[32, 64]", "[32, 4]", "[32]"], 0.94)
        lanes_of = [[0, 0]] * 2 + ([[0, 0]] if each == 8 else []) + [[0, 1]]
        rows = [[1 << k, 0] for k in range(5)]
        rest = lanes_of[-3:] + rows[: (3 if lanes == 64 else 2)]
        layout_text = f"gl.DistributedLinearLayout([], {rest}, {rows[3 if lanes == 64 else 2 :][:2]}, [], [32, 2])"
        if lanes == 32:
            layout_text = f"gl.DistributedLinearLayout([[16, 0]], {rest}, {rows[2:4]}, [], [32, 2])"
        layout = _right(d, layout_text, ["L", "gl.AutoLayout()", f"gl.BlockedLayout([1, 1], [{lanes // 2}, 2], [4, 1], [1, 0])"], 0.85)  # fmt: skip
        body.append(f"s = gl.full({shape}, 127, gl.{scale_type}, {layout})")
        body.append(
            f"y = {space}.scaled_downcast({source}, s, {form}{_more(d, 'axis', ['1', '-1', '0', '2', 'n'], 0.25)})"
        )
        body.append("y = y.to(gl.int8, bitcast=True)")
    else:
        shared = _right(d, "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", ["gl.SwizzledSharedLayout(8, 2, 4, [1, 0])",
                        "gl.SwizzledSharedLayout(1, 1, 1, [0, 1])", "gl.PaddedSharedLayout.with_identity_for([[64, 16]], [64, 64], [1, 0])"], 0.7)  # fmt: skip
        unit = "gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [4, 1])" if arch == "gfx950" else "gl.amd.AMDWMMALayout(3, True, [[1, 0], [2, 0]], instr_shape=[16, 16, 64])"  # fmt: skip
        layout = _right(d, f"gl.DotOperandLayout(1, {unit}, 16)", [f"gl.DotOperandLayout(0, {unit}, 16)", "L", "gl.AutoLayout()",
                        f"gl.DotOperandLayout(1, {unit}, 8)"], 0.85)  # fmt: skip
        held = _right(d, "uint8", ["int8", "float8e5", "float16", "int32"], 0.94)
        body.append(f"m = gl.allocate_shared_memory(gl.{held}, [64, 64], {shared})")
        body.append(f"m.store(gl.full([64, 64], 1, gl.int32, L).to(gl.{held}))")
        body.append(f"y = {space}.load_shared_fp4_repacked({_right(d, 'm', ['x', 'p', 'm.permute([1, 0])'], 0.96)}, {layout})")  # fmt: skip
    return _kernel([*body, _STORE], _hip(arch))


def parts(d: Draw) -> str:
    """Slices of registers, stages of a pipeline, hints, clusters and arrivals of copies."""
    arch = d.pick(["gfx942", "gfx950", "gfx1250", "gfx1250"])
    lanes = 32 if arch == "gfx1250" else 64
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, 8], [{lanes // 8}, 8], [4, 1], [1, 0])",
        "i = gl.full([64, 128], 0, gl.int32, L) + n",
    ]
    kinds = ["arrive", "layouts"] if arch == "gfx1250" else ["padded"]
    kinds += ["stages"] if RELEASE >= (3, 7) else []
    kinds += ["slice", "slice"] if RELEASE >= (3, 8) else []
    kinds += ["hint"] if RELEASE >= (3, 9) else []
    kinds += ["cluster"] if arch == "gfx1250" and RELEASE >= (3, 7) else []
    kind = d.pick(kinds)
    end = _hip(arch)
    if kind == "slice":
        tall = lanes // 8 * 4
        shape = [
            _right_int(d, d.pick([tall, 64]), [8, 48, 128]),
            _right_int(d, d.pick([64, 128]), [32, 48, 256]),
        ]
        offsets = [_right_int(d, d.pick([0, 0, tall % 64]), [16, 64, -32]),
                   _right_int(d, d.pick([0, 0, 64]), [32, 16])]  # fmt: skip
        of = _right(d, "i", ["n", "p", "i.to(gl.float16)"], 0.96)
        texts = [_right(d, str(shape), [str(shape[:1]), "None", "n"], 0.97), _right(d, str(offsets), [str(offsets[:1]), "[n, 0]"], 0.97)]  # fmt: skip
        call = d.pick(["gl.amd.slice"])
        body += [f"y = {call}({of}, {texts[0]}, {texts[1]})", _STORE]
    elif kind == "stages":
        label = d.pick(["'load'", "'multiply'", "None", "", "1", "'a b'", "label='x'", "''"])
        rank = d.pick(["", "", "priority=0", "priority=3", "priority=4", "priority=-1", "priority='high'", "priority=None", "priority=n"])  # fmt: skip
        clause = ", ".join(part for part in (label, rank) if part)
        stage = d.pick(["", "", " as stage"])
        body += [
            "for k in range(n):",
            f"    with gl.amd.warp_pipeline_stage({clause}){stage}:",
            f"        gl.static_assert(stage.label == {label.removeprefix('label=') or None} and stage.priority is not None)"
            if stage
            else "        pass",
            "        x = gl.load(q + i)",
            f"    with gl.amd.warp_pipeline_stage({d.pick(['', clause])}):",
            "        gl.store(q + i, x + 1)",
        ]
        if not _chance(d, 0.9):
            body[-2:] = ["    gl.store(q + i, x)"]
    elif kind == "hint":
        allow = d.pick(["", "None", "allow=None", "3", "n", "['mfma']", "0"])
        body += [
            "x = gl.load(q + i)",
            f"gl.amd.hint.sched_barrier({allow})",
            "gl.store(q + i, x + 1)",
        ]
    elif kind == "cluster":
        ctas = 2 if _chance(d, 0.85) else 1
        body = [
            "gl.amd.gfx1250.cluster.arrive()",
            "gl.store(q, n)",
            "gl.amd.gfx1250.cluster.wait()",
        ]
        if not _chance(d, 0.9):
            body = body[::2]
        end = end.replace("num_warps=4", f"num_warps=4, num_ctas={ctas}") if ctas > 1 else end
    elif kind == "arrive":
        space = "gl.amd.gfx1250"
        bar = f"gl.allocate_shared_memory(gl.{_right(d, 'int64', ['int32'], 0.95)}, [{_right(d, '1', ['2'], 0.95)}], {space}.mbarrier.MBarrierLayout())"  # fmt: skip
        body += [f"bar = {bar}", f"{space}.mbarrier.init(bar, 1)"]
        body.append(
            f"{space}.async_copy.mbarrier_arrive({_right(d, 'bar', ['n', 'i', 'None', 'p'], 0.9)})"
        )
        body.append(
            f"gl.store(q, {space}.mbarrier.arrive(bar{_more(d, 'count', ['2', 'n', '0', 'True'], 0.3)}))"
        )
    elif kind == "padded":
        version = 4 if arch == "gfx950" else 3
        side = d.pick([16, 32])
        k = (512 if arch == "gfx950" else 256) // side
        unit = f"gl.amd.AMDMFMALayout({version}, [{side}, {side}, {k}], True, [2, 2])"
        operand, width = d.pick([0, 1]), _right_int(d, 8 if arch == "gfx950" else 4, [4, 16])
        sizes = [d.pick([64, 128]), d.pick([64, 128, 16])]
        dtype = _right(d, d.pick(["float16", "bfloat16"]), ["float32", "int8", "float8e5"], 0.85)
        asked = f"gl.amd.cdna4.compute_efficient_padded_shared_layout(gl.DotOperandLayout({operand}, {unit}, {width}), {sizes}, gl.{dtype}{_more(d, 'is_k_contig', ['False', 'True'], 0.4)})"  # fmt: skip
        return _kernel(
            [f"D: gl.constexpr = gl.DotOperandLayout({operand}, {unit}, {width})", f"x = gl.full({sizes}, 1, gl.int32, D).to(gl.{dtype})",
             f"s = gl.allocate_shared_memory(gl.{dtype}, {sizes}, {asked if RELEASE >= (3, 8) else 'gl.SwizzledSharedLayout(1, 1, 1, [1, 0])'})",
             "s.store(x)", "y = s.load(D)", _STORE], end)  # fmt: skip
    else:
        if RELEASE < (3, 8):
            return parts(d)
        block = [d.pick([64, 128, 256]), d.pick([64, 128, 256])]
        k, warps = 64, _right_int(d, d.pick([4, 8]), [2])
        space = "gl.amd.gfx1250"
        padded = [f"gl.PaddedSharedLayout.with_identity_for([[{b}, 8]], {[a, b]}, [1, 0])" for a, b in ((block[0], k), (k, block[1]))]  # fmt: skip
        if not _chance(d, 0.95):
            padded[0] = d.pick(["gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", padded[1]])
        instr = _right(d, "[16, 16, 32]", ["[16, 16, 64]", "[16, 16]"], 0.95)
        more = ""
        if RELEASE >= (3, 9):
            more = _more(d, "slice_m", ["64", "32", "128", "16"], 0.3) + _more(
                d, "slice_n", ["64", "32", "128"], 0.3
            )
        more += _more(d, "transposed", ["False", "True"], 0.2) if RELEASE >= (3, 9) else ""
        body = [
            f"made: gl.constexpr = {space}.make_partitioned_dot_layouts({block[0]}, {block[1]}, {padded[0]}, {padded[1]}, {warps}, {instr}{more})",
            f"a = gl.allocate_shared_memory(gl.float16, [{block[0]}, {k}], made[0])",
            f"b = gl.allocate_shared_memory(gl.float16, [{k}, {block[1]}], made[1])",
            "A: gl.constexpr = gl.DotOperandLayout(0, made[2], 8)",
            "B: gl.constexpr = gl.DotOperandLayout(1, made[2], 8)",
            f"c = gl.zeros({block}, gl.float32, made[2])",
            f"y = {space}.wmma(a.load(A), b.load(B), c)",
        ]
        return _kernel([*body, _STORE], _hip(arch, 8 if warps == 8 else 4))
    return _kernel(body, end)


def moved(d: Draw) -> str:
    """Descriptors of the TDM that move, rows that are scattered, and loads of several at once."""
    space = "gl.amd.gfx1250.tdm"
    layout = d.pick(["gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])", "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"])  # fmt: skip
    box = _right(d, "[32, 64]", ["[16, 64]", "[32, 128]"], 0.95)
    values = ["n", "64", "0", "-64", "n.to(gl.int64)", "True", "2.5", "n > 2", "None"]
    pair = [f"[{d.pick(values[:4])}, {_right(d, d.pick(values[:3]), values, 0.9)}]" for _ in "ab"]
    pair = [_right(d, text, ["[n]", "n", "[n, n, n]", "None"], 0.95) for text in pair]
    pred = _more(d, "pred", ["n > 2", "n", "True", "1", "0", "None", "2.5", "i > 2"], 0.35)
    clamp = _more(d, "clamp_bounds", ["True", "False", "n", "1"], 0.3)
    moves = [f"add_offsets={pair[0]}", f"set_bounds={pair[1]}"]
    passed = d.pick([moves[:1], moves[1:], moves, []])
    body = [
        f"L: gl.constexpr = {layout}",
        "i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))",
        f"desc = {space}.make_tensor_descriptor(p.to(gl.pointer_type(gl.float16)), [n, 1024], [1024, 1], {box}, L)",
        f"s = gl.allocate_shared_memory(gl.float16, {box}, L)",
        "t = gl.allocate_shared_memory(gl.float16, desc.block_shape, desc.layout)",
        "bar = gl.allocate_shared_memory(gl.int64, [1], gl.amd.gfx1250.mbarrier.MBarrierLayout())",
    ]
    kinds = ["rows"]
    kinds += ["update", "update", "loop"] if RELEASE >= (3, 8) else []
    kinds += ["fused", "fused"] if RELEASE >= (3, 9) else []
    kind = d.pick(kinds)
    update = f"{space}.update_tensor_descriptor({_right(d, 'desc', ['s', 'n', 'p'], 0.97)}"
    update += f"{''.join(f', {part}' for part in passed)}{pred}{clamp})"
    hint = (
        _more(d, "cache_modifier", ["'.cg'", "'.ca'", "''", "None", "'x'"], 0.2)
        if RELEASE >= (3, 8)
        else ""
    )
    if kind == "update":
        body += [
            f"desc = {update}",
            f"{space}.async_load(desc, dest=s{hint})",
            "gl.store(q, desc.shape[0])",
        ]
    elif kind == "loop":
        body += ["for k in range(n):", f"    {space}.async_load(desc, [0, 0], s{hint})", f"    desc = {update}", "gl.store(q, desc.shape[1])"]  # fmt: skip
    elif kind == "fused":
        masks = d.pick(
            [
                ["0b0011", "0b1100"],
                ["1", "2"],
                ["1", "14"],
                ["1", "2", "4"],
                ["1", "2", "4", "8"],
                ["15"],
            ]
        )
        masks = masks if _chance(d, 0.85) else d.pick([["1", "1"], ["0", "1"], ["16", "1"], ["n", "2"], ["3", "6"], []])  # fmt: skip
        members = [f"({_right(d, 'desc', ['s', 'None'], 0.97)}, {_right(d, d.pick('st'), ['bar', 'n'], 0.97)}, {mask})" for mask in masks]  # fmt: skip
        if not _chance(d, 0.95):
            members = [f"(desc, s, {masks[0] if masks else 1}, 1)", "desc"]
        text = ", ".join(members) + ("," if len(members) == 1 else "")
        text = f"[{text}]" if d.chance(0.6) else f"({text})"
        body.append(f"{space}.async_load_fused({text}{hint})")
    elif RELEASE >= (3, 7):
        rows = d.pick(["gl.SliceLayout(0, gl.BlockedLayout([1, 16], [32, 1], [4, 1], [1, 0]))", "gl.SliceLayout(1, gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0]))",
                       "gl.BlockedLayout([1], [32], [4], [0])"])  # fmt: skip
        column = f" {_right(d, 'n', ['0', 'None', '2.5'])}," if RELEASE == (3, 7) else ""
        kinds = _right(d, d.pick(["int32", "int16"]), ["int64", "uint16", "float32"], 0.93)
        body.append(f"rows = gl.arange(0, {_right_int(d, 32, [8, 64])}, {rows}).to(gl.{kinds})")
        barrier = _more(d, "mbarrier", ["bar", "None", "s"], 0.3)
        op = d.pick(["async_scatter", "async_gather", "async_scatter"])
        body.append(
            f"{space}.{op}(desc, {_right(d, 'rows', ['n', 's'], 0.97)},{column} {_right(d, 's', ['bar', 'p'], 0.97)}{barrier})"
        )
    else:
        body.append(f"{space}.async_store(desc, [n, 0], {_right(d, 's', ['bar', 'p'], 0.9)})")
    body.append(f"{space}.async_wait(0)")
    source = _kernel(body, _hip("gfx1250"))
    if RELEASE >= (3, 8) and d.chance(0.3):
        source = source.replace("gl.amd.gfx1250", "gl.amd.cdna5")
    return source


FAMILIES: dict[str, Callable[[Draw], str]] = {
    **({"scaled conversions": conversions} if RELEASE >= (3, 8) else {}),
    "parts of registers": parts,
    "moved descriptors": moved,
}
