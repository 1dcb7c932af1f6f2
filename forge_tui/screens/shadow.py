"""What the terminal shows, cell by cell, so that of a frame only the cells that differ are sent.

Textual composes whole widgets and paints whole screens more often than it must (after a resize, a change of classes, a
screen that comes back); a slow link pays for each. This reads the frames as they are written (cursor moves, colours,
text), keeps what each cell holds, and writes the shortest text that makes the terminal look so.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby

from rich.cells import get_character_cell_size

_TOKEN = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;:]*)m|(\x1b)|([^\x1b]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEEN = re.compile(r"\b(4|7|9|21|53)\b")
"""Attributes of blanks that can be seen: lines and reversed colours."""
_NEAR = 6
"""Cells that stayed between two runs of changed ones are sent again where that is shorter than moving the cursor."""

Cell = tuple[str, str]
"""What is printed there (empty: the right half of a wide one) and its colours as SGR parameters."""
UNKNOWN: Cell = ("", "?")


class Shadow:
    """`reduced` for each frame in the order in which they are sent."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell]] = {}
        self._at = (0, 0)
        """Where the cursor was left."""

    def forget(self) -> None:
        """Nothing is known of the terminal any more: it was resized, or another program used it."""
        self._rows.clear()

    def reduced(self, frame: str) -> str:
        """A shorter text that makes the terminal look as `frame` would. What is no frame is given back as it is."""
        changed: dict[int, dict[int, Cell]] = {}
        y = x = 0
        style = ""
        for row, column, colours, other, text in _TOKEN.findall(frame):
            if row:
                y, x = int(row) - 1, int(column) - 1
            elif text:
                text = text.replace("\n", "")  # a cursor move follows each
                if _CONTROL.search(text):
                    return self._unread(frame)
                if text:
                    x = self._put(changed.setdefault(y, {}), x, text, style)
            elif other:
                return self._unread(frame)
            else:
                style = "" if colours in ("", "0") else colours
        parts = [part for row in sorted(changed) for part in self._row(row, changed[row])]
        if not parts and (y, x) == self._at:
            return ""
        self._at = y, x
        return f"{_painted(parts)}\x1b[{y + 1};{x + 1}H"

    def _unread(self, frame: str) -> str:
        """Something that no frame has: what it does to the screen is not known."""
        if any(mark in frame for mark in ("H", "J", "K", "?1049")):
            self.forget()
        return frame

    @staticmethod
    def _put(row: dict[int, Cell], x: int, text: str, style: str) -> int:
        """Lay text into a row from a column on; the column behind it."""
        if text.isascii():
            blank = (" ", _blank(style))
            for at, character in enumerate(text, x):
                row[at] = blank if character == " " else (character, style)
            return x + len(text)
        for character in text:
            width = get_character_cell_size(character)
            if character == " ":
                row[x] = (" ", _blank(style))
                x += 1
            elif width:
                row[x] = (character, style)
                if width == 2:
                    row[x + 1] = ("", style)
                x += width
            elif x - 1 in row:  # joins the one before
                row[x - 1] = (row[x - 1][0] + character, style)
        return x

    def _row(self, y: int, cells: dict[int, Cell]) -> list[tuple[int, int, list[Cell]]]:
        """Take in one row's cells; runs of those that differ as (row, column, cells)."""
        known = self._rows.setdefault(y, [])
        missing = max(cells) + 1 - len(known)
        known += [UNKNOWN] * missing
        runs: list[list[int]] = []
        for x in sorted(x for x, cell in cells.items() if known[x] != cell):
            known[x] = cells[x]
            if not cells[x][0] and x - 1 in cells:
                x -= 1  # a wide one is printed from its left half
            if runs and x - runs[-1][1] <= _NEAR and UNKNOWN not in known[runs[-1][1] : x]:
                runs[-1][1] = x + 1
            else:
                runs.append([x, x + 1])
        return [(y, begin, known[begin:end]) for begin, end in runs]


def _painted(runs: list[tuple[int, int, list[Cell]]]) -> str:
    """Runs as text for a terminal: colours only where they change."""
    found: list[str] = []
    style = ""
    for y, x, cells in runs:
        found.append(f"\x1b[{y + 1};{x + 1}H")
        for (wanted, blank), group in groupby(cells, key=lambda cell: (cell[1], cell[0] == " ")):
            if not blank or _blank(style) != wanted:
                found.append(_change(style, wanted))
                style = wanted
            found.append("".join(text for text, _ in group))
    if style:
        found.append("\x1b[0m")
    return "".join(found)


@lru_cache(4096)
def _change(old: str, new: str) -> str:
    """From one set of colours to another, the shorter way."""
    if old == new:
        return ""
    (attributes, front, ground), wanted = _parts(old), _parts(new)
    whole = f"\x1b[0;{new}m" if old and new else f"\x1b[{new or '0'}m"
    if attributes != wanted[0]:
        return whole
    changed = [
        value or default
        for value, before, default in ((wanted[1], front, "39"), (wanted[2], ground, "49"))
        if value != before
    ]
    return min(f"\x1b[{';'.join(changed)}m", whole, key=len) if changed else ""


@lru_cache(4096)
def _blank(style: str) -> str:
    """What of the colours can be seen where nothing is printed."""
    attributes, _, ground = _parts(style)
    return style if _SEEN.search(attributes) else ground


@lru_cache(4096)
def _parts(style: str) -> tuple[str, str, str]:
    """Attributes, foreground and background of SGR parameters."""
    attributes: list[str] = []
    colours = {"3": "", "4": ""}
    numbers = iter(style.split(";")) if style else iter(())
    for number in numbers:
        if number in ("38", "48"):
            kind = next(numbers, "")
            rest = [next(numbers, "") for _ in range({"5": 1, "2": 3}.get(kind, 0))]
            colours[number[0]] = ";".join((number, kind, *rest))
        elif re.fullmatch(r"[39][0-7]|39", number):
            colours["3"] = number
        elif re.fullmatch(r"4[0-7]|10[0-7]|49", number):
            colours["4"] = number
        else:
            attributes.append(number)
    return ";".join(attributes), colours["3"], colours["4"]
