"""What all screens share: a find line, panes that zoom and resize, a follow timer that rests while nobody looks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from forge_tui.screens.jump import Jump, Target
from forge_tui.screens.widgets.lines import LineView
from forge_tui.screens.widgets.table import Table

FOLLOW_S = 0.25
UNFOCUSED_S = 2.0
"""Between two looks at the journal, while the terminal has the focus and while it has not."""
LOWEST = 3
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
    LOWER: ClassVar[str] = ""
    """Selector of the pane whose height `+` and `-` change."""
    NARROW: ClassVar[int] = 0
    """Below so many columns panes lie below each other (class `narrow`)."""
    LOW: ClassVar[int] = 0
    """Below so many lines there is less of what matters less (class `low`)."""
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
        Binding(
            "plus,equals_sign", "raise(1)", "taller", show=False, tooltip="make the lower pane taller", id="screen.taller"
        ),
        Binding("minus", "raise(-1)", "lower", show=False, tooltip="make the lower pane lower", id="screen.lower"),
        Binding(
            "apostrophe,ctrl+o",
            "jump",
            "jump",
            show=False,
            tooltip="jump: a letter on every pane, tab and row",
            id="screen.jump",
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
        self._without_match = False

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

    def show_matches(self, table: Table, keys: Sequence[str], wanted: str, empty: str) -> None:
        """Rows that a filter leaves; where it leaves none, how all come back. empty: said where nothing is filtered."""
        self._without_match = bool(wanted) and not keys
        table.say_empty(f"nothing matches {wanted}: esc shows all" if self._without_match else empty)
        table.show(keys)

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

    def action_back(self) -> None:
        """To the screen before; a filter, or what is searched for, is taken back first."""
        if self.query_one(FindLine).value:
            self.action_find_clear()
        else:
            self.app.pop_screen()

    def action_find_keep(self) -> None:
        """To what was found; where that is nothing, the line keeps the focus, so that escape clears it."""
        if self._without_match:
            self.app.bell()
            return
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
        self._zoom(None if zoomed or kept is None else kept)
        self.forge.remember_zoom(self.NAME, "" if zoomed or kept is None else kept.id or "")

    def _zoom(self, kept: Widget | None) -> None:
        for pane in self.panes():
            pane.set_class(kept is not None and pane is not kept, "zoomed-away")

    @property
    def forge(self) -> Any:
        """The app as what remembers (`ForgeApp`, which no screen may import)."""
        return self.app

    def slot(self, which: str) -> str:
        """Under which a size is remembered: a pane beside another and one below it are told apart."""
        return f"{self.NAME}{':narrow' if self.has_class('narrow') else ''}{which}"

    def action_resize(self, direction: int) -> None:
        """The border of the side pane; where panes lie below each other, its height."""
        if not self.SIDE:
            self.notify("this screen has one pane", title="Nothing to resize")
            return
        side = self.query_one(self.SIDE)
        if self.has_class("narrow"):
            self._set_height(side, side.outer_size.height + direction, "")
            return
        width = max(NARROWEST, min(self.size.width - NARROWEST, side.outer_size.width + direction * STEP))
        side.styles.width = width
        self.forge.remember_pane(self.slot(""), width)

    def action_raise(self, direction: int) -> None:
        """The height of the lower pane."""
        if not self.LOWER:
            self.notify("this screen has no lower pane", title="Nothing to resize")
            return
        pane = self.query_one(self.LOWER)
        self._set_height(pane, pane.outer_size.height + direction, ":lower")

    def _set_height(self, pane: Widget, height: int, which: str) -> None:
        height = max(LOWEST, min(self.size.height - LOWEST - 3, height))
        pane.styles.height = height
        self.forge.remember_pane(self.slot(which), height)

    def fit(self) -> None:
        """Classes by the size of the terminal, and panes as they were left in that layout."""
        self.set_class(self.size.width < self.NARROW, "narrow")
        self.set_class(self.size.height < self.LOW, "low")
        self._restore_panes()

    def _restore_panes(self) -> None:
        """Sizes and zoom as the screen was left, where they fit; those of the other layout do not count."""
        panes, narrow = self.forge.remembered.panes, self.has_class("narrow")
        if self.SIDE:
            side, size = self.query_one(self.SIDE), panes.get(self.slot(""))
            room = self.size.height - LOWEST - 3 if narrow else self.size.width - NARROWEST
            fits = size is not None and (LOWEST if narrow else NARROWEST) <= size <= room
            for rule in ("width", "height"):
                side.styles.clear_rule(rule)
            if fits:
                setattr(side.styles, "height" if narrow else "width", size)
        if self.LOWER:
            pane, size = self.query_one(self.LOWER), panes.get(self.slot(":lower"))
            pane.styles.clear_rule("height")
            if size is not None and LOWEST <= size <= self.size.height - LOWEST - 3:
                pane.styles.height = size
        kept = self.forge.remembered.zoomed.get(self.NAME)
        self._zoom(next((pane for pane in self.panes() if kept and pane.id == kept), None))

    # -- jump

    def jump_targets(self) -> list[Target]:
        """Every pane and field that can have the focus, and every visible row."""
        found: list[Target] = []
        for widget in self.query("*"):
            if not widget.focusable or not widget.region.size:
                continue
            x, y = widget.region.offset
            found.append(Target(x, y, widget.focus))
            if isinstance(widget, Table):
                found += [
                    Target(x, y + 1 + line, partial(self._go_to_row, widget, key), row=True)
                    for line, key in enumerate(widget.keys[widget.top : widget.top + widget.room])
                ]
        return found

    @staticmethod
    def _go_to_row(table: Table, key: str) -> None:
        table.focus()
        table.select(key)

    def action_jump(self) -> None:
        self.app.push_screen(Jump(self.jump_targets()))

    def search_lines(self, view: LineView, text: str) -> None:
        """Search in a text pane and say how many there are."""
        count = view.search(text)
        if text and not count:
            self.app.bell()
