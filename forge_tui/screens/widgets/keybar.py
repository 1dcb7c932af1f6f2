"""The last line of every screen: its keys, the most wanted first, and where the rest is."""

from __future__ import annotations

from rich.segment import Segment
from textual.binding import Binding
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from forge_tui.screens.widgets.paint import style_of

NAMES = {
    "question_mark": "?",
    "exclamation_mark": "!",
    "slash": "/",
    "colon": ":",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "apostrophe": "'",
    "equals_sign": "=",
    "escape": "esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "plus": "+",
    "minus": "-",
    "comma": ",",
    "full_stop": ".",
}
MORE, MORE_IN_A_FIELD = " ? all keys", " ctrl+p all keys"
"""A field takes `?` as text."""


class KeyBar(Widget):
    """One line, repainted only when the keys change."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; background: $panel; }"

    def on_mount(self) -> None:
        self._shown: list[tuple[str, str]] = []
        self._in_field = isinstance(self.screen.focused, Input)
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        now = self._keys(), isinstance(screen.focused, Input)
        if now != (self._shown, self._in_field):
            self._shown, self._in_field = now
            self.refresh()

    def _keys(self) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and binding.description and binding.description not in found:
                found[binding.description] = key_name(binding)
        return [(key, description) for description, key in found.items()]

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style.rich_style
        strong, segments, used = style_of(self.app, "primary bold"), [], 0
        more = MORE_IN_A_FIELD if self._in_field else MORE
        for key, description in self._shown or self._keys():
            size = len(key) + len(description) + 3
            if used + size > width - len(more):
                break
            segments += [Segment(f" {key}", style + strong), Segment(f" {description} ", style)]
            used += size
        segments += [Segment(" " * (width - used - len(more)), style), Segment(more, style)]
        return Strip(segments).adjust_cell_length(width, style)


def key_name(binding: Binding) -> str:
    """A key as it is printed on keyboards: `?`, `ctrl+p`, `F`."""
    return NAMES.get(binding.key, binding.key)
