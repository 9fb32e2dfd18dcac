"""Element types."""

from __future__ import annotations

from gluon_core._triton import dtype, tl

__all__ = [
    "bfloat16",
    "float8e4b8",
    "float8e4b15",
    "float8e4nv",
    "float8e5",
    "float8e5b16",
    "float16",
    "float32",
    "float64",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "void",
]

void: dtype = tl.void
int1: dtype = tl.int1
int8: dtype = tl.int8
int16: dtype = tl.int16
int32: dtype = tl.int32
int64: dtype = tl.int64
uint8: dtype = tl.uint8
uint16: dtype = tl.uint16
uint32: dtype = tl.uint32
uint64: dtype = tl.uint64
float8e5: dtype = tl.float8e5
float8e5b16: dtype = tl.float8e5b16
float8e4nv: dtype = tl.float8e4nv
float8e4b8: dtype = tl.float8e4b8
float8e4b15: dtype = tl.float8e4b15
float16: dtype = tl.float16
bfloat16: dtype = tl.bfloat16
float32: dtype = tl.float32
float64: dtype = tl.float64
