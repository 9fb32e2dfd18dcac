"""Barriers, warp specialization, inline assembly: ops about threads rather than data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import tl, tl_tuple, tuple_type, unwrap
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LayoutError,
    LimitError,
    ShapeError,
    is_strict,
)
from gluon_core.features import (
    CLUSTER_BARRIER,
    CLUSTER_BARRIER_OP,
    FEW_REGISTERS,
    KERNELS_THAT_RETURN,
    PARTITION_CAPTURES,
    STRICT_UNPACKING,
    WORKERS_WITHOUT_REGISTERS,
)
from gluon_core.plugin.ops import code_generator
from gluon_core.semantic.assembly import check_assembly, check_packed
from gluon_core.semantic.base import SemanticBase, is_placeholder, shape_of, thread_counts
from gluon_core.semantic.operands import items_of
from gluon_core.values import distributed_type
from gluon_core.values.tensors import describe

__all__ = ["ControlOps", "PartitionContext"]


@dataclass(frozen=True)
class PartitionContext:
    """Tells the functions called from a worker partition how many warps run them."""

    num_warps: int

    def mangle(self) -> str:
        return f"_NW{self.num_warps}"

    def initialize_callee(self, fn: Any, builder: Any) -> None:
        fn.set_attr("ttg.num-warps", builder.get_int32_attr(self.num_warps))


class ControlOps(SemanticBase):
    # Rules of the installed release for kernels that return, and for values without a name.
    kernels_may_return: ClassVar[bool] = _triton.has(KERNELS_THAT_RETURN)
    drops_values: ClassVar[bool] = not _triton.has(STRICT_UNPACKING)

    def barrier(self, cluster: Any = False) -> None:
        if not unwrap(cluster) or self.num_ctas == 1:
            self.builder.create_barrier()
            return
        if _triton.has(CLUSTER_BARRIER_OP):
            self.builder.create_cluster_barrier()
            return
        _triton.require(CLUSTER_BARRIER, "gl.barrier(cluster=True)")
        self.builder.create_cluster_sync()

    def call(self, function: Any, *args: Any) -> Any:
        """Trace a function of the kernel's language, as a call in the kernel would."""
        return code_generator().call_JitFunction(function, list(args), {})

    def program_number(self, place: Any = None) -> Any:
        """Return the number of the program at `place`, an id for each axis; of this one by default."""
        x, y, z = place or [self.program_id(axis) for axis in range(3)]
        sides = [self.num_programs(axis) for axis in range(2)]
        planes = self.add(y, self.mul(sides[1], z, True), True)
        return self.add(x, self.mul(sides[0], planes, True), True)

    def programs(self) -> Any:
        """Return the number of programs of the launch."""
        x, y, z = (self.num_programs(axis) for axis in range(3))
        return self.mul(self.mul(x, y, True), z, True)

    def packed_asm(self, asm: Any, constraints: Any, args: Any, kinds: Any, pack: int) -> None:
        """See that inline assembly of `pack` elements names its operands."""
        self.passed += 1  # it may hold a wait
        check_packed(asm, constraints, args, kinds, pack, self.target.architecture)

    def inline_asm(
        self, asm: Any, constraints: Any, args: Any, result_types: Any, is_pure: Any
    ) -> Any:
        args = [self.to_tensor(arg) for arg in items_of(args)]
        types = [unwrap(ty) for ty in items_of(result_types)]
        for ty in types:
            if not hasattr(ty, "to_ir"):
                raise DtypeError("not a type", argument="result_types", got=describe(ty))
        self.passed += 1  # it may hold a wait
        text, registers = _text(asm, "asm"), _text(constraints, "constraints")
        check_assembly(text, registers, len(types), len(args), self.target.architecture)
        op = self.builder.create_threadwise_inline_asm(
            text,
            registers,
            [arg.handle for arg in args],
            [ty.to_ir(self.builder) for ty in types],
            bool(unwrap(is_pure)),
        )
        results = tuple(self.make_tensor(op.get_result(i), ty) for i, ty in enumerate(types))
        if not results:
            return None
        return results[0] if len(results) == 1 else results

    # -- scopes ----------------------------------------------------------------------------------

    def mark_scope(self, name: Any, begins: bool) -> None:
        """Mark the begin or the end of a span; see `gl.scope`."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ArgumentError("must be a string of one line", argument="name", got=describe(name))
        file, line = self.place()
        if begins:
            self.scopes.append((name, line))
        elif not self.scopes or self.scopes[-1][0] != name:
            raise ArgumentError(
                f"the scope {name!r} is not the innermost open one",
                argument="name",
                expected=repr(self.scopes[-1][0]) if self.scopes else "a scope that was begun",
                got=repr(name),
                remedy="End scopes in the reverse order of their begins, in the function that began "
                "them; `with gl.scope(name):` does.",
            )
        else:
            line = self.scopes.pop()[1]
        mark = getattr(self.builder, "mark_scope", None)
        if mark is not None:
            mark(name, begins, line)

    def check_scopes(self) -> None:
        """Raise unless the function, whose end this is, ended each of its spans."""
        if self.scopes:
            name, line = self.scopes[-1]
            raise ArgumentError(
                f"the scope {name!r}, begun in line {line}, has no end",
                remedy="Call gl.scope_end with its name on each path, or use `with gl.scope(name):`.",
            )

    def check_branch(self, before: list[tuple[str, int]]) -> None:
        """Raise unless the branch or the body of a loop, whose end this is, leaves the spans open that were open `before`."""
        if self.scopes == before:
            return
        ended = [one for one in before if one not in self.scopes]
        name, line = ended[-1] if ended else self.scopes[-1]
        raise ArgumentError(
            f"the scope {name!r}, begun in line {line}, "
            + ("ends inside of" if ended else "does not end in")
            + " a branch or a loop that does not always run once",
            remedy="End it in the block that begins it; `with gl.scope(name):` does.",
        )

    # -- warp specialization --------------------------------------------------------------------

    def warp_specialize(
        self, functions_and_args: Any, worker_num_warps: Any, worker_num_regs: Any, generator: Any
    ) -> Any:
        """See `gl.warp_specialize`."""
        if not self.target.limits.partitions:
            raise CapabilityError(
                "gl.warp_specialize needs warps that run different functions"
                f" ({', '.join(self.session.architectures_with_partitions())}); "
                f"target is {self.target}",
                remedy="Overlap copies and arithmetic in one function: gl.portable.pipeline, or "
                "gl.portable.async_copy some rounds ahead.",
            )
        if self.session.specialized:
            raise ArgumentError(
                "a partition cannot be cut into partitions",
                argument="functions_and_args",
                remedy="Name all functions in the outer gl.warp_specialize.",
            )
        self.session.specialized = True
        try:
            return self._warp_specialize(
                functions_and_args, worker_num_warps, worker_num_regs, generator
            )
        finally:
            self.session.specialized = False

    def _warp_specialize(
        self, functions_and_args: Any, worker_num_warps: Any, worker_num_regs: Any, generator: Any
    ) -> Any:
        (default, default_args), *workers = self._partitions(functions_and_args)
        num_warps = self._worker_counts("worker_num_warps", worker_num_warps, len(workers))
        num_regs = None
        if unwrap(worker_num_regs) is not None:
            num_regs = self._worker_counts(
                "worker_num_regs", worker_num_regs, len(workers), least=None
            )
        else:
            _triton.require(WORKERS_WITHOUT_REGISTERS, "gl.warp_specialize without worker_num_regs")
        self._check_warps(num_warps)
        if num_regs is not None:
            self._check_registers(num_warps, num_regs)
        for i, (_, args) in enumerate(workers):
            self._check_captures(args, num_warps[i], f"functions_and_args[{i + 1}]")
        builder = self.builder
        point, location = builder.get_insertion_point(), builder.get_loc()

        # The types of the op's results are known only once the default partition is generated.
        default_block = builder.new_block()
        builder.set_insertion_point_to_start(default_block)
        result = generator.call_JitFunction(default, default_args, kwargs={})
        handles: list[Any] = []
        if isinstance(result, _triton.base_value):
            result._flatten_ir(handles)
        builder.create_warp_yield(handles)
        result_types = [handle.get_type() for handle in handles]

        builder.restore_insertion_point(point)
        builder.set_loc(location)
        captures: list[Any] = []
        for _, args in workers:
            for arg in args:
                arg._flatten_ir(captures)
        op = self._create_warp_specialize(result_types, captures, num_warps)
        op.get_default_region().push_back(default_block)
        if num_regs is not None:
            op.set_requested_registers(num_regs)

        builder.create_block_with_parent(op.get_partition_op_holder(), [])
        partitions = self._create_partitions(captures, len(workers))
        capture_types = [capture.get_type() for capture in captures]
        cursor = 0
        for i, (function, args) in enumerate(workers):
            block = builder.create_block_with_parent(partitions.get_region(i), capture_types)
            arguments = [block.arg(j) for j in range(len(capture_types))]
            inner = []
            for arg in args:
                value, cursor = arg.type._unflatten_ir(arguments, cursor)
                self.session.multiples.copy(arg, value)
                inner.append(value)
            returned = generator.call_JitFunction(
                function, inner, kwargs={}, caller_context=PartitionContext(num_warps[i])
            )
            if unwrap(returned) is not None:
                self.warn(
                    f"functions_and_args[{i + 1}]: {function.__name__} returns a value, and nobody "
                    "gets the result of a worker. Store it to memory."
                )
            builder.create_warp_return()
        builder.set_insertion_point_after(op.get_operation())
        if not handles:
            return result if isinstance(result, _triton.base_value) else None
        outputs = [op.get_result(i) for i in range(len(handles))]
        return result.type._unflatten_ir(outputs, 0)[0]

    def _create_warp_specialize(
        self, types: list[Any], captures: list[Any], num_warps: list[int]
    ) -> Any:
        if _triton.has(PARTITION_CAPTURES):
            return self.builder.create_warp_specialize(types, num_warps)
        return self.builder.create_warp_specialize(types, captures, num_warps)

    def _create_partitions(self, captures: list[Any], count: int) -> Any:
        if _triton.has(PARTITION_CAPTURES):
            return self.builder.create_warp_specialize_partitions(captures, count)
        return self.builder.create_warp_specialize_partitions(count)

    @staticmethod
    def _partitions(functions_and_args: Any) -> list[tuple[Any, list[Any]]]:
        items = items_of(functions_and_args)
        if len(items) < 2:
            raise ArgumentError(
                "needs the default partition and at least one worker",
                argument="functions_and_args",
                expected="[(default, args), (worker, args), ...]",
                got=f"{len(items)} entries",
            )
        pairs = []
        for i, item in enumerate(items):
            pair = items_of(item)
            function = unwrap(pair[0]) if len(pair) == 2 else None
            if not isinstance(function, _triton.JITFunction):
                raise ArgumentError(
                    "not a pair of a @gluon.jit function and its arguments",
                    argument=f"functions_and_args[{i}]",
                    expected="(function, (arg, ...))",
                    got=describe(item),
                )
            try:
                function.signature.bind(*items_of(pair[1]))
            except TypeError as error:
                raise ArgumentError(
                    f"the arguments of {function.__name__} do not fit: {error}",
                    argument=f"functions_and_args[{i}]",
                    expected=f"{function.__name__}({', '.join(function.signature.parameters)})",
                    got=f"{len(items_of(pair[1]))} arguments",
                ) from None
            pairs.append((function, [_value(arg) for arg in items_of(pair[1])]))
        return pairs

    @staticmethod
    def _worker_counts(
        argument: str, values: Any, workers: int, least: Optional[int] = 1
    ) -> list[int]:
        counts = [unwrap(v) for v in items_of(values)]
        if len(counts) != workers or not all(
            isinstance(c, int) and (least is None or c >= least) for c in counts
        ):
            raise ArgumentError(
                f"needs one {'positive ' if least else ''}integer for each worker partition",
                argument=argument,
                expected=f"{workers} entries",
                got=counts,
            )
        return [int(c) for c in counts]

    def _check_captures(self, args: Sequence[Any], num_warps: int, argument: str) -> None:
        """Tensors that a partition is given must be laid out over its own number of warps."""
        for arg in args:
            if isinstance(arg, tl_tuple):
                self._check_captures(arg.values, num_warps, argument)
            elif getattr(type(arg), "__triton_aggregate__", False):
                fields = [getattr(arg, name) for name, _ in arg.type.fields]
                self._check_captures(fields, num_warps, argument)
            elif isinstance(arg, tl.tensor) and isinstance(arg.type, distributed_type):
                layout = arg.type.layout
                if is_placeholder(layout):
                    continue
                warps = thread_counts(layout, tuple(shape_of(arg)), is_strict())[1]
                if warps != num_warps:
                    raise LayoutError(
                        "a tensor is laid out over other warps than the partition has",
                        argument=argument,
                        expected=f"{num_warps} warps",
                        got=f"{warps}: {layout}",
                        remedy="Hand it over in shared memory.",
                    )

    def _check_warps(self, worker_warps: Sequence[int]) -> None:
        for count in worker_warps:
            if count & (count - 1):
                raise ShapeError(
                    "must be powers of two", argument="worker_num_warps", got=list(worker_warps)
                )
        total = self.num_warps + sum(worker_warps)
        limit = self.target.limits.max_warps
        if total > limit:
            raise LimitError(
                f"the partitions need {total} warps and {self.target} has {limit} per block",
                argument="worker_num_warps",
                expected=f"at most {limit - self.num_warps} in all workers",
                got=list(worker_warps),
            )
        group = self.target.limits.warp_group
        if self.num_warps % group:
            raise LimitError(
                "a kernel with partitions runs its default one on whole groups of warps",
                argument="num_warps",
                expected=f"a multiple of {group}",
                got=self.num_warps,
            )

    def _check_registers(self, worker_warps: Sequence[int], worker_regs: Sequence[int]) -> None:
        """Refuse as the compiler does; warn of numbers that it rounds or does not grant."""
        limits = self.target.limits
        least, most, step = limits.register_range
        if min(worker_regs) < least and not _triton.has(FEW_REGISTERS):
            raise LimitError(
                "a partition cannot have so few registers",
                argument="worker_num_regs",
                expected=f"{least} to {most} for each thread, in steps of {step}",
                got=list(worker_regs),
            )
        if not all(least <= count <= most for count in worker_regs):
            text = f"worker_num_regs: a thread has {least} to {most} registers; got {list(worker_regs)}"
            self.warn(f"{text}. The compiler takes the nearest number that there is.")
        elif any(count % step for count in worker_regs):
            text = f"worker_num_regs: registers come in steps of {step}; got {list(worker_regs)}"
            self.warn(f"{text}. They are rounded up.")
        # The compiler lays out the largest partitions first, and gives all warps of a group the largest
        # of their numbers.
        each = sorted(zip(worker_warps, worker_regs), key=lambda pair: -pair[0])
        warps = [
            max(least, -(-count // step) * step) for number, count in each for _ in range(number)
        ]
        group = limits.warp_group
        groups = [max(warps[i : i + group]) for i in range(0, len(warps), group)]
        size = self.target.warp_size * group
        threads = self.num_warps * self.target.warp_size + len(groups) * size
        share = min(most, limits.register_file // threads // step * step)
        left = (self.session.maxnreg or share) * threads - size * sum(groups)
        default = left // (self.num_warps * self.target.warp_size)
        if default < least:
            self.warn(
                f"worker_num_regs: the workers ask for {size * sum(groups)} registers, and "
                f"{self.target} has {share * threads} for these {threads} threads, of which the "
                f"default partition needs {least} for each of its own; got {list(worker_regs)}. "
                "The compiler ignores such a request: ask for fewer."
            )
        elif not limits.movable_registers:
            raise CapabilityError(
                f"warps of {self.target} cannot give registers to each other",
                argument="worker_num_regs",
                remedy=f"Leave it out ({WORKERS_WITHOUT_REGISTERS.releases}), "
                "or choose a target that can.",
            )


def _value(arg: Any) -> Any:
    """Return a partition argument as a value of the frontend: plain Python becomes constexpr."""
    if isinstance(arg, (list, tuple)):
        return tl_tuple([_value(item) for item in arg])
    if isinstance(arg, tl_tuple):
        values = [_value(item) for item in arg.values]
        return tl_tuple(values, tuple_type([v.type for v in values], arg.type.fields))
    return arg if isinstance(arg, _triton.base_value) else tl.constexpr(arg)


def _text(value: Any, argument: str) -> str:
    value = unwrap(value)
    if not isinstance(value, str):
        raise ArgumentError("must be a string", argument=argument, got=describe(value))
    return value
