"""Warp collectives: shuffle, vote, match, reduce, elect. Lanes are rows of (threads, blocks); a warp is 32 rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.memory import fold

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
POISON = np.uint32(0x7FC0DEAD)
"""What an undefined value becomes: a NaN that shows."""
Mask = NDArray[np.bool_] | None


class Warps:
    """Collectives of one chunk. Blocks whose thread count is no multiple of 32 end in a partial warp."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.threads = machine.threads
        self.warps = -(-self.threads // 32)
        self.thread = np.arange(self.threads)[:, None]
        self.lane = self.thread & 31
        self.bit = (np.uint32(1) << self.lane.astype(np.uint32))
        self.rows: dict[tuple[str, int, int], tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}

    def by_warp(self, values: Lanes, fill: int = 0) -> Lanes:
        """(threads or 1, columns) as (warps, 32, columns), the last warp filled up."""
        values = np.broadcast_to(values, (self.threads, values.shape[1]))
        missing = self.warps * 32 - self.threads
        if missing:
            values = np.concatenate([values, np.full((missing, values.shape[1]), fill, values.dtype)])
        return values.reshape(self.warps, 32, -1)

    def by_thread(self, values: Lanes) -> Lanes:
        """(warps, 32 or 1, columns) back to (threads, columns)."""
        wide = np.broadcast_to(values, (self.warps, 32, values.shape[2]))
        return wide.reshape(self.warps * 32, -1)[:self.threads]

    def ballot(self, flags: Lanes) -> NDArray[np.uint32]:
        """(threads, columns) words: the bits of every lane's flag, the same for a whole warp."""
        words = np.where(flags, self.bit, np.uint32(0))
        return self.by_thread(np.bitwise_or.reduce(self.by_warp(words), axis=1, keepdims=True))

    def present(self, members: Lanes, mask: Mask, what: str, line: int | None) -> None:
        """Fault if a lane that the member mask names is alive but not here."""
        machine = self.machine
        active = machine.active(mask)
        if machine.smem.shadow is not None:
            machine.smem.shadow.warp_sync(active)
        if mask is not machine.live:
            live = np.ones((1, 1), bool) if machine.live is None else machine.live
            absent = self.ballot(np.broadcast_to(live & ~active, np.broadcast_shapes(live.shape, active.shape)))
            bad = active & ((members & absent) != 0)
            if bad.any():
                machine.fault("divergent_barrier", f"{what}: lanes named in its mask are not here", bad, line)
        bad = active & ((members & self.bit) == 0)
        if bad.any():
            machine.fault("divergent_barrier", f"{what}: executed by a lane that its mask does not name", bad, line)

    def shuffle(self, mode: str, d: Lanes | None, inside: Lanes | None, value: Lanes, offset: Lanes, clamp: Lanes,
                members: Lanes, mask: Mask, line: int | None) -> None:
        """`shfl.sync`. `inside` receives whether the source lane was in range."""
        self.present(members, mask, "shfl.sync", line)
        source, ok = self.sources(mode, offset, clamp)
        unread = None
        if value.shape[0] > 1 and (mask is not None or self.machine.live is not None or self.threads % 32):
            unread = self.unreadable(source, ok, mask)
        if inside is not None:
            np.copyto(inside, ok)
        if d is None:
            return
        if value.shape[0] == 1:
            np.copyto(d, value)
        elif source.shape[1] == 1:
            if d.shape == value.shape and not np.may_share_memory(d, value):
                value.take(source[:, 0], axis=0, out=d, mode="clip")
            else:
                np.copyto(d, value.take(source[:, 0], axis=0, mode="clip"))
        else:
            shape = np.broadcast_shapes(value.shape, source.shape)
            np.copyto(d, np.take_along_axis(np.broadcast_to(value, shape), np.broadcast_to(source, shape), 0))
        if unread is not None and unread.any():
            np.copyto(d, POISON, where=fold(unread, d.shape))

    def sources(self, mode: str, offset: Lanes, clamp: Lanes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row to read from and whether it is in range, of every thread; kept for constant operands."""
        key = (mode, int(offset.flat[0]), int(clamp.flat[0])) if offset.size == clamp.size == 1 else None
        if key and key in self.rows:
            return self.rows[key]
        lane, b, c = self.lane, offset.astype(np.int64) & 31, clamp.astype(np.int64)
        segment, limit = c >> 8 & 31, c & 31
        highest = lane & segment | limit & ~segment
        lowest = lane & segment
        target = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": lowest | b & ~segment}[mode]
        ok = target >= highest if mode == "up" else target <= highest
        source = np.where(ok, target, lane) + (self.thread & ~31)
        found = source, np.broadcast_to(ok, source.shape)
        if key:
            self.rows[key] = found
        return found

    def unreadable(self, source: NDArray[np.int64], ok: NDArray[np.bool_], mask: Mask) -> NDArray[np.bool_]:
        """Active lanes that read the register of a lane that is not here: the value is undefined, so it becomes a NaN."""
        active = np.broadcast_to(self.machine.active(mask), (self.threads, self.machine.blocks))
        rows = np.minimum(source, self.threads - 1)
        if rows.shape[1] == 1:
            there = active[rows[:, 0]]
        else:
            there = np.take_along_axis(active, np.broadcast_to(rows, active.shape), 0)
        return active & ok & ((source >= self.threads) | ~there)

    def vote(self, mode: str, d: Lanes, flags: Lanes, members: Lanes, mask: Mask, line: int | None) -> None:
        """`vote.sync`: `all`, `any`, `uni` give a predicate, `ballot` the bits."""
        self.present(members, mask, "vote.sync", line)
        active = self.machine.active(mask)
        here = self.ballot(np.broadcast_to(active, (self.threads, active.shape[1]))) & members
        yes = self.ballot(np.broadcast_to(active & flags, np.broadcast_shapes(active.shape, flags.shape, (self.threads, 1)))) & members
        if mode == "ballot":
            np.copyto(d, yes)
        elif mode == "any":
            np.copyto(d, yes != 0)
        elif mode == "all":
            np.copyto(d, yes == here)
        else:
            np.copyto(d, (yes == here) | (yes == 0))

    def active_mask(self, d: Lanes, mask: Mask) -> None:
        active = self.machine.active(mask)
        np.copyto(d, self.ballot(np.broadcast_to(active, (self.threads, active.shape[1]))))

    def match(self, mode: str, d: Lanes, same: Lanes | None, value: Lanes, members: Lanes, mask: Mask, line: int | None) -> None:
        """`match.sync`: the lanes with the same value (`any`), or the mask if all have it (`all`)."""
        self.present(members, mask, "match.sync", line)
        active = np.broadcast_to(self.machine.active(mask), (self.threads, self.machine.blocks))
        values = self.by_warp(np.broadcast_to(value, active.shape))
        here = self.by_warp(active & ((members & self.bit) != 0)).astype(bool)
        equal = (values[:, :, None] == values[:, None, :]) & here[:, None, :]
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        words = np.bitwise_or.reduce(np.where(equal, bits[None, None, :, None], np.uint32(0)), axis=2)
        words = self.by_thread(words)
        if mode == "any":
            np.copyto(d, words)
            return
        everyone = words == self.by_thread(np.bitwise_or.reduce(np.where(here, bits[:, None], np.uint32(0)), axis=1, keepdims=True))
        np.copyto(d, np.where(everyone, words, np.uint32(0)))
        if same is not None:
            np.copyto(same, everyone)

    def reduce(self, mode: str, d: Lanes, value: Lanes, members: Lanes, mask: Mask, line: int | None) -> None:
        """`redux.sync` over the lanes of equal member mask."""
        self.present(members, mask, "redux.sync", line)
        kind = value.dtype
        limits = np.iinfo(kind)
        operation, neutral = {"add": (np.add, 0), "min": (np.minimum, limits.max), "max": (np.maximum, limits.min),
                              "and": (np.bitwise_and, -1 if kind.kind == "i" else limits.max),
                              "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0)}[mode]
        shape = (self.threads, self.machine.blocks)
        active = np.broadcast_to(self.machine.active(mask), shape)
        names = np.broadcast_to(members, shape)
        result = np.zeros(shape, kind)
        for word in np.unique(names[active]):
            mine = active & (names == word)
            values = self.by_warp(np.where(mine, value, kind.type(neutral)), neutral)
            total = self.by_thread(operation.reduce(values, axis=1, keepdims=True, dtype=kind))
            result = np.where(mine, total, result)
        np.copyto(d, result[:d.shape[0], :d.shape[1]] if d.shape != shape else result)

    def elect(self, d: Lanes | None, chosen: Lanes, members: Lanes, mask: Mask, line: int | None) -> None:
        """`elect.sync`: the lowest lane named."""
        self.present(members, mask, "elect.sync", line)
        words = np.broadcast_to(members, (self.threads, self.machine.blocks))
        lowest = words & (~words + np.uint32(1))
        if d is not None:
            np.copyto(d, np.frexp(lowest.astype(np.float64))[1] - 1, casting="unsafe")
        np.copyto(chosen, lowest == self.bit)

    def sync(self, members: Lanes, mask: Mask, line: int | None) -> None:
        """`bar.warp.sync`."""
        self.present(members, mask, "__syncwarp", line)
