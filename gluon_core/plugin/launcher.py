"""From compiled kernel to launch: the kernel that a launcher gets, its calls, and kinds of arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Protocol, Union

from gluon_core.errors import ArgumentError
from gluon_core.plugin.targets import Target

__all__ = ["ArgumentKind", "Compiled", "FastLauncher", "Launcher", "checked_kind"]

Grid = tuple[int, int, int]


class Compiled(Protocol):
    """A compiled kernel (`gluon_core.compiler.CompiledKernel`), as launchers and `inspect` see it.

    Attributes:
        name: of the kernel in the machine code.
        target: of the compilation.
        asm: stage -> text or bytes.
        kernel: the result of the last stage.
        metadata: a named tuple of the options and the additions of the stages; `name`, `shared` (bytes of
            shared memory), `num_warps` and `num_ctas` at least.
        packed_metadata: (num_warps, num_ctas, shared).
        src: `src.fn` is the jit function, `src.signature` maps its parameters to their types.
        function, module: the driver's handles, which the launcher may set.
        n_regs, n_spills, n_max_threads: the driver's facts of the kernel, which it may set as well.
    """

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def asm(self) -> Mapping[str, Any]: ...
    @property
    def kernel(self) -> Any: ...
    @property
    def metadata(self) -> Any: ...
    @property
    def packed_metadata(self) -> tuple[int, int, int]: ...
    @property
    def src(self) -> Any: ...

    function: Any
    module: Any
    n_regs: Optional[int]
    n_spills: Optional[int]
    n_max_threads: int

    def signature_types(self) -> tuple[Any, ...]:
        """Return the type of each parameter in order, nested for tuples."""


class Launcher(Protocol):
    """A launch of one kernel on one device, from `Device.launcher`."""

    def __call__(self, grid: Grid, stream: int, *arguments: Any) -> Any:
        """Launch once.

        Args:
            grid: three positive sizes.
            stream: from the device's `stream_getter`.
            arguments: one for each parameter of the kernel in order, those that are constants in this
                specialization included; the tensor or array for a pointer.
        """


class FastLauncher(Launcher, Protocol):
    """An attribute that a launcher may have, so that a launch costs less. The core asks for it.

    Attributes:
        engine: the same launch in C, from `gluon_runtime.native.launch`: prepared launches, and calls that came before,
            then take no step in Python. None where C cannot make it.
    """

    engine: Any


@dataclass(frozen=True)
class ArgumentKind:
    """The passage of objects of one class into a kernel.

    A plugin names its own in `Language.argument_kinds`; a program registers one with
    `gluon_core.register_argument_kind`. Descriptors need none.

    Args:
        matches: a class, or a predicate on a value's class.
        describe: `f(value) -> (type, attributes)`: the type as in a signature, nested for tuples, and
            for each the marks `D` (divisible by 16) and `S` (into small storage), or None.
        place: `f(value) -> tensor` whose device decides where the kernel runs, or None.
    """

    matches: Union[type, Callable[[type], bool]]
    describe: Callable[[Any], tuple[Any, Any]]
    place: Optional[Callable[[Any], Any]] = None

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if not callable(part) and (name, part) != ("place", None):
                raise ArgumentError(
                    "must be a function", argument=f"ArgumentKind.{name}", got=repr(part)
                )

    def is_for(self, cls: type) -> bool:
        """Return True for the class of such values."""
        if isinstance(self.matches, type):
            return issubclass(cls, self.matches)
        return self.matches(cls)


def checked_kind(kind: Any) -> ArgumentKind:
    """Return `kind` if it is an `ArgumentKind`; ArgumentError for anything else."""
    if not isinstance(kind, ArgumentKind):
        message, expected = "not a kind of argument", "an ArgumentKind"
        raise ArgumentError(message, argument="kind", expected=expected, got=repr(kind))
    return kind
