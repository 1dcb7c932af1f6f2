"""Text drawn by the line: source, diffs, verdicts, logs. Only lines that changed are repainted; search with n and N."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from forge_tui.screens.widgets.paint import Line, style_of

WHEEL_LINES = 3
SIDEWAYS = 8
"""Columns a step to the left or right."""


class LineView(Widget, can_focus=True):
    """Lines of coloured spans, scrolled by its own offset."""

    BINDINGS = [
        Binding("up,k", "scroll(-1)", "up", show=False, id="lines.up"),
        Binding("down,j", "scroll(1)", "down", show=False, id="lines.down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id="lines.page_up"),
        Binding("pagedown,ctrl+f,space", "page(1)", "page down", show=False, id="lines.page_down"),
        Binding("home,g", "scroll(-1000000000)", "first", show=False, id="lines.first"),
        Binding("end,G", "scroll(1000000000)", "last", show=False, id="lines.last"),
        Binding("left,h", "sideways(-1)", "left", show=False, id="lines.left"),
        Binding("right,l", "sideways(1)", "right", show=False, id="lines.right"),
    ]
    DEFAULT_CSS = "LineView { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None, can_focus: bool = True, tail: bool = False) -> None:
        super().__init__(id=id)
        self.can_focus = can_focus
        self.tail = tail
        """Show the end, as a log does."""
        self.lines: Sequence[Line] = ()
        self.top = 0
        self.left = 0
        self.found: list[int] = []
        """Lines that hold what was searched for."""
        self._needle = ""
        self._drawn = False
        """Whether there is anything on the screen to repaint: before, all is drawn in one go."""

    def show(self, lines: Sequence[Line], *, top: int | None = None) -> None:
        """Show other lines. top: the first to be seen; left out, the window stays where it is."""
        before = {y: self._at(y) for y in range(self.size.height)}
        self.lines = lines
        if top is not None:
            self.left = 0
        self.top = self._inside(len(lines) if self.tail else self.top if top is None else top)
        self._find()
        for y, old in before.items() if self._drawn else ():
            if self._at(y) != old:
                self.refresh(Region(0, y, self.size.width, 1))

    @property
    def at_end(self) -> bool:
        """Whether the last line is in the window."""
        return self.top >= len(self.lines) - self.size.height

    def search(self, needle: str) -> int:
        """Mark lines that hold `needle` (case is ignored where it is all small), go to the first; their number."""
        self._needle = needle
        self._find()
        if self.found:
            self.top = self._inside(
                next((line for line in self.found if line >= self.top), self.found[0]) - self.size.height // 3
            )
        self.refresh()
        return len(self.found)

    def next_found(self, step: int) -> int | None:
        """Go to the next or previous match; its number from 1, None when there is none."""
        if not self.found:
            return None
        here = self.top + self.size.height // 3
        later = (
            [line for line in self.found if line > here] if step > 0 else [line for line in self.found if line < here]
        )
        line = (later[0] if step > 0 else later[-1]) if later else self.found[0 if step > 0 else -1]
        self._go(line - self.size.height // 3)
        return self.found.index(line) + 1

    def action_scroll(self, step: int) -> None:
        self._go(self.top + step)

    def action_page(self, direction: int) -> None:
        self._go(self.top + direction * max(1, self.size.height - 1))

    def action_sideways(self, direction: int) -> None:
        left = max(0, self.left + direction * SIDEWAYS)
        if left != self.left:
            self.left = left
            self.refresh()

    def on_resize(self) -> None:
        self._go(len(self.lines) if self.tail else self.top)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_scroll(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_scroll(-WHEEL_LINES)

    def _find(self) -> None:
        sensitive = self._needle != self._needle.lower()
        self.found = []
        if self._needle:
            for index, line in enumerate(self.lines):
                text = "".join(span for span, _ in line)
                if self._needle in (text if sensitive else text.lower()):
                    self.found.append(index)

    def _inside(self, top: int) -> int:
        return max(0, min(top, len(self.lines) - max(1, self.size.height)))

    def _go(self, top: int) -> None:
        top = self._inside(top)
        if top != self.top:
            self.top = top
            self.refresh()

    def _at(self, y: int) -> Line | None:
        index = self.top + y
        return self.lines[index] if index < len(self.lines) else None

    def render_line(self, y: int) -> Strip:
        self._drawn = True
        width, style = self.size.width, self.visual_style.rich_style
        line = self._at(y)
        if line is None:
            return Strip.blank(width, style)
        mark = style_of(self.app, "reverse") if self.top + y in self.found else None
        segments = [
            Segment(
                text.expandtabs(4),
                style + style_of(self.app, token) + mark if mark else style + style_of(self.app, token),
            )
            for text, token in line
        ]
        strip = Strip(segments)
        cut = strip.cell_length > self.left + width
        if self.left:
            strip = strip.crop(self.left, self.left + width)
        if cut:  # said, since the right arrow shows the rest; in the colours that are there, which costs a slow link nothing
            kept = list(strip.crop(0, width - 1))
            strip = Strip([*kept, Segment("…", kept[-1].style if kept else style)])
        return strip.adjust_cell_length(width, style).simplify()


def plain(text: str, token: str = "") -> list[Line]:
    """Lines of one colour."""
    return [((line, token),) for line in text.splitlines()]


def wrapped(text: str, width: int, token: str = "", indent: str = "") -> list[Line]:
    """Prose broken at spaces, so that names and commands stay whole where they fit; line breaks are kept. width: of the
    lines with their indent."""
    import textwrap

    found: list[Line] = []
    for line in text.splitlines() or [""]:
        pieces = textwrap.wrap(
            line, max(10, width), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        ) or [""]
        found += [((piece, token),) for piece in pieces]
    return found


def columns_of(line: Line) -> int:
    """Cells a line takes."""
    return sum(cell_len(text) for text, _ in line)
