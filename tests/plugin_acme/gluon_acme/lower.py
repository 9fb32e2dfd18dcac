"""The form of portable ops: masked loads of the Anvil take 32-bit offsets."""

from gluon_core.plugin.ops import tl


def load_accepts(request):
    if request.offsets.dtype != tl.int32:
        return f"the Anvil addresses with int32 offsets, not {request.offsets.dtype}"
    return True


def load(request, _semantic):
    pointers = _semantic.add(request.ptr, request.offsets, True)
    other = request.other if request.mask is None or request.other is not None else 0
    return _semantic.load_global(pointers, request.mask, other, request.cache_modifier)
