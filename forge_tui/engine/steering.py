"""A person's moves in a search: requests left in the project folder, which the running engine (or the next one) takes
up.

The app calls `add_kernel`, `attach_hint`, `prune` and `pin`; the engine reads `pending` and deletes what it has
recorded. Nothing else is shared between the two, so both may be on different machines that see the folder.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from forge_tui.errors import ProjectError
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths

MAX_KERNEL_BYTES = 1 << 20
"""A kernel file is some kilobytes; what is larger is no kernel file."""

MAX_HINT_CHARS = 4000
"""About 1,000 tokens of every prompt below the node."""

Action = Literal["kernel", "hint", "prune", "unprune", "pin", "unpin"]


class Request(Struct, frozen=True):
    """One move, as it lies in `steering/ID.json`."""

    id: str
    action: Action
    node: str
    """`VARIANT/NUMBER`, or `VARIANT` alone for the operator itself. Of `kernel`: what the kernel was made from."""
    text: str = ""
    """Of `kernel`: the whole kernel file. Of `hint`: the words; empty takes the hint back."""
    idea: str = ""
    """Of `kernel`: one line."""


def add_kernel(paths: ProjectPaths, parent: str, text: str, idea: str = "") -> str:
    """Put a person's kernel file into the tree below `parent` (`VARIANT/NUMBER`, or `VARIANT`); it is judged like any
    other.

    Costs no iteration. Returns the request's id. Raises ProjectError where the file is too large, MissingEnvironment
    where nothing can be written.
    """
    if len(text.encode()) > MAX_KERNEL_BYTES:
        raise ProjectError(f"the kernel file has more than {MAX_KERNEL_BYTES >> 20} MiB", cure="give one kernel file")
    return _leave(paths, "kernel", parent, text, " ".join(idea.split())[:200])


def attach_hint(paths: ProjectPaths, node: str, text: str) -> str:
    """Words for whoever writes the next kernels below `node`. The next move builds on that node; what comes of it gets
    the words too. A second hint on a node replaces the first. Raises as `add_kernel`."""
    if len(text) > MAX_HINT_CHARS:
        raise ProjectError(f"the hint has more than {MAX_HINT_CHARS} characters", cure="say it in fewer")
    return _leave(paths, "hint", node, text.strip())


def prune(paths: ProjectPaths, node: str, on: bool = True) -> str:
    """Build on nothing of this node's subtree any more (`on=False`: again). Its kernels may still win."""
    return _leave(paths, "prune" if on else "unprune", node)


def pin(paths: ProjectPaths, node: str, on: bool = True) -> str:
    """Build only within the subtrees of pinned nodes, as long as there are some (`on=False`: take the pin off)."""
    return _leave(paths, "pin" if on else "unpin", node)


def pending(paths: ProjectPaths) -> Iterator[tuple[Path, Request | None]]:
    """Requests that no engine has taken up, oldest first; None for a file that is no request."""
    try:
        files = sorted(path for path in paths.steering.iterdir() if path.suffix == ".json")
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in files:
        try:
            yield path, msgspec.json.decode(path.read_bytes(), type=Request)
        except FileNotFoundError:  # taken back meanwhile
            continue
        except (OSError, msgspec.DecodeError):
            yield path, None


def _leave(paths: ProjectPaths, action: Action, node: str, text: str = "", idea: str = "") -> str:
    name = f"{time.time_ns():020d}-{secrets.token_hex(3)}"  # sorts by time
    write_atomic(paths.steering / f"{name}.json", msgspec.json.encode(Request(name, action, node, text, idea)))
    return name
