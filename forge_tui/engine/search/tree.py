"""The search tree of one operator: nodes are tried kernels, edges say what each was made from. Folded from events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from forge_tui.engine.events import Confirmed, Judged, Proposed, Replied, Steered
from forge_tui.engine.judge.verdict import Verdict

NodeOutcome = Literal["pending", "no kernel", "duplicate", "verified", "wrong", "fault", "refused", "no_build", "skipped"]

REPAIRABLE: frozenset[NodeOutcome] = frozenset({"wrong", "fault", "refused", "no_build"})
"""Outcomes whose sentence tells a writer what to mend. `skipped` is this target's limit, not the kernel's."""


@dataclass(slots=True, eq=False)
class Node:
    """One proposal and what became of it. The root is the operator itself: id empty, no verdict."""

    id: str
    number: int
    parent: Node | None
    strategy: str = ""
    provider: str = ""
    model: str = ""
    """Who answered; before that, who is asked."""
    llm: str = ""
    """Which language model was asked, by the name the run gave it."""
    origin: Literal["search", "repair", "human"] = "search"
    children: list[Node] = field(default_factory=list)
    proposed_at: float = 0.0
    replied: Replied | None = None
    judged: Judged | None = None
    confirmed: Confirmed | None = None
    pruned: bool = False
    """A person wants nothing built on this subtree."""
    pinned: bool = False
    """A person wants all built within this subtree (and other pinned ones)."""
    hint: str = ""
    """A person's words for whoever writes below this node."""
    hinted_after: int = 0
    """How many children there were when the hint came."""
    visits: int = 0
    """Settled nodes of the subtree, this one included. A failure is a visit."""
    pending: int = 0
    """Unsettled nodes of the subtree, this one included: the virtual loss."""

    @property
    def kernel(self) -> str | None:
        """SHA-256 of the kernel file."""
        return self.replied.kernel if self.replied else None

    @property
    def verdict(self) -> Verdict | None:
        """The latest one."""
        if self.confirmed is not None:
            return self.confirmed.verdict
        return self.judged.verdict if self.judged else None

    @property
    def settled(self) -> bool:
        """Nothing more will come of it: judged, or answered without a usable kernel."""
        return self.judged is not None or (self.replied is not None and self.replied.kernel is None)

    @property
    def outcome(self) -> NodeOutcome:
        if not self.settled:
            return "pending"
        if self.judged is None:
            return "no kernel"
        if self.judged.duplicate_of is not None:
            return "duplicate"
        return self.verdict.outcome

    @property
    def verified(self) -> bool:
        """Passed every check so far, and is not another node's double."""
        return self.outcome == "verified"

    @property
    def value(self) -> float | None:
        """log speed-up; None unless verified."""
        if not self.verified:
            return None
        return self.confirmed.value if self.confirmed is not None else self.judged.value

    @property
    def us(self) -> float | None:
        """Time of one call, microseconds; None unless verified and timed."""
        verdict = self.verdict
        return verdict.timing.us if self.verified and verdict.timing else None

    @property
    def hint_unheard(self) -> bool:
        """Whether no child was proposed since the hint came."""
        return bool(self.hint) and len(self.children) <= self.hinted_after

    @property
    def hints(self) -> tuple[str, ...]:
        """Of this node and its ancestors up to the root, the nearest first."""
        found, node = [], self
        while node is not None:
            if node.hint:
                found.append(node.hint)
            node = node.parent
        return tuple(found)

    def lineage(self) -> Iterator[Node]:
        """This node and its ancestors, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Tree:
    """All nodes of one variant, in order of proposal. Changed only by the events it is given; read by policies.

    Invariants: `nodes[id].parent` precedes it; `root.visits + root.pending == len(nodes)`; a kernel text belongs to one
    node, later nodes with the same are duplicates of it.
    """

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.root = Node("", 0, None)
        self.nodes: dict[str, Node] = {}
        self.by_kernel: dict[str, Node] = {}
        self.by_image: dict[str, list[Node]] = {}
        """Images alone do not say which launch plan ran them."""
        self.steered = False
        """Whether any node was ever pruned, pinned or hinted at."""
        self.first_us: float | None = None
        """Time of the first verified kernel: the baseline where nothing is timed against eager. Never changes, so that
        values stay comparable."""

    def propose(self, event: Proposed) -> None:
        """A new node; or the same one asked again, of another provider, after a restart."""
        node = self.nodes.get(event.node)
        if node is None:
            parent = self.nodes[event.parent] if event.parent else self.root
            node = Node(event.node, len(self.nodes) + 1, parent)
            self.nodes[event.node] = node
            parent.children.append(node)
            for above in self._upwards(node):
                above.pending += 1
        node.strategy, node.provider, node.model, node.llm = event.strategy, event.provider, event.model, event.model
        node.origin, node.proposed_at = event.origin, event.at

    def reply(self, event: Replied) -> None:
        node = self.nodes[event.node]
        was_settled = node.settled
        node.replied = event
        node.model = event.model or node.model
        if event.kernel is not None:
            self.by_kernel.setdefault(event.kernel, node)
        self._settle(node, was_settled)

    def judge(self, event: Judged) -> None:
        node = self.nodes[event.node]
        was_settled = node.settled
        node.judged = event
        verdict = event.verdict
        if event.duplicate_of is None and verdict.image:
            self.by_image.setdefault(verdict.image, []).append(node)
        if self.first_us is None and verdict.verified and verdict.timing:
            self.first_us = verdict.timing.us
        self._settle(node, was_settled)

    def confirm(self, event: Confirmed) -> None:
        self.nodes[event.node].confirmed = event

    def steer(self, event: Steered) -> None:
        """A person's move on a node that is there; on the root when the node is the variant alone."""
        node = self.nodes[event.node] if "/" in event.node else self.root
        self.steered = True
        if event.action == "hint":
            node.hint, node.hinted_after = event.text, len(node.children)
        elif event.action in ("prune", "unprune"):
            node.pruned = event.action == "prune"
        elif event.action in ("pin", "unpin"):
            node.pinned = event.action == "pin"

    def _settle(self, node: Node, was_settled: bool) -> None:
        if node.settled and not was_settled:
            for above in self._upwards(node):
                above.pending -= 1
                above.visits += 1

    def _upwards(self, node: Node | None) -> Iterator[Node]:
        while node is not None:
            yield node
            node = node.parent

    @property
    def best(self) -> Node | None:
        """The verified node of highest value; the earlier of equals."""
        verified = [node for node in self.nodes.values() if node.value is not None]
        return max(verified, key=lambda node: node.value, default=None)

    @property
    def asked(self) -> int:
        """Nodes that count against the iterations: a person's own do not."""
        return sum(node.origin != "human" for node in self.nodes.values())

    def open_nodes(self) -> list[Node]:
        """Not settled, in order of proposal: what a restart takes up again."""
        return [node for node in self.nodes.values() if not node.settled]

    def stale(self) -> int:
        """Nodes settled since the best one was found (all of them when there is none)."""
        best = self.best
        start = best.number if best else 0
        return sum(node.settled and node.number > start for node in self.nodes.values())
