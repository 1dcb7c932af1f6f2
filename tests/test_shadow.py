"""Frames as they are sent: a terminal looks as it would after the whole frames, and gets only what changed."""

from __future__ import annotations

from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.screens.shadow import Shadow

COLUMNS, LINES = 24, 5
STYLES = ("", "1", "1;38;2;9;8;7", "38;5;3", "31;44", "48;2;1;2;3", "7;38;2;9;8;7;48;2;1;2;3", "97;100", "4")

pieces = st.tuples(
    st.integers(0, LINES - 1),
    st.integers(0, COLUMNS - 12),
    st.sampled_from(STYLES),
    st.text("ab ▌漢é│", min_size=1, max_size=6),
)
frames = st.lists(pieces, min_size=1, max_size=8)


def sent(frame: list[tuple[int, int, str, str]]) -> str:
    """As Textual writes it."""
    text = "".join(
        f"\x1b[{y + 1};{x + 1}H" + (f"\x1b[{style}m{words}\x1b[0m" if style else words) for y, x, style, words in frame
    )
    return text + "\x1b[1;1H"


def shown(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """What can be seen: of a blank the background, unless it is underlined or reversed."""
    return [[_seen(screen.buffer[y][x]) for x in range(COLUMNS)] for y in range(LINES)]


def _seen(cell: Any) -> tuple[object, ...]:
    plain = cell.data == " " and not (cell.underscore or cell.reverse)
    return (cell.data, cell.bg) if plain else tuple(cell)


@settings(max_examples=150, deadline=None)
@given(st.lists(frames, min_size=1, max_size=6))
def test_a_terminal_looks_as_if_it_had_got_the_whole_frames(several: list[list[tuple[int, int, str, str]]]) -> None:
    whole, less = pyte.Screen(COLUMNS, LINES), pyte.Screen(COLUMNS, LINES)
    streams, shadow = (pyte.Stream(whole), pyte.Stream(less)), Shadow()
    blank = sent([(y, 0, "", " " * COLUMNS) for y in range(LINES)])
    for frame in (blank, *map(sent, map(_whole_characters, several))):
        streams[0].feed(frame)
        streams[1].feed(shadow.reduced(frame))
        assert shown(less) == shown(whole)
        assert (less.cursor.y, less.cursor.x) == (whole.cursor.y, whole.cursor.x)
        assert shadow.reduced(frame) == "" or len(frame) > len(shadow.reduced(frame))


def _whole_characters(frame: list[tuple[int, int, str, str]]) -> list[tuple[int, int, str, str]]:
    """Textual never overwrites half of a wide character: each piece here has a row of its own, blank elsewhere."""
    rows = {y: (y, x, style, words) for y, x, style, words in frame}
    return [
        piece
        for y, x, style, words in rows.values()
        for piece in ((y, 0, "", " " * COLUMNS), (y, x, style, words))
    ]


def test_the_same_frame_again_costs_nothing_and_after_a_resize_all_of_it() -> None:
    shadow, frame = Shadow(), sent([(1, 2, "31", "words of a row")])
    first = shadow.reduced(frame)
    assert "words of a row" in first and shadow.reduced(frame) == ""
    shadow.forget()
    assert shadow.reduced(frame) == first


def test_of_a_row_only_the_cells_that_differ_are_sent() -> None:
    shadow = Shadow()
    shadow.reduced(sent([(0, 0, "31", "operator-17    12.5 us")]))
    assert shadow.reduced(sent([(0, 0, "31", "operator-18    12.6 us")])) == (
        "\x1b[1;11H\x1b[31m8\x1b[1;19H6\x1b[0m\x1b[1;1H"
    )


@pytest.mark.parametrize("text", ["\x1b[?25l", "\x1b]22;default\x07", "\x1b[?1049h\x1b[2J", "a\tb"])
def test_what_is_no_frame_goes_through_as_it_is(text: str) -> None:
    assert Shadow().reduced(text) == text
