"""Functions whose result a kernel must not drop."""

from __future__ import annotations

from typing import Any, Union

__all__ = ["must_use_result"]


def must_use_result(x: Any, s: Union[bool, str] = True) -> Any:
    """Make it an error in kernels to call a function and drop what it returns.

    Args:
        x: the function; or the message, when used as `@must_use_result("...")`.
        s: the message, or True for the usual one.
    """
    if isinstance(x, str):
        return lambda function: must_use_result(function, x)
    x._must_use_result = s
    return x
