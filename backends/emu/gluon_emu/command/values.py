"""Arguments of kernels as text: arrays by dtype, shape and content, files of NumPy, and numbers."""

from __future__ import annotations

import re
from typing import Any, Optional

import numpy as np

from gluon_core.errors import ArgumentError, did_you_mean

__all__ = ["value_of"]

_DTYPES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
    "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16",
}  # fmt: skip
_ARRAY = re.compile(r"(\w+)\[([\d, x]+)\](?:=(.+))?$")
_SCALAR = re.compile(r"(?:(\w+)=)?([-+\w.]+)$")
_FORMS = (
    "DTYPE[SHAPE], DTYPE[SHAPE]=zeros, ones, arange, random or a number, FILE.npy, or DTYPE=NUMBER"
)


def value_of(text: str, number: int) -> tuple[str, Any]:
    """Return ("array", an array), or (type of a scalar or "", a number).

    Raises:
        ArgumentError: the text has none of the forms.
    """

    def refuse(words: str, remedy: Optional[str] = None) -> ArgumentError:
        return ArgumentError(
            f"argument {number}: {words}", argument="--arg", expected=_FORMS, got=text,
            remedy=remedy,
        )  # fmt: skip

    array = _ARRAY.match(text)
    if array is not None:
        if array[1] not in _DTYPES:
            raise refuse(f"unknown dtype {array[1]}", did_you_mean(array[1], _DTYPES))
        shape = tuple(int(n) for n in re.findall(r"\d+", array[2]))
        try:
            return "array", _filled(_dtype(array[1]), shape, array[3] or "zeros")
        except ValueError:
            raise refuse(f"arrays are not filled with {array[3]}") from None
    if text.endswith(".npy"):
        try:
            return "array", np.load(text)
        except (OSError, ValueError) as error:
            raise refuse(f"the file cannot be read: {error}") from None
    scalar = _SCALAR.match(text)
    if scalar is None or scalar[1] is not None and scalar[1] not in _DTYPES:
        raise refuse("neither an array nor a number")
    floating = (scalar[1] or "").startswith(("f", "bf"))
    try:
        number_: Any = float(scalar[2]) if floating else int(scalar[2], 0)
    except ValueError:
        try:
            number_ = float(scalar[2])
        except ValueError:
            raise refuse("neither an array nor a number") from None
        if scalar[1] is not None and not floating:
            raise refuse(f"{scalar[1]} is an integer") from None
    return scalar[1] or "", number_


def _dtype(name: str) -> Any:
    if name == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_DTYPES[name])


def _filled(dtype: Any, shape: tuple[int, ...], fill: str) -> np.ndarray:
    """Return an array filled as the command line says.

    Raises:
        ValueError: `fill` is neither a known word nor a number.
    """
    count = int(np.prod(shape))
    if fill == "random":
        rng = np.random.default_rng(0)
        whole = np.issubdtype(dtype, np.integer)
        values = rng.integers(0, 100, count) if whole else rng.standard_normal(count)
    elif fill == "arange":
        values = np.arange(count)
    else:
        words = {"zeros": 0.0, "ones": 1.0}
        values = np.full(count, words[fill] if fill in words else float(fill))
    return values.astype(dtype).reshape(shape)
