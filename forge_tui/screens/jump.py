"""Jump mode: a letter or two on every pane, tab, field and visible row; typing them goes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from forge_tui.screens.dialogs import Dialog

LETTERS = "asdfghjklqwertyuiopzxcvbnm"
"""The home row first."""


@dataclass(frozen=True)
class Target:
    """A place on the screen, and what going there does."""

    x: int
    y: int
    go: Callable[[], None]
    row: bool = False
    """Rows are many: they take two letters where one is not enough for all."""


class Jump(Dialog[None]):
    """Labels over the screen below. Anything that is no label leaves."""

    BINDINGS = [Binding("escape", "dismiss", "leave", id="jump.leave")]
    DEFAULT_CSS = """
    Jump { background: transparent; layers: labels; }
    Jump .label {
        layer: labels; position: absolute; width: auto; height: 1; background: $warning; color: $background;
        text-style: bold;
    }
    """

    def __init__(self, targets: list[Target]) -> None:
        super().__init__()
        ordered = sorted(targets, key=lambda target: target.row)
        names = labels(sum(not target.row for target in ordered), sum(target.row for target in ordered))
        self._targets = dict(zip(names, ordered, strict=False))
        self._typed = ""

    def compose(self) -> ComposeResult:
        for name, target in self._targets.items():
            label = Static(name, classes="label", markup=False)
            label.styles.offset = (target.x, target.y)
            yield label

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            return
        event.stop()
        if not self.is_current:
            return
        self._typed += event.character or " "
        target = self._targets.get(self._typed)
        if target is not None:
            self.dismiss()
            self.app.call_later(target.go)
        elif not any(name.startswith(self._typed) for name in self._targets):
            self.dismiss()
        else:
            for label in self.query(".label"):
                label.display = str(label.content).startswith(self._typed)  # type: ignore[attr-defined]


def labels(few: int, many: int) -> list[str]:
    """Names for `few` places, one letter each as far as there is room, and `many` more (676 in all at the most); none
    begins another."""
    size, count = len(LETTERS), few + many
    if count <= size:
        return list(LETTERS[:count])
    few = next(number for number in range(min(few, size - 1), -1, -1) if number + (size - number) * size >= count)
    return [*LETTERS[:few], *("".join(pair) for pair in product(LETTERS[few:], LETTERS))][:count]
