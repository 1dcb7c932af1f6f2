"""From token words (`forge-verified`, `code-keyword`, `bold`) to terminal styles of the theme in use."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.style import Style
from textual.color import Color, ColorParseError

if TYPE_CHECKING:
    from textual.app import App

Span = tuple[str, str]
"""Text and its tokens, space-separated; no token: the plain text colour."""
Line = tuple[Span, ...]

ALIASES = {
    "code-keyword": "secondary",
    "code-comment": "forge-muted",
    "code-string": "success",
    "code-number": "accent",
    "code-type": "primary",
    "code-directive": "warning",
    "code-name": "foreground",
    "add": "forge-verified",
    "remove": "forge-failed",
    "title": "primary",
}
"""Tokens that are colours which every theme has anyway."""

ATTRIBUTES = {
    "bold": Style(bold=True),
    "reverse": Style(reverse=True),
    "underline": Style(underline=True),
    "italic": Style(italic=True),
}


def style_of(app: App[object], tokens: str) -> Style:
    """The style of space-separated tokens, a picture's own `#rrggbb` and `on#rrggbb` too; unknown ones say nothing."""
    style = Style.null()
    for token in tokens.split():
        if token in ATTRIBUTES:
            style += ATTRIBUTES[token]
        elif token.startswith("#"):
            style += _foreground(token)
        elif token.startswith("on#"):
            style += _ground(token[2:])
        else:
            value = app.theme_variables.get(ALIASES.get(token, token))
            if value:
                style += _foreground(value)
    return style


def cursor_style(app: App[object], focused: bool) -> Style:
    """Of the row under the cursor: the theme's own background where there are colours, reversed elsewhere."""
    value = app.theme_variables.get("forge-cursor", "")
    if app.no_color or not value.startswith("#"):
        return Style(reverse=True) if focused else Style(underline=True)
    return Style(bgcolor=value, bold=True) if focused else Style(bgcolor=value)


@lru_cache(4096)
def _ground(value: str) -> Style:
    return Style(bgcolor=value)


@lru_cache(4096)
def _foreground(value: str) -> Style:
    try:
        return Style(color=Color.parse(value).rich_color)
    except ColorParseError:  # `auto 87%` and the like
        return Style.null()
