"""The app over a slow link: bytes, times and memory of `forge-tui` in a 120x40 pseudo-terminal, read by an emulator.

Bytes are what a change of the code decides; times and memory are medians of this machine. Run it as
`python -m benchmarks.screens [--repeats N] [--output FILE]`; projects are made in a scratch folder, real files all.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyte

from benchmarks.results import header, write
from benchmarks.screen_projects import Growing, launcher_home, many_nodes_project, many_rows_project
from forge_tui.engine.providers.live import LiveReplies

COLUMNS, LINES = 120, 40
QUIET_S = 1.0
"""No byte for so long: the screen is painted."""
KEY_QUIET_S = 0.3
SETTLE_S = 1.0
"""After its start the app loads what the next screens need: that is no part of a rate."""
DEADLINE_S = 60.0
WORDS = (
    "the row fits in registers so one warp reads it twice and writes once; shared memory would cost a barrier for nothing here, "
    "while eight bytes a lane leave half of each sector unused: wider loads first, then fewer blocks with more in flight"
).split()
"""Of a reply that streams: drawn anew, so that no line is like another."""


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
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

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
            "COLUMNS": str(columns),
            "LINES": str(lines),
            "FORGE_HOME": str(home),
            "PYTHONPATH": os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", ""),
            **environment,
        }
    )
    for name in ("NO_COLOR", "TMUX"):
        if name not in environment:
            os.environ.pop(name, None)
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


def measure_launcher(scratch: Path, repeats: int) -> dict[str, Any]:
    """200 projects: the first time their journals are read, afterwards their summaries are known."""
    home = launcher_home(scratch / "launcher", 200)
    found: dict[str, Any] = {}
    for name in ("first", *["again"] * repeats):
        with terminal(home=home, cwd=scratch) as app:
            paint, cpu = app.until_sent(b"project-000"), app.cpu_s()
            app.quiet()
            figures = {
                "first_paint_ms": round(paint * 1e3),
                "first_paint_cpu_ms": round(cpu * 1e3),
                "bytes_to_quiet": len(app.received),
            }
            found.setdefault(name, []).append(figures)
            idle = app.read(5.0)
            found["idle_bytes_in_5_s"] = idle
    found["again"] = {key: statistics.median(item[key] for item in found["again"]) for key in found["again"][0]}
    found["first"] = found["first"][0]
    return found


def measure_rows(scratch: Path, repeats: int) -> dict[str, Any]:
    """A project of 10,000 operator variants."""
    home, root = scratch / "rows-home", many_rows_project(scratch / "rows", 10_000)
    with terminal(str(root), home=home, cwd=scratch) as app:
        app.until("operator-")
        app.quiet()
        return _keys(app, repeats)


def measure_tree(scratch: Path, repeats: int) -> dict[str, Any]:
    """A project whose one operator has 5,000 candidates."""
    home, root = scratch / "tree-home", many_nodes_project(scratch / "tree", 5_000)
    with terminal(str(root), home=home, cwd=scratch) as app:
        app.until("softmax")
        app.quiet()
        begun = time.monotonic()
        os.write(app.handle, b"\r")
        app.until("candidate")
        opened = time.monotonic() - begun
        app.quiet()
        found = _keys(app, repeats)
        return {
            "open_to_tree_ms": round(opened * 1e3),
            **found,
            "memory_kb": app.memory_kb(),
            "torch": app.torch_loaded(),
        }


def measure_open(scratch: Path, repeats: int) -> dict[str, Any]:
    """From Enter in the launcher to the operators of the 5,000-node project, its journal read anew."""
    home = scratch / "open-home"
    root = many_nodes_project(scratch / "open", 5_000)
    times, cpu = [], []
    for _ in range(repeats):
        with terminal(home=home, cwd=root.parent) as app:
            app.until("1 of 1")
            app.quiet()
            begun, before = time.monotonic(), app.cpu_s()
            os.write(app.handle, b"\r")
            app.until("softmax [")
            times.append(time.monotonic() - begun)
            cpu.append(app.cpu_s() - before)
    return {
        "enter_to_operators_ms": round(statistics.median(times) * 1e3),
        "enter_to_operators_cpu_ms": round(statistics.median(cpu) * 1e3),
    }


def _keys(app: Terminal, repeats: int) -> dict[str, Any]:
    """Down within the window, Down past its end, PageDown."""
    app.press(b"g")
    down = [app.press(b"j") for _ in range(max(5, repeats))]
    run = [app.press(b"j") for _ in range(LINES)]
    pages = [app.press(b"\x1b[6~") for _ in range(max(3, repeats))]
    return {
        "down_bytes": statistics.median(count for count, _ in down),
        "down_first_byte_ms": round(statistics.median(first for _, first in down) * 1e3, 1),
        "down_bytes_mean_with_scrolling": round(statistics.mean(count for count, _ in run)),
        "down_bytes_max": max(count for count, _ in run),
        "page_down_bytes": statistics.median(count for count, _ in pages),
        "page_down_first_byte_ms": round(statistics.median(first for _, first in pages) * 1e3, 1),
    }


def measure_live(scratch: Path, seconds: float) -> dict[str, Any]:
    """Four events a second in the journal, on the operator bench and on the kernel bench."""
    found = {}
    for name, keys in (("operators", b""), ("kernels", b"\r")):
        growing = Growing(scratch / f"live-{name}")
        with growing, terminal(str(growing.root), home=scratch / "live-home", cwd=scratch) as app:
            app.until("softmax")
            growing.step()
            app.read(SETTLE_S)
            if keys:
                app.press(keys)
            begun, total = time.monotonic(), 0
            while time.monotonic() - begun < seconds:
                growing.step()
                total += app.read(0.25)
            found[name] = {"bytes_per_s": round(total / (time.monotonic() - begun)), "events": growing.events}
    return found


def measure_reasoning(scratch: Path, seconds: float) -> dict[str, Any]:
    """A reply of 500 bytes each quarter of a second (some 500 tokens a second), followed on the kernel bench."""
    growing = Growing(scratch / "live-reasoning")
    with growing, terminal(str(growing.root), home=scratch / "live-home", cwd=scratch) as app:
        app.until("softmax")
        growing.step()
        app.read(SETTLE_S)
        app.press(b"\r")
        app.press(b"6")
        live, ask = LiveReplies(growing.paths.replies), growing.asked.replace("/", "-")
        live.begun(ask)
        begun, total, written, draw = time.monotonic(), 0, 0, random.Random(1)
        while time.monotonic() - begun < seconds:
            text = f"{' '.join(draw.choices(WORDS, k=85))}\n\nthought {written}\n"
            live.came(ask, text, True)
            written += len(text)
            total += app.read(0.25)
        elapsed = time.monotonic() - begun
        app.until(text.split("\n\n")[1].strip())
        return {"bytes_per_s": round(total / elapsed), "written_bytes_per_s": round(written / elapsed)}


def measure_stall(scratch: Path, seconds: float) -> dict[str, Any]:
    """A terminal that reads nothing for so long, while keys pile up and a run goes on at 4 events a second."""
    growing = Growing(scratch / "stall")
    with growing, terminal(str(growing.root), home=scratch / "live-home", cwd=scratch) as app:
        app.until("softmax")
        growing.step()
        app.read(SETTLE_S)
        app.press(b"\r")
        before, begun, slowest = growing.events, time.monotonic(), 0.0
        while time.monotonic() - begun < seconds:
            step = time.monotonic()
            growing.step()
            slowest = max(slowest, time.monotonic() - step)
            app.redraw(4, 0.06)
        while growing.asked != growing.judged:
            growing.step()
        stalled = time.monotonic() - begun
        tried = int(growing.judged.rpartition("/")[2])
        waiting, received = app.unread(), len(app.received)
        recovered = app.until(f"{tried} tried")
        app.quiet(KEY_QUIET_S)
        late = len(app.received) - received - waiting
        app.press(b"g")
        return {
            "stalled_s": round(stalled),
            "events_meanwhile": growing.events - before,
            "slowest_event_ms": round(slowest * 1e3),
            "bytes_the_terminal_held": waiting,
            "bytes_the_app_held": late,
            "up_to_date_again_s": round(recovered, 2),
            "memory_kb": app.memory_kb(),
        }


def measure_ends(scratch: Path) -> dict[str, Any]:
    """Exit codes, and whether the terminal was given back."""
    root = many_nodes_project(scratch / "ends", 3)
    found: dict[str, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        with terminal(str(root), home=scratch / "ends-home", cwd=scratch) as app:
            app.until("softmax")
            app.quiet()
            found[number.name] = {
                "exit_code": app.end(number),
                "restored": b"\x1b[?1049l" in app.received and b"\x1b[?25h" in app.received,
                "motion_reporting": b"?1003h" in app.received,
            }
    with terminal(str(root), home=scratch / "ends-home", cwd=scratch) as app:
        app.until("softmax")
        app.close()
        found["closed terminal"] = {"exit_code": app.wait()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stall", type=float, default=60.0, help="seconds for which a terminal reads nothing")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / f"results/screens-{COLUMNS}x{LINES}.json"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forge-screens-") as folder:
        scratch = Path(folder)
        body = {
            "launcher": measure_launcher(scratch, options.repeats),
            "rows_10000": measure_rows(scratch, options.repeats),
            "tree_5000": measure_tree(scratch, options.repeats),
            "open_5000": measure_open(scratch, options.repeats),
            "live": measure_live(scratch, 10.0),
            "reasoning": measure_reasoning(scratch, 10.0),
            "stalled_reader": measure_stall(scratch, options.stall),
            "ends": measure_ends(scratch),
        }
    document = {**header("screens"), "terminal": f"{COLUMNS}x{LINES}, truecolor", **body}
    write(options.output, document)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
