"""The kernel bench: every candidate of one operator, with its verdict, timing and source."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.highlight import highlight
from textual.screen import Screen
from textual.widgets import Footer, Static, TabbedContent, TabPane

from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.search.tree import Node
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import microseconds, short

COLUMNS = (Column("candidate", 0), Column("outcome", 12), Column("time", 9, "right"))
GLYPHS = {"verified": "✓", "duplicate": "=", "pending": "▶", "skipped": "–"}


class KernelBench(Screen[None]):
    """One operator's candidates."""

    BINDINGS = [
        Binding("b", "best", "best"), Binding("1", "tab('verdict')", "verdict"), Binding("2", "tab('timing')", "timing"),
        Binding("3", "tab('source')", "source"), Binding("escape,q", "app.pop_screen", "back"),
    ]
    DEFAULT_CSS = """
    KernelBench #title { height: 1; padding: 0 1; text-style: bold; }
    KernelBench Table { width: 50; }
    KernelBench VerticalScroll { padding: 0 1; }
    KernelBench.narrow Horizontal { layout: vertical; }
    KernelBench.narrow Table { width: 1fr; height: 8; }
    """

    def __init__(self, watch: ProjectWatch, variant: str) -> None:
        super().__init__()
        self.watch = watch
        self.variant = variant
        self._shown: tuple[str, str] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal():
            yield Table(COLUMNS, empty="no candidates yet", id="nodes")
            with TabbedContent(id="tabs"):
                for name in ("verdict", "timing", "source"):
                    with TabPane(name, id=name), VerticalScroll():
                        yield Static(id=f"{name}-text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._follow(force=True)
        self.action_best(quiet=True)
        self.set_interval(0.25, self._follow)
        self.query_one(Table).focus()

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100, "narrow")

    def _follow(self, force: bool = False) -> None:
        if self.watch.refresh() or force:
            operator = self.watch.state.operator(self.variant)
            variant = self.watch.cards.find(self.variant) if self.watch.cards else None
            best = operator.best
            title = f"{short(variant.operator) if variant else self.variant}  {operator.tried} tried, {operator.verified} verified"
            widget = self.query_one("#title", Static)
            if widget.content != title:
                widget.update(title)
            self.query_one(Table).set_rows([_row(node, node is best) for node in operator.tree.nodes.values()])
            self._describe()

    def _node(self) -> Node | None:
        key = self.query_one(Table).key
        return self.watch.state.node(key) if key else None

    def _describe(self) -> None:
        node = self._node()
        stamp = (node.id, node.outcome) if node else None
        if node is None or stamp == self._shown:
            return
        self._shown = stamp
        self.query_one("#verdict-text", Static).update(verdict_text(node))
        self.query_one("#timing-text", Static).update(timing_text(node.verdict))
        self.query_one("#source-text", Static).update(self._source(node))

    def _source(self, node: Node) -> Content:
        if node.kernel is None:
            return Content("no kernel in the reply" if node.settled else "not written yet")
        try:
            text = self.watch.paths.kernel(node.kernel).read_text()
        except OSError as error:
            return Content(f"kernels/{node.kernel}.cu cannot be read: {error.strerror}")
        return highlight(text, language="cuda")

    def on_table_moved(self) -> None:
        self._describe()

    def action_best(self, quiet: bool = False) -> None:
        best = self.watch.state.operator(self.variant).best
        table = self.query_one(Table)
        if best is None:
            if not quiet:
                self.notify("no candidate is verified yet", title="No best")
            return
        index = next(i for i, row in enumerate(table.rows) if row.key == best.id)
        table.action_move(index - table.cursor)

    def action_tab(self, name: str) -> None:
        self.query_one(TabbedContent).active = name
        self.query_one(Table).focus()


def _row(node: Node, best: bool) -> Row:
    colour = "forge-verified" if node.outcome == "verified" else "forge-muted" if node.outcome in GLYPHS else "forge-failed"
    name = f"{node.number:>3} {'★ ' if best else ''}{(node.replied.idea if node.replied else '') or node.strategy}"
    return Row(node.id, (Cell(name), Cell(f"{GLYPHS.get(node.outcome, '✗')} {node.outcome.replace('_', ' ')}", colour),
                         Cell(microseconds(node.us))))


def verdict_text(node: Node) -> str:
    """What was checked, with each figure and what was allowed."""
    verdict = node.verdict
    if verdict is None:
        return node.replied.problem if node.replied and node.replied.problem else "not judged yet"
    lines = [verdict.sentence, ""]
    for check in verdict.checks:
        figure = "" if check.figure is None else f"  {check.figure:.3g}"
        allowed = "" if check.allowed is None else f" of {check.allowed:.3g} allowed"
        lines.append(f"{'✓' if check.passed else '✗'} {check.name}{figure}{allowed}  {check.detail}".rstrip())
    if verdict.proxy:
        lines += ["", f"run on a smaller call of the same kind: {verdict.proxy}"]
    lines += ["", f"seed {verdict.seed}, judged in {verdict.judged_s:.1f} s"]
    if verdict.build_log:
        lines += ["", "compiler:", verdict.build_log]
    return "\n".join(lines)


def timing_text(verdict: Verdict | None) -> str:
    """Time, interval, and every tuning point, fastest first."""
    if verdict is None or verdict.timing is None:
        return "not timed"
    timing = verdict.timing
    lines = [f"{microseconds(timing.us)}, {timing.kind} time"]
    if timing.speedup is not None and timing.speedup_interval is not None:
        low, high = timing.speedup_interval
        lines.append(f"{timing.speedup:.2f}x over {timing.baseline} [{low:.2f}, {high:.2f}]")
    lines += ["", "tuning points, fastest first:"]
    for point in sorted(verdict.points, key=lambda point: (point.us is None, point.us or 0.0)):
        settings = " ".join(f"{name}={value}" for name, value in point.settings.items())
        lines.append(f"{microseconds(point.us):>10}  {settings}  {point.reason}".rstrip())
    return "\n".join(lines)
