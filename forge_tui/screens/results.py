"""Results: before and after of each operator and the model, what the model uses and why, and the export."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.dialogs import Ask
from forge_tui.screens.operatorrows import Entry, in_model, in_model_reason, shape_of
from forge_tui.screens.processes import forge_command
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import TOKENS, microseconds, money, short, speedup, state

COLUMNS = (
    Column("operator", 0),
    Column("calls", 5, "right", drop=3),
    Column("before", 9, "right", drop=2),
    Column("after", 9, "right"),
    Column("speed-up", 19, "right"),
    Column("cost", 7, "right", drop=4),
    Column("in model", 9),
    Column("result", 12, drop=1),
)
BEFORE, SPEEDUP = 2, 4
"""Columns: left out where nothing was timed against eager."""


class Results(ForgeScreen):
    """What came of it."""

    NAME = "results"
    LEGEND: ClassVar[str] = (
        "✓ used: the kernel runs in the model   original: the model's own operator runs; the line below says why"
    )
    BINDINGS = [
        Binding("x", "export(False)", "export", tooltip="write the package to a folder", id="results.export"),
        Binding("w", "export(True)", "export wheel", tooltip="write the package and a wheel of it", id="results.wheel"),
        Binding("escape,q", "app.pop_screen", "back", id="results.back"),
    ]
    DEFAULT_CSS = """
    Results #whole { height: 9; padding: 0 1; border-top: solid $panel; }
    """

    def __init__(self, watch: ProjectWatch) -> None:
        super().__init__()
        self.project = watch
        self._entries: dict[str, Entry] = {}
        self._wanted = ""

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Table(COLUMNS, self._row, empty="nothing was worked on yet: press esc, then F to forge", id="results")
        yield LineView(id="whole", can_focus=False)
        yield FindLine("filter: words of the name or the result")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#results").focus()
        self.call_after_refresh(self._show)
        self.start_following()

    def on_resize(self) -> None:
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
            f"{self.project.paths.root.name} › results   {state(self.project.status)}   {money(run.cost_usd, run.tokens)}",
        )
        table = self.query_one("#results", Table)
        timed = any(entry.gain[0] is not None for entry in self._entries.values())
        table.hidden = frozenset() if timed else frozenset({BEFORE, SPEEDUP})
        table.show(list(self._entries))
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
        view.show(whole_lines(self.project, list(self._entries.values()), entry, max(40, view.size.width)), top=0)

    def on_table_moved(self) -> None:
        self._describe()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        from forge_tui.screens.kernels import KernelBench

        self.app.push_screen(KernelBench(self.project, message.key))

    def action_export(self, wheel: bool) -> None:
        good = [entry for entry in self._entries.values() if entry.status in ("won", "verified")]
        if not good:
            self.notify("no kernel is confirmed yet: esc, then F forges", title="Nothing to export")
            return

        def chosen(folder: str | None) -> None:
            if folder:
                self._export(folder, wheel)

        self.app.push_screen(
            Ask(f"Write the package of {len(good)} kernels to", str(self.project.paths.packages / "export")), chosen
        )

    @work(exclusive=True)
    async def _export(self, folder: str, wheel: bool) -> None:
        self.notify("packing; kernels that cannot be packed are named at the end", title="Exporting")
        finished = await forge_command(
            "export", str(self.project.paths.root), "-o", folder, *(["--wheel"] if wheel else [])
        )
        said = "\n".join(filter(None, (finished.out.strip(), finished.err.strip())))
        if finished.code:
            self.notify(finished.words, title="Not exported", severity="error", timeout=20)
        else:
            self.notify(said, title="Exported", timeout=20)

    def found_text(self, text: str) -> None:
        self._wanted = text
        self._show()

    def find_ended(self) -> None:
        self.query_one("#results").focus()


def whole_lines(watch: ProjectWatch, entries: list[Entry], entry: Entry | None, width: int) -> list[Line]:
    """The operator under the cursor in a line, then the whole model."""
    lines: list[Line] = []
    if entry is not None:
        lines += wrapped(f"{short(entry.variant.operator)}: {in_model_reason(watch, entry)}", width, "bold")
        reason = entry.operator.done.reason if entry.operator and entry.operator.done else ""
        lines += wrapped(reason, width, "forge-muted") if reason else []
        lines.append(())
    proof, cards = watch.state.in_model, watch.cards
    if proof is not None:
        lines += wrapped(
            f"whole model: {proof.kernel_calls} calls by kernels, {proof.fallback_calls} by the original operators, "
            f"outputs within {proof.relative_error:.1e} of eager's ({proof.detail})",
            width,
            "forge-verified",
        )
    else:
        lines += wrapped(
            "whole model: not run with these kernels yet; a run that ends well does that", width, "forge-muted"
        )
    timed = [item for item in entries if item.status == "won" and item.best_us is not None]
    if cards is not None and timed:
        saved = sum(item.variant.calls * (item.baseline_us - (item.best_us or 0.0)) for item in timed)
        lines += wrapped(
            f"the kernels that won save {microseconds(saved)} of the {microseconds(cards.forward_us)} of a forward, summed over "
            "operators; the model as a whole is not timed in this version",
            width,
        )
    elif cards is not None and cards.time_kind == "cpu":
        lines += wrapped(
            "times here are modelled: nothing is timed against eager on the host target", width, "forge-muted"
        )
    if watch.state.packaged:
        lines += wrapped(f"package: {watch.state.packaged.path}", width, "forge-muted")
    return lines
