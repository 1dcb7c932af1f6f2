"""Toasts: how many, how tall, and beside the row that one is on, never over it; and everything that was said, to read again."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.notifications import Notification
from textual.screen import Screen
from textual.widgets import Input, Static
from textual.widgets._toast import ToastRack

from forge_tui.screens.dialogs import BOX, Dialog
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import Table

WIDTH = 60
FRAME = 3
"""Cells of a toast's border and padding."""
TALL = 40
"""Lines of the terminal from which there is room for three longer ones above or below any row."""
KEPT = 100
"""What was said, the latest of it."""
CUT = "… (! shows all)"
CSS = f"""
Toast {{ width: {WIDTH}; max-width: 100%; padding: 0 1; margin-top: 0; }}
ToastRack {{ overflow-y: hidden; margin: 1 0; }}
"""
TOKENS = {"error": "forge-failed bold", "warning": "warning bold"}


@dataclass(frozen=True)
class Said:
    """One message, as it was said."""

    at: float
    title: str
    text: str
    severity: str


def most(lines: int) -> tuple[int, int]:
    """How many toasts a terminal of so many lines shows, and how many lines of text each."""
    return (3, 4) if lines >= TALL else (2, 3)


def cut(text: str, columns: int, lines: int) -> str:
    """A text as it fits a toast: broken at words; what is left out can be read in `Messages`, and it says so."""
    width = max(len(CUT) + 1, min(WIDTH, columns) - FRAME)
    pieces = [piece for line in text.splitlines() for piece in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]
    room = most(lines)[1]
    if len(pieces) <= room:
        return "\n".join(pieces)
    last = pieces[room - 1]
    if len(last) + len(CUT) > width:
        last = last[: width - len(CUT) + 1]
        last = (last.rpartition(" ")[0] or last[:-1]).rstrip()
    return "\n".join([*pieces[: room - 1], last + CUT])


def settle(app: App[int]) -> None:
    """Forget what was said again, and the oldest of more than there is room for."""
    above, below = _free(app.screen)
    shown = list(app._notifications)
    said = [(notification.title, notification.message) for notification in shown]
    for index, notification in enumerate(shown):
        if said[index] in said[index + 1 :]:  # said again: once is enough
            app._unnotify(notification, refresh=False)
    shown = list(app._notifications)
    spare = max(0, len(shown) - most(app.size.height)[0])
    while len(shown) - spare > 1 and sum(map(_height, shown[spare:])) > max(above, below):
        spare += 1
    for notification in shown[:spare]:
        app._unnotify(notification, refresh=False)


def place(app: App[int]) -> None:
    """The rack at the bottom, or at the top where it would hide what has the focus; out of sight where both would, as in
    a dialog that one types in."""
    try:
        rack = app.screen.get_child_by_type(ToastRack)
    except NoMatches:
        return
    above, below = _free(app.screen)
    needed = sum(map(_height, app._notifications))
    rack.display = 0 < needed <= max(above, below)
    side = "bottom" if needed <= below else "top"
    if rack.styles.dock != side:
        rack.styles.dock = side


def _height(notification: Notification) -> int:
    return notification.message.count("\n") + 1 + bool(notification.title)


def _free(screen: Screen[object]) -> tuple[int, int]:
    """Lines between the title and what has the focus, and between that and the last line, which has the keys."""
    lines = list(_focused(screen))
    last = screen.size.height - 1
    return (min(lines) - 1, last - max(lines) - 1) if lines else (0, last - 1)


def _focused(screen: Screen[object]) -> Iterator[int]:
    """Lines of the field that has the focus and of the rows under a cursor: of a dialog's list also while one types."""
    if isinstance(screen.focused, Input):
        yield screen.focused.region.y
    for table in screen.query(Table):
        if (table.has_focus or screen.is_modal) and table.region.height and table.keys:
            yield table.region.y + 1 + table.cursor - table.top


class Messages(Dialog[None]):
    """All that toasts said, the latest first."""

    BINDINGS = [Binding("escape,q,enter,exclamation_mark", "dismiss", "close", id="messages.close")]
    DEFAULT_CSS = BOX.format(name="Messages") + (
        "Messages > Vertical { width: 100; } Messages LineView { height: auto; min-height: 3; max-height: 100%; }"
        "Messages Static { color: $forge-muted; }"
    )

    def __init__(self, said: list[Said]) -> None:
        super().__init__()
        self._said = said

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("messages, the latest first; esc closes", markup=False)
            yield LineView(id="said")

    def on_mount(self) -> None:
        view = self.query_one(LineView)
        view.focus()
        width = min(100, int(self.app.size.width * 0.96)) - 4
        lines = said_lines(self._said, width)
        view.styles.height = max(1, min(len(lines), int(self.app.size.height * 0.8) - 3))
        view.show(lines, top=0)


def said_lines(said: list[Said], width: int) -> list[Line]:
    """When, the title, and the whole text below it."""
    if not said:
        return [(("nothing was said yet", "forge-muted"),)]
    lines: list[Line] = []
    for item in reversed(said):
        when = time.strftime("%H:%M:%S", time.localtime(item.at))
        lines.append(((f"{when}  ", "forge-muted"), (item.title or item.severity, TOKENS.get(item.severity, "bold"))))
        lines += wrapped(item.text, width, indent=" " * 10)
    return lines
