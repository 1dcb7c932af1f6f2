"""Races between blocks in global memory: who of one launch wrote or read each place, and what orders two blocks.

Blocks of a launch are in no order. Two of them may meet at a place only where neither changes it, where both update it
atomically, or where one has published its work (a fence, then an atomic or a volatile store) before the other looked (an
atomic or a volatile load). The order is kept by block and not by address: whoever looks sees all that was published
before. So code that is ordered is never called a race; two blocks that synchronize through different places may pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.lower import Kernel
from forge_tui.cuda.host.ptx import SIZES

if TYPE_CHECKING:
    from forge_tui.cuda.host.memory import Buffer
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]
Tags = NDArray[np.int32]

MANY = np.int32(0x7FFFFFFE)
"""Reader tag: several blocks. With the atomic bit: several blocks updated it atomically."""
MOST_MOMENTS = 4096
"""Publications remembered. Past it nothing is checked any more in this launch: better silent than wrong."""
SCOPES_INSIDE = {"cta", "cluster"}


class Order:
    """What blocks have published and seen, by a clock that counts accesses."""

    def __init__(self, blocks: int) -> None:
        self.clock = 0
        self.blind = False
        self.fence = np.full(blocks, -1, np.int64)
        """Of each block, when it last passed a fence."""
        self.seen = np.full(blocks, -1, np.int64)
        """Of each block, when it last looked at what others published."""
        self.published = np.full(blocks, -1, np.int64)
        """Of each block, up to when its work is published."""
        self.moments: list[int] = []
        self.history: list[NDArray[np.int64]] = []
        """`published` as it was at each of `moments`."""

    def look(self, blocks: Index) -> None:
        self.seen[blocks] = self.clock

    def publish(self, blocks: Index) -> None:
        fresh = blocks[self.fence[blocks] > self.published[blocks]]
        if not len(fresh) or self.blind:
            return
        if len(self.moments) >= MOST_MOMENTS:
            self.blind = True
            return
        self.published[fresh] = self.fence[fresh]
        self.moments.append(self.clock)
        self.history.append(self.published.copy())

    def before(self, tags: Tags, times: NDArray[np.int32], blocks: Index) -> NDArray[np.bool_]:
        """Whether what `tags` did at `times` comes before what `blocks` do now."""
        if self.blind:
            return np.ones(len(tags), bool)
        if not self.moments:
            return np.zeros(len(tags), bool)
        moment = np.searchsorted(self.moments, self.seen[blocks], "right") - 1
        history = np.stack(self.history)
        several = tags >> 1 == MANY >> 1
        known = history[np.maximum(moment, 0), np.where(several, 0, (tags >> 1) - 1)]
        known = np.where(several, history.max(axis=1)[np.maximum(moment, 0)], known)
        return (moment >= 0) & (known >= times)


class Marks:
    """The last of each kind of access to every granule of one buffer."""

    def __init__(self, count: int, timed: bool) -> None:
        self.writer = np.zeros(count, np.int32)
        self.reader = np.zeros(count, np.int32)
        self.touched = {"writer": False, "reader": False}
        """Whether anything was ever entered."""
        self.written_at = np.zeros(count if timed else 0, np.int32)
        self.read_at = np.zeros(count if timed else 0, np.int32)


class Sharing:
    """All writable buffers of one launch. Tags are (block + 1) * 2, plus 1 for an atomic; 0: nobody."""

    def __init__(self, blocks: int, granule: int, fences: bool) -> None:
        self.granule = granule
        """Smallest global access of the kernel, bytes."""
        self.order = Order(blocks) if fences else None
        self.marks: dict[str, Marks] = {}

    def of(self, buffer: Buffer) -> Marks:
        found = self.marks.get(buffer.name)
        if found is None:
            found = self.marks[buffer.name] = Marks(-(-buffer.size // self.granule) + 16, self.order is not None)
        return found

    # Accesses that form a grid: threads and blocks at even steps, no two at one place ------------------------------------

    def grid(self, machine: Machine, buffer: Buffer, start: int, steps: tuple[int, int], shape: tuple[int, int], total: int,
             store: bool) -> bool:
        """Enter an access at byte `start`, `steps` apart. False: others were there, look lane by lane."""
        marks, unit = self.of(buffer), self.granule
        if self.order is not None or start % unit or steps[0] % unit or steps[1] % unit:
            return False
        layout = ((*shape, max(1, total // unit)), np.dtype(np.int32), start // unit * 4, (*(4 * s // unit for s in steps), 4))
        tags = self.tags(machine)[None, :, None]
        for name in ("writer", "reader"):
            if marks.touched[name]:
                there = np.ndarray(layout[0], layout[1], getattr(marks, name), layout[2], layout[3])
                if there.any() and ((there != 0) & (there != tags)).any():
                    return False
        name = "writer" if store else "reader"
        marks.touched[name] = True
        np.ndarray(layout[0], layout[1], getattr(marks, name), layout[2], layout[3])[...] = tags
        return True

    # Any accesses ---------------------------------------------------------------------------------------------------------

    def load(self, machine: Machine, buffer: Buffer, at: Index, blocks: Index, total: int, fault: Callable[[str, NDArray[np.bool_]], None]) -> None:
        """Lanes of `blocks` (counted from the chunk's first) read `total` bytes at byte `at`."""
        marks = self.of(buffer)
        marks.touched["reader"] = True
        place, tag, lane = self.places(machine, at, blocks, total)
        self.check(marks.writer, marks.written_at, place, tag, "stored", lane, len(at), fault)
        several = self.unordered(marks.reader, marks.read_at, place, tag)
        marks.reader[place] = tag
        several |= marks.reader[place] != tag
        marks.reader[place[several]] = MANY
        if self.order is not None:
            marks.read_at[place] = self.order.clock

    def store(self, machine: Machine, buffer: Buffer, at: Index, blocks: Index, total: int, changes: NDArray[np.bool_],
              fault: Callable[[str, NDArray[np.bool_]], None], atomic: bool = False) -> None:
        """Lanes write. `changes`: whose value differs from what is there. Call `settle` once the values are stored."""
        marks = self.of(buffer)
        marks.touched["writer"] = True
        place, tag, lane = self.places(machine, at, blocks, total)
        self.check(marks.writer, marks.written_at, place, tag | atomic, "stored", lane, len(at), fault, changes)
        self.check(marks.reader, marks.read_at, place, tag, "read", lane, len(at), fault, changes)
        if atomic:
            several = self.unordered(marks.writer, marks.written_at, place, tag) & (marks.writer[place] & 1 == 1)
            marks.writer[place] = tag | 1
            several |= marks.writer[place] != tag | 1
            marks.writer[place[several]] = MANY | 1
        else:
            marks.writer[place] = tag
        if self.order is not None:
            marks.written_at[place] = self.order.clock

    def settle(self, machine: Machine, buffer: Buffer, at: Index, blocks: Index, total: int, lost: NDArray[np.bool_],
               fault: Callable[[str, NDArray[np.bool_]], None]) -> None:
        """`lost`: lanes whose value another lane overwrote in this very instruction: a race where that is of another block."""
        if not lost.any():
            return
        place, tag, lane = self.places(machine, at, blocks, total)
        bad = np.zeros(len(at), bool)
        bad[lane] |= self.of(buffer).writer[place] != tag
        bad &= lost
        if bad.any():
            fault("what another block stores at the same time", bad)

    def check(self, table: Tags, times: NDArray[np.int32], place: Index, tag: Tags, did: str, lane: Index, lanes: int,
              fault: Callable[[str, NDArray[np.bool_]], None], changes: NDArray[np.bool_] | None = None) -> None:
        meets = self.unordered(table, times, place, tag)
        if changes is not None:
            meets &= changes[lane]
        if meets.any():
            bad = np.zeros(lanes, bool)
            bad[lane[meets]] = True
            first = int(np.flatnonzero(meets)[0])
            other = table[place[first]] >> 1
            fault(f"what {'other blocks' if other == MANY >> 1 else f'block {other - 1}'} {did}", bad)

    def unordered(self, table: Tags, times: NDArray[np.int32], place: Index, tag: Tags) -> NDArray[np.bool_]:
        """Places that another block is entered at, which nothing orders before the block of `tag`. Two atomics need no order."""
        old = table[place]
        meets = (old != 0) & (old >> 1 != tag >> 1) & (old & tag & 1 == 0)
        if self.order is not None and meets.any():
            some = np.flatnonzero(meets)
            meets[some] = ~self.order.before(old[some], times[place[some]], (tag[some] >> 1).astype(np.int64) - 1)
        return meets

    def places(self, machine: Machine, at: Index, blocks: Index, total: int) -> tuple[Index, Tags, Index]:
        """Granules of all lanes, the tag and the lane of each."""
        first, count = at // self.granule, max(1, total // self.granule)
        if self.order is not None:
            self.order.clock += 1
        tag = self.tags(machine)[blocks]
        lane = np.arange(len(at))
        if count == 1:
            return first, tag, lane
        return (first[:, None] + np.arange(count)).reshape(-1), np.repeat(tag, count), np.repeat(lane, count)

    @staticmethod
    def tags(machine: Machine) -> Tags:
        return (machine.block_ids + 1 << 1).astype(np.int32)

    # What orders blocks ---------------------------------------------------------------------------------------------------

    def fence(self, machine: Machine, lanes: NDArray[np.bool_]) -> None:
        """Lanes passed a fence of the device's scope."""
        if self.order is not None:
            self.order.clock += 1
            self.order.fence[self.blocks(machine, lanes)] = self.order.clock

    def signal(self, machine: Machine, lanes: NDArray[np.bool_], looks: bool, publishes: bool) -> None:
        """Lanes did an atomic, or a volatile load or store."""
        if self.order is None:
            return
        self.order.clock += 1
        blocks = self.blocks(machine, lanes)
        if publishes:
            self.order.publish(blocks)
        if looks:
            self.order.look(blocks)

    @staticmethod
    def blocks(machine: Machine, lanes: NDArray[np.bool_]) -> Index:
        column = np.broadcast_to(lanes.any(axis=0), machine.blocks)
        return machine.block_ids[column]


def sharing_of(kernel: Kernel, blocks: int) -> Sharing | None:
    """What one launch of a kernel needs; None where there is a single block."""
    if blocks < 2:
        return None
    instructions = [i for block in kernel.blocks for i in block.instructions]
    sizes = [SIZES[i.type] for i in instructions if i.root in ("ld", "st", "atom", "red") and not {"shared", "local", "param"} & set(i.parts)]
    return Sharing(blocks, min([4, *sizes]), any(is_fence(i.root, i.parts) for i in instructions))


def is_fence(root: str, parts: tuple[str, ...]) -> bool:
    """Whether an instruction orders what a block did before it with what others see: fences and releases wider than the block."""
    if root == "membar":
        return "cta" not in parts
    if root == "fence":
        return "cta" not in parts and "mbarrier_init" not in parts
    if root in ("barrier", "bar"):
        return "cluster" in parts
    if root == "mbarrier":
        return "shared::cluster" in parts
    return root in ("ld", "st", "atom", "red") and bool({"release", "acq_rel", "acquire"} & set(parts)) and "cta" not in parts
