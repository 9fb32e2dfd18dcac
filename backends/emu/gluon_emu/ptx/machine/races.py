"""A search for races in running PTX: PTX ISA, chapter 8.

Each access is compared with the last ones to the same memory: two of which one writes need an order, by barriers, by release
and acquire at scopes that include both, or by the wait for asynchronous work. Work of the async proxy (bulk
copies, `wgmma`) needs a proxy fence behind generic writes, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Sequence

import numpy as np

from gluon_emu.errors import MissingWaitError, RaceError
from gluon_emu.ptx.machine.clocks import CAUSAL, PROXIED, Clock
from gluon_emu.ptx.machine.fetches import Fetches
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.machine.knowledge import COLUMNS, PENDING
from gluon_emu.ptx.machine.observe import CLUSTER, DEVICE, Order, Places
from gluon_emu.ptx.machine.race_reports import refuse, refuse_used, spoken
from gluon_emu.ptx.machine.shadow import LATE, Accesses, Shadow
from gluon_emu.ptx.machine.unused import Unused
from gluon_emu.ptx.machine.words import Words
from gluon_emu.ptx.program import TYPES

__all__ = ["Races", "search"]


_MOST_UNITS = 1 << 25  # of global memory that are watched
_ACCESSES = ("ld", "ldu", "st", "atom", "red")
_STRONG = ("acquire", "release", "acq_rel", "relaxed", "volatile", "sc", "mmio")


def _pieces(arrays: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the start of each disjoint piece of memory, from the lowest address on, its place among the watched
    bytes, and their number."""
    low, bases, total, end = [], [], 0, -1
    for one in arrays.allocations:
        start, last = (one.start - arrays.low) & ~15, -(-(one.end - arrays.low) // 16) * 16
        if start > end:
            low.append(start)
            bases.append(total)
            end = start
        total += max(0, last - end)
        end = max(end, last)
    return np.array(low, np.int64), np.array(bases, np.int64), total + 16


def search(machine: Any, kind: type["Races"]) -> "Races":
    """Return a search for races of a kind on a machine, whose memory is there.

    Units of memory are as small as the code's least access, and global memory of more than 32 million units is
    left out.
    """
    units = {"shared": 16, "global": 16}
    wide = False
    for bound in machine.steps:
        statement = bound.source.statement
        words = statement.modifiers
        wide = wide or statement.name in ("fence", "membar") and "proxy" not in words
        if statement.name not in _ACCESSES:
            if statement.name == "cp" and "bulk" not in words:
                units["shared"] = min(units["shared"], 4)
            continue
        types = [TYPES[word] for word in words if word in TYPES]
        size = types[-1].bits // 8 if types else 1
        spaces = [word.partition("::")[0] for word in words]
        for space, other in (("shared", "global"), ("global", "shared")):
            if other not in spaces and not {"local", "const", "param"} & set(spaces):
                units[space] = min(units[space], max(1, size))
        strong = statement.name in ("atom", "red") or any(word in _STRONG for word in words)
        wide = wide or strong and "shared" not in spaces
    total = sum(one.data.size for one in machine.memory.arrays.allocations)
    return kind(machine, units, wide, total // units["global"] <= _MOST_UNITS)


class Races(Words):
    """The last accesses to memory, compared with each new one.

    Args:
        machine: whose events it gets.
        units: bytes of the least access to shared and to global memory.
        wide: whether anything but barriers may order threads.
        global_: whether global memory is watched, too.
    """

    def __init__(self, machine: Any, units: dict[str, int], wide: bool, global_: bool):
        super().__init__(machine, wide)
        rows = machine.block_of.size
        self.bulk_groups: dict[int, int] = {}  # thread -> committed bulk groups
        self.bulk_reads: dict[int, int] = {}  # thread -> the last group that reads shared memory
        self.committed = np.zeros(rows, np.int64)  # wgmma groups
        self.waited = np.zeros(rows, np.int64)
        self.copies: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
        self.serial = 0
        self.shared = Shadow(machine.memory.shared.size, units["shared"])
        self.fetches = Fetches(machine.fetched, self.shared, rows)
        self.unused = Unused(machine.steps, rows)
        # Disjoint pieces of global memory, and where each begins among the watched bytes.
        self.low, self.bases, total = _pieces(machine.memory.arrays)
        self.globals: Optional[Shadow] = Shadow(total, units["global"]) if global_ else None

    def access(
        self, kind: str, group: Any, places: Places, size: int, order: Optional[Order] = None
    ) -> None:
        strong = DEVICE if kind in ("atomic", "mbarrier") else 0
        if order is not None:
            strong = order.scope
        for space, address, mask in places:
            if space == "local":
                continue
            lanes = group.lanes() if mask is None else np.broadcast_to(mask, group.lanes().shape)
            address = group.full(address)
            if kind != "load":
                self.unused.executed(group, lanes)
            orders = space == "global" and strong > 0
            if orders and kind != "store":
                self._reads_words(group, address, lanes, order or Order(DEVICE))
            if space != "global" or self.globals is not None:
                self._accessed(kind, group, (space, address, size), lanes, strong)
            if orders and kind != "load":
                self._writes_words(group, address, lanes, order or Order(DEVICE), kind == "atomic")

    def _accessed(
        self,
        kind: str,
        group: Any,
        places: tuple[str, np.ndarray, int],
        lanes: np.ndarray,
        strong: int,
    ) -> None:
        """Check and record accesses of threads."""
        space, address, size = places
        row, lane = np.nonzero(lanes)
        if not row.size:
            return
        shadow, index, keep = self._units(space, address[lanes], size)
        rows, lane = group.rows[row][keep], lane[keep]
        if not index.size:
            return
        writes = kind in ("store", "atomic", "mbarrier.init")
        if writes:
            self._written(space, address[lanes], size)
        self._check(group, shadow, index, (rows, lane), (space, writes, strong), CAUSAL)
        agents = (rows * LANES + lane + 1).astype(np.int32)
        self._record(group, shadow, index, agents, self.now[rows], writes, strong)
        if kind == "load" and space == "shared" and not self._of_allocation(address[lanes]):
            self.fetches.start(self.machine.steps[group.pc], index, agents)

    def _written(self, space: str, places: np.ndarray, size: int) -> None:
        """Note that bytes of shared memory no longer hold the address that an allocation of tensor memory wrote."""
        addressed = self.machine.tensor.addressed
        if space == "shared" and addressed:
            held = [p for p in addressed if ((places < p + 4) & (places + size > p)).any()]
            addressed.difference_update(held)

    def _of_allocation(self, places: np.ndarray) -> bool:
        """Return whether a load reads the address of tensor memory, which nothing has overwritten since the allocation.

        The compiler has a barrier after it and reuses the word; Triton 3.9 does in every kernel.
        """
        addressed = self.machine.tensor.addressed
        return bool(addressed) and addressed.issuperset(np.unique(places).tolist())

    def consumed(self, group: Any, bound: Any) -> None:
        self.fetches.used(group.rows[group.lanes().any(1)], bound, self.now)

    def _units(
        self, space: str, address: np.ndarray, size: int
    ) -> tuple[Shadow, np.ndarray, np.ndarray]:
        """Return the shadow, the units of each access, and which of the accesses are watched."""
        if space == "shared":
            return self.shared, self.shared.units(address, size), np.ones(address.size, bool)
        assert self.globals is not None
        one = np.searchsorted(self.low, address, "right") - 1
        keep = one >= 0
        compact = np.where(keep, address - self.low[one] + self.bases[one], 0)
        return self.globals, self.globals.units(compact[keep], size), keep

    def _check(
        self, group: Any, shadow: Shadow, index: np.ndarray, threads: tuple[np.ndarray, np.ndarray],
        how: tuple[str, bool, int], plane: int,
    ) -> None:  # fmt: skip
        """Compare accesses with those before.

        Args:
            index: (accesses, units).
            threads: (row, lane) of each access.
            how: the space, whether it writes, its scope.
            plane: PROXIED for the async proxy.
        """
        count = index.shape[1]
        flat = index.ravel()
        rows, lanes = (np.repeat(a, count) for a in threads)
        self._ordered(group, shadow.write.of(flat), flat, (rows, lanes), how, plane, True)
        if shadow.updated:
            self._ordered(group, shadow.update.of(flat), flat, (rows, lanes), how, plane, True)
        if how[1]:
            for reads in shadow.reads:
                self._ordered(group, reads.of(flat), flat, (rows, lanes), how, plane, False)

    def _ordered(
        self, group: Any, earlier: Accesses, flat: np.ndarray, threads: tuple[np.ndarray, np.ndarray],
        how: tuple[str, bool, int], plane: int, wrote: bool,
    ) -> None:  # fmt: skip
        some = np.flatnonzero(earlier.agent)
        if not some.size:
            return
        earlier, flat = earlier.of(some), flat[some]
        rows, lanes = threads[0][some], threads[1][some]
        ok = self._covered(CAUSAL, rows, lanes, earlier)
        strong = how[2]
        if strong:
            ok |= (earlier.strong > 0) & self._includes(rows, earlier, strong)
        wrong = np.flatnonzero(~ok)
        if not wrong.size and plane == PROXIED:
            needed = earlier.agent > 0
            if not wrote:  # a load has read when something has used its value
                used = replace(earlier, epoch=earlier.later)
                over = (earlier.later > 0) & self._covered(CAUSAL, rows, lanes, used)
                needed &= (earlier.strong == LATE) & ~over
            wrong = np.flatnonzero(needed & ~self._covered(PROXIED, rows, lanes, earlier))
            if wrong.size:
                refuse(self, group, earlier.of(wrong[0]), flat[wrong[0]], (rows[wrong[0]], lanes[wrong[0]]), how, wrote, True)  # fmt: skip
            return
        if wrong.size:
            refuse_used(
                self, group, earlier.of(wrong), flat[wrong], (rows[wrong], lanes[wrong]), how, wrote
            )

    def _includes(self, rows: np.ndarray, earlier: Accesses, strong: int) -> np.ndarray:
        """Return whether the scopes of two strong accesses include each other."""
        block_of = self.machine.block_of
        other = np.where(earlier.agent > 0, earlier.agent - 1 >> 5, 0)
        least = np.minimum(earlier.strong, strong)
        here, there = block_of[rows], block_of[other]
        near = here // self.machine.cluster_size == there // self.machine.cluster_size
        return np.asarray((here == there) | near & (least >= CLUSTER) | (least >= DEVICE))

    def _record(
        self, group: Any, shadow: Shadow, index: np.ndarray, agents: np.ndarray, epochs: Any,
        writes: bool, strong: int = 0,
    ) -> None:  # fmt: skip
        count = index.shape[1]
        flat = index.ravel()
        new = Accesses(
            np.repeat(agents, count), np.repeat(np.broadcast_to(epochs, agents.shape), count),
            np.full(flat.size, group.pc, np.int32), np.full(flat.size, strong, np.int8),
            np.zeros(flat.size, np.int32),
        )  # fmt: skip
        if writes:
            kept = (
                np.flatnonzero(self._apart(new, shadow.write.of(flat), strong))
                if strong
                else flat[:0]
            )
            if kept.size:
                shadow.update.put(flat[kept], shadow.write.of(flat[kept]))
            elif shadow.updated and not strong:
                shadow.update.agent[flat] = 0
            shadow.write.put(flat, new)
            first_of = self._first_of(flat, new, shadow.write) if strong else kept
            if first_of.size:
                shadow.update.put(flat[first_of], new.of(first_of))
            shadow.updated = shadow.updated or kept.size + first_of.size > 0
            for reads in shadow.reads:
                reads.agent[flat] = 0
            return
        first, second = shadow.reads
        # A read that is not ordered before this one stays; of several in one instruction, the first and the last.
        old = first.of(flat)
        kept = np.flatnonzero(self._apart(new, old))
        if kept.size:
            second.put(flat[kept], old.of(kept))
        first.put(flat, new)
        differs = self._first_of(flat, new, first)
        if differs.size:
            second.put(flat[differs], new.of(differs))

    @staticmethod
    def _first_of(flat: np.ndarray, new: Accesses, last: Accesses) -> np.ndarray:
        """Return the accesses of one instruction to units of which another agent has the last access, the first of a unit at the
        end."""
        backwards = np.arange(flat.size)[::-1]
        differs = last.agent[flat[backwards]] != new.agent[backwards]
        return np.asarray(backwards[differs])

    def _apart(self, new: Accesses, old: Accesses, strong: int = 0) -> np.ndarray:
        """Return which of the accesses `old` do not happen before `new`; with `strong`, of those that are strong, too."""
        if (new.agent > 0).all():
            apart = ~self._covered(CAUSAL, new.agent - 1 >> 5, new.agent - 1 & 31, old)
        else:
            apart = old.agent != new.agent
        return apart & (old.agent != 0) & (old.strong > 0) if strong else apart

    def warps(self, group: Any, members: Optional[np.ndarray]) -> None:
        lanes = group.lanes()
        full = (lanes | self.machine.exited[group.rows]).all(1)
        self._converged(group.rows[full])
        for i in np.flatnonzero(~full & lanes.any(1)):
            mine = np.zeros_like(lanes)
            mine[i] = lanes[i]
            _, message = self._message(group, mine)
            self._acquire(group, mine, message)

    def arrive(self, group: Any, key: Any) -> None:
        lanes = group.lanes()
        self.fetches.released(group.rows[lanes.any(1)])
        rows, message = self._message(group, lanes)
        self._collect(key, rows, message)

    def relaxed(self, group: Any, key: Any) -> None:
        for row in group.rows[group.lanes().any(1)]:
            message = self.inits.pop(int(row), None)
            if message is not None:
                self._collect(key, np.array([row]), self._fit(message))

    def _collect(self, key: Any, rows: np.ndarray, message: Clock) -> None:
        """Add to the knowledge that arrivals at a barrier bring."""
        size = self.machine.cluster_size
        blocks = self.machine.block_of[rows]
        places = blocks // size if key == "cluster" else blocks
        order = np.argsort(places, kind="stable")
        places = places[order]
        starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
        sums = message.of(order).together(starts)
        known = self.collected.get(key)
        if known is None:
            columns = self.clock.whole.shape[2]
            known = self.collected[key] = Clock.empty(self.machine.blocks, columns)
        known.put(places[starts], known.of(places[starts]).joined(sums))

    def complete(self, key: Any, blocks: Optional[np.ndarray] = None) -> None:
        known = self.collected.get(key)
        if known is None:
            return
        if blocks is None:
            before = self.done.get(key)
            self.done[key] = known if before is None else before.joined(known)
            del self.collected[key]
            return
        some = np.flatnonzero(blocks)
        done = self.done.get(key)
        if done is None:
            done = self.done[key] = Clock.empty(*known.whole.shape[1:])
        done.put(some, known.of(some))
        known.put(some, Clock.empty(some.size, self.clock.whole.shape[2]))

    def passed(self, group: Any, key: Any) -> None:
        lanes = group.lanes()
        chosen = lanes.any(1)
        blocks = group.block[chosen]
        places = blocks // self.machine.cluster_size if key == "cluster" else blocks
        known = self.done.get(key)
        if known is None:
            return  # all arrivals were relaxed
        self._acquire(group, lanes, known.of(places))
        full = (lanes | self.machine.exited[group.rows]).all(1)
        self._converged(group.rows[full])

    def signal(self, group: Any, places: np.ndarray, releases: bool) -> None:
        lanes = group.lanes()
        if not releases:
            return
        self.fetches.released(group.rows[lanes.any(1)])
        for place in np.unique(places[lanes]):
            _, message = self._message(group, lanes & (places == place))
            one = message.together(np.array([0]))
            key = "mbarrier", int(place)
            known = self.collected.get(key)
            self.collected[key] = one if known is None else known.joined(one)

    def observed(self, group: Any, places: np.ndarray, done: np.ndarray, acquires: bool) -> None:
        if not acquires:
            return
        lanes = group.lanes() & done
        for place in np.unique(places[lanes]):
            here = lanes & (places == place)
            known = self.done.get(("mbarrier", int(place)))
            if known is not None:
                self._acquire(group, here, known)
            self._know(group, here, self._cluster_at(int(place)), ("mbarrier", int(place)), self._phase(int(place)))  # fmt: skip

    def copied(self, group: Any, task: Any, into: np.ndarray, lanes: np.ndarray, size: int) -> None:
        row, lane = np.nonzero(lanes)
        rows = group.rows[row]
        index = self.shared.units(into, size)
        self._written("shared", into, size)
        self._check(group, self.shared, index, (rows, lane), ("shared", True, 0), CAUSAL)
        self.serial += 1
        agents = np.asarray(-((self.cluster_of[rows] << COLUMNS) + PENDING) - 1, np.int32)
        self._record(group, self.shared, index, agents, (1 << 29) + self.serial, True)
        self.copies[id(task)] = (index, rows * LANES + lane, (1 << 29) + self.serial)

    def drained(self, task: Any, threads: np.ndarray) -> None:
        entry = self.copies.get(id(task))
        if entry is None:
            return
        index, owners, serial = entry
        here = np.isin(owners, threads)
        agents = (owners[here] + 1).astype(np.int32)
        self._settle(index[here], serial, agents, self.now[owners[here] >> 5])
        if here.all():
            del self.copies[id(task)]
        else:
            self.copies[id(task)] = (index[~here], owners[~here], serial)

    def _settle(self, index: np.ndarray, serial: int, agents: np.ndarray, epochs: Any) -> None:
        """Let copies be the work of agents that others can wait for."""
        count = index.shape[1]
        flat = index.ravel()
        write = self.shared.write
        mine = write.epoch[flat] == serial
        write.agent[flat[mine]] = np.repeat(agents, count)[mine]
        write.epoch[flat[mine]] = np.repeat(np.broadcast_to(epochs, agents.shape), count)[mine]

    def noted(self, group: Any, place: int, threads: np.ndarray) -> None:
        agent = self._agent(self._cluster_at(place), ("mbarrier", place))
        epoch = self._phase(place) + 1
        for key, (index, owners, serial) in list(self.copies.items()):
            here = np.isin(owners, threads)
            if here.any():
                agents = np.full(int(here.sum()), agent, np.int32)
                self._settle(index[here], serial, agents, epoch)
                self.copies[key] = (index[~here], owners[~here], serial)

    def bulk(
        self, group: Any, lane: tuple[int, int], reads: Places, writes: Places, size: int,
        barriers: Sequence[int], reduces: bool = False,
    ) -> None:  # fmt: skip
        row = int(group.rows[lane[0]])
        thread = row * LANES + lane[1]
        cluster = int(self.cluster_of[row])
        group_number = self.bulk_groups.get(thread, 0) + 1
        for i, (space, address, _) in enumerate(writes):
            if barriers:
                key: Any = ("mbarrier", barriers[i])
                agent = self._agent(self._cluster_at(barriers[i]), key)
                epoch = self._phase(barriers[i]) + 1
            else:
                agent, epoch = self._agent(cluster, ("bulk", thread)), group_number
            self._async(
                group, (row, lane[1]), (space, address, size), (agent, epoch), True, reduces
            )
        for space, address, _ in reads:
            if barriers:
                agent = self._agent(self._cluster_at(barriers[0]), ("mbarrier", barriers[0]))
                epoch = self._phase(barriers[0]) + 1
            else:
                agent, epoch = self._agent(cluster, ("bulk.read", thread)), group_number
                if space == "shared":
                    self.bulk_reads[thread] = group_number
            self._async(group, (row, lane[1]), (space, address, size), (agent, epoch), False, False)

    def _async(
        self, group: Any, thread: tuple[int, int], places: tuple[str, np.ndarray, int],
        agent: tuple[int, int], writes: bool, reduces: bool,
    ) -> None:  # fmt: skip
        space, address, size = places
        if space == "global" and self.globals is None or not address.size:
            return
        if writes:
            self._written(space, address.ravel(), size)
        shadow, index, keep = self._units(space, address.ravel(), size)
        flat = np.unique(index)[:, None]
        rows = np.full(flat.shape[0], thread[0])
        lanes = np.full(flat.shape[0], thread[1])
        strong = DEVICE if reduces else 0
        self._check(group, shadow, flat, (rows, lanes), (space, writes, strong), PROXIED)
        agents = np.full(flat.shape[0], agent[0], np.int32)
        self._record(group, shadow, flat, agents, np.int32(agent[1]), writes, strong)

    def product(self, group: Any, places: Sequence[np.ndarray], size: int) -> None:
        for i in range(group.rows.size // 4):
            rows = group.rows[4 * i : 4 * i + 4]
            cluster = int(self.cluster_of[rows[0]])
            agent = self._agent(cluster, ("wgmma", int(rows[0])))
            for matrix in places:
                index = np.unique(self.shared.units(matrix[i].ravel(), size))[:, None]
                for row in rows:
                    lanes = np.full(index.shape[0], row), np.zeros(index.shape[0], np.int64)
                    self._check(group, self.shared, index, lanes, ("shared", False, 0), PROXIED)
                agents = np.full(index.shape[0], agent, np.int32)
                self._record(
                    group, self.shared, index, agents, np.int32(self.committed[rows[0]] + 1), False
                )

    def products(self, group: Any, sums: Sequence[str], factors: Sequence[str]) -> None:
        late = np.flatnonzero(~self.ready[group.rows])
        if late.size:
            raise self.machine.report(
                RaceError,
                "no `wgmma.fence` orders the registers before the first product",
                self.machine.steps[group.pc],
                group,
                (int(late[0]), 0),
                "Put `wgmma.fence.sync.aligned` before it.",
            )
        flying, number = self.machine.flying, self.committed[group.rows] + 1
        for sign, names in ((1, sums), (-1, factors)):
            for name in names:
                if name not in flying:
                    flying[name] = np.zeros(self.committed.size, np.int64)
                flying[name][group.rows] = sign * number

    def registers(self, group: Any, bound: Any) -> None:
        flying, rows = self.machine.flying, group.rows
        statement = bound.source.statement
        if statement.name == "mov" and len(bound.reads) == len(bound.writes) == 1:
            (source,), (target,) = (
                bound.reads,
                bound.writes,
            )  # a copy is the same register once it is assembled
            if target not in flying:
                flying[target] = np.zeros(self.committed.size, np.int64)
            flying[target][rows] = flying[source][rows] if source in flying else 0
            return
        product = statement.name == "wgmma"
        for name in bound.touches & flying.keys():
            number = flying[name][rows]
            going = np.abs(number) > self.waited[rows]
            if product and name in bound.writes or name not in bound.writes:
                going &= number > 0  # factors may be read
            if product and name in bound.writes or not going.any():
                continue
            verb = "writes" if name in bound.writes else "reads"
            row = int(np.flatnonzero(going)[0])
            raise self.machine.report(
                MissingWaitError,
                f"{verb} {name}, which `wgmma.mma_async` may still {'write' if number[row] > 0 else 'read'}",
                bound,
                group,
                (row, int(np.argmax(group.lanes()[row]))),
                "Wait for the product: `wgmma.commit_group`, `wgmma.wait_group`.",
            )

    def groups(self, group: Any, kind: str, newest: Optional[int], reads: bool = False) -> None:
        if kind == "wgmma":
            if newest is None:
                self.committed[group.rows] += 1
                return
            self.waited[group.rows] = self.committed[group.rows] - newest
            flying = self.machine.flying
            for name in [n for n, number in flying.items() if (abs(number) <= self.waited).all()]:
                del flying[name]
            for row in np.unique(group.rows // 4 * 4):
                if (int(self.cluster_of[row]), ("wgmma", int(row))) in self.agents:
                    here = group.lanes() & (group.rows // 4 * 4 == row)[:, None]
                    epoch = int(self.committed[row]) - newest
                    self._know(group, here, int(self.cluster_of[row]), ("wgmma", int(row)), epoch)
            return
        if kind != "bulk":
            return
        for i, lane in np.argwhere(group.lanes()):
            row = int(group.rows[i])
            thread = row * LANES + int(lane)
            if newest is None:
                self.bulk_groups[thread] = self.bulk_groups.get(thread, 0) + 1
                continue
            epoch = self.bulk_groups.get(thread, 0) - newest
            cluster = int(self.cluster_of[row])
            here = np.zeros((group.rows.size, LANES), bool)
            here[i, lane] = True
            for key in (("bulk.read", thread), *(() if reads else (("bulk", thread),))):
                if (cluster, key) in self.agents:
                    self._know(group, here, cluster, key, epoch)

    def left(self, group: Any, lanes: np.ndarray) -> None:
        for thread, number in list(self.bulk_reads.items()):
            row, lane = thread >> 5, thread & 31
            i = np.flatnonzero(group.rows == row)
            if not i.size or not lanes[i[0], lane]:
                continue
            cluster = int(self.cluster_of[row])
            column = self._column(cluster, ("bulk.read", thread))
            if self.clock.whole[CAUSAL, row, column] < number:
                raise self.machine.report(
                    MissingWaitError,
                    "a thread ends while a copy that it started may still read shared memory",
                    self.machine.steps[group.pc],
                    group,
                    (int(i[0]), lane),
                    "Wait for the copy before the end: `cp.async.bulk.wait_group.read 0`.",
                )
            del self.bulk_reads[thread]

    def ended(self) -> None:
        for task in self.machine.agents.tasks:
            if task.kind == "bulk" and task.barrier:
                raise MissingWaitError(
                    "the kernel ends while a copy into shared memory is under way, and no thread waited for its "
                    f"mbarrier: {spoken(self.machine, task.place)}",
                    remedy="Wait for the mbarrier before the end.",
                )
