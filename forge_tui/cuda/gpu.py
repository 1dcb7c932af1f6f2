"""A CUDA device as a target: cubins by NVRTC, launches by the driver on torch's current stream, faults told apart."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

from forge_tui.cuda.device import DeviceFacts, find_gpu, read_facts
from forge_tui.cuda.driver import DriverError, driver
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.launch import LoadedImage, PreparedProgram
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import BUILD_DEADLINE_S, GPU_DEADLINE_S, RunReport
from forge_tui.errors import MissingEnvironment

if TYPE_CHECKING:
    from forge_tui.cuda.buildpool import BuildPool
    from forge_tui.cuda.cache import ImageCache

KEPT_IMAGES = 128
"""Loaded images kept, least recently used first out."""
LOAD_BYTES, LOAD_PASSES = 64 << 20, 64
"""Some three milliseconds on an H200."""
SPIN_S = 0.0005
"""A wait is a busy one for so long, then it sleeps between looks."""


class GpuTarget:
    """One CUDA device of this process, which it makes torch's current device.

    After a fault that ends the CUDA context (`lost` says which) nothing runs any more: the process must end.
    """

    kind: Literal["host", "cuda"] = "cuda"

    def __init__(self, index: int = 0, *, deadline_s: float = GPU_DEADLINE_S, cache: ImageCache | None = None,
                 measure: bool = True) -> None:
        """measure: use the stored ceilings of this device, or measure them now (about a second, once per device).

        Raises MissingEnvironment.
        """
        if not find_gpu():
            raise MissingEnvironment("no CUDA device can be used here", where=f"cuda:{index}",
                                     cure="run `forge-tui doctor`, or use --device host")
        count = torch.cuda.device_count()
        if not 0 <= index < count:
            raise MissingEnvironment(f"there is no device {index}: this process sees {count}", where=f"cuda:{index}",
                                     cure=f"use cuda:0 to cuda:{count - 1}; CUDA_VISIBLE_DEVICES may hide others")
        torch.cuda.set_device(index)
        torch.cuda.init()
        torch.zeros(1, device="cuda")                       # makes the primary context current for the driver's calls too
        self.index = index
        self.device = torch.device("cuda", index)
        self.deadline_s = deadline_s
        self.cache = cache
        self.build_deadline_s = BUILD_DEADLINE_S
        self.lost: CandidateFault | None = None
        """What ended the context, or holds the compiler, once it is gone."""
        self._pool: BuildPool | None = None
        self._begun: dict[tuple[str, str], Future[Image]] = {}
        self._images: OrderedDict[str, LoadedImage] = OrderedDict()
        self.facts: DeviceFacts = read_facts(index)
        if measure:
            from forge_tui.cuda.ceilings import ceilings_of

            self.facts = ceilings_of(self).apply(self.facts)

    def build(self, program: Program) -> Image:
        """Compile to a cubin for exactly this device. Raises CandidateFault('compile', 'endless')."""
        from forge_tui.cuda.compile import compile_program

        begun = self._begun.pop((program.build_key(), program.filename), None)
        if begun is not None:
            return begun.result()
        try:
            return compile_program(program, kind="cubin", arch=f"sm_{self.facts.cc}", cache=self.cache, deadline_s=self.build_deadline_s)
        except CandidateFault as fault:
            self.lost = fault if fault.kind == "endless" else self.lost
            raise

    def expect(self, programs: Sequence[Program]) -> None:
        """Begin to build these, in processes of their own where there are cores for them."""
        for future in self._begun.values():
            future.cancel()
        self._begun = {}
        pool = self._builders()
        if pool is not None:
            self._begun = {(program.build_key(), program.filename): pool.submit(program, self.build_deadline_s) for program in programs}

    def warm(self) -> None:
        """Start what `expect` needs; returns at once."""
        pool = self._builders()
        if pool is not None:
            pool.warm()

    def _builders(self) -> BuildPool | None:
        from forge_tui.cuda.buildpool import BuildPool, pool_size

        if self._pool is None and (count := pool_size()) > 1:
            self._pool = BuildPool(count, "cubin", f"sm_{self.facts.cc}", self.cache.folder if self.cache else None)
            weakref.finalize(self, self._pool.close)
        return self._pool

    def prepare(self, program: Program, image: Image, tensors: Mapping[str, torch.Tensor],
                workspaces: Mapping[str, torch.Tensor] | None = None) -> PreparedProgram:
        """Everything packed, ready to enqueue any number of times. Raises CandidateFault('launch')."""
        self._must_live()
        try:
            return PreparedProgram(program, self._load(image), tensors, workspaces or {}, self.index)
        except torch.cuda.OutOfMemoryError as error:
            raise CandidateFault("out_of_memory", f"no memory for its workspaces: {str(error).splitlines()[0]}") from error

    def run(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
            workspaces: dict[str, torch.Tensor] | None = None) -> RunReport:
        """Run on CUDA tensors and wait. Raises CandidateFault; `lost` is set where that ended the context."""
        prepared = self.prepare(program, image, tensors, workspaces)
        self.enqueue(prepared)
        self.wait()
        return RunReport()

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """While it lasts another stream keeps memory and multiprocessors busy for some milliseconds: what runs meanwhile has its
        blocks started late and out of step. Without memory for it nothing happens."""
        side = torch.cuda.Stream(self.device)
        try:
            with torch.cuda.stream(side):
                busy = torch.ones(LOAD_BYTES // 4, device=self.device)
                for _ in range(LOAD_PASSES):
                    busy.mul_(1.0)
        except torch.cuda.OutOfMemoryError:
            pass
        yield
        if self.lost is None:
            side.synchronize()

    def enqueue(self, prepared: PreparedProgram) -> None:
        """`prepared.enqueue()`, remembering a fault that ends the context."""
        try:
            prepared.enqueue()
        except CandidateFault as fault:
            if isinstance(fault.__cause__, DriverError) and fault.__cause__.ends_context:
                self.lost = fault
            raise

    def wait(self, deadline_s: float | None = None) -> None:
        """Until everything on the current stream is done. Raises CandidateFault, `endless` past the deadline."""
        module = driver()
        stream = module.CUstream(torch._C._cuda_getCurrentRawStream(self.index))
        started = time.monotonic()
        limit = self.deadline_s if deadline_s is None else deadline_s
        while True:
            status, = module.cuStreamQuery(stream)
            if not status:
                return
            if status != module.CUresult.CUDA_ERROR_NOT_READY:
                error = DriverError(status.name, "cuStreamQuery")
                fault = error.fault()
                if error.ends_context:
                    self.lost = fault
                raise fault from error
            waited = time.monotonic() - started
            if waited > limit:
                self.lost = CandidateFault("endless", f"it was still running after {limit:g} s")
                raise self.lost
            if waited > SPIN_S:
                time.sleep(min(0.001, waited / 10))

    def _must_live(self) -> None:
        if self.lost is not None:
            raise MissingEnvironment(f"the CUDA context of this process is gone: {self.lost}", where=f"cuda:{self.index}",
                                     cure="start a new process; the worker does so by itself")

    def _load(self, image: Image) -> LoadedImage:
        key = hashlib.sha256(image.code).hexdigest()
        found = self._images.get(key)
        if found is None:
            found = self._images[key] = LoadedImage(image)
            if len(self._images) > KEPT_IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(key)
        return found
