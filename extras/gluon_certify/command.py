"""`gluon certify`: examine, print, write."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Optional, Sequence

from gluon_certify.certifying import certify
from gluon_certify.examine import Plan
from gluon_certify.text import lines
from gluon_cli.check import simulated_twin
from gluon_cli.output import UsageError, file_and_kernel, print_json

__all__ = ["show"]


def show(
    spec: str,
    targets: Optional[str],
    arguments: Sequence[str],
    plan: Plan,
    output: Optional[Path],
    json: bool,
) -> int:
    """Certify a program and print the certificate.

    Args:
        spec: `FILE` or `FILE:KERNEL`.
        targets: separated by commas; None for the device that is there, else the default.
        output: the file that gets the certificate as JSON.

    Raises:
        UsageError: no such file or target, or numbers that are none.
    """
    numbers = {
        "--schedules": plan.schedules,
        "--launches": plan.launches,
        "--timeout": plan.timeout,
    }
    for name, value in numbers.items():
        if not value > 0:
            raise UsageError("must be positive", argument=name, got=value)
    named = [one for one in (targets or "").split(",") if one] or [str(simulated_twin(None))]
    file, kernel = file_and_kernel(spec)
    certificate = certify(file, named, arguments, plan, kernel)
    content = certificate.as_json()
    if output is not None:
        output.write_text(json_.dumps(content, indent=2) + "\n")
    if json:
        print_json(content)
    else:
        for line in lines(content):
            print(line)
        if output is not None:
            print(f"written to {output}")
    return certificate.exit
