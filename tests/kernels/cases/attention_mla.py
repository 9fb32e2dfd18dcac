"""Multi-head latent attention of one new token each (DeepSeek-V2, arXiv:2405.04434), absorbed: all heads look
at one latent vector of each earlier token, which is key and value at once, and at a few rotated elements
besides that are key only. Tokens are in pages.

A sequence is cut into parts of CHUNK tokens, always the same ones, and the results of the parts are put
together in order: a sequence's result has the same bits whatever the batch is. How many programs walk
over the parts of a sequence is free.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.attention_paged import fetch, placed, rows_of


@gluon.jit
def load_queries(q, first, heads, stride, M: gl.constexpr, D: gl.constexpr, shared: gl.constexpr):
    """Some elements of a tile of heads, in shared memory."""
    layout: gl.constexpr = gl.portable.blocked_layout([M, D], q.dtype.element_ty)
    row = gl.arange(0, M, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    at = row[:, None] * stride + column[None, :]
    tile = gl.portable.load(q + first, at, (row < heads)[:, None])
    return gl.allocate_shared_memory(q.dtype.element_ty, [M, D], shared, tile)


@gluon.jit
def fetch_tile(buffers, cache, table, tile, end, STAGES: gl.constexpr, PAGE: gl.constexpr):
    """Start copying a tile of tokens to its slot: elements that are key and value, and those that are key only."""
    latent, turned = buffers
    BLOCK: gl.constexpr = latent.shape[1]
    WIDTH: gl.constexpr = latent.shape[2] + turned.shape[2]
    dtype: gl.constexpr = latent.dtype
    wide: gl.constexpr = gl.portable.blocked_layout([BLOCK, latent.shape[2]], dtype)
    rows, there = rows_of(table, tile, end, wide, PAGE, BLOCK)
    fetch(latent.index(tile % STAGES), cache, rows, there, WIDTH, wide)
    narrow: gl.constexpr = gl.portable.blocked_layout([BLOCK, turned.shape[2]], dtype)
    rows, there = rows_of(table, tile, end, narrow, PAGE, BLOCK)
    fetch(turned.index(tile % STAGES), cache + latent.shape[2], rows, there, WIDTH, narrow)
    gl.portable.commit()


@gluon.jit
def mla_decode(
    q, cache, table, lengths, parts, logsums, heads, most, table_stride, scale,
    LATENT: gl.constexpr, TURNED: gl.constexpr, PAGE: gl.constexpr, CHUNK: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """`q` is `[sequences, heads, LATENT + TURNED]`, `cache` `[pages, PAGE, LATENT + TURNED]`, the table
    [sequences, pages of the longest]. The result of each part of CHUNK tokens goes to `parts`
    [sequences, heads, most, LATENT], float32, the logarithm (base 2) of its sum to `logsums`.
    `scale` includes log2(e); BLOCK divides CHUNK."""
    dtype: gl.constexpr = q.dtype.element_ty
    WIDTH: gl.constexpr = LATENT + TURNED
    # Copies through registers have branches, behind which LLVM moves products, not the values they load:
    # such copies begin when the scores are known.
    ASYNC: gl.constexpr = gl.target.has("nvidia.cp_async")
    scores: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK, LATENT, dtype, dtype, operands="shared", b_transposed=True
    )
    turns: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK, TURNED, dtype, dtype, operands="shared", b_transposed=True
    )
    values: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, LATENT, BLOCK, dtype, dtype, operands="shared"
    )
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    latent = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, LATENT], values.b_shared)
    turned = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, TURNED], turns.b_shared)
    weights = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK], values.a_shared)
    sequence = gl.program_id(1)
    head = gl.program_id(0) * BLOCK_M
    length = gl.load(lengths + sequence)
    table += sequence * table_stride
    first_row = sequence * heads + head
    of_head = q + first_row.to(gl.int64) * WIDTH
    q_latent = load_queries(of_head, 0, heads - head, WIDTH, BLOCK_M, LATENT, scores.a_shared)
    q_turned = load_queries(of_head, LATENT, heads - head, WIDTH, BLOCK_M, TURNED, turns.a_shared)
    gl.portable.fence()

    row = gl.arange(0, BLOCK_M, out_row)
    column = gl.arange(0, LATENT, gl.SliceLayout(0, values.accumulator))
    score_row = gl.arange(0, BLOCK_M, by_row)
    key = gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
    for part in range(gl.program_id(2), gl.cdiv(length, CHUNK), gl.num_programs(2)):
        end = gl.minimum((part + 1) * CHUNK, length)
        first = part * (CHUNK // BLOCK)
        for i in gl.static_range(STAGES - 1):
            fetch_tile((latent, turned), cache, table, first + i, end, STAGES, PAGE)
        largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
        total = gl.zeros([BLOCK_M], gl.float32, by_row)
        result = gl.zeros([BLOCK_M, LATENT], gl.float32, values.accumulator)
        for tile in range(first, gl.cdiv(end, BLOCK)):
            gl.portable.wait(STAGES - 2)
            slot = tile % STAGES
            acc = gl.portable.accumulator(scores)
            k_tile = latent.index(slot).permute((1, 0))
            acc = gl.portable.mma(q_latent, k_tile, acc, is_async=True)
            k_tile = turned.index(slot).permute((1, 0))
            acc = gl.portable.mma(q_turned, k_tile, acc, is_async=True)
            score = gl.portable.read(acc) * scale
            # All are done with the tile before: its slot is free.
            if ASYNC:
                fetch_tile((latent, turned), cache, table, tile + STAGES - 1, end, STAGES, PAGE)
            score = gl.where((tile * BLOCK + key < end)[None, :], score, -float("inf"))
            higher = gl.maximum(largest, gl.max(score, axis=1))
            if not ASYNC:
                fetch_tile((latent, turned), cache, table, tile + STAGES - 1, end, STAGES, PAGE)
            kept = gl.exp2(largest - higher)
            p = gl.exp2(score - higher[:, None])
            total = total * kept + gl.sum(p, axis=1)
            largest = higher
            weights.store(p.to(dtype))
            gl.portable.fence()
            result = result * gl.convert_layout(kept, out_row)[:, None]
            sums = gl.portable.accumulator(values, result)
            result = gl.portable.read(gl.portable.mma(weights, latent.index(slot), sums))
        gl.portable.wait(0)

        result = result / gl.convert_layout(total, out_row)[:, None]
        at = (first_row + row).to(gl.int64) * most + part
        gl.store(parts + at[:, None] * LATENT + column[None, :], result,
                 mask=(head + row < heads)[:, None])  # fmt: skip
        at = (first_row + score_row).to(gl.int64) * most + part
        gl.store(logsums + at, largest + gl.log2(total), mask=head + score_row < heads)


@gluon.jit
def combine(
    parts, logsums, lengths, out, heads, most, CHUNK: gl.constexpr, D: gl.constexpr
):  # fmt: skip
    """Put the parts of a head's result together, in order."""
    layout: gl.constexpr = gl.portable.blocked_layout([D], gl.float32)
    row = gl.program_id(1) * heads + gl.program_id(0)
    count = gl.cdiv(gl.load(lengths + gl.program_id(1)), CHUNK)
    column = gl.arange(0, D, layout)
    logsums += row.to(gl.int64) * most
    parts += row.to(gl.int64) * most * D
    largest = gl.to_tensor(-1e30)
    for part in range(count):
        largest = gl.maximum(largest, gl.load(logsums + part))
    total = gl.to_tensor(0.0)
    acc = gl.zeros([D], gl.float32, layout)
    for part in range(count):
        weight = gl.exp2(gl.load(logsums + part) - largest)
        total += weight
        acc += weight * gl.load(parts + part * D + column)
    result = acc / gl.where(total > 0, total, 1.0)
    gl.store(out + row.to(gl.int64) * D + column, result.to(out.dtype.element_ty))


def arguments(new, large, shape=None, chunk=None, seed=0):
    """Draw the arguments; `shape`: sequences, heads, latent and rotated elements, page, longest sequence."""
    sequences, heads, latent, turned, page, longest = shape or (
        (64, 128, 512, 64, 64, 8192) if large else (3, 5, 64, 32, 16, 150)
    )
    pages, most = -(-longest // page), -(-longest // (chunk or (1024 if large else 64)))
    draw = np.random.default_rng(seed)
    table = draw.permutation(sequences * pages).reshape(sequences, pages).astype(np.int32)
    lengths = np.full(sequences, longest, np.int32)
    if not large:
        lengths[:-1] = draw.integers(0, longest, sequences - 1)
    return {
        "q": new.random((sequences, heads, latent + turned), "bfloat16"),
        "cache": new.random((sequences * pages, page, latent + turned), "bfloat16"),
        "table": placed(new, table),
        "lengths": placed(new, lengths),
        "parts": new.empty((sequences, heads, most, latent)),
        "logsums": new.empty((sequences, heads, most)),
        "heads": heads,
        "most": most,
        "table_stride": pages,
        "scale": math.log2(math.e) / math.sqrt(192),
    }


def config(warp_size, latent=64, page=16, chunk=64, block=(16, 32), stages=3, num_warps=4):
    return {
        "LATENT": latent,
        "TURNED": 64 if latent > 64 else 32,
        "PAGE": page,
        "CHUNK": chunk,
        "BLOCK_M": block[0],
        "BLOCK": block[1],
        "STAGES": stages,
        "num_warps": num_warps,
    }


def large_config(warp_size, chunk=1024, block=(16, 16), stages=2, num_warps=None):
    return config(warp_size, 512, 64, chunk, block, stages, num_warps or 256 // warp_size)


def choices(target):
    if target.has("nvidia.wgmma"):
        return {"block": (64, 64), "num_warps": 8}
    return {"block": (16, 32), "num_warps": 4} if target.has("nvidia.cp_async") else {}


def grid(args, config, programs=2):
    sequences, heads, _ = args["q"].shape
    return (-(-heads // config["BLOCK_M"]), sequences, min(programs, args["most"]))


def part_of(args, i, head, first, last):
    """Return the output of a head over tokens from `first` to `last` of a sequence, in float64."""
    q, latent = args["q"][i, head].astype(np.float64), args["parts"].shape[3]
    page = args["cache"].shape[1]
    token = np.arange(first, last)
    k = args["cache"][args["table"][i][token // page], token % page].astype(np.float64)
    score = k @ q * args["scale"]
    p = np.exp2(score - score.max())
    return p / p.sum() @ k[:, :latent]


def attention(args):
    """The whole result in float64."""
    sequences, heads, _, latent = args["parts"].shape
    results = np.zeros((sequences, heads, latent))
    for i, length in enumerate(args["lengths"]):
        for head in range(heads if length else 0):
            results[i, head] = part_of(args, i, head, 0, length)
    return results


def decode(args, config, programs=2, **options):
    """Both kernels: the result, [sequences, heads, LATENT]."""
    sequences, heads, _ = args["q"].shape
    mla_decode[grid(args, config, programs)](*args.values(), **{**config, **options})
    out = args["q"][..., : config["LATENT"]] * 0
    names = [args[name] for name in ("parts", "logsums", "lengths")]
    combine[(heads, sequences)](
        *names, out, heads, args["most"], config["CHUNK"], config["LATENT"], **options, num_warps=4
    )
    return out


def part_reference(args, chunk=64):
    """Parts that there are not stay as they are."""
    expected = args["parts"].astype(np.float64)
    for i, length in enumerate(args["lengths"]):
        for first in range(0, int(length), chunk):
            for head in range(args["heads"]):
                last = min(first + chunk, length)
                expected[i, head, first // chunk] = part_of(args, i, head, first, last)
    return expected


def zeroed(new, large):
    """`arguments` whose parts are zeros where nobody writes."""
    args = arguments(new, large)
    args["parts"] = new.integers(tuple(args["parts"].shape), 0, 1, "float32")
    return args


def flops(args):
    sequences, heads, width = args["q"].shape
    pairs = sequences * heads * args["table_stride"] * args["cache"].shape[1]
    return 2 * pairs * (width + args["parts"].shape[3])


EXAMPLES = [
    Example(
        name="latent attention of a part, paged",
        kernel=mla_decode,
        arguments=zeroed,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        reference=part_reference,
        output="parts",
        flops=flops,
        tolerance=1e-2,
    )
]
