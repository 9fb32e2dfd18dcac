"""The Gluon language: the functions that kernels call. `from gluon_core import language as gl`.

Portable names are defined here; `gl.<vendor>` and names that a plugin exports, such as its
layouts, are found through the registry.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing

from gluon_core._triton import base_type as base_type
from gluon_core._triton import base_value as base_value
from gluon_core._triton import block_type as block_type
from gluon_core._triton import constexpr_function as constexpr_function
from gluon_core._triton import dtype as dtype
from gluon_core._triton import pointer_type as pointer_type
from gluon_core._triton import tensor as tensor
from gluon_core._triton import tl_tuple as _tuple
from gluon_core._triton import tuple_type as tuple_type
from gluon_core.imports import WITHHELD as _WITHHELD
from gluon_core.language import extra as extra
from gluon_core.language import fpsan as fpsan
from gluon_core.language._adopted import adopt as _adopt
from gluon_core.language._adopted import withhold as _withhold
from gluon_core.language._library import open_to_kernels as _open_to_kernels
from gluon_core.language._standard import full_like as full_like
from gluon_core.language._standard import zeros as zeros
from gluon_core.language._standard import zeros_like as zeros_like
from gluon_core.language.control import assume as assume
from gluon_core.language.control import barrier as barrier
from gluon_core.language.control import device_assert as device_assert
from gluon_core.language.control import device_print as device_print
from gluon_core.language.control import inline_asm as inline_asm
from gluon_core.language.control import num_ctas as num_ctas
from gluon_core.language.control import num_programs as num_programs
from gluon_core.language.control import num_warps as num_warps
from gluon_core.language.control import program_id as program_id
from gluon_core.language.control import scope as scope
from gluon_core.language.control import scope_begin as scope_begin
from gluon_core.language.control import scope_end as scope_end
from gluon_core.language.control import static_assert as static_assert
from gluon_core.language.control import static_print as static_print
from gluon_core.language.control import static_range as static_range
from gluon_core.language.control import thread_barrier as thread_barrier
from gluon_core.language.control import warp_specialize as warp_specialize
from gluon_core.language.dtypes import bfloat16 as bfloat16
from gluon_core.language.dtypes import float8e4b8 as float8e4b8
from gluon_core.language.dtypes import float8e4b15 as float8e4b15
from gluon_core.language.dtypes import float8e4nv as float8e4nv
from gluon_core.language.dtypes import float8e5 as float8e5
from gluon_core.language.dtypes import float8e5b16 as float8e5b16
from gluon_core.language.dtypes import float16 as float16
from gluon_core.language.dtypes import float32 as float32
from gluon_core.language.dtypes import float64 as float64
from gluon_core.language.dtypes import int1 as int1
from gluon_core.language.dtypes import int8 as int8
from gluon_core.language.dtypes import int16 as int16
from gluon_core.language.dtypes import int32 as int32
from gluon_core.language.dtypes import int64 as int64
from gluon_core.language.dtypes import uint8 as uint8
from gluon_core.language.dtypes import uint16 as uint16
from gluon_core.language.dtypes import uint32 as uint32
from gluon_core.language.dtypes import uint64 as uint64
from gluon_core.language.dtypes import void as void
from gluon_core.language.elementwise import abs as abs
from gluon_core.language.elementwise import add as add
from gluon_core.language.elementwise import cast as cast
from gluon_core.language.elementwise import cdiv as cdiv
from gluon_core.language.elementwise import ceil as ceil
from gluon_core.language.elementwise import clamp as clamp
from gluon_core.language.elementwise import cos as cos
from gluon_core.language.elementwise import div_rn as div_rn
from gluon_core.language.elementwise import erf as erf
from gluon_core.language.elementwise import exp as exp
from gluon_core.language.elementwise import exp2 as exp2
from gluon_core.language.elementwise import expect_zero as expect_zero
from gluon_core.language.elementwise import fdiv as fdiv
from gluon_core.language.elementwise import floor as floor
from gluon_core.language.elementwise import fma as fma
from gluon_core.language.elementwise import inline_asm_elementwise as inline_asm_elementwise
from gluon_core.language.elementwise import log as log
from gluon_core.language.elementwise import log2 as log2
from gluon_core.language.elementwise import map_elementwise as map_elementwise
from gluon_core.language.elementwise import maximum as maximum
from gluon_core.language.elementwise import minimum as minimum
from gluon_core.language.elementwise import mul as mul
from gluon_core.language.elementwise import rsqrt as rsqrt
from gluon_core.language.elementwise import sin as sin
from gluon_core.language.elementwise import sqrt as sqrt
from gluon_core.language.elementwise import sqrt_rn as sqrt_rn
from gluon_core.language.elementwise import sub as sub
from gluon_core.language.elementwise import umulhi as umulhi
from gluon_core.language.elementwise import where as where
from gluon_core.language.memory import allocate_shared_memory as allocate_shared_memory
from gluon_core.language.memory import atomic_add as atomic_add
from gluon_core.language.memory import atomic_and as atomic_and
from gluon_core.language.memory import atomic_cas as atomic_cas
from gluon_core.language.memory import atomic_load as atomic_load
from gluon_core.language.memory import atomic_max as atomic_max
from gluon_core.language.memory import atomic_min as atomic_min
from gluon_core.language.memory import atomic_or as atomic_or
from gluon_core.language.memory import atomic_poll as atomic_poll
from gluon_core.language.memory import atomic_store as atomic_store
from gluon_core.language.memory import atomic_xchg as atomic_xchg
from gluon_core.language.memory import atomic_xor as atomic_xor
from gluon_core.language.memory import bank_conflicts as bank_conflicts
from gluon_core.language.memory import load as load
from gluon_core.language.memory import store as store
from gluon_core.language.reductions import argmax as argmax
from gluon_core.language.reductions import argmin as argmin
from gluon_core.language.reductions import associative_scan as associative_scan
from gluon_core.language.reductions import cumprod as cumprod
from gluon_core.language.reductions import cumsum as cumsum
from gluon_core.language.reductions import dot_fma as dot_fma
from gluon_core.language.reductions import gather as gather
from gluon_core.language.reductions import histogram as histogram
from gluon_core.language.reductions import max as max
from gluon_core.language.reductions import min as min
from gluon_core.language.reductions import reduce as reduce
from gluon_core.language.reductions import reduce_or as reduce_or
from gluon_core.language.reductions import sum as sum
from gluon_core.language.reductions import xor_sum as xor_sum
from gluon_core.language.target import target as target
from gluon_core.language.tensors import arange as arange
from gluon_core.language.tensors import broadcast as broadcast
from gluon_core.language.tensors import convert_layout as convert_layout
from gluon_core.language.tensors import expand_dims as expand_dims
from gluon_core.language.tensors import fp4_to_fp as fp4_to_fp
from gluon_core.language.tensors import full as full
from gluon_core.language.tensors import join as join
from gluon_core.language.tensors import max_constancy as max_constancy
from gluon_core.language.tensors import max_contiguous as max_contiguous
from gluon_core.language.tensors import multiple_of as multiple_of
from gluon_core.language.tensors import permute as permute
from gluon_core.language.tensors import ravel as ravel
from gluon_core.language.tensors import reshape as reshape
from gluon_core.language.tensors import set_auto_layout as set_auto_layout
from gluon_core.language.tensors import split as split
from gluon_core.language.tensors import to_linear_layout as to_linear_layout
from gluon_core.language.tensors import to_tensor as to_tensor
from gluon_core.layouts import AutoLayout as AutoLayout
from gluon_core.layouts import BlockedLayout as BlockedLayout
from gluon_core.layouts import CoalescedLayout as CoalescedLayout
from gluon_core.layouts import DistributedLinearLayout as DistributedLinearLayout
from gluon_core.layouts import DotOperandLayout as DotOperandLayout
from gluon_core.layouts import PaddedSharedLayout as PaddedSharedLayout
from gluon_core.layouts import SharedLinearLayout as SharedLinearLayout
from gluon_core.layouts import SliceLayout as SliceLayout
from gluon_core.layouts import SwizzledSharedLayout as SwizzledSharedLayout
from gluon_core.registry.namespaces import Space as _Space
from gluon_core.values import CachePolicy as CachePolicy
from gluon_core.values import distributed_type as distributed_type
from gluon_core.values import shared_memory_descriptor as shared_memory_descriptor
from gluon_core.values import shared_memory_descriptor_type as shared_memory_descriptor_type
from gluon_core.values.aggregate import aggregate as aggregate
from gluon_core.values.aggregate import aggregate_replace as aggregate_replace

if _typing.TYPE_CHECKING:
    from gluon_core import portable as portable
    from gluon_core.language._anything import constexpr as constexpr
else:
    from gluon_core._triton import constexpr

tuple = _tuple

_open_to_kernels(PaddedSharedLayout)


_SPACE = _Space(__name__, "export", _adopt).open()


def __getattr__(name: str) -> _typing.Any:
    if name == "portable":  # kernels without its ops do without its import
        return _importlib.import_module("gluon_core.portable")
    if name in ("_core", "_layouts", "_semantic"):
        return _importlib.import_module(f"{__name__}.{name}")
    return _SPACE.resolve(name)


def __dir__() -> list[str]:
    modules = ("control", "dtypes", "elementwise", "memory", "reductions", "tensors")
    own = (name for name in globals() if not name.startswith("_") and name not in modules)
    return sorted({*own, "portable", *_SPACE.offered()} - {*globals().get(_WITHHELD, ())})


_withhold(_sys.modules[__name__], "gl")
