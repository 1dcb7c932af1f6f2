"""`builtin`: the kernels that ship with Forge, best first guess first. No key, no cost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.cards import Variant
from forge_tui.engine.providers.base import Ask, Exhausted, Provider, Reply
from forge_tui.engine.search.policy import Move

if TYPE_CHECKING:
    from forge_tui.engine.builtin.catalog import BuiltinKernel


class BuiltinProvider(Provider):
    """Hands out, turn by turn, the shipped kernels that take the call on this device."""

    name = "builtin"

    def __init__(self, device: DeviceFacts) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._kernels: dict[str, list[BuiltinKernel]] = {}

    def propose(self, ask: Ask, cancel: threading.Event) -> Reply:
        kernels = self._offered(ask.variant)
        if ask.turn >= len(kernels):
            raise Exhausted
        kernel = kernels[ask.turn]
        return Reply(source=kernel.text, idea=kernel.idea, cost_usd=0.0, model=kernel.name)

    def exhausted(self, variant: Variant, turn: int) -> bool:
        return turn >= len(self._offered(variant))

    def fixed_move(self, variant: Variant, turn: int) -> Move | None:
        kernels = self._offered(variant)
        return Move(None, kernels[turn].strategy) if turn < len(kernels) else None

    def _offered(self, variant: Variant) -> list[BuiltinKernel]:
        """Those whose own `[require]` takes the call; a refusal here is no try of the search."""
        from forge_tui.engine.builtin.catalog import kernels_for
        from forge_tui.engine.kernelfile import parse

        with self._lock:
            if variant.key not in self._kernels:
                self._kernels[variant.key] = [
                    kernel for kernel in kernels_for(variant.call)
                    if parse(kernel.text, f"{kernel.name}.cu").refusal(variant.call, self.device) is None]
            return self._kernels[variant.key]
