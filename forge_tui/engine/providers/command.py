"""`command`: a local program that reads the prompt on stdin and writes its reply on stdout."""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from forge_tui.engine.prompts import Prompt
from forge_tui.engine.providers.base import Ask, Cancelled
from forge_tui.engine.providers.text import Completion, TextProvider
from forge_tui.errors import ProjectError, ProviderError
from forge_tui.store.atomic import writing

MAX_REPLY_BYTES = 4 * 1024 * 1024
"""A kernel file is some kilobytes; a program that writes more than this does not stop by itself."""

POLL_S = 0.05
SHOWN_AT_ONCE = 1 << 16
"""Bytes of a reply that a listener is told at once."""
SHOWN_STDERR = 600
"""Characters of a failed program's last words shown to the user."""


class CommandProvider(TextProvider):
    """Starts the program once per prompt, in its own process group, so that what it starts ends with it.

    The program's environment has FORGE_ASK (the ask's id). Exit status 0 means that stdout is the reply. Prompt and
    reply go through temporary files: no pipe can fill up and block either side.
    """

    name = "command"

    def __init__(self, command: str, deadline_s: float = 600.0) -> None:
        self.deadline_s = deadline_s
        try:
            self.arguments = shlex.split(command)
        except ValueError as error:
            raise ProjectError(f"the command `{command}` cannot be split: {error}", where="--provider",
                               cure="close the quotes") from error
        if not self.arguments:
            raise ProjectError("no command is given", where="--provider",
                               cure="write `--provider 'command:PROGRAM ARGUMENTS'`")

    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        with TemporaryFile(buffering=0) as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            with writing(Path(tempfile.gettempdir())):
                _write_all(stdin, prompt.text.encode())
                stdin.seek(0)
            process = self._start(stdin, stdout, stderr, ask)
            try:
                self._wait(process, stdout, stderr, ask, cancel)
            finally:
                _end_group(process)
            if process.returncode != 0:
                raise ProviderError(f"the program ended with status {process.returncode}{_last_words(stderr)}",
                                    where=self.arguments[0], cure="run it by hand with a prompt from `replies/` on stdin")
            stdout.seek(0)
            return Completion(text=stdout.read().decode(errors="replace"), model=os.path.basename(self.arguments[0]))

    def _start(self, stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO, ask: Ask) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(self.arguments, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
                                    env={**os.environ, "FORGE_ASK": ask.id})
        except OSError as error:
            raise ProviderError(f"the program cannot be started: {error.strerror or error}", where=self.arguments[0],
                                cure="give its full path, and make it executable") from error

    def _wait(self, process: subprocess.Popen[bytes], stdout: BinaryIO, stderr: BinaryIO, ask: Ask,
              cancel: threading.Event) -> None:
        deadline = time.monotonic() + self.deadline_s
        told, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        self.begun(ask)
        while True:
            try:
                process.wait(POLL_S)
                return
            except subprocess.TimeoutExpired:
                pass
            if cancel.is_set():
                raise Cancelled
            if self.listener is not None:
                written = os.pread(stdout.fileno(), SHOWN_AT_ONCE, told)  # leaves the program's own place in the file
                told += len(written)
                self.came(ask, decoder.decode(written))
            if os.fstat(stdout.fileno()).st_size > MAX_REPLY_BYTES:
                raise ProviderError(f"the program wrote more than {MAX_REPLY_BYTES >> 20} MiB and was ended",
                                    where=self.arguments[0], cure="make it write one reply and end")
            if time.monotonic() > deadline:
                raise ProviderError(f"no reply within {self.deadline_s:g} s; the program was ended{_last_words(stderr)}",
                                    where=self.arguments[0], cure="make it answer sooner")


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Into an unbuffered file: a buffer would fail a second time, on closing, where the disk is full."""
    view = memoryview(data)
    while view:
        view = view[file.write(view):]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever of the group still runs, the program's own children included, and reaps the program."""
    with contextlib.suppress(ProcessLookupError):  # nothing left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(stderr: BinaryIO) -> str:
    size = os.fstat(stderr.fileno()).st_size
    stderr.seek(max(0, size - SHOWN_STDERR))
    text = stderr.read().decode(errors="replace").strip()
    return f"; its last words: {text}" if text else ""
