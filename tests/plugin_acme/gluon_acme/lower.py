"""Acme's form of a portable op: the Anvil's masked load takes 32-bit offsets only."""

from gluon_core.plugin.ops import tl
from gluon_core.portable import fallback


def load_accepts(request):
    if request.offsets.dtype != tl.int32:
        return f"the Anvil addresses with int32 offsets, not {request.offsets.dtype}"
    return True


def load(request, _semantic):
    return fallback.load(request, _semantic)
