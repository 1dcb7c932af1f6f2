"""Keys of language-model services: from the environment or a private file, and nowhere else."""

from __future__ import annotations

import os
import stat

from forge_tui.errors import MissingEnvironment
from forge_tui.store.paths import UserPaths

VARIABLES = {"anthropic": "ANTHROPIC_API_KEY"}


def read_key(service: str) -> str:
    """The key. Raises MissingEnvironment when there is none, or when others may read its file. Never logged or stored."""
    variable = VARIABLES[service]
    key = os.environ.get(variable, "").strip()
    if key:
        return key
    path = UserPaths.find().config / "keys" / service
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except OSError:
        key, mode = "", 0
    if not key:
        raise MissingEnvironment(f"there is no key for {service}", where="--provider",
                                 cure=f"set {variable}, or write the key to {path} and `chmod 600` it; without a key: "
                                      "--provider builtin, exchange or command:PROGRAM")
    if stat.S_IMODE(mode) & 0o077:
        raise MissingEnvironment("others may read this key", where=str(path), cure=f"chmod 600 {path}")
    return key
