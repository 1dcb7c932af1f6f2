"""Safe writes: a file is either the old one or the whole new one, and a full or read-only disk is a message with a cure."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from forge_tui.errors import MissingEnvironment

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


def write_error(error: OSError, path: Path) -> MissingEnvironment:
    """The user's message for an OSError met while writing `path`."""
    if error.errno in _FULL:
        return MissingEnvironment(f"cannot write: {_reason(error)}", where=str(path),
                                  cure="free space there (or raise the quota) and run the same command again; "
                                       "everything written before is intact")
    if error.errno in _READ_ONLY:
        return MissingEnvironment("cannot write: the file system is read-only", where=str(path),
                                  cure="use a project folder on a writable file system")
    if error.errno in _FORBIDDEN:
        return MissingEnvironment(f"cannot write: {_reason(error)}", where=str(path),
                                  cure="give yourself write permission there, or use another folder")
    return MissingEnvironment(f"cannot write: {_reason(error)}", where=str(path),
                              cure="check that the folder exists on a file system that takes files, or use another one")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into MissingEnvironment naming `path`."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error


def make_folder(path: Path) -> Path:
    """The folder and its parents. Raises MissingEnvironment."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new binary file that becomes `path` when the block ends well, and vanishes when it does not.

    The temporary lies in the same folder (a rename must not cross file systems), is flushed to the disk before the rename,
    and the folder after it: after a power cut `path` is the old file or the new one, whole. The folder is made if needed.
    Raises MissingEnvironment.
    """
    make_folder(path.parent)
    with writing(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with writing(path):
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.fsync(file.fileno())
            os.replace(name, path)
            sync_folder(path.parent)
    except BaseException:  # an interrupt too: what is half written goes
        with suppress(OSError):
            os.unlink(name)
        raise


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replaces `path` by `data` (text as UTF-8). Raises MissingEnvironment; the old file is then untouched."""
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Makes renames and new files in `folder` outlive a power cut, on file systems that can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    """mkstemp makes 0600 files; a project's files follow the user's umask. Reading it means setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
