"""The operator bench: what the model calls, what was forged of it, and what happens now."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Static

from forge_tui.screens.base import FindLine
from forge_tui.screens.dialogs import Choose
from forge_tui.screens.operatorcard import card_lines, group_lines
from forge_tui.screens.operatorrows import COLUMNS, GROUP
from forge_tui.screens.runs import RunActions
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Table
from forge_tui.screens.words import clock, money, state

DESCRIBE_S = 0.05
LOG_LINES = 60
WORTH_MORE = 0.1
"""Share of the time without a kernel from which another writer is proposed."""
WIDE = 120
"""Columns of the terminal from which the card has its full width."""
CARD_S = 1.0
"""The card under a cursor that rests follows the run so often: it is most of what changes on the screen."""


class OperatorBench(RunActions):
    """One project."""

    NAME = "operators"
    SIDE = "#card"
    LOWER = "#below"
    NARROW, LOW = 110, 24
    """Beside a card the table of a narrower terminal would lose what its rows are ranked by, or their speed-up."""
    LEGEND: ClassVar[str] = (
        "✓ won or verified   = no gain   ✗ failed   · not tried   ▶ in flight   – not offered\n"
        "▸ ▾ several variants (space)   ● marked   ▼ ▲ sorted by it (o, O)\n"
        "(12%) counted already: with the region it is in, or with what is in it"
    )
    BINDINGS = [
        Binding("f", "forge", "forge", tooltip="forge the marked operators, or this one", id="operators.forge"),
        Binding(
            "F", "forge_all", "forge all", tooltip="forge all, most recoverable time first", id="operators.forge_all"
        ),
        Binding("s", "stop", "stop", tooltip="stop the run after a clean save; f goes on later", id="operators.stop"),
        Binding(
            "P",
            "pause",
            "pause",
            show=False,
            tooltip="pause the run: what is in flight is judged, nothing new is asked for; or let it go on",
            id="operators.pause",
        ),
        Binding(
            "r", "results", "results", tooltip="before and after, in use or fallen back, export", id="operators.results"
        ),
        Binding("m", "mark", "mark", tooltip="mark this operator", id="operators.mark"),
        Binding(
            "space,right,left,l,h",
            "fold",
            "fold",
            show=False,
            tooltip="show or hide the variants of an operator",
            id="operators.fold",
        ),
        Binding(
            "M",
            "mark_all",
            "mark all",
            show=False,
            tooltip="mark all that can be forged, or none",
            id="operators.mark_all",
        ),
        Binding("R", "retry", "retry", show=False, tooltip="try the failed operators again", id="operators.retry"),
        Binding(
            "w",
            "writer",
            "writer",
            show=False,
            tooltip="who writes the kernels of the runs that are started here",
            id="operators.writer",
        ),
        Binding("o", "sort", "sort", tooltip="choose the column to sort by", id="operators.sort"),
        Binding("O", "reverse", "reverse", show=False, tooltip="turn the order round", id="operators.reverse"),
        Binding("i", "card", "card", show=False, tooltip="show or hide the card", id="operators.card"),
        Binding("escape,q", "back", "back", id="operators.back"),
    ]
    DEFAULT_CSS = """
    OperatorBench #card { width: 34; padding: 0 1; border-left: solid $panel; }
    OperatorBench.wide #card { width: 42; }
    OperatorBench #below { height: 8; border-top: solid $panel; }
    OperatorBench #now { width: 40; height: 1fr; padding: 0 1; color: $forge-running; }
    OperatorBench #log { padding: 0 1; height: 7; }
    OperatorBench.narrow #card { display: none; }
    OperatorBench.narrow.carded #card { display: block; width: 1fr; border-left: none; }
    OperatorBench.narrow.carded #operators { display: none; }
    OperatorBench.uncarded #card { display: none; }
    OperatorBench.narrow #below { layout: vertical; }
    OperatorBench.narrow #now { width: 1fr; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    OperatorBench.narrow #log { height: 1fr; }
    OperatorBench.low #below { height: 4; }
    """

    def __init__(self, watch: ProjectWatch) -> None:
        super().__init__(watch)
        self._wanted = ""
        self._described = 0.0
        self._card_stale = True

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="upper", classes="pane"):
            yield Table(
                COLUMNS, self._rows.row, empty=self._empty(), id="operators"
            )
            yield LineView(id="card", can_focus=False)
        with Horizontal(id="below", classes="pane"):
            yield Static(id="now", markup=False)
            yield LineView(id="log", tail=True)
        yield FindLine("filter: words of the name, the key, the state, the shape")
        yield KeyBar()

    def on_mount(self) -> None:
        self.project.refresh()
        self._show()
        self.start_following()
        self.query_one("#operators").focus()

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "wide")
        self.fit()
        self._show()
        self.call_after_refresh(self._describe)

    def follow(self) -> None:
        if self.project.refresh():
            self._show()
        if self._card_stale and time.monotonic() - self._described >= CARD_S:
            self._describe()

    def _show(self) -> None:
        self.update("#title", self._headline())
        table = self.query_one("#operators", Table)
        keys = self._rows.keys(self._wanted)
        self._fit_columns(table)
        self.show_matches(table, keys, self._wanted, self._empty())
        now = self._now().split("\n")
        if self.has_class("narrow") and self.project.holder:  # in one line what goes on comes before whose process it is
            now = [*now[1:], now[0]]
        self.update("#now", ("   " if self.has_class("narrow") else "\n").join(now))
        self.query_one("#log", LineView).show(_log(list(self.project.log)[-LOG_LINES:]))
        self._card_stale = True

    def _fit_columns(self, table: Table) -> None:
        """Which columns have something to say, which of them stays whatever the width, and the sorted one's mark."""
        sorting = self._rows.sorting if self.project.cards else None
        columns = (self._rows.silent(), self._rows.kept, sorting)
        if columns != (table.hidden, table.kept, table.sorting):
            table.hidden, table.kept, table.sorting = columns
            table.refresh()

    def _empty(self) -> str:
        """Where there are no operators: the next key, or what goes on."""
        if self.project.running and self.project.cards is None:
            return f"▶ {self.project.state.activity or 'starting'}: the operators stand here once the model is captured"
        return "nothing captured yet: press F to capture and forge"

    def _headline(self) -> str:
        run, parts = self.project.state, [self.project.paths.root.name, state(self.project.status)]
        if self.project.problem:
            return f"{parts[0]}   {self.project.problem}"
        if run.run is not None:
            left = self.project.remaining_s
            parts.append(clock(run.elapsed_s) + (f", about {clock(left)} left" if left else ""))
            parts.append(money(run.cost_usd, run.tokens))
            parts.append(f"{run.run.device}, {run.run.provider}")
        if self.project.running and run.activity and not self.project.in_flight():  # what is in flight stands below
            parts.append(run.activity)
        elif run.ended and not self.project.running and run.ended.status != "done":
            parts.append(run.ended.reason)
        return "   ".join(parts)

    def _now(self) -> str:
        """The queue and who holds the device."""
        holder = self.project.holder
        if holder is None:
            return self._next_step()
        flight = self.project.in_flight()
        judged = [node for node in flight if node.kernel]
        if not self.project.run_goes_on:
            return f"process {holder.pid} on {holder.host}\nstarting, or no run: a bench, an evaluation"
        lines = [f"process {holder.pid} on {holder.host}"]
        lines += [
            f"{'judging' if node in judged else 'asking '} {self.project.name_of(node.id.partition('/')[0])} #{node.number}"
            for node in [*judged, *(node for node in flight if node not in judged)]
        ][:4]
        queued = [
            key
            for key in self.project.state.selected
            if (found := self.project.state.operators.get(key)) and found.done is None and not found.tree.nodes
        ]
        return "\n".join([*lines, f"{len(queued)} operators queued"] if queued else lines)

    def _next_step(self) -> str:
        """Where nothing runs: the key that goes on from here."""
        status, run = self.project.status, self.project.state
        if self.project.cards is None:
            return "nothing captured yet\nF captures the model and forges"
        if not run.selected:
            return "captured; nothing was forged yet\nF forges all, f this operator"
        if status != "done":
            return f"{status}: F goes on"
        left = sum(self._rows.share_of("skipped", "failed"))
        lines = ["done: r shows results"]  # with the next one, this fits 80 columns
        if left >= WORTH_MORE:
            lines.append(f"{left:.0%} of the time has no kernel: w names another writer")
        return "\n".join(lines)

    def _describe(self) -> None:
        self._described, self._card_stale = time.monotonic(), False
        card, key = self.query_one("#card", LineView), self.query_one("#operators", Table).key
        width = max(20, card.size.width)
        if not self.project.cards or key is None:
            return
        if key.startswith(GROUP):
            card.show(group_lines(self.project, self._rows.variants_of(key), width), top=0)
        elif entry := self._rows.entry(key):
            card.show(card_lines(self.project, entry, width), top=0)

    @on(Table.Moved)
    def _moved(self) -> None:
        self.set_timer(DESCRIBE_S, self._describe)

    @on(Table.Chosen)
    def _chosen(self, message: Table.Chosen) -> None:
        from forge_tui.screens.kernels import KernelBench

        if message.key.startswith(GROUP):
            self.action_fold()
            return
        operator = self.project.state.operators.get(message.key)
        if operator is None or not operator.tree.nodes:
            entry = self._rows.entry(message.key)
            why = "no kernel was tried on it yet: press f to forge it"
            if entry and not entry.variant.offered:
                why = entry.variant.reason
            elif entry and entry.operator and entry.operator.done:
                why = f"{entry.operator.done.reason}; w chooses another writer, f asks it"
            self.notify(why, title="Nothing to show")
        else:
            self.app.push_screen(KernelBench(self.project, message.key))

    # -- actions

    def action_fold(self) -> None:
        table = self.query_one("#operators", Table)
        entries = self._rows.variants_of(table.key) if table.key else []
        if not entries:
            return
        operator = entries[0].variant.operator
        self._rows.open ^= {operator}
        keys = self._rows.keys(self._wanted)
        if table.key not in keys:
            table.show(keys)
            table.select(GROUP + operator)
        else:
            table.show(keys)
        table.repaint()

    def action_mark(self) -> None:
        table = self.query_one("#operators", Table)
        refused = [entry for entry in self._rows.variants_of(table.key or "") if not entry.variant.offered]
        if refused and len(refused) == len(self._rows.variants_of(table.key or "")):
            self.notify(refused[0].variant.reason, title="Cannot be forged")
            return
        table.toggle_mark()

    def action_mark_all(self) -> None:
        table = self.query_one("#operators", Table)
        able = {key for key in table.keys if any(entry.variant.offered for entry in self._rows.variants_of(key))}
        table.marked = set() if able <= table.marked else able
        table.refresh()

    def action_results(self) -> None:
        from forge_tui.screens.results import Results

        if self.project.cards is None:
            self.notify("nothing was captured yet: F captures and forges", title="No results")
            return
        self.app.push_screen(Results(self.project))

    def action_sort(self) -> None:
        titles = [column.title for index, column in enumerate(COLUMNS) if index not in self._rows.silent()]
        ranked = COLUMNS[self._rows.ranked_by].title
        as_captured = f"as captured: by {ranked}, what is not offered at the end"
        now = COLUMNS[self._rows.sort[0]].title if self._rows.sort else as_captured

        def chosen(name: str | None) -> None:
            if name:
                indices = {column.title: index for index, column in enumerate(COLUMNS)}
                self._sort((indices[name], False) if name in indices else None)

        self.app.push_screen(Choose("sort by", [as_captured, *titles], now), chosen)

    def action_reverse(self) -> None:
        column, backwards = self._rows.sort or (self._rows.ranked_by, False)
        self._sort((column, not backwards))

    def _sort(self, sort: tuple[int, bool] | None) -> None:
        table = self.query_one("#operators", Table)
        self._rows.sort = sort
        self._fit_columns(table)
        table.show(self._rows.keys(self._wanted))
        table.refresh()

    def action_resize(self, direction: int) -> None:
        """Where the card has no border of its own, that of the log."""
        if self.has_class("narrow"):
            self.action_raise(-direction)
        else:
            super().action_resize(direction)

    def action_card(self) -> None:
        self.toggle_class("carded" if self.has_class("narrow") else "uncarded")
        self.query_one("#card", LineView).can_focus = self.has_class("carded")
        (self.query_one("#card") if self.has_class("carded") else self.query_one("#operators")).focus()
        self.call_after_refresh(self._describe)

    def found_text(self, text: str) -> None:
        self._wanted = text
        self.show_matches(self.query_one("#operators", Table), self._rows.keys(text), text, self._empty())

    def find_ended(self) -> None:
        self.query_one("#operators").focus()


def _log(lines: list[str]) -> list[Line]:
    """Failures and warnings stand out; the words say so too."""
    found: list[Line] = []
    for line in lines:
        text = " ".join(line.split("\n"))
        token = (
            "forge-failed"
            if any(f"  {word}" in text for word in ("wrong", "fault", "refused", "no_build", "error"))
            else ""
        )
        found.append(((text[:7], "forge-muted"), (text[7:], token)))
    return found
