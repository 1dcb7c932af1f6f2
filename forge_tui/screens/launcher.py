"""The launcher: every project this user knows, the running ones on top."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Static

from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.dialogs import Ask, Confirm
from forge_tui.screens.doctoring import doctor_line, fresh_diagnosis, last_diagnosis
from forge_tui.screens.summaries import Summaries, Summary, running
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import TOKENS, ago, money, speedup, state
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.recent import recent_projects, remember

COLUMNS = (
    Column("project", 0, most=48),
    Column("state", 13),
    Column("operators", 9, "right", drop=1),
    Column("best", 7, "right", drop=4),
    Column("cost", 8, "right", drop=5),
    Column("device", 8, drop=3),
    Column("last event", 10, "right", drop=2),
    Column("model", 28, drop=6),
)
BEST = 3
"""Column: left out where nothing was timed against eager."""
EMPTY = "no projects yet: press n to make one from a model"
LOOK_S = 1.0
READ_AT_ONCE = 8
"""Projects read between two looks at the keyboard."""
TRASH = ".forge-trash"
"""Beside the project, so that deleting is a rename and undoing it another."""

CURES = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EACCES: "give yourself write permission in its folder",
    errno.EPERM: "give yourself write permission in its folder",
    errno.ENOENT: "it is gone already",
}
"""Of a folder that cannot be renamed."""


class Launcher(ForgeScreen):
    """Choose a project."""

    NAME = "launcher"
    SIDE = "#side"
    NARROW, LOW = 110, 24
    LEGEND: ClassVar[str] = (
        "▶ an engine runs   ✓ done   ▪ stopped or at a limit: goes on   … waits for replies   · new   – archived"
    )
    BINDINGS = [
        Binding("n", "new", "new", tooltip="make a project from a model", id="launcher.new"),
        Binding("R", "rename", "rename", tooltip="rename the project's folder", id="launcher.rename"),
        Binding("a", "archive", "archive", tooltip="put the project out of sight, or back", id="launcher.archive"),
        Binding(
            "A",
            "archived",
            "archived",
            show=False,
            tooltip="show archived projects, or hide them",
            id="launcher.archived",
        ),
        Binding("x", "delete", "delete", tooltip="move the project to the trash folder", id="launcher.delete"),
        Binding("D", "doctor", "doctor", show=False, tooltip="what this machine has and lacks", id="launcher.doctor"),
        Binding("r", "reload", "reload", show=False, tooltip="read the list anew", id="launcher.reload"),
        Binding("escape", "find_clear", "clear", show=False, tooltip="take the filter back", id="launcher.clear"),
        Binding("q", "app.quit", "quit", id="launcher.quit"),
    ]
    DEFAULT_CSS = """
    Launcher #side { width: 44; padding: 0 1; border-left: solid $panel; }
    Launcher.narrow Horizontal { layout: vertical; }
    Launcher.narrow #side { width: 1fr; height: 6; border-left: none; border-top: solid $panel; }
    Launcher.low #side { height: 4; }
    Launcher #doctor {
        height: 1; dock: bottom; padding: 0 1; margin-bottom: 1; color: $forge-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._summaries = Summaries()
        self._shown: dict[str, Summary] = {}
        self._held: set[str] = set()
        self._unread: list[str] = []
        self._roots: list[str] = []
        self._wanted = ""
        self._with_archived = False

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal():
            yield Table(COLUMNS, self._row, empty=EMPTY, id="projects")
            yield LineView(id="side", can_focus=False)
        yield Static(id="doctor", markup=False)
        yield FindLine("filter: words of the name, the model, the state")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#projects").add_class("pane")
        self.query_one("#side").add_class("pane")
        self._list()
        self.query_one("#projects").focus()
        self.start_following(LOOK_S)
        self.call_after_refresh(self._read_some)
        found = last_diagnosis()
        if found is not None:
            self.update("#doctor", doctor_line(found))
        else:
            self._diagnose()

    def on_resize(self) -> None:
        self.fit()
        self.call_after_refresh(self._describe)

    def follow(self) -> None:
        self._check()
        self._read_some()

    def on_screen_resume(self) -> None:
        self._list()

    def _list(self) -> None:
        """The roots, and what is known of them without reading any."""
        roots = [item.root for item in recent_projects()]
        here = _working_folder()
        if here is not None:
            roots += [str(path.parent) for path in here.glob("*/project.toml")]
            if ProjectPaths(here).is_project():
                roots.insert(0, str(here))
        self._roots = list(dict.fromkeys(roots))
        self._shown = {root: self._shown.get(root) or Summary(root, status="…") for root in self._roots}
        self._check()

    def _check(self) -> None:
        """Look at locks and file times; what changed is read next."""
        self._held = {root for root in self._roots if running(root)}
        for root in self._roots:
            summary = self._summaries.current(root)
            if summary is not None:
                self._shown[root] = summary
            elif root not in self._unread:
                self._unread.append(root)
        self._show()

    def _read_some(self) -> None:
        """Read a few projects, show them, and come again if there are more."""
        if not self.is_current:
            return
        for root in self._unread[:READ_AT_ONCE]:
            self._shown[root] = self._summaries.load(root)
        had = bool(self._unread)
        del self._unread[:READ_AT_ONCE]
        if self._unread:
            self.call_later(self._read_some)
        elif had:
            self._summaries.save()
        if had:
            self._show()

    def _show(self) -> None:
        table = self.query_one("#projects", Table)
        archived = set(self.app.remembered.archived)  # type: ignore[attr-defined]
        words = self._wanted.lower().split()
        keys = [
            root
            for root in self._roots
            if (self._with_archived or root not in archived)
            and all(word in f"{Path(root).name} {self._shown[root].model} {self._word(root)}".lower() for word in words)
        ]
        keys.sort(key=lambda root: root not in self._held)
        table.hidden = frozenset() if any(self._shown[root].best is not None for root in keys) else frozenset({BEST})
        self.show_matches(table, keys, self._wanted, EMPTY)
        hidden = len(archived.intersection(self._roots)) if not self._with_archived else 0
        self.update(
            "#title",
            f"forge-tui   {len(keys)} project{'s' * (len(keys) != 1)}"
            + (f", {len(self._held)} running" if self._held else "")
            + (f", {hidden} archived (A)" if hidden else ""),
        )
        self._describe()

    def _word(self, root: str) -> str:
        if root in self._held:
            return "running"
        return "archived" if root in self.app.remembered.archived else self._shown[root].status  # type: ignore[attr-defined]

    def _row(self, root: str) -> Row:
        summary, word = self._shown[root], self._word(root)
        return Row(
            root,
            (
                Cell(Path(root).name, "bold" if word == "running" else ""),
                Cell(
                    "✗ unreadable" if summary.problem else state(word),
                    "forge-failed" if summary.problem else TOKENS.get(word, ""),
                ),
                Cell(f"{summary.good} of {summary.operators}" if summary.operators else "–"),
                Cell(speedup(summary.best)),
                Cell("unknown" if summary.cost_usd is None else f"${summary.cost_usd:.2f}"),
                Cell(summary.device or "–"),
                Cell(_age(summary.last_event_at, word)),
                Cell(Path(summary.model).name if "/" in summary.model and ":" not in summary.model else summary.model),
            ),
        )

    def _describe(self) -> None:
        side, root = self.query_one("#side", LineView), self.query_one("#projects", Table).key
        if root in self._shown:
            side.show(summary_lines(self._shown[root], root in self._held, max(20, side.size.width)), top=0)
        else:
            side.show(())

    @on(Table.Moved)
    def _moved(self) -> None:
        self._describe()

    @on(Table.Chosen)
    def _chosen(self, message: Table.Chosen) -> None:
        self.app.open_project(Path(message.key))  # type: ignore[attr-defined]

    # -- actions

    def action_reload(self) -> None:
        self._list()
        self._read_some()

    def action_new(self) -> None:
        from forge_tui.screens.newproject import NewProject

        self.app.push_screen(NewProject())

    def action_archived(self) -> None:
        self._with_archived = not self._with_archived
        self._show()

    def action_archive(self) -> None:
        root = self.query_one("#projects", Table).key
        if root is None:
            self.notify("there is no project here; n makes one", title="Nothing to archive")
            return
        away = self.app.toggle_archived(root)  # type: ignore[attr-defined]
        self.notify(
            "A shows archived projects, a brings one back" if away else "it is in the list again",
            title="Archived" if away else "Brought back",
        )
        self._show()

    def action_rename(self) -> None:
        root = self._movable("rename")
        if root is None:
            return

        def renamed(name: str | None) -> None:
            if name and ("/" in name or "\0" in name or name in (".", "..")):
                self.notify(f"{name} is no folder's name: use one without /, like {Path(root).name}-2", title="Not renamed")
            elif name and name != Path(root).name:
                self._move(root, Path(root).with_name(name), f"now {name}")

        self.app.push_screen(Ask(f"New name for {Path(root).name} (the folder is renamed)", Path(root).name), renamed)

    def action_delete(self) -> None:
        root = self._movable("delete")
        if root is None:
            return
        place = Path(root).parent / TRASH / f"{Path(root).name}-{time.strftime('%Y%m%d-%H%M%S')}"

        def answered(yes: bool | None) -> None:
            if yes:
                self._move(root, place, f"moved to {place}; move it back to undo that", known=False)

        self.app.push_screen(Confirm(f"Move {root} to the trash?\n\nIt goes to {place}; nothing is erased."), answered)

    def _movable(self, what: str) -> str | None:
        root = self.query_one("#projects", Table).key
        if root is None:
            self.notify("there is no project here; n makes one", title=f"Nothing to {what}")
        elif running(root):
            self.notify("an engine holds it: open it and press s to stop it first", title=f"Cannot {what}")
            return None
        return root

    def _move(self, root: str, target: Path, said: str, known: bool = True) -> None:
        if os.path.lexists(target):
            self.notify(f"{target} is there already: choose another name", title="Not moved", severity="warning")
            return
        try:
            target.parent.mkdir(exist_ok=True)
            os.rename(root, target)
        except OSError as error:
            cure = CURES.get(error.errno or 0, "choose another name, or move the folder yourself")
            self.notify(f"{root} cannot be moved: {error.strerror}; {cure}", title="Not moved", severity="error")
            self._list()
            return
        self._summaries.forget(root)
        if known:
            remember(target)
        self._list()
        self._read_some()
        self.notify(said, title="Moved" if not known else "Renamed")

    # -- doctor

    @work(exclusive=True)
    async def _diagnose(self) -> None:
        found = await fresh_diagnosis()
        if found is not None:
            self.update("#doctor", doctor_line(found))

    def action_doctor(self) -> None:
        from forge_tui.screens.doctoring import Doctor

        self.app.push_screen(Doctor())

    def found_text(self, text: str) -> None:
        self._wanted = text
        self._show()

    def find_ended(self) -> None:
        self.query_one("#projects").focus()


def _working_folder() -> Path | None:
    """None where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _age(at: float | None, word: str) -> str:
    """Coarse where nothing happens, so that an idle list stays as it is."""
    if at is None:
        return "–"
    return ago(at) if word == "running" or time.time() - at >= 60 else "just now"


def summary_lines(summary: Summary, is_running: bool, width: int) -> list[Line]:
    """The side pane: how it stands, what came of it, then what it is."""
    name, word = Path(summary.root).name, "running" if is_running else summary.status
    if summary.problem:
        return [((name, "bold"),), *wrapped(summary.problem, width, "forge-failed")]
    lines: list[Line] = [((f"{name}  ", "bold"), (state(word), TOKENS.get(word, "")))]
    if summary.reason and not is_running:
        lines += wrapped(summary.reason, width, "forge-muted")
    if summary.variants:
        lines += wrapped(
            f"{summary.variants} variants captured, {summary.offered} open to a kernel; "
            f"{summary.good} of {summary.operators} searched ones have one",
            width,
        )
    else:
        lines += wrapped("not captured yet: open it and press F", width)
    if summary.in_model:
        lines += wrapped(summary.in_model, width, "forge-verified")
    lines += [
        (),
        *wrapped(summary.described or summary.model, width),
        *wrapped(
            f"{summary.provider or 'no provider'} on {summary.device or 'no device'}, "
            f"{money(summary.cost_usd, summary.tokens)}",
            width,
            "forge-muted",
        ),
        *wrapped(summary.root, width, "forge-muted"),
    ]
    return lines
