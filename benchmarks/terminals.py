"""`forge-tui` in a pseudo-terminal, read by an emulator: what it shows, what it sends, what it takes, how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyte

COLUMNS, LINES = 120, 40
QUIET_S = 1.0
"""No byte for so long: the screen is painted."""
KEY_QUIET_S = 0.3
DEADLINE_S = 60.0


class Terminal:
    """`forge-tui ARGUMENTS` in a pseudo-terminal, with the screen that its bytes make."""

    def __init__(
        self, *arguments: str, home: Path, cwd: Path, columns: int = COLUMNS, lines: int = LINES, **environment: str
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.received = bytearray()
        self.started = time.monotonic()
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            _become(arguments, home, cwd, columns, lines, environment)

    def read(self, seconds: float) -> int:
        """Take what comes within so many seconds; how many bytes."""
        if self.handle < 0:
            time.sleep(seconds)
            return 0
        before, end = len(self.received), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._take(left):
                break
        return len(self.received) - before

    def _take(self, seconds: float) -> bool:
        """One read; False when the other end is gone."""
        if not select.select([self.handle], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.handle, 1 << 16)
        except OSError:
            return False
        self.received += data
        self._stream.feed(data)
        return bool(data)

    def until(self, text: str) -> float:
        """Seconds until the screen shows a text. Raises TimeoutError."""
        begun = time.monotonic()
        while text not in self.text():
            if time.monotonic() - begun > DEADLINE_S:
                raise TimeoutError(f"{text!r} did not appear on:\n{self.text()}")
            if not self._take(0.5):
                raise TimeoutError(f"the app ended before {text!r} on:\n{self.text()}")
        return time.monotonic() - begun

    def until_sent(self, text: bytes) -> float:
        """Seconds since the start until a text was sent: without what the emulator takes. Raises TimeoutError."""
        while text not in self.received:
            if not select.select([self.handle], [], [], DEADLINE_S)[0]:
                raise TimeoutError(f"{text!r} was not sent")
            self.received += os.read(self.handle, 1 << 16)
        passed = time.monotonic() - self.started
        self._stream.feed(bytes(self.received))
        return passed

    def cpu_s(self) -> float:
        """CPU seconds of the app so far, by the kernel's clock ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resize(self, columns: int, lines: int) -> None:
        """As when a window is dragged: what stands there is garbage, and the app is told."""
        self.screen.resize(lines, columns)
        self.scribble()
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def scribble(self) -> None:
        """Another program writes all over the screen."""
        columns, lines = self.screen.columns, self.screen.lines
        self._stream.feed("".join(f"\x1b[{line + 1};1H{'#' * columns}" for line in range(lines)).encode())

    def redraw(self, times: int, rest_s: float) -> None:
        """Ask for whole screens without reading any: soon the terminal takes no more."""
        for _ in range(times):
            os.write(self.handle, b"\x0c")  # ctrl+l
            time.sleep(rest_s)

    def unread(self) -> int:
        """Bytes that lie in the terminal."""
        return struct.unpack("i", fcntl.ioctl(self.handle, termios.FIONREAD, b"\0" * 4))[0]

    def quiet(self, seconds: float = QUIET_S) -> int:
        """Read until nothing comes for so long; how many bytes came."""
        total = 0
        while count := self.read(seconds):
            total += count
        return total

    def press(self, keys: bytes) -> tuple[int, float]:
        """Bytes until it is quiet again, and seconds to the first one."""
        before, begun = len(self.received), time.monotonic()
        os.write(self.handle, keys)
        while len(self.received) == before and time.monotonic() - begun < 5:
            self._take(0.2)
        first = time.monotonic() - begun
        self.quiet(KEY_QUIET_S)
        return len(self.received) - before, first

    def text(self) -> str:
        """The screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def memory_kb(self) -> int:
        """Resident kilobytes."""
        return _status(self.pid, "VmRSS")

    def torch_loaded(self) -> bool:
        """Whether the process has torch's library mapped."""
        return "libtorch" in Path(f"/proc/{self.pid}/maps").read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and read on until the app has ended; its exit code, negative for a signal that killed it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return self.wait()

    def wait(self, seconds: float = 20.0) -> int:
        """Read on until the app has ended. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read(0.2)
                return os.waitstatus_to_exitcode(status)
            self.read(0.1)
        raise TimeoutError("the app did not end")

    def close(self) -> None:
        """The terminal is gone, as when a connection drops."""
        os.close(self.handle)
        self.handle = -1


def _become(
    arguments: tuple[str, ...], home: Path, cwd: Path, columns: int, lines: int, environment: dict[str, str]
) -> None:
    os.environ.update(
        {
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "FORGE_HOME": str(home),
            "PYTHONPATH": os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", ""),
            **environment,
        }
    )
    for name in ("NO_COLOR", "TMUX", "COLUMNS", "LINES"):
        if name not in environment:
            os.environ.pop(name, None)
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    os.chdir(cwd)
    os.execv(sys.executable, [sys.executable, "-m", "forge_tui", *arguments])


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


@contextlib.contextmanager
def terminal(*arguments: str, home: Path, cwd: Path, **options: Any) -> Iterator[Terminal]:
    """A Terminal that is surely ended."""
    found = Terminal(*arguments, home=home, cwd=cwd, **options)
    try:
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(found.pid, signal.SIGKILL)
            os.waitpid(found.pid, 0)
        if found.handle >= 0:
            os.close(found.handle)
