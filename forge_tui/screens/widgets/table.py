"""A table drawn by the line: rows are made when they are seen, and only rows that changed are repainted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from forge_tui.screens.widgets.paint import cursor_style, style_of

GAP = 1
"""Blank cells between columns; one more where the end of one text meets the beginning of another."""
FLEXIBLE = 24
"""The flexible column keeps at least so many cells as long as another column can be dropped."""
ROOMY = 72
"""Cells of a table that has room for what a flexible column wants at least."""
WIDE_PART = 5
"""And in a wide table this part of it."""
WHEEL_ROWS = 3
DOWNWARDS, UPWARDS = "▼", "▲"
"""Behind the title of the column that the rows are sorted by: from the largest down, or from the smallest up."""


@dataclass(frozen=True)
class Column:
    """One column. `width` in cells; 0: takes what is left, `most` cells at the most. `drop`: the highest is hidden first
    when room is short."""

    title: str
    width: int
    align: Literal["left", "right"] = "left"
    drop: int = 0
    most: int = 0
    """0: no limit. On a wide terminal figures stay near the name that they are of."""
    least: int = 0
    """Of a flexible one, more than FLEXIBLE: in a roomy table others are hidden before it has less."""


@dataclass(frozen=True)
class Cell:
    """Text and the tokens that colour it (`forge-verified`); colour is never the only carrier."""

    text: str
    token: str = ""


@dataclass(frozen=True)
class Row:
    """One row; `key` identifies it over updates."""

    key: str
    cells: tuple[Cell, ...]


class Table(Widget, can_focus=True):
    """Rows under a fixed header, with a cursor and marks. `show` takes keys; `row_of` makes the rows that are seen.

    A plain widget with its own scroll offset: a scroll bar would cost a slow link more than the rows do. The header
    says where the cursor is. The cursor that leaves the window moves it by half a page, so that a held key
    repaints the whole window seldom.
    """

    BINDINGS = [
        Binding("up,k", "move(-1)", "up", show=False, id="table.up"),
        Binding("down,j", "move(1)", "down", show=False, id="table.down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id="table.page_up"),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False, id="table.page_down"),
        Binding("home,g", "move(-1000000000)", "first", show=False, id="table.first"),
        Binding("end,G", "move(1000000000)", "last", show=False, id="table.last"),
        Binding("enter", "choose", "open", id="table.open"),
    ]
    DEFAULT_CSS = "Table { width: 1fr; height: 1fr; }"

    @dataclass
    class Moved(Message):
        """The cursor is on another row."""

        table: Table
        key: str

    @dataclass
    class Chosen(Message):
        """Enter on a row."""

        table: Table
        key: str

    def say_empty(self, text: str) -> None:
        """What stands where there are no rows."""
        if text != self.empty:
            self.empty = text
            self.refresh()

    def __init__(
        self, columns: tuple[Column, ...], row_of: Callable[[str], Row], *, empty: str, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.columns = columns
        self.row_of = row_of
        self.empty = empty
        """Shown when there are no rows: names the next key."""
        self.keys: Sequence[str] = ()
        self.cursor = 0
        self.top = 0
        self.marked: set[str] = set()
        self.sorting: tuple[int, bool] | None = None
        """Column and whether descending: marked in the header, and never hidden for want of room."""
        self.hidden: frozenset[int] = frozenset()
        """Columns that have nothing to say now."""
        self.kept: frozenset[int] = frozenset()
        """Columns that are not hidden for want of room now, whatever their `drop`."""
        self._painted: dict[int, Row | None] = {}
        """By line of the window: what is on the screen."""
        self._drawn = False
        """Whether there is anything on the screen to repaint: before, all is drawn in one go."""

    @property
    def key(self) -> str | None:
        """The row under the cursor."""
        return self.keys[self.cursor] if self.keys else None

    @property
    def room(self) -> int:
        """Rows that fit."""
        return max(1, self.size.height - 1)

    def show(self, keys: Sequence[str]) -> None:
        """Show these rows; the cursor stays on its key. Only what differs is repainted."""
        old, key = self.key, self.key
        same = len(keys) == len(self.keys)
        self.keys = keys
        if key is None or self.cursor >= len(keys) or keys[self.cursor] != key:
            self.cursor = keys.index(key) if key in keys else max(0, min(self.cursor, len(keys) - 1))
        if not same:
            self._refresh_line(0)
        self._reveal()
        self.repaint()
        if self.key is not None and self.key != old:
            self.post_message(self.Moved(self, self.key))

    def repaint(self) -> None:
        """Repaint the visible rows that are not what they were."""
        for line in range(1, self.room + 1):
            index = self.top + line - 1
            row = self.row_of(self.keys[index]) if index < len(self.keys) else None
            if line not in self._painted or self._painted[line] != row:
                self._painted[line] = row
                self._refresh_line(line)

    def select(self, key: str) -> None:
        """Put the cursor on a row."""
        if key in self.keys:
            self.action_move(self.keys.index(key) - self.cursor)

    def toggle_mark(self) -> None:
        """Mark or unmark the row under the cursor, and go on to the next."""
        if self.key is not None:
            self.marked ^= {self.key}
            self._refresh_row(self.cursor)
            self.action_move(1)

    def action_move(self, step: int) -> None:
        if not self.keys:
            return
        before = self.cursor
        self.cursor = max(0, min(len(self.keys) - 1, before + step))
        if self.cursor != before:
            self._refresh_row(before)
            self._refresh_row(self.cursor)
            self._refresh_line(0)
            self._reveal()
            self.post_message(self.Moved(self, self.keys[self.cursor]))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.room - 1))

    def action_choose(self) -> None:
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def on_resize(self) -> None:
        self._reveal()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-WHEEL_ROWS)

    def on_click(self, event: events.Click) -> None:
        index = self.top + event.y - 1
        if 0 <= index < len(self.keys) and event.y:
            self.action_move(index - self.cursor)

    def _reveal(self) -> None:
        """Move the window so that the cursor is in it."""
        top = self.top
        if self.cursor < top or self.cursor >= top + self.room:
            near = abs(self.cursor - top) <= 2 * self.room
            if self.cursor < top:
                top = self.cursor - (self.room // 2 if near and self.cursor else 0)
            else:
                top = self.cursor - (self.room // 2 if near else self.room - 1)
        top = max(0, min(top, len(self.keys) - self.room))
        if top != self.top:
            self.top = top
            self._painted.clear()
            self.refresh()

    def _refresh_row(self, index: int) -> None:
        self._refresh_line(index - self.top + 1)

    def _refresh_line(self, line: int) -> None:
        if self._drawn and 0 <= line < self.size.height:
            self.refresh(Region(0, line, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        self._drawn = True
        width = self.size.width
        style = self.visual_style.rich_style
        if y == 0:
            return self._header(width, style)
        index = y - 1 + self.top
        if not self.keys and y == 2:
            return Strip([Segment(set_cell_size(f"  {self.empty}", width), style)])
        if index >= len(self.keys):
            return Strip.blank(width, style)
        row = self.row_of(self.keys[index])
        self._painted[y] = row
        edge = "▌" if index == self.cursor else " "
        if index == self.cursor:
            style += cursor_style(self.app, self.has_focus)
        return self._strip(row.cells, width, style, "●" if row.key in self.marked else edge)

    def _header(self, width: int, style: Style) -> Strip:
        cells = []
        for index, column in enumerate(self.columns):
            sorted_by = self.sorting is not None and self.sorting[0] == index
            mark = (DOWNWARDS if self.sorting[1] else UPWARDS) if self.sorting and sorted_by else ""
            title = column.title + mark
            if not column.width:
                title = self._with_place(title, self._widths(width - 1)[index])
            cells.append(Cell(title, "primary bold" if sorted_by else "forge-muted bold"))
        return self._strip(cells, width, style, " ")

    def _with_place(self, title: str, size: int) -> str:
        """A title of so many cells, and at its end where the cursor is among more rows than fit: no other title is covered."""
        if len(self.keys) <= self.room:
            return title
        place = f" {self.cursor + 1}/{len(self.keys)}"
        return fit(title, max(0, size - len(place)), "left") + place

    def _strip(self, cells: Sequence[Cell], width: int, style: Style, edge: str) -> Strip:
        segments = [Segment(edge, style + style_of(self.app, "primary"))]
        before = "left"
        for column, size, cell in zip(self.columns, self._widths(width - 1), cells, strict=True):
            if size:
                text = fit(cell.text, size, column.align) + " " * GAP
                if (before, column.align) == ("right", "left"):
                    segments.append(Segment(" ", style))
                segments.append(Segment(text, style + style_of(self.app, cell.token)))
                before = column.align
        return Strip(segments).adjust_cell_length(width, style).simplify()

    def _widths(self, width: int) -> list[int]:
        """Cells of each column: the one that is sorted by has room for its mark, and is kept."""
        columns, kept = self.columns, self.kept
        if self.sorting is not None:
            index = self.sorting[0]
            column = columns[index]
            kept |= {index}
            if column.width:
                marked = replace(column, width=max(column.width, cell_len(column.title) + 1))
                columns = (*columns[:index], marked, *columns[index + 1 :])
        return widths(columns, width, self.hidden, kept)


def fit(text: str, width: int, align: str) -> str:
    """Exactly `width` cells: cut with an ellipsis, or padded."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    pad = " " * (width - cell_len(text))
    return pad + text if align == "right" else text + pad


def widths(
    columns: tuple[Column, ...], width: int, hidden: frozenset[int] = frozenset(), kept: frozenset[int] = frozenset()
) -> list[int]:
    """Cells of each column; 0 hides it. kept: those that want of room does not hide."""
    shown = set(range(len(columns))) - hidden
    wanted = [column.least for column in columns] if width >= ROOMY else []
    least = max(FLEXIBLE, width // WIDE_PART, *wanted)
    while True:
        fixed = sum(columns[index].width + GAP for index in shown) + _meetings([columns[index] for index in sorted(shown)])
        droppable = [index for index in shown if columns[index].drop and index not in kept]
        if width - fixed >= least or not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    left = max(1, width - fixed)
    return [(column.width or min(left, column.most or left)) if index in shown else 0 for index, column in enumerate(columns)]


def _meetings(columns: list[Column]) -> int:
    """Places where a column that ends at its right edge stands before one that begins at its left."""
    return sum((one.align, other.align) == ("right", "left") for one, other in zip(columns, columns[1:], strict=False))
