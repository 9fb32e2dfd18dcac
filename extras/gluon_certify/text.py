"""A certificate in words."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

__all__ = ["lines"]

_HEADS = {"certified": "certified", "wrong": "wrong", "incomplete": "not certified"}


def lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a certificate, given as its JSON.

    Args:
        certificate: of `Certificate.as_json`, also read from a file or a bundle.
    """
    targets = certificate["targets"]
    names = " and ".join(one["target"] for one in targets)
    yield f"{_HEADS[certificate['verdict']]}: {certificate['file']} for {names}"
    for target in targets:
        yield f"{target['target']}: {_HEADS[target['verdict']]}"
        if not target["kernels"]:
            yield "  no kernel was launched there"
        for kernel in target["kernels"]:
            yield from (f"  {line}" for line in _kernel(kernel))
        for text in target["elsewhere"]:
            yield f"  not examined: {text}"
        if target["problem"]:
            yield f"  the program ended early: {target['problem']}"
    tools = ", ".join(f"{name} {version}" for name, version in certificate["tools"].items())
    yield f"with {tools}"
    for executor, checks in certificate["checks"].items():
        yield f"checks of {executor}: {', '.join(checks)}"
    yield f"source sha256 {certificate['digest']}, seed {certificate['seed']}"


def _kernel(kernel: Mapping[str, Any]) -> Iterator[str]:
    head = f"{kernel['name']} ({kernel['file']}:{kernel['line']}): {_HEADS[kernel['verdict']]}"
    yield head
    for launch in kernel["launches"]:
        yield from (f"  {line}" for line in _launch(launch))
    if kernel["unexamined"]:
        yield f"  {kernel['unexamined']} further launches of this form were not examined"
    for finding in kernel["findings"]:
        yield from _finding(finding)
    blame = kernel["blame"]
    if blame is not None:
        yield f"  blame: {blame['origin']}{': ' + blame['name'] if blame['name'] else ''}. {blame['words']}"
        yield from (f"    {variant}: {outcome}" for variant, outcome in blame["tried"])
    yield from (f"  {line}" for line in _evidence(kernel))


def _evidence(kernel: Mapping[str, Any]) -> Iterator[str]:
    coverage = kernel["coverage"]
    if coverage["instructions"]:
        sides = f", {coverage['taken']} of {coverage['sides']} sides of branches"
        yield (
            f"coverage: {coverage['executed']} of {coverage['instructions']} instructions"
            + (sides if coverage["sides"] else "")
        )
        yield from (f"  never executed: {text}" for text in coverage["missed"][:5])
    proof = kernel["proof"]
    if proof is not None:
        yield f"proof: {proof['verdict']}"
        yield from (f"  {line}" for line in proof["lines"])
    code = ", ".join(f"{stage} {digest[:16]}" for stage, digest in kernel["code"].items())
    if code:
        yield f"sha256: source {kernel['source'][:16]}, {code}"
    yield from (f"not modelled: {text}" for text in kernel["not_modelled"])


def _launch(launch: Mapping[str, Any]) -> Iterator[str]:
    grid = "x".join(map(str, launch["grid"]))
    yield (
        f"launch at {launch['where']}, grid {grid}, inputs {launch['inputs'][:16]}: "
        f"{_schedules('simulator', launch['simulated'])}, {_schedules('emulator', launch['emulated'])}"
    )
    same = [one for one in launch["arrays"] if not one["differing"]]
    if same:
        named = ", ".join(f"{one['name']} ({one['size']} x {one['element']})" for one in same)
        yield f"  the same bits: {named}"
    for one in launch["arrays"]:
        if one["differing"]:
            share = f"{one['worst']:.2g} of the largest"
            allowed = f"rounding explains {one['allowed']:.2g}"
            yield (
                f"  {one['name']}: {one['differing']} of {one['size']} elements differ, by up to {share} "
                f"({allowed})"
            )
    if launch["varying"]:
        names = ", ".join(launch["varying"])
        yield f"  {names}: results of the simulator depend on the schedule"


def _schedules(executor: str, orders: Sequence[str]) -> str:
    if not orders:
        return f"no run of the {executor}"
    if len(orders) == 1:
        return f"{executor}: {orders[0]}"
    return f"{executor}: {len(orders)} schedules"


def _finding(finding: Mapping[str, Any]) -> Iterator[str]:
    where = f" at {finding['file']}:{finding['line']}" if finding["file"] else ""
    under = f" (schedule {finding['schedule']})" if finding["schedule"] else ""
    kind = {"limit": "not examined", "results": "results differ"}.get(
        finding["of"], f"report of the {finding['of']}"
    )
    first, *rest = finding["message"].splitlines() or [""]
    yield f"  {kind}{where}{under}: {first}"
    yield from (f"    {line}" for line in rest[:6])
