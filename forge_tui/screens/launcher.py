"""The launcher: every project this user knows, the running ones on top."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer, Static

from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import TOKENS, ago, state
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.recent import recent_projects

COLUMNS = (
    Column("project", 0), Column("state", 13), Column("operators", 11, "right"), Column("device", 14, drop=3),
    Column("last event", 10, "right", drop=2), Column("model", 34, drop=4),
)


class Launcher(Screen[None]):
    """Choose a project."""

    BINDINGS = [Binding("r", "reload", "reload"), Binding("n", "new", "new"), Binding("q", "app.quit", "quit")]
    DEFAULT_CSS = "Launcher #title { height: 1; padding: 0 1; text-style: bold; } Launcher #side { height: auto; max-height: 8; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__()
        self._watches: dict[str, ProjectWatch] = {}

    def compose(self) -> ComposeResult:
        yield Static("forge-tui  projects", id="title", markup=False)
        yield Table(COLUMNS, empty="no projects yet: press n to see how to make one", id="projects")
        yield Static(id="side", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.action_reload()
        self.set_interval(1.0, self._follow)

    def action_reload(self) -> None:
        """Read the list anew: recent projects, and those in the current folder."""
        roots = [item.root for item in recent_projects()]
        roots += [str(path.parent.absolute()) for path in Path.cwd().glob("*/project.toml")]
        if ProjectPaths(Path.cwd()).is_project():
            roots.insert(0, str(Path.cwd()))
        for root in dict.fromkeys(roots):
            self._watches.setdefault(root, ProjectWatch(Path(root)))
        self._follow(force=True)

    def _follow(self, force: bool = False) -> None:
        if not self.is_current and not force:
            return
        changed = [watch.refresh() for watch in self._watches.values()]
        if any(changed) or force:
            watches = sorted(self._watches.items(), key=lambda item: not item[1].running)
            self.query_one(Table).set_rows([_row(root, watch) for root, watch in watches])
            self._describe()

    def _describe(self) -> None:
        key = self.query_one(Table).key
        self.query_one("#side", Static).update(summary(self._watches[key]) if key else "")

    def on_table_moved(self) -> None:
        self._describe()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        from forge_tui.screens.operators import OperatorBench

        self.app.push_screen(OperatorBench(self._watches[message.key]))

    def action_new(self) -> None:
        self.notify("forge-tui new DIR --model SOURCE makes a project; then press r", title="New project")


def _row(root: str, watch: ProjectWatch) -> Row:
    done = [operator for operator in watch.state.operators.values() if operator.status in ("won", "verified")]
    device = watch.state.run.device if watch.state.run else "–"
    return Row(root, (
        Cell(Path(root).name), Cell(state(watch.status), TOKENS.get(watch.status, "")),
        Cell(f"{len(done)} of {len(watch.state.operators)}"), Cell(device), Cell(ago(watch.state.last_event_at)),
        Cell(watch.config.model.source if watch.config else "?"),
    ))


def summary(watch: ProjectWatch) -> str:
    """A few lines on one project."""
    if watch.problem:
        return watch.problem
    lines = [str(watch.paths.root)]
    if watch.cards:
        lines.append(watch.cards.model)
        offered = sum(variant.offered for variant in watch.cards.variants)
        lines.append(f"{len(watch.cards.variants)} variants captured, {offered} of them offered")
    else:
        lines.append("not captured yet: open it and press f")
    if watch.state.in_model:
        lines.append(f"in the model: {watch.state.in_model.kernel_calls} kernel calls, "
                     f"outputs within {watch.state.in_model.relative_error:.1e} of eager")
    return "\n".join(lines)
