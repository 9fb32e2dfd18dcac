"""honest: settings in a frozen dataclass and an enumeration"""

import enum
from dataclasses import dataclass
from functools import lru_cache

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def softmax(src, dst, columns, BLOCK: gl.constexpr, layout: gl.constexpr):
    column = gl.arange(0, BLOCK, layout=layout)
    mask = column < columns
    offsets = gl.program_id(0) * columns + column
    value = gl.load(src + offsets, mask=mask, other=-float("inf")).to(gl.float32)
    value = gl.exp(value - gl.max(value, axis=0))
    gl.store(dst + offsets, (value / gl.sum(value, axis=0)).to(dst.dtype.element_ty), mask=mask)


def launch(x, y):
    block = max(128, 1 << (x.shape[1] - 1).bit_length())
    softmax[(x.shape[0],)](x, y, x.shape[1], block, gl.BlockedLayout([1], [32], [4], [0]))


class Kind(enum.Enum):
    NARROW = 128
    WIDE = 1024


@dataclass(frozen=True)
class Settings:
    kind: Kind
    warps: int = 4

    @classmethod
    def of(cls, columns: int) -> "Settings":
        return cls(Kind.NARROW if columns <= 128 else Kind.WIDE)


@lru_cache(None)
def layout_of(settings):
    return gl.BlockedLayout([1], [32], [settings.warps], [0])


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    if y.numel():
        settings = Settings.of(x.shape[1])
        softmax[(x.shape[0],)](x, y, x.shape[1], settings.kind.value, layout_of(settings))
    return y
