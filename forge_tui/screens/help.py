"""`?`: the keys of the screen below it, and what they do."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static


class Help(ModalScreen[None]):
    """Lists every key that works on a screen."""

    BINDINGS = [Binding("escape,q,question_mark", "dismiss", "close")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help VerticalScroll { width: 60; max-width: 90%; height: auto; max-height: 80%; border: round $primary; padding: 1 2; background: $surface; }
    """

    def __init__(self, below: Screen[object]) -> None:
        super().__init__()
        self._text = keys_of(below)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)


def keys_of(screen: Screen[object]) -> str:
    """One line a key: those of the focused widget, the screen and the app."""
    lines: dict[str, str] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description:
            keys = lines.get(binding.description)
            name = binding.key_display or binding.key.replace("question_mark", "?")
            lines[binding.description] = f"{keys}, {name}" if keys else name
    return "\n".join(f"{keys:<22} {description}" for description, keys in lines.items())
