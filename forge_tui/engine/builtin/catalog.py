"""The kernels that ship with Forge: which complete kernel files may serve a call, the best first guess first."""

from __future__ import annotations

from msgspec import Struct

import forge_tui.engine.builtin.families  # noqa: F401  (importing registers every family)
from forge_tui.engine.builtin.registry import Strategy, families, render
from forge_tui.specs import Call


class BuiltinKernel(Struct, frozen=True):
    """One shipped kernel, rendered for one operator."""

    name: str
    """Names the file, `NAME.cu`; distinct among the kernels of one call."""
    operator: str
    """Canonical name."""
    strategy: Strategy
    idea: str
    """One line."""
    text: str
    """The complete kernel file."""


def kernels_for(call: Call) -> list[BuiltinKernel]:
    """Shipped kernels that may serve this call, best first guess first; empty when there are none.

    Each text is a whole kernel file whose own `[require]` has the last word: parse it and ask `.refusal(call, device)`.
    """
    kernels = []
    for family in families(call.operator):
        for recipe in family(call):
            kernels.append(BuiltinKernel(name=recipe.name or recipe.template, operator=call.operator,
                                         strategy=recipe.strategy, idea=recipe.idea, text=render(recipe, call.operator)))
    return kernels
