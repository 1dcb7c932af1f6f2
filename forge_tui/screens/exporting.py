"""Which kernels go into a package: each with the reason for or against it, the safe ones chosen already."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from forge_tui.engine.package.selection import why_unsafe
from forge_tui.screens.dialogs import Dialog
from forge_tui.screens.operatorrows import Entry, shape_of
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.table import Cell, Column, Row, Table
from forge_tui.screens.words import microseconds, short, speedup

COLUMNS = (
    Column("kernel for", 28),
    Column("key", 4),
    Column("speed-up", 8, "right", drop=1),
    Column("time", 9, "right", drop=2),
    Column("why", 0),
)
SPEEDUP = 2
"""Column."""


@dataclass(frozen=True)
class Offer:
    """One operator's kernel, or why there is none."""

    entry: Entry
    able: bool
    """Whether there is a verified kernel."""
    safe: bool
    """Chosen unless somebody says otherwise."""
    why: str


class OfferTable(Table):
    """Enter takes or leaves what stands there: there is nothing to open."""

    BINDINGS = [Binding("enter", "choose", "take or leave", tooltip="take this kernel, or leave it out", id="export.take")]


@dataclass(frozen=True)
class Plan:
    """What is to be written where."""

    folder: str
    variants: tuple[str, ...]
    wheel: bool


def offer_of(entry: Entry) -> Offer:
    """What is to be said of one operator."""
    operator = entry.operator
    best = operator.tree.best if operator else None
    if best is None or best.verdict is None:
        reason = operator.done.reason if operator and operator.done else entry.variant.reason
        return Offer(entry, False, False, f"no kernel: {reason or 'nothing was tried'}")
    if not best.confirmed:
        return Offer(entry, True, False, "verified once, not confirmed in a fresh process")
    if entry.status == "no_gain":
        return Offer(entry, True, False, f"right, but no gain: {operator.done.reason if operator and operator.done else ''}")
    unsafe = why_unsafe(best.verdict.timing)
    if unsafe:
        return Offer(entry, True, False, f"confirmed, but {unsafe}")
    gain, interval = entry.gain
    if gain is None:
        return Offer(entry, True, True, "confirmed; nothing is timed against eager here")
    return Offer(entry, True, True, f"confirmed, {speedup(gain, interval)}")


class Export(Dialog[Plan | None]):
    """Choose kernels and a folder."""

    BINDINGS = [
        Binding("ctrl+s", "write", "write", tooltip="write the package", priority=True, id="export.write"),
        Binding("space", "toggle", "take or leave", tooltip="take this kernel, or leave it out", id="export.toggle"),
        Binding("a", "all", "all", tooltip="take every kernel that is right", id="export.all"),
        Binding("s", "safe", "safe", tooltip="take the safe ones only", id="export.safe"),
        Binding("w", "wheel", "wheel", tooltip="also build a wheel, or not", id="export.wheel"),
        Binding("tab", "app.focus_next", "folder", tooltip="to the folder and back", id="export.folder"),
        Binding("escape", "leave", "leave", id="export.leave"),
        Binding("question_mark", "app.help", "help", show=False, tooltip="help: the keys of this dialog", id="export.help"),
        Binding("ctrl+p", "app.palette", "actions", show=False, tooltip="all actions, by name", id="export.palette"),
    ]
    DEFAULT_CSS = """
    Export { align: center middle; }
    Export > Vertical {
        width: 100; max-width: 96%; height: 80%; border: round $primary; padding: 0 1; background: $surface;
    }
    Export Static { height: auto; }
    Export #why { height: 3; color: $forge-muted; margin-top: 1; }
    Export Input, Export Input:focus { border: none; height: 1; padding: 0; background: $panel; margin-bottom: 1; }
    """

    def __init__(self, entries: list[Entry], folder: str, wheel: bool = False) -> None:
        super().__init__()
        offers = [offer_of(entry) for entry in entries]
        offers.sort(key=lambda offer: (not offer.safe, not offer.able))
        self._offers = {offer.entry.variant.key: offer for offer in offers}
        self._folder, self._wheel = folder, wheel

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="said", markup=False)
            yield OfferTable(COLUMNS, self._row, empty="no kernel is verified yet", id="offers")
            yield Static(id="why", markup=False)
            yield Static("into", markup=False)
            yield Input(self._folder, select_on_focus=False, id="folder")
            yield KeyBar()

    def on_mount(self) -> None:
        table = self.query_one("#offers", Table)
        timed = any(offer.entry.gain[0] is not None for offer in self._offers.values())
        table.hidden = frozenset() if timed else frozenset({SPEEDUP})
        table.show(list(self._offers))
        table.focus()
        self.query_one(Input).cursor_blink = False
        self.action_safe()
        self._describe()

    def _row(self, key: str) -> Row:
        offer = self._offers[key]
        entry, token = offer.entry, "" if offer.able else "forge-muted"
        name = f"{short(entry.variant.operator)} {shape_of(entry.variant)}"
        return Row(
            key,
            (
                Cell(name, token),
                Cell(key[:4], "forge-muted"),
                Cell(speedup(entry.gain[0]), token),
                Cell(microseconds(entry.best_us), token),
                Cell(f"{'✓' if offer.safe else '·' if offer.able else '–'} {offer.why}", token),
            ),
        )

    def _describe(self) -> None:
        table = self.query_one("#offers", Table)
        taken = len(table.marked)
        able = sum(offer.able for offer in self._offers.values())
        self.query_one("#said", Static).update(
            f"export {taken} of {able} kernels (● taken)" + (", and a wheel of them" if self._wheel else "")
        )
        self.query_one("#why", Static).update(self._offers[table.key].why if table.key else "")

    @on(Table.Moved)
    def _moved(self, message: Table.Moved) -> None:
        message.stop()
        self._describe()

    @on(Table.Chosen)
    def _chosen(self, message: Table.Chosen) -> None:
        message.stop()
        self.action_toggle()

    def _take(self, keys: set[str]) -> None:
        table = self.query_one("#offers", Table)
        table.marked = keys
        table.refresh()
        self._describe()

    def action_toggle(self) -> None:
        table = self.query_one("#offers", Table)
        if table.key is None or not self._offers[table.key].able:
            self.notify(self._offers[table.key].why if table.key else "there is none", title="Cannot be taken")
            return
        self._take(table.marked ^ {table.key})

    def action_all(self) -> None:
        self._take({key for key, offer in self._offers.items() if offer.able})

    def action_safe(self) -> None:
        self._take({key for key, offer in self._offers.items() if offer.safe})

    def action_wheel(self) -> None:
        self._wheel = not self._wheel
        self._describe()

    @on(Input.Submitted)
    def action_write(self) -> None:
        folder, taken = self.query_one(Input).value.strip(), self.query_one("#offers", Table).marked
        if not taken or not folder:
            self.notify(
                "space takes a kernel, a takes all" if not taken else "name a folder", title="Nothing to write"
            )
            return
        self.dismiss(Plan(folder, tuple(key for key in self._offers if key in taken), self._wheel))

    def action_leave(self) -> None:
        self.dismiss(None)
