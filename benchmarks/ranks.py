"""Measure kernels across GPUs against torch's: one process for each GPU, as in

    torchrun --nproc-per-node 2 benchmarks/ranks.py all-reduce

Parts: check (results against torch's), products (of them those of multiplications), all-reduce, gather (all-gather, then multiply), scatter
(multiply, then reduce-scatter), sums (multiply, then all-reduce), experts (dispatch and combine).
Times are means over calls one after the other, the best of several rounds; of ranks, those of rank 0.
Those of multiplications are medians of rounds and of the slower rank, see `steadily`. NVLink multicast is
not used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as memory  # noqa: E402

import gluon_distributed as distributed  # noqa: E402
from examples.ranks import all_reduce, experts, matmul  # noqa: E402

SIZES = ((8192, 8192, 28672), (8192, 28672, 8192), (4096, 4096, 4096))
RANK = int(os.environ.get("RANK", 0))


def say(*parts):
    if RANK == 0:
        print(*parts, flush=True)


def timed(call, times=20, rounds=3):
    """Microseconds of one call."""
    return in_turns({"": call}, times, rounds)[""]


def in_turns(calls, times=20, rounds=3):
    """Return microseconds of one call of each, measured in turns; calls that cannot run are left out."""
    best = {}
    for name, call in calls.items():
        try:
            for _ in range(3):
                call()
            best[name] = float("inf")
        except Exception as error:
            say(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    for _ in range(rounds):
        for name in best:
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(times):
                calls[name]()
            end.record()
            torch.cuda.synchronize()
            best[name] = min(best[name], start.elapsed_time(end) / times * 1e3)
    return best


class Meter:
    """Clock and energy of this rank's GPU, where the library that tells them is installed."""

    def __init__(self):
        try:
            import pynvml

            pynvml.nvmlInit()
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}".encode())
            self.library = pynvml
            self.joules()
        except Exception as error:
            say(f"no clocks and energy: {type(error).__name__}: {error}")
            self.library = None

    def joules(self):
        if self.library is None:
            return float("nan")
        return self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3

    def clock(self):
        """Return MHz of the multiprocessors."""
        if self.library is None:
            return float("nan")
        return self.library.nvmlDeviceGetClockInfo(self.handle, self.library.NVML_CLOCK_SM)


def steadily(calls, seconds=0.1, rounds=4):
    """By name: (microseconds of one call on the slower rank, its joules there, MHz), each a median.

    Large GEMMs run into the power limit, and a GPU that has rested goes faster for a while. So each
    round of a call is two parts of so many seconds, of which the second is measured: the effect of
    earlier work is gone. The order turns from round to round.
    """
    meter, readings, times = Meter(), {}, {}
    for name, call in calls.items():
        try:
            call()
            call()
            torch.cuda.synchronize()
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                call()
            end.record()
            torch.cuda.synchronize()
            took = torch.tensor(start.elapsed_time(end) / 5e3, device="cuda")
            dist.all_reduce(took, dist.ReduceOp.MAX)
            times[name] = max(5, int(seconds / took.item()))
            readings[name] = []
        except Exception as error:
            say(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    names = list(times)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            torch.cuda.synchronize()
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(times[name]):
                calls[name]()
            torch.cuda.synchronize()
            before = meter.joules()
            start.record()
            for _ in range(times[name]):
                calls[name]()
            end.record()
            clock = meter.clock()
            torch.cuda.synchronize()
            spent = (meter.joules() - before) / times[name]
            took = start.elapsed_time(end) / times[name] * 1e3
            reading = torch.tensor([took, spent, -clock], device="cuda", dtype=torch.float64)
            dist.all_reduce(reading, dist.ReduceOp.MAX)
            readings[name].append(reading.tolist())
    return {
        name: [statistics.median(one) for one in zip(*reading)]
        for name, reading in readings.items()
    }


def graphed(call, times=10):
    """Microseconds of one call in a graph of several, where no host code is between them."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return timed(graph.replay, times=5) / times


def attempt(name, make, measure=None):
    """Return the microseconds of `make`'s call, or None where it cannot be had."""
    try:
        return (measure or timed)(make())
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
        return None


def shown(value):
    return "-" if value is None or value != value else f"{value:.1f}"


def close(name, result, wanted, tolerance=2e-2):
    worst = ((result.float() - wanted.float()).abs().max() / wanted.float().abs().max()).item()
    say(f"check {name}: worst {worst:.2e} of the largest {'ok' if worst < tolerance else 'WRONG'}")
    return worst < tolerance


# -- all-reduce ------------------------------------------------------------------------------------


def config_of(nbytes):
    """(elements of a block, warps, most programs) for a sum of so many bytes."""
    if nbytes <= 64 << 10:
        return 1024, 4, 64
    if nbytes < 1 << 20:
        return 2048, 8, 128
    if nbytes == 1 << 20:
        return 4096, 16, 128
    return 8192, 16, 128


def sums(group, n, config=None):
    """List the all-reduces of `n` elements: (name, tensors to fill, call, result)."""
    dtype = torch.bfloat16
    block, warps, most = config or config_of(2 * n)
    x = group.empty(n, dtype)
    out = torch.empty(n, dtype=dtype, device="cuda")
    grid = (all_reduce.programs(x, n, block, most),)
    one = all_reduce.one_shot.prepare(x, out, n, block, grid=grid, num_warps=warps)
    yield "one shot", x.local, lambda: one(x, out, n, block), out
    y = group.empty(n, dtype)
    share = all_reduce.share_of(n, y.world, block)
    grid = (all_reduce.programs(y, share, block, most),)
    two = all_reduce.two_shot.prepare(y, n, share, block, grid=grid, num_warps=warps)
    yield "two shots", y.local, lambda: two(y, n, share, block), y.local
    values = torch.empty(n, dtype=dtype, device="cuda")
    inboxes = [group.empty(n, dtype) for _ in range(2)]
    grid = (all_reduce.programs(inboxes[0], n, block, most),)
    kernel = all_reduce.through_inbox
    through = [
        kernel.prepare(values, box, out, n, block, grid=grid, num_warps=warps) for box in inboxes
    ]
    turn = [0]

    def inbox():
        side = turn[0]
        turn[0] = 1 - side
        through[side](values, inboxes[side], out, n, block)

    yield "inbox", values, inbox, out


def sweep(group):
    """Which blocks, warps and programs do best, by size."""
    configs = [
        (512, 4, 64), (1024, 4, 64), (1024, 4, 128), (2048, 8, 64), (2048, 8, 128), (4096, 16, 128),
        (8192, 16, 128), (8192, 16, 256), (16384, 16, 128),
    ]  # fmt: skip
    for kib in (8, 64, 256, 1024, 16384, 262144):
        best = {}
        for config in configs:
            if config[0] > kib * 512:
                continue
            for variant, values, call, _ in sums(group, kib * 512, config):
                values.zero_()
                torch.cuda.synchronize()
                dist.barrier()
                best.setdefault(variant, []).append((timed(call), config))
        for variant, rows in best.items():
            three = ", ".join(f"{t:.1f} {c}" for t, c in sorted(rows)[:3])
            say(f"sweep {kib} KiB, {variant}: {three}; worst {max(rows)[0]:.1f}")


def reduce_table(group):
    say(
        "| all-reduce, KiB | one shot | two shots | inbox | torch one shot | torch two shots | NCCL |"
    )
    say("| --- | --- | --- | --- | --- | --- | --- |")
    name = dist.group.WORLD.group_name
    for kib in (8, 64, 256, 1024, 16384, 262144):
        n = kib * 512
        calls = {}
        for variant, values, call, _ in sums(group, n):
            values.zero_()
            calls[variant] = call
        y = memory.empty(n, dtype=torch.bfloat16, device="cuda").zero_()
        memory.rendezvous(y, dist.group.WORLD)
        z = torch.zeros(n, dtype=torch.bfloat16, device="cuda")
        one, two = torch.ops.symm_mem.one_shot_all_reduce, torch.ops.symm_mem.two_shot_all_reduce_
        calls["torch one shot"] = lambda y=y, one=one: one(y, "sum", name)
        calls["torch two shots"] = lambda y=y, two=two: two(y, "sum", name)
        calls["NCCL"] = lambda z=z: dist.all_reduce(z)
        torch.cuda.synchronize()
        dist.barrier()
        times = in_turns(calls, times=50 if kib < 16384 else 20, rounds=5)
        line = [times.get(variant) for variant in calls]
        say(f"| {kib} | " + " | ".join(map(shown, line)) + " |")
    say("\nas graphs\n\n| all-reduce, KiB | one shot | inbox | torch one shot |")
    say("| --- | --- | --- | --- |")
    for kib in (8, 64, 256, 1024):
        n = kib * 512
        calls = {variant: call for variant, _, call, _ in sums(group, n)}
        y = memory.empty(n, dtype=torch.bfloat16, device="cuda").zero_()
        memory.rendezvous(y, dist.group.WORLD)
        calls["torch"] = lambda y=y: torch.ops.symm_mem.one_shot_all_reduce(y, "sum", name)
        times = [
            attempt(k, lambda call=calls[k]: call, graphed) for k in ("one shot", "inbox", "torch")
        ]
        say(f"| {kib} | " + " | ".join(map(shown, times)) + " |")


# -- matrix multiplications ------------------------------------------------------------------------


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def processors():
    return torch.cuda.get_device_properties(0).multi_processor_count


VARIANTS = {  # rows of tiles that are walked at a time; the best is ours
    "8": {"together": 8},
    "16": {"together": 16},
}


def row(name, times):
    """Print a line: our time, others', the bound, and our share of it."""
    nothing = (float("nan"),) * 3
    best = min((one for one in VARIANTS if one in times), key=lambda one: times[one][0], default="")
    ours, fused = times.get(best, nothing), times.get("torch fused", nothing)
    base, bound = times["NCCL then cuBLAS"][0], max(times["NCCL"][0], times["cuBLAS"][0])
    way = (base - ours[0]) / (base - bound)
    text = " | ".join(shown(v) for v in (ours[0], base, fused[0], bound))
    clocks = f"{-ours[2]:.0f} | {-times['cuBLAS'][2]:.0f}"
    say(f"| {name} | {text} | {base / ours[0]:.2f} | {way:.2f} | {clocks} |")
    say(
        "; ".join(f"{variant} {us:.1f} us {j:.2f} J" for variant, (us, j, _) in times.items()),
        f"({best})",
    )


HEAD = (
    "| us | ours | NCCL then cuBLAS | torch fused | bound | speedup | of the way | MHz | MHz of cuBLAS |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def gather_table(group, sizes=SIZES):
    say("all-gather + GEMM\n\n" + HEAD)
    world, name = group.world, dist.group.WORLD.group_name
    for M, N, K in sizes:
        a, b = random(M // world, K), random(K, N // world)
        full, c = random(M, K), random(M, N // world)

        def gather(full=full, a=a):
            dist.all_gather_into_tensor(full, a)

        def multiply(full=full, b=b, c=c):
            torch.matmul(full, b, out=c)

        def both(gather=gather, multiply=multiply):
            gather()
            multiply()

        def fused(a=a, b=b):
            torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, name)

        calls = {"NCCL": gather, "cuBLAS": multiply, "NCCL then cuBLAS": both, "torch fused": fused}
        op = matmul.GatheredMatmul(
            group, M // world, K, torch.bfloat16, torch.int32, chunks=1, engines=True
        )
        for _ in range(2):
            op.shard().copy_(a)
            op(b, c, grid=processors())
        for variant, how in VARIANTS.items():
            calls[variant] = lambda op=op, b=b, c=c, how=how: op(b, c, grid=processors(), **how)
        row(f"{M}x{N}x{K}", steadily(calls))
        del op, calls


def scatter_table(group, sizes=SIZES, gather=False):
    title = "GEMM + all-reduce" if gather else "GEMM + reduce-scatter"
    say(title + "\n\n" + HEAD)
    world, name = group.world, dist.group.WORLD.group_name
    for M, N, K in sizes:
        a, b = random(M, K // world), random(K // world, N)
        whole, out = random(M, N), random(M // world, N)

        def multiply(a=a, b=b, whole=whole):
            torch.matmul(a, b, out=whole)

        def scatter(out=out, whole=whole):
            if gather:
                dist.all_reduce(whole)
            else:
                dist.reduce_scatter_tensor(out, whole)

        def both(scatter=scatter, multiply=multiply):
            multiply()
            scatter()

        def fused(a=a, b=b):
            torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, name)

        op = matmul.MatmulScattered(
            group, M // world, N, torch.bfloat16, torch.int32, gather=gather
        )
        room = None if gather else out
        calls = {"NCCL": scatter, "cuBLAS": multiply, "NCCL then cuBLAS": both}
        if not gather:
            calls["torch fused"] = fused
        for variant, how in VARIANTS.items():
            calls[variant] = lambda op=op, a=a, b=b, g=room, how=how: op(
                a, b, g, grid=processors(), **how
            )
        row(f"{M}x{N}x{K}", steadily(calls))
        del op, calls


# -- experts ---------------------------------------------------------------------------------------


def experts_table(group, H=7168, choices=8, held=64):
    say("experts: H 7168, 8 choices of 64 on each rank\n")
    say("| tokens of a rank | dispatch, us | combine, us | NCCL dispatch | NCCL combine |")
    say("| --- | --- | --- | --- | --- |")
    world = group.world
    for tokens in (128, 1024, 4096):
        op = experts.Experts(group, held, tokens, choices, H, torch.bfloat16, torch.int32)
        torch.manual_seed(RANK)
        x, y = random(tokens, H), random(tokens, H)
        slots = tokens * choices
        expert = torch.randint(0, world * held, (slots,), device="cuda", dtype=torch.int32)
        weight = torch.rand(slots, device="cuda")
        place, totals = op.places(expert)
        op.places = lambda expert, places=(place, totals): places
        to = expert // held
        order = torch.argsort(to, stable=True)
        sent = [int(n) for n in torch.bincount(to, minlength=world)]
        came = [row[RANK] for row in group.gather(sent)]
        row, there = order // choices, random(sum(came), H)
        back, scaled = random(slots, H), weight[order][:, None]

        def dispatch_torch(x=x, row=row, there=there, came=came, sent=sent):
            dist.all_to_all_single(there, x[row], came, sent)

        def combine_torch(y=y, row=row, there=there, came=came, sent=sent, back=back, s=scaled):
            dist.all_to_all_single(back, there, sent, came)
            y.zero_().index_add_(0, row, back * s.to(back.dtype))

        line = [
            attempt("dispatch", lambda o=op, x=x, e=expert: lambda: o.dispatch(x, e)),
            attempt(
                "combine",
                lambda o=op, y=y, e=expert, p=place, w=weight: lambda: o.combine(y, e, p, w),
            ),
            attempt("all_to_all", lambda f=dispatch_torch: f),
            attempt("all_to_all back", lambda f=combine_torch: f),
        ]
        say(f"| {tokens} | " + " | ".join(map(shown, line)) + " |")


def check_experts(group, tokens=300, H=1000, choices=4, held=8):
    op = experts.Experts(group, held, tokens, choices, H, torch.bfloat16, torch.int32)
    good = []
    for turn in range(4):
        torch.manual_seed(RANK + 7 * turn)
        x, y = random(tokens, H), random(tokens, H)
        most, slots = group.world * held, tokens * choices
        expert = torch.randint(0, most, (slots,), device="cuda", dtype=torch.int32)
        weight = torch.rand(slots, device="cuda")
        place = op.dispatch(x, expert)
        op.outbox.local.copy_(op.inbox.local * 2)
        op.combine(y, expert, place, weight)
        wanted = 2 * x.float() * weight.view(tokens, choices).sum(1, keepdim=True)
        torch.cuda.synchronize()
        good.append(close(f"experts, turn {turn}", y, wanted))
    return good


# -- results ---------------------------------------------------------------------------------------


def check(group):
    good = []
    for n in (1000, 40000, 3 << 20):
        for variant, values, call, out in sums(group, n):
            torch.manual_seed(RANK)
            values.copy_(random(n))
            wanted = values.clone()
            torch.cuda.synchronize()
            dist.all_reduce(wanted)
            torch.cuda.synchronize()
            dist.barrier()
            call()
            torch.cuda.synchronize()
            good.append(close(f"{variant}, {n}", out, wanted))
            dist.barrier()
    good += check_products(group) + check_experts(group)
    say(f"check: {sum(good)} of {len(good)} right")
    return all(good)


def check_products(group):
    good = []
    world = group.world
    M, N, K = 1024, 2048, 1024
    for engines in (False, True):
        op = matmul.GatheredMatmul(
            group, M // world, K, torch.bfloat16, torch.int32, 2, engines, programs=8
        )
        for turn in range(5):
            a, b, c = random(M // world, K), random(K, N), random(M, N)
            full = random(M, K)
            op.shard().copy_(a)
            op(b, c, grid=processors() - 8)
            dist.all_gather_into_tensor(full, a)
            torch.cuda.synchronize()
            good.append(close(f"gather, engines {engines}, turn {turn}", c, full @ b))
    for gather in (False, True):
        op = matmul.MatmulScattered(
            group, M // world, N, torch.bfloat16, torch.int32, gather=gather
        )
        for turn in range(5):
            a, b, out = random(M, K), random(K, N), random(M // world, N)
            whole = a @ b
            dist.all_reduce(whole)
            op(a, b, None if gather else out, grid=processors())
            torch.cuda.synchronize()
            rows = slice(None) if gather else slice(RANK * M // world, (RANK + 1) * M // world)
            result = op.result() if gather else out
            good.append(close(f"scatter, gather {gather}, turn {turn}", result, whole[rows]))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("check", "products", "all-reduce", "gather", "scatter", "sums", "experts", "sweep")
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--small", action="store_true", help="the smallest sizes alone")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group = distributed.group()
    group.check(matmul.matmul_scattered, all_reduce.one_shot)
    sizes = SIZES[-1:] if options.small else SIZES
    right = True
    for part in options.parts:
        if part == "check":
            right = check(group)
        elif part == "products":
            right = all(check_products(group))
        elif part == "all-reduce":
            reduce_table(group)
        elif part == "sweep":
            sweep(group)
        elif part == "experts":
            experts_table(group)
        elif part == "gather":
            gather_table(group, sizes)
        else:
            scatter_table(group, sizes, gather=part == "sums")
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
