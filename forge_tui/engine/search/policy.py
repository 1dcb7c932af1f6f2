"""The contract of search policies: given one operator's tree, which kernel to build on, and by which strategy."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from msgspec import Struct

from forge_tui.engine.search.tree import REPAIRABLE, Node, Tree

REPAIRS_PER_NODE = 2
"""Attempts to mend one failed kernel. A compiler's words mend most build errors at the first try; what two informed
attempts did not mend is better begun anew."""


class Move(Struct, frozen=True):
    """What to ask for next."""

    parent: str | None
    """Node to build on; None: the operator itself."""
    strategy: str
    origin: Literal["search", "repair"] = "search"


class Policy(ABC):
    """Chooses moves.

    A policy keeps no memory of its own: results reach it through the tree it is shown, so that a run resumed from its
    journal makes the choices the unbroken one would have made. Choices are a function of (seed, tree) alone, and of
    values (log speed-ups) only through differences: the unit of time cannot matter. Unsettled nodes are in the tree as
    virtual loss; `select` may be called again before they settle. Called from one thread.
    """

    name: ClassVar[str]

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def select(self, tree: Tree) -> Move | None:
        """The next move; None when nothing can be usefully asked before a pending node settles."""

    def rng(self, tree: Tree) -> random.Random:
        """Chance for one choice: a function of seed, variant and how many nodes there are."""
        return random.Random(f"{self.seed}/{tree.variant}/{len(tree.nodes)}")


def repairable(node: Node) -> bool:
    """Failed in a way that its sentence helps to mend, and the kernel it began as not yet given up on."""
    if node.outcome not in REPAIRABLE or node.pending:
        return False
    first = node
    while first.origin == "repair":
        first = first.parent
    return not first.pending and _repairs_below(first) < REPAIRS_PER_NODE


def _repairs_below(node: Node) -> int:
    return sum(1 + _repairs_below(child) for child in node.children if child.origin == "repair")
