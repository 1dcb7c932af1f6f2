"""Colour themes from TOML files: those that ship with Forge, and the user's own in the config folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

import forge_tui
from forge_tui.errors import ProjectError
from forge_tui.store.paths import UserPaths


class ThemeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One theme file. Colours as `#rrggbb`, or `ansi_green` and the like where `ansi` is true."""

    name: str
    dark: bool
    base: dict[str, str]
    tokens: dict[str, str]
    ansi: bool = False
    """The terminal's own sixteen colours."""


TOKENS = ("verified", "failed", "running", "muted", "cursor")
"""Forge's own words; `cursor` is the background of the row under the cursor."""

BASE = ("primary", "secondary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel")


def shipped_folder() -> Path:
    """Beside the package in a checkout, inside it in a wheel."""
    inside = Path(forge_tui.__file__).parent / "themes"
    return inside if inside.is_dir() else inside.parent.parent / "themes"


def load_theme(path: Path) -> Theme:
    """Raises ProjectError naming the file and what is wrong in it."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), ThemeFile)
        _check(found)
    except (OSError, ValueError, msgspec.ValidationError, ColorParseError) as error:  # TOML errors are ValueErrors
        raise ProjectError(f"theme cannot be used: {error}", where=str(path), cure="mend it or delete it") from error
    ansi = BUILTIN_THEMES["ansi-dark" if found.dark else "ansi-light"].variables if found.ansi else {}
    variables = {**ansi, **{f"forge-{name}": colour for name, colour in found.tokens.items()}}
    return Theme(name=found.name, dark=found.dark, ansi=found.ansi, variables=variables, **found.base)


def _check(found: ThemeFile) -> None:
    for table, wanted, given in (("tokens", TOKENS, found.tokens), ("base", BASE, found.base)):
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            raise ValueError(
                f"[{table}] lacks {missing[0]}" if missing else f"[{table}] has `{unknown[0]}`, which means nothing"
            )
        for colour in given.values():
            Color.parse(colour)


def all_themes() -> tuple[list[Theme], list[str]]:
    """Shipped themes, then the user's; and a message for each that cannot be used."""
    themes, problems = [], []
    for folder in (shipped_folder(), UserPaths.find().config / "themes"):
        for path in sorted(folder.glob("*.toml")):
            try:
                themes.append(load_theme(path))
            except ProjectError as error:
                problems.append(str(error))
    return themes, problems
