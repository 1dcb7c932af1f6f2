"""The contract of search policies: given one operator's tree, which kernel to build on, and by which strategy."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec import Struct

from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import REPAIRABLE, Node, Tree

REPAIRS_PER_NODE = 2
"""Attempts to mend one failed kernel. A compiler's words mend most build errors at the first try; what two informed
attempts did not mend is better begun anew."""


DIGITS = 9
"""Values and promises that agree in so many decimals are the same: what rounding leaves of a unit of time must not choose."""


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

    def select(self, tree: Tree) -> Move | None:
        """The next move; None when nothing can be usefully asked before a pending node settles.

        A person's hint that nobody has heard comes first; else the policy's own choice.
        """
        return self._wished(tree) or self.choose(tree)

    @abstractmethod
    def choose(self, tree: Tree) -> Move | None:
        """The policy's own choice, among `bases(tree)` (there is at least one) and `mendable(tree)`."""

    def _wished(self, tree: Tree) -> Move | None:
        """What a person's hints and pins leave no choice about."""
        if not tree.steered:
            return None
        reach, allowed = open_to(tree), bases(tree)
        for node in (tree.root, *tree.nodes.values()):
            if node.hint_unheard and node in allowed:
                return Move(node.id or None, least_used(node, self.rng(tree)))
            if node.hint_unheard and repairable(node) and reach(node):
                return Move(node.id, node.strategy, "repair")
        if not allowed:
            broken = mendable(tree)[-1]
            return Move(broken.id, broken.strategy, "repair")
        return None

    def rng(self, tree: Tree) -> random.Random:
        """Chance for one choice: a function of seed, variant and how many nodes there are."""
        return random.Random(f"{self.seed}/{tree.variant}/{len(tree.nodes)}")


def bases(tree: Tree) -> list[Node]:
    """What a new kernel may be built on: the root and every working kernel, without those a person has pruned; only
    pinned ones and what came of them, where there are such. Empty when all that is pinned has failed and may be
    mended."""
    reach = open_to(tree)
    return [node for node in (tree.root, *tree.nodes.values()) if (node is tree.root or node.verified) and reach(node)]


def mendable(tree: Tree) -> list[Node]:
    """Failures worth mending, in order of proposal, as far as a person's prunes and pins allow."""
    reach = open_to(tree)
    return [node for node in tree.nodes.values() if repairable(node) and reach(node)]


def open_to(tree: Tree) -> Callable[[Node], bool]:
    """Whether prunes and pins leave a node open. A pin on what can neither be built on nor mended holds nothing."""
    if not tree.steered:
        return lambda node: True
    pins = any(
        _within_pin(node) and not _shut(node) and (node.verified or repairable(node)) for node in tree.nodes.values()
    )
    return lambda node: not _shut(node) and (not pins or _within_pin(node))


def least_used(node: Node, rng: random.Random) -> str:
    """A strategy drawn from those least used on the node."""
    used = [child.strategy for child in node.children]
    least = min(used.count(name) for name in NAMES)
    return rng.choice([name for name in NAMES if used.count(name) == least])


def repairable(node: Node) -> bool:
    """Failed in a way that its sentence helps to mend, and the kernel it began as not yet given up on."""
    if node.outcome not in REPAIRABLE or node.pending:
        return False
    first = node
    while first.origin == "repair":
        first = first.parent
    return not first.pending and _repairs_below(first) < REPAIRS_PER_NODE


def _shut(node: Node) -> bool:
    return node.pruned or any(above.pruned for above in node.lineage())


def _within_pin(node: Node) -> bool:
    return node.pinned or any(above.pinned for above in node.lineage())


def _repairs_below(node: Node) -> int:
    return sum(1 + _repairs_below(child) for child in node.children if child.origin == "repair")
