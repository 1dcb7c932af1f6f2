"""Builds side by side: NVRTC builds one program at a time in a process, so each of these has a process of its own.

`python -m forge_tui.cuda.buildpool` is the child. A build past its deadline costs that child alone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from forge_tui.cuda.cache import ImageCache
from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.worker import WorkerDied, WorkerError, WorkerProcess, serve
from forge_tui.errors import MissingEnvironment

MOST = 8
"""Children: what a judgement's settings keep busy."""
SPARE = 2
"""Cores left to the process that judges."""
START_S = 60.0


class Order(Struct, frozen=True):
    """What a child is to build."""

    program: Program
    kind: Literal["ptx", "cubin"]
    arch: str
    images: str | None
    """Folder of the image cache."""


class Refused(Struct, frozen=True):
    """Why there is no image: a CandidateFault, or with kind `missing` a MissingEnvironment."""

    kind: FaultKind | Literal["missing"]
    message: str
    kernel: str | None = None
    line: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_order = msgspec.msgpack.Decoder(Order).decode
_image = msgspec.msgpack.Decoder(Image).decode
_refused = msgspec.msgpack.Decoder(Refused).decode


def pool_size() -> int:
    """Children worth having on this machine; 0 where the cores are needed for the judging itself."""
    return max(0, min(MOST, len(os.sched_getaffinity(0)) - SPARE))


class BuildPool:
    """`count` children, each started when first needed. Thread-safe."""

    def __init__(self, count: int, kind: Literal["ptx", "cubin"], arch: str, images: Path | None = None) -> None:
        self.kind: Literal["ptx", "cubin"] = kind
        self.arch = arch
        self.count = count
        self.images = images
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="build")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._children: set[WorkerProcess] = set()

    def submit(self, program: Program, deadline_s: float) -> Future[Image]:
        """Its result raises CandidateFault('compile', 'endless') and MissingEnvironment."""
        return self._threads.submit(self._build, program, deadline_s)

    def warm(self) -> None:
        """Start the children now; returns at once."""
        for _ in range(self.count):
            self._threads.submit(self._child)

    def close(self) -> None:
        """End the children, also those at work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            children = list(self._children)
        for child in children:
            child.close()

    def _build(self, program: Program, deadline_s: float) -> Image:
        order = Order(program, self.kind, self.arch, str(self.images) if self.images else None)
        try:
            return _image(self._child().request(_encode(order), deadline_s))
        except WorkerError as error:
            refused = _refused(error.body)
            if refused.kind == "missing":
                raise MissingEnvironment(refused.message) from error
            raise CandidateFault(refused.kind, refused.message, kernel=refused.kernel, line=refused.line) from error
        except WorkerDied as died:
            self._own.child = None
            if died.kind == "endless":
                raise CandidateFault("endless", f"the compiler was still at work after {deadline_s:g} s") from died
            raise CandidateFault("compile", f"the compiler died: {died.message}") from died

    def _child(self) -> WorkerProcess:
        """This thread's own."""
        child: WorkerProcess | None = getattr(self._own, "child", None)
        if child is None or not child.alive:
            child = WorkerProcess(
                [sys.executable, "-m", "forge_tui.cuda.buildpool", self.kind, self.arch],
                environment=_environment(),
                start_deadline_s=START_S,
            )
            with self._lock:
                self._children = {item for item in self._children if item.alive} | {child}
            try:
                child.start()
            except OSError as error:
                raise MissingEnvironment(f"no process for a build: {error}") from error
            self._own.child = child
        return child


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}


def _answer(body: bytes, progress: Callable[[bytes], None]) -> bytes:
    """The child's side of one build."""
    order = _order(body)
    cache = ImageCache(order.images) if order.images else None
    try:
        return _encode(compile_program(order.program, kind=order.kind, arch=order.arch, cache=cache))
    except CandidateFault as fault:
        raise WorkerError(_encode(Refused(fault.kind, fault.message, fault.kernel, fault.line))) from fault
    except MissingEnvironment as error:
        raise WorkerError(_encode(Refused("missing", error.message))) from error


def _prepare(kind: str, arch: str) -> None:
    """What the first build would else wait for. A failure shows again, with its reason, in the first build."""
    from forge_tui.cuda.precompiled import precompiled
    from forge_tui.cuda.toolchain import find_toolchain

    with suppress(MissingEnvironment):
        precompiled(find_toolchain(), kind, arch)


if __name__ == "__main__":
    _prepare(sys.argv[1], sys.argv[2])
    serve(_answer)
