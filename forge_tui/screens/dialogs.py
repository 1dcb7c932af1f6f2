"""Small questions: yes or no, one line of text, one of a list."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Input, Static

from forge_tui.screens.widgets.table import Cell, Column, Row, Table

BOX = """
{name} {{ align: center middle; }}
{name} > Vertical {{
    width: 64; max-width: 96%; height: auto; max-height: 80%;
    border: round $primary; padding: 0 1; background: $surface;
}}
{name} .keys {{ color: $forge-muted; margin-top: 1; }}
"""


class Dialog(ModalScreen[ScreenResultType]):
    """Answers once: of keys that were typed ahead of its end, none answers again or closes the screen below."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_current else AwaitComplete()


class Confirm(Dialog[bool]):
    """True for y. Everything else is a no."""

    BINDINGS = [Binding("y", "dismiss(True)", "yes"), Binding("n,escape,q,enter", "dismiss(False)", "no")]
    DEFAULT_CSS = BOX.format(name="Confirm")

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(f"{self._question}\n\ny yes    n no", markup=False)


class Ask(Dialog[str]):
    """A line of text; the empty string when it is left."""

    BINDINGS = [Binding("escape", "dismiss('')", "leave")]
    DEFAULT_CSS = BOX.format(name="Ask") + "Ask Input, Ask Input:focus { border: none; height: 1; padding: 0; }"

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Input(self._value, select_on_focus=False)
            yield Static("enter takes it    esc leaves", classes="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    @on(Input.Submitted)
    def _done(self, message: Input.Submitted) -> None:
        self.dismiss(message.value.strip())


class Choose(Dialog[str]):
    """One of a list; the empty string when it is left."""

    BINDINGS = [Binding("escape,q", "dismiss('')", "leave")]
    DEFAULT_CSS = BOX.format(name="Choose") + "Choose Table { height: 12; }"

    def __init__(self, question: str, choices: list[str], now: str = "") -> None:
        super().__init__()
        self._question, self._choices, self._now = question, choices, now

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Table(
                (Column(self._question, 0),), lambda key: Row(key, (Cell(key),)), empty="nothing to choose from"
            )
            yield Static("enter takes it    esc leaves", classes="keys", markup=False)

    def on_mount(self) -> None:
        table = self.query_one(Table)
        table.show(self._choices)
        table.select(self._now)

    @on(Table.Chosen)
    def _done(self, message: Table.Chosen) -> None:
        message.stop()
        self.dismiss(message.key)
