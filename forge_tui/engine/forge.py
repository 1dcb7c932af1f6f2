"""One run of a project, from lock to document: capture, select, search, package, prove."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forge_tui import __version__
from forge_tui.engine import events
from forge_tui.engine.cards import OperatorFile, Variant, load_operators
from forge_tui.engine.document import Document
from forge_tui.engine.halt import Halted, Status, StopReason, Watch, lost_interrupt, reason_of
from forge_tui.engine.judging import Judge, Judges
from forge_tui.engine.options import RunOptions, Settings, resolve
from forge_tui.engine.providers import Provider, check_provider, open_provider
from forge_tui.engine.recorder import Recorder
from forge_tui.engine.report import document
from forge_tui.engine.scheduler import Scheduler
from forge_tui.engine.search import Node, open_policy
from forge_tui.engine.selection import inside_of, select_variants
from forge_tui.engine.state import RunState, load_state
from forge_tui.errors import ForgeError
from forge_tui.store.atomic import writing
from forge_tui.store.journal import JournalWriter
from forge_tui.store.lock import ProjectLock
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import DeviceConfig, ProjectConfig

if TYPE_CHECKING:
    from forge_tui.engine.package.export import Winner

OnEvent = Callable[[events.AnyEvent], None]
OpenWorkers = Callable[[ProjectPaths, str, Settings, int, Callable[[str], None]], Judge]
"""Opens a judge: project, device (`host`, `cuda:0`), settings, number of workers, whom to tell of replaced ones."""

MAX_HOST_JUDGES = 4
"""Interpreters side by side on a machine without a GPU: each holds torch and a copy of the samples (about 0.6 GB)."""


def run(paths: ProjectPaths, config: ProjectConfig, options: RunOptions, on_event: OnEvent = lambda event: None,
        open_judge: OpenWorkers | None = None) -> Document:
    """Do what is not yet done, and say what came of it.

    The last event, `RunEnded`, has the exit code. What fails once the run has begun is in the document (`status` `failed`,
    `error`); only what cannot begin raises: ProjectLocked, or a journal that cannot be read or written (ProjectError,
    MissingEnvironment). Events reach `on_event` after they are in the journal, from the calling thread.
    """
    begun = time.monotonic()
    with ProjectLock(paths):
        if options.fresh:
            set_aside(paths)
        state = load_state(paths)
        with JournalWriter(paths.journal) as writer:
            recorder = Recorder(writer, state, on_event)
            status, error = _Run(paths, config, options, recorder, open_judge or open_workers).go()
    return document(paths, _cards_or_none(paths), state, status=status, error=error, elapsed_s=time.monotonic() - begun)


class _Run:
    """The phases of one run, and how it ends."""

    def __init__(self, paths: ProjectPaths, config: ProjectConfig, options: RunOptions, recorder: Recorder,
                 open_judge: OpenWorkers) -> None:
        self.paths, self.config, self.options = paths, config, options
        self.recorder, self.state, self.open_judge = recorder, recorder.state, open_judge
        self.name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

    def go(self) -> tuple[Status, str | None]:
        """All phases; status and error. Whatever happens, the journal's last word is why it ended."""
        try:
            reason = self._phases()
        except ForgeError as error:
            reason = lost_interrupt()
            if reason is None:
                return self._end("failed", str(error), error.exit_code)
        except Halted as halted:
            reason = halted.reason
        except KeyboardInterrupt as interrupt:  # a signal outside the search, where nothing is half recorded
            reason = reason_of(interrupt)
        except Exception as error:  # ours: recorded, then shown by whoever called
            reason = lost_interrupt()
            if reason is None:
                self._end("failed", f"internal error: {type(error).__name__}: {error}", 70)
                raise
        return self._end(reason.status, reason.sentence, reason.exit_code)

    def _phases(self) -> StopReason:
        settings = self._begin()
        cards = self._capture(settings)
        variants = self._select(cards, settings)
        reason = self._search(cards, variants, settings)
        if reason.status in ("done", "limit") and self.options.package:
            self._package(cards)
        if reason.status == "done" and self.options.package:
            self._prove()
        return self._speedup(reason, settings)

    def _end(self, status: Status, reason: str, exit_code: int) -> tuple[Status, str | None]:
        event = events.RunEnded(at=time.time(), run=self.name, status=status, reason=reason, exit_code=exit_code)
        try:
            self.recorder.record(event, sync=True)
        except ForgeError:  # a full disk: the journal then ends as after a kill, and whoever listens still hears it
            self.recorder.on_event(event)
        return status, reason if status == "failed" else None

    # -- phases

    def _begin(self) -> Settings:
        """Resolve what is asked; refuse names that do not exist before anything takes time."""
        last = self.state.run
        settings = resolve(self.config, self.options, last.seed if last else None)
        open_policy(settings.policy, settings.seed)
        check_provider(settings.provider)
        self.watch = Watch(self.paths, settings, self.state)
        self.device = resolve_device(settings.device)
        self.recorder.record(events.RunStarted(
            at=time.time(), run=self.name, host=socket.gethostname(), pid=os.getpid(), version=__version__,
            provider=settings.provider, llm=settings.llm, policy=settings.policy, seed=settings.seed, device=self.device,
            target="host" if self.device == "host" else "cuda", iterations=settings.iterations), sync=True)
        if self.recorder.writer.cut:
            self.recorder.note("warning", f"the journal's torn tail ({self.recorder.writer.cut} bytes) was cut off and kept "
                                          f"as {self.recorder.writer.cut_file.name}")
        return settings

    def _capture(self, settings: Settings) -> OperatorFile:
        """The cards; made now if there are none, or only ones of another kind of device."""
        cards = load_operators(self.paths)
        kind = "cpu" if self.device == "host" else "device"
        if cards is not None and cards.time_kind == kind and not self.options.fresh:
            if self.state.captured is None or self.state.captured.captured_at != cards.captured_at:
                self._captured(cards)
            return cards
        from forge_tui.engine.capture import capture_project

        config = msgspec.structs.replace(self.config, device=DeviceConfig(self.device))
        cards = capture_project(self.paths, config, self._progress)
        self._captured(cards)
        return cards

    def _captured(self, cards: OperatorFile) -> None:
        self.recorder.record(events.Captured(
            at=time.time(), variants=len(cards.variants), offered=sum(variant.offered for variant in cards.variants),
            forward_us=cards.forward_us, captured_at=cards.captured_at))

    def _progress(self, text: str) -> None:
        """A line from a phase that takes long. Raises Halted on a stop request; a limit does not cut such a phase, since
        what it did would be lost and the next run no further."""
        self.recorder.note("info", text)
        if self.paths.stop_request.exists():
            raise Halted(StopReason.STOPPED)

    def _select(self, cards: OperatorFile, settings: Settings) -> list[Variant]:
        variants = select_variants(cards, settings.ops, lambda text: self.recorder.note("info", text))
        self.recorder.record(events.Selected(at=time.time(), operators=tuple(variant.key for variant in variants)))
        return variants

    def _search(self, cards: OperatorFile, variants: list[Variant], settings: Settings) -> StopReason:
        on_host = self.device == "host"
        judges = Judges(lambda workers: self.open_judge(self.paths, self.device, settings, workers, scheduler.note),
                        judge_count(settings, on_host))
        scheduler = Scheduler(
            paths=self.paths, settings=settings, recorder=self.recorder, watch=self.watch,
            policy=open_policy(settings.policy, settings.seed), providers=open_providers(self.paths, settings, cards),
            judges=judges, device=cards.device, modelled=on_host, variants=variants, inside=inside_of(cards, settings.ops))
        with self.watch.listening():
            try:
                reason = scheduler.run()
            finally:
                scheduler.close()
        self.standing = scheduler.standing()
        return self.watch.signalled or reason

    def _package(self, cards: OperatorFile) -> None:
        """Write the package when a winner changed since the last one was written."""
        packaged = self.state.packaged
        if packaged and not self.state.package_stale and Path(packaged.path).is_dir():
            return
        if not (faster := contenders(self.state, cards)):
            return
        from forge_tui.engine.package.export import export_package  # imports torch
        from forge_tui.engine.package.selection import select

        if cards.launch_bound:
            self.recorder.note("info", "the forward waits for its CPU, so kernels that gain nothing on the device may still gain in the model: "
                                       f"`forge-tui export {self.paths.root} -o OUT --select all`, then `forge-tui bench` with --package OUT "
                                       "drops those that do not")
        found, unsafe = select(winners(self.state, cards), "safe")
        more = [winner for winner in select(faster, "eager")[0] if winner not in found]
        if more:
            self.recorder.note("info", f"{len(more)} more are faster than eager, if not than torch.compile: a model that runs without it "
                                       f"gains by `forge-tui export {self.paths.root} --select eager`")
        for winner, reason in unsafe:
            self.recorder.note("info", f"{winner.variant.key} is not in the package: {reason}")
        if not found:
            return
        self.recorder.note("info", f"packaging {len(found)} kernels")
        exported = export_package(self.paths, cards, found, cards.device)
        for key, reason in exported.left_out:
            self.recorder.note("warning", f"{key} is not in the package: {reason}")
        self.recorder.record(events.Packaged(at=time.time(), path=str(exported.folder), kernels=exported.kernels), sync=True)

    def _prove(self) -> None:
        """Run the model with the package and compare, once for each package."""
        if self.state.packaged is None or self.state.in_model is not None:
            return
        from forge_tui.engine.package.proof import run_in_model

        module = next(Path(self.state.packaged.path).glob("forged_*/manifest.toml")).parent
        agreement = run_in_model(self.paths, self.config, module, "host" if self.device == "host" else "cuda", self._progress)
        self.recorder.record(events.InModel(
            at=time.time(), relative_error=agreement.relative_error, kernel_calls=agreement.kernel_calls,
            fallback_calls=agreement.fallback_calls, detail=f"{agreement.outputs} outputs compared",
            kernels=agreement.kernels), sync=True)

    def _speedup(self, reason: StopReason, settings: Settings) -> StopReason:
        """Whether `--require-speedup` is met, by what stands: a region without a win does not where what is inside it was worked on."""
        wanted = settings.require_speedup
        if wanted is None or reason is not StopReason.DONE:
            return reason
        for key in self.standing:
            best = self.state.operator(key).tree.best
            timing = best.verdict.timing if best else None
            if timing is None or timing.speedup is None or timing.speedup < wanted:
                return StopReason.TOO_SLOW
        return reason


def resolve_device(name: str) -> str:
    """`host` or `cuda:N`. Raises MissingEnvironment when a GPU is named and there is none."""
    from forge_tui.cuda.device import find_gpu
    from forge_tui.errors import MissingEnvironment

    if name == "auto":
        return "cuda:0" if find_gpu() else "host"
    if name != "host" and not find_gpu():
        raise MissingEnvironment(f"there is no CUDA device for `{name}`", where="--device",
                                 cure="use --device host (kernels are interpreted and times modelled), or look at "
                                      "`forge-tui doctor`")
    return "cuda:0" if name == "cuda" else name


def open_providers(paths: ProjectPaths, settings: Settings, cards: OperatorFile) -> list[Provider]:
    """The shipped kernels first, unless the settings say otherwise; then the provider asked for."""
    provider = open_provider(settings.provider, paths=paths, device=cards.device, llm=settings.llm, wait=settings.wait,
                             thinking=settings.thinking, roles=settings.roles, analyst_llm=settings.analyst_llm,
                             prompt_tokens=settings.prompt_tokens)
    if not settings.seeds or provider.name == "builtin":
        return [provider]
    return [open_provider("builtin", paths=paths, device=cards.device), provider]


def judge_count(settings: Settings, on_host: bool) -> int:
    """Judges side by side: one where a device is timed, as many as cores and jobs allow where times are modelled."""
    if not on_host:
        return 1
    return max(1, min(settings.jobs, len(os.sched_getaffinity(0)), MAX_HOST_JUDGES))


def open_workers(paths: ProjectPaths, device: str, settings: Settings, workers: int, note: Callable[[str], None]) -> Judge:
    """The real judge: supervised worker processes."""
    from forge_tui.engine.judge.client import JudgeClient
    from forge_tui.engine.judge.options import JudgeOptions

    return JudgeClient(paths, device, workers=workers, options=JudgeOptions(tune_points=settings.tune_points), on_note=note)


def confirmed(state: RunState, cards: OperatorFile) -> list[tuple[Variant, Node]]:
    """Confirmed kernels of operators that won (or were verified, where nothing can win)."""
    return [(variant, node) for variant, node, status in _confirmed(state, cards) if status in ("won", "verified")]


def _confirmed(state: RunState, cards: OperatorFile) -> Iterator[tuple[Variant, Node, str]]:
    for key, operator in state.operators.items():
        variant, node = cards.find(key), operator.tree.best
        if variant is not None and node is not None and node.confirmed and node.verdict is not None and node.verdict.verified:
            yield variant, node, operator.status


def winners(state: RunState, cards: OperatorFile) -> list[Winner]:
    """`confirmed`, as the package takes them."""
    from forge_tui.engine.package.export import Winner

    return [Winner(variant, node.kernel, node.verdict) for variant, node in confirmed(state, cards)]


def contenders(state: RunState, cards: OperatorFile) -> list[Winner]:
    """Confirmed kernels of all operators, wins over the better baseline or not: what `export --select eager` may take."""
    from forge_tui.engine.package.export import Winner

    return [Winner(variant, node.kernel, node.verdict) for variant, node, _ in _confirmed(state, cards)]


def verified(state: RunState, cards: OperatorFile) -> list[Winner]:
    """The best verified kernel of every operator, wins or not: what `export --select all` may take."""
    from forge_tui.engine.package.export import Winner

    pairs = [(cards.find(key), operator.tree.best) for key, operator in state.operators.items()]
    return [Winner(variant, node.kernel, node.verdict) for variant, node in pairs
            if variant is not None and node is not None and node.verdict is not None and node.verdict.verified]


def set_aside(paths: ProjectPaths) -> None:
    """For `--fresh`: journal and exchange are kept under the next free number; nothing is deleted."""
    number = 1
    while any(path.with_name(f"{path.name}.{number}").exists() for path in (paths.journal, paths.root / "exchange")):
        number += 1
    for path in (paths.journal, paths.root / "exchange"):
        if path.exists():
            with writing(path):
                shutil.move(path, path.with_name(f"{path.name}.{number}"))


def _cards_or_none(paths: ProjectPaths) -> OperatorFile | None:
    try:
        return load_operators(paths)
    except ForgeError:  # the run has already said so
        return None
