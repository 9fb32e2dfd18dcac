"""Define tuning tasks: a kernel with its space, how to call it, and how other processes find it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from gluon_core.errors import GluonError, did_you_mean
from gluon_tune.bench import numpy_of
from gluon_tune.errors import TuneError, TuneSpaceError
from gluon_tune.spaces import Config, Space, configs_of

__all__ = ["Reference", "Task", "find_task", "refuse_while_reading"]

PerTarget = Union[Mapping[str, Any], Callable[[Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class Task:
    """A kernel, the space to search, and the arguments to tune for.

    Args:
        kernel: the jit function, perhaps wrapped by `triton.autotune`.
        space: of `tune.space`; None takes the configurations of the `autotune` decorator.
        arguments: `f(new, **shape) -> {parameter: array or number}` in the order of the parameters;
            `new.random(shape, dtype)`, `.integers(...)` and `.empty(...)` make arrays.
        grid: `f(args, config) -> grid`, `config` with all constants and options.
        shapes: the parameters of `arguments`, one dict for each kind of call to tune for.
        fixed: constants and options that are not searched; or `f(target)` that tells them.
        default: the configuration to measure first, which others must beat; or `f(target)`.
        operands: `f(args, config) -> the kernel's arguments`, where they are not `args` as they stand.
        reference: `f(args) -> array`: the right result; configurations with another one are "bad".
        output: the parameter that holds the result.
        tolerance: relative to the largest element of the result; None for that of its dtype.
        flops, bytes_moved: `f(args, config)` or `f(args)`: the least that any implementation must do.
            Configurations that cannot beat the best even at the target's peaks are not measured.
        small: the shape to simulate, for objectives that count; the first of `shapes` by default.
    """

    kernel: Any
    arguments: Callable[..., Mapping[str, Any]]
    grid: Callable[[Mapping[str, Any], Config], Any]
    space: Optional[Space] = None
    shapes: Sequence[Mapping[str, Any]] = ({},)
    fixed: PerTarget = field(default_factory=dict)
    default: Optional[PerTarget] = None
    operands: Optional[Callable[[Mapping[str, Any], Config], Sequence[Any]]] = None
    reference: Optional[Callable[[Mapping[str, Any]], Any]] = None
    output: Optional[str] = None
    tolerance: Optional[float] = None
    flops: Optional[Callable[..., float]] = None
    bytes_moved: Optional[Callable[..., float]] = None
    small: Optional[Mapping[str, Any]] = None

    def __post_init__(self) -> None:
        if self.space is None:
            object.__setattr__(self, "space", configs_of(self.kernel))
        if (self.reference is None) != (self.output is None):
            raise TuneError("`reference` and `output` must be passed together", argument="output")
        if not self.shapes:
            raise TuneError("no shapes to tune for", argument="shapes")
        taken, options = set(self.function.arg_names), set(self.searched.values)
        for index in self.function.constexprs:
            taken.discard(self.function.arg_names[index])
        wrong = sorted(options & taken)
        if wrong:
            raise TuneSpaceError(
                f"{self.function.__name__} takes it as an argument, not as a constant",
                argument=", ".join(wrong),
                remedy="Search constexprs and compile options.",
            )

    @property
    def function(self) -> Any:
        """Return the jit function itself."""
        kernel = self.kernel
        while kernel is not None and not hasattr(kernel, "dispatcher"):
            kernel = getattr(kernel, "fn", None)
        if kernel is None:
            raise TuneError("not a kernel", argument="kernel", got=type(self.kernel).__name__)
        return kernel

    @property
    def searched(self) -> Space:
        """Return the space."""
        assert self.space is not None  # `__post_init__` sees to it
        return self.space

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def identity(self) -> str:
        """Hash of the kernel's source and of all that it refers to.

        Raises:
            TuneError: the kernel is known to this process alone.
        """
        from gluon_tune.tuned.lookup import identity_of

        digest = identity_of(self.function)
        if not digest:
            raise TuneError(
                f"{self.name} refers to values that only this process knows, so nothing can be kept for it",
                remedy="Define it at the top of a file.",
            )
        return digest

    def for_target(self, setting: Optional[PerTarget], target: Any) -> dict[str, Any]:
        """Return `fixed` or `default` for a target."""
        return dict(setting(target) if callable(setting) else setting or {})

    def whole(self, config: Config, target: Any) -> dict[str, Any]:
        """Return a configuration with the fixed values."""
        return {**self.for_target(self.fixed, target), **config}

    def start(self, target: Any) -> Optional[dict[str, Any]]:
        """Return the default configuration if it is in the space."""
        default = self.for_target(self.default, target)
        default = {name: default[name] for name in self.searched.values if name in default}
        return default if default in self.searched else None

    def values(self, args: Mapping[str, Any], config: Config) -> tuple[Any, ...]:
        """Return the kernel's arguments."""
        return tuple(args.values() if self.operands is None else self.operands(args, config))

    def difference(self, args: Mapping[str, Any], wanted: Any) -> Optional[str]:
        """Return the reason why the result is wrong; None where it is right."""
        import numpy as np

        assert self.output is not None
        raw = args[self.output]
        dtype = str(raw.dtype).rpartition(".")[2]
        tolerance = _default_tolerance(dtype) if self.tolerance is None else self.tolerance
        if hasattr(raw, "cpu") and hasattr(wanted, "cpu"):  # where they are, which is fast
            wide = raw.double() if dtype == "float64" else raw.float()
            wanted = wanted.reshape(raw.shape).to(wide)
            errors, size = (wide - wanted).abs(), raw.numel()
            largest = float(wanted.abs().max()) if size else 0.0
            count = int((~(errors <= tolerance * largest)).sum())
        else:
            got, wanted = numpy_of(raw), np.asarray(numpy_of(wanted))
            wanted = wanted.reshape(got.shape).astype(np.float64)
            errors, size = np.abs(got.astype(np.float64) - wanted), got.size
            largest = float(np.abs(wanted).max()) if size else 0.0
            count = int((~(errors <= tolerance * largest)).sum())  # NaN counts as wrong
        if not count:
            return None
        error = float(errors.max())  # NaN where any is
        relative = error / largest if largest else float("inf")
        source = f" (the default for {dtype})" if self.tolerance is None else ""
        return (
            f"{count} of {size} elements of {self.output} are wrong: the largest error is {error:.3g}, "
            f"{relative:.3g} of the largest element; the task's tolerance={tolerance:g}{source} allows "
            f"{tolerance * largest:.3g}"
        )

    def with_space(self, values: Mapping[str, Sequence[Any]]) -> Task:
        """Return the task with other values to search, by name. A parameter no longer searched has the default's value;
        constraints hold where all that they are about is still searched."""
        when = self.searched.when if set(values) >= set(self.searched.values) else None
        rest = [name for name in self.searched.values if name not in values]

        def fixed(target: Any) -> dict[str, Any]:
            default = self.for_target(self.default, target)
            kept = {name: default[name] for name in rest if name in default}
            return {**self.for_target(self.fixed, target), **kept}

        return replace(self, space=Space(values, when), fixed=fixed)


_TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}
_NARROW_TOLERANCE = 0.13  # of 8-bit floats, one step of three bits of mantissa


def _default_tolerance(dtype: str) -> float:
    """Return the largest error of sums in another order, relative to the largest element: 0 for integers."""
    return _TOLERANCES.get(dtype, _NARROW_TOLERANCE if dtype.startswith("float") else 0.0)


def of_example(example: Any, values: Optional[Mapping[str, Sequence[Any]]], shapes: Any) -> Task:
    """Return a task out of an entry of a file's `EXAMPLES`.

    Args:
        values: values to search; None for the configurations of its `triton.autotune`.
        shapes: the other parameters of its `arguments`, one dict for each kind of call.
    """
    searched = configs_of(example.kernel) if values is None else Space(values)

    def config(target: Any) -> dict[str, Any]:
        return dict(example.configure(target, True))

    def fixed(target: Any) -> dict[str, Any]:
        return {k: v for k, v in config(target).items() if k not in searched.values}

    def reference(args: Mapping[str, Any]) -> Any:
        if hasattr(args[example.output], "cpu") and example.device_reference is not None:
            return example.device_reference(args)
        return example.reference({name: numpy_of(value) for name, value in args.items()})

    def arguments(new: Any, large: bool = True, **shape: Any) -> Any:
        return example.arguments(new, large, **shape)

    tolerance = example.large_tolerance
    return Task(
        kernel=example.kernel,
        space=searched,
        arguments=arguments,
        grid=example.grid,
        shapes=shapes or ({},),
        fixed=fixed,
        default=config,
        operands=example.operands,
        reference=reference,
        output=example.output,
        tolerance=example.tolerance if tolerance is None else tolerance,
        flops=example.flops,
        bytes_moved=example.bytes_moved,
        small={"large": False},
    )


# -- in other processes --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The reference to a task, by which other processes and machines find it.

    Args:
        path: of its file.
        text: the contents of the file, for machines that do not have it.
        name: of the variable, or of the kernel of an example.
        values: values to search, where the file does not say.
        shapes: instead of the task's own.
    """

    path: str
    text: str
    name: str = ""
    values: Optional[Mapping[str, Sequence[Any]]] = None
    shapes: Optional[Sequence[Mapping[str, Any]]] = None

    @classmethod
    def to(
        cls,
        spec: str,
        values: Optional[Mapping[str, Sequence[Any]]] = None,
        shapes: Optional[Sequence[Mapping[str, Any]]] = None,
    ) -> Reference:
        """Return the task that `FILE` or `FILE:NAME` stands for.

        Raises:
            TuneError: there is no such file.
        """
        path, colon, name = spec.rpartition(":")
        if not colon or not name.isidentifier():
            path, name = spec, ""
        try:
            text = Path(path).read_text()
        except (OSError, ValueError) as error:
            raise TuneError("the file cannot be read", argument="FILE", got=str(error)) from None
        return cls(str(Path(path).resolve()), text, name, values, shapes)

    @classmethod
    def of(cls, task: Task) -> Reference:
        """Return the reference to a task in a variable of its kernel's file.

        Raises:
            TuneError: it does not.
        """
        code = task.function.fn.__code__
        scope = task.function.fn.__globals__
        names = [name for name, value in scope.items() if value is task]
        if not names or not Path(code.co_filename).is_file():
            raise TuneError(
                f"other processes cannot find the task of {task.name}",
                remedy="Keep it in a variable at the top of the kernel's file: TUNE = tune.Task(...).",
            )
        return cls(code.co_filename, Path(code.co_filename).read_text(), names[0])

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.text, self.name, self.values)).encode()).hexdigest()[:16]

    def load(self) -> Task:
        """Return the task, in this process.

        Raises:
            TuneError: the file cannot be imported, or has no such task.
        """
        task = find_task(_module(self), self)
        return task if not self.shapes else replace(task, shapes=self.shapes)


_reading: list[Path] = []


def refuse_while_reading() -> None:
    """Refuse a search that starts when its file is read: each worker would start workers.

    Raises:
        TuneError: the file of a task is being read.
    """
    if _reading:
        raise TuneError(
            f"{_reading[-1]} searches when it is read, as each worker does to find its task",
            remedy='Put the code that starts the search under: if __name__ == "__main__":',
        )


def _module(reference: Reference) -> ModuleType:
    """Return the module of a task's file; where another machine has no such file, or another one, of
    its text."""
    path = Path(reference.path)
    if not path.is_file() or path.read_text() != reference.text:
        folder = Path(tempfile.gettempdir(), f"gluon-tune-{reference.digest}")
        folder.mkdir(exist_ok=True)
        path = folder / path.name
        path.write_text(reference.text)
    name = f"gluon_file_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__gluon_text__", None) == reference.text:
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TuneError("not a Python file", argument="FILE", got=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    _reading.append(path)
    try:
        spec.loader.exec_module(module)
    except GluonError:
        raise
    except Exception as error:
        raise TuneError(
            f"{path} cannot be imported: {type(error).__name__}: {error}", argument="FILE"
        ) from error
    finally:
        _reading.remove(path)
        sys.path.remove(str(path.parent))
    vars(module)["__gluon_text__"] = reference.text
    return module


def find_task(module: ModuleType, reference: Reference) -> Task:
    """Return the task of a file: its own, or one made of an example.

    Raises:
        TuneError: there is none, or several to choose from.
    """
    tasks = {name: value for name, value in vars(module).items() if isinstance(value, Task)}
    examples = {e.kernel: e for e in getattr(module, "EXAMPLES", ())}
    named = {name: examples[v] for name, v in vars(module).items() if _hashed(v) in examples}
    known: dict[str, Any] = {**named, **tasks} if reference.name or not tasks else dict(tasks)
    name = reference.name or (next(iter(known)) if len(known) == 1 else "")
    of_kernels = {task.name: task for task in tasks.values()}
    match = known.get(name) or of_kernels.get(name)
    if match is None:
        raise TuneError(
            f"has {'several tasks' if known and not name else 'no such task' if known else 'no task'}",
            argument=reference.path,
            got=repr(name) if name else None,
            remedy=(did_you_mean(name, known) if name else None)
            or (
                f"Name one: {', '.join(f'FILE:{one}' for one in known)}."
                if known
                else "Define one: TUNE = tune.Task(kernel=..., space=tune.space(...), ...)."
            ),
        )
    if isinstance(match, Task):
        return match if reference.values is None else match.with_space(reference.values)
    if reference.values is None and not getattr(match.kernel, "configs", None):
        raise TuneSpaceError(
            f"no search space is defined for {name}",
            argument="--space",
            remedy="Give values: --space BLOCK=128,256, or write a tune.Task into the file.",
        )
    return of_example(match, reference.values, reference.shapes)


def _hashed(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return None
    return value
