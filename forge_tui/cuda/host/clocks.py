"""Who has heard of whose accesses: a clock vector for every warp, joined by barriers, mbarriers, atomics and signals.

Every cluster (a block alone, without clusters) has one running time. An access carries the time at which it was made.
`seen[w, x]` is the time up to which warp `w` knows the accesses of `x` to have happened: an access of `x` made at that time
or later is in no order with `w`. `x` is a warp of the cluster, or the copy engine, whose writes are known to those who waited
for them. (Vector clocks: L. Lamport 1978; for race detection FastTrack, C. Flanagan and S. Freund 2009.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Rows = NDArray[np.int64]
"""Warps of the chunk: block column times warps of a block, plus the warp's number in its block."""
Vectors = NDArray[np.int32]
"""One clock vector a row."""


class Clocks:
    """The clocks of all warps of one chunk."""

    def __init__(self, machine: Machine) -> None:
        blocks, size = machine.blocks, machine.cluster_size
        self.warps = -(-machine.threads // 32)
        self.actors = size * self.warps + 1
        self.engine = size * self.warps
        """The copy engine among the actors."""
        self.seen: Vectors = np.zeros((blocks * self.warps, self.actors), np.int32)
        self.now: NDArray[np.int32] = np.ones(blocks // size, np.int32)
        columns = np.arange(blocks)
        self.cluster = columns // size
        """Cluster of each block of the chunk."""
        warp = np.arange(machine.threads)[:, None] >> 5
        self.row: Rows = columns * self.warps + warp
        """(threads, blocks): row of each lane's warp."""
        self.actor = (columns % size * self.warps + warp).astype(np.int64)
        """(threads, blocks): each lane's warp among the actors of its cluster."""
        self.signal: Vectors = np.zeros((len(self.now), self.actors), np.int32)
        """What atomics and volatile signals hand on, one vector a cluster: more order than there is, never less."""
        self.cluster_signal: Vectors = np.zeros((len(self.now), self.actors), np.int32)
        """What the barrier of a cluster hands on."""

    def cluster_of(self, rows: Rows) -> NDArray[np.int64]:
        return self.cluster[rows // self.warps]

    def stamp(self) -> NDArray[np.int32]:
        """The time of an access made now, of each block."""
        return self.now[self.cluster]

    def rows(self, lanes: NDArray[np.bool_]) -> Rows:
        """The warps that have any of these lanes."""
        return np.unique(self.row[np.broadcast_to(lanes, self.row.shape)])

    def meet(self, columns: NDArray[np.int64]) -> None:
        """The warps of each of these blocks passed a barrier: each knows what any of them knew, and what all of them did."""
        table = self.seen.reshape(-1, self.warps, self.actors)
        joint = table[columns].max(axis=1)
        first = self.actor[0, columns]
        clusters = self.cluster[columns]
        joint[np.arange(len(columns))[:, None], first[:, None] + np.arange(self.warps)] = self.now[clusters][:, None] + 1
        table[columns] = joint[:, None, :]
        self.now[np.unique(clusters)] += 1

    def release(self, rows: Rows) -> Vectors:
        """What each of these warps hands on now: all that it knows and did. Time goes on."""
        vectors = self.seen[rows]
        clusters = self.cluster_of(rows)
        block = rows // self.warps
        own = self.actor[0, block] + rows % self.warps
        vectors[np.arange(len(rows)), own] = self.now[clusters] + 1
        self.now[np.unique(clusters)] += 1
        return vectors

    def acquire(self, rows: Rows, vectors: Vectors) -> None:
        """Each of these warps (they may repeat) learns a vector."""
        if len(rows) and len(np.unique(rows)) == len(rows):
            self.seen[rows] = np.maximum(self.seen[rows], vectors)
        else:
            np.maximum.at(self.seen, rows, vectors)

    def send(self, table: Vectors, rows: Rows) -> None:
        """Warps hand on what they know to a table with one vector a cluster."""
        np.maximum.at(table, self.cluster_of(rows), self.release(rows))

    def receive(self, table: Vectors, rows: Rows) -> None:
        self.acquire(rows, table[self.cluster_of(rows)])

    def unknown(self, row: Rows, actor: NDArray[np.int64], stamp: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether an access of `actor` at `stamp` is in no order with the warps `row`."""
        return stamp >= self.seen.reshape(-1).take(row * self.actors + actor)
