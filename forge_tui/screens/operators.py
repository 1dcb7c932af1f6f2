"""The operator bench: what the model calls, what was forged of it, and what happens now."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from forge_tui.engine import events
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.state import OperatorState
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import TOKENS, bar, microseconds, short, state

COLUMNS = (
    Column("operator", 0), Column("calls", 5, "right", drop=3), Column("share", 12, drop=2), Column("eager", 9, "right", drop=4),
    Column("best", 9, "right"), Column("tried", 5, "right", drop=1), Column("status", 12),
)
LOG_LINES = 6


class OperatorBench(Screen[None]):
    """One project."""

    BINDINGS = [
        Binding("f", "forge(False)", "forge this"), Binding("F", "forge(True)", "forge all"), Binding("s", "stop", "stop"),
        Binding("escape,q", "app.pop_screen", "back"),
    ]
    DEFAULT_CSS = """
    OperatorBench #title { height: 1; padding: 0 1; text-style: bold; }
    OperatorBench #card { width: 44; padding: 0 1; border-left: solid $panel; }
    OperatorBench #log { height: 7; padding: 0 1; border-top: solid $panel; }
    OperatorBench.narrow #card { display: none; }
    """

    def __init__(self, watch: ProjectWatch) -> None:
        super().__init__()
        self.watch = watch

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal():
            yield Table(COLUMNS, empty="nothing captured yet: press F to capture and forge", id="operators")
            with VerticalScroll(id="card", can_focus=False):
                yield Static(id="text", markup=False)
        yield Static(id="log", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._follow(force=True)
        self.set_interval(0.25, self._follow)

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100, "narrow")

    def _follow(self, force: bool = False) -> None:
        if self.watch.refresh() or force:
            self._update("#title", self._headline())
            self.query_one(Table).set_rows(self._rows())
            self._update("#log", log_text(self.watch))
            self._describe()

    def _update(self, selector: str, text: str) -> None:
        """Repaint only what changed."""
        widget = self.query_one(selector, Static)
        if widget.content != text:
            widget.update(text)

    def _headline(self) -> str:
        run = self.watch.state
        cost = "unknown" if run.cost_usd is None else f"${run.cost_usd:.2f}"
        return (f"{self.watch.paths.root.name}  {state(self.watch.status)}  {run.elapsed_s:.0f} s  cost {cost}"
                + (f"  {run.activity}" if self.watch.running and run.activity else ""))

    def _rows(self) -> list[Row]:
        cards = self.watch.cards
        if cards is None:
            return []
        return [_row(cards, variant, self.watch.state.operators.get(variant.key)) for variant in cards.variants]

    def _describe(self) -> None:
        cards, key = self.watch.cards, self.query_one(Table).key
        variant = cards.find(key) if cards and key else None
        if variant:
            self._update("#text", card_text(variant, self.watch.state.operators.get(variant.key)))
        elif self.watch.problem:
            self._update("#text", self.watch.problem)

    def on_table_moved(self) -> None:
        self._describe()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        from forge_tui.screens.kernels import KernelBench

        operator = self.watch.state.operators.get(message.key)
        if operator is None or not operator.tree.nodes:
            self.notify("no kernel was tried on it yet: press f to forge it", title="Nothing to show")
        else:
            self.app.push_screen(KernelBench(self.watch, message.key))

    def action_forge(self, everything: bool) -> None:
        key = self.query_one(Table).key
        if self.watch.running:
            self.notify("a run already holds this project; press s to stop it", title="Already running")
            return
        if not everything and key and self.watch.cards:
            variant = self.watch.cards.find(key)
            if variant and not variant.offered:
                self.notify(variant.reason, title="Cannot be forged")
                return
        self.watch.start(() if everything or not key else (key,))
        self.notify("started in a session of its own; closing this terminal does not stop it", title="Forging")

    def action_stop(self) -> None:
        if not self.watch.running:
            self.notify("no run holds this project", title="Nothing to stop")
            return
        self.watch.stop()
        self.notify("the run saves and ends after the candidate in flight", title="Stopping")


def _row(cards: OperatorFile, variant: Variant, operator: OperatorState | None) -> Row:
    share = cards.share(variant)
    status = operator.status if operator else "pending"
    word = state(status) if variant.offered else "– not offered"
    best = operator.best if operator else None
    timing = best.verdict.timing if best and best.verdict else None
    shape = next((f" {list(spec.shape)}" for _, spec in variant.call.tensors()), "")
    return Row(variant.key, (
        Cell(short(variant.operator) + shape), Cell(str(variant.calls)), Cell(f"{bar(share, 6)} {share:4.0%}"),
        Cell(microseconds(variant.time_us)), Cell(microseconds(timing.us if timing else None)),
        Cell(str(operator.tried) if operator else "0"), Cell(word, TOKENS.get(status, "") if variant.offered else "forge-muted"),
    ))


def card_text(variant: Variant, operator: OperatorState | None) -> str:
    """The side pane: the call, its inputs' values, and the best kernel."""
    lines = [variant.operator, f"variant {variant.key}, {variant.calls} calls a forward", ""]
    for name, spec in variant.call.tensors():
        lines.append(f"{name}: {spec.dtype} {list(spec.shape)}")
        if not spec.contiguous:
            lines.append(f"  strides {list(spec.stride)}")
        values = variant.statistics.get(name)
        if values:
            lines.append(f"  {values.minimum:.3g} to {values.maximum:.3g}, mean {values.mean:.3g}, std {values.std:.3g}")
    lines += ["", f"eager {microseconds(variant.time_us)}, floor {microseconds(variant.floor_us)}"]
    if not variant.offered:
        lines += ["", f"not offered: {variant.reason}"]
    if operator and operator.done and operator.done.reason:
        lines += ["", operator.done.reason]
    if operator and operator.best and operator.best.verdict:
        verdict = operator.best.verdict
        lines += ["", f"best: {operator.best.id}", verdict.sentence]
        if verdict.timing:
            lines.append(f"{microseconds(verdict.timing.us)} ({verdict.timing.kind})")
        lines.append(", ".join(f"{name} {value}" for name, value in verdict.settings.items()))
    return "\n".join(lines)


def log_text(watch: ProjectWatch) -> str:
    """The last events in plain words."""
    from forge_tui.engine.report import event_line

    lines = [event_line(event) for event in watch.events[-40:] if not isinstance(event, events.Proposed)]
    return "\n".join([line for line in lines if line][-LOG_LINES:])
