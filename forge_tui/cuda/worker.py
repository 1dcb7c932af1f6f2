"""A supervised child process that answers requests over its stdin and stdout; it may die or hang at any time.

Every message is a frame: the four bytes of `MAGIC`, the body's length (4 bytes, big endian), the body. The child says
`HELLO` first, so that whatever a login shell or a module system prints before it is skipped: `ssh host`, `srun` or
`docker exec` in front of the command make a remote worker. The child keeps file descriptors 0 and 1 to itself and gives
every library `stderr` instead, so a stray print cannot be taken for a frame.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

MAGIC = b"FWK1"
HELLO = b"\nforge-worker 1 ready\n"
MAX_FRAME = 256 * 1024 * 1024
"""Bytes. A longer one is taken for garbage."""
MAX_PREAMBLE = 1024 * 1024
"""Bytes that may come before HELLO."""
LOG_BYTES = 8 * 1024 * 1024
"""Of a worker's stderr, at most this much is kept in its log; a runaway printf fills no disk."""
TAIL_LINES = 20
GRACE_S = 2.0
"""Between asking a worker to go and killing its process group."""

Death = Literal["crashed", "endless", "out_of_memory"]


class WorkerDied(Exception):
    """The worker is gone. `kind`: `endless` when the deadline passed and it was killed for it."""

    def __init__(self, kind: Death, message: str, tail: str) -> None:
        super().__init__(message)
        self.kind: Death = kind
        self.message = message
        self.tail = tail
        """The last lines of its stderr."""


class Envelope(Struct, frozen=True, array_like=True):
    """What a frame holds."""

    kind: Literal["request", "progress", "reply", "error"]
    number: int
    """Of the request this belongs to."""
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def frame(envelope: Envelope) -> bytes:
    body = _encode(envelope)
    return MAGIC + struct.pack(">I", len(body)) + body


class WorkerProcess:
    """One child in its own process group. One request at a time: callers take turns.

    command: argv; may begin with `ssh host`. environment: the child's whole environment. log: where its stderr goes
    (appended, capped). Nothing is started before `start`; after a WorkerDied, or `close`, the object is spent.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, log: Path | None = None,
                 start_deadline_s: float = 120.0) -> None:
        self.command = list(command)
        self.environment = None if environment is None else dict(environment)
        self.log = log
        self.start_deadline_s = start_deadline_s
        self.process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._number = 0
        self._turn = threading.Lock()
        """Held by whoever waits for an answer: the pipes are its own until it has heard that they ended."""
        self._writing = threading.Lock()
        """Held while stdin is written to, and while `close` hangs up."""
        self._drain: _Drain | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self) -> None:
        """Start the child and wait for its HELLO. Raises WorkerDied, FileNotFoundError, PermissionError."""
        with self._turn:
            self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=self.environment, start_new_session=True)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        os.set_blocking(self.process.stdin.fileno(), False)
        os.set_blocking(self.process.stdout.fileno(), False)
        self._drain = _Drain(self.process.stderr, self.log)
        self._oom_before = _oom_kills()
        deadline = time.monotonic() + self.start_deadline_s
        while HELLO not in self._buffer:
            if len(self._buffer) > MAX_PREAMBLE:
                raise self._die("crashed", "the worker printed something else instead of starting")
            self._exchange(b"", deadline, f"did not start within {self.start_deadline_s:.0f} s")
        del self._buffer[: self._buffer.index(HELLO) + len(HELLO)]

    def request(self, body: bytes, deadline_s: float, on_progress: Callable[[bytes], None] | None = None) -> bytes:
        """Send one request and wait for its reply.

        on_progress: called with the body of each progress frame, in this thread. Raises WorkerDied when the child is
        gone, or was killed because `deadline_s` passed; WorkerError when it answers that it could not.
        """
        with self._turn:
            if not self.alive:
                raise self._die("crashed", "the worker is gone", ended=self.process is not None)
            self._number += 1
            deadline = time.monotonic() + deadline_s
            what = f"gave no answer within {deadline_s:.0f} s"
            pending = self._exchange(frame(Envelope("request", self._number, body)), deadline, what)
            while True:
                for envelope in self._frames():
                    if envelope.number != self._number:
                        continue
                    if envelope.kind == "reply":
                        return envelope.body
                    if envelope.kind == "error":
                        raise WorkerError(envelope.body)
                    if on_progress:
                        on_progress(envelope.body)
                pending = self._exchange(pending, deadline, what)

    def close(self) -> None:
        """End it: closed pipes ask it to go, then the whole group is killed. Safe to call at any time, from any
        thread."""
        process = self.process
        if process is None:
            return
        if process.poll() is None:
            try:
                with self._writing:
                    if process.stdin:
                        process.stdin.close()
                process.wait(GRACE_S)
            except (subprocess.TimeoutExpired, OSError):
                pass
        self._kill()
        if self._turn.acquire(blocking=False):
            try:
                self._close_pipes()
            finally:
                self._turn.release()

    def tail(self) -> str:
        return self._drain.tail() if self._drain else ""

    # -- bytes

    def _exchange(self, outgoing: bytes, deadline: float, what: str) -> bytes:
        """Write what can be written, read what there is, wait for one of both. Returns what is still to be written."""
        assert self.process and self.process.stdin and self.process.stdout
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._die("endless", f"the worker {what} and was killed")
        with self._writing if outgoing else nullcontext(), selectors.DefaultSelector() as selector:
            if self.process.stdin.closed:
                outgoing = b""  # it was asked to go: what it said last is still to be read
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if outgoing:
                selector.register(self.process.stdin, selectors.EVENT_WRITE)
            ready = {key.fileobj for key, _ in selector.select(min(left, 1.0))}
            if self.process.stdin in ready:
                try:
                    outgoing = outgoing[os.write(self.process.stdin.fileno(), outgoing[:65536]):]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    outgoing = b""  # it is going by itself
        if self.process.stdout in ready:
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise self._die("crashed", "the worker ended", ended=True)
            self._buffer += data
        return outgoing

    def _frames(self) -> Iterator[Envelope]:
        """Whole frames received so far."""
        while len(self._buffer) >= 8:
            (length,) = struct.unpack(">I", self._buffer[4:8])
            if self._buffer[:4] != MAGIC or length > MAX_FRAME:
                raise self._die("crashed", "the worker's answer is garbled")
            if len(self._buffer) < 8 + length:
                return
            body = bytes(self._buffer[8:8 + length])
            del self._buffer[:8 + length]
            try:
                yield _decode(body)
            except msgspec.DecodeError:
                raise self._die("crashed", "the worker's answer is garbled") from None

    # -- the end

    def _die(self, kind: Death, message: str, *, ended: bool = False) -> WorkerDied:
        """Kill what is left, and say how it ended. ended: it went by itself, so that its exit status is the reason."""
        status = self._exit_status() if ended else None
        self._kill()
        self._close_pipes()
        if status is None or status == 0:
            return WorkerDied(kind, message, self.tail())
        if status > 0:
            return WorkerDied(kind, f"the worker ended with exit status {status}", self.tail())
        if -status == signal.SIGKILL and _oom_kills() > self._oom_before:
            return WorkerDied("out_of_memory", "the worker was killed: the machine is out of memory", self.tail())
        return WorkerDied(kind, f"the worker was ended by {_signal_name(-status)}", self.tail())

    def _exit_status(self) -> int | None:
        """A closed stdout comes a moment before the exit status. None: it closed its stdout and lives on."""
        assert self.process
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return None

    def _kill(self) -> None:
        process = self.process
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the group is gone
        process.wait()
        if self._drain:
            self._drain.join()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout) if self.process else ():
            if pipe:
                try:
                    pipe.close()
                except OSError:
                    pass  # unsent bytes to a dead child


class WorkerError(Exception):
    """The worker lives and says why it could not answer. `body`: as its handler encoded it."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body.decode("utf-8", "replace"))
        self.body = body


class _Drain:
    """Reads a worker's stderr for ever: the last lines in memory, the first LOG_BYTES in the log."""

    def __init__(self, pipe: BinaryIO, log: Path | None) -> None:
        self.pipe = pipe
        self.lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.log = log
        self.thread = threading.Thread(target=self._run, name="worker stderr", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        written = 0
        out = _open_log(self.log)
        with self.pipe:
            while line := self.pipe.readline(4096):
                self.lines.append(line)
                if out and written < LOG_BYTES:
                    try:
                        out.write(line)
                        written += len(line)
                        if written >= LOG_BYTES:
                            out.write(b"\n[the rest of this worker's output was left out]\n")
                    except OSError:
                        out = None  # a full disk must not stop the judging; the tail stays in memory
        if out:
            out.close()

    def tail(self) -> str:
        return b"".join(list(self.lines)).decode("utf-8", "replace").strip()

    def join(self) -> None:
        self.thread.join(GRACE_S)


def _open_log(log: Path | None) -> BinaryIO | None:
    if log is None:
        return None
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return open(log, "ab", buffering=0)
    except OSError:
        return None  # a read-only or full disk: the tail in memory has to do


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    """How often this machine's kernel has killed for memory; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


# -- the child's side

Handler = Callable[[bytes, Callable[[bytes], None]], bytes]
"""Answers one request: its body, and a function that sends progress; the reply's body. WorkerError: the refusal."""


def serve(handler: Handler) -> None:
    """Answer requests until stdin is closed. Call before anything can print: it takes over descriptors 0 and 1."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    _end_with_parent(requests)
    with os.fdopen(requests, "rb") as incoming, os.fdopen(replies, "wb") as outgoing:
        outgoing.write(HELLO)
        outgoing.flush()
        while (envelope := _receive(incoming)) is not None:
            number = envelope.number

            def progress(body: bytes, number: int = number) -> None:
                outgoing.write(frame(Envelope("progress", number, body)))
                outgoing.flush()

            try:
                answer = Envelope("reply", number, handler(envelope.body, progress))
            except WorkerError as error:
                answer = Envelope("error", number, error.body)
            outgoing.write(frame(answer))
            outgoing.flush()


def _receive(incoming: BinaryIO) -> Envelope | None:
    head = incoming.read(8)
    if len(head) < 8 or head[:4] != MAGIC:
        return None
    (length,) = struct.unpack(">I", head[4:])
    body = incoming.read(length)
    return _decode(body) if len(body) == length else None


def _end_with_parent(descriptor: int) -> None:
    """A busy worker whose parent is gone must not go on for hours: a thread waits for the pipe to be hung up."""
    import select

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)
        while True:
            if any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll()):
                # The main thread ends by itself when idle; this one is for a thread stuck in a kernel.
                time.sleep(GRACE_S / 2)
                os._exit(0)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
