"""Results: before and after of each operator and the model, what the model uses and why, and the export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from forge_tui.engine.events import ModelTime
from forge_tui.errors import ProjectError
from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.exporting import Export, Plan, offer_of
from forge_tui.screens.operatorrows import Entry, in_model, in_model_reason, shape_of
from forge_tui.screens.processes import forge_command
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import TOKENS, microseconds, money, short, speedup, state

COLUMNS = (
    Column("operator", 0, most=56),
    Column("key", 4, drop=1),
    Column("calls", 5, "right", drop=4),
    Column("before", 9, "right", drop=3),
    Column("after", 9, "right"),
    Column("speed-up", 19, "right"),
    Column("cost", 7, "right", drop=5),
    Column("in model", 10),
    Column("result", 12, drop=2),
)
LABEL = 14
"""Cells of the labels below the table."""
BEFORE, SPEEDUP = 3, 5
"""Columns: left out where nothing was timed against eager."""
COST = 6
"""Column: left out where all was free."""

EMPTY = "nothing was worked on yet: press esc, then F to forge"


class Results(ForgeScreen):
    """What came of it."""

    NAME = "results"
    LOWER = "#whole"
    LOW = 30
    LEGEND: ClassVar[str] = (
        "✓ used: the kernel runs in the model   original: the model's own operator runs; the line below says why"
    )
    BINDINGS = [
        Binding("x", "export(False)", "export", tooltip="choose kernels and write the package", id="results.export"),
        Binding("w", "export(True)", "export wheel", tooltip="the same, and a wheel of it", id="results.wheel"),
        Binding(
            "b",
            "bench",
            "bench the model",
            tooltip="compare and time the whole model: eager, torch.compile, forged",
            id="results.bench",
        ),
        Binding("escape,q", "back", "back", id="results.back"),
    ]
    DEFAULT_CSS = """
    Results #whole { height: 13; padding: 0 1; border-top: solid $panel; }
    Results.low #whole { height: 8; }
    """

    def __init__(self, watch: ProjectWatch) -> None:
        super().__init__()
        self.project = watch
        self._entries: dict[str, Entry] = {}
        self._wanted = ""
        self._benching = False

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Table(COLUMNS, self._row, empty=EMPTY, id="results")
        yield LineView(id="whole", can_focus=False)
        yield FindLine("filter: words of the name or the result")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#results").focus()
        self.call_after_refresh(self._show)
        self.start_following()

    def on_resize(self) -> None:
        self.fit()
        self.call_after_refresh(self._show)

    def follow(self) -> None:
        if self.project.refresh():
            self._show()

    def _show(self) -> None:
        cards, run = self.project.cards, self.project.state
        entries = [Entry(variant, run.operators.get(variant.key)) for variant in cards.variants] if cards else []
        self._entries = {
            entry.variant.key: entry
            for entry in entries
            if entry.operator is not None
            and entry.operator.tried
            and self._wanted.lower() in f"{entry.variant.operator} {entry.status}".lower()
        }
        self.update(
            "#title",
            f"{self.project.paths.root.name} › results   "
            + (self.project.problem or f"{state(self.project.status)}   {money(run.cost_usd, run.tokens)}"),
        )
        table = self.query_one("#results", Table)
        timed = any(entry.gain[0] is not None for entry in self._entries.values())
        table.hidden = (frozenset() if timed else frozenset({BEFORE, SPEEDUP})) | (
            frozenset() if run.cost_known or run.unpriced else frozenset({COST})
        )
        self.show_matches(table, list(self._entries), self._wanted, EMPTY)
        self._describe()

    def _row(self, key: str) -> Row:
        entry = self._entries[key]
        operator, modelled = entry.operator, entry.gain[0] is None
        word, token = in_model(self.project, entry)
        before = "–" if modelled else microseconds(entry.baseline_us)
        cost = "–" if operator is None else "unknown" if operator.unpriced else f"${operator.cost_usd:.2f}"
        return Row(
            key,
            (
                Cell(f"{short(entry.variant.operator)} {shape_of(entry.variant)}"),
                Cell(key[:4], "forge-muted"),
                Cell(str(entry.variant.calls)),
                Cell(before),
                Cell(microseconds(entry.best_us)),
                Cell(speedup(*entry.gain)),
                Cell(cost),
                Cell(word, token),
                Cell(state(entry.status), TOKENS.get(entry.status, "")),
            ),
        )

    def _describe(self) -> None:
        view = self.query_one("#whole", LineView)
        entry = self._entries.get(self.query_one("#results", Table).key or "")
        lines = whole_lines(self.project, list(self._entries.values()), entry, max(40, view.size.width))
        if self._benching:
            lines.insert(0, ((f"{'bench':<{LABEL}}", "forge-muted"), ("▶ the whole model is compared and timed", "forge-running")))
        view.show(lines, top=0)

    def on_table_moved(self) -> None:
        self._describe()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        from forge_tui.screens.kernels import KernelBench

        self.app.push_screen(KernelBench(self.project, message.key))

    def action_export(self, wheel: bool) -> None:
        entries = list(self._entries.values())
        if not any(offer_of(entry).able for entry in entries):
            self.notify("no kernel is verified yet: esc, then F forges", title="Nothing to export")
            return

        def chosen(plan: Plan | None) -> None:
            if plan is not None:
                self._export(plan)

        self.app.push_screen(Export(entries, str(self.project.paths.packages / "export"), wheel), chosen)

    @work(exclusive=True)
    async def _export(self, plan: Plan) -> None:
        self.notify("packing; kernels that cannot be packed are named at the end", title="Exporting")
        finished = await forge_command(
            "export",
            str(self.project.paths.root),
            "-o",
            plan.folder,
            "--select",
            ",".join(plan.variants),
            *(["--wheel"] if plan.wheel else []),
        )
        said = "\n".join(filter(None, (finished.out.strip(), finished.err.strip())))
        if finished.code:
            self.notify(finished.words, title="Not exported", severity="error", timeout=20)
        else:
            self.notify(said, title="Exported", timeout=20)

    def action_bench(self) -> None:
        if self.project.state.packaged is None:
            self.notify("there is no package yet: a run that ends well writes one; esc, then F", title="Nothing to bench")
        elif self.project.running:
            self.notify(f"{self.project.holder} holds this project; it can be benched after that", title="Not now")
        elif self._benching:
            self.notify("it is being benched", title="Already benching")
        else:
            self._bench()

    @work(exclusive=True, group="bench")
    async def _bench(self) -> None:
        self._benching = True
        self._describe()
        self.notify("the whole model is compared and timed; the result comes up here", title="Benching")
        finished = await forge_command("bench", str(self.project.paths.root))
        self._benching = False
        self._describe()
        accepted = finished.out.strip().splitlines()[-1:] if finished.code in (0, ProjectError.exit_code) else []
        if accepted:
            self.notify(accepted[0], title="Benched", severity="information" if not finished.code else "warning")
        else:
            self.notify(finished.words, title="Not benched", severity="error", timeout=20)

    def found_text(self, text: str) -> None:
        self._wanted = text
        self._show()

    def find_ended(self) -> None:
        self.query_one("#results").focus()


def whole_lines(watch: ProjectWatch, entries: list[Entry], entry: Entry | None, width: int) -> list[Line]:
    """The whole model, then the operator under the cursor: a label and its words in each line."""
    lines: list[Line] = []
    for label, text, token in (*_whole(watch, entries), *_operator(watch, entry)):
        for number, line in enumerate(wrapped(text, width - LABEL, token)):
            lines.append(((f"{'' if number else label:<{LABEL}}", "forge-muted"), *line))
    return lines


def _whole(watch: ProjectWatch, entries: list[Entry]) -> Iterator[tuple[str, str, str]]:
    state, cards = watch.state, watch.cards
    proof, bench = state.in_model, state.benched
    if bench is not None:
        token = "forge-verified bold" if bench.accepted else "forge-failed bold"
        yield "model", f"{'✓ accepted' if bench.accepted else '✗ not accepted'}: {bench.reason}", token
        times = [item for item in bench.times if item.us is not None]
        if times:
            said = (f"{item.name} {microseconds(item.us)}" + _gain(item) for item in times)
            yield "", ", ".join(said), ""
        for variant, reason in bench.dropped.items():
            yield "", f"{watch.name_of(variant)} was dropped: {reason}", "forge-failed"
    elif state.packaged is not None:
        yield "model", "not timed as a whole yet: b compares and times it", "forge-muted"
    if proof is not None:
        yield (
            "in the model",
            f"{proof.kernel_calls} calls by kernels, {proof.fallback_calls} by the original operators; outputs within "
            f"{proof.relative_error:.1e} of eager's ({proof.detail})",
            "" if bench else "forge-verified",
        )
    else:
        yield "in the model", "not run with these kernels yet; a run that ends well does that", "forge-muted"
    timed = [item for item in entries if item.status == "won" and item.best_us is not None]
    if cards is not None and timed:
        saved = sum(item.variant.open_calls * (item.baseline_us - (item.best_us or 0.0)) for item in timed)
        yield "saved", f"{microseconds(saved)} of {microseconds(cards.forward_us)} a forward, summed over operators", ""
    elif cards is not None and cards.time_kind == "cpu":
        yield "times", "modelled: nothing is timed against eager on the host target", "forge-muted"
    if state.packaged:
        yield "package", state.packaged.path, "forge-muted"


def _gain(item: ModelTime) -> str:
    return "" if item.speedup is None or item.name == "eager" else f" ({speedup(item.speedup, item.speedup_interval)})"


def _operator(watch: ProjectWatch, entry: Entry | None) -> Iterator[tuple[str, str, str]]:
    if entry is None:
        return
    yield "", "", ""
    yield short(entry.variant.operator).rpartition(".")[2][: LABEL - 1], in_model_reason(watch, entry), "bold"
    if entry.operator and entry.operator.done and entry.operator.done.reason:
        yield "", entry.operator.done.reason, "forge-muted"
