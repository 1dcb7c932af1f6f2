"""The kernel bench: the search tree of one operator, and everything there is about the candidate under the cursor."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from forge_tui.engine import steering
from forge_tui.engine.search.tree import Node
from forge_tui.screens.base import LOWEST, FindLine, ForgeScreen
from forge_tui.screens.candidatetexts import AGAINST, CandidateTexts
from forge_tui.screens.dialogs import Ask
from forge_tui.screens.editing import WORDS, Moves, edit_text, hand_over
from forge_tui.screens.jump import Target
from forge_tui.screens.searchtree import COLUMNS, FOLD, SPEEDUP, TIME, TreeRows
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, plain, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Table
from forge_tui.screens.words import short

TABS = ("verdict", "timing", "source", "diff", "profile", "reasoning", "prompt", "reply", "build")
EMPTY = "no candidates yet: press esc, then f to forge this operator"
TREE_PART = 0.38
"""Of the lines, at the most, where the tree stands above the text."""
DESCRIBE_S = 0.05
"""The text pane follows the cursor after this rest, so that a held key does not draw what nobody reads."""
WIDE = 120
"""Columns of the terminal from which a diff has two sides."""


class KernelBench(ForgeScreen):
    """One operator's candidates."""

    NAME = "kernels"
    SIDE = "#tree"
    NARROW = 100
    LEGEND: ClassVar[str] = (
        "★ best   • on the way to it   ▸ folded failures (space opens)   ▶ in flight\n"
        "✓ verified   = same code as another   ✗ failed   – this target cannot tell"
    )
    BINDINGS = [
        Binding("space", "fold", "fold", tooltip="fold or unfold", id="kernels.fold"),
        Binding("b", "best", "best", tooltip="jump to the best candidate", id="kernels.best"),
        Binding("f", "failure", "next failure", id="kernels.failure"),
        Binding(
            "e",
            "edit",
            "edit",
            tooltip="edit the kernel in $EDITOR: makes a child that is judged like any other",
            id="kernels.edit",
        ),
        Binding(
            "m", "mark", "mark", show=False, tooltip="mark this candidate, to compare others with it", id="kernels.mark"
        ),
        Binding("d", "diff", "diff", tooltip="what the diff compares with: parent, best, builtin, marked", id="kernels.diff"),
        Binding("v", "layout", "layout", show=False, tooltip="the diff unified or side by side", id="kernels.layout"),
        Binding("n", "found(1)", "next match", show=False, tooltip="next match", id="kernels.next_match"),
        Binding("N", "found(-1)", "previous match", show=False, tooltip="previous match", id="kernels.previous_match"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the kernel's source (OSC 52)", id="kernels.copy"),
        Binding(
            "H", "hint", "hint", show=False, tooltip="hint: words for whoever writes below this candidate", id="kernels.hint"
        ),
        Binding(
            "x",
            "turn_move('prune')",
            "prune",
            show=False,
            tooltip="prune: build on nothing of this branch, or again",
            id="kernels.prune",
        ),
        Binding(
            "p",
            "turn_move('pin')",
            "pin",
            show=False,
            tooltip="pin: build only on pinned branches, or anywhere again",
            id="kernels.pin",
        ),
        *(
            Binding(str(number), f"tab('{name}')", name, show=False, tooltip=f"show {name}", id=f"kernels.tab_{name}")
            for number, name in enumerate(TABS, 1)
        ),
        Binding(
            "left_square_bracket",
            "turn(-1)",
            "previous tab",
            show=False,
            tooltip="previous tab",
            id="kernels.previous_tab",
        ),
        Binding("right_square_bracket", "turn(1)", "next tab", show=False, tooltip="next tab", id="kernels.next_tab"),
        Binding("escape,q", "back", "back", id="kernels.back"),
    ]
    DEFAULT_CSS = """
    KernelBench #tree { width: 45%; }
    KernelBench #text { border-left: solid $panel; padding: 0 1; }
    KernelBench #tabs { height: 1; padding: 0; color: $forge-muted; }
    KernelBench.narrow Horizontal { layout: vertical; }
    KernelBench.narrow #tree { width: 1fr; height: 38%; }
    KernelBench.narrow #text { border-left: none; height: 1fr; }
    """

    def __init__(self, watch: ProjectWatch, variant: str) -> None:
        super().__init__()
        self.project = watch
        self.variant = variant
        self.tab = "verdict"
        self.texts = CandidateTexts(watch, variant)
        self._rows = TreeRows(watch.state.operator(variant).tree)
        self._moves = Moves(watch)
        self._wanted = ""
        self._shown: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal():
            yield Table(
                COLUMNS, self._rows.row, empty=EMPTY, id="tree"
            )
            with Vertical(id="text", classes="pane"):
                yield Static(id="tabs")
                yield LineView(id="lines")
        yield FindLine("find: in the tree by words, in a text with n and N")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#tree").add_class("pane")
        self._show(force=True)
        self.start_following()
        self.query_one("#tree", Table).focus()
        best = self.project.state.operator(self.variant).best
        if best is not None:
            self.call_after_refresh(self.query_one("#tree", Table).select, best.id)

    def on_resize(self) -> None:
        self.fit()
        self._fit_tree()
        self._describe(force=True)

    def follow(self) -> None:
        if self.project.refresh() or self._moves.read():
            self._show()
        elif self.texts.grows(self.tab, self.node):
            self._describe(force=True)

    def _show(self, force: bool = False) -> None:
        self._moves.read()
        operator = self.project.state.operator(self.variant)
        if self._rows.tree is not operator.tree:  # the journal was begun anew
            self._rows = TreeRows(operator.tree)
            self.query_one("#tree", Table).row_of = self._rows.row
        self._rows.asked = self._moves.words
        variant = self.project.cards.find(self.variant) if self.project.cards else None
        name = f"{short(variant.operator)} {self.variant[:4]}" if variant else self.variant
        pending = f", {operator.pending} in flight" if operator.pending else ""
        self.update(
            "#title",
            f"{self.project.paths.root.name}   {self.project.problem}"
            if self.project.problem
            else f"{self.project.paths.root.name} › {name}   {operator.tried} tried, {operator.verified} verified{pending}",
        )
        table = self.query_one("#tree", Table)
        modelled = self.project.cards is not None and self.project.cards.time_kind == "cpu"
        table.hidden, table.kept = (frozenset({SPEEDUP}), frozenset({TIME})) if modelled else (frozenset(), frozenset())
        self.show_matches(table, self._rows.keys(self._wanted), self._wanted, EMPTY)
        self._fit_tree()
        self._describe(force)

    def _fit_tree(self) -> None:
        """Above the text a small tree takes no more lines than it has, unless somebody moved the border."""
        if self.has_class("narrow") and self.slot("") not in self.forge.remembered.panes:
            table = self.query_one("#tree", Table)
            height = max(LOWEST, min(round(TREE_PART * self.size.height), len(table.keys) + 1))
            if table.outer_size.height != height:
                table.styles.height = height

    @property
    def node(self) -> Node | None:
        """The candidate under the cursor; of folded failures, none."""
        key = self.query_one("#tree", Table).key
        return self.project.state.node(key) if key and not key.startswith(FOLD) else None

    # -- the text pane

    @on(Table.Moved)
    def _moved(self) -> None:
        self.set_timer(DESCRIBE_S, self._describe)

    def _describe(self, force: bool = False) -> None:
        view = self.query_one("#lines", LineView)
        node, width = self.node, max(20, view.size.width)
        stamp = (
            node.id if node else None,
            node.outcome if node else None,
            node.kernel if node else None,
            self.tab,
            self.texts.against,
            self.texts.marked,
            self.texts.unified,
            width,
        )
        if stamp == self._shown and not force:
            return
        fresh = self._shown is None or stamp[0] != self._shown[0] or self.tab != self._shown[3]
        self._shown = stamp
        self.update("#tabs", self._tab_line(width))
        live = self.texts.grows(self.tab, node)
        view.tail = live and (fresh or view.at_end)
        view.show(self._lines(node, width), top=0 if fresh else None)

    def _tab_line(self, width: int) -> str:
        names, gap = self._tab_names(width)
        return (" " * gap).join(f"[b reverse]{name}[/]" if name.endswith(self.tab) else name for name in names)

    def _tab_names(self, width: int) -> tuple[list[str], int]:
        """As much of the names as fits: with numbers, without, or only that of the tab that is shown; and the gap."""
        for names, gap in ([f"{number} {name}" for number, name in enumerate(TABS, 1)], 2), (list(TABS), 1):
            if sum(len(name) + gap for name in names) <= width + gap:
                return names, gap
        return [f"{number} {name}" if name == self.tab else str(number) for number, name in enumerate(TABS, 1)], 2

    def _lines(self, node: Node | None, width: int) -> list[Line]:
        if node is None:
            folded = self._rows.places.get(self.query_one("#tree", Table).key or "")
            if folded is None or not folded.folded:
                return plain("nothing was tried yet")
            return [
                line
                for item in folded.folded
                for line in wrapped(
                    f"{item.number} {item.outcome.replace('_', ' ')}: "
                    f"{item.verdict.sentence if item.verdict else item.replied.problem if item.replied else ''}",
                    width,
                )
            ]
        return self.texts.lines(self.tab, node, width, self._flat)

    @property
    def _flat(self) -> bool:
        """Whether a diff is unified."""
        return self.app.size.width < WIDE if self.texts.unified is None else self.texts.unified

    # -- actions

    def action_tab(self, name: str) -> None:
        self.tab = name
        self._describe()

    def jump_targets(self) -> list[Target]:
        strip, (x, y) = self._tab_names(self.query_one("#lines").size.width), self.query_one("#tabs").region.offset
        found = super().jump_targets()
        for name, text in zip(TABS, strip[0], strict=True):
            found.append(Target(x, y, partial(self.action_tab, name)))
            x += len(text) + strip[1]
        return found

    def action_turn(self, step: int) -> None:
        self.action_tab(TABS[(TABS.index(self.tab) + step) % len(TABS)])

    def action_diff(self) -> None:
        if self.tab == "diff":
            kinds = AGAINST
            self.texts.against = kinds[(kinds.index(self.texts.against) + 1) % len(kinds)]
        self.action_tab("diff")

    def action_layout(self) -> None:
        self.texts.unified = not self._flat
        self.action_tab("diff")

    def action_fold(self) -> None:
        table = self.query_one("#tree", Table)
        if table.key is None or not self._rows.toggle(table.key):
            self.notify("this candidate has no children and is not folded", title="Nothing to fold")
            return
        table.show(self._rows.keys(self._wanted))

    @on(Table.Chosen)
    def _chosen(self, message: Table.Chosen) -> None:
        if message.key.startswith(FOLD):
            self.action_fold()
        else:
            self.query_one("#lines", LineView).focus()

    def action_best(self) -> None:
        best = self.project.state.operator(self.variant).best
        if best is None:
            self.notify("no candidate is verified yet; f goes to the next failure", title="No best")
            return
        self._go(best)

    def action_failure(self) -> None:
        node = self.node
        nodes = list(self.project.state.operator(self.variant).tree.nodes.values())
        start = node.number if node else 0
        failed = [
            item
            for item in nodes[start:] + nodes[:start]
            if item.settled and item.outcome not in ("verified", "duplicate")
        ]
        if not failed:
            self.notify("nothing failed here", title="No failure")
            return
        self._go(failed[0])

    def _go(self, node: Node) -> None:
        self._rows.reveal(node)
        table = self.query_one("#tree", Table)
        table.show(self._rows.keys(self._wanted))
        table.select(node.id)

    def action_mark(self) -> None:
        node = self.node
        if node is None:
            self.notify("put the cursor on a candidate", title="Nothing to mark")
            return
        table = self.query_one("#tree", Table)
        self.texts.marked = None if self.texts.marked == node.id else node.id
        table.marked = {self.texts.marked} if self.texts.marked else set()
        table.refresh()
        self.texts.against = "marked" if self.texts.marked else "parent"

    def action_copy(self) -> None:
        text, problem = self.texts.source(self.node) if self.node else ("", "put the cursor on a candidate")
        if problem:
            self.notify(problem, title="Nothing to copy")
            return
        self.app.copy_to_clipboard(text)
        self.notify("the source is in the clipboard, if this terminal takes OSC 52", title="Copied")

    def action_hint(self) -> None:
        node = self._steerable("hint at")
        if node is None:
            return

        def given(words: str | None) -> None:
            if words:
                said = f"hint at #{node.number}: {words if len(words) <= 40 else words[:40] + '…'}"
                ask = partial(steering.attach_hint, self.project.paths, node.id, words)
                hand_over(self, self.project, node.id, ask, said=said)
                self._show()

        self.app.push_screen(Ask(f"Words for whoever writes the next kernels below #{node.number}", node.hint), given)

    def action_turn_move(self, kind: str) -> None:
        """On or off; what was asked for and not taken up yet counts."""
        node = self._steerable(kind)
        if node is None:
            return
        on = not self._moves.on(node, kind)
        ask = partial(steering.prune if kind == "prune" else steering.pin, self.project.paths, node.id, on)
        said = f"{WORDS[kind]} #{node.number}" if on else f"#{node.number} no longer {WORDS[kind]}"
        hand_over(self, self.project, node.id, ask, said=said)
        self._show()

    def _steerable(self, what: str) -> Node | None:
        if self.node is None:
            self.notify("put the cursor on a candidate", title=f"Nothing to {what}")
        return self.node

    def action_edit(self) -> None:
        node = self.node
        text, problem = self.texts.source(node) if node else ("", "put the cursor on a candidate that has a kernel")
        if node is None or problem:
            self.notify(problem, title="Nothing to edit")
            return
        edit_text(self, self.project, node, text)

    # -- find

    def found_text(self, text: str) -> None:
        if self._tree_wanted:
            self._wanted = text
            self.show_matches(self.query_one("#tree", Table), self._rows.keys(text), text, EMPTY)
        else:
            self.search_lines(self.query_one("#lines", LineView), text)

    def action_find(self) -> None:
        self._tree_wanted = not self.query_one("#lines").has_focus
        super().action_find()

    def find_ended(self) -> None:
        self.query_one("#tree" if self._tree_wanted else "#lines").focus()

    def action_found(self, step: int) -> None:
        number = self.query_one("#lines", LineView).next_found(step)
        if number is None:
            self.notify("nothing was searched for: tab to the text, then /", title="No match")
