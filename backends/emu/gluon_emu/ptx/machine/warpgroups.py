"""Products of warpgroups between their start and the wait for them: PTX ISA 9.7.15.7.

A product reads its operands in shared memory, and adds, when a warp waits for it or uses its registers; by the
schedule "eager" at once, by "random" at either time. Nobody may write the operands meanwhile. Registers get the
sums when an instruction uses them, so that products that go on with the same sums pass them on as matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Protocol, Sequence, Union

import numpy as np

from gluon_emu.errors import MissingWaitError
from gluon_emu.ptx.machine.group import LANES

__all__ = ["Operand", "Product", "Products"]

_MOST = 32  # products of a warpgroup that are under way at once


@dataclass(frozen=True)
class Operand:
    """A matrix in shared memory.

    Args:
        index: (matrices, ...), which 16 bytes of the shared memory of all blocks.
        values: (matrices, ..., 2), their words when the product started.
        sharing: warpgroups that have each matrix.
    """

    index: np.ndarray
    values: np.ndarray
    sharing: int = 1


class Form(Protocol):
    """The places of the sums of a product."""

    def matrix(self, words: np.ndarray) -> np.ndarray: ...

    def words(self, matrix: np.ndarray) -> np.ndarray: ...


class Product:
    """A product that was started.

    Args:
        group: the warps that started it.
        targets: register -> which of the sums it gets.
        operands: in shared memory.
        sums: the words before it (registers, warps, 32), or the product under way that has them; None for zero.
        form: how words (registers, warps, 32) make a matrix (warpgroups, 64, columns) of sums, and back.
        factors: `f(operands)` returns the two factors, (..., M, K) and (..., K, N).
        add: `f(factor, factor, sums)` returns the new matrix of sums.

    Attributes:
        library: whether the sums are those of a library, which may add several products in a row at once.
        adds: whether each of its sums goes on with the one before.
        order: which of the words of the product before it are its sums.
        serial: how many products were started until it.
        number: how many groups each warp had committed.
        matrix: the new sums; None as long as it is under way.
        missing: threads (warps, 32) whose registers do not have them yet.
        open: warps that have not waited.
        waited_for: whether registers of any thread are missing their values.
        over: whether nobody needs it any more.
    """

    def __init__(
        self,
        group: Any,
        targets: dict[str, int],
        operands: list[Operand],
        sums: Union["Product", np.ndarray, None],
        form: Form,
        factors: Callable[[list[Operand]], tuple[np.ndarray, np.ndarray]],
        add: Callable[[np.ndarray, np.ndarray, Optional[np.ndarray]], np.ndarray],
    ):
        self.rows, self.place = group.rows, group.pc
        self.targets = dict(targets)
        self.operands, self.sums, self.form = operands, sums, form
        self.factors, self.add = factors, add
        self.library = self.adds = False
        self.order: list[int] = []
        self.serial = 0
        if isinstance(sums, Product):  # nobody sees its own results in these registers any more
            self.order = [sums.targets.pop(name) for name in targets]
        self.number = group.machine.products.committed[self.rows]
        self.matrix: Optional[np.ndarray] = None
        self._words: Optional[np.ndarray] = None
        self.missing = np.ones((self.rows.size, LANES), bool)
        self.open = np.ones(self.rows.size, bool)
        self.waited_for, self.over = True, False

    def note(self, exited: np.ndarray) -> None:
        """Take over what changed in `missing` and `open`; threads that exited need nothing."""
        self.waited_for = bool(self.targets) and bool((self.missing & ~exited[self.rows]).any())
        self.over = not self.waited_for and not self.open.any()

    def of(self, group: Any) -> np.ndarray:
        """Return which of its warps are in a group."""
        rows, others = self.rows, group.rows
        if rows is others:
            return np.ones(rows.size, bool)
        if rows[0] > others[-1] or rows[-1] < others[0]:
            return np.zeros(rows.size, bool)
        places = np.minimum(np.searchsorted(others, rows), others.size - 1)
        return np.asarray(others[places] == rows)

    def lacking(self, group: Any) -> np.ndarray:
        """Return the threads (warps, 32) of a group that do not have its results."""
        threads: np.ndarray = self.missing & self.of(group)[:, None]
        if group.active is not None and threads.any():
            places = np.minimum(np.searchsorted(group.rows, self.rows), group.rows.size - 1)
            threads &= group.active[places]
        return threads

    def started_by(self, group: Any) -> bool:
        """Return whether its warps are those of a group, and none has its results."""
        return bool(self.missing.all()) and np.array_equal(self.rows, group.rows)

    def before(self) -> Optional["Product"]:
        return self.sums if isinstance(self.sums, Product) else None

    def joins(self, before: "Product") -> bool:
        """Return whether it can be computed together with the product that it goes on with, whose sums nobody else gets."""
        one_form = self.form == before.form and self.order == list(range(len(self.order)))
        return self.library and before.library and self.adds and one_form and not before.targets

    def run(self, earlier: Sequence["Product"] = ()) -> None:
        """Compute the sums.

        Args:
            earlier: products that it goes on with and joins, the first one first.
        """
        first = earlier[0] if earlier else self
        sums = first.sums
        if not isinstance(sums, Product):
            before = None if sums is None else self.form.matrix(sums)
        elif first.order == list(range(len(first.order))) and sums.form == self.form:
            before = sums.matrix
        else:
            before = self.form.matrix(sums.words()[first.order])
        x, y = self.factors(self.operands)
        if earlier:
            pairs = [one.factors(one.operands) for one in earlier]
            x = np.concatenate([*(pair[0] for pair in pairs), x], -1)
            y = np.concatenate([*(pair[1] for pair in pairs), y], -2)
        self.matrix = first.add(x, y, before)
        self.sums = None
        for one in earlier:
            one.matrix, one.sums = self.matrix[:0], None

    def words(self) -> np.ndarray:
        """Return the new words (registers, warps, 32) of a product that is not under way any more."""
        assert self.matrix is not None
        if self._words is None:
            self._words = self.form.words(self.matrix)
        return self._words


class Products:
    """The products that nobody has waited for, in the order of their start.

    Attributes:
        awaited: registers whose values are missing for some threads.
    """

    def __init__(self, machine: Any):
        self.machine = machine
        self.committed = np.zeros(machine.block_of.size, np.int64)
        self.under_way = np.zeros(machine.block_of.size, np.int64)  # products of each warp
        self.started: dict[int, Product] = {}
        # Four warps in a row start products together.
        row = np.arange(machine.block_of.size)
        self.fours = machine.block_of * -(-machine.warps // 4) + row % machine.warps // 4
        self.of_four: dict[int, list[Product]] = {}
        self.count = 0
        self.awaited: frozenset[str] = frozenset()
        settings = machine.settings
        self.eager = settings.schedule == "eager"
        self.random: Optional[np.random.Generator] = None
        if settings.schedule == "random":
            self.random = np.random.default_rng(settings.seed + 2)

    def start(self, group: Any, product: Product) -> None:
        self.count += 1
        self.started[self.count] = product
        product.serial = self.count
        for four in self._fours(product.rows):
            self.of_four.setdefault(four, []).append(product)
        if isinstance(product.sums, Product):
            self._tidy([product.sums])
        self.awaited |= product.targets.keys()
        self.under_way[product.rows] += 1
        if self.eager or self.random is not None and self.random.integers(2):
            self._run(group, product)
        elif self.under_way[product.rows].max() > _MOST:
            self._run(group, next(p for p in self._of(group) if p.matrix is None))

    def _fours(self, rows: np.ndarray) -> list[int]:
        fours = self.fours[rows]
        own: list[int] = fours[np.r_[True, fours[1:] != fours[:-1]]].tolist()
        return own

    def _of(self, group: Any) -> list[Product]:
        """Return the products of these warpgroups, in the order of their start."""
        of_four = self.of_four
        those = {p.serial: p for four in self._fours(group.rows) for p in of_four.get(four, ())}
        return [those[serial] for serial in sorted(those)]

    def continued(self, group: Any, targets: dict[str, int]) -> Optional[Product]:
        """Return the product under way whose sums in these registers these warps go on with.

        None: there is no such product, and the registers have their values.
        """
        for product in reversed(self._of(group)):
            if not product.targets.keys().isdisjoint(targets):
                if product.targets.keys() >= targets.keys() and product.started_by(group):
                    return product
                break
        self.settle(group, frozenset(targets))
        return None

    def touch(self, group: Any, bound: Any) -> None:
        """Give an instruction the values of the registers that it uses. A product and a copy of a register wait."""
        names = bound.touches - bound.sums
        if bound.source.statement.name == "mov" and len(bound.reads) == len(bound.writes) == 1:
            if group.mask is None and self._copied(group, *bound.reads, *bound.writes):
                return
        if names:
            self.settle(group, names)

    def _copied(self, group: Any, source: str, target: str) -> bool:
        """Let a register get the results that another one gets; return whether that can be."""
        owners = [p for p in self._of(group) if source in p.targets or target in p.targets]
        if not owners or not all(p.started_by(group) for p in owners) or source not in owners[-1].targets:  # fmt: skip
            return False
        for product in owners:
            product.targets.pop(target, None)
        owners[-1].targets[target] = owners[-1].targets[source]
        for product in owners:
            product.note(self.machine.exited)
        self.awaited |= {target}
        return True

    def settle(self, group: Any, names: frozenset[str]) -> None:
        """Give these warps the results of all products into some of the registers."""
        changed = []
        for product in self._of(group):
            if product.waited_for and not product.targets.keys().isdisjoint(names):
                chosen = product.lacking(group)
                if chosen.any():
                    self._run(group, product)
                    self._deliver(group, product, chosen)
                    changed.append(product)
        self._tidy(changed)

    def commit(self, group: Any) -> None:
        self.committed[group.rows] += 1

    def wait(self, group: Any, newest: int) -> None:
        """Finish the products of all groups but the newest ones.

        Raises:
            MissingWaitError: something wrote where a product may still have been reading.
        """
        last, waited = self.committed - newest, []
        for product in self._of(group):
            over = (product.number < last[product.rows]) & product.open
            over &= product.of(group)
            if over.any():
                if product.matrix is not None:
                    self._compare(group, product, over)
                waited.append((product, over))
        for product, _ in reversed(waited):  # the last one of a chain first, with those before it
            if product.matrix is None:
                self._run(group, product)
        for product, over in waited:
            product.open &= ~over
        self._tidy([product for product, _ in waited])

    def _tidy(self, changed: list[Product]) -> None:
        """Forget products that nobody needs any more, and their registers."""
        for product in changed:
            product.note(self.machine.exited)
            if product.over:
                del self.started[product.serial]
                for four in self._fours(product.rows):
                    self.of_four[four].remove(product)
        if changed:
            waiting = (p.targets for p in self.started.values() if p.waited_for)
            self.awaited = frozenset().union(*waiting)

    def _run(self, group: Any, product: Product) -> None:
        """Compute a product that is under way, after those that it goes on with."""
        chain = [product]
        while (before := chain[-1].before()) is not None:
            chain.append(before)
        together: list[Product] = []
        for one in reversed(chain):
            if one.matrix is None:
                self._compare(group, one, one.open)
                self.under_way[one.rows] -= 1
                if together and not one.joins(together[-1]):
                    together.pop().run(together)
                    together = []
                together.append(one)
        if together:
            together.pop().run(together)

    def _deliver(self, group: Any, product: Product, chosen: np.ndarray) -> None:
        """Write the results of some threads, all of which are in the group, to their registers."""
        if product.matrix is None or not chosen.any():
            return
        product.missing &= ~chosen
        self.machine.changes += 1
        if not product.targets:
            return
        values, before = product.words(), group.mask
        group.mask = None
        if not chosen.all() or product.rows.size != group.rows.size:
            some = chosen.any(1)
            places = np.searchsorted(group.rows, product.rows[some])
            group.mask = np.zeros((group.rows.size, LANES), bool)
            group.mask[places] = chosen[some]
            wide = np.zeros((values.shape[0], group.rows.size, LANES), values.dtype)
            wide[:, places] = values[:, some]
            values = wide
        for name, number in product.targets.items():
            group.write(name, 32, values[number])
        group.mask = before

    def _compare(self, group: Any, product: Product, warps: np.ndarray) -> None:
        """Compare the operands of some warps with the memory.

        Raises:
            MissingWaitError: something wrote there since the start.
        """
        memory = self.machine.memory
        for operand in product.operands:
            changed = memory.atoms.take(operand.index, 0) != operand.values
            if not changed.any():
                continue
            those = warps[::4].reshape(-1, operand.sharing)
            changed &= those.any(1).reshape(-1, *(1,) * (changed.ndim - 1))
            if not changed.any():
                continue
            *first, _ = np.argwhere(changed)[0]
            source = self.machine.steps[product.place].source
            atom = operand.index[tuple(first)]
            old, new = operand.values[tuple(first)], memory.atoms[atom]
            wrong = int(np.argmax(old.view(np.uint8) != new.view(np.uint8)))
            byte = (int(atom) * 16 + wrong) % memory.stride
            own = first[0] * operand.sharing + int(np.argmax(those[first[0]]))
            row = int(np.searchsorted(group.rows, product.rows[4 * own]))
            raise self.machine.report(
                MissingWaitError,
                f"byte {byte:#x} of the block's shared memory was written while the product of line {source.line} of the "
                "PTX might still read it",
                self.machine.steps[group.pc],
                group,
                (min(row, group.rows.size - 1), 0),
                "Wait with `wgmma.wait_group` before anything writes the operands; `--check` names the write.",
            )
