"""Which columns stay at which width, the mark of the sorted one, and signs for terminals that have only ASCII."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from screenkit import drive, home, press, root, text_of  # noqa: F401
from textual.pilot import Pilot

from benchmarks.screen_projects import doctor_cache, many_nodes_project, project, softmax
from benchmarks.terminals import KEY_QUIET_S, terminal
from forge_tui.app import ForgeApp
from forge_tui.engine.cards import load_operators, save_operators
from forge_tui.screens.letters import SIGNS, plain, wanted
from forge_tui.screens.widgets.table import Table
from forge_tui.store.paths import ProjectPaths

ALWAYS = {"operator", "status"}
TIMED = {
    60: {"saves▼", "speed-up"},
    80: {"share", "saves▼", "speed-up"},
    100: {"share", "saves▼", "best", "speed-up", "in model"},
    110: {"share", "saves▼", "speed-up"},
    120: {"share", "saves▼", "speed-up"},
    140: {"share", "saves▼", "best", "speed-up", "in model"},
    200: {"calls", "share", "eager", "floor", "saves▼", "best", "speed-up", "interval", "ceiling", "tried", "in model"},
}
"""Beside ALWAYS, by columns of the terminal, as docs/screens.md says; from 110 the card stands beside the table."""
MODELLED = {
    60: {"share▼", "best"},
    80: {"share▼", "best", "in model"},
    100: {"share▼", "eager", "best", "tried", "in model"},
    110: {"share▼", "best"},
    200: {"calls", "share▼", "eager", "floor", "best", "ceiling", "tried", "in model"},
}
NEW = {
    60: {"saves▼"},
    80: {"share", "eager", "saves▼"},
    110: {"share", "saves▼"},
    200: {"calls", "share", "eager", "floor", "saves▼"},
}


def titles(app: ForgeApp, line: int = 1) -> set[str]:
    text = text_of(app).splitlines()[line].partition("│")[0].replace("in model", "in-model")
    return {word.replace("in-model", "in model") for word in text.split()}


def modelled(root: Path) -> Path:
    """The same project as a machine without a GPU would have it."""
    paths = ProjectPaths(root)
    save_operators(paths, msgspec.structs.replace(load_operators(paths), time_kind="cpu"))
    return root


@pytest.mark.parametrize("width", sorted(TIMED))
def test_operators_keep_what_they_are_ranked_by_at_every_width(root: Path, width: int) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert titles(app) == ALWAYS | TIMED[width]
        assert ("│" in text_of(app).splitlines()[1]) == (width >= 110)

    drive(root, steps, size=(width, 30))


@pytest.mark.parametrize("width", sorted(MODELLED))
def test_where_nothing_is_timed_the_share_ranks_and_the_kernels_time_stays(tmp_path: Path, width: int) -> None:
    from forge_tui.engine import events  # the verdicts of a host run have no speed-up
    from forge_tui.engine.judge.verdict import Timing, Verdict
    from forge_tui.store.journal import JournalWriter

    paths, (key,) = project(tmp_path / "host", [softmax(64)])
    modelled(paths.root)
    with JournalWriter(paths.journal) as journal:
        for event in (
            events.Selected(at=1.0, operators=(key,)),
            events.Proposed(at=2.0, node=f"{key}/1", variant=key, parent=None, strategy="tiling", provider="builtin"),
            events.Replied(at=3.0, node=f"{key}/1", kernel="a" * 64, idea="a block a row", cost_usd=0.0),
            events.Judged(
                at=4.0, node=f"{key}/1", verdict=Verdict("verified", "right", (), timing=Timing("modelled", 4.4)), value=0.0
            ),
        ):
            journal.append(events.encode(event))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert titles(app) == ALWAYS | MODELLED[width]

    drive(paths.root, steps, size=(width, 30))


@pytest.mark.parametrize("width", sorted(NEW))
def test_before_anything_was_tried_there_are_no_columns_of_dashes(tmp_path: Path, width: int) -> None:
    paths, _ = project(tmp_path / "new", [softmax(64)])

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert titles(app) == ALWAYS | NEW[width]

    drive(paths.root, steps, size=(width, 30))


def test_a_column_that_is_sorted_by_is_marked_and_stays_in_a_narrow_terminal(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "best" not in titles(app)
        table = app.screen.query_one("#operators", Table)
        for title in ("calls", "speed-up", "tried", "ceiling", "in model", "status"):
            await press(app, pilot, "o")
            chooser = app.screen.query_one(Table)
            chooser.select(title)
            await press(app, pilot, "enter")
            mark = "▲" if title in ("in model", "status") else "▼"
            assert f"{title}{mark}" in text_of(app).splitlines()[1], title
            assert f"{title}{'▼' if mark == '▲' else '▲'}" in (await press(app, pilot, "O")).splitlines()[1]
        await press(app, pilot, "o", "g", "enter")
        assert table.sorting == (5, True) and "saves▼" in titles(app)

    drive(root, steps, size=(60, 20))


def test_only_columns_that_say_something_are_offered_and_the_present_one_is_under_the_cursor(tmp_path: Path) -> None:
    paths, _ = project(tmp_path / "new", [softmax(64)])
    modelled(paths.root)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "o")
        offered = app.screen.query_one(Table)
        assert offered.keys[0].startswith("as captured: by share") and offered.cursor == 0
        assert not {"saves", "speed-up", "best", "cost"} & set(offered.keys) and {"share", "floor"} <= set(offered.keys)
        offered.select("floor")
        await press(app, pilot, "enter", "o")
        assert app.screen.query_one(Table).key == "floor"

    drive(paths.root, steps)


def test_operators_can_be_sorted_by_what_the_model_uses(root: Path) -> None:
    """Its key was one number for all."""
    from forge_tui.screens.operatorrows import IN_MODEL, SORT_KEYS, OperatorRows
    from forge_tui.screens.watch import ProjectWatch

    watch = ProjectWatch(root)
    watch.refresh()
    rows = OperatorRows(watch)
    (entry,) = (rows.entry(key) for key in rows.keys())
    assert entry and SORT_KEYS[IN_MODEL](entry, watch) == "original"


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_place_in_a_long_list_covers_no_title(root: Path, width: int) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "space", "down", "enter", "space", "space")
        table = app.screen.query_one("#tree", Table)
        found = titles(app)
        assert "candidate" in found and "speed-up" in found and found <= {
            "candidate", "outcome", "speed-up", "time", "visits", "strategy", f"{table.cursor + 1}/{len(table.keys)}"
        }  # fmt: skip

    drive(root, steps, size=(width, 20))


# -- ASCII


@pytest.mark.parametrize(
    ("environment", "ascii_only"),
    [
        ({}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.utf8@euro"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "de_DE.ISO-8859-1", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, True),
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_terminals_without_unicode_are_known_by_kind_and_locale(environment: dict[str, str], ascii_only: bool) -> None:
    assert wanted(environment) == ascii_only


def test_signs_become_letters_of_the_same_width() -> None:
    assert all(len(letter) == 1 and letter.isascii() for letter in SIGNS.values())
    assert plain("✓ 1.94x ▸ share▼ │ 模") == "+ 1.94x > sharev | ??"
    assert plain("\x1b[3;4Hé\u0301") == "\x1b[3;4H?"


@pytest.mark.parametrize("how", ["locale", "config"])
def test_such_a_terminal_gets_no_byte_beyond_ascii(tmp_path: Path, how: str) -> None:
    home = tmp_path / "home"
    doctor_cache(home)
    environment = {"LC_ALL": "de_DE.ISO-8859-1"} if how == "locale" else {"LC_ALL": "C.UTF-8"}
    if how == "config":
        (home / "config").mkdir()
        (home / "config/config.toml").write_text("[app]\nascii = true\n")
    with terminal(str(many_nodes_project(tmp_path, 5)), home=home, cwd=tmp_path, **environment) as app:
        app.until("savesv")
        app.quiet(KEY_QUIET_S)
        app.press(b"\r")
        app.until("+ verified")
        os.write(app.handle, b"?")
        app.until("all keys")
        app.quiet(KEY_QUIET_S)
        assert bytes(app.received).isascii()
