"""One kernel over the shapes that an operator is called with: its time in each, beside the best that is known there."""

from __future__ import annotations

from forge_tui.engine.search.tree import Node
from forge_tui.screens.operatorrows import shape_of
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import fit
from forge_tui.screens.words import microseconds, speedup

SHAPE = 28
"""Cells of a shape."""


def shape_lines(watch: ProjectWatch, node: Node, variant_key: str) -> list[Line]:
    """A line for each variant of the operator; none where there is only one."""
    cards = watch.cards
    variant = cards.find(variant_key) if cards else None
    if cards is None or variant is None:
        return []
    variants = [item for item in cards.variants if item.operator == variant.operator]
    if len(variants) < 2:
        return []
    lines: list[Line] = [
        (),
        ((f"{'by shape':<{SHAPE}}{'this':>10}{'best':>10}{'speed-up':>10}", "forge-muted bold"),),
    ]
    for item in variants:
        operator = watch.state.operators.get(item.key)
        best = operator.best if operator else None
        twin = operator.tree.by_kernel.get(node.kernel) if operator and node.kernel else None
        here = node if item.key == variant_key else twin
        timing = best.verdict.timing if best and best.verdict else None
        mark = "▸ " if item.key == variant_key else "  "
        lines.append(
            (
                (mark, "primary"),
                (fit(f"{shape_of(item)}  {item.key[:4]}", SHAPE - 2, "left"), ""),
                (f"{microseconds(here.us if here else None):>10}", "bold"),
                (f"{microseconds(best.us if best else None):>10}", ""),
                (f"{speedup(timing.speedup if timing else None):>10}", ""),
            )
        )
    return lines
