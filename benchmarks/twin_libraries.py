"""Kernels over rows, columns and elements in the styles of public libraries for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def adamw(
    p_ptr, g_ptr, m_ptr, v_ptr, n, lr, beta1, beta2, eps, decay, rise1, rise2, BLOCK: tl.constexpr
):
    """Take a step of AdamW in place: weights and gradients of 16 bits, moments of 32."""
    spot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = spot < n
    p = tl.load(p_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(m_ptr + spot, mask=inside, other=0.0)
    v = tl.load(v_ptr + spot, mask=inside, other=0.0)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p * (1 - lr * decay) - lr * (m / rise1) / (tl.sqrt(v / rise2) + eps)
    tl.store(p_ptr + spot, p.to(p_ptr.dtype.element_ty), mask=inside)
    tl.store(m_ptr + spot, m, mask=inside)
    tl.store(v_ptr + spot, v, mask=inside)


@triton.jit
def lion(p_ptr, g_ptr, m_ptr, n, lr, beta1, beta2, decay, BLOCK: tl.constexpr):
    """Take a step of Lion in place."""
    spot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = spot < n
    p = tl.load(p_ptr + spot, mask=inside)
    g = tl.load(g_ptr + spot, mask=inside)
    m = tl.load(m_ptr + spot, mask=inside)
    way = m * beta1 + g * (1 - beta1)
    sign = tl.where(way > 0, 1.0, tl.where(way < 0, -1.0, 0.0))
    p = p * (1 - lr * decay) - lr * sign
    m = m * beta2 + g * (1 - beta2)
    tl.store(p_ptr + spot, p, mask=inside)
    tl.store(m_ptr + spot, m, mask=inside)


@triton.jit
def rotate_half(
    q_ptr, cos_ptr, sin_ptr, y_ptr, T, HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr
):
    """Rotate the halves of all heads of a token."""
    t = tl.program_id(0)
    h = tl.arange(0, PADDED)
    d = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + t * HALF + d)
    sin = tl.load(sin_ptr + t * HALF + d)
    place = t * HEADS * 2 * HALF + h[:, None] * 2 * HALF + d[None, :]
    known = (h < HEADS)[:, None]
    a = tl.load(q_ptr + place, mask=known, other=0.0).to(tl.float32)
    b = tl.load(q_ptr + place + HALF, mask=known, other=0.0).to(tl.float32)
    tl.store(
        y_ptr + place, (a * cos[None, :] - b * sin[None, :]).to(y_ptr.dtype.element_ty), mask=known
    )
    tl.store(
        y_ptr + place + HALF,
        (b * cos[None, :] + a * sin[None, :]).to(y_ptr.dtype.element_ty),
        mask=known,
    )


@triton.jit
def rotate_pairs(q_ptr, cos_ptr, sin_ptr, y_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """Rotate neighbours of a head of several tokens."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    d = tl.arange(0, BD)
    half = tl.arange(0, BD // 2)
    spot = (t[:, None] * heads + head) * D + d[None, :]
    inside = (t < T)[:, None] & (d < D)[None, :]
    place = t[:, None] * (D // 2) + half[None, :]
    known = (t < T)[:, None] & (half < D // 2)[None, :]
    cos = tl.load(cos_ptr + place, mask=known, other=1.0)
    sin = tl.load(sin_ptr + place, mask=known, other=0.0)
    x = tl.load(q_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, [BT, BD // 2, 2]))
    y = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), [BT, BD])
    tl.store(y_ptr + spot, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def embedding_gradients(dy_ptr, id_ptr, dw_ptr, n, D, BN: tl.constexpr, BD: tl.constexpr):
    """Add the gradients of tokens to the rows of their numbers, but for a number that pads."""
    t = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    token = tl.load(id_ptr + t, mask=t < n, other=0)
    kept = ((t < n) & (token != 0))[:, None] & (d < D)[None, :]
    dy = tl.load(dy_ptr + t[:, None] * D + d[None, :], mask=kept, other=0.0).to(tl.float32)
    tl.atomic_add(dw_ptr + token[:, None] * D + d[None, :], dy, mask=kept, sem="relaxed")


@triton.jit
def geglu_gradients(dy_ptr, a_ptr, b_ptr, da_ptr, db_ptr, N, BLOCK: tl.constexpr):
    """Compute gradients of a gate by GELU's tangent over a row."""
    row = tl.program_id(0).to(tl.int64) * N
    place = tl.arange(0, BLOCK)
    inside = place < N
    dy = tl.load(dy_ptr + row + place, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + row + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row + place, mask=inside, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (a + 0.044715 * a * a * a)
    tanh = 2.0 * tl.sigmoid(2.0 * inner) - 1.0
    slope = 0.5 * (1 + tanh) + 0.5 * a * (1 - tanh * tanh) * 0.7978845608028654 * (
        1 + 0.134145 * a * a
    )
    tl.store(da_ptr + row + place, (dy * b * slope).to(da_ptr.dtype.element_ty), mask=inside)
    tl.store(
        db_ptr + row + place, (dy * 0.5 * a * (1 + tanh)).to(db_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def swiglu_gradients(dy_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    """Compute gradients of a gate by SiLU in place."""
    spot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = spot < n
    dy = tl.load(dy_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(a)
    tl.store(a_ptr + spot, (dy * b * s * (1 + a * (1 - s))).to(a_ptr.dtype.element_ty), mask=inside)
    tl.store(b_ptr + spot, (dy * a * s).to(b_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_groups_last(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    PIXELS,
    C,
    eps,
    SIZE: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Normalize groups of channels that come last, then apply SiLU."""
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    c = tl.arange(0, BC)
    base = image * PIXELS * C + group * SIZE
    total = tl.zeros([BP, BC], tl.float32)
    squares = tl.zeros([BP, BC], tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        inside = (p < PIXELS)[:, None] & (c < SIZE)[None, :]
        x = tl.load(x_ptr + base + p[:, None] * C + c[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        total += x
        squares += x * x
    count = PIXELS * SIZE
    mean = tl.sum(tl.sum(total, 1), 0) / count
    rstd = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / count - mean * mean + eps)
    w = tl.load(w_ptr + group * SIZE + c, mask=c < SIZE, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + group * SIZE + c, mask=c < SIZE, other=0.0).to(tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        inside = (p < PIXELS)[:, None] & (c < SIZE)[None, :]
        place = base + p[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * w[None, :] + b[None, :]
        y = y * tl.sigmoid(y)
        tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def segment_sums(x_ptr, start_ptr, y_ptr, D, BR: tl.constexpr, BD: tl.constexpr):
    """Add the rows of each segment."""
    segment = tl.program_id(0)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    first = tl.load(start_ptr + segment)
    end = tl.load(start_ptr + segment + 1)
    total = tl.zeros([BD], tl.float32)
    for start in range(first, end, BR):
        r = start + tl.arange(0, BR)
        inside = (r < end)[:, None] & (d < D)[None, :]
        x = tl.load(x_ptr + r[:, None] * D + d[None, :], mask=inside, other=0.0)
        total += tl.sum(x.to(tl.float32), 0)
    tl.store(y_ptr + segment * D + d, total, mask=d < D)


@triton.jit
def nucleus(x_ptr, y_ptr, M, p, temperature, N: tl.constexpr):
    """Keep the most likely elements of a row that have a share p together."""
    row = tl.program_id(0)
    place = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + place).to(tl.float32) / temperature
    e = tl.exp(x - tl.max(x, 0))
    e = e / tl.sum(e, 0)
    ordered = tl.sort(e, descending=True)
    before = tl.cumsum(ordered, 0) - ordered
    least = tl.min(tl.where(before < p, ordered, 2.0), 0)
    kept = tl.where(e >= least, e, 0.0)
    tl.store(y_ptr + row * N + place, kept / tl.sum(kept, 0))


@triton.jit
def least_share(x_ptr, y_ptr, N, share, BLOCK: tl.constexpr):
    """Give the elements of a row less than a share of the largest one -inf, in two walks."""
    row = tl.program_id(0).to(tl.int64) * N
    place = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + row + start + place, mask=start + place < N, other=float("-inf"))
        most = tl.maximum(most, x.to(tl.float32))
    least = tl.max(most, 0) + tl.log(share)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + row + start + place, mask=start + place < N, other=0.0).to(tl.float32)
        y = tl.where(x < least, -1e30, x)
        tl.store(y_ptr + row + start + place, y, mask=start + place < N)


@triton.jit
def chosen_logs(x_ptr, id_ptr, y_ptr, entropy_ptr, N, BLOCK: tl.constexpr):
    """Compute the log of the share of one element of a row, and the row's entropy, in one walk."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    most = -1e30
    total = 0.0
    weighted = 0.0
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + row * N + start + place, mask=start + place < N, other=-1e30).to(
            tl.float32
        )
        higher = tl.maximum(most, tl.max(x, 0))
        e = tl.exp(x - higher)
        fall = tl.exp(most - higher)
        total = total * fall + tl.sum(e, 0)
        weighted = weighted * fall + tl.sum(tl.where(start + place < N, e * x, 0.0), 0)
        most = higher
    lse = most + tl.log(total)
    chosen = tl.load(x_ptr + row * N + tl.load(id_ptr + row)).to(tl.float32)
    tl.store(y_ptr + row, chosen - lse)
    tl.store(entropy_ptr + row, lse - weighted / total)


@triton.jit
def selective_scan(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, y_ptr, T, D, BD: tl.constexpr, N: tl.constexpr
):
    """Scan a state that each step's input chooses, one step after the other."""
    batch = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    s = tl.arange(0, N)
    known = d < D
    a = tl.load(a_ptr + d[:, None] * N + s[None, :], mask=known[:, None], other=0.0)
    state = tl.zeros([BD, N], tl.float32)
    for t in range(0, T):
        place = (batch * T + t) * D + d
        x = tl.load(x_ptr + place, mask=known, other=0.0).to(tl.float32)
        dt = tl.load(dt_ptr + place, mask=known, other=0.0).to(tl.float32)
        dt = tl.where(dt > 20.0, dt, tl.log(1.0 + tl.exp(dt)))
        b = tl.load(b_ptr + (batch * T + t) * N + s).to(tl.float32)
        c = tl.load(c_ptr + (batch * T + t) * N + s).to(tl.float32)
        state = state * tl.exp(dt[:, None] * a) + (dt * x)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], 1)
        tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=known)


@triton.jit
def gate_sums(g_ptr, y_ptr, T, H, BT: tl.constexpr, BH: tl.constexpr, REVERSE: tl.constexpr):
    """Sum the log-sigmoids of gates within chunks of time."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    batch = tl.program_id(2).to(tl.int64)
    inside = (t < T)[:, None] & (h < H)[None, :]
    place = (batch * T + t[:, None]) * H + h[None, :]
    g = tl.load(g_ptr + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(inside, tl.minimum(g, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(g))), 0.0)
    tl.store(y_ptr + place, tl.cumsum(g, 0, reverse=REVERSE), mask=inside)


@triton.jit
def gated_recurrence(
    q_ptr, k_ptr, v_ptr, g_ptr, y_ptr, T, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr
):
    """Read a state of keys by values whose rows decay, one step after the other."""
    head = tl.program_id(1).to(tl.int64)
    k_at = tl.arange(0, K)
    v_at = tl.program_id(0) * BV + tl.arange(0, BV)
    state = tl.zeros([K, BV], tl.float32)
    for t in range(0, T):
        row = head * T + t
        q = tl.load(q_ptr + row * K + k_at).to(tl.float32)
        k = tl.load(k_ptr + row * K + k_at).to(tl.float32)
        g = tl.load(g_ptr + row * K + k_at).to(tl.float32)
        v = tl.load(v_ptr + row * V + v_at).to(tl.float32)
        state = state * tl.exp(g)[:, None] + k[:, None] * v[None, :]
        y = tl.sum(state * q[:, None], 0)
        tl.store(y_ptr + row * V + v_at, y.to(y_ptr.dtype.element_ty))


@triton.jit
def causal_softmax(x_ptr, y_ptr, T, scale, BLOCK: tl.constexpr):
    """Compute softmax of the scores up to each row's own column; the others get 0."""
    row = tl.program_id(0)
    base = (tl.program_id(1).to(tl.int64) * T + row) * T
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + base + place, mask=place <= row, other=float("-inf")).to(tl.float32) * scale
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + base + place, (e / tl.sum(e, 0)).to(y_ptr.dtype.element_ty), mask=place < T)


@triton.jit
def bias_dropout_norm(
    x_ptr, b_ptr, r_ptr, w_ptr, sum_ptr, y_ptr, N, p, seed, eps, BLOCK: tl.constexpr
):
    """Add a bias, drop elements, add a residual, keep the sum, and normalize it."""
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < N
    x = tl.load(x_ptr + row * N + place, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(b_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(tl.rand(seed, row * N + place) > p, x / (1 - p), 0.0)
    x += tl.load(r_ptr + row * N + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(sum_ptr + row * N + place, x.to(sum_ptr.dtype.element_ty), mask=inside)
    rstd = tl.rsqrt(tl.sum(tl.where(inside, x * x, 0.0), 0) / N + eps)
    w = tl.load(w_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + place, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def channel_moments(
    x_ptr, sum_ptr, square_ptr, M, C, STEPS: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):
    """Add the elements and the squares of columns by atomic adds."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros([BC], tl.float32)
    squares = tl.zeros([BC], tl.float32)
    for step in range(0, STEPS):
        m = (tl.program_id(0) * STEPS + step) * BM + tl.arange(0, BM)
        inside = (m < M)[:, None] & (c < C)[None, :]
        x = tl.load(x_ptr + m[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(x, 0)
        squares += tl.sum(x * x, 0)
    tl.atomic_add(sum_ptr + c, total, mask=c < C)
    tl.atomic_add(square_ptr + c, squares, mask=c < C)


@triton.jit
def divergence(p_ptr, q_ptr, loss_ptr, dq_ptr, N, beta, BLOCK: tl.constexpr):
    """Compute the generalized Jensen-Shannon divergence of logs of shares, with its gradient, in one walk."""
    row = tl.program_id(0).to(tl.int64) * N
    place = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        inside = start + place < N
        p = tl.load(p_ptr + row + start + place, mask=inside, other=float("-inf")).to(tl.float32)
        q = tl.load(q_ptr + row + start + place, mask=inside, other=float("-inf")).to(tl.float32)
        ep, eq = tl.exp(p), tl.exp(q)
        mixed = beta * ep + (1 - beta) * eq
        log_mixed = tl.log(tl.maximum(mixed, 1e-30))
        one = tl.where(inside, beta * ep * (p - log_mixed) + (1 - beta) * eq * (q - log_mixed), 0.0)
        total += one
        dq = (1 - beta) * eq * (q - log_mixed)
        tl.store(dq_ptr + row + start + place, dq.to(dq_ptr.dtype.element_ty), mask=inside)
    tl.store(loss_ptr + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def norm_heads(x_ptr, w_ptr, y_ptr, M, eps, ROWS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Normalize each head by its root mean square, several at a time."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (m < M)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + m[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    y = x * rstd[:, None] * w[None, :]
    tl.store(y_ptr + m[:, None] * D + d[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def length_gradients(dy_ptr, y_ptr, rstd_ptr, dx_ptr, M, D, ROWS: tl.constexpr, BD: tl.constexpr):
    """Compute gradients of rows that were divided by their lengths."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (m < M)[:, None] & (d < D)[None, :]
    place = m[:, None] * D + d[None, :]
    dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + m, mask=m < M, other=0.0)
    dx = (dy - tl.sum(dy * y, 1)[:, None] * y) * rstd[:, None]
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def join_experts(x_ptr, w_ptr, y_ptr, T, D, K: tl.constexpr, BD: tl.constexpr):
    """Add the weighted results of a token's experts."""
    t = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros([BD], tl.float32)
    for k in tl.static_range(K):
        w = tl.load(w_ptr + t * K + k).to(tl.float32)
        x = tl.load(x_ptr + (t * K + k) * D + d, mask=d < D, other=0.0).to(tl.float32)
        total += w * x
    tl.store(y_ptr + t * D + d, total.to(y_ptr.dtype.element_ty), mask=d < D)


@triton.jit
def largest_pixels(x_ptr, y_ptr, H, W, C, BW: tl.constexpr, BC: tl.constexpr):
    """Find the largest of windows of 3x3 pixels, every second one, with channels last."""
    h = tl.program_id(0)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    y = tl.full([BW, BC], float("-inf"), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            row, column = 2 * h + i - 1, 2 * w + j - 1
            inside = ((column >= 0) & (column < W) & (row >= 0) & (row < H))[:, None] & (c < C)[
                None, :
            ]
            place = (row * W + column[:, None]) * C + c[None, :]
            y = tl.maximum(
                y, tl.load(x_ptr + place, mask=inside, other=float("-inf")).to(tl.float32)
            )
    width = (W + 1) // 2
    place = (h * width + w[:, None]) * C + c[None, :]
    tl.store(
        y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=(w < width)[:, None] & (c < C)[None, :]
    )


@triton.jit
def heat(x_ptr, y_ptr, H, W, rate, BH: tl.constexpr, BW: tl.constexpr):
    """Take a step of the equation of heat; the border keeps its values."""
    h = tl.program_id(0) * BH + tl.arange(0, BH)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    place = h[:, None] * W + w[None, :]
    inside = (h < H)[:, None] & (w < W)[None, :]
    within = ((h > 0) & (h < H - 1))[:, None] & ((w > 0) & (w < W - 1))[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    up = tl.load(x_ptr + place - W, mask=within, other=0.0)
    down = tl.load(x_ptr + place + W, mask=within, other=0.0)
    left = tl.load(x_ptr + place - 1, mask=within, other=0.0)
    right = tl.load(x_ptr + place + 1, mask=within, other=0.0)
    y = tl.where(within, x + rate * (up + down + left + right - 4 * x), x)
    tl.store(y_ptr + place, y, mask=inside)


@triton.jit
def curves(t_ptr, k_ptr, y_ptr, n, SIZE, BLOCK: tl.constexpr):
    """Evaluate a cubic spline through values at whole numbers."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(t_ptr + place, mask=place < n, other=0.0)
    knot = tl.floor(t)
    f = t - knot
    k = knot.to(tl.int32)
    a = tl.load(k_ptr + tl.maximum(k - 1, 0), mask=place < n, other=0.0)
    b = tl.load(k_ptr + k, mask=place < n, other=0.0)
    c = tl.load(k_ptr + tl.minimum(k + 1, SIZE - 1), mask=place < n, other=0.0)
    d = tl.load(k_ptr + tl.minimum(k + 2, SIZE - 1), mask=place < n, other=0.0)
    y = b + 0.5 * f * (c - a + f * (2 * a - 5 * b + 4 * c - d + f * (3 * (b - c) + d - a)))
    tl.store(y_ptr + place, y, mask=place < n)


@triton.jit
def write_cache(k_ptr, v_ptr, slot_ptr, kc_ptr, vc_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write the keys and the values of a token to its slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        for start in tl.static_range(0, SIZE, BLOCK):
            place = start + tl.arange(0, BLOCK)
            k = tl.load(k_ptr + token * SIZE + place, mask=place < SIZE)
            v = tl.load(v_ptr + token * SIZE + place, mask=place < SIZE)
            tl.store(kc_ptr + slot * SIZE + place, k, mask=place < SIZE)
            tl.store(vc_ptr + slot * SIZE + place, v, mask=place < SIZE)


@triton.jit
def shift_tokens(x_ptr, mu_ptr, r_ptr, k_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """Mix each token with the one before it by two weights for each channel."""
    batch = tl.program_id(2).to(tl.int64) * T
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    place = (batch + t[:, None]) * D + d[None, :]
    inside = (t < T)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(x_ptr + place - D, mask=inside & (t > 0)[:, None], other=0.0).to(tl.float32)
    r = tl.load(mu_ptr + d, mask=d < D, other=0.0)
    k = tl.load(mu_ptr + D + d, mask=d < D, other=0.0)
    tl.store(r_ptr + place, (x + (before - x) * r[None, :]).to(r_ptr.dtype.element_ty), mask=inside)
    tl.store(k_ptr + place, (x + (before - x) * k[None, :]).to(k_ptr.dtype.element_ty), mask=inside)


@triton.jit
def focal_loss(x_ptr, label_ptr, loss_ptr, dx_ptr, n, alpha, BLOCK: tl.constexpr):
    """Compute the focal loss of logits and labels in bytes, with gamma 2, and its gradient."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0).to(tl.float32)
    label = tl.load(label_ptr + place, mask=place < n, other=0)
    z = tl.where(label != 0, x, -x)
    p = tl.sigmoid(z)
    weight = tl.where(label != 0, alpha, 1 - alpha)
    log_p = tl.minimum(z, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(z)))
    tl.store(loss_ptr + place, -weight * (1 - p) * (1 - p) * log_p, mask=place < n)
    slope = weight * (1 - p) * (1 - p) * (2 * p * log_p - (1 - p))
    tl.store(
        dx_ptr + place,
        tl.where(label != 0, slope, -slope).to(dx_ptr.dtype.element_ty),
        mask=place < n,
    )


@triton.jit
def pooled_tokens(x_ptr, kept_ptr, y_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """Compute the mean of the tokens that a mask of bytes keeps."""
    batch = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros([BD], tl.float32)
    count = 0.0
    for start in range(0, T, BT):
        t = start + tl.arange(0, BT)
        kept = tl.load(kept_ptr + batch * T + t, mask=t < T, other=0) != 0
        inside = kept[:, None] & (d < D)[None, :]
        x = tl.load(x_ptr + (batch * T + t[:, None]) * D + d[None, :], mask=inside, other=0.0)
        total += tl.sum(x.to(tl.float32), 0)
        count += tl.sum(kept.to(tl.float32), 0)
    tl.store(y_ptr + batch * D + d, total / tl.maximum(count, 1.0), mask=d < D)


@triton.jit
def best_experts(x_ptr, w_ptr, e_ptr, M, ROWS: tl.constexpr, E: tl.constexpr, K: tl.constexpr):
    """Choose the best experts of each token one by one by packed words, with weights of sigmoids that sum to 1."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, E)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + m[:, None] * E + e[None, :], mask=(m < M)[:, None], other=0.0).to(
        tl.float32
    )
    score = tl.sigmoid(x)
    bits = score.to(tl.int32, bitcast=True).to(tl.int64)
    key = (bits << 32) | (E - 1 - e)[None, :].to(tl.int64)
    top = tl.topk(key, K, 1)
    value = (top >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    index = (E - 1) - (top & 0xFFFFFFFF).to(tl.int32)
    value = value / tl.sum(value, 1)[:, None]
    place = m[:, None] * K + k[None, :]
    tl.store(w_ptr + place, value, mask=(m < M)[:, None])
    tl.store(e_ptr + place, index, mask=(m < M)[:, None])


@triton.jit
def factor_means(g_ptr, row_ptr, column_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Add the squares of a matrix over its rows and over its columns by atomic adds."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    g = tl.load(g_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(row_ptr + m, tl.sum(g * g, 1), mask=m < M)
    tl.atomic_add(column_ptr + n, tl.sum(g * g, 0), mask=n < N)


@triton.jit
def bias_gelu(x_ptr, b_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Add a bias to rows and apply GELU by the error function."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    place = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(b_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)
