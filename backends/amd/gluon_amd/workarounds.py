"""Workarounds for mistakes of Triton releases for AMD; `docs/known-compiler-bugs.md` describes each."""

from __future__ import annotations

import re
from typing import Any, Callable

__all__ = [
    "anchored_products",
    "awaited_writebacks",
    "fewer_preloaded",
    "signed_extremes",
    "split_waits",
    "warned_of_volatile",
]

# The descriptor of a kernel counts the scalar registers that the launch fills in five bits, and two hold the
# address of the arguments.
_PRELOADED = 29

_KERNEL = re.compile(r"^(define amdgpu_kernel void @[\w.$]+\()(.*)(\) [^\n]*\{)", re.M)
_TYPE = re.compile(
    r"(?:<(?P<count>\d+) x )?(?P<name>ptr|i(?P<bits>\d+)|half|bfloat|float|double)\b"
)
_NEXT = re.compile(r", (?=ptr\b|i\d|half\b|bfloat\b|float\b|double\b|[<\[{])")
_BITS = {"ptr": 64, "double": 64, "float": 32, "half": 16, "bfloat": 16}

_LABEL = re.compile(r"^([-\w.$]+:)", re.M)  # begins a block
_PRODUCT = re.compile(
    r"^  (?P<value>%[-\w.$]+) = (?:tail )?call (?P<type><[^>]+>) @llvm\.amdgcn\.s?wmma.*$", re.M
)

# A write-back of the L2 cache up to the release that waits for it; comments and directives may be between.
_WRITEBACK = re.compile(
    r"^\tbuffer_wbl2\b[^\n]*\n(?!(?:\t(?:\.|;|s_waitcnt(?! vmcnt\(0\)))[^\n]*\n)*\ts_waitcnt vmcnt\(0\))",
    re.M,
)

# An atomic maximum or minimum of signed integers at an address that lanes have handed on as a number.
_SIGNED = re.compile(
    r"^  (?:%\S+ = )?atomicrmw (?:volatile )?(?:max|min) ptr(?: addrspace\(\d+\))? (%[-\w.$]+), i(?:32|64) (%[-\w.$]+)",
    re.M,
)
_FUNCTION = re.compile(r"^define [^\n]*\{\n(.*?)^\}", re.M | re.S)
_ASSIGNED = re.compile(r"^  (%[-\w.$]+) = (.*)$", re.M)
_VALUE = re.compile(r"%[-\w.$]+")
_EXTREME = re.compile(r"@llvm\.u(max|min)\.(i32|i64)\(")
_STEPS = 5  # of the parts of an i64 from the lanes' exchange to its extreme

_Run = Callable[[Any, "dict[str, Any]"], Any]


def warned_of_volatile(run: _Run) -> _Run:
    """Return the stage `run`, which reads TTGIR, with a warning where a kernel with a loop that may wait has a load of which
    the compiler forgets that it is volatile."""

    def stage(module: Any, metadata: dict[str, Any]) -> Any:
        volatile: list[Any] = []
        module.walk(lambda op: volatile.append(op) if op.get_bool_attr("isVolatile") else None)
        text = str(module) if volatile else ""
        loads = [line for line in text.splitlines() if "isVolatile = true" in line]
        if "scf.while" in text and any("= cv" not in line for line in loads):
            metadata.setdefault("warnings", []).append(
                "gl.load with volatile=True: Triton before 3.9 forgets `volatile` on AMD, so that a loop which waits for "
                'another program\'s store may load once and never end. Add cache_modifier=".cv".'
            )
        return run(module, metadata)

    return stage


def fewer_preloaded(run: _Run) -> _Run:
    """Return the stage `run`, which writes LLVM IR, without `inreg` at arguments that scalar registers have no room for.

    Arguments with `inreg` are preloaded into these registers. From the first one without on they are loaded from memory.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return _KERNEL.sub(
            lambda kernel: "".join(_limited(*kernel.groups())), run(source, metadata)
        )

    return stage


def split_waits(run: _Run) -> _Run:
    """Return the stage `run`, which writes LLVM IR, with the wait for LDS of gfx12 in the place of that of gfx9 to gfx11.

    A compare-and-swap of a scalar hands its result to all waves through LDS, and has the older wait as assembly.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return run(source, metadata).replace('"s_waitcnt lgkmcnt(0) "', '"s_wait_dscnt 0x0"')

    return stage


def anchored_products(run: _Run) -> _Run:
    """Return the stage `run`, which writes LLVM IR, with a use behind the last product of each chain.

    LLVM moves the products of WMMA into the block of a masked store that alone uses them, and fetches spilled operands there for
    the lanes of the mask; it leaves a product that has a use in its own block.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        text: str = run(source, metadata)
        anchored = "".join(map(_anchored, _LABEL.split(text)))
        return text if anchored == text else f"{anchored}\ndeclare void @llvm.fake.use(...)\n"

    return stage


def signed_extremes(run: _Run) -> _Run:
    """Return the stage `run`, which writes LLVM IR, with signed extremes of the lanes that one signed atomic stands for.

    Lanes of a wave with one address find their extreme first, and one of them executes the atomic. Triton compares them without a sign.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        text: str = run(source, metadata)
        if not _SIGNED.search(text) or not _EXTREME.search(text):
            return text
        text = _FUNCTION.sub(lambda function: _with_signs(function[0]), text)
        declared = {f"declare {kind} @llvm.s{one}.{kind}({kind}, {kind})" for one, kind in
                    re.findall(r"@llvm\.s(max|min)\.(i32|i64)\(", text)}  # fmt: skip
        missing = [one for one in sorted(declared) if one not in text]
        return "\n".join([text, *missing, ""]) if missing else text

    return stage


def awaited_writebacks(run: _Run) -> _Run:
    """Return the stage `run`, which writes machine code, with a wait behind each write-back of the L2 cache that has none.

    LLVM does not count `buffer_wbl2` among what `vmcnt` counts, and drops a wait for it where all stores have been waited for.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return _WRITEBACK.sub(r"\g<0>\ts_waitcnt vmcnt(0)\n", run(source, metadata))

    return stage


def _with_signs(function: str) -> str:
    """Return a function whose signed atomics have signed extremes of what lanes exchange."""
    values = dict(_ASSIGNED.findall(function))
    left = [
        value
        for address, value in _SIGNED.findall(function)
        if values.get(address, "").startswith("inttoptr ")
    ]
    seen: set[str] = set()
    while left:
        name = left.pop()
        text = values.get(name, "")
        if name in seen or not (text.startswith(("phi ", "select ")) or _EXTREME.search(text)):
            continue
        seen.add(name)
        left += _VALUE.findall(text)
    changed = {
        name
        for name in seen
        if _EXTREME.search(values[name])
        and any(_exchanged(one, values) for one in _VALUE.findall(values[name]))
    }

    def signed(line: re.Match[str]) -> str:
        return _EXTREME.sub(r"@llvm.s\1.\2(", line[0]) if line[1] in changed else line[0]

    return _ASSIGNED.sub(signed, function) if changed else function


def _exchanged(name: str, values: dict[str, str], steps: int = _STEPS) -> bool:
    """Return True for a value that another lane hands on."""
    text = values.get(name, "")
    if "@llvm.amdgcn.ds.bpermute(" in text:
        return True
    further = steps and not text.startswith("phi ")
    return bool(further) and any(_exchanged(one, values, steps - 1) for one in _VALUE.findall(text))


def _anchored(block: str) -> str:
    """Return a block with a use behind each product that no other product or loop of the block takes."""

    def used(product: re.Match[str]) -> str:
        line, value, kind = product.group(0, "value", "type")
        if re.search(rf"^  %.* = (?:phi .*|.*wmma.*[( ]){value}\b(?![-.$])", block, re.M):
            return line
        return f"{line}\n  call void (...) @llvm.fake.use({kind} {value})"

    return _PRODUCT.sub(used, block)


def _limited(head: str, arguments: str, tail: str) -> tuple[str, str, str]:
    """Return the parts of a kernel's first line, in which no argument past the limit is `inreg`."""
    end, kept = 0, []
    for argument in _NEXT.split(arguments):
        kind = _TYPE.match(argument)
        if kind is None:
            end = 4 * _PRELOADED + 1  # of another type: it and those behind it come from memory
        else:
            bits = int(kind["bits"] or _BITS.get(kind["name"], 0))
            size = max(8, int(kind["count"] or 1) * bits) // 8
            end = -(-end // size) * size + size
        kept.append(argument if end <= 4 * _PRELOADED else argument.replace(" inreg", ""))
    return head, ", ".join(kept), tail
