"""Barriers of a block: lanes that wait, the blocks whose barrier is complete, and those where it never can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None


@dataclass(slots=True, eq=False)
class Parked:
    """Lanes that wait at a barrier."""

    following: int
    """Block they go on to."""
    number: int
    count: int | None
    """Threads the barrier waits for; None: all that live."""
    mask: Mask
    line: int | None
    reduction: tuple[str, Lanes, Callable[[Lanes, Lanes], None]] | None = None


class Barriers:
    """All barriers of one chunk."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parked: list[Parked] = []
        self.arrived: dict[int, NDArray[np.int64]] = {}
        """Threads of each block that only announced themselves (`bar.arrive`), by barrier number."""

    def arrive(self, parts: tuple[str, ...], following: int, mask: Mask, out: object, line: int | None) -> None:
        reduction = None
        assert isinstance(out, tuple)
        if out and isinstance(out[0], str):
            reduction, out = out[1], out[2]
        for numbers, part in self.by_value(out, mask):
            self.arrive_at(parts, following, part, numbers, reduction, line)

    def by_value(self, operands: tuple[Lanes, ...], mask: Mask):
        """Barrier number and thread count, and the lanes they are said by."""
        if all(operand.min() == operand.max() for operand in operands):
            yield tuple(int(operand.flat[0]) for operand in operands), mask
            return
        shape = (self.machine.threads, self.machine.blocks)
        active = np.broadcast_to(self.machine.active(mask), shape)
        wide = [np.broadcast_to(operand, shape) for operand in operands]
        for numbers in sorted(set(zip(*(w[active].tolist() for w in wide), strict=True))):
            part = active
            for operand, number in zip(wide, numbers, strict=True):
                part = part & (operand == number)
            yield numbers, part

    def arrive_at(self, parts: tuple[str, ...], following: int, mask: Mask, values: tuple[int, ...],
                  reduction: tuple[str, Lanes, Callable[[Lanes, Lanes], None]] | None, line: int | None) -> None:
        number, count = values[0] if values else 0, values[1] if len(values) > 1 else None
        if "arrive" in parts:
            lanes = np.broadcast_to(self.machine.active(mask), (self.machine.threads, self.machine.blocks))
            self.arrived[number] = self.arrived.get(number, np.zeros(self.machine.blocks, np.int64)) + lanes.sum(axis=0)
            self.machine.scheduler.join(following, mask)
            return
        if mask is None and not self.machine.scheduler.pending and not self.parked and not self.machine.scheduler.held and reduction is None \
                and not self.arrived and count in (None, self.machine.threads):
            assert self.machine.smem.shadow is not None
            self.machine.smem.shadow.barrier(None)
            self.machine.tally.barrier(self.machine, self.machine.live)
            self.machine.scheduler.join(following, None)
            return
        self.parked.append(Parked(following, number, count, self.machine.live if mask is None else mask, line, reduction))

    def release(self) -> bool:
        """Let go the lanes of blocks whose barrier is complete. Returns whether there were any."""
        shape = (self.machine.threads, self.machine.blocks)
        moved = False
        live = np.broadcast_to(self.machine.active(None), shape)
        for number in sorted({p.number for p in self.parked}):
            group = [p for p in self.parked if p.number == number]
            waiting = sum(np.broadcast_to(self.machine.active(p.mask), shape).sum(axis=0) for p in group)
            waiting = waiting + self.arrived.get(number, 0)
            expected = live.sum(axis=0) if group[0].count is None else np.full(self.machine.blocks, group[0].count)
            complete = (waiting >= expected) & (waiting > 0)
            if not complete.any():
                continue
            self.check_same_barrier(group, complete)
            moved = True
            self.reduce(group, complete)
            for parked in group:
                lanes = np.broadcast_to(self.machine.active(parked.mask), shape)
                going, staying = lanes & complete, lanes & ~complete
                self.parked.remove(parked)
                if going.any():
                    self.machine.scheduler.join(parked.following, None if self.machine.count(going) == self.machine.live_count else going)
                if staying.any():
                    parked.mask = staying
                    self.parked.append(parked)
            if number in self.arrived:
                self.arrived[number][complete] = 0
            assert self.machine.smem.shadow is not None
            everyone = complete | ~live.any(axis=0)
            self.machine.smem.shadow.barrier(None if everyone.all() and group[0].count is None else complete)
            self.machine.tally.barrier(self.machine, live & complete)
        return moved

    def reduce(self, group: list[Parked], complete: NDArray[np.bool_]) -> None:
        """The result of `bar.red`: over all lanes of a block."""
        if group[0].reduction is None:
            return
        shape = (self.machine.threads, self.machine.blocks)
        mode = group[0].reduction[0]
        total, lanes_of = np.zeros((1, self.machine.blocks), np.int64), np.zeros((1, self.machine.blocks), np.int64)
        for parked in group:
            if parked.reduction is None:
                continue
            lanes = np.broadcast_to(self.machine.active(parked.mask), shape)
            total += (lanes & parked.reduction[1]).sum(axis=0)
            lanes_of += lanes.sum(axis=0)
        value = total.astype(np.uint32) if mode == "popc" else total > 0 if mode == "or" else total == lanes_of
        for parked in group:
            if parked.reduction is not None:
                parked.reduction[2](value, np.broadcast_to(self.machine.active(parked.mask), shape) & complete)

    def check_same_barrier(self, group: list[Parked], complete: NDArray[np.bool_]) -> None:
        """Threads of one block that met at different barriers of the source: they did not all call the same one."""
        if len({p.line for p in group}) <= 1 or group[0].count is not None:      # who names a count may meet from several places
            return
        lines = sorted({p.line or 0 for p in group})
        first, others = np.zeros((2, self.machine.threads, self.machine.blocks), bool)
        for parked in group:
            target = first if (parked.line or 0) == lines[0] else others
            target |= self.machine.active(parked.mask) & complete
        both = first.any(axis=0) & others.any(axis=0)
        if both.any():
            text = ", ".join(map(str, lines))
            message = f"threads of one block wait at different barriers (lines {text})"
            self.machine.fault("divergent_barrier", message, first & both, lines[0])

    def stuck(self) -> NoReturn:
        parked = min(self.parked, key=lambda p: p.line or 0)
        lanes = np.broadcast_to(self.machine.active(parked.mask), (self.machine.threads, self.machine.blocks))
        block = int(lanes.any(axis=0).argmax())
        here, alive = int(lanes[:, block].sum()), int(np.broadcast_to(self.machine.active(None), lanes.shape)[:, block].sum())
        others = sorted({p.line for p in self.parked if p is not parked and p.line is not None})
        text = f"{here} of {alive} threads of the block wait at this barrier and the others never come"
        if others:
            text += f": they wait at line {', '.join(map(str, others))}"
        self.machine.fault("divergent_barrier", text, lanes, parked.line)
