"""From a kernel's Python AST to builder calls, with a source span on every error.

`trace` runs Triton's code generator, subclassed, over a kernel. The builder behind it is the
backend's: Triton's, which emits TTGIR, or a recorder such as the simulator's.
"""

from __future__ import annotations

from gluon_core.frontend.host_calls import host_call
from gluon_core.frontend.session import Session
from gluon_core.frontend.signature import parse_type
from gluon_core.frontend.trace import trace

__all__ = ["Session", "host_call", "parse_type", "trace"]
