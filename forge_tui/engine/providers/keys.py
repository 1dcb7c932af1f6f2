"""Keys of language-model services: from the environment or a private file, and nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forge_tui.errors import MissingEnvironment
from forge_tui.store.paths import UserPaths

VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


def read_key(service: str) -> str:
    """The key. Raises MissingEnvironment when there is none, or when others may read its file. Never logged or
    stored."""
    key = find_key(service)
    if not key:
        variable, path = VARIABLES[service], _path(service)
        raise MissingEnvironment(f"there is no key for {service}", where="--provider",
                                 cure=f"set {variable}, or write the key to {path} and `chmod 600` it; without a key: "
                                      "--provider builtin, exchange or command:PROGRAM")
    return key


def find_key(service: str) -> str:
    """The key, or empty where there is none. Raises MissingEnvironment when others may read its file."""
    key = os.environ.get(VARIABLES[service], "").strip()
    if key:
        return key
    path = _path(service)
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except OSError:
        key, mode = "", 0
    if key and stat.S_IMODE(mode) & 0o077:
        raise MissingEnvironment("others may read this key", where=str(path), cure=f"chmod 600 {path}")
    return key


def _path(service: str) -> Path:
    return UserPaths.find().config / "keys" / service
