"""The search tree as rows: guides, the path to the best marked, failures folded into one row that says how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from forge_tui.engine.search.tree import Node, Tree
from forge_tui.screens.widgets.table import Cell, Column, Row
from forge_tui.screens.words import TOKENS, microseconds, speedup, state

COLUMNS = (
    Column("candidate", 0),
    Column("outcome", 11),
    Column("speed-up", 8, "right"),
    Column("time", 9, "right", drop=1),
    Column("visits", 6, "right", drop=2),
    Column("strategy", 14, drop=3),
)
"""Where room is short the figure that candidates are compared by stays: the speed-up, or the time where there is none."""
SPEEDUP, TIME = 2, 3
"""Columns."""
FOLD = "fold:"
"""Begins the key of a row that stands for folded failures; the parent's id follows."""
DEEPEST = 6
"""Cells of guides: of deeper nodes only the nearest levels are drawn, so that there is room for what they are."""
SHOWN = ("verified", "pending")
"""Outcomes that are never folded away."""


@dataclass(frozen=True)
class Place:
    """Where a node stands: the guides drawn before it."""

    guides: str
    folded: tuple[Node, ...] = ()
    """Of a fold row: what it hides."""


class TreeRows:
    """Visible rows of one tree. `closed`: nodes whose children are hidden; `open_folds`: failures that are shown."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.closed: set[str] = set()
        self.open_folds: set[str] = set()
        self.places: dict[str, Place] = {}
        self.path: set[str] = set()
        """Nodes on the way to the best one."""
        self.best: str | None = None
        self.asked: Callable[[Node], list[str]] = lambda _: []
        """Moves of a person that no engine has taken up, in words."""

    def keys(self, wanted: str = "") -> list[str]:
        """Rows from the top. wanted: only nodes whose text holds it, flat."""
        best = self.tree.best
        self.best = best.id if best else None
        self.path = {node.id for node in best.lineage()} if best else set()
        self.places = {}
        if wanted:
            for node in self.tree.nodes.values():
                if wanted.lower() in f"{node.number} {describe(node)} {node.outcome} {node.strategy}".lower():
                    self.places[node.id] = Place("")
            return list(self.places)
        self._children(self.tree.root, "")
        return list(self.places)

    def _children(self, parent: Node, guides: str) -> None:
        """Depth first, with a stack: trees of `linear` policies are as deep as they have nodes."""
        stack: list[tuple[Node | tuple[Node, ...], str, bool, str]] = self._level(parent, guides)
        while stack:
            item, guides, last, owner = stack.pop()
            mark = (guides if len(guides) <= DEEPEST else f"⋯ {guides[-DEEPEST:]}") + ("└ " if last else "├ ")
            if isinstance(item, tuple):
                self.places[FOLD + owner] = Place(mark, item)
                continue
            self.places[item.id] = Place(mark)
            if item.children and item.id not in self.closed:
                stack += self._level(item, guides + ("  " if last else "│ "))

    def _level(self, parent: Node, guides: str) -> list[tuple[Node | tuple[Node, ...], str, bool, str]]:
        """One node's children in reverse, as a stack wants them."""
        shown = [child for child in parent.children if not self._folds(child)]
        folded = tuple(child for child in parent.children if self._folds(child))
        items: list[Node | tuple[Node, ...]] = [*shown]
        if folded:
            items += folded if parent.id in self.open_folds else [folded]
        return [(item, guides, index == len(items) - 1, parent.id) for index, item in enumerate(items)][::-1]

    @staticmethod
    def _folds(node: Node) -> bool:
        return node.outcome not in SHOWN and not node.children

    def row(self, key: str) -> Row:
        """One row of the table."""
        place = self.places.get(key, Place(""))
        if place.folded:
            return _fold_row(key, place)
        node = self.tree.nodes[key]
        sign = "★ " if key == self.best else "• " if key in self.path else ""
        moves = "".join(
            f" [{word}]"
            for word, said in (("pinned", node.pinned), ("pruned", node.pruned), ("hint", node.hint))
            if said
        )
        moves += "".join(f" [{words}]" for words in self.asked(node))
        hidden = f" (+{node.visits + node.pending - 1} below)" if key in self.closed and node.children else ""
        value = node.verdict.timing.speedup if node.verified and node.verdict and node.verdict.timing else None
        return Row(
            key,
            (
                Cell(f"{place.guides}{sign}{node.number}{moves} {describe(node)}{hidden}", "bold" if key == self.best else ""),
                Cell(outcome_text(node), TOKENS.get(node.outcome, "forge-running" if not node.settled else "")),
                Cell(speedup(value)),
                Cell(microseconds(node.us)),
                Cell(str(node.visits)),
                Cell(node.strategy),
            ),
        )

    def toggle(self, key: str) -> bool:
        """Fold or unfold; whether there was something to."""
        if key.startswith(FOLD):
            self.open_folds.add(key.removeprefix(FOLD))
            return True
        node = self.tree.nodes[key]
        owner = node.parent.id if node.parent else ""
        if node.children:
            self.closed ^= {key}
            return True
        if owner in self.open_folds and self._folds(node):
            self.open_folds.discard(owner)
            return True
        return False

    def reveal(self, node: Node) -> None:
        """Unfold whatever hides a node."""
        if self._folds(node) and node.parent is not None:
            self.open_folds.add(node.parent.id)
        self.closed -= {above.id for above in node.lineage()} - {node.id}


def describe(node: Node) -> str:
    """The idea in a line, or what is going on."""
    idea = node.replied.idea if node.replied else ""
    return idea or node.strategy or "asked"


def outcome_text(node: Node) -> str:
    """Glyph and word."""
    if node.settled:
        return state(node.outcome)
    return "▶ judging" if node.kernel else "▶ asking"


def _fold_row(key: str, place: Place) -> Row:
    counts = Counter(node.outcome for node in place.folded)
    text = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in counts.most_common())
    return Row(
        key,
        (
            Cell(f"{place.guides}▸ {text}", "forge-muted"),
            Cell(""),
            Cell(""),
            Cell(""),
            Cell(""),
            Cell(""),
        ),
    )
