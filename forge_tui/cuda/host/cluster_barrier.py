"""The barrier of a cluster: arrivals that do not wait, and waits that take the lanes of all its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Mask = NDArray[np.bool_] | None


class ClusterBarrier:
    """`barrier.cluster` of every cluster of one chunk. Lanes that have exited are not waited for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.parked: list[tuple[int, NDArray[np.bool_], int | None]] = []
        """Block to go on to, lanes, line."""
        self.cluster = np.arange(machine.blocks) // machine.cluster_size
        self.phase = np.zeros(machine.blocks // machine.cluster_size, np.int64)
        self.arrived = np.zeros(self.shape, bool)
        """Lanes that came in the present phase."""
        self.owes = np.zeros(self.shape, bool)
        """Lanes that arrived and did not wait yet."""
        self.since = np.zeros(self.shape, np.int64)
        """Phase in which each lane arrived last."""

    def arrive(self, following: int, mask: Mask, line: int | None) -> None:
        lanes = np.broadcast_to(self.machine.active(mask), self.shape)
        if (twice := lanes & self.owes).any():
            self.machine.fault("divergent_barrier", "arrives again at the barrier of the cluster before it waited", twice, line)
        self.arrived |= lanes
        self.owes |= lanes
        np.copyto(self.since, self.phase[self.cluster], where=lanes)
        clocks = self.machine.ordered.clocks
        clocks.send(clocks.cluster_signal, clocks.rows(lanes))
        self.machine.gmem.fence(lanes)
        self.machine.gmem.signal(lanes, False, True)
        self.machine.scheduler.join(following, mask)

    def wait(self, following: int, mask: Mask, line: int | None) -> None:
        lanes = np.broadcast_to(self.machine.active(mask), self.shape)
        if (never := lanes & ~self.owes).any():
            self.machine.fault("divergent_barrier", "waits at the barrier of the cluster without having arrived", never, line)
        self.parked.append((following, lanes.copy(), line))
        self.release()

    def complete(self) -> None:
        """Phases to which all lanes have come that live are over."""
        live = np.broadcast_to(self.machine.active(None), self.shape)
        waits = (live & ~self.arrived).any(axis=0).reshape(-1, self.machine.cluster_size).any(axis=1)
        came = self.arrived.any(axis=0).reshape(-1, self.machine.cluster_size).any(axis=1)
        over = came & ~waits
        if over.any():
            self.phase += over
            self.arrived[:, over[self.cluster]] = False
            self.machine.tally.barrier(self.machine, live & over[self.cluster])

    def release(self) -> bool:
        """Let go the lanes whose phase is over. Returns whether there were any."""
        self.complete()
        parked, self.parked = self.parked, []
        moved = False
        clocks = self.machine.ordered.clocks if parked else None
        for following, lanes, line in parked:
            going = lanes & (self.phase[self.cluster] > self.since)
            if going.any():
                assert clocks is not None
                moved = True
                self.owes &= ~going
                clocks.receive(clocks.cluster_signal, clocks.rows(going))
                self.machine.ordered.warp_sync(going)
                self.machine.gmem.signal(going, True, False)
                whole = self.machine.count(going) == self.machine.live_count
                self.machine.scheduler.join(following, None if whole else going)
            if (staying := lanes & ~going).any():
                self.parked.append((following, staying, line))
        return moved

    def stuck(self) -> NoReturn:
        _, lanes, line = min(self.parked, key=lambda p: p[2] or 0)
        cluster = int(self.cluster[lanes.any(axis=0).argmax()])
        mine = self.cluster == cluster
        alive = np.broadcast_to(self.machine.active(None), self.shape) & mine
        missing = int((alive & ~self.arrived).sum())
        self.machine.fault("divergent_barrier", f"waits at the barrier of the cluster, at which {missing} of {int(alive.sum())} "
                           "threads of the cluster never arrive", lanes & mine, line)
