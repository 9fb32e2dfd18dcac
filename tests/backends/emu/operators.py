"""Results of each operator of `gluon_kernels` on one target: python -m tests.backends.emu.operators TARGET FILE [NAME...].

A process has one target, since launches are kept by device.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from gluon_core.errors import GluonError
from gluon_emu.settings import using
from tests.kernels.operators import OPERATORS


def outcome(name: str) -> Any:
    """Return the tensors that an operator makes, or the class of the error that it raises."""
    torch.manual_seed(1)
    arguments = OPERATORS[name].arguments()
    torch.manual_seed(2)
    try:
        with torch.no_grad(), using(timeout=100):
            result = getattr(torch.ops.gluon_kernels, name)(*arguments)
    except GluonError as error:
        return f"{type(error).__name__}: {error}"
    if result is None:
        result = [one for one in arguments if isinstance(one, torch.Tensor)][-1]
    every = result if isinstance(result, (tuple, list)) else (result,)
    return [one for one in every if isinstance(one, torch.Tensor)]


def main(target: str, file: str, *names: str) -> None:
    os.environ["GLUON_TARGET"] = target
    torch.save({name: outcome(name) for name in names or OPERATORS}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
