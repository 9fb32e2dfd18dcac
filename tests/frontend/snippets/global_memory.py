"""Loads, stores and atomics of global memory."""

from __future__ import annotations

from tests.frontend.snippets.programs import each

each(
    "load",
    "o m x oo xx",
    "gl.load(fp)",
    "gl.load(fp + n)",
    "gl.load(fp + o)",
    "gl.load(fp + o, mask=m)",
    "gl.load(fp + o, m, 0.0)",
    "gl.load(fp + o, m, other=f)",
    "gl.load(fp + o, mask=m, other=x)",
    "gl.load(fp + o, m, 3)",
    "gl.load(hp + o, m, 0)",
    "gl.load(ip + o, n > 3, 0)",
    "gl.load(fp, mask=n > 3, other=0.0)",
    "gl.load(fp + o, cache_modifier='.ca')",
    "gl.load(fp + o, cache_modifier='.cg', eviction_policy='evict_last')",
    "gl.load(fp + o, volatile=True)",
    "gl.load(fp + o, eviction_policy='evict_first')",
    "gl.load(fp + oo, mask=oo < n)",
    "gl.load(fp + oo, mask=(gl.arange(0, 32, ROW) < n)[:, None])",
    "gl.load(cp + o).to(gl.int1)",
    "gl.load(fp + o.to(gl.int64))",
    "gl.load(n.to(gl.int64).to(gl.pointer_type(gl.float32)))",
    "gl.load(fp + o, mask=True)",
    "gl.load(fp + o, cache_modifier='.cv')",
    "gl.load(fp + o - 3)",
    "gl.load(3 + fp)",
    "a = gl.load((fp + o).to(gl.pointer_type(gl.int32), bitcast=True))",
    "gl.load(fp + o, mask=None, other=None)",
)
each(
    "cache_policy",
    "o x",
    "gl.load(fp + o, cache_policy=gl.CachePolicy())",
    "gl.load(fp + o, cache_policy=gl.CachePolicy('ca', 'evict_first'))",
    "gl.store(fp + o, x, cache_policy=gl.CachePolicy('.cg'))",
    "gl.store(fp + o, x, cache_policy=gl.CachePolicy(eviction_policy='evict_last'))",
    since=(3, 9),
)
each(
    "store",
    "o m x i",
    "gl.store(fp, 3.0)",
    "gl.store(fp + o, x)",
    "gl.store(fp + o, x, mask=m)",
    "gl.store(fp + o, 0)",
    "gl.store(hp + o, x)",
    "gl.store(fp + o, i, m)",
    "gl.store(fp + o, f, m)",
    "gl.store(ip + o, x)",
    "gl.store(fp + n, n)",
    "gl.store(fp + o, x, cache_modifier='.wb')",
    "gl.store(fp + o, x, cache_modifier='.wt', eviction_policy='evict_first')",
    "gl.store(fp, f, mask=n > 3)",
    "gl.store(fp + o, x, mask=n > 3)",
    "(fp + o).store(x)",
    "gl.store(cp + o, m)",
    "gl.store(bp + o, 1.5)",
    "gl.store(lp + o, n)",
    "gl.store(fp + o, x, mask=True)",
    "gl.store(dp + o, x)",
    "gl.store(up + o, i)",
)
for _op in ("add", "max", "min", "and", "or", "xor", "xchg"):
    _bodies = [
        f"gl.atomic_{_op}(ip + o, i)",
        f"gl.atomic_{_op}(ip, 3)",
        f"gl.atomic_{_op}(ip + o, i, mask=m)",
        f"gl.atomic_{_op}(ip + o, 1, m, 'relaxed', 'cta')",
        f"gl.atomic_{_op}(ip, n, sem='release', scope='sys')",
        f"(ip + o).atomic_{_op}(i)",
        f"gl.atomic_{_op}(ip + o, 1, n > 3)",
        f"gl.atomic_{_op}(ip + o, n)",
    ]
    if _op in ("add", "max", "min", "xchg"):
        _bodies += [
            f"gl.atomic_{_op}(fp + o, x)",
            f"gl.atomic_{_op}(fp, 1.5)",
            f"gl.atomic_{_op}(up + o, u, m)",
            f"gl.atomic_{_op}(fp + o, x, m, sem='acquire')",
        ]
    if _op in ("add", "xchg"):
        _bodies += [
            f"gl.atomic_{_op}(hp + o, h)",
            f"gl.atomic_{_op}(lp + o, l)",
            f"gl.atomic_{_op}(dp + o, d)",
        ]
    each(f"atomic_{_op}", "o m x i u h l d", *_bodies)
each(
    "atomic_cas",
    "o i x l",
    "gl.atomic_cas(ip, 0, 1)",
    "gl.atomic_cas(ip + o, i, 3)",
    "gl.atomic_cas(ip + o, i, i, sem='acq_rel', scope='cta')",
    "gl.atomic_cas(lp + o, l, l)",
    "gl.atomic_cas(ip, n, n, 'relaxed')",
    "(ip + o).atomic_cas(i, i)",
)
each(
    "atomic_load_store",
    "o i m x",
    "gl.atomic_load(ip)",
    "gl.atomic_load(ip + o, m)",
    "gl.atomic_load(ip, sem='relaxed', scope='cta')",
    "gl.atomic_store(ip, 3)",
    "gl.atomic_store(ip + o, i, m)",
    "gl.atomic_store(ip + o, i, sem='release', scope='sys')",
    "gl.atomic_poll(ip, 1)",
    "gl.atomic_poll(ip, n, sem='acquire', scope='gpu', timeout_ns=1000)",
    "gl.atomic_load(fp + o)",
    "gl.atomic_store(fp, 2)",
    since=(3, 9),
)
