"""Colour themes from TOML files: those that ship with Forge, and the user's own in the config folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from textual.theme import Theme

import forge_tui
from forge_tui.errors import ProjectError
from forge_tui.store.paths import UserPaths


class ThemeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One theme file. Colours as `#rrggbb`."""

    name: str
    dark: bool
    base: dict[str, str]
    tokens: dict[str, str]


TOKENS = ("verified", "failed", "running", "muted")


def shipped_folder() -> Path:
    """Beside the package in a checkout, inside it in a wheel."""
    inside = Path(forge_tui.__file__).parent / "themes"
    return inside if inside.is_dir() else inside.parent.parent / "themes"


def load_theme(path: Path) -> Theme:
    """Raises ProjectError naming the file and what is wrong in it."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), ThemeFile)
        missing = [token for token in TOKENS if token not in found.tokens]
        if missing:
            raise ValueError(f"[tokens] lacks {missing[0]}")
        return Theme(name=found.name, dark=found.dark, variables={f"forge-{k}": v for k, v in found.tokens.items()},
                     **found.base)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError, TypeError) as error:
        raise ProjectError(f"theme cannot be used: {error}", where=str(path), cure="mend it or delete it") from error


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
