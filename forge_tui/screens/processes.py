"""Other forge-tui commands beside the app: run without blocking it, and without a byte on its terminal."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.1


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it said last, without the program's name."""
        return (self.err.strip() or self.out.strip() or f"exit code {self.code}").removeprefix("forge-tui: ")


def start_command(
    arguments: tuple[str, ...], out: int | None, err: int | None, module: str = "forge_tui"
) -> subprocess.Popen[bytes]:
    """`forge-tui ARGUMENTS` in a session of its own: neither the app's end nor the terminal's reaches it."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


async def forge_command(*arguments: str) -> Finished:
    """Run a command to its end. Cancelled: it is left to end by itself. Output goes through files, not pipes, so that
    nothing of it hangs on this process."""
    return await module_command("forge_tui", *arguments)


async def module_command(module: str, *arguments: str) -> Finished:
    """The same of another module's `main`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_command(arguments, out.fileno(), err.fileno(), module)
        while process.poll() is None:
            await asyncio.sleep(POLL_S)
        out.seek(0)
        err.seek(0)
        return Finished(process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"))


async def logged_command(log: Path, *arguments: str) -> int:
    """Run a command whose output is a file that others may read while it grows; its exit code."""
    with log.open("wb") as output:
        process = start_command(arguments, output.fileno(), output.fileno())
    while process.poll() is None:
        await asyncio.sleep(POLL_S)
    return process.returncode
