"""Confine this process for good: resources, files, network and signals, as far as Linux offers that without root."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

__all__ = ["NOT_GUARANTEED", "PLANS", "Confinement", "Layer", "confine"]

NOT_GUARANTEED = (
    "The candidate runs in one process with the code that observes it: code written to attack that observer can forge its "
    "counts and hide calls. Results are compared in another process, which it cannot reach.",
    "A candidate can tell the judge from other callers, by its folder or by the simulator: what it does elsewhere is not seen. "
    "Behaviour on a GPU alone needs --on-gpu.",
    "A clock that the CPU offers without a call to the system (rdtsc, a spinning thread) can be read.",
    "Speculative and other side channels of shared hardware are open.",
    "Kernel bugs of this machine and of its GPU driver are outside of the judge's reach.",
)
"""Statements about the limits of the isolation, printed with every report."""

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_PATH_BENEATH = 1
_READ, _READ_FOLDER, _EXECUTE, _WRITE, _TRUNCATE, _DEVICE = 4, 8, 1, 2, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE


@dataclass(frozen=True)
class Confinement:
    """The limits of a process that runs a candidate.

    Args:
        readable: files and folders that it may read and execute.
        writable: folders, and devices, that it may write, too.
        seconds: of CPU time.
        memory: bytes of address space; None for no limit, which drivers of GPUs need.
        file_size: bytes of the largest file that it may write.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    seconds: int = 600
    memory: int | None = 16 << 30
    file_size: int = 1 << 30


@dataclass(frozen=True)
class Layer:
    """One kind of isolation.

    Args:
        name: such as "network".
        holds: whether it was established.
        text: by which means; or why not.
    """

    name: str
    holds: bool
    text: str


PLANS = (
    ("resources", "network", "files", "device"),
    ("resources", "network", "device", "files"),
    ("resources", "device", "files"),
)
"""Orders of layers and of the first use of a GPU, the strictest first: some drivers start in none but the last."""


def confine(
    limits: Confinement, plan: Sequence[str] = PLANS[0], device: Callable[[], object] = lambda: None
) -> tuple[Layer, ...]:
    """Confine this process and all that it starts; nothing can undo it.

    Call it in a process with one thread: Linux separates no user namespace from several.

    Args:
        plan: the layers in their order, and where `device` is called among them.
        device: the first use of a GPU.
    """
    layers = []
    for name in plan:
        if name == "device":
            device()
        else:
            layers.append(_layer(name, _LAYERS[name], limits))
    for name in _LAYERS:
        if name not in plan:
            layers.append(
                Layer(name, False, "not established: the GPU's driver does not start within")
            )
    return tuple(layers)


def _layer(name: str, establish: Callable[[Confinement], str], limits: Confinement) -> Layer:
    try:
        return Layer(name, True, establish(limits))
    except (OSError, ValueError) as error:
        return Layer(name, False, f"not established: {error}")


def _limit_resources(limits: Confinement) -> str:
    wishes = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, limits.file_size),
    ]
    if limits.memory is not None:
        wishes.append((resource.RLIMIT_AS, limits.memory))
    for kind, wish in wishes:
        _, hard = resource.getrlimit(kind)
        most = wish if hard == resource.RLIM_INFINITY else min(wish, hard)
        resource.setrlimit(kind, (most, most))
    memory = "" if limits.memory is None else f", {limits.memory >> 30} GiB of memory"
    return f"{limits.seconds} s of CPU time{memory}, files of {limits.file_size >> 20} MiB"


def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _leave_network(limits: Confinement) -> str:
    """Enter a network namespace without interfaces, and a user namespace to be allowed to."""
    uid, gid = os.getuid(), os.getgid()
    system = _system()
    _checked(system.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC), "unshare")
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        try:
            with open(f"/proc/self/{file}", "w") as stream:
                stream.write(text)
        except OSError:  # the namespace holds; its users are then called nobody
            continue
    return "a network namespace without interfaces"


def _restrict_files(limits: Confinement) -> str:
    """Restrict the reach of this process by Landlock: files, TCP, signals and abstract sockets."""
    system = _system()
    version = system.syscall(_CREATE_RULESET, None, 0, 1)
    _checked(version, "Landlock")
    last = 12 + (version >= 2) + (version >= 3) + (version >= 5)
    rights = (1 << (last + 1)) - 1
    if version >= 6:
        attributes = struct.pack("=QQQ", rights, 3, 3)
    elif version >= 4:
        attributes = struct.pack("=QQ", rights, 3)
    else:
        attributes = struct.pack("=Q", rights)
    rules = _checked(
        system.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset"
    )
    try:
        _allow(system, rules, limits.readable, _READ | _READ_FOLDER | _EXECUTE)
        _allow(system, rules, limits.writable, rights)
        _checked(system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
        _checked(system.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    finally:
        os.close(rules)
    also = "; no TCP" if version >= 4 else ""
    also += "; no signals to other processes" if version >= 6 else ""
    return f"Landlock, version {version}: libraries are read-only, only its own folder is writable{also}"


def _allow(system: ctypes.CDLL, rules: int, paths: Sequence[str], rights: int) -> None:
    for path in _distinct(paths):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # it is not there, so nobody reads it
            continue
        try:
            own = rights if os.path.isdir(path) else rights & _FILE_RIGHTS
            rule = struct.pack("=Qi", own, descriptor)
            _checked(
                system.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0),
                f"landlock rule for {path}",
            )
        finally:
            os.close(descriptor)


def _distinct(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if path))


_LAYERS: dict[str, Callable[[Confinement], str]] = {
    "resources": _limit_resources,
    "network": _leave_network,
    "files": _restrict_files,
}
