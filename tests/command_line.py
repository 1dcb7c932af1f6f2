"""Runs the real command line in a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "forge_tui"]


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process's, with the user's folders under `home`, no keys, and this checkout's code whatever the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**kept, "FORGE_HOME": str(home), "PYTHONPATH": str(ROOT), **more}


def forge(*arguments: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """stdin is empty; stdout and stderr are pipes: no terminal anywhere."""
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=cwd, env=environment(cwd / "home", **more),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
