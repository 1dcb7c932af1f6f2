"""What a launch did: instructions exactly, memory traffic from one block of sampled chunks, scaled to the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge_tui.cuda.host.memory import Address, Mask
from forge_tui.cuda.host.words import WordAddress
from forge_tui.cuda.target import LaunchCounts

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

SECTOR = 32
"""Bytes the memory system moves at least."""


class Tally:
    """Running totals of one launch."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.thread_instructions = 0
        self.warp_instructions = 0.0
        self.barriers = 0
        self.sampled_instructions = 0
        """Thread instructions of the sampled blocks: what the traffic below belongs to."""
        self.requests = self.sectors = self.bytes = self.shared_requests = self.shared_waves = 0

    def executed(self, machine: Machine, size: int, lanes: int, mask: Mask) -> None:
        """A basic block of `size` instructions ran for `lanes` lanes, those of `mask` (None: all)."""
        self.thread_instructions += size * lanes
        warps = -(-machine.threads // 32)
        column = _column(machine)
        if mask is None:
            self.warp_instructions += size * warps * machine.blocks
            if machine.sampling:
                self.sampled_instructions += size * machine.threads
            return
        mine = mask[:, column if mask.shape[1] > 1 else 0]
        count = int(np.count_nonzero(mine)) * (machine.threads // len(mine))
        if machine.sampling:
            self.sampled_instructions += size * count
        if len(mine) == 1 or mask.shape[1] == 1:
            here = warps if len(mine) == 1 else int(np.count_nonzero(np.logical_or.reduceat(mine, np.arange(0, len(mine), 32))))
            blocks = int(np.count_nonzero(mask)) if len(mine) == 1 and mask.shape[1] > 1 else machine.blocks
            self.warp_instructions += size * here * blocks
        else:
            here = int(np.count_nonzero(np.logical_or.reduceat(mine, np.arange(0, len(mine), 32))))
            self.warp_instructions += size * (here * lanes / count if count else -(-lanes // 32))

    def barrier(self, machine: Machine, mask: Mask) -> None:
        """A barrier let the blocks of `mask` (None: all) go."""
        self.barriers += machine.blocks if mask is None else int(np.count_nonzero(mask.any(axis=0)))

    def lanes(self, machine: Machine, raw: np.ndarray, mask: Mask, whole: Mask) -> np.ndarray | None:
        """Addresses of the sampled block as (warps, 32), absent lanes repeating a present one; warps with none left out."""
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
        self.active_lanes = int(active.sum())
        return values

    def global_access(self, machine: Machine, address: Address, offset: int, total: int) -> None:
        """One warp-wide access: the 32-byte sectors its lanes touch."""
        values = self.lanes(machine, address.raw, address.mask, address.lanes)
        if values is None:
            return
        first = np.sort((values + offset) // SECTOR, axis=1)
        self.requests += len(values)
        self.sectors += int((first[:, 1:] != first[:, :-1]).sum()) + len(values)
        self.bytes += total * self.active_lanes

    def shared_access(self, machine: Machine, address: WordAddress, offset: int, total: int) -> None:
        """One warp-wide access: passes over the 32 banks, lanes of one word sharing a pass; wide items go in parts of a warp."""
        values = self.lanes(machine, address.rel, address.mask, address.lanes)
        if values is None:
            return
        words = (values + offset) >> 2
        wide = max(1, total // 4)
        part = 32 // wide             # 8-byte items: half a warp a pass, 16-byte items: a quarter
        self.shared_requests += len(words) * wide
        words = (words[:, :, None] + np.arange(wide)).reshape(-1, part * wide)
        words = np.sort(words, axis=1)
        fresh = np.ones(words.shape, bool)
        fresh[:, 1:] = words[:, 1:] != words[:, :-1]
        bank = (np.arange(len(words))[:, None] * 32 + (words & 31))[fresh]
        self.shared_waves += int(np.bincount(bank, minlength=len(words) * 32).reshape(-1, 32).max(axis=1).sum())

    def result(self, kernel: str, blocks: int, threads: int, shared_bytes: int) -> LaunchCounts:
        """The record of the whole launch."""
        scale = self.thread_instructions / self.sampled_instructions if self.sampled_instructions else 0.0
        return LaunchCounts(
            kernel=kernel, blocks=blocks, threads=threads, thread_instructions=self.thread_instructions,
            warp_instructions=round(self.warp_instructions), global_requests=round(self.requests * scale),
            global_sectors=round(self.sectors * scale), global_bytes=round(self.bytes * scale),
            shared_requests=round(self.shared_requests * scale), shared_waves=round(self.shared_waves * scale),
            barriers=self.barriers, shared_bytes=shared_bytes)


def _column(machine: Machine) -> int:
    """The block of a chunk that is sampled: one in the middle."""
    return machine.blocks // 2
