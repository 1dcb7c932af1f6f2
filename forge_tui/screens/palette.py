"""`?`, `:` and ctrl+p: every action of the screen below with its keys, filtered as one types; enter does it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static

from forge_tui.screens.dialogs import Dialog
from forge_tui.screens.widgets.keybar import key_name
from forge_tui.screens.widgets.table import Cell, Column, Row, Table


KEYS = 16
"""Cells of the keys."""


@dataclass(frozen=True)
class Action:
    """One thing that can be done now."""

    name: str
    keys: str
    action: str
    node: DOMNode
    rank: int
    """What this screen is for comes first, then what all screens have, then keys that move about."""


class Palette(Dialog[None]):
    """Lists actions of the focused widget, the screen and the app."""

    BINDINGS = [
        Binding("escape", "dismiss", "close", id="palette.close"),
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
    ]
    DEFAULT_CSS = """
    Palette { align: center middle; }
    Palette > Vertical {
        width: 80; max-width: 96%; height: 80%; border: round $primary; padding: 0 1; background: $surface;
    }
    Palette Input, Palette Input:focus { border: none; height: 1; padding: 0; background: $surface; }
    Palette Static { height: auto; color: $forge-muted; }
    Palette #whole { height: 2; color: $foreground; display: none; }
    Palette.cut #whole { display: block; }
    """

    def __init__(self, below: Screen[object], legend: str = "") -> None:
        super().__init__()
        self._actions = {f"{index}": action for index, action in enumerate(actions_of(below))}
        self._legend = legend

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Input(placeholder="type to filter; enter does it, esc closes")
            yield Table((Column("key", KEYS), Column("what it does", 0)), self._row, empty="no action has such a name")
            yield Static(id="whole", markup=False)
            if self._legend:
                yield Static(self._legend, markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(Table).can_focus = False
        self.query_one(Table).show(list(self._actions))

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Where there is no room for all of an action, that under the cursor stands below the list."""
        self.set_class(any(map(self._cut, self._actions.values())), "cut")
        self._tell()

    def _cut(self, action: Action) -> bool:
        return len(action.keys) > KEYS or cell_len(action.name) > self.query_one(Table).size.width - KEYS - 3

    @on(Table.Moved)
    def _tell(self) -> None:
        key = self.query_one(Table).key
        whole = self.query_one("#whole", Static)
        action = self._actions[key] if key is not None else None
        words = f"{action.keys}: {action.name}" if action and self._cut(action) else ""
        if whole.content != words:
            whole.update(words, layout=False)

    def _row(self, key: str) -> Row:
        action = self._actions[key]
        return Row(key, (Cell(action.keys, "primary"), Cell(action.name)))

    @on(Input.Changed)
    def _filter(self, message: Input.Changed) -> None:
        words = message.value.lower().split()
        self.query_one(Table).show(
            [
                key
                for key, action in self._actions.items()
                if all(word in f"{action.name} {action.keys}".lower() for word in words)
            ]
        )

    @on(Input.Submitted)
    async def _run(self) -> None:
        key = self.query_one(Table).key
        if key is None or not self.is_current:
            return
        action = self._actions[key]
        app = self.app
        self.dismiss()
        app.call_later(app.run_action, action.action, action.node)

    def action_move(self, step: int) -> None:
        self.query_one(Table).action_move(step)


def actions_of(screen: Screen[object]) -> list[Action]:
    """Those that work now, in the order of their bindings, the keys of one action together."""
    found: dict[tuple[str, DOMNode], Action] = {}
    for active in screen.active_bindings.values():
        binding, slot = active.binding, (active.binding.action, active.node)
        if not binding.description or isinstance(active.node, Input):
            continue
        if slot in found:
            old = found[slot]
            found[slot] = Action(old.name, f"{old.keys}, {key_name(binding)}", old.action, old.node, old.rank)
        else:
            found[slot] = Action(
                binding.tooltip or binding.description, key_name(binding), binding.action, active.node, _rank(binding)
            )
    return sorted(found.values(), key=lambda action: action.rank)


def _rank(binding: Binding) -> int:
    if not binding.show and not binding.tooltip:
        return 2
    return 1 if (binding.id or "").startswith(("screen.", "app.")) else 0
