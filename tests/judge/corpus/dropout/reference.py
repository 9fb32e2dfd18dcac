"""The reference of dropout."""

import torch

MASK = 0xFFFFFFFF


def random_bits(seed, count):
    """Return the first word of Philox 4x32-10 (Salmon et al., 2011) for each counter."""
    words = [
        torch.arange(count, dtype=torch.int64),
        *(torch.zeros(count, dtype=torch.int64) for _ in "abc"),
    ]
    keys = seed & MASK, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        high = [high_word(0xD2511F53, words[0]), high_word(0xCD9E8D57, words[2])]
        words = [
            high[1] ^ words[1] ^ keys[0], second & MASK,
            high[0] ^ words[3] ^ keys[1], first & MASK,
        ]  # fmt: skip
        keys = (keys[0] + 0x9E3779B9) & MASK, (keys[1] + 0xBB67AE85) & MASK
    return words[0]


def high_word(a, b):
    """Return bits 32 to 63 of products of numbers of 32 bits."""
    low, high = b & 0xFFFF, b >> 16
    return (a * high + (a * low >> 16)) >> 16


def run(x, seed):
    keep = random_bits(seed, x.numel()) < 0xC0000000
    return torch.where(keep, x / 0.75, 0.0)
