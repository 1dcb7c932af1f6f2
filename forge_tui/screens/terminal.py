"""The app's terminal: no motion reports, of each frame only what changed; and signals that end the app in order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from forge_tui.screens.shadow import Shadow

TERMINAL_CHECK_S = 1.0
"""Textual spins when its terminal is gone without a signal; an orphaned app looks for that this often."""
LEAVE_S = 3.0
"""A terminal that reads nothing does not keep a signalled app from ending."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Driver(LinuxDriver):
    """Reports clicks and the wheel where the mouse is wanted, never motion: that would flood a slow link."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shadow = Shadow()

    def start_application_mode(self) -> None:
        self.shadow.forget()  # also after an editor had the terminal
        super().start_application_mode()

    def write(self, data: str) -> None:
        less = self.shadow.reduced(data)
        if less:
            super().write(less)

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            super().write("\x1b[?1000h\x1b[?1006h")
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            super().write("\x1b[?1000l\x1b[?1006l")
            self.flush()


def listen(app: App[int]) -> None:
    """Textual handles none of these: leave the terminal as it was, with the exit code of the contract."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
            loop.add_signal_handler(number, _leave, app, 128 + number)
    if os.isatty(0):
        app.set_interval(TERMINAL_CHECK_S, lambda: _check_terminal(app))


def _leave(app: App[int], code: int) -> None:
    timer = threading.Timer(LEAVE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    app.exit(code)


def _check_terminal(app: App[int]) -> None:
    try:
        os.tcgetpgrp(0)
    except OSError:
        _leave(app, 128 + signal.SIGHUP)
