"""mbarrier objects: arrivals, bytes still to come, phases, and who waits for them.

The state of an object lives beside shared memory, in one row for each byte offset that ever held one and one column for each
block of the chunk. A phase that waits for bytes completes when somebody asks for it and everything that it waits for is under
way: copies land as late as the program allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.memory import Lanes, Mask

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]

MAX_COUNT = (1 << 20) - 1
"""Most arrivals, and most bytes, that one phase can wait for (PTX ISA, "mbarrier")."""
PENDING_SHIFT = 32
"""A state token: completed phases below, arrivals that were pending above."""


class Places:
    """mbarriers named by lanes: row and column of every active lane, flat."""

    __slots__ = ("active", "column", "line", "row")

    def __init__(self, row: Index, column: Index, active: NDArray[np.bool_], line: int | None) -> None:
        self.row, self.column, self.active, self.line = row, column, active, line


class Mbarriers:
    """All mbarriers of one chunk."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.reset()

    def reset(self) -> None:
        self.row_of: dict[int, int] = {}
        self.offsets: list[int] = []
        blocks = self.machine.blocks
        self.valid = np.zeros((0, blocks), bool)
        self.count, self.pending, self.bytes, self.coming, self.phase, self.made_at, self.made_by = (
            np.zeros((0, blocks), np.int64) for _ in range(7))
        self.gathered: NDArray[np.int32] | None = None
        """(rows, blocks, actors): what arrivals hand on to those who wait for the phase they belong to."""
        self.completed: NDArray[np.int32] | None = None
        """The same, of completed phases."""
        self.waited_at: dict[int, str] = {}

    def grow(self, offsets: NDArray[np.int64]) -> None:
        new = [int(o) for o in np.unique(offsets) if int(o) not in self.row_of]
        if not new:
            return
        self.row_of |= {o: len(self.offsets) + k for k, o in enumerate(new)}
        self.offsets += new
        for name in ("valid", "count", "pending", "bytes", "coming", "phase", "made_at", "made_by"):
            table = getattr(self, name)
            setattr(self, name, np.concatenate([table, np.zeros((len(new), table.shape[1]), table.dtype)]))
        fresh = np.zeros((len(new), self.machine.blocks, self.machine.ordered.clocks.actors), np.int32)
        self.gathered = fresh if self.gathered is None else np.concatenate([self.gathered, fresh])
        self.completed = fresh.copy() if self.completed is None else np.concatenate([self.completed, fresh])

    # Finding the objects --------------------------------------------------------------------------------------------

    def places(self, raw: Lanes, offset: int, mask: Mask, what: str, line: int | None, new: bool = False,
               engine: bool = False) -> Places | None:
        """The objects at these addresses. Faults where there is none, or one that may not be initialized yet."""
        machine = self.machine
        active = np.broadcast_to(machine.active(mask), self.shape)
        if not active.any():
            return None
        at, column = machine.cmem.places(raw, active, offset, 8, what, line, engine)
        if new:
            self.grow(at)
        offsets, which = np.unique(at, return_inverse=True)
        rows = np.array([self.row_of.get(int(o), -1) for o in offsets])
        row = rows[which.reshape(-1)]
        places = Places(row, column, active, line)
        if not new:
            missing = row < 0
            if not missing.any():
                missing = ~self.valid[row, column]
            machine.cmem.refuse(missing, active, "uninitialized", f"{what} on shared memory that holds no initialized mbarrier", line)
            self.check_made(places, what)
        return places

    def check_made(self, places: Places, what: str) -> None:
        """Fault where another warp initialized the object and no barrier was passed since."""
        clocks = self.machine.ordered.clocks
        row, actor = clocks.row[places.active], clocks.actor[places.active]
        by = self.made_by[places.row, places.column]
        bad = (by != actor) & clocks.unknown(row, by, self.made_at[places.row, places.column])
        self.machine.cmem.refuse(bad, places.active, "race", f"{what} on an mbarrier that another warp initialized, with no barrier "
                                 "between", places.line)

    def of(self, value: Lanes, places: Places) -> Index:
        """An operand of every active lane."""
        return np.broadcast_to(value, self.shape)[places.active].astype(np.int64)

    # Operations -----------------------------------------------------------------------------------------------------

    def init(self, raw: Lanes, offset: int, count: Lanes, mask: Mask, line: int | None) -> None:
        places = self.places(raw, offset, mask, "mbarrier.init", line, new=True)
        if places is None:
            return
        expected = self.of(count, places)
        self.machine.cmem.refuse((expected < 1) | (expected > MAX_COUNT), places.active, "illegal_instruction",
                                 f"an mbarrier for {int(expected[0])} arrivals; 1 to {MAX_COUNT} are possible", line)
        at = places.row, places.column
        busy = self.valid[at] & (self.coming[at] > 0)
        self.machine.cmem.refuse(busy, places.active, "race", "initializes an mbarrier that bulk copies under way count on", line)
        self.valid[at] = True
        self.count[at] = self.pending[at] = expected
        self.bytes[at] = self.coming[at] = self.phase[at] = 0
        clocks = self.machine.ordered.clocks
        self.made_by[at] = clocks.actor[places.active]
        self.made_at[at] = np.broadcast_to(clocks.stamp(), self.shape)[places.active]
        self.changed()

    def invalidate(self, raw: Lanes, offset: int, mask: Mask, line: int | None) -> None:
        places = self.places(raw, offset, mask, "mbarrier.inval", line)
        if places is not None:
            self.valid[places.row, places.column] = False

    def arrive(self, raw: Lanes, offset: int, count: Lanes, expects: Lanes | None, drop: bool, d: Lanes | None, mask: Mask,
               line: int | None) -> None:
        """`mbarrier.arrive` and its kin; `expects`: bytes added to what the phase waits for; `d` receives the state before."""
        places = self.places(raw, offset, mask, "mbarrier.arrive", line)
        if places is None:
            return
        if expects is not None:
            self.expect_at(places, self.of(expects, places))
        number = self.of(count, places)
        key = places.row * self.shape[1] + places.column
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.r_[True, key[order][1:] != key[order][:-1]])
        total = np.add.reduceat(number[order], first)
        at = places.row[order[first]], places.column[order[first]]
        state = np.zeros(len(key), np.int64)
        if (total <= self.pending[at]).all():
            state[:] = self.phase[places.row, places.column] | self.pending[places.row, places.column] << PENDING_SHIFT
            self.take(places, np.arange(len(key)), number, drop)
        else:                               # more arrivals than one phase waits for: lane after lane
            length = np.diff(np.r_[first, len(key)])
            for turn in range(int(length.max())):
                lanes = order[first[length > turn] + turn]
                full = self.pending[places.row[lanes], places.column[lanes]] < number[lanes]
                if full.any():
                    self.settle(places.row[lanes[full]], places.column[lanes[full]])
                now = places.row[lanes], places.column[lanes]
                excess = np.zeros(len(key), bool)
                excess[lanes] = self.pending[now] < number[lanes]
                self.machine.cmem.refuse(excess, places.active, "divergent_barrier", "more arrivals at an mbarrier than its phase "
                                         "waits for, before the phase is complete", line)
                state[lanes] = self.phase[now] | self.pending[now] << PENDING_SHIFT
                self.take(places, lanes, number, drop)
        self.machine.gmem.fence(places.active)
        self.machine.gmem.signal(places.active, False, True)
        if d is not None:
            wide = np.zeros(self.shape, d.dtype)
            wide[places.active] = state
            np.copyto(d, wide)

    def take(self, places: Places, lanes: Index, number: Index, drop: bool) -> None:
        """These lanes (indices among the active) arrive, no more of them than the phases wait for."""
        row, column = places.row[lanes], places.column[lanes]
        np.subtract.at(self.pending, (row, column), number[lanes])
        if drop:
            np.subtract.at(self.count, (row, column), number[lanes])
        self.hand_on(places, lanes)
        self.complete(row, column)
        self.changed()

    def hand_on(self, places: Places, lanes: Index) -> None:
        """What the arriving warps know becomes part of what the phase hands on."""
        assert self.gathered is not None
        clocks = self.machine.ordered.clocks
        warp = clocks.row[places.active][lanes]
        key = (warp * len(self.offsets) + places.row[lanes]) * self.shape[1] + places.column[lanes]
        _, one = np.unique(key, return_index=True)
        rows, which = np.unique(warp[one], return_inverse=True)
        vectors = clocks.release(rows)[which.reshape(-1)]
        np.maximum.at(self.gathered, (places.row[lanes][one], places.column[lanes][one]), vectors)

    def expect(self, raw: Lanes, offset: int, expects: Lanes, sign: int, mask: Mask, line: int | None) -> None:
        """`mbarrier.expect_tx` (1) and `mbarrier.complete_tx` (-1)."""
        places = self.places(raw, offset, mask, "mbarrier.expect_tx", line)
        if places is not None:
            self.expect_at(places, sign * self.of(expects, places))
            self.complete(places.row, places.column)
            self.changed()

    def expect_at(self, places: Places, number: Index) -> None:
        np.add.at(self.bytes, (places.row, places.column), number)
        over = self.bytes[places.row, places.column] > MAX_COUNT
        self.machine.cmem.refuse(over, places.active, "illegal_instruction", f"an mbarrier that expects more than {MAX_COUNT} bytes",
                                 places.line)

    def complete(self, row: Index, column: Index) -> None:
        """Phases that wait for nothing any more are over."""
        assert self.gathered is not None and self.completed is not None
        done = (self.pending[row, column] == 0) & (self.bytes[row, column] == 0)
        if not done.any():
            return
        key = np.unique(row[done] * self.shape[1] + column[done])
        at = key // self.shape[1], key % self.shape[1]
        self.phase[at] += 1
        self.pending[at] = self.count[at]
        self.completed[at] = self.gathered[at]
        self.changed()

    def settle(self, row: Index, column: Index) -> None:
        """Complete phases to which all have arrived and whose bytes are under way: the copies land now."""
        can = (self.pending[row, column] == 0) & (self.bytes[row, column] == self.coming[row, column]) & (self.coming[row, column] > 0)
        if not can.any():
            return
        landing = np.zeros(self.phase.shape, bool)
        landing[row[can], column[can]] = True
        self.machine.bulk.land(landing)
        self.bytes[landing] = self.coming[landing] = 0
        self.complete(row[can], column[can])

    def land_engine(self, landing: NDArray[np.bool_]) -> None:
        """What the copy engine just wrote is known to those who wait for these phases."""
        assert self.gathered is not None
        clocks = self.machine.ordered.clocks
        rows, columns = np.nonzero(landing)
        self.gathered[rows, columns, clocks.engine] = clocks.stamp()[columns] + 1
        clocks.now[np.unique(clocks.cluster[columns])] += 1

    # Waiting --------------------------------------------------------------------------------------------------------

    def wait(self, raw: Lanes, offset: int, parity: bool, value: Lanes, d: Lanes, mask: Mask,
             line: int | None) -> NDArray[np.bool_] | None:
        """`test_wait` and `try_wait`: `d` says of every lane whether the phase it names is over. Returns the lanes for which it
        is not, None if there are none.
        """
        places = self.places(raw, offset, mask, "mbarrier wait", line)
        if places is None:
            return None
        self.settle(places.row, places.column)
        named = self.of(value, places)
        phase = self.phase[places.row, places.column]
        done = phase & 1 != named & 1 if parity else phase > named & (1 << PENDING_SHIFT) - 1
        wide = np.zeros(self.shape, bool)
        wide[places.active] = done
        np.copyto(d, wide)
        self.learn(places, done)
        if done.all():
            return None
        failing = np.zeros(self.shape, bool)
        failing[places.active] = ~done
        self.note(places, ~done)
        return failing

    def learn(self, places: Places, done: NDArray[np.bool_]) -> None:
        """Warps that saw a phase complete know what was done before it."""
        if not done.any():
            return
        assert self.completed is not None
        clocks = self.machine.ordered.clocks
        warp, row, column = clocks.row[places.active][done], places.row[done], places.column[done]
        _, one = np.unique((warp * len(self.offsets) + row) * self.shape[1] + column, return_index=True)
        clocks.acquire(warp[one], self.completed[row[one], column[one]])
        lanes = _spread(done, places.active)
        self.machine.ordered.warp_sync(lanes)
        self.machine.gmem.signal(lanes, True, False)

    def note(self, places: Places, waiting: NDArray[np.bool_]) -> None:
        """Remember what an mbarrier waited for when it was last asked in vain: said if nobody ever goes on."""
        row, column = int(places.row[waiting][0]), int(places.column[waiting][0])
        arrivals, expected, coming = (int(t[row, column]) for t in (self.pending, self.bytes, self.coming))
        missing = []
        if arrivals:
            missing.append(f"{arrivals} of {int(self.count[row, column])} arrivals are missing")
        if expected != coming:
            missing.append(f"it expects {expected} bytes and copies under way bring {coming}")
        if not missing:
            missing.append("the phase it names does not come: wrong parity or state")
        self.waited_at[places.line or 0] = f"mbarrier at byte {self.offsets[row]} of shared memory: " + ", ".join(missing)

    def changed(self) -> None:
        self.machine.scheduler.progress += 1

    @staticmethod
    def pending_count(state: Lanes, d: Lanes) -> None:
        """`mbarrier.pending_count`: of a state token."""
        np.copyto(d, state >> np.uint64(PENDING_SHIFT), casting="unsafe")


def _spread(values: NDArray[np.bool_], active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    lanes = np.zeros(active.shape, bool)
    lanes[active] = values
    return lanes
