"""Terminals without Unicode: every sign the app draws as one ASCII letter of the same width."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import get_character_cell_size

SIGNS = {
    "▼": "v", "▾": "v", "▲": "^", "▶": ">", "▸": ">", "›": ">", "→": ">", "←": "<", "≤": "<", "≥": ">",
    "✓": "+", "✗": "x", "×": "x", "–": "-", "—": "-", "−": "-", "·": ".", "…": "~", "⋯": "~", "▪": "#", "‖": '"',
    "★": "*", "●": "*", "•": "*", "▌": ">", "█": "#", "▉": "#", "▊": "#", "▋": "#", "▍": "=", "▎": "-", "▏": ".",
    "▀": '"', "▄": "_", "░": ".", "▒": ":", "▓": "%", "─": "-", "│": "|", "├": "+", "┤": "+", "└": "+", "┌": "+",
    "┐": "+", "┘": "+", "┼": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▐": "|", "▔": "-", "▁": "_", "µ": "u",
}  # fmt: skip
"""What has no line here is a `?` for each of its cells."""
CONSOLES = ("linux", "vt")
"""Beginnings of TERM of terminals whose fonts have few of these signs: the kernel's console, and those of old."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is one without Unicode: by its kind, or by a locale that names another character set.

    A locale that names none (`C`) says nothing: containers have it, and terminals of today show Unicode all the same.
    """
    if environment.get("TERM", "").startswith(CONSOLES):
        return True
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "")
    charset = locale.partition("@")[0].partition(".")[2]
    return bool(charset) and charset.replace("-", "").lower() != "utf8"


def plain(text: str) -> str:
    """The same in ASCII, cell by cell."""
    if text.isascii():
        return text
    return "".join(
        letter if letter.isascii() else SIGNS.get(letter, "?" * get_character_cell_size(letter)) for letter in text
    )
