"""Random layouts, from anything with the methods of `random.Random`."""

from __future__ import annotations

from gluon_core import layouts as L


def shape(rng, rank, most=10, least=0):
    """A shape of at most 2**most elements."""
    bits = [rng.randint(least, 6) for _ in range(rank)]
    while sum(bits) > most:
        bits[bits.index(max(bits))] -= 1
    return [1 << b for b in bits]


def spread(rng, total_bits, rank):
    """`total_bits` bits over `rank` dimensions."""
    counts = [0] * rank
    for _ in range(total_bits):
        counts[rng.randrange(rank)] += 1
    return [1 << c for c in counts]


def split_of(rng, count, rank):
    """`count` (a power of two) as a product of `rank` powers of two."""
    return spread(rng, count.bit_length() - 1, rank)


def powers(low, high):
    """The powers of two of a range."""
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length())]


def unit_bases(sizes, rank):
    """The bases that count the elements of `sizes`, one dimension after the other."""
    units = [(d, 1 << i) for d in range(rank) for i in range(sizes[d].bit_length() - 1)]
    return [[v if i == d else 0 for i in range(rank)] for d, v in units]


def bases_of_blocks(rng, rank, none):
    """The bases of a cluster of 2 or 4 blocks; none with the probability `none`."""
    if rng.random() < none:
        return []
    bases = unit_bases(split_of(rng, rng.choice([2, 4]), rank), rank)
    if rng.random() < 0.3:
        bases.append([0] * rank)
    rng.shuffle(bases)
    return bases


def order(rng, rank):
    dims = list(range(rank))
    rng.shuffle(dims)
    return dims


def cga(rng, rank, bits=None):
    bits = rng.choice([0, 0, 0, 1, 2]) if bits is None else bits
    rows, counts = [], [0] * rank
    for _ in range(bits):
        row = [0] * rank
        if rng.random() < 0.75:
            d = rng.randrange(rank)
            row[d] = 1 << counts[d]
            counts[d] += 1
        rows.append(row)
    rng.shuffle(rows)
    return rows


def blocked(rng, rank, blocks=None):
    return L.BlockedLayout(
        spread(rng, rng.randint(0, 4), rank),
        spread(rng, rng.choice([5, 5, 6]), rank),
        spread(rng, rng.randint(0, 3), rank),
        order(rng, rank),
        cga(rng, rank, blocks),
    )


def linear(rng, of_shape):
    rank = len(of_shape)
    rows = [
        [1 << bit if i == d else 0 for i in range(rank)]
        for d in range(rank)
        for bit in range(of_shape[d].bit_length() - 1)
    ]
    rng.shuffle(rows)
    parts = {}
    for name, bits in (
        ("lane", rng.choice([5, 5, 6])),
        ("warp", rng.randint(0, 3)),
        ("block", rng.choice([0, 0, 1])),
    ):
        part = []
        for _ in range(bits):
            part.append(rows.pop() if rows and rng.random() < 0.8 else [0] * rank)
        parts[name] = part
    if rng.random() < 0.2:
        rows.insert(rng.randint(0, len(rows)), [0] * rank)
    return L.DistributedLinearLayout(
        rows, parts["lane"], parts["warp"], parts["block"], list(of_shape)
    )


def dot_operand(rng, rank):
    return L.DotOperandLayout(rng.randint(0, 1), blocked(rng, rank), 0)


def distributed(rng, of_shape, depth=0):
    """Any register layout for the shape."""
    rank = len(of_shape)
    kind = rng.choice(["blocked", "blocked", "linear", "slice", "dot"])
    if kind == "slice" and depth < 2:
        dim = rng.randint(0, rank)
        parent_shape = [*of_shape[:dim], rng.choice([1, 2, 8]), *of_shape[dim:]]
        return L.SliceLayout(dim, distributed(rng, parent_shape, depth + 1))
    if kind == "linear":
        return linear(rng, of_shape)
    if kind == "dot" and rank in (2, 3):
        return dot_operand(rng, rank)
    return blocked(rng, rank)


def swizzled(rng, rank, blocks=None):
    return L.SwizzledSharedLayout(
        1 << rng.randint(0, 4),
        1 << rng.randint(0, 3),
        1 << rng.randint(0, 4),
        order(rng, rank),
        cga(rng, rank, blocks),
    )


def padded(rng, of_shape, blocks=None):
    rank = len(of_shape)
    bases = cga(rng, rank, blocks)
    for d, size in enumerate(of_shape):
        if 1 << sum(row[d] != 0 for row in bases) > size:
            bases = []
            break
    intervals = rng.sample([4, 8, 16, 32, 64, 128], rng.randint(1, 2))
    pairs = [[interval, 1 << rng.randint(0, 4)] for interval in intervals]
    layout = L.PaddedSharedLayout.with_identity_for(pairs, of_shape, order(rng, rank), bases)
    rows = layout.offset_bases
    if rng.random() < 0.5:
        rng.shuffle(rows)
    return L.PaddedSharedLayout(pairs, rows, bases, of_shape)


def shared_linear(rng, of_shape, blocks=None):
    """Bases of an identity, mixed by random row additions: still a bijection."""
    rank = len(of_shape)
    rows = [
        [1 << bit if i == d else 0 for i in range(rank)]
        for d in range(rank)
        for bit in range(of_shape[d].bit_length() - 1)
    ]
    if not rows:
        rows = [[0] * rank]
    rng.shuffle(rows)
    bits = rng.choice([0, 0, 1]) if blocks is None else blocks
    cut = []
    for _ in range(bits):
        # The block bases are the top bits of a dimension, so that each block has a box.
        tops = [
            row
            for row in rows
            if any(row) and not any(a > b for other in rows for a, b in zip(other, row) if b)
        ]
        take = tops and len(rows) > 1
        cut.append(rows.pop(rows.index(rng.choice(tops))) if take else [0] * rank)
    for _ in range(rng.randint(0, 6)):
        if len(rows) > 1:
            i, j = rng.sample(range(len(rows)), 2)
            rows[i] = [a ^ b for a, b in zip(rows[i], rows[j])]
    cut.reverse()
    return L.SharedLinearLayout(rows, cut, 1 << rng.randint(2, 7))


def shared(rng, of_shape, blocks=None):
    """Any shared layout that has a linear form in the compiler, for the shape."""
    if rng.random() < 0.5:
        return swizzled(rng, len(of_shape), blocks)
    return shared_linear(rng, of_shape, blocks)


def reshaped(rng, of_shape):
    """Another shape with as many elements."""
    bits = sum(s.bit_length() - 1 for s in of_shape)
    return spread(rng, bits, rng.randint(1, 4))
