"""What all screens share: palette, rebinding, themes, remembered panes, settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from screenkit import drive, home, press, root, text_of  # noqa: F401
from textual.color import Color
from textual.pilot import Pilot

from forge_tui.app import ForgeApp, known_ids
from forge_tui.screens.jump import Jump, labels
from forge_tui.screens.palette import actions_of
from forge_tui.screens.settings import load_config, load_remembered
from forge_tui.screens.themes import TOKENS, all_themes, load_theme, shipped_folder
from forge_tui.screens.widgets.table import Table


def test_the_palette_finds_an_action_by_name_and_does_it(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "colon", *"before and after")
        assert "results" not in shown.splitlines()[0]
        assert "› results" in await press(app, pilot, "enter")

    drive(root, steps)


def test_every_key_with_an_action_is_in_the_palette(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for keys in ((), ("enter",)):
            await press(app, pilot, *keys)
            named = {action.action for action in actions_of(app.screen)}
            bound = {binding.action for binding in type(app.screen).BINDINGS if binding.description}
            assert bound <= named

    drive(root, steps)


def test_keys_of_the_config_rebind_by_id_and_a_wrong_id_is_told(root: Path, home: Path) -> None:
    (home / "config").mkdir()
    (home / "config/config.toml").write_text('[keys]\n"operators.results" = "f5"\n"operators.resluts" = "f6"\n')

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "operators.results?" in text_of(app).replace("\n", "")
        assert "› results" not in await press(app, pilot, "r")
        assert "› results" in await press(app, pilot, "f5")

    drive(root, steps)


def test_a_config_that_is_no_toml_is_a_sentence(home: Path) -> None:
    (home / "config").mkdir()
    (home / "config/config.toml").write_text("[keys\n")
    _, problems = load_config(known_ids)
    assert len(problems) == 1 and "config.toml" in problems[0]


def test_binding_ids_are_unique() -> None:
    names = list(known_ids())
    assert len(names) == len(set(names)) > 60


def test_a_chosen_theme_and_a_pane_width_are_remembered(root: Path, home: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "ctrl+t", "g", "enter")
        assert app.theme == "forge-ansi-dark"
        await press(app, pilot, "greater_than_sign")

    drive(root, steps)
    kept = json.loads((home / "state/app.json").read_text())
    assert kept["theme"] == "forge-ansi-dark" and kept["panes"]["operators"] == 46

    async def again(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert app.theme == "forge-ansi-dark" and app.screen.query_one("#card").outer_size.width == 46

    drive(root, again)


def test_zoom_gives_the_focused_pane_everything(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter", "tab", "z")
        assert app.screen.query_one("#text").outer_size.width == 120
        await press(app, pilot, "z")
        assert app.screen.query_one("#text").outer_size.width < 120

    drive(root, steps)


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_text_of_shipped_themes_can_be_read(path: Path) -> None:
    theme = load_theme(path)
    if theme.ansi:  # the terminal's own colours: nobody here knows them
        return
    grounds = [theme.background, theme.surface, theme.panel, theme.variables["forge-cursor"]]
    words = [
        theme.foreground,
        theme.primary,
        theme.secondary,
        theme.accent,
        theme.warning,
        theme.error,
        theme.success,
        *(theme.variables[f"forge-{name}"] for name in TOKENS if name != "cursor"),
    ]
    for ground in grounds:
        for word in words:
            assert contrast(word, ground) >= 4.5, f"{word} on {ground}"


def contrast(first: str, second: str) -> float:
    """WCAG 2.1's contrast ratio, from its relative luminance."""

    def luminance(text: str) -> float:
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in Color.parse(text).normalized
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_shipped_themes_are_six_and_a_bad_one_of_the_user_is_told(root: Path, home: Path) -> None:
    (home / "config/themes").mkdir(parents=True)
    (home / "config/themes/mine.toml").write_text('name = "mine"\ndark = true\n[base]\n[tokens]\n')
    themes, problems = all_themes()
    assert len(themes) == 6 and sum(theme.ansi for theme in themes) == 2
    assert len(problems) == 1 and "mine.toml" in problems[0]

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "lacks verified" in text_of(app).replace("\n", "")

    drive(root, steps)


def test_jump_labels_lead_to_rows_panes_and_tabs(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter", "apostrophe")
        assert isinstance(app.screen, Jump)
        targets = app.screen._targets
        names = list(targets)
        assert not any(one != other and other.startswith(one) for one in names for other in names)
        row = next(name for name, target in targets.items() if target.row and target.y == 4)
        await press(app, pilot, *row)
        assert app.screen.query_one("#tree", Table).cursor == app.screen.query_one("#tree", Table).top + 2
        await press(app, pilot, "ctrl+o")
        tabs = [name for name, target in app.screen._targets.items() if not target.row][-9:]
        await press(app, pilot, tabs[2])
        assert app.screen.tab == "source"
        await press(app, pilot, "apostrophe", "0")  # no label: leaves
        assert not isinstance(app.screen, Jump)

    drive(root, steps)


@pytest.mark.parametrize(("few", "many"), [(2, 3), (11, 40), (25, 200), (40, 0)])
def test_no_jump_label_begins_another(few: int, many: int) -> None:
    names = labels(few, many)
    assert len(set(names)) == len(names) and len(names) == few + many
    assert not any(one != other and other.startswith(one) for one in names for other in names)


def test_zoom_and_heights_are_remembered_for_each_layout(root: Path) -> None:
    async def first(app: ForgeApp, pilot: Pilot[int]) -> None:
        height = app.screen.query_one("#below").outer_size.height
        await press(app, pilot, "plus", "plus")
        assert app.screen.query_one("#below").outer_size.height == height + 2
        await press(app, pilot, "enter", "tab", "z")

    async def again(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert app.screen.query_one("#below").outer_size.height == 10
        await press(app, pilot, "enter")
        assert app.screen.query_one("#text").outer_size.width == 120 and not app.screen.query_one("#tree").display
        await press(app, pilot, "tab", "z")
        assert app.screen.query_one("#tree").display

    async def narrow(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        tree = app.screen.query_one("#tree")
        height = tree.outer_size.height
        await press(app, pilot, "greater_than_sign")
        assert tree.outer_size.height == height + 1 and tree.outer_size.width == 80

    drive(root, first)
    drive(root, again)
    drive(root, narrow, size=(80, 24))
    assert set(load_remembered().panes) == {"operators:lower", "kernels:narrow"}
