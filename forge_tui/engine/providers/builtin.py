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
        self._refusals: dict[str, str] = {}

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

    def why_exhausted(self, variant: Variant) -> str:
        self._offered(variant)
        refusal = self._refusals.get(variant.key)
        if refusal is None:
            return "no kernel for this operator ships with Forge" if not self._offered(variant) else ""
        return f"no shipped kernel takes this call; {refusal}"

    def _offered(self, variant: Variant) -> list[BuiltinKernel]:
        """Those whose own `[require]` takes the call; a refusal here is no try of the search."""
        from forge_tui.engine.builtin.catalog import kernels_for
        from forge_tui.engine.kernelfile import parse

        with self._lock:
            if variant.key not in self._kernels:
                taken = self._kernels[variant.key] = []
                for kernel in kernels_for(variant.call):
                    refusal = parse(kernel.text, f"{kernel.name}.cu").refusal(variant.call, self.device)
                    if refusal is None:
                        taken.append(kernel)
                    else:
                        self._refusals.setdefault(variant.key, f"{kernel.name}: {refusal}")
            return self._kernels[variant.key]
