"""Generic addresses: each lane's goes to global, shared or local memory by the window it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.memory import BUFFER_SHIFT, LOCAL_WINDOW, SHARED_WINDOW, Address, GlobalMemory, Lanes, Mask, fold
from forge_tui.cuda.host.clusters import ClusterMemory, FarAddress
from forge_tui.cuda.host.words import WordAddress, WordMemory

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Piece = tuple[GlobalMemory | WordMemory | ClusterMemory, Address | WordAddress | FarAddress, Mask]
"""One memory, the address prepared for it, and the lanes that go there."""


class GenericMemory:
    """Sorts lanes by window and passes them on."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def prepare(self, raw: Lanes, mask: Mask) -> list[Piece]:
        machine = self.machine
        window = raw >> np.uint64(BUFFER_SHIFT)
        shared, local = window == SHARED_WINDOW >> BUFFER_SHIFT, window == LOCAL_WINDOW >> BUFFER_SHIFT
        found: list[Piece] = []
        near = machine.cmem if machine.translations.ordered else machine.smem
        for memory, inside, base in ((machine.gmem, ~(shared | local), 0), (near, shared, SHARED_WINDOW),
                                     (machine.lmem, local, LOCAL_WINDOW)):
            if not inside.any():
                continue
            lanes: NDArray[np.bool_] | None = mask if inside.all() else inside if mask is None else inside & mask
            address = memory.prepare(raw - np.uint64(base) if base else raw, lanes)
            if address is not None:
                found.append((memory, address, lanes))
        return found

    def load(self, pieces: list[Piece], offset: int, size: int, results: tuple[Lanes | None, ...], kind: str,
             line: int | None, ordered: bool = False) -> None:
        if len(pieces) == 1:
            memory, address, _ = pieces[0]
            memory.load(address, offset, size, results, kind, line, ordered)      # type: ignore[arg-type]
            return
        for memory, address, lanes in pieces:
            parts = tuple(None if d is None else np.empty_like(d) for d in results)
            memory.load(address, offset, size, parts, kind, line, ordered)      # type: ignore[arg-type]
            for d, part in zip(results, parts, strict=True):
                if d is not None and part is not None and lanes is not None:
                    np.copyto(d, part, where=fold(lanes, d.shape))

    def store(self, pieces: list[Piece], offset: int, size: int, values: tuple[Lanes, ...], mask: Mask, line: int | None,
              ordered: bool = False) -> None:
        for memory, address, lanes in pieces:
            memory.store(address, offset, size, values, lanes, line, ordered)      # type: ignore[arg-type]
