"""The app over a slow link: bytes, times and memory of `forge-tui` in a 120x40 pseudo-terminal, read by an emulator.

Bytes are what a change of the code decides; times and memory are medians of this machine. Run it as
`python -m benchmarks.screens [--repeats N] [--output FILE]`; projects are made in a scratch folder, real files all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import header, write
from benchmarks.screen_projects import Growing, launcher_home, many_nodes_project, many_rows_project
from benchmarks.terminals import COLUMNS, KEY_QUIET_S, LINES, Terminal, terminal
from forge_tui.engine.providers.live import LiveReplies

SETTLE_S = 1.0
"""After its start the app loads what the next screens need: that is no part of a rate."""
WORDS = (
    "the row fits in registers so one warp reads it twice and writes once; shared memory would cost a barrier for nothing here, "
    "while eight bytes a lane leave half of each sector unused: wider loads first, then fewer blocks with more in flight"
).split()
"""Of a reply that streams: drawn anew, so that no line is like another."""


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
