"""What all screens share: a find line, panes that zoom and resize, a follow timer that rests while nobody looks."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on
from textual.binding import Binding
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from forge_tui.screens.widgets.lines import LineView

FOLLOW_S = 0.25
UNFOCUSED_S = 2.0
"""Between two looks at the journal, while the terminal has the focus and while it has not."""
STEP = 4
"""Cells by which `<` and `>` move a border."""
NARROWEST = 24


class FindLine(Input):
    """One line at the bottom, hidden until `/`."""

    BINDINGS = [
        Binding("escape", "screen.find_clear", "clear", id="find.clear"),
        Binding("down,up", "screen.find_keep", "to the list", show=False),
    ]
    DEFAULT_CSS = """
    FindLine, FindLine:focus {
        border: none; height: 1; padding: 0 1; dock: bottom; display: none; background: $panel; margin-bottom: 1;
    }
    FindLine.shown { display: block; }
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, id="find")
        self.cursor_blink = False


class ForgeScreen(Screen[None]):
    """Base of the screens. Data goes down by `show` calls, messages come up; nothing here reads a file."""

    NAME: ClassVar[str]
    """For remembered pane sizes."""
    SIDE: ClassVar[str] = ""
    """Selector of the pane that `<` and `>` resize."""
    LEGEND: ClassVar[str] = ""
    """What the screen's signs mean: shown by `?`."""
    BINDINGS = [
        Binding("slash", "find", "find", id="screen.find"),
        Binding(
            "z",
            "zoom",
            "zoom",
            show=False,
            tooltip="give the focused pane the whole screen, or give it back",
            id="screen.zoom",
        ),
        Binding(
            "less_than_sign",
            "resize(-1)",
            "narrower",
            show=False,
            tooltip="make the side pane narrower",
            id="screen.narrower",
        ),
        Binding(
            "greater_than_sign", "resize(1)", "wider", show=False, tooltip="make the side pane wider", id="screen.wider"
        ),
        Binding("tab", "app.focus_next", "next pane", show=False, id="screen.next_pane"),
        Binding("shift+tab", "app.focus_previous", "previous pane", show=False, id="screen.previous_pane"),
    ]
    DEFAULT_CSS = """
    ForgeScreen .zoomed-away { display: none; }
    ForgeScreen #title { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._looked = 0.0
        self._follower: Timer | None = None

    def start_following(self, seconds: float = FOLLOW_S) -> None:
        """Call `follow` so often; every two seconds at most while the terminal is not looked at.

        Only while this screen is on top: a message to a screen below makes Textual repaint the whole one above it.
        """
        self._follower = self.set_interval(seconds, self._tick, pause=not self.is_current)

    def _tick(self) -> None:
        if not self.is_current or (not self.app.app_focus and time.monotonic() - self._looked < UNFOCUSED_S):
            return
        self._looked = time.monotonic()
        self.follow()

    def follow(self) -> None:
        """Take in what is new and show it."""

    def on_screen_suspend(self) -> None:
        if self._follower is not None:
            self._follower.pause()

    def on_screen_resume(self) -> None:
        if self._follower is not None:
            self._follower.resume()
        self.follow()

    def update(self, selector: str, text: object) -> None:
        """Give a Static of fixed size other content, if it is other content. A layout would repaint all."""
        widget = self.query_one(selector, Static)
        if widget.content != text:
            widget.update(text, layout=False)

    # -- find

    def found_text(self, text: str) -> None:
        """What stands in the find line changed."""

    def find_ended(self) -> None:
        """The find line was left; give the focus back."""

    def action_find(self) -> None:
        line = self.query_one(FindLine)
        line.add_class("shown")
        line.focus()

    def action_find_clear(self) -> None:
        line = self.query_one(FindLine)
        line.value = ""
        line.remove_class("shown")
        self.find_ended()

    def action_find_keep(self) -> None:
        if not self.query_one(FindLine).value:
            self.query_one(FindLine).remove_class("shown")
        self.find_ended()

    @on(Input.Changed, "#find")
    def _find_changed(self, message: Input.Changed) -> None:
        message.stop()
        self.found_text(message.value)

    @on(Input.Submitted, "#find")
    def _find_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.action_find_keep()

    # -- panes

    def panes(self) -> list[Widget]:
        """Those that zoom hides."""
        return [widget for widget in self.query(".pane") if isinstance(widget, Widget)]

    def action_zoom(self) -> None:
        focused = self.focused
        kept = next(
            (pane for pane in self.panes() if focused is not None and (pane is focused or pane in focused.ancestors)),
            None,
        )
        zoomed = any(pane.has_class("zoomed-away") for pane in self.panes())
        for pane in self.panes():
            pane.set_class(not zoomed and kept is not None and pane is not kept, "zoomed-away")

    def action_resize(self, direction: int) -> None:
        if not self.SIDE:
            self.app.bell()
            return
        side = self.query_one(self.SIDE)
        width = max(NARROWEST, min(self.size.width - NARROWEST, side.outer_size.width + direction * STEP))
        side.styles.width = width
        self.app.remember_pane(self.NAME, width)  # type: ignore[attr-defined]

    def restore_panes(self) -> None:
        """The width that the side pane was left with, where it fits."""
        width = self.app.remembered.panes.get(self.NAME)  # type: ignore[attr-defined]
        if width and self.SIDE and NARROWEST <= width <= self.size.width - NARROWEST:
            self.query_one(self.SIDE).styles.width = width

    def search_lines(self, view: LineView, text: str) -> None:
        """Search in a text pane and say how many there are."""
        count = view.search(text)
        if text and not count:
            self.app.bell()
