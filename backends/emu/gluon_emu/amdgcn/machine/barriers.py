"""Barriers of workgroups, of clusters, and named ones of gfx12: who arrived, and who may go on.

LLVM, "User Guide for AMDGPU Backend", Barriers; RDNA4 5.6. A cluster's barrier wants one arrival of each
workgroup, and all its waves may wait; a named one as many as it was set up for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["CLUSTER", "WORKGROUP", "Barriers"]

WORKGROUP, CLUSTER = -1, -3
_NAMED = 17  # 1 to 16
_ENDED = np.int64(1 << 60)


class Barriers:
    """Barriers of the resident workgroups.

    Args:
        groups: workgroups.
        waves: of a workgroup.
        cluster: workgroups of a cluster.

    Attributes:
        arrived, passed: how often each wave arrived at its workgroup's barrier, and went past it.
    """

    def __init__(self, groups: int, waves: int, cluster: int, machine: Any):
        self.machine, self.waves, self.cluster = machine, waves, cluster
        total = groups * waves
        self.arrived = np.zeros(total, np.int64)
        self.passed = np.zeros(total, np.int64)
        self.signalled = np.zeros(groups, np.int64)  # at the cluster's barrier
        self.cluster_passed = np.zeros(total, np.int64)
        # For named barriers: arrivals that complete them, arrivals, how often they were completed.
        self.members = np.zeros((groups, _NAMED), np.int64)
        self.signals = np.zeros((groups, _NAMED), np.int64)
        self.phases = np.zeros((groups, _NAMED), np.int64)
        self.named_passed = np.zeros((total, _NAMED), np.int64)

    # -- arriving ----------------------------------------------------------------------------------

    def arrive(self, b: Any, which: int, members: int = 0) -> None:
        """Let each wave of `b` arrive; a named barrier then expects `members` arrivals, 0 for as before."""
        lds, order = self.machine.lds, self.machine.order
        if which == WORKGROUP:
            self.arrived[b.waves] += 1
            parity = self.arrived[b.waves] & 1
            lds.release(b, parity)
            if order is not None:
                order.arrive(b, list(zip(b.groups.tolist(), parity.tolist())))
        elif which == CLUSTER:
            np.add.at(self.signalled, b.groups, 1)
            if order is not None:
                order.arrive(b, self._clusters(b), cluster=True)
        else:
            known = lds.done(b)
            for row, group in enumerate(b.groups):
                if members:
                    self.members[group, which] = members
                lds.arrive_at(key_of(group, which), int(b.waves[row]) % self.waves, known[:, row])
                self.signals[group, which] += 1
                if self.signals[group, which] >= self.members[group, which]:
                    self.signals[group, which] = 0
                    self.phases[group, which] += 1

    def first(self, b: Any, which: int) -> np.ndarray:
        """Which waves of `b` would be the first to arrive, bool [waves]."""
        if which == CLUSTER:
            index = b.groups // self.cluster
            counts = self.signalled.reshape(-1, self.cluster)
            early = (counts == counts.max(1, keepdims=True)).all(1)[index]
        elif which == WORKGROUP:
            index = b.groups
            grouped = self.arrived.reshape(-1, self.waves)
            early = (grouped[index] <= self.arrived[b.waves][:, None]).all(1)
        else:
            index = b.groups
            early = self.signals[index, which] == 0
        answer = np.zeros(early.size, bool)
        _, first = np.unique(index, return_index=True)
        answer[first] = early[first]
        return answer

    def set_up(self, b: Any, which: int, members: int) -> None:
        """Set the arrivals that a named barrier expects from now on to `members`."""
        self.members[b.groups, which] = members
        self.signals[b.groups, which] = 0

    def join(self, b: Any, which: int) -> None:
        """Let the waves of `b` join: they wait for completions from now on."""
        self.named_passed[b.waves, which] = self.phases[b.groups, which]

    def state(self, b: Any, which: int) -> np.ndarray:
        """Return the result of s_get_barrier_state: whether it is set up, arrivals, members."""
        if which < 0:
            members = np.full(b.waves.size, self.waves if which == WORKGROUP else self.cluster)
            grouped = self.arrived.reshape(-1, self.waves)
            came = (grouped > grouped.min(1, keepdims=True)).sum(1)[b.groups]
            if which == CLUSTER:
                counts = self.signalled.reshape(-1, self.cluster)
                came = (counts > counts.min(1, keepdims=True)).sum(1)[b.groups // self.cluster]
        else:
            members, came = self.members[b.groups, which], self.signals[b.groups, which]
        return np.asarray(1 | came << 4 | members << 12, np.uint32)

    # -- waiting -----------------------------------------------------------------------------------

    def ready(self, b: Any, which: int) -> np.ndarray:
        """Waves of `b` that may go on, bool [waves]."""
        if which == WORKGROUP:
            arrived = np.where(self.machine.ended, _ENDED, self.arrived)
            least = arrived.reshape(-1, self.waves).min(1)
            return np.asarray(least[b.groups] > self.passed[b.waves])
        if which == CLUSTER:
            gone = self.machine.ended.reshape(-1, self.waves).all(1)
            counts = np.where(gone, _ENDED, self.signalled).reshape(-1, self.cluster).min(1)
            return np.asarray(counts[b.groups // self.cluster] > self.cluster_passed[b.waves])
        return np.asarray(self.phases[b.groups, which] > self.named_passed[b.waves, which])

    def go_on(self, b: Any, which: int) -> None:
        """Let the waves of `b`, which are ready, pass the barrier."""
        order = self.machine.order
        if which == WORKGROUP:
            self.passed[b.waves] += 1
            if order is not None:
                parity = self.passed[b.waves] & 1
                order.leave(b.waves, list(zip(b.groups.tolist(), parity.tolist())))
        elif which == CLUSTER:
            self.cluster_passed[b.waves] += 1
            if order is not None:
                order.leave(b.waves, self._clusters(b))
        else:
            self.join(b, which)
            lds = self.machine.lds
            for row, group in enumerate(b.groups):
                lds.learn(key_of(group, which), b.waves[row : row + 1])

    def _clusters(self, b: Any) -> list[Any]:
        return [("cluster", one) for one in (b.groups // self.cluster).tolist()]


def key_of(group: Any, which: int) -> int:
    """Return the key of the clocks published at a named barrier, apart from addresses of barrier objects."""
    return -1 - (int(group) * _NAMED + which)


def group_of(key: int) -> int:
    """Return the workgroup of such a key."""
    return (-1 - key) // _NAMED
