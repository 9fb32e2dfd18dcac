"""`@gluon_core.torch.op`: a function that launches kernels, as an operator of torch.

The operator is torch's, made with `torch.library`. Added are the parts that follow from
the function being one that launches (the fake, a rule for vmap), errors that name the argument, and
the checks of `checks`.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.utils import fill_defaults, is_functional_schema
from torch.autograd import forward_ad

from gluon_core.errors import did_you_mean
from gluon_torch import checks
from gluon_torch.batch import one_by_one
from gluon_torch.calls import shorten_autograd, shorten_kernel
from gluon_torch.errors import (
    MissingGradientError,
    NondeterministicError,
    OpNameError,
    OpSchemaError,
)
from gluon_torch.forward_mode import in_forward_mode, tangents_of

__all__ = ["Op", "get", "op"]

Function = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_ops: dict[str, Op] = {}


class Op:
    """An operator of torch whose implementation launches kernels; called like the function.

    Attributes:
        name: `"library::name"`; torch has it as `torch.ops.library.name`.
        function: the function it was made of.
        overload: the overload that torch calls and puts into graphs.
    """

    def __init__(self, name: str, function: Function, definition: Any, deterministic: bool):
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self.overload = definition._opoverload
        self._definition = definition
        self._deterministic = deterministic

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            tangents = tangents_of(args, kwargs)
            if tangents:
                return in_forward_mode(self.overload, tangents, args, kwargs)
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Op({self.name}{self._definition._schema})"

    def register_kernel(
        self, device_types: Union[str, Sequence[str], None], function: Optional[Function] = None
    ) -> Any:
        """Another implementation, for tensors on `device_types`; usable as a decorator.

        Raises:
            OpSchemaError: it takes other parameters.
        """
        if function is None:
            return functools.partial(self.register_kernel, device_types)
        _same_parameters("register_kernel", function, self.function)
        guarded = self._guarded(function)
        self._definition.register_kernel(device_types, guarded)
        for device_type in _each(device_types):
            shorten_kernel(self._definition, device_type, guarded)
        return function

    def register_fake(self, function: Function) -> Function:
        """Return the function that describes the results without memory: same parameters, empty tensors
        as results.

        Raises:
            OpSchemaError: it takes other parameters.
        """
        _same_parameters("fake", function, self.function)
        self._definition.register_fake(_given_all(self.overload, function))
        return function

    def register_autograd(
        self, backward: Function, *, setup_context: Optional[Function] = None
    ) -> None:
        """Register the gradient: `backward(ctx, *gradients of the results) -> one gradient per parameter`.

        Args:
            setup_context: `f(ctx, inputs, output)`, keeps the values that `backward` needs.

        Raises:
            OpSchemaError: the op writes its arguments, which torch cannot differentiate.
        """
        try:
            self._definition.register_autograd(backward, setup_context=setup_context)
        except RuntimeError as error:
            raise OpSchemaError(
                "an op that writes its arguments cannot have a gradient",
                argument="backward",
                got=self.overload._schema,
                remedy="Make one that allocates its results and returns them, launches this one's "
                "kernel, and has the gradient.",
            ) from error

    def register_autocast(self, device_type: str, dtype: torch.dtype) -> None:
        """Under `torch.autocast`, cast floating-point tensors on `device_type` to `dtype` first."""
        self._definition.register_autocast(device_type, dtype)

    def register_vmap(self, rule: Union[Function, str]) -> None:
        """Register the rule for `torch.vmap`.

        Args:
            rule: `f(info, in_dims, *args) -> (results, dimensions of the batch in them)`, or
                `"one_by_one"`: a call for each element of the batch.
        """
        if isinstance(rule, str):
            if rule != "one_by_one":
                raise OpSchemaError(
                    "unknown rule", argument="vmap", expected='a function or "one_by_one"', got=rule
                )
            rule = one_by_one(self.overload, self)
        self._definition.register_vmap(rule)

    def _guarded(self, function: Function) -> Function:
        """Return the implementation, with the checks of each call."""
        if self._deterministic:

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                if checks.wanted:
                    return checks.checked(self.overload, function, args, kwargs)
                return function(*args, **kwargs)

            return run

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if torch.are_deterministic_algorithms_enabled():
                self._complain()
            if checks.wanted:
                return checks.checked(self.overload, function, args, kwargs)
            return function(*args, **kwargs)

        return watched

    def _complain(self) -> None:
        message = f"{self.name} is declared deterministic=False"
        if torch.is_deterministic_algorithms_warn_only_enabled():
            import warnings

            warnings.warn(message, stacklevel=4)
            return
        raise NondeterministicError(
            f"{message}, and torch.use_deterministic_algorithms(True) is in force",
            remedy="Take another op, or warn_only=True.",
        )


def op(
    name: str,
    function: Optional[Function] = None,
    /,
    *,
    mutates_args: Iterable[str] = (),
    device_types: Union[str, Sequence[str], None] = None,
    schema: Optional[str] = None,
    fake: Optional[Function] = None,
    shape: Optional[Function] = None,
    backward: Optional[Function] = None,
    setup_context: Optional[Function] = None,
    autocast: Union[torch.dtype, Mapping[str, torch.dtype], None] = None,
    vmap: Union[Function, str, None] = None,
    deterministic: bool = True,
    tags: Sequence[torch.Tag] = (),
) -> Any:
    """Make an operator of torch of a function that launches kernels; usable as a decorator.

    Args:
        name: `"library::name"`.
        function: every parameter and the result annotated (`torch.Tensor`, lists of them, `int`,
            `float`, `bool`, `str`, `torch.dtype`, `torch.device`, optional ones).
        mutates_args: parameters whose tensors the kernels write.
        device_types: where this implementation works, such as `"cuda"`; None for everywhere.
        schema: in torch's words, where the annotations do not say it.
        fake: same parameters, returns empty tensors like the results.
        shape: same parameters, tells the results: a shape, `(shape, dtype)`, or a list of these, one
            for each. They are contiguous, on the device (and without dtype of that) of the first
            tensor. Without `fake` and `shape` the function itself is asked, and must then launch
            through `gluon_core.torch.launch`.
        backward: see `Op.register_autograd`.
        setup_context: likewise.
        autocast: the dtype to cast to under `torch.autocast`, or one per device type.
        vmap: see `Op.register_vmap`.
        deterministic: False if equal calls may differ, as with atomic additions of floats.
        tags: of `torch.Tag`.

    Raises:
        OpNameError: no such name can be, or torch itself has it.
        OpSchemaError: the function cannot have such a schema, or what is given disagrees with it.
    """
    if function is None:
        settings = {k: v for k, v in locals().items() if k not in ("name", "function")}
        return functools.partial(op, name, **settings)
    _check_name(name)
    if fake is not None and shape is not None:
        raise OpSchemaError("give one of fake= and shape=", argument="shape")
    if setup_context is not None and backward is None:
        raise OpSchemaError("is there for a backward, and there is none", argument="setup_context")
    written = _check_mutates(function, mutates_args)
    text = _infer(function, written, tags) if schema is None else schema
    if schema is not None:
        _check_schema(name, schema, function, written)
    definition = torch.library.custom_op(
        name,
        function,
        mutates_args=written,
        device_types=device_types,
        schema=text,
        **_tagged(tags),
    )
    new = Op(name, function, definition, deterministic)
    shorten_autograd(definition)
    new.register_kernel(device_types, function)
    if shape is not None:
        _same_parameters("shape", shape, function)
        definition.register_fake(_given_all(new.overload, _fake_of_shape(new, shape)))
    elif fake is not None:
        new.register_fake(fake)
    else:
        new.register_fake(function if new.overload._schema.returns else _nothing)
    if backward is not None:
        new.register_autograd(backward, setup_context=setup_context)
    elif is_functional_schema(new.overload._schema):
        new.register_autograd(_without_gradient(name))
    if autocast is not None:
        per_device = (
            autocast if isinstance(autocast, Mapping) else dict.fromkeys(_device_types(), autocast)
        )
        for device_type, dtype in per_device.items():
            new.register_autocast(device_type, dtype)
    if vmap is not None:
        new.register_vmap(vmap)
    _ops[name] = new
    return new


def _without_gradient(name: str) -> Function:
    """Return the backward of an op that has none."""

    def backward(ctx: Any, *grads: Any) -> Any:
        raise MissingGradientError(
            f"{name} has no gradient, and one of its results was differentiated",
            remedy="Detach the tensors that it takes, or call it under torch.no_grad(); an op of your own "
            "takes backward=.",
        )

    return backward


def get(name: str) -> Op:
    """Return the op registered under `name`.

    Raises:
        OpNameError: there is none.
    """
    known = _ops.get(name)
    if known is None:
        raise OpNameError(
            "gluon_core.torch.op defined no op of this name",
            argument="name",
            got=repr(name),
            remedy=did_you_mean(name, _ops) or "Import the module that makes it first.",
        )
    return known


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OpNameError(
            "not the name of an op",
            argument="name",
            expected='"library::name", both identifiers',
            got=repr(name),
        )
    library, _, own = name.partition("::")
    if f"{library}::{own}" not in OPDEFS and hasattr(getattr(torch.ops, library), own):
        raise OpNameError(
            "torch has an op of this name already",
            argument="name",
            got=repr(name),
            remedy="Take the name of your project as the library.",
        )


def _check_mutates(function: Function, mutates_args: Any) -> tuple[str, ...]:
    names = (mutates_args,) if isinstance(mutates_args, str) else tuple(mutates_args)
    parameters = list(inspect.signature(function).parameters)
    for name in names:
        if name not in parameters:
            raise OpSchemaError(
                f"{function.__name__} has no such parameter",
                argument="mutates_args",
                expected=" or ".join(map(repr, parameters)) or "nothing, as there are none",
                got=repr(name),
                remedy=did_you_mean(name, parameters) or None,
            )
    return names


def _each(device_types: Union[str, Sequence[str], None]) -> list[Optional[str]]:
    if device_types is None or isinstance(device_types, str):
        return [device_types]
    return list(device_types)


def _tagged(tags: Sequence[torch.Tag]) -> dict[str, Any]:
    """Return the tags as keywords: torch before 2.12 does not know them everywhere."""
    return {"tags": list(tags)} if tags else {}


def _infer(function: Function, written: tuple[str, ...], tags: Sequence[torch.Tag]) -> str:
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            raise OpSchemaError(
                "an op needs the type of each parameter",
                argument=f"{function.__name__}({name})",
                expected="an annotation such as torch.Tensor, int, float or list[torch.Tensor]",
                remedy=f"Write {name}: torch.Tensor.",
            )
    if signature.return_annotation is inspect.Signature.empty:
        raise OpSchemaError(
            "an op needs the type of its result",
            argument=function.__name__,
            expected="an annotation such as -> torch.Tensor or -> None",
        )
    try:
        inferred = torch.library.infer_schema(function, mutates_args=written, **_tagged(tags))
        return str(inferred)
    except (ValueError, TypeError, AssertionError) as error:
        raise OpSchemaError(
            f"no schema for these annotations: {str(error).split(' Got func')[0]}",
            argument=function.__name__,
            got=str(signature),
        ) from error


def _check_schema(name: str, schema: str, function: Function, written: tuple[str, ...]) -> None:
    try:
        parsed = torch._C.parse_schema(name + schema)
    except RuntimeError as error:
        raise OpSchemaError(
            f"torch cannot read it: {str(error).strip().splitlines()[0]}",
            argument="schema",
            got=schema,
        ) from error
    stated = [argument.name for argument in parsed.arguments]
    parameters = list(inspect.signature(function).parameters)
    if stated != parameters:
        raise OpSchemaError(
            f"its arguments are not the parameters of {function.__name__}",
            argument="schema",
            expected=", ".join(parameters),
            got=", ".join(stated),
        )
    marked = {
        a.name for a in parsed.arguments if a.alias_info is not None and a.alias_info.is_write
    }
    if marked != set(written):
        raise OpSchemaError(
            "the schema and mutates_args do not name the same arguments",
            argument="mutates_args",
            expected=f"{sorted(marked)}, as the schema marks them with (a!)",
            got=sorted(written),
        )


def _same_parameters(role: str, function: Function, of: Function) -> None:
    """Check that `function` can be called as `of` is."""
    wanted = inspect.signature(of).parameters
    try:
        taken = inspect.signature(function)
        positional = [p for p in wanted.values() if p.kind is not p.KEYWORD_ONLY]
        named = {p.name: None for p in wanted.values() if p.kind is p.KEYWORD_ONLY}
        taken.bind(*positional, **named)
    except TypeError as error:
        raise OpSchemaError(
            f"does not take the parameters of {of.__name__}",
            argument=role,
            expected=f"({', '.join(wanted)})",
            got=str(inspect.signature(function)),
        ) from error
    except ValueError:
        return  # a builtin, which does not tell


def _given_all(overload: Any, function: Function) -> Function:
    """Wrap `function` so that it gets the arguments that torch leaves out since they equal their defaults."""

    @functools.wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = fill_defaults(overload._schema, args, kwargs)
        return function(*args, **kwargs)

    return filled


def _fake_of_shape(op: Op, shape: Function) -> Function:
    returns = len(op.overload._schema.returns)

    def fake(*args: Any, **kwargs: Any) -> Any:
        tensors = torch.utils._pytree.tree_leaves((args, kwargs))
        first = next((t for t in tensors if isinstance(t, torch.Tensor)), None)
        if first is None:
            raise OpSchemaError(
                "the results take device and dtype of the first tensor, and there is none",
                argument="shape",
                remedy="Give fake= instead.",
            )
        shapes = shape(*args, **kwargs)
        results = [_empty(first, one) for one in (shapes if isinstance(shapes, list) else [shapes])]
        if len(results) != returns:
            raise OpSchemaError(
                f"{op.name} returns {returns} tensors, and its shape function tells {len(results)}",
                argument="shape",
            )
        return results[0] if returns == 1 else tuple(results)

    return fake


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the fake of an op without results."""


def _empty(like: torch.Tensor, shape: Any) -> torch.Tensor:
    dtype = like.dtype
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], torch.dtype):
        shape, dtype = shape
    return torch.empty(tuple(shape), dtype=dtype, device=like.device)


def _device_types() -> list[str]:
    """Return the devices where this torch has tensors: the host, and on its accelerator if it was built for one."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]
