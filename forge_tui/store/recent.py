"""The projects this user worked on lately: one small file in the user's state folder."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from forge_tui.errors import MissingEnvironment
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths, UserPaths

KEPT = 200


class Recent(msgspec.Struct, frozen=True):
    """One project. `opened`: Unix seconds."""

    root: str
    opened: float


def _file() -> Path:
    return UserPaths.find().state / "recent.json"


def recent_projects() -> list[Recent]:
    """Latest first; folders that are no projects any more are left out. A damaged list is an empty list."""
    try:
        found = msgspec.json.decode(_file().read_bytes(), type=list[Recent])
    except (OSError, msgspec.DecodeError):
        return []
    return [item for item in found if ProjectPaths(item.root).is_project()]


def remember(root: Path) -> None:
    """Put a project at the head of the list. A state folder that cannot be written is no reason to stop anybody."""
    others = [item for item in recent_projects() if item.root != str(root)]
    try:
        write_atomic(_file(), msgspec.json.encode([Recent(str(root), time.time()), *others][:KEPT]))
    except MissingEnvironment:
        pass
