"""The engine's side of judging: workers that may die, and verdicts that come whatever happens to them."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from forge_tui import errors
from forge_tui.cuda.worker import WorkerDied, WorkerError, WorkerProcess
from forge_tui.engine.judge import messages
from forge_tui.engine.judge.messages import Hello, Judgement, JudgeRequest, ProgressReport, Welcome
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.verdict import Check, Verdict
from forge_tui.errors import ForgeError, MissingEnvironment
from forge_tui.store.paths import ProjectPaths

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|NETRC", re.IGNORECASE)
"""Environment variables that no worker gets."""
HOST_DEADLINE_S = 600.0
"""Of one judgement where every thread is interpreted: minutes are possible, ten are not."""
CUDA_DEADLINE_S = 120.0
TOOLS_DEADLINE_S = 900.0
"""Of one judgement with NVIDIA's profiler or sanitizer: every tool has a deadline of its own."""
PREFIX_VARIABLE = "FORGE_WORKER_PREFIX"
"""Words that go before every worker's command: `ssh node7`, `srun --jobid 42`, `docker exec -i box`."""
SPARES = 2
"""Each holds about half a gigabyte of memory and nothing on the device."""
HELLO_DEADLINE_S = 180.0
"""Importing torch from a cold network disk takes up to a minute; the probe a few seconds."""
MEMORY_SHARE = 0.8
"""Of the memory that is free when a host worker starts, the workers together may take this part."""

OnProgress = Callable[[ProgressReport], None]


class JudgeClient:
    """Judges kernel files in workers of their own; a context manager. Thread-safe: as many judgements at once as
    workers.

    device: `auto`, `host`, `cuda`, `cuda:N`. workers: on `host`, where judging costs CPU; a GPU has one owner.
    prefix: goes before the command (`("ssh", "node7")`), for a project folder and a Python that both machines have at the
    same path; None: what the environment's FORGE_WORKER_PREFIX says. spares: processes kept ready to take a lost worker's
    place and to confirm winners, which have imported torch and not touched the device; None: SPARES on a GPU, where a fault ends its worker.
    on_note: told of replaced workers. Raises MissingEnvironment on entering where the device cannot be opened, and
    ForgeError where the judge fails its own probe.
    """

    def __init__(self, paths: ProjectPaths, device: str = "auto", *, workers: int = 1, options: JudgeOptions = JudgeOptions(),
                 deadline_s: float | None = None, prefix: Sequence[str] | None = None,
                 on_note: Callable[[str], None] = lambda text: None, command: Sequence[str] | None = None,
                 spares: int | None = None) -> None:
        self.paths = paths
        self.device = device
        self.options = options
        self.deadline_s = deadline_s
        self.prefix = tuple(worker_prefix(os.environ) if prefix is None else prefix)
        self.on_note = on_note
        self.welcome: Welcome | None = None
        self._command = command
        self._wanted = max(1, workers)
        self._idle: queue.LifoQueue[WorkerProcess | None] = queue.LifoQueue()
        self._workers: set[WorkerProcess] = set()
        self._used: set[WorkerProcess] = set()
        """Those that have judged something."""
        self._wanted_spares = spares
        self._spares: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._closed = False
        self._fused = True
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> JudgeClient:
        try:
            first = self._start(probe=True)
        except WorkerDied as died:
            raise _not_started(died) from died
        extra = self._wanted - 1 if self.welcome and self.welcome.target == "host" else 0
        for _ in range(extra):
            self._idle.put(None)
        self._idle.put(first)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, also those at work: their judgements become `crashed`."""
        with self._lock:
            self._closed = True
            workers = [*self._workers, *self._spares]
            self._workers.clear()
            self._spares.clear()
        for worker in workers:
            worker.close()

    def pids(self) -> list[int]:
        """Process ids of the workers that live (of the command in front of them, where there is one)."""
        with self._lock:
            return [worker.pid for worker in self._workers if worker.alive and worker.pid]

    def statistics(self) -> dict[str, int]:
        """Judgements by outcome, and `workers started`."""
        return dict(self._counts)

    def judge(self, variant_key: str, text: str, filename: str, seed: int | None = None, *,
              settings: dict[str, int] | None = None, options: JudgeOptions | None = None,
              on_progress: OnProgress | None = None) -> Verdict:
        """The verdict on one kernel file. Waits for a free worker.

        seed: repeats the fresh inputs of an earlier verdict. settings: of `[tune]`; only these are tried. options: for
        this one judgement; None: the client's own.

        A worker that dies gives a verdict that says so, and is replaced. Raises ForgeError where nothing can be judged:
        the variant is unknown, its samples are gone, no worker can be started.
        """
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = self._replace(worker)
            verdict = self._ask(worker, JudgeRequest(variant_key, text, filename, seed, options or self.options, settings),
                                on_progress)
        finally:
            self._idle.put(worker)
        self._counts[verdict.outcome] += 1
        return verdict

    def confirm(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int]) -> Verdict:
        """A winner's second judgement, on inputs drawn anew, timed again, and under NVIDIA's sanitizer: where that cannot
        run, a check of the verdict says so. On a GPU in a process that has judged nothing."""
        if self.welcome is not None and self.welcome.target == "cuda":
            self._freshen()
        return self.judge(variant_key, text, filename, settings=settings, options=replace(self.options, sanitize=True))

    def again(self, variant_key: str, text: str, filename: str, first: Verdict) -> Verdict:
        """A verified verdict with one more check: all of them made again, at its setting, in a fresh process, on draws of a
        seed that follows from the first. Where that fails, it is the verdict."""
        assert first.verified
        self._freshen()
        options = replace(self.options, time=False, sanitize=False, profile=False)
        seed = next_seed(first.seed)
        second = self.judge(variant_key, text, filename, seed, settings=dict(first.settings), options=options)
        if not second.verified:
            return replace(second, sentence=f"verified, but not when judged again in a fresh process: {second.sentence}",
                           points=first.points, timing=first.timing, judged_s=first.judged_s + second.judged_s)
        again = Check("fresh process", True, detail=f"all of it again in a process of its own, on draws of seed {seed}")
        return replace(first, checks=(*first.checks, again), judged_s=first.judged_s + second.judged_s)

    def _freshen(self) -> None:
        """The next judgement has a worker that has judged nothing: what another one holds may be why a kernel is right there."""
        worker = self._idle.get()
        try:
            if worker in self._used:
                self._forget(worker)
                worker = None
        finally:
            self._idle.put(worker)

    # -- one request

    def _ask(self, worker: WorkerProcess, request: JudgeRequest, on_progress: OnProgress | None) -> Verdict:
        doing = ""
        self._used.add(worker)

        def hear(body: bytes) -> None:
            nonlocal doing
            report = messages.decode_progress(body)
            doing = report.what
            if on_progress is not None:
                on_progress(report)

        try:
            reply = messages.decode_reply(worker.request(messages.encode(request), self._deadline(request.options), hear))
        except WorkerDied as died:
            self._forget(worker)
            if self._closed:
                raise ForgeError("judging was stopped") from died
            self.on_note(f"{died.message} while judging {request.filename}; it is replaced")
            return _dead(died, request, doing)
        except WorkerError as error:
            return _refused(messages.decode_refusal(error.body), request, str(self._log(worker)))
        assert isinstance(reply, Judgement)
        if reply.last:
            self._forget(worker)
            self.on_note(f"{request.filename} left its worker unable to go on ({reply.verdict.sentence}); it is replaced")
        return reply.verdict

    def _deadline(self, options: JudgeOptions) -> float:
        if self.deadline_s is not None:
            return self.deadline_s
        if options.sanitize or options.profile:
            return TOOLS_DEADLINE_S
        return HOST_DEADLINE_S if self.welcome is None or self.welcome.target == "host" else CUDA_DEADLINE_S

    # -- workers

    def _start(self, probe: bool) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise ForgeError("judging was stopped")
            ready = [spare for spare in self._spares if spare.alive]
            worker = ready.pop() if ready else self._process()
            self._spares = ready
            self._workers.add(worker)
        self._counts["workers started"] += 1
        try:
            if worker.process is None:
                worker.start()
            device = self.device if self.welcome is None or self.device != "auto" else self.welcome.target
            answer = worker.request(messages.encode(Hello(device, probe, self._fused)), HELLO_DEADLINE_S)
            reply = messages.decode_reply(answer)
        except WorkerError as error:
            self._forget(worker)
            refusal = messages.decode_refusal(error.body)
            if refusal.kind == "Comparison" and self._fused:
                self._fused = False                         # what cannot be trusted to compare is not asked again
                return self._start(probe)
            raise _as_error(refusal, self._log(worker)) from None
        except OSError as error:
            self._forget(worker)
            raise MissingEnvironment(f"the judging worker cannot be started: {error}",
                                     cure="see that the command in front of it exists and may be run") from error
        except WorkerDied:
            self._forget(worker)
            raise
        assert isinstance(reply, Welcome)
        if self.welcome is None:
            for note in reply.notes:
                self.on_note(note)
        self.welcome = reply
        self._get_ready()
        return worker

    def _process(self, spare: bool = False) -> WorkerProcess:
        """Not started. One on a GPU that waits as a spare imports torch's compiler too: no one waits for that."""
        command = self._command or [sys.executable, "-m", "forge_tui.engine.judge.server", "--project", str(self.paths.root),
                                    *self._memory(), *["--compiler"] * (spare and self.welcome is not None and self.welcome.target == "cuda")]
        return WorkerProcess([*self.prefix, *command], environment=clean_environment(os.environ, bool(self.prefix)),
                             log=self.paths.logs / "worker.log")

    def _get_ready(self) -> None:
        """Start what is missing of the spares, behind the scenes: importing torch is most of a replacement's time."""
        wanted = self._wanted_spares
        if wanted is None:
            wanted = SPARES if self.welcome and self.welcome.target == "cuda" else 0
        for _ in range(wanted - len(self._spares)):
            threading.Thread(target=self._start_spare, args=(wanted,), name="spare worker", daemon=True).start()

    def _start_spare(self, wanted: int) -> None:
        spare = self._process(spare=True)
        try:
            spare.start()
        except (WorkerDied, OSError):                       # the replacement itself will say why
            return
        with self._lock:
            kept = not self._closed and len(self._spares) < wanted
            if kept:
                self._spares.append(spare)
        if not kept:
            spare.close()

    def _replace(self, gone: WorkerProcess | None) -> WorkerProcess:
        """A new worker: the probe ran when the first was started. One more try, since what killed one may kill the
        next."""
        if gone is not None:
            self._forget(gone)
        try:
            return self._start(probe=False)
        except WorkerDied:
            try:
                return self._start(probe=False)
            except WorkerDied as died:
                raise _not_started(died) from died

    def _forget(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._workers.discard(worker)
            self._used.discard(worker)
        worker.close()                                      # first: it may hold most of the device's memory

    def _log(self, worker: WorkerProcess) -> str:
        return str(worker.log)

    def _memory(self) -> list[str]:
        """The limit of a host worker; a GPU's driver reserves address space as it likes."""
        if self.device.startswith("cuda") or self.prefix:
            return []
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return []
        return ["--memory", str(max(2 << 30, int(free * MEMORY_SHARE / self._wanted)))]


def next_seed(seed: int) -> int:
    """Of the draws that follow those of `seed`: as unpredictable, and the same wherever that seed is given again."""
    return int.from_bytes(hashlib.sha256(f"again {seed}".encode()).digest()[:6], "big")


def worker_prefix(environment: Mapping[str, str]) -> list[str]:
    """FORGE_WORKER_PREFIX as a shell would split it. Raises ForgeError."""
    try:
        return shlex.split(environment.get(PREFIX_VARIABLE, ""))
    except ValueError as error:
        raise errors.ProjectError(f"cannot be split into words: {error}", where=PREFIX_VARIABLE, cure="quote it as for a shell") from error


def clean_environment(environment: Mapping[str, str], remote: bool = False) -> dict[str, str]:
    """What a worker may know: no key, token or password; one thread for torch. remote: `ssh` keeps its agent."""
    kept = {name: value for name, value in environment.items()
            if not SECRET.search(name) or (remote and name == "SSH_AUTH_SOCK")}
    root = str(Path(__file__).parents[3])
    if "site-packages" not in root:  # a checkout that is not installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH", ""))))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}


def _dead(died: WorkerDied, request: JudgeRequest, doing: str) -> Verdict:
    """doing: what the worker said last."""
    last = f" (last heard: {doing})" if doing else ""
    words = {"crashed": died.message, "endless": f"{died.message}: the kernel does not end, or takes far too long{last}",
             "out_of_memory": died.message}[died.kind]
    return Verdict("fault", words, (Check("worker", False, detail=died.tail[-2000:]),), fault=died.kind, seed=request.seed or 0)


def _refused(refusal: messages.Refusal, request: JudgeRequest, log: str) -> Verdict:
    """A refusal that concerns this candidate only is a verdict; others are raised."""
    seed = request.seed or 0
    if refusal.kind == "NoMemory":
        return Verdict("fault", f"out of memory: {refusal.message}", (Check("memory", False, detail=refusal.message),),
                       fault="out_of_memory", seed=seed)
    if refusal.kind == "Internal":
        return Verdict("skipped", f"the judge itself failed on this kernel ({refusal.message}): neither a pass nor a failure; "
                                  f"see {log}", (Check("judge", False, detail=refusal.message),), seed=seed)
    raise _as_error(refusal, log)


def _as_error(refusal: messages.Refusal, log: str) -> ForgeError:
    kind = getattr(errors, refusal.kind, None)
    if isinstance(kind, type) and issubclass(kind, ForgeError):
        return kind(refusal.message, where=refusal.where, cure=refusal.cure)
    return ForgeError(f"the judging worker failed: {refusal.message}", where=log)


def _not_started(died: WorkerDied) -> MissingEnvironment:
    said = f"; it said:\n{died.tail}" if died.tail else ""
    return MissingEnvironment(f"the judging worker does not start: {died.message}{said}", cure="run `forge-tui doctor`")
