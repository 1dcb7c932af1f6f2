"""What is cut off says so, what tells things apart stays, and keys that a footer promises do something."""

from __future__ import annotations

from pathlib import Path

import pytest
from screenkit import drive, home, press, read, root, text_of  # noqa: F401
from textual.pilot import Pilot

from benchmarks.screen_projects import candidate, project, softmax, started
from forge_tui.app import ForgeApp
from forge_tui.engine import events
from forge_tui.engine.judge.verdict import Point
from forge_tui.screens.candidate import _points
from forge_tui.screens.exporting import Export
from forge_tui.screens.operatorcard import card_lines
from forge_tui.screens.palette import Palette
from forge_tui.screens.widgets.lines import LineView, columns_of
from forge_tui.screens.widgets.table import Table
from forge_tui.store.journal import JournalWriter
from forge_tui.store.lock import ProjectLock


def words(line: tuple[tuple[str, str], ...]) -> str:
    return "".join(text for text, _ in line)


def test_a_line_that_goes_on_beyond_the_edge_ends_with_a_mark(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter", "3", "tab")
        view = app.screen.query_one("#lines", LineView)
        view.show([(("x" * view.size.width, ""),), (("y" * 80, ""), ("zend", ""))], top=0)
        await pilot.pause(0.1)
        width = view.size.width
        shown = text_of(app).splitlines()[view.region.y : view.region.y + 2]
        assert shown[0].count("x") == width and shown[1].endswith("y…") and shown[1].count("y") == width - 1
        await press(app, pilot, "right", "right")
        assert text_of(app).splitlines()[view.region.y + 1].endswith("zend")

    drive(root, steps, size=(80, 24))


def test_what_is_left_without_a_kernel_and_what_to_do_fits_80_columns(tmp_path: Path) -> None:
    paths, (key,) = project(tmp_path / "encoder", [softmax(64)])
    with JournalWriter(paths.journal) as journal:
        for event in (
            started(1.0),
            events.Selected(at=1.0, operators=(key,)),
            events.OperatorDone(at=2.0, variant=key, status="skipped", reason="no kernel ships", best=None),
            events.RunEnded(at=3.0, run="r", status="done", reason="", exit_code=0),
        ):
            journal.append(events.encode(event))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "r shows results   100% of the time has no kernel: w names another writer\n" in text_of(app)

    drive(paths.root, steps, size=(80, 24))


def test_pausing_what_is_no_run_says_so_and_leaves_no_request(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        with ProjectLock(app.screen.project.paths) as lock:  # as a bench holds it: after the run's end
            await pilot.pause(0.6)
            shown = " ".join((await press(app, pilot, "P")).split())  # the second line of what goes on has room, too
            assert "Cannot be paused" in shown and "starting, or no run:" in shown and "‖" not in shown
            assert not lock.paths.pause_request.exists()

    with JournalWriter(read(root).paths.journal) as journal:
        journal.append(events.encode(events.RunEnded(at=2e3, run="r", status="done", reason="", exit_code=0)))
    drive(root, steps)


def searched(tmp_path: Path) -> Path:
    """Two variants of one operator, alike but for their key."""
    paths, keys = project(tmp_path / "encoder", [softmax(64), softmax(512)])
    with JournalWriter(paths.journal) as journal:
        for event in [started(1.0), *(event for key in keys for event in candidate(key, 1, None, 2.0))]:
            journal.append(events.encode(event))
    return paths.root


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_kernels_of_alike_operators_are_told_apart_by_their_keys(tmp_path: Path, size: tuple[int, int]) -> None:
    root = searched(tmp_path)
    keys = {variant.key[:4] for variant in read(root).cards.variants}

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "r")
        assert all(f" {key} " in shown for key in keys)
        await press(app, pilot, "x")
        dialog = app.screen.query_one("#offers", Table).region
        lines = text_of(app).splitlines()[dialog.y : dialog.y + 3]
        assert all(f" {key} " in lines[1] + lines[2] for key in keys)

    drive(root, steps, size=size)


def test_the_export_dialog_tells_its_keys(tmp_path: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "r", "x")
        assert "? all keys" in shown and "enter take or leave" in shown
        for key in ("question_mark", "ctrl+p"):
            shown = await press(app, pilot, key)
            assert isinstance(app.screen, Palette)
            assert "take the safe ones only" in shown and "also build a wheel" in shown and "write the package" in shown
            await press(app, pilot, "escape")
        assert isinstance(app.screen, Export)
        await press(app, pilot, "question_mark", *"every kernel", "enter")
        assert "export 2 of 2" in text_of(app)

    drive(searched(tmp_path), steps, size=(80, 24))


def test_tuning_points_that_differ_by_little_are_told_apart() -> None:
    lines = _points((Point({"BLOCK": 128}, 3.484), Point({"BLOCK": 256}, 3.521), Point({"BLOCK": 512}, 1234.0)), 60)
    assert [words(line).split()[:2] for line in lines[1:]] == [["3.48", "us"], ["3.52", "us"], ["1.23", "ms"]]


def test_a_card_shows_a_whole_key_or_puts_it_below(tmp_path: Path) -> None:
    watch = read(searched(tmp_path))
    from forge_tui.screens.operatorrows import OperatorRows

    rows = OperatorRows(watch)
    rows.keys()
    for width in (20, 31, 39, 78):
        for variant in watch.cards.variants:
            head = card_lines(watch, rows.entry(variant.key), width)[:2]
            assert variant.key in words(head[0]) + words(head[1]) and all(columns_of(line) <= width for line in head)


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
def test_what_an_action_does_is_there_whole_in_a_narrow_palette(root: Path, size: tuple[int, int]) -> None:
    from forge_tui.screens.palette import actions_of

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        actions = actions_of(app.screen)
        shown = await press(app, pilot, "question_mark")
        for action in actions:
            assert action.name in " ".join(shown.replace("│", " ").split()) or len(action.name) > size[0] - 30
            if len(action.name) > size[0] - 25:
                inside = " ".join(line.partition("│")[2].rpartition("│")[0] for line in shown.splitlines())
                assert f"{action.keys}: {action.name}" in " ".join(inside.split())
            await pilot.press("down")
            await pilot.pause()
            shown = text_of(app)

    drive(root, steps, size=size)


def test_dialogs_tell_their_keys(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for key in ("o", "w", "ctrl+t"):
            assert "enter takes it    esc leaves" in await press(app, pilot, key)
            await press(app, pilot, "escape")

    drive(root, steps, size=(80, 24))


def test_a_form_that_was_left_is_as_it_was_left() -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "n", *"hf:o/n", "down", "down", *"text:=hi", "escape")
        shown = await press(app, pilot, "n")
        assert "hf:o/n" in shown and "text:=hi" in shown and "builtin" in shown

    drive(None, steps)


def test_a_folded_operator_shows_what_is_in_flight_and_the_narrow_line_begins_with_it(tmp_path: Path) -> None:
    paths, keys = project(tmp_path / "encoder", [softmax(64), softmax(512)])
    with JournalWriter(paths.journal) as journal:
        for event in (
            started(1.0),
            events.Selected(at=1.0, operators=tuple(keys)),
            events.Proposed(
                at=2.0, node=f"{keys[1]}/1", variant=keys[1], parent=None, strategy="tiling", provider="builtin"
            ),
        ):
            journal.append(events.encode(event))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = text_of(app)
        assert "▸ softmax  2 variants" in shown.splitlines()[2] and "▶ 1 in flight" in shown.splitlines()[2]
        assert " asking  softmax" in shown and "queued   process" in shown

    with ProjectLock(paths):
        drive(paths.root, steps, size=(80, 24))


def test_before_the_capture_no_column_is_marked_as_sorted(tmp_path: Path) -> None:
    paths, _ = project(tmp_path / "encoder", [softmax(64)])
    paths.operators.unlink()

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "operator" in text_of(app).splitlines()[1] and not set("▼▲") & set(text_of(app))

    drive(paths.root, steps, size=(80, 24))
