"""The journal at the level of bytes: an append-only file of framed, checksummed records that survives any kill.

File: 8 bytes of magic, format version (uint32), then frames. A frame: payload length (uint32), CRC-32 of those four bytes,
CRC-32 of the payload, payload. Little-endian. The length has its own checksum so that damage to it cannot pass for a record
that is still being written.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from forge_tui import __version__
from forge_tui.errors import ProjectError
from forge_tui.store.atomic import make_folder, sync_folder, write_atomic, write_error, writing

FORMAT = 1
MAGIC = b"FORGEJNL"
_HEADER = MAGIC + struct.pack("<I", FORMAT)
_FRAME = struct.Struct("<III")


class JournalWriter:
    """The one writer of a journal (its owner holds the project lock). `append` may be called from any thread.

    Opening cuts a torn tail, after copying it to a side file `JOURNAL.cut-OFFSET`. Raises ProjectError for a file that is no
    journal, is of a newer format or is damaged before its end; MissingEnvironment when it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = 0
        """Bytes of torn tail that opening cut off."""
        self.cut_file: Path | None = None
        """Where they are."""
        self._guard = threading.Lock()
        make_folder(path.parent)
        with writing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._end = self._recover()
        except BaseException:  # an interrupt too: raised again below
            os.close(self._handle)
            raise

    def append(self, payload: bytes, sync: bool = False) -> None:
        """Adds one record; visible to readers at once, on the disk before the return if `sync`.

        On a full disk raises MissingEnvironment and leaves the file as it was: a later append may succeed.
        """
        length = struct.pack("<I", len(payload))
        frame = _FRAME.pack(len(payload), zlib.crc32(length), zlib.crc32(payload)) + payload
        with self._guard:
            try:
                _write_all(self._handle, frame, self._end)
                if sync:
                    os.fdatasync(self._handle)
            except OSError as error:
                os.ftruncate(self._handle, self._end)
                raise write_error(error, self.path) from error
            self._end += len(frame)

    def close(self) -> None:
        if self._handle >= 0:
            with writing(self.path):
                os.fsync(self._handle)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _recover(self) -> int:
        """The offset to append at, with header written and torn tail cut."""
        data = self.path.read_bytes()
        end = 0
        if _check_header(data, self.path):
            end = _parse(data, len(_HEADER), self.path).end
        if end < len(data):
            self.cut = len(data) - end
            self.cut_file = _side_file(self.path, end)
            write_atomic(self.cut_file, data[end:])
        with writing(self.path):
            os.ftruncate(self._handle, end)
            if end == 0:
                _write_all(self._handle, _HEADER, 0)
                end = len(_HEADER)
            os.fsync(self._handle)
            sync_folder(self.path.parent)
        return end


class JournalReader:
    """Reads a journal that may still be growing, or not exist yet. Any number may read beside the writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        """Times the file was found replaced by a new one: what was folded from it must then start anew."""
        self._offset = 0
        self._file_id: tuple[int, int] | None = None

    @property
    def offset(self) -> int:
        """Byte in the file behind the last record that was read."""
        return self._offset

    def poll(self, limit: int = -1) -> list[bytes]:
        """The records completed since the last call, in order. A record still being written, or a torn tail, is left alone.

        limit: most bytes to read, unless a single record is longer: for readers that call again until nothing comes.
        Raises ProjectError for a file that is no journal, is of a newer format, or is damaged before its end.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            self._notice_replacement(os.fstat(file.fileno()))
            start = self._offset
            file.seek(start)
            data = file.read(limit)
            if len(data) == limit and _frame_at(data, len(_HEADER) if start == 0 else 0) is None:
                data += file.read()
        if start == 0:
            if not _check_header(data, self.path):
                return []
            found = _parse(data, len(_HEADER), self.path)
        else:
            found = _parse(data, 0, self.path, base=start)
        self._offset = start + found.end
        return found.payloads

    def _notice_replacement(self, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        if self._file_id is not None and (identity != self._file_id or status.st_size < self._offset):
            self.restarts += 1
            self._offset = 0
        self._file_id = identity


def record_span(payload: bytes) -> int:
    """Bytes that a record takes in the file."""
    return _FRAME.size + len(payload)


def read_record(path: Path, offset: int) -> bytes:
    """The record that begins at a byte of the file. Raises ProjectError where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            head = file.read(_FRAME.size)
            length = _FRAME.unpack(head)[0] if len(head) == _FRAME.size else 0
            payload = _frame_at(head + file.read(length), 0)
    except OSError as error:
        raise ProjectError(f"cannot be read: {error.strerror}", where=str(path), cure="make it a file that you may read") from error
    if payload is None:
        raise ProjectError(f"there is no record at byte {offset}", where=str(path), cure="open the project anew")
    return payload


class _Parsed(NamedTuple):
    payloads: list[bytes]
    end: int
    """Offset in the buffer behind the last whole record."""


def _parse(data: bytes, start: int, path: Path, base: int = 0) -> _Parsed:
    """Whole records from `start` on. `base` is the file offset of `data[0]`, for messages."""
    payloads = []
    offset = start
    while (payload := _frame_at(data, offset)) is not None:
        payloads.append(payload)
        offset += _FRAME.size + len(payload)
    if _whole_frame_after(data, offset):
        raise ProjectError(f"the journal is damaged at byte {base + offset}, and whole records follow the damage",
                           where=str(path),
                           cure="restore the journal from a copy; or move it away and run again: captured operators and "
                                "kernels are in files of their own")
    return _Parsed(payloads, offset)


def _frame_at(data: bytes, offset: int) -> bytes | None:
    """The payload of a whole, undamaged record at `offset`, else None."""
    if offset + _FRAME.size > len(data):
        return None
    length, length_check, payload_check = _FRAME.unpack_from(data, offset)
    begin = offset + _FRAME.size
    if begin + length > len(data) or zlib.crc32(data[offset:offset + 4]) != length_check:
        return None
    payload = data[begin:begin + length]
    return payload if zlib.crc32(payload) == payload_check else None


def _whole_frame_after(data: bytes, offset: int) -> bool:
    """Whether any whole record begins behind a damaged one: then it is no torn tail.

    A chance match needs two 32-bit checksums to agree; a tail is at most one record (or zeros after a power cut) long.
    """
    return any(_frame_at(data, later) is not None for later in range(offset + 1, len(data) - _FRAME.size + 1))


def _check_header(data: bytes, path: Path) -> bool:
    """False for a header that is not all there yet. Raises ProjectError for another file or a newer format."""
    if len(data) < len(_HEADER):
        if not MAGIC.startswith(data[:len(MAGIC)]):
            raise _no_journal(path)
        return False
    if not data.startswith(MAGIC):
        raise _no_journal(path)
    (version,) = struct.unpack_from("<I", data, len(MAGIC))
    if version > FORMAT:
        raise ProjectError(f"the journal has format {version}; forge-tui {__version__} reads formats up to {FORMAT}",
                           where=str(path), cure="use a newer forge-tui: pip install --upgrade forge-tui")
    return True


def _no_journal(path: Path) -> ProjectError:
    return ProjectError("this file is not a Forge journal", where=str(path),
                        cure="move it away; the project's journal is made anew")


def _write_all(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view = view[written:]
        offset += written


def _side_file(path: Path, offset: int) -> Path:
    """A free name `JOURNAL.cut-OFFSET`, so that no earlier cut is overwritten."""
    candidate = path.with_name(f"{path.name}.cut-{offset}")
    number = 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.cut-{offset}-{number}")
    return candidate
