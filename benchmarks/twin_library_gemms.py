"""Products as public libraries write them, for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def stream_k(a_ptr, b_ptr, c_ptr, M, N, K, steps, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
             BK: tl.constexpr):  # fmt: skip
    """Deal the steps of all tiles to programs evenly; a tile that two programs share is added to."""
    across, parts = tl.cdiv(N, BN), tl.cdiv(K, BK)
    each, more = steps // PROGRAMS, steps % PROGRAMS
    program = tl.program_id(0)
    begin = program * each + tl.minimum(program, more)
    end = begin + each + (program < more)
    while begin < end:
        tile, first = begin // parts, begin % parts
        stop = tl.minimum(begin + parts - first, end)
        row = tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        step = first * BK + tl.arange(0, BK)
        a_tile = a_ptr + (row % M)[:, None] * K + step[None, :]
        b_tile = b_ptr + step[:, None] * N + (column % N)[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for part in range(begin, stop):
            left = K - (first + part - begin) * BK
            index = tl.arange(0, BK)
            a = tl.load(a_tile, mask=index[None, :] < left, other=0.0)
            b = tl.load(b_tile, mask=index[:, None] < left, other=0.0)
            acc += tl.dot(a, b)
            a_tile += BK
            b_tile += BK * N
        inside = (row[:, None] < M) & (column[None, :] < N)
        place = c_ptr + row[:, None] * N + column[None, :]
        if stop - begin == parts:
            tl.store(place, acc, mask=inside)
        else:
            tl.atomic_add(place, acc, mask=inside, sem="relaxed")
        begin = stop


@triton.jit
def halved_store(a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Walk over tiles by descriptors, and store the halves of a tile one after the other."""
    a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN // 2])
    down, across, parts = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    for tile in tl.range(tl.program_id(0), down * across, PROGRAMS, flatten=False):
        group = tile // (GROUP * across)
        first = group * GROUP
        tall = min(down - first, GROUP)
        i = (first + tile % tall) * BM
        j = tile % (GROUP * across) // tall * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for part in range(parts):
            a = a_tiles.load([i, part * BK])
            b = b_tiles.load([j, part * BK])
            acc = tl.dot(a, b.T, acc)
        halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c_tiles.store([i, j], left.to(c_ptr.dtype.element_ty))
        c_tiles.store([i, j + BN // 2], right.to(c_ptr.dtype.element_ty))


@triton.jit
def described_groups(x_ptr, w_ptr, y_ptr, end_ptr, groups, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Multiply the rows of each group by its weights, which descriptors name, in as many programs as there are multiprocessors."""
    w_tiles = tl.make_tensor_descriptor(w_ptr, [groups * N, K], [K, 1], [BN, BK])
    tile, counted, start = tl.program_id(0), 0, 0
    across = tl.cdiv(N, BN)
    for group in range(groups):
        end = tl.load(end_ptr + group)
        tiles = tl.cdiv(end - start, BM) * across
        if tiles > 0:
            x_tiles = tl.make_tensor_descriptor(x_ptr, [end, K], [K, 1], [BM, BK])
            while tile < counted + tiles:
                own = tile - counted
                i, j = start + own // across * BM, own % across * BN
                acc = tl.zeros((BM, BN), tl.float32)
                for k in range(0, K, BK):
                    x = x_tiles.load([i, k])
                    w = w_tiles.load([group * N + j, k])
                    acc = tl.dot(x, w.T, acc)
                row, column = i + tl.arange(0, BM), j + tl.arange(0, BN)
                inside = (row < end)[:, None] & (column < N)[None, :]
                place = row[:, None].to(tl.int64) * N + column[None, :]
                tl.store(y_ptr + place, acc.to(y_ptr.dtype.element_ty), mask=inside)
                tile += PROGRAMS
        counted += tiles
        start = end


@triton.jit
def scaled_experts(x_ptr, w_ptr, y_ptr, x_scale_ptr, w_scale_ptr, weight_ptr, token_ptr, expert_ptr, padded_ptr, N, K,
                   tokens, TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   GROUP: tl.constexpr, WEIGHTED: tl.constexpr, FORM: tl.constexpr):  # fmt: skip
    """Multiply rows that a table names by the expert of their block: of halves, of bytes, or of 8-bit floats with scales of blocks."""
    program = tl.program_id(0)
    down, across = tl.cdiv(tl.load(padded_ptr), BM), tl.cdiv(N, BN)
    width = GROUP * across
    first = program // width * GROUP
    tall = min(down - first, GROUP)
    i, j = first + program % width % tall, program % width // tall
    if i >= down:
        return
    token = tl.load(token_ptr + i * BM + tl.arange(0, BM)).to(tl.int64)
    present = token < tokens * TOP
    expert = tl.load(expert_ptr + i).to(tl.int64)
    column = (j * BN + tl.arange(0, BN).to(tl.int64)) % N
    step = tl.arange(0, BK)
    x_tile = x_ptr + (token[:, None] // TOP * K + step[None, :])
    w_tile = w_ptr + expert * N * K + (column[None, :] * K + step[:, None])
    parts = tl.cdiv(K, BK)
    if FORM == "fp8":
        x_scale = x_scale_ptr + token // TOP * parts
        w_scale = w_scale_ptr + expert * tl.cdiv(N, BK) * parts + column // BK * parts
    elif FORM == "int8":
        w_scale = w_scale_ptr + expert * N + column
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, parts):
        x = tl.load(x_tile, mask=present[:, None] & (step[None, :] < K - k * BK), other=0.0)
        w = tl.load(w_tile, mask=step[:, None] < K - k * BK, other=0.0)
        if FORM == "fp8":
            of_rows = tl.load(x_scale + k, mask=present, other=0.0)
            of_columns = tl.load(w_scale + k)
            acc += tl.dot(x, w) * of_rows[:, None] * of_columns[None, :]
        elif FORM == "int8":
            acc = tl.dot(x, w.to(x_ptr.dtype.element_ty), acc=acc)
        else:
            acc += tl.dot(x, w)
        x_tile += BK
        w_tile += BK
    if FORM == "int8":
        acc = acc * tl.load(w_scale)[None, :]
    if WEIGHTED:
        acc = acc * tl.load(weight_ptr + token, mask=present, other=0)[:, None]
    own = j * BN + tl.arange(0, BN)
    place = y_ptr + N * token[:, None] + own[None, :]
    tl.store(place, acc.to(y_ptr.dtype.element_ty), mask=present[:, None] & (own[None, :] < N))


@triton.jit
def scaled_blocks(a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K, am, ak, bk, bn, cm, cn, sam, sak, sbk, sbn,
                  WIDE: tl.constexpr, DEEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Multiply 8-bit floats; rows of A and blocks of B have a scale for each part of K."""
    program = tl.program_id(axis=0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    group = program // width
    first = group * GROUP
    tall = min(down - first, GROUP)
    i = first + (program % tall)
    j = (program % width) // tall
    row, column, step = (
        (i * BM + tl.arange(0, BM)) % M,
        (j * BN + tl.arange(0, BN)) % N,
        tl.arange(0, BK),
    )
    a_tile = a_ptr + (row[:, None] * am + step[None, :] * ak)
    b_tile = b_ptr + (step[:, None] * bk + column[None, :] * bn)
    a_scale = a_scale_ptr + row * sam
    b_scale = b_scale_ptr + column // WIDE * sbn
    scale_step = BK // DEEP
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        if EVEN:
            a, b = tl.load(a_tile), tl.load(b_tile)
        else:
            a = tl.load(a_tile, mask=step[None, :] < K - k * BK, other=0.0)
            b = tl.load(b_tile, mask=step[:, None] < K - k * BK, other=0.0)
        of_rows, of_columns = tl.load(a_scale), tl.load(b_scale)
        acc += tl.dot(a, b) * of_rows[:, None] * of_columns[None, :]
        a_tile += BK * ak
        b_tile += BK * bk
        a_scale += scale_step * sak
        b_scale += scale_step * sbk
    c = acc.to(c_ptr.dtype.element_ty)
    row, column = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    c_tile = c_ptr + cm * row[:, None] + cn * column[None, :]
    tl.store(c_tile, c, mask=(row[:, None] < M) & (column[None, :] < N))


@triton.jit
def fp8_rows(a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, bias_ptr, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr,
             BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Multiply 8-bit floats, and scale rows and columns of the product."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    tall = min(down - program // width * GROUP, GROUP)
    i = program // width * GROUP + program % tall
    j = program % width // tall
    row, column = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    row_in = tl.max_contiguous(tl.multiple_of(row % M, BM), BM)
    column_in = tl.max_contiguous(tl.multiple_of(column % N, BN), BN)
    step = tl.arange(0, BK)
    a_tile = a_ptr + (row_in[:, None] * am + step[None, :] * ak)
    b_tile = b_ptr + (step[:, None] * bk + column_in[None, :] * bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = K - k * BK
        a = tl.load(a_tile, mask=step[None, :] < left, other=0.0)
        b = tl.load(b_tile, mask=step[:, None] < left, other=0.0)
        if FAST:
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=BK, out_dtype=tl.float32)
        else:
            acc += tl.dot(a, b, out_dtype=tl.float32)
        a_tile += BK * ak
        b_tile += BK * bk
    of_rows = tl.load(a_scale_ptr + row, mask=row < M)
    of_columns = tl.load(b_scale_ptr + column, mask=column < N)
    acc *= of_rows[:, None] * of_columns[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column < N)[None, :]
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        c_ptr + (row[:, None] * cm + column[None, :] * cn),
        acc.to(c_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def awq(x_ptr, w_ptr, zero_ptr, scale_ptr, y_ptr, M, N, K, LENGTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
        BK: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Multiply by weights of four bits, eight along N in a word, in the order 0 4 1 5 2 6 3 7, with zeros of groups."""
    program, part = tl.program_id(0), tl.program_id(1)
    across = tl.cdiv(N, BN)
    i, j = program // across, program % across
    shift = ((tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None]).reshape(8) * 4
    shift = tl.reshape(tl.broadcast_to(shift[None, :], (BK * (BN // 8), 8)), (BK, BN))
    row = i * BM + tl.arange(0, BM)
    word = j * (BN // 8) + tl.arange(0, BN // 8)
    column = j * BN + tl.arange(0, BN)
    step = part * BK + tl.arange(0, BK)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    w_tile = w_ptr + step[:, None] * (N // 8) + word[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK * PARTS)):
        x = tl.load(x_tile, mask=(row < M)[:, None] & (step < K)[None, :], other=0.0)
        w = tl.load(w_tile, mask=(step < K)[:, None] & (word < N // 8)[None, :], other=0)
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        w = tl.interleave(w, w)
        group = (BK * PARTS * k + part * BK) // LENGTH + tl.arange(0, 1)
        zero = tl.load(
            zero_ptr + group[:, None] * (N // 8) + word[None, :],
            mask=(word < N // 8)[None, :],
            other=0,
        )
        zero = tl.interleave(zero, zero)
        zero = tl.interleave(zero, zero)
        zero = tl.interleave(zero, zero)
        zero = tl.broadcast_to(zero, (BK, BN))
        scale = tl.load(
            scale_ptr + group[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0
        )
        scale = tl.broadcast_to(scale, (BK, BN))
        w = (((w >> shift) & 15) - ((zero >> shift) & 15)) * scale
        acc = tl.dot(x, w.to(x.dtype), acc)
        step += BK * PARTS
        x_tile += BK * PARTS
        w_tile += BK * PARTS * (N // 8)
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    tl.store(y_ptr + part * M * N + place, acc.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gptq(x_ptr, w_ptr, scale_ptr, zero_ptr, group_ptr, y_ptr, M, N, K, BITS: tl.constexpr, BM: tl.constexpr,
         BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply by weights of a few bits, packed along K; a table has the group of each row of weights."""
    EACH: tl.constexpr = 32 // BITS
    MOST: tl.constexpr = (1 << BITS) - 1
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    tall = min(down - program // width * GROUP, GROUP)
    i = program // width * GROUP + program % tall
    j = program % width // tall
    row, column, step = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    x_tile = x_ptr + (row[:, None] * K + step[None, :])
    w_tile = w_ptr + ((step[:, None] // EACH) * N + column[None, :])
    group_of = group_ptr + step
    scale_of, zero_of = scale_ptr + column[None, :], zero_ptr + column[None, :] // EACH
    shift, zero_shift = (step % EACH) * BITS, (column % EACH) * BITS
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        group = tl.load(group_of)
        scale = tl.load(scale_of + group[:, None] * N)
        zero = tl.load(zero_of + group[:, None] * (N // EACH))
        zero = ((zero >> zero_shift[None, :]) & MOST) + 1
        x = tl.load(x_tile, mask=(row < M)[:, None], other=0.0)
        w = tl.load(w_tile)
        w = (w >> shift[:, None]) & MOST
        w = (w - zero) * scale
        acc += tl.dot(x, w.to(x.dtype))
        x_tile += BK
        w_tile += (BK // EACH) * N
        group_of += BK
    y = y_ptr + row[:, None] * N + column[None, :]
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=(row < M)[:, None])


@triton.jit
def half_quadratic(x_ptr, w_ptr, scale_ptr, zero_ptr, y_ptr, M, N, K, LENGTH: tl.constexpr, BM: tl.constexpr,
                   BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Multiply by weights of four bits, two along K in a byte, whose groups have scales and zeros in halves."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    pair, step = tl.arange(0, BK // 2), tl.arange(0, BK)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    w_tile = w_ptr + pair[:, None] * N + column[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_tile, mask=(row < M)[:, None], other=0.0)
        packed = tl.load(w_tile)
        place = k // LENGTH * N + column
        scale, zero = tl.load(scale_ptr + place), tl.load(zero_ptr + place)
        low, high = (packed & 15).to(x.dtype), (packed >> 4).to(x.dtype)
        w = tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), (BK, BN))
        w = (w - zero[None, :]) * scale[None, :]
        acc = tl.dot(x, w, acc)
        x_tile += BK
        w_tile += BK // 2 * N
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        y_ptr + row[:, None] * N + column[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def log_sums(x_ptr, w_ptr, label_ptr, lse_ptr, logit_ptr, M, V, D, PARTS: tl.constexpr, BM: tl.constexpr,
             BV: tl.constexpr, BD: tl.constexpr):  # fmt: skip
    """Add the exponentials of a part of the logits of rows, which are products, and pick those of labels."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    part = tl.program_id(1)
    label = tl.load(label_ptr + row, mask=row < M, other=-1)
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    picked = tl.zeros((BM,), tl.float32)
    step = tl.arange(0, BD)
    for start in range(part * BV, V, BV * PARTS):
        column = start + tl.arange(0, BV)
        x_tile = x_ptr + row[:, None] * D + step[None, :]
        w_tile = w_ptr + column[None, :] * D + step[:, None]
        logits = tl.zeros((BM, BV), tl.float32)
        for _ in range(0, D, BD):
            x = tl.load(x_tile, mask=(row < M)[:, None], other=0.0)
            w = tl.load(w_tile, mask=(column < V)[None, :], other=0.0)
            logits = tl.dot(x, w, logits)
            x_tile += BD
            w_tile += BD
        logits = tl.where((column < V)[None, :], logits, float("-inf"))
        new = tl.maximum(high, tl.max(logits, 1))
        total = total * tl.exp(high - new) + tl.sum(tl.exp(logits - new[:, None]), 1)
        picked += tl.sum(tl.where(column[None, :] == label[:, None], logits, 0.0), 1)
        high = new
    tl.store(lse_ptr + row * PARTS + part, high + tl.log(total), mask=row < M)
    tl.store(logit_ptr + row * PARTS + part, picked, mask=row < M)


@triton.jit
def adapted(x_ptr, w_ptr, down_ptr, up_ptr, y_ptr, M, N, K, scale, RANK: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply by weights and by the two factors of an adapter in one walk along K."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    tall = min(down - program // width * GROUP, GROUP)
    i = program // width * GROUP + program % tall
    j = program % width // tall
    row, column = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rank, step = tl.arange(0, RANK), tl.arange(0, BK)
    acc, low = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, RANK), tl.float32)
    for k in range(0, K, BK):
        index = k + step
        x = tl.load(
            x_ptr + row[:, None] * K + index[None, :],
            mask=(row < M)[:, None] & (index < K)[None, :],
            other=0.0,
        )
        w = tl.load(w_ptr + column[None, :] * K + index[:, None], mask=(column < N)[None, :] & (index < K)[:, None],
                    other=0.0)  # fmt: skip
        first = tl.load(
            down_ptr + rank[None, :] * K + index[:, None], mask=(index < K)[:, None], other=0.0
        )
        acc = tl.dot(x, w, acc)
        low = tl.dot(x, first, low)
    second = tl.load(
        up_ptr + column[None, :] * RANK + rank[:, None], mask=(column < N)[None, :], other=0.0
    )
    acc += tl.dot((low * scale).to(x_ptr.dtype.element_ty), second)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        y_ptr + row[:, None] * N + column[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def low_rank(x_ptr, first_ptr, second_ptr, y_ptr, M, N, K, RANK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
             BK: tl.constexpr):  # fmt: skip
    """Multiply rows by a narrow matrix, then by a wide one, block by block."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    rank = tl.arange(0, RANK)
    low = tl.zeros((BM, RANK), tl.float32)
    for k in range(0, K, BK):
        step = k + tl.arange(0, BK)
        x = tl.load(
            x_ptr + row[:, None] * K + step[None, :],
            mask=(row < M)[:, None] & (step < K)[None, :],
            other=0.0,
        )
        first = tl.load(
            first_ptr + step[:, None] * RANK + rank[None, :], mask=(step < K)[:, None], other=0.0
        )
        low = tl.dot(x, first, low)
    h = low.to(x_ptr.dtype.element_ty)
    for n in range(0, N, BN):
        column = n + tl.arange(0, BN)
        second = tl.load(
            second_ptr + rank[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0
        )
        y = tl.dot(h, second)
        inside = (row < M)[:, None] & (column < N)[None, :]
        tl.store(
            y_ptr + row[:, None] * N + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside
        )


@triton.jit
def strided_batches(a_ptr, b_ptr, c_ptr, M, N, K, ab, am, ak, bb, bk, bn, cb, cm, cn, alpha, BM: tl.constexpr,
                    BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply matrices of a batch, each of any strides."""
    program, batch = tl.program_id(0), tl.program_id(1)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    tall = min(down - program // width * GROUP, GROUP)
    i = program // width * GROUP + program % tall
    j = program % width // tall
    row, column, step = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_tile = a_ptr + batch * ab + row[:, None] * am + step[None, :] * ak
    b_tile = b_ptr + batch * bb + step[:, None] * bk + column[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_tile, mask=(row < M)[:, None] & (step < K - k)[None, :], other=0.0)
        b = tl.load(b_tile, mask=(step < K - k)[:, None] & (column < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
        a_tile += BK * ak
        b_tile += BK * bk
    c = (acc * alpha).to(c_ptr.dtype.element_ty)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c_ptr + batch * cb + row[:, None] * cm + column[None, :] * cn, c, mask=inside)


@triton.jit
def symmetric(a_ptr, c_ptr, result_ptr, M, K, alpha, beta, BM: tl.constexpr, BK: tl.constexpr, ADDS: tl.constexpr):  # fmt: skip
    """Multiply a matrix by itself, transposed, for one triangle of blocks, and store each block twice."""
    i, j = tl.program_id(0), tl.program_id(1)
    if j > i:
        return
    row, column, step = i * BM + tl.arange(0, BM), j * BM + tl.arange(0, BM), tl.arange(0, BK)
    left = a_ptr + row[:, None] * K + step[None, :]
    right = a_ptr + column[:, None] * K + step[None, :]
    acc = tl.zeros((BM, BM), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(left, mask=(row < M)[:, None] & (step < K - k * BK)[None, :], other=0.0)
        b = tl.load(right, mask=(column < M)[:, None] & (step < K - k * BK)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc)
        left += BK
        right += BK
    acc *= alpha
    inside = (row < M)[:, None] & (column < M)[None, :]
    place = row[:, None] * M + column[None, :]
    if ADDS:
        acc += beta * tl.load(c_ptr + place, mask=inside, other=0.0).to(tl.float32)
    result = acc.to(result_ptr.dtype.element_ty)
    tl.store(result_ptr + place, result, mask=inside)
    if i != j:
        tl.store(result_ptr + column[None, :] * M + row[:, None], result, mask=inside)


@triton.jit
def listed_blocks(x_ptr, value_ptr, column_ptr, begin_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                  BK: tl.constexpr):  # fmt: skip
    """Multiply by a matrix of which only listed blocks are kept."""
    j = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column, step = tl.arange(0, BN), tl.arange(0, BK)
    begin, end = tl.load(begin_ptr + j), tl.load(begin_ptr + j + 1)
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(begin, end):
        k = tl.load(column_ptr + block) * BK
        x = tl.load(
            x_ptr + row[:, None] * K + k + step[None, :], mask=(row < M)[:, None], other=0.0
        )
        w = tl.load(value_ptr + block * BK * BN + step[:, None] * BN + column[None, :])
        acc = tl.dot(x, w, acc)
    place = row[:, None] * N + j * BN + column[None, :]
    tl.store(y_ptr + place, acc.to(y_ptr.dtype.element_ty), mask=(row < M)[:, None])


@triton.jit
def largest_of_product(a_ptr, b_ptr, c_ptr, high_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                       GROUP: tl.constexpr):  # fmt: skip
    """Multiply, rectify, square, and keep the largest element of each row."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    tall = min(down - program // width * GROUP, GROUP)
    i = program // width * GROUP + program % tall
    j = program % width // tall
    row, column = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        step = k + tl.arange(0, BK)
        a = tl.load(a_ptr + row[:, None] * K + step[None, :], mask=(row < M)[:, None], other=0.0)
        b = tl.load(
            b_ptr + step[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0
        )
        acc = tl.dot(a, b, acc)
    acc = tl.maximum(acc, 0.0)
    acc = acc * acc
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        c_ptr + row[:, None] * N + column[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside
    )
    tl.atomic_max(
        high_ptr + row, tl.max(tl.where(inside, acc, 0.0), 1), mask=row < M, sem="relaxed"
    )


@triton.jit
def added(a_ptr, b_ptr, c_ptr, y_ptr, M, N, K, am, ak, bk, bn, cm, cn, alpha, beta, BM: tl.constexpr, BN: tl.constexpr,
          BK: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Add a multiple of a matrix to one of a product of 32-bit floats."""
    i, j = tl.program_id(1), tl.program_id(0)
    row, column, step = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_tile = a_ptr + row[:, None] * am + step[None, :] * ak
    b_tile = b_ptr + step[:, None] * bk + column[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_tile, mask=(row[:, None] < M) & (step[None, :] + k < K), other=0.0)
        b = tl.load(b_tile, mask=(step[:, None] + k < K) & (column[None, :] < N), other=0.0)
        acc += tl.dot(a, b, input_precision=PRECISION)
        a_tile += BK * ak
        b_tile += BK * bk
    inside = (row[:, None] < M) & (column[None, :] < N)
    c = tl.load(c_ptr + row[:, None] * cm + column[None, :] * cn, mask=inside, other=0.0)
    y = alpha * acc + beta * c
    tl.store(y_ptr + row[:, None] * N + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def complex_product(ar_ptr, ai_ptr, br_ptr, bi_ptr, cr_ptr, ci_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                    BK: tl.constexpr):  # fmt: skip
    """Multiply complex matrices, whose parts are matrices of their own."""
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    real, other = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        step = k + tl.arange(0, BK)
        a_place, b_place = row[:, None] * K + step[None, :], step[:, None] * N + column[None, :]
        a_inside, b_inside = (row < M)[:, None], (column < N)[None, :]
        ar = tl.load(ar_ptr + a_place, mask=a_inside, other=0.0)
        ai = tl.load(ai_ptr + a_place, mask=a_inside, other=0.0)
        br = tl.load(br_ptr + b_place, mask=b_inside, other=0.0)
        bi = tl.load(bi_ptr + b_place, mask=b_inside, other=0.0)
        real += tl.dot(ar, br)
        real -= tl.dot(ai, bi)
        other += tl.dot(ar, bi)
        other += tl.dot(ai, br)
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    tl.store(cr_ptr + place, real.to(cr_ptr.dtype.element_ty), mask=inside)
    tl.store(ci_ptr + place, other.to(ci_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated_gradients(x_ptr, gate_ptr, up_ptr, dh_ptr, dg_ptr, du_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                    BK: tl.constexpr):  # fmt: skip
    """Compute a gate and its other factor again, and the gradients of both."""
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    place = column[None, :] * K + step[:, None]
    gate, up = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(x_tile, mask=(row < M)[:, None], other=0.0)
        gate = tl.dot(x, tl.load(gate_ptr + place, mask=(column < N)[None, :], other=0.0), gate)
        up = tl.dot(x, tl.load(up_ptr + place, mask=(column < N)[None, :], other=0.0), up)
        x_tile += BK
        place += BK
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    dh = tl.load(dh_ptr + place, mask=inside, other=0.0).to(tl.float32)
    part = tl.sigmoid(gate)
    tl.store(du_ptr + place, (dh * gate * part).to(du_ptr.dtype.element_ty), mask=inside)
    dg = dh * up * part * (1 + gate * (1 - part))
    tl.store(dg_ptr + place, dg.to(dg_ptr.dtype.element_ty), mask=inside)
