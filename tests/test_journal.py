"""The journal: torn at every byte, damaged in the middle, read while written, on a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.journal import MAGIC, JournalReader, JournalWriter

RECORDS = [b"first", b"", b"\0" * 40, b"the last but one", b"the last"]
ROOT = Path(__file__).parent.parent


def write(path: Path, records: list[bytes]) -> None:
    with JournalWriter(path) as journal:
        for record in records:
            journal.append(record)


def test_records_come_back_across_openings(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, RECORDS[:2])
    write(path, RECORDS[2:])
    assert JournalReader(path).poll() == RECORDS
    assert os.listdir(tmp_path) == ["j"]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    """Whatever the cut, the whole records before it are kept, the rest is set aside, and appending goes on."""
    path = tmp_path / "j"
    write(path, RECORDS)
    whole = path.read_bytes()
    ends = [12]
    for record in RECORDS:
        ends.append(ends[-1] + 12 + len(record))
    assert ends[-1] == len(whole)
    for length in range(len(whole) + 1):
        folder = tmp_path / f"cut{length}"
        folder.mkdir()
        path = folder / "j"
        path.write_bytes(whole[:length])
        kept = RECORDS[:sum(end <= length for end in ends[1:])]
        good = max((end for end in ends if end <= length), default=0)
        assert JournalReader(path).poll() == kept
        with JournalWriter(path) as journal:
            assert journal.cut == length - good
            if journal.cut:
                assert journal.cut_file and journal.cut_file.read_bytes() == whole[good:length]
            journal.append(b"new")
        assert JournalReader(path).poll() == [*kept, b"new"]
        assert JournalWriter(path).cut == 0


def test_a_tail_of_zeros_is_torn_not_damaged(tmp_path: Path) -> None:
    """After a power cut a file may have its new length but none of its new bytes."""
    path = tmp_path / "j"
    write(path, RECORDS)
    path.write_bytes(path.read_bytes() + bytes(500))
    assert JournalReader(path).poll() == RECORDS
    assert JournalWriter(path).cut == 500


def test_two_cuts_at_one_place_keep_both_tails(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, [])
    for tail in (b"one", b"two"):
        path.write_bytes(path.read_bytes() + tail)
        JournalWriter(path).close()
    assert {file.read_bytes() for file in tmp_path.glob("j.cut-*")} == {b"one", b"two"}


def test_every_damaged_byte_before_the_last_record_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, RECORDS)
    whole = path.read_bytes()
    last = len(whole) - 12 - len(RECORDS[-1])
    starts = [12]
    for record in RECORDS:
        starts.append(starts[-1] + 12 + len(record))
    for place in range(12, last):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1:])
        damaged = max(start for start in starts if start <= place)
        for use in (JournalReader(path).poll, lambda: JournalWriter(path)):
            with pytest.raises(ProjectError, match=f"damaged at byte {damaged},"):
                use()
    assert list(tmp_path.glob("j.cut-*")) == []


def test_other_files_and_newer_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for data, said in ((b"hello, this is text", "not a Forge journal"), (b"FX", "not a Forge journal"),
                       (MAGIC + b"\x07\0\0\0", "format 7")):
        path.write_bytes(data)
        for use in (JournalReader(path).poll, lambda: JournalWriter(path)):
            with pytest.raises(ProjectError, match=said):
                use()
        assert path.read_bytes() == data


def test_a_reader_waits_for_the_rest_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "j"
    reader = JournalReader(path)
    assert reader.poll() == []
    write(path, [b"a", b"b" * 100])
    whole = path.read_bytes()
    seen = []
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        seen += [(length, record) for record in reader.poll()]
    assert seen == [(25, b"a"), (137, b"b" * 100)]


def test_a_replaced_journal_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, [b"a", b"b"])
    reader = JournalReader(path)
    assert (reader.poll(), reader.restarts) == ([b"a", b"b"], 0)
    path.rename(tmp_path / "old")
    write(path, [b"c"])
    assert (reader.poll(), reader.restarts) == ([b"c"], 1)


APPEND = """
import sys
from pathlib import Path
from forge_tui.store.journal import JournalWriter
with JournalWriter(Path(sys.argv[1])) as journal:
    for number in range(3000):
        journal.append(str(number).encode() * (number % 50))
"""


def test_a_reader_beside_a_writer_sees_every_record_once(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = subprocess.Popen([sys.executable, "-c", APPEND, str(path)], cwd=ROOT)
    reader = JournalReader(path)
    seen: list[bytes] = []
    while writer.poll() is None:
        seen += reader.poll()
    seen += reader.poll()
    assert writer.returncode == 0
    assert seen == [str(number).encode() * (number % 50) for number in range(3000)]


def test_a_full_disk_keeps_every_record_and_the_file_whole(tmp_path: Path) -> None:
    """The limit on file size is the kernel's own refusal in the middle of a write, as a full disk is."""
    path = tmp_path / "j"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    with JournalWriter(path) as journal:
        journal.append(b"kept", sync=True)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
        try:
            with pytest.raises(MissingEnvironment, match="file too large") as caught:
                journal.append(bytes(5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert str(path) in str(caught.value)
        assert path.stat().st_size == size
        journal.append(b"and on")
    assert JournalReader(path).poll() == [b"kept", b"and on"]
