"""A synthetic search landscape: kernels are settings of six knobs, strategies turn one, some turns fail. No device."""

from __future__ import annotations

import math
import random

from forge_tui.engine.events import Judged, Proposed, Replied
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.search.policy import Move, Policy
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Tree

LEVELS = 4


class Landscape:
    """Each strategy owns a knob of four levels with its own factor on the time; pairs of knobs interact; a tenth of the
    combinations fails, half of which a repair mends. All of it is drawn from one seed."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        rng = random.Random(f"landscape {seed}")
        self.seed, self.scale = seed, scale
        self.factor = {name: [rng.uniform(0.0, 0.6) * rng.random() for _ in range(LEVELS)] for name in NAMES}
        self.pair = {(a, b, x, y): rng.gauss(0.0, 0.06) for a in NAMES for b in NAMES if a < b
                     for x in range(LEVELS) for y in range(LEVELS)}

    def us(self, knobs: dict[str, int]) -> float:
        total = sum(self.factor[name][level] for name, level in knobs.items())
        names = sorted(knobs)
        total += sum(self.pair[a, b, knobs[a], knobs[b]] for i, a in enumerate(names) for b in names[i + 1:])
        return self.scale * 100.0 * math.exp(total)

    def fails(self, knobs: dict[str, int], origin: str) -> bool:
        rng = random.Random(f"{self.seed} {sorted(knobs.items())} {origin}")
        return rng.random() < (0.5 if origin == "repair" else 0.15)

    def search(self, policy: Policy, iterations: int) -> tuple[list[Move], list[float]]:
        """The moves made and the best time after each, one proposal at a time."""
        tree, knobs, moves, best = Tree("v"), {}, [], []
        writer = random.Random(f"writer {policy.seed} {self.seed}")
        for number in range(1, iterations + 1):
            move = policy.select(tree)
            moves.append(move)
            name = f"v/{number}"
            start = knobs[move.parent] if move.parent else {arm: writer.randrange(LEVELS) for arm in NAMES}
            mine = dict(start)
            if move.origin != "repair":
                mine[move.strategy] = writer.randrange(LEVELS)
            knobs[name] = mine
            tree.propose(Proposed(at=number, node=name, variant="v", parent=move.parent, strategy=move.strategy,
                                  provider="landscape", origin=move.origin))
            tree.reply(Replied(at=number, node=name, kernel=name))
            tree.judge(self._verdict(tree, name, number, mine, move))
            best.append(tree.best.us if tree.best else math.inf)
        return moves, best

    def _verdict(self, tree: Tree, name: str, number: int, knobs: dict[str, int], move: Move) -> Judged:
        if self.fails(knobs, move.origin):
            return Judged(at=number, node=name, verdict=Verdict("wrong", "wrong"), value=None)
        us = self.us(knobs)
        verdict = Verdict("verified", "ok", timing=Timing("modelled", us))
        return Judged(at=number, node=name, verdict=verdict, value=math.log((tree.first_us or us) / us))
