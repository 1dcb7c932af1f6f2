"""One writer per project: a lock that names its holder and that the kernel drops when the holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from types import TracebackType

import msgspec
from msgspec import Struct

from forge_tui.errors import MissingEnvironment, ProjectLocked
from forge_tui.store.atomic import make_folder, write_error, writing
from forge_tui.store.paths import ProjectPaths


class Holder(Struct, frozen=True):
    """Who holds a project."""

    host: str
    pid: int
    started: float
    """Unix seconds."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        return f"process {self.pid} on {self.host}, running since {since}"


class ProjectLock:
    """`with ProjectLock(paths):` the block is the only writer of the project.

    flock(2), so nothing is stale after `kill -9` or a reboot. The file stays (removing it would let two processes lock two
    different files); its text is only for people and for `forge-tui stop`. An older request to stop or pause is dropped: it was
    meant for an earlier holder. Raises ProjectLocked naming the other holder, MissingEnvironment on a read-only folder.
    """

    def __init__(self, paths: ProjectPaths) -> None:
        self.paths = paths
        self._handle: int | None = None

    def __enter__(self) -> ProjectLock:
        make_folder(self.paths.root)
        with writing(self.paths.lock):
            handle = os.open(self.paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _try_lock(handle, self.paths):
                raise _locked(self.paths)
            with writing(self.paths.lock):
                os.ftruncate(handle, 0)
                os.pwrite(handle, msgspec.json.encode(Holder(socket.gethostname(), os.getpid(), time.time())), 0)
                self.paths.stop_request.unlink(missing_ok=True)
                self.paths.pause_request.unlink(missing_ok=True)
        except BaseException:  # an interrupt too: raised again below
            os.close(handle)
            raise
        self._handle = handle
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._handle is not None:
            with suppress(OSError):  # the text is only for people; closing is what releases
                os.ftruncate(self._handle, 0)
                self.paths.stop_request.unlink(missing_ok=True)
                self.paths.pause_request.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def current_holder(paths: ProjectPaths) -> Holder | None:
    """Who holds the project now, or None when it is free (or no lock was ever taken)."""
    try:
        handle = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _try_lock(handle, paths, fcntl.LOCK_SH):
            return None
        return _read_holder(paths)
    finally:
        os.close(handle)


def _try_lock(handle: int, paths: ProjectPaths, mode: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise MissingEnvironment("this file system has no file locks", where=str(paths.lock),
                                     cure="use a project folder on a local disk") from error
        raise write_error(error, paths.lock) from error
    return True


def _read_holder(paths: ProjectPaths) -> Holder:
    """What the holder wrote; it may be between taking the lock and writing."""
    try:
        return msgspec.json.decode(paths.lock.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder("an unknown host", 0, time.time())


def _locked(paths: ProjectPaths) -> ProjectLocked:
    return ProjectLocked(f"another run holds this project: {_read_holder(paths)}", where=str(paths.root),
                         cure=f"wait for it, watch it with `forge-tui {paths.root}`, or end it with "
                              f"`forge-tui stop {paths.root}`")
