"""A stored landscape as a search problem: kernels are recorded settings, strategies are moves between them, some moves
fail."""

from __future__ import annotations

import json
import math
import random
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from forge_tui.engine.events import Judged, Proposed, Replied
from forge_tui.engine.judge.behaviour import Behaviour
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.search.policy import Move, Policy
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Tree

FAILS = 0.2
"""A writer's kernel is wrong or does not build this often, whatever it was meant to be."""
MENDS = 0.5
"""A repair gives what was meant this often."""

STRATEGY_OF = {
    "VEC": "vectorization",
    "BYTES": "vectorization",
    "LANES": "tiling",
    "WARPS": "tiling",
    "BLOCK": "tiling",
    "PLANES": "tiling",
    "TILE": "tiling",
    "TILE_H": "tiling",
    "TILE_W": "tiling",
    "DEPTH": "tiling",
    "ACROSS": "tiling",
    "CHUNK": "tiling",
    "ITEMS": "pipelining",
    "UNROLL": "pipelining",
    "ROWS": "pipelining",
    "SLOTS": "pipelining",
    "HOLD": "pipelining",
    "ASYNC": "pipelining",
    "PIECES": "pipelining",
    "KEEP": "fusion",
    "SPLIT": "split",
    "CLUSTER": "split",
    "RESIDENT": "split",
    "STREAM": "access",
    "REVERSE": "reordering",
    "WATCH": "reordering",
}
"""Which strategy turns which tunable."""


class Recorded(Struct, frozen=True, eq=False):
    """One kernel that the writer may write."""

    family: str
    settings: dict[str, int]
    us: float | None
    """None: it fails."""
    behaviour: Behaviour


class Landscape:
    """Read from a file of `landscapes.py`. Every search on it is a function of the policy and its seed.

    A writer asked for a strategy changes tunables that belong to it, and as few others as it can; or takes another
    family of kernels whose strategy it is, keeping the tunables that both have. Where there is nothing to change it
    gives the same kernel again. From nothing it writes a plain kernel: one of the slower half of a family's, so that
    there is something to search for.
    """

    def __init__(self, path: Path) -> None:
        document: dict[str, Any] = json.loads(path.read_text())
        self.name: str = document["landscape"]
        self.operator: str = document["operator"]
        self.times: str = document["times"]
        self.strategies = {family["name"]: family["strategy"] for family in document["families"]}
        self.points = [
            Recorded(
                family["name"],
                point["settings"],
                point["us"],
                Behaviour(
                    point["registers"],
                    point["shared_bytes"],
                    point["threads"],
                    point["occupancy"],
                    point["dram"],
                    point["sm"],
                ),
            )
            for family in document["families"]
            for point in family["points"]
        ]
        self._plain = {
            name: _slower_half([point for point in self.points if point.family == name]) for name in self.strategies
        }
        self._moves: dict[tuple[int, str], list[list[Recorded]]] = {}

    @cached_property
    def best_us(self) -> float:
        """Of all points: what an exhaustive search finds."""
        return min(point.us for point in self.points if point.us is not None)

    def write(self, start: Recorded | None, strategy: str, rng: random.Random) -> Recorded:
        """What the writer means to write."""
        if start is None:
            fitting = [point for point in self.points if self.strategies[point.family] == strategy]
            families = sorted({point.family for point in fitting or self.points})
            family = rng.choice(families)
            return rng.choice(self._plain[family])
        key = (id(start), strategy)
        if key not in self._moves:
            self._moves[key] = self._options(start, strategy)
        options = self._moves[key]
        return rng.choice(rng.choice(options)) if options else start

    def _options(self, start: Recorded, strategy: str) -> list[list[Recorded]]:
        """Groups of kernels, one for each family that the strategy can lead to."""
        groups: list[list[Recorded]] = []
        mine = [name for name in start.settings if STRATEGY_OF.get(name, "tiling") == strategy]
        inside = [
            point
            for point in self.points
            if point.family == start.family and any(point.settings[name] != start.settings[name] for name in mine)
        ]
        groups.append(_nearest(inside, start, [name for name in start.settings if name not in mine]))
        for family, its in self.strategies.items():
            if its == strategy and family != start.family:
                others = [point for point in self.points if point.family == family]
                shared = [name for name in start.settings if others and name in others[0].settings]
                groups.append(_nearest(others, start, shared))
        return [group for group in groups if group]

    def search(self, policy: Policy, iterations: int, scale: float = 1.0) -> tuple[list[Move], list[float]]:
        """The moves, and after each the best speed so far over the best there is (0 before the first that works)."""
        tree, meant, moves, best = Tree("v"), {}, [], []
        writer = random.Random(f"writer {policy.seed} {self.name}")
        for number in range(1, iterations + 1):
            move = policy.select(tree)
            assert move is not None
            moves.append(move)
            name = f"v/{number}"
            if move.origin == "repair":
                kernel, broken = meant[move.parent], writer.random() >= MENDS
            else:
                kernel = self.write(meant[move.parent] if move.parent else None, move.strategy, writer)
                broken = writer.random() < FAILS
            meant[name] = kernel
            tree.propose(
                Proposed(
                    at=number,
                    node=name,
                    variant="v",
                    parent=move.parent,
                    strategy=move.strategy,
                    provider="landscape",
                    origin=move.origin,
                )
            )
            tree.reply(Replied(at=number, node=name, kernel=f"{id(kernel)}{' broken' * broken}{number * broken}"))
            tree.judge(self._verdict(tree, name, number, kernel, broken, scale))
            found = tree.best
            best.append(self.best_us * scale / found.us if found else 0.0)
        return moves, best

    def _verdict(self, tree: Tree, name: str, number: int, kernel: Recorded, broken: bool, scale: float) -> Judged:
        if broken or kernel.us is None:
            return Judged(
                at=number, node=name, verdict=Verdict("wrong" if broken else "fault", "as recorded"), value=None
            )
        first = tree.by_kernel[tree.nodes[name].kernel]
        if first.id != name:
            return Judged(
                at=number, node=name, verdict=first.judged.verdict, value=first.judged.value, duplicate_of=first.id
            )
        us = kernel.us * scale
        verdict = Verdict("verified", "as recorded", timing=Timing("modelled", us), behaviour=kernel.behaviour)
        return Judged(at=number, node=name, verdict=verdict, value=math.log((tree.first_us or us) / us))


def _slower_half(points: list[Recorded]) -> list[Recorded]:
    timed = sorted((point for point in points if point.us is not None), key=lambda point: point.us)
    return timed[len(timed) // 2 :] or points


def _nearest(points: list[Recorded], start: Recorded, names: list[str]) -> list[Recorded]:
    """Those that differ from `start` in the fewest of these tunables."""
    if not points:
        return []
    away = [sum(point.settings[name] != start.settings[name] for name in names) for point in points]
    least = min(away)
    return [point for point, distance in zip(points, away, strict=True) if distance == least]


def load(folder: Path) -> list[Landscape]:
    """Every landscape of a folder, by name."""
    return [Landscape(path) for path in sorted(folder.glob("*.json"))]


__all__ = ["FAILS", "MENDS", "NAMES", "Landscape", "Recorded", "load"]
