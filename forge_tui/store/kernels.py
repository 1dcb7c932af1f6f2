"""Candidates on disk: kernel files stored once under the hash of their text."""

from __future__ import annotations

import hashlib

from forge_tui.errors import ProjectError
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths


def kernel_hash(text: str) -> str:
    """SHA-256 (hex) of the UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()


def save_kernel(paths: ProjectPaths, text: str) -> str:
    """Writes `kernels/<hash>.cu` unless it is there, and returns the hash. Raises MissingEnvironment."""
    digest = kernel_hash(text)
    path = paths.kernel(digest)
    if not path.exists():
        write_atomic(path, text)
    return digest


def load_kernel(paths: ProjectPaths, digest: str) -> str:
    """The text of a stored kernel. Raises ProjectError when it is missing or was edited in place."""
    path = paths.kernel(digest)
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"a kernel of this project cannot be read: {error}", where=str(path),
                           cure="restore it from a copy of the project folder") from error
    if kernel_hash(text) != digest:
        raise ProjectError("this kernel was edited in place: its text no longer has the hash it is stored under",
                           where=str(path), cure="copy the edit elsewhere and judge it with `forge-tui eval`")
    return text
