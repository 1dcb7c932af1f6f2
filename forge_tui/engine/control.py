"""An engine from outside: starting one that outlives its terminal, asking the one that holds a project to end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from forge_tui.errors import ForgeError
from forge_tui.store.atomic import make_folder, write_atomic, writing
from forge_tui.store.lock import Holder, current_holder
from forge_tui.store.paths import ProjectPaths

POLL_S = 0.1
START_S = 60.0
"""Importing torch from a cold network disk takes tens of seconds; after this the engine is left to go on by itself."""
TAIL_BYTES = 4000


class Started(Struct, frozen=True):
    """An engine in a session of its own."""

    pid: int
    log: Path
    """Its stdout and stderr."""
    ended: bool
    """It had nothing to do and is gone already."""


class StartFailed(ForgeError):
    """The engine ended at once; the message holds its last words, the exit code is its own."""

    def __init__(self, code: int, log: Path) -> None:
        words = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        super().__init__(words.removeprefix("forge-tui: ") or f"the run ended at once with exit code {code}")
        self.exit_code = code if code > 0 else 128 - code


def start_engine(paths: ProjectPaths, options: Sequence[str]) -> Started:
    """`forge-tui --run PROJECT OPTIONS` in a session of its own: no terminal's end reaches it.

    Returns when it holds the project, or has ended well. Raises StartFailed when it ends otherwise before that,
    MissingEnvironment when its log cannot be written.
    """
    folder = make_folder(paths.logs)
    log = folder / time.strftime(f"run-%Y%m%d-%H%M%S-{os.getpid()}.log")
    command = [sys.executable, "-m", "forge_tui", "--run", str(paths.root), *options]
    with writing(log), log.open("xb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            if code:
                raise StartFailed(code, log)
            return Started(process.pid, log, True)
        holder = current_holder(paths)
        if holder and holder.pid == process.pid:
            break
        time.sleep(POLL_S)
    return Started(process.pid, log, False)


def request_stop(paths: ProjectPaths) -> Holder | None:
    """Asks the engine that holds the project to save and end: by a file, which reaches every host that sees the folder, and
    by SIGTERM when it runs on this one. Returns whom it asked; None when nobody holds the project."""
    holder = current_holder(paths)
    if holder is None:
        return None
    write_atomic(paths.stop_request, "")
    if holder.host == socket.gethostname() and _has_open(holder.pid, paths.lock):
        os.kill(holder.pid, signal.SIGTERM)
    return holder


def request_pause(paths: ProjectPaths, wanted: bool) -> Holder | None:
    """Asks the engine that holds the project to propose nothing new, or to go on. Returns whom it asked; None when nobody
    holds the project."""
    holder = current_holder(paths)
    if holder is None:
        return None
    if wanted:
        write_atomic(paths.pause_request, "")
    else:
        paths.pause_request.unlink(missing_ok=True)
    return holder


def wait_released(paths: ProjectPaths, seconds: float) -> bool:
    """Whether the project is free within so many seconds."""
    deadline = time.monotonic() + seconds
    while (held := current_holder(paths)) is not None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if held is None:
        paths.stop_request.unlink(missing_ok=True)  # it may have ended by itself before it saw the file
    return held is None


def _has_open(pid: int, file: Path) -> bool:
    """Whether that process has the lock file open: in another container with the same host name it is another process."""
    try:
        wanted = os.stat(file)
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                found = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:  # closed since the listing
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:  # no such process here, or another user's: the file has to do
        pass
    return False
