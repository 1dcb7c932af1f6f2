"""Toasts beside the row one is on, few and low; all that was said to read again; and the keys that work everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from screenkit import drive, home, press, root, text_of  # noqa: F401
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._toast import Toast

from benchmarks.screen_projects import many_rows_project
from forge_tui.app import ForgeApp
from forge_tui.screens.dialogs import Ask, Choose, Confirm
from forge_tui.screens.exporting import Export
from forge_tui.screens.jump import Jump
from forge_tui.screens.newproject import NewProject
from forge_tui.screens.palette import Palette
from forge_tui.screens.toasts import CUT, Messages, cut, most
from forge_tui.screens.widgets.table import Table

LONG = "the export went through; " + " ".join(f"word{number}" for number in range(200))


def covered(app: ForgeApp) -> set[int]:
    """Lines of the screen that toasts lie on."""
    return {
        line for toast in app.screen.query(Toast) for line in range(toast.region.y, toast.region.y + toast.region.height)
    }


@pytest.mark.parametrize(("size", "moved"), [((60, 20), True), ((80, 24), False), ((100, 30), False), ((200, 50), True)])
def test_toasts_are_few_and_low_and_never_over_the_cursor_or_the_keys(
    tmp_path: Path, size: tuple[int, int], moved: bool
) -> None:
    root = many_rows_project(tmp_path, 60)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for number in range(6):
            app.notify(f"{number} {LONG}", title="Said", timeout=60)
        count, lines = most(size[1])
        table = app.screen.query_one("#operators", Table)
        sides = set()
        for _ in range(table.room + 3):
            await pilot.press("j")
            await pilot.pause()
            shown = covered(app)
            assert len(app.screen.query(Toast)) <= count and 1 < len(shown) <= count * (lines + 1)
            assert table.region.y + 1 + table.cursor - table.top not in shown
            assert size[1] - 1 not in shown and 0 not in shown
            sides.add(min(shown) == 1)
        assert sides == ({True, False} if moved else {False})  # to the top, where the cursor came near
        assert "5 the export" in text_of(app) and "0 the export" not in text_of(app)

    drive(root, steps, size=size)


def test_toasts_leave_a_field_and_the_list_of_a_dialog_free(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for number in range(2):
            app.notify(f"{number} {LONG}", timeout=60)
        await press(app, pilot, "slash", "a")
        assert app.screen.query_one("#find", Input).region.y not in covered(app)
        await press(app, pilot, "escape", "colon")
        table = app.screen.query_one(Table)
        for _ in range(table.room + 2):
            await pilot.press("down")
            await pilot.pause()
            assert covered(app).isdisjoint({app.screen.query_one(Input).region.y, table.region.y + 1 + table.cursor - table.top})

    drive(root, steps, size=(80, 24))


def test_the_same_said_twice_is_one_toast(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "s", "s", "s")
        assert [str(toast._notification.title) for toast in app.screen.query(Toast)] == ["Nothing to stop"]
        await press(app, pilot, "P")
        assert len(app.screen.query(Toast)) == 2

    drive(root, steps)


def test_a_long_message_says_where_the_rest_is_and_all_of_it_is_there(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        app.notify(LONG, title="Exported")
        await pilot.pause(0.1)
        assert CUT in text_of(app) and "word199" not in text_of(app)
        await press(app, pilot, "exclamation_mark")
        seen = text_of(app)
        for _ in range(12):
            seen += await press(app, pilot, "down", "down", "down")
        assert all(f"word{number}" in seen for number in range(200)) and "Exported" in seen
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, Messages)

    drive(root, steps, size=(80, 24))


@pytest.mark.parametrize(("columns", "lines"), [(60, 20), (80, 24), (200, 60), (30, 10)])
def test_what_is_cut_fits_its_lines(columns: int, lines: int) -> None:
    for text in ("short", LONG, "/".join(["folder"] * 60), "one\ntwo\n\nthree\nfour\nfive\nsix", "a" * 500):
        pieces = cut(text, columns, lines).split("\n")
        assert len(pieces) <= most(lines)[1] and all(len(piece) <= min(60, columns) - 3 for piece in pieces)
        whole = "".join(cut(text, columns, lines).split()) == "".join(text.split())
        assert whole != pieces[-1].endswith(CUT)


PLACES: dict[str, tuple[bool, tuple[str, ...], type]] = {
    "confirm": (False, ("x",), Confirm),
    "ask": (False, ("R",), Ask),
    "form": (False, ("n", "a"), NewProject),
    "palette": (True, ("colon", "a"), Palette),
    "help": (True, ("question_mark",), Palette),
    "choose": (True, ("o",), Choose),
    "theme": (True, ("ctrl+t",), Choose),
    "jump": (True, ("apostrophe",), Jump),
    "writer": (True, ("w", "a"), Ask),
    "hint": (True, ("enter", "H", "a"), Ask),
    "export": (True, ("r", "x"), Export),
    "export's folder": (True, ("r", "x", "tab"), Export),
    "messages": (True, ("exclamation_mark",), Messages),
}
"""Whether a project is open, the keys that lead there, and what is then on top."""


@pytest.mark.parametrize("place", PLACES)
def test_ctrl_q_leaves_from_everywhere(root: Path, home: Path, place: str) -> None:
    opened, keys, screen = PLACES[place]
    (home / "state").mkdir(exist_ok=True)
    (home / "state/recent.json").write_text(f'[{{"root": "{root}", "opened": 1.0}}]')

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, *keys)
        assert isinstance(app.screen, screen)
        await pilot.press("ctrl+q")
        assert app._exit

    drive(root if opened else None, steps)


def test_ctrl_q_leaves_from_the_find_line(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "slash", "a")
        assert isinstance(app.screen.focused, Input)
        await pilot.press("ctrl+q")
        assert app._exit

    drive(root, steps)
