"""A table drawn by the line: repaints only rows that changed, so that a slow link carries little and long lists are quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

GAP = 1
"""Blank cells between columns."""


@dataclass(frozen=True)
class Column:
    """One column. `width` in cells; 0: takes what is left. `drop`: hidden first (highest first) when the room is short."""

    title: str
    width: int
    align: Literal["left", "right"] = "left"
    drop: int = 0


@dataclass(frozen=True)
class Cell:
    """Text and the CSS variable that colours it (`forge-verified`); colour is never the only carrier."""

    text: str
    token: str = ""


@dataclass(frozen=True)
class Row:
    """One row; `key` identifies it over updates."""

    key: str
    cells: tuple[Cell, ...]


class Table(ScrollView, can_focus=True):
    """Rows under a fixed header, with a cursor. Posts `Moved` and `Chosen`."""

    BINDINGS = [
        Binding("up,k", "move(-1)", "up", show=False), Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False), Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "move(-1000000000)", "first", show=False), Binding("end,G", "move(1000000000)", "last", show=False),
        Binding("enter", "choose", "open"),
    ]
    DEFAULT_CSS = "Table { height: 1fr; } Table:focus { scrollbar-color: $primary; }"

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

    def __init__(self, columns: tuple[Column, ...], *, empty: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = columns
        self.rows: list[Row] = []
        self.empty = empty
        """Shown when there are no rows: names the next key."""
        self.cursor = 0

    @property
    def key(self) -> str | None:
        """The row under the cursor."""
        return self.rows[self.cursor].key if self.rows else None

    def set_rows(self, rows: list[Row]) -> None:
        """Show `rows`; the cursor stays on its key. Only what differs is repainted."""
        old, key = self.rows, self.key
        self.rows = rows
        self.cursor = next((index for index, row in enumerate(rows) if row.key == key), min(self.cursor, max(0, len(rows) - 1)))
        if len(old) != len(rows):
            self.virtual_size = Size(0, len(rows) + 1)
            self.refresh()
        else:
            for index, (before, after) in enumerate(zip(old, rows, strict=True)):
                if before != after:
                    self._refresh_row(index)
        if self.key is not None and self.key != key:
            self.post_message(self.Moved(self, self.key))

    def action_move(self, step: int) -> None:
        if not self.rows:
            return
        before = self.cursor
        self.cursor = max(0, min(len(self.rows) - 1, before + step))
        if self.cursor != before:
            self._refresh_row(before)
            self._refresh_row(self.cursor)
            self._reveal()
            self.post_message(self.Moved(self, self.rows[self.cursor].key))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.size.height - 2))

    def action_choose(self) -> None:
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def _reveal(self) -> None:
        room, top = max(1, self.size.height - 1), round(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False)

    def _refresh_row(self, index: int) -> None:
        y = index - round(self.scroll_offset.y) + 1
        if 0 < y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            style = self.visual_style.rich_style + Style(bold=True)
            return self._strip([Cell(column.title, "forge-muted") for column in self.columns], width, style)
        index = y - 1 + round(self.scroll_offset.y)
        if not self.rows and y == 2:
            return Strip([Segment(set_cell_size(f" {self.empty}", width), self.visual_style.rich_style)])
        if index >= len(self.rows):
            return Strip.blank(width, self.visual_style.rich_style)
        style = self.visual_style.rich_style
        if index == self.cursor:
            style += Style(reverse=True) if self.has_focus else Style(bold=True, underline=True)
        return self._strip(self.rows[index].cells, width, style)

    def _strip(self, cells: tuple[Cell, ...] | list[Cell], width: int, style: Style) -> Strip:
        segments = [Segment(" ", style)]
        for column, size, cell in zip(self.columns, _widths(self.columns, width - 1), cells, strict=True):
            if size:
                segments.append(Segment(fit(cell.text, size, column.align) + " " * GAP, style + self._colour(cell.token)))
        return Strip(segments).adjust_cell_length(width, style)

    def _colour(self, token: str) -> Style:
        value = self.app.theme_variables.get(token) if token else None
        return Style(color=value) if value and value.startswith("#") else Style()


def fit(text: str, width: int, align: str) -> str:
    """Exactly `width` cells: cut with an ellipsis, or padded."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    pad = " " * (width - cell_len(text))
    return pad + text if align == "right" else text + pad


def _widths(columns: tuple[Column, ...], width: int) -> list[int]:
    """Cells of each column; 0 hides it. The flexible column keeps at least 24 cells as long as another can be dropped."""
    shown = set(range(len(columns)))
    while True:
        fixed = sum(columns[index].width + GAP for index in shown)
        droppable = [index for index in shown if columns[index].drop]
        if width - fixed >= 24 or not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    left = max(1, width - fixed)
    return [(column.width or left) if index in shown else 0 for index, column in enumerate(columns)]
