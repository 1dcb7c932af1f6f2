"""The app's terminal: any bytes in, no motion reports, of each frame only what changed; and signals that end the app in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from codecs import getincrementaldecoder
from functools import partial
from typing import Any

from textual import events
from textual.app import App
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from forge_tui.screens.letters import plain
from forge_tui.screens.shadow import Shadow

TERMINAL_CHECK_S = 1.0
"""Textual spins when its terminal is gone without a signal; an orphaned app looks for that this often."""
LEAVE_S = 3.0
"""A terminal that reads nothing does not keep a signalled app from ending."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
NO_CHARACTER = "\ufffd"
"""What bytes that are not UTF-8 are decoded to."""


class Driver(LinuxDriver):
    """Reports clicks and the wheel where the mouse is wanted, never motion: that would flood a slow link.

    Bytes that are not UTF-8 (a latin-1 terminal, an old mouse report) are no keys.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shadow = Shadow()
        self.ascii: bool = getattr(self._app, "in_ascii", False)
        """Whether the terminal gets ASCII letters for signs."""

    def start_application_mode(self) -> None:
        self.shadow.forget()  # also after an editor had the terminal
        super().start_application_mode()

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:  # in a thread nobody else hears of it; the app ends as by any other error of its own
            self._app.call_later(self._app._handle_exception, error)

    def process_message(self, message: Message) -> None:
        if not (isinstance(message, events.Key) and message.character == NO_CHARACTER):
            super().process_message(message)

    def write(self, data: str) -> None:
        less = self.shadow.reduced(data)
        if less:
            super().write(plain(less) if self.ascii else less)

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            super().write("\x1b[?1000h\x1b[?1006h")
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            super().write("\x1b[?1000l\x1b[?1006l")
            self.flush()


def _lenient(encoding: str) -> Any:
    return partial(getincrementaldecoder(encoding), errors="replace")


linux_driver.getincrementaldecoder = _lenient  # type: ignore[attr-defined]  # its input thread ends at a byte that is no UTF-8


def listen(app: App[int]) -> None:
    """Textual handles none of these: leave the terminal as it was, with the exit code of the contract.

    Handlers of the event loop would not do: it waits in `write` while a terminal reads nothing. Python's own run then too.
    """
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, lambda number, _: _leave(app, loop, 128 + number))
    if os.isatty(0):
        app.set_interval(TERMINAL_CHECK_S, lambda: _check_terminal(app, loop))


def _leave(app: App[int], loop: asyncio.AbstractEventLoop, code: int) -> None:
    timer = threading.Timer(LEAVE_S, _give_up, (app, code))
    timer.daemon = True
    timer.start()
    loop.call_soon_threadsafe(app.exit, code)


def _give_up(app: App[int], code: int) -> None:
    """Nothing can be written any more; how the terminal takes keys can still be put back."""
    driver = app._driver
    attributes = getattr(driver, "attrs_before", None)
    if attributes is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, attributes)
    os._exit(code)


def _check_terminal(app: App[int], loop: asyncio.AbstractEventLoop) -> None:
    try:
        os.tcgetpgrp(0)
    except OSError:
        _leave(app, loop, 128 + signal.SIGHUP)
