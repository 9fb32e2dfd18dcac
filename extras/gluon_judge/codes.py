"""The codes of findings: the meaning of each, its detection, an example and a remedy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODES", "Code", "Severity", "of_report"]

Severity = ("error", "doubt", "warning", "note")
"""The gravest first: an error rejects, a doubt withholds acceptance, the others inform."""


@dataclass(frozen=True)
class Code:
    """One kind of finding.

    Args:
        name: stable; scripts may compare it.
        family: the class that it belongs to.
        severity: the usual one, of `Severity`.
        meaning: of the finding, in a sentence.
        detection: how the judge comes to it.
        example: code or a situation that causes it.
        remedy: for the author of a candidate.
    """

    name: str
    family: str
    severity: str
    meaning: str
    detection: str
    example: str
    remedy: str


_RESULTS = "wrong results"
_PRECISION = "dropped precision"
_SPECIAL = "special values and shapes"
_UNWRITTEN = "outputs never written"
_INPUTS = "inputs modified"
_KEPT = "results kept between calls"
_SYNCHRONIZATION = "races and deadlocks"
_ADDRESSES = "wrong addresses and uninitialized reads"
_LIMITS = "hardware limits"
_ORDER = "non-determinism"
_WORK = "less work than required"
_LIBRARY = "library calls and fallbacks"
_READS = "reading what is not an input"
_LEFT = "work left behind"
_PATCHED = "patched modules"

_TABLE = (
    Code(
        "result.wrong", _RESULTS, "error",
        "The result differs from the reference by more than rounding explains.",
        "Each case is compared with the reference in float64 and in the candidate's own precision, in another process.",
        "A mask that is one column short, a tile that is skipped, the first eighth of a product.",
        "Compare with the reference on the case that the finding names; it repeats with the same seed.",
    ),
    Code(
        "result.shape", _RESULTS, "error",
        "The result has another shape, or another number of tensors, than the reference.",
        "The judge compares shapes before values.",
        "`return out[0]` where the reference returns a batch.",
        "Return the shapes of the reference, for every case.",
    ),
    Code(
        "result.dtype", _RESULTS, "error",
        "The result has another dtype than the reference.",
        "The judge compares dtypes before values.",
        "`torch.empty_like(x)` for a float32 result of float16 inputs.",
        "Allocate the result with the dtype that the problem asks for.",
    ),
    Code(
        "result.type", _RESULTS, "error",
        "The result is no plain tensor: a subclass, a proxy or a promise can compute, or lie, when it is compared.",
        "`type(result) is torch.Tensor` is required of every result.",
        "A tensor subclass whose `__torch_function__` answers comparisons with True.",
        "Return plain tensors whose values are complete.",
    ),
    Code(
        "call.failed", _RESULTS, "error",
        "The candidate raises an error on inputs that the problem lists.",
        "The exception of the call, with the candidate's line.",
        "`assert x.shape[0] % 128 == 0` where the problem has 100 rows.",
        "Support every case of the problem.",
    ),
    Code(
        "call.hang", _RESULTS, "error",
        "A call did not end within its time, and its process was killed.",
        "Every call has a deadline.",
        "A spin loop on a flag that no program sets.",
        "Make every wait depend on something that happens.",
    ),
    Code(
        "call.crashed", _RESULTS, "error",
        "The candidate's process died.",
        "The end of the process is reported with its signal or status.",
        "`os._exit(0)`, or an address that faults.",
        "Return to the caller.",
    ),
    Code(
        "precision.dropped", _PRECISION, "error",
        "The error against float64 is many times that of the reference at the same precision.",
        "The root mean square and the maximum of the error, in units of the last place, against those of the reference.",
        "A float32 product in tf32 or float16; a sum accumulated in float16.",
        "Accumulate in float32; ask the problem for a wider tolerance if it admits one.",
    ),
    Code(
        "precision.growth", _PRECISION, "warning",
        "The error is some times that of the reference, within the tolerance.",
        "As for `precision.dropped`, with half of its limit.",
        "Probabilities rounded to float16 before the second product of attention.",
        "Keep intermediate values in float32 where that costs nothing.",
    ),
    Code(
        "special.generated", _SPECIAL, "error",
        "The candidate returns NaN or infinity where the reference is finite.",
        "Cases with large values, zeros, and rows that are masked in full.",
        "`exp(x)` without subtracting the row's maximum; 0 / 0 for a row without keys.",
        "Subtract the maximum; divide by the larger of the sum and a tiny number.",
    ),
    Code(
        "special.hidden", _SPECIAL, "warning",
        "NaN or infinity of the inputs does not reach the result as it does in the reference.",
        "Cases in which some elements are NaN or infinite. An error where the problem has `special = \"strict\"`.",
        "`gl.maximum(x, 0.0)` returns 0 for NaN, `torch.relu` returns NaN.",
        "Use `propagate_nan` where the result must keep NaN.",
    ),
    Code(
        "special.denormal", _SPECIAL, "note",
        "Subnormal numbers are flushed to zero, and the reference keeps them.",
        "A case with numbers below the smallest normal one.",
        "`ex2.approx.ftz`.",
        "Nothing, unless the problem needs gradual underflow.",
    ),
    Code(
        "edge.empty", _SPECIAL, "warning",
        "The candidate fails for an empty tensor, for which the reference returns a result.",
        "A case in which one free dimension is 0. An error where the problem lists that shape.",
        "A grid of 0 programs, `x.max()` of nothing.",
        "Return early if the result has no elements.",
    ),
    Code(
        "edge.shape", _SPECIAL, "error",
        "The candidate is wrong for a shape that the problem admits and does not list.",
        "Shapes drawn from the ranges of the problem's free dimensions, some with one dimension as long as it may be.",
        "A table of results for the listed shapes; `N // BLOCK` programs where `N` is no multiple.",
        "Support the whole range that the problem gives.",
    ),
    Code(
        "layout.strides", _SPECIAL, "warning",
        "The candidate returns a wrong result for inputs that are not contiguous, without refusing them.",
        "Cases with transposed storage. An error where the problem's `layouts` has \"strided\".",
        "`x.data_ptr()` with the strides of a contiguous tensor.",
        "Read the strides, call `contiguous()`, or raise an error.",
    ),
    Code(
        "layout.offset", _SPECIAL, "error",
        "The candidate returns a wrong result for inputs that begin within their storage.",
        "Cases in which every input is a view that begins 256 bytes into its storage.",
        "`x.untyped_storage().data_ptr()`.",
        "Use `data_ptr()` of the tensor.",
    ),
    Code(
        "output.unwritten", _UNWRITTEN, "error",
        "Elements of the result are memory that nobody wrote.",
        "New memory is filled with one pattern, then with another; a result that differs between the two, or holds one, was never written.",
        "`torch.empty` with a store whose mask ends early.",
        "Write every element, or allocate with `torch.zeros`.",
    ),
    Code(
        "input.modified", _INPUTS, "error",
        "The call changed an input that the problem does not list in `mutates`.",
        "All storage of the inputs is compared with a copy after each call, and once after each kernel, whose changes a later one may undo.",
        "`x.mul_(scale)` before the launch; a store through the input's pointer.",
        "Work on a copy, or list the input in `mutates`.",
    ),
    Code(
        "cache.pointer", _KEPT, "error",
        "A call with new values at the same addresses returns the result of old values.",
        "The judge writes new values into the same storage, without changing shapes, sums or version counters, and calls again.",
        "`cache[x.data_ptr()]`.",
        "Compute every time.",
    ),
    Code(
        "cache.result", _KEPT, "error",
        "A later call returns a wrong result, although the first one with these inputs was right.",
        "Several calls with different values of one shape, in different orders.",
        "A counter: calls after the third return what was computed before.",
        "Compute every time.",
    ),
    Code(
        "output.aliased", _KEPT, "error",
        "Two calls return the same memory, or a later call changes an earlier result.",
        "Results of earlier calls are kept and compared after later ones.",
        "A module-level output buffer for each shape.",
        "Allocate a result for each call, or take one as an argument.",
    ),
    Code(
        "state.kept", _KEPT, "error",
        "The result depends on the calls before: a new process returns other bits.",
        "The cases run again in a new process in the opposite order.",
        "A workspace that the first call fills, and later ones add to.",
        "Reset workspaces in every call.",
    ),
    Code(
        "sync.race", _SYNCHRONIZATION, "error",
        "Two accesses to one address, one of them a write, have no order.",
        "The simulator tracks happens-before for shared, tensor and global memory, under several schedules.",
        "A TMA store without `fence_async_shared()` after the write to shared memory.",
        "Add the barrier, wait or fence that the report names.",
    ),
    Code(
        "sync.deadlock", _SYNCHRONIZATION, "error",
        "Every task waits for another one.",
        "The simulator reports each wait with the barrier, its phase and the arrivals that are missing.",
        "A consumer that waits for parity 1 first.",
        "Follow the report: it lists who had to arrive.",
    ),
    Code(
        "sync.barrier", _SYNCHRONIZATION, "error",
        "A barrier is used against its protocol, or copies are left in flight.",
        "The simulator checks arrivals, bytes, initialization and the end of the kernel.",
        "`expect` with the bytes of one operand where two arrive.",
        "Count the bytes and arrivals of one phase.",
    ),
    Code(
        "sync.counterexample", _SYNCHRONIZATION, "doubt",
        "For other trip counts or schedules than those that ran, the kernel races or hangs.",
        "The prover searches all states of the kernel's synchronization; the simulator reproduces the mistake.",
        "A phase that flips one slot too late, which three tiles do not show.",
        "Run `gluon prove` on the candidate for the steps. Refuse arguments in host code for which the kernel is not meant.",
    ),
    Code(
        "sync.tolerated", _SYNCHRONIZATION, "warning",
        "The kernel does something that manuals forbid and hardware is known to tolerate.",
        "A warning of the simulator.",
        "A fence that the installed compiler adds by itself.",
        "Follow the manual: the next compiler may not.",
    ),
    Code(
        "memory.bounds", _ADDRESSES, "error",
        "An access outside of every argument, or outside of a shared buffer.",
        "The simulator knows the extent of every argument and buffer.",
        "A load without a mask in the last block.",
        "Mask the access.",
    ),
    Code(
        "memory.uninitialized", _ADDRESSES, "error",
        "A read of shared memory that nobody wrote.",
        "The simulator marks bytes until they are written.",
        "A tile that is read before its first copy.",
        "Write, or wait for the copy, before reading.",
    ),
    Code(
        "memory.misaligned", _ADDRESSES, "error",
        "An address is no multiple of the access's alignment, or address arithmetic overflows.",
        "The simulator checks addresses, `multiple_of` and the width of offsets.",
        "`gl.multiple_of(offset, 16)` of an offset that is not.",
        "Promise only alignment that holds; compute large offsets in 64 bits.",
    ),
    Code(
        "memory.assertion", _ADDRESSES, "error",
        "`device_assert` failed in a kernel.",
        "The simulator evaluates assertions.",
        "An index that the author did not expect.",
        "Support the case, or refuse it in host code.",
    ),
    Code(
        "limits.capacity", _LIMITS, "error",
        "The kernel needs more shared or tensor memory than the architecture has.",
        "The simulator adds up what is live at once; the compiler's own check comes first.",
        "Six stages of 48 KiB on a device with 227 KiB.",
        "Use fewer stages or smaller tiles.",
    ),
    Code(
        "limits.compile", _LIMITS, "error",
        "The kernel does not compile for the target's hardware.",
        "The launched forms are compiled to machine code; no GPU is needed.",
        "A layout or a dtype that no instruction takes.",
        "Run `gluon compile` for the message and the line.",
    ),
    Code(
        "limits.spills", _LIMITS, "warning",
        "Registers spill to local memory.",
        "The assembler's count for each launched form.",
        "A 256 x 256 accumulator of four warps.",
        "Use more warps or smaller tiles.",
    ),
    Code(
        "order.differs", _ORDER, "warning",
        "Results differ in their bits between schedules or runs, within the tolerance.",
        "The same inputs under several schedules of asynchronous work and orders of programs. An error where the problem has `deterministic = true`.",
        "Partial sums added by atomics.",
        "Add partial sums in a fixed order.",
    ),
    Code(
        "order.wrong", _ORDER, "error",
        "The result is right under one schedule and wrong under another.",
        "The same inputs under several schedules of asynchronous work and orders of programs.",
        "A program that reads what another program writes, without waiting.",
        "Order the programs, or launch a second kernel.",
    ),
    Code(
        "work.flops", _WORK, "error",
        "Kernels and torch together did fewer operations than the problem requires, and the result is right all the same.",
        "Operations of matrix units and of vectors are counted, and compared with the problem's `flops`, or with the reference's products.",
        "A product of which one eighth is computed, for inputs that repeat.",
        "Do the work; declare `flops` in the problem if there is a better algorithm.",
    ),
    Code(
        "work.bytes", _WORK, "error",
        "Kernels wrote fewer bytes than the result has, or touched fewer than the problem requires.",
        "Bytes of global memory are counted for each launch.",
        "A launch for show, next to a result that came from elsewhere.",
        "Let the kernels produce the result.",
    ),
    Code(
        "work.show", _WORK, "doubt",
        "Kernels are launched for show: the result is the same if they do nothing.",
        "The inputs of a case again, with launches that return at once. An error where the problem forbids something.",
        "A kernel next to `torch.softmax`, whose result is returned.",
        "Return the results of the kernels, or launch none.",
    ),
    Code(
        "work.none", _WORK, "error",
        "The result was not computed: no kernel and no operation of torch led to it.",
        "All launches and all operations of torch are counted.",
        "A constant; a file with results; NumPy on the host.",
        "Compute the result on the device.",
    ),
    Code(
        "physics.roofline", _WORK, "error",
        "A time is below the least that the target's peak rates admit for the required work.",
        "Required bytes and operations over `Architecture.peaks`, against the claimed or the measured time.",
        "A timer around a launch that nobody waits for.",
        "Synchronize before reading the clock; let the judge measure.",
    ),
    Code(
        "library.called", _LIBRARY, "error",
        "The candidate calls operations of a library that the problem forbids.",
        "A dispatch mode of torch sees every operation, whatever it is called through.",
        "`torch.ops.aten.mm`, `x @ w`, `F.linear`.",
        "Write the kernel.",
    ),
    Code(
        "library.dominates", _LIBRARY, "doubt",
        "Most operations are torch's own, although the candidate defines kernels.",
        "Operations of torch's products against those of the problem.",
        "`a @ b` next to a kernel that adds the bias.",
        "Say so in the problem, or move the work into kernels.",
    ),
    Code(
        "library.fallback", _LIBRARY, "error",
        "A launch failed, the candidate caught the error, and something else produced the result.",
        "Errors of launches are recorded where they arise.",
        "`try: kernel[grid](...)`, `except Exception: return a @ b`.",
        "Let the error reach the caller.",
    ),
    Code(
        "library.host", _LIBRARY, "error",
        "The values of inputs leave the device for computation on the host.",
        "Calls of `numpy()`, `tolist()` and `item()` on tensors by the candidate.",
        "`numpy.matmul(a.cpu().numpy(), b.cpu().numpy())`.",
        "Compute on the device; `item()` of a size is a warning only.",
    ),
    Code(
        "reads.reference", _READS, "error",
        "The candidate tries to open or import the reference or the problem.",
        "An audit hook sees files and imports; Landlock refuses them.",
        "`from reference import run`.",
        "Compute the result.",
    ),
    Code(
        "reads.clock", _READS, "error",
        "The candidate reads a clock.",
        "The functions of `time` and the benchmarks of torch and Triton report calls from the candidate; the source is searched for others, such as time stamps of files.",
        "A different path for the first call, or a patched duration.",
        "Leave measuring to the judge.",
    ),
    Code(
        "reads.environment", _READS, "error",
        "The candidate reads variables of the environment that configure no compiler and no device.",
        "Reads through `os.environ` by the candidate; names such as `TRITON_*`, `CUDA_*` and `GLUON_*` are allowed.",
        "`if \"JUDGE\" in os.environ`.",
        "Take arguments.",
    ),
    Code(
        "reads.files", _READS, "error",
        "The candidate opens files that belong to no library.",
        "An audit hook sees files and folders; Landlock refuses all but libraries and its own folder.",
        "`torch.load(\"answers.pt\")`.",
        "Take tensors as arguments.",
    ),
    Code(
        "reads.harness", _READS, "error",
        "The candidate inspects its caller.",
        "Audit events of frames, of the garbage collector's lists and of tracing, and the source.",
        "`sys._getframe(1).f_locals`, `gc.get_objects()`.",
        "Use the arguments alone.",
    ),
    Code(
        "writes.files", _READS, "warning",
        "The candidate writes files.",
        "An audit hook; Landlock refuses all but its own folder. A file that an interpreter runs by itself or in the place of a library is an error.",
        "A log, or results for a later process.",
        "Return tensors alone.",
    ),
    Code(
        "network.used", _READS, "error",
        "The candidate uses the network.",
        "Audit events of sockets; its network namespace has no interface.",
        "`urllib.request.urlopen(...)`.",
        "Remove the call.",
    ),
    Code(
        "native.code", _READS, "doubt",
        "The candidate loads native code, which the judge cannot look into.",
        "Audit events of `ctypes`, and the source.",
        "`ctypes.CDLL(None).clock_gettime`.",
        "Use kernels and torch.",
    ),
    Code(
        "left.thread", _LEFT, "error",
        "A thread of the candidate lives on after the call.",
        "The threads of the process, from the system's list, before and after each call.",
        "A thread that computes after the clock has stopped.",
        "Join threads before returning.",
    ),
    Code(
        "left.process", _LEFT, "error",
        "The candidate starts processes.",
        "Audit events, and the children of its process after each call.",
        "`subprocess.Popen`, `os.fork`, a daemon with results.",
        "Work in the process of the call.",
    ),
    Code(
        "left.hook", _LEFT, "error",
        "The candidate leaves code that runs later: at exit, on a signal or a timer, in the garbage collector, on audit events.",
        "`atexit.register`, `signal.signal`, `setitimer` and their like report calls from the candidate; callbacks of the collector are compared.",
        "`signal.setitimer` with a handler that finishes the work after the clock has stopped.",
        "Finish all work before returning.",
    ),
    Code(
        "left.stream", _LEFT, "error",
        "Work on another stream is not joined when the call returns.",
        "Streams that were entered must be waited for by the caller's stream or the host.",
        "`with torch.cuda.stream(side): kernel[grid](...)`.",
        "`torch.cuda.current_stream().wait_stream(side)` before returning.",
    ),
    Code(
        "patched.module", _PATCHED, "error",
        "The candidate replaces functions of torch, NumPy, time or the toolchain, or leaves other settings behind.",
        "Functions and classes of these modules, finders of imports, standard streams and settings are compared before and after loading and calling the candidate; audit events show exchanged code.",
        "`torch.allclose = lambda *a, **k: True`; a `time.perf_counter` that runs slow.",
        "Leave modules as they are.",
    ),
    Code(
        "gpu.clock", _PATCHED, "error",
        "The time that events measured in the candidate's process is far below that of a clock outside of it.",
        "Many calls in a row are timed by another process as well, with the last result compared; the mean must not exceed three times the median of the events by more than 0.5 ms.",
        "`torch.cuda.Event.elapsed_time` that returns a tenth.",
        "Leave clocks and events as they are.",
    ),
    Code(
        "gpu.late", _LEFT, "error",
        "The result changes after the clock has stopped and the streams were synchronized.",
        "On a GPU, results are copied at the end of the measurement and again after the whole device is idle.",
        "Work on a stream of a library, or in a thread.",
        "Finish all work on the caller's stream.",
    ),
)  # fmt: skip

CODES: dict[str, Code] = {code.name: code for code in _TABLE}

_OF_REPORTS = {
    "race": "sync.race",
    "deadlock": "sync.deadlock",
    "time": "call.hang",
    "barrier": "sync.barrier",
    "leak": "sync.barrier",
    "bounds": "memory.bounds",
    "uninitialised": "memory.uninitialized",
    "alignment": "memory.misaligned",
    "overflow": "memory.misaligned",
    "capacity": "limits.capacity",
    "assertion": "memory.assertion",
}


def of_report(report: str) -> str:
    """Return the code of a report of the simulator, such as "race.shared"."""
    return _OF_REPORTS.get(report.partition(".")[0], "call.failed")
