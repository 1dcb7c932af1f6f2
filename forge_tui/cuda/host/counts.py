"""What a launch did: instructions exactly, memory traffic from one block of sampled chunks, scaled to the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.classes import histogram
from forge_tui.cuda.host.costs import issues_of
from forge_tui.cuda.host.lower import Kernel
from forge_tui.cuda.host.memory import Address, Mask
from forge_tui.cuda.host.rounds import Waiting
from forge_tui.cuda.host.words import WordAddress
from forge_tui.cuda.target import InstructionClass, LaunchCounts, LineCounts, LoadStep

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

SECTOR = 32
"""Bytes the memory system moves at least."""
NEIGHBOURS = 8
"""Blocks whose warps are counted to know how many lanes of a warp take part."""
MOST_LINES = 16
"""Lines of a launch that are told apart in its record."""


class Tally:
    """Running totals of one launch."""

    def __init__(self, filename: str, kernel: Kernel) -> None:
        self.filename = filename
        self.kernel = kernel
        self.visits: dict[int, list[float]] = {}
        """Threads and warps that ran each basic block."""
        self.barriers = 0
        self.sampled_instructions = 0
        """Thread instructions of the sampled blocks: what the traffic below belongs to."""
        self.sampled_blocks = 0
        self.requests = self.sectors = self.least = self.bytes = self.shared_requests = self.shared_waves = 0
        self.store_sectors = self.async_sectors = 0
        self.branches = self.divergent = self.atomics = self.atomic_passes = self.hottest = 0
        self.waiting = Waiting(kernel)
        self.touched: dict[str, list[NDArray[np.int64]]] = {"load": [], "store": [], "common": []}
        """Sectors that the sampled block of the present chunk touched; `common`: loads whose address another block has as well."""
        self.footprint = {"load": 0, "store": 0, "common": 0}
        self.footprints = 0
        """Sampled blocks whose distinct sectors are added up in `footprint`."""
        self.lines: dict[tuple[str, int], list[int]] = {}
        """Requests, passes, least passes and the most of one request, by kind and line."""

    def executed(self, machine: Machine, index: int, size: int, lanes: int, mask: Mask) -> None:
        """Basic block `index`, of `size` instructions, ran for `lanes` lanes, those of `mask` (None: all)."""
        warps = -(-machine.threads // 32)
        column = _column(machine)
        count, here = machine.threads, warps
        if mask is None:
            ran: float = warps * machine.blocks
        else:
            mine = mask[:, column if mask.shape[1] > 1 else 0]
            count = int(np.count_nonzero(mine)) * (machine.threads // len(mine))
            here = warps if len(mine) == 1 else _warps_of(mine)
            if len(mine) == 1 or mask.shape[1] == 1:
                ran = here * (int(np.count_nonzero(mask)) if len(mine) == 1 and mask.shape[1] > 1 else machine.blocks)
            else:
                several = mask[:, column:column + NEIGHBOURS]      # blocks differ: one of a row's end has few lanes in as many warps
                seen = int(np.count_nonzero(several))
                ran = _warps_of(several) * lanes / seen if seen else -(-lanes // 32)
        if machine.sampling:
            self.sampled_instructions += size * count
            if count:
                self.waiting.ran(index, here)
        found = self.visits.setdefault(index, [0, 0])
        found[0] += lanes
        found[1] += ran

    def barrier(self, machine: Machine, mask: Mask) -> None:
        """A barrier let the blocks of `mask` (None: all) go."""
        self.barriers += machine.blocks if mask is None else int(np.count_nonzero(mask.any(axis=0)))

    # The sampled block ------------------------------------------------------------------------------------------------

    def lanes(self, machine: Machine, raw: np.ndarray, whole: Mask) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Values of the sampled block as (warps, 32), absent lanes repeating a present one, and who is present; warps with
        nobody left out. None: nobody at all."""
        column = _column(machine)
        values = np.broadcast_to(raw[:, column if raw.shape[1] > 1 else 0], (machine.threads,)).astype(np.int64)
        active = np.ones(machine.threads, bool)
        if whole is not None:
            active = np.broadcast_to(whole[:, column if whole.shape[1] > 1 else 0], (machine.threads,))
        missing = -machine.threads % 32
        if missing:
            values = np.concatenate([values, np.zeros(missing, np.int64)])
            active = np.concatenate([active, np.zeros(missing, bool)])
        values, active = values.reshape(-1, 32), active.reshape(-1, 32)
        present = active.any(axis=1)
        if not present.any():
            return None
        values, active = values[present], active[present]
        if not active.all():
            values = np.where(active, values, np.take_along_axis(values, active.argmax(axis=1)[:, None], 1))
        return values, active

    def at(self, kind: str, line: int | None, passes: NDArray[np.int64], least: NDArray[np.int64] | int = 1) -> None:
        """Requests of one line: what each took, and the least it could have."""
        if line is None or not len(passes):
            return
        found = self.lines.setdefault((kind, line), [0, 0, 0, 0])
        found[0] += len(passes)
        found[1] += int(passes.sum())
        found[2] += int(least.sum()) if isinstance(least, np.ndarray) else least * len(passes)
        found[3] = max(found[3], int(passes.max()))

    def global_access(self, machine: Machine, address: Address, offset: int, total: int, what: str, line: int | None) -> None:
        """One warp-wide access: the 32-byte sectors its lanes touch."""
        sample = self.lanes(machine, address.raw, address.lanes)
        if sample is None:
            return
        places = np.sort(sample[0] + offset, axis=1)
        first = places // SECTOR
        sectors = 1 + (first[:, 1:] != first[:, :-1]).sum(axis=1) + (total > SECTOR)
        least = -(-total * (1 + (places[:, 1:] != places[:, :-1]).sum(axis=1)) // SECTOR)
        least = np.minimum(least, sectors)
        self.requests += len(places)
        self.sectors += int(sectors.sum())
        self.least += int(least.sum())
        self.bytes += total * int(sample[1].sum())
        self.store_sectors += int(sectors.sum()) if what.endswith(("store", "atomic")) else 0
        kind = "store" if what.endswith("store") else "load"
        self.touched[kind].append(np.unique(first))
        raw = address.raw
        if kind == "load" and machine.blocks > 1 and (raw.shape[1] == 1 or np.array_equal(raw[:, 0], raw[:, _column(machine)])):
            self.touched["common"].append(self.touched[kind][-1])
        self.at(what, line, sectors, least)

    def shared_access(self, machine: Machine, address: WordAddress, offset: int, total: int, what: str, line: int | None) -> None:
        """One warp-wide access: passes over the 32 banks, lanes of one word sharing a pass; wide items go in parts of a warp."""
        sample = self.lanes(machine, address.rel, address.lanes)
        if sample is None:
            return
        words = (sample[0] + offset) >> 2
        wide = max(1, total // 4)
        part = 32 // wide             # 8-byte items: half a warp a pass, 16-byte items: a quarter
        self.shared_requests += len(words) * wide
        words = (words[:, :, None] + np.arange(wide)).reshape(-1, part * wide)
        words = np.sort(words, axis=1)
        fresh = np.ones(words.shape, bool)
        fresh[:, 1:] = words[:, 1:] != words[:, :-1]
        bank = (np.arange(len(words))[:, None] * 32 + (words & 31))[fresh]
        waves = np.bincount(bank, minlength=len(words) * 32).reshape(-1, 32).max(axis=1)
        self.shared_waves += int(waves.sum())
        self.at(f"shared {what}", line, waves)

    def branch(self, machine: Machine, mask: Mask, taken: np.ndarray | None, line: int | None) -> None:
        """Warps came to a conditional branch. `taken`: who goes there; None: all go the same way."""
        if not machine.sampling:
            return
        sample = self.lanes(machine, np.zeros((1, 1)) if taken is None else taken, machine.live if mask is None else mask)
        if sample is None:
            return
        split = (sample[0] != sample[0][:, :1]).any(axis=1)
        self.branches += len(split)
        self.divergent += int(split.sum())
        self.at("branch", line, split.astype(np.int64), 0)

    def atomic(self, machine: Machine, index: NDArray[np.int64], lanes: NDArray[np.bool_], line: int | None) -> None:
        """An atomic of `lanes` on the items `index`: how many of a warp, and of all, meet at one address."""
        places = np.full(lanes.shape, -1)
        places[lanes] = index
        sample = self.lanes(machine, places, lanes)
        if sample is None:
            return
        ordered = np.sort(np.where(sample[1], sample[0], -1 - np.arange(32)), axis=1)
        queue = np.ones(len(ordered), np.int64)
        run = queue.copy()
        for column in range(1, 32):
            run = np.where(ordered[:, column] == ordered[:, column - 1], run + 1, 1)
            queue = np.maximum(queue, run)
        self.atomics += len(queue)
        self.atomic_passes += int(queue.sum())
        self.hottest += int(np.unique(index, return_counts=True)[1].max(initial=0))
        self.at("atomic", line, queue)

    def bulk(self, machine: Machine, lanes: np.ndarray, size: int, kind: str = "load") -> None:
        """Lanes issued bulk copies of `size` bytes from (`load`) or to (`store`) global memory, each whole sectors."""
        if machine.sampling:
            copies = int(np.count_nonzero(np.broadcast_to(lanes, (machine.threads, machine.blocks))[:, _column(machine)]))
            self.requests += copies
            self.sectors += copies * -(-size // SECTOR)
            self.async_sectors += copies * -(-size // SECTOR)
            self.store_sectors += copies * -(-size // SECTOR) if kind == "store" else 0
            self.least += copies * -(-size // SECTOR)
            self.bytes += copies * size
            self.footprint[kind] += copies * -(-size // SECTOR)

    def far_access(self, machine: Machine, lanes: np.ndarray, total: int) -> None:
        """One access to shared memory of other blocks: as many passes as its bytes need."""
        if machine.sampling:
            count = int(np.count_nonzero(lanes[:, _column(machine)]))
            passes = -(-count * total // 128)
            self.shared_requests += passes
            self.shared_waves += passes

    def sampled(self) -> None:
        """A sampled chunk has ended: what its block touched, each sector once."""
        for kind, found in self.touched.items():
            if found:
                self.footprint[kind] += len(np.unique(np.concatenate(found)))
                found.clear()
        self.footprints += 1
        self.waiting.flying.clear()

    # The record -------------------------------------------------------------------------------------------------------

    def result(self, blocks: int, threads: int, dynamic_shared: int, memory_bytes: int, cluster: int = 1) -> LaunchCounts:
        """The record of the whole launch of `blocks` blocks of `threads` threads. memory_bytes: of all its buffers."""
        once = {kind: round(count * blocks / max(1, self.footprints)) for kind, count in self.footprint.items()}
        memory = -(-memory_bytes // SECTOR)
        common = once["load"] - min(once["load"] - once["common"], memory)
        classes = self.classes()
        by_threads = sum(c.threads for c in classes)
        scale = by_threads / self.sampled_instructions if self.sampled_instructions else 0.0
        sizes = [len(block.instructions) for block in self.kernel.blocks]
        warps = sum(sizes[index] * ran for index, (_, ran) in self.visits.items())
        machine = issues_of(self.kernel)
        issued = sum(machine[index] * ran for index, (_, ran) in self.visits.items())
        lines = [LineCounts(line, kind, *(round(n * scale) for n in found[:3]), found[3]) for (kind, line), found in self.lines.items()]
        lines.sort(key=lambda c: (c.least - c.passes, c.line))
        return LaunchCounts(
            kernel=self.kernel.name, blocks=blocks, threads=threads, thread_instructions=by_threads,
            warp_instructions=round(warps), global_requests=round(self.requests * scale),
            global_sectors=round(self.sectors * scale), global_bytes=round(self.bytes * scale),
            shared_requests=round(self.shared_requests * scale), shared_waves=round(self.shared_waves * scale),
            barriers=self.barriers, shared_bytes=self.kernel.static_shared + dynamic_shared, global_least=round(self.least * scale),
            branches=round(self.branches * scale), divergent_branches=round(self.divergent * scale),
            atomics=round(self.atomics * scale), atomic_passes=round(self.atomic_passes * scale),
            atomic_hottest=round(self.hottest * blocks / self.sampled_blocks) if self.sampled_blocks else 0,
            global_loaded=once["load"], global_stored=min(once["store"], memory), global_common=common,
            load_rounds=round(self.waiting.rounds * scale), store_sectors=round(self.store_sectors * scale),
            async_sectors=round(self.async_sectors * scale), issued=round(issued),
            code=round(sum(machine[index] for index in self.visits)), chain_cycles=round(self.waiting.cycles * scale),
            load_steps=tuple(LoadStep(round(warps * scale), *kind) for kind, warps in sorted(self.waiting.taken.items())),
            cluster=cluster, local_bytes=self.kernel.local_bytes, classes=classes,
            lines=tuple(c for c in lines if c.passes > c.least)[:MOST_LINES])

    def classes(self) -> tuple[InstructionClass, ...]:
        kinds = histogram(self.kernel)
        total: dict[str, list[float]] = {}
        for index, (lanes, warps) in self.visits.items():
            for name, count in kinds[index].items():
                found = total.setdefault(name, [0, 0])
                found[0] += count * lanes
                found[1] += count * warps
        ordered = sorted(total.items(), key=lambda item: -item[1][0])
        return tuple(InstructionClass(name, round(lanes), round(warps)) for name, (lanes, warps) in ordered)


def _warps_of(lanes: NDArray[np.bool_]) -> int:
    """Warps with any lane of these."""
    return int(np.count_nonzero(np.logical_or.reduceat(lanes, np.arange(0, len(lanes), 32))))


def _column(machine: Machine) -> int:
    """The block of a chunk that is sampled: one in the middle."""
    return machine.blocks // 2
