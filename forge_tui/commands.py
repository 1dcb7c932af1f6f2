"""The body of each command: reads arguments, calls the engine, prints data to stdout. Heavy imports only inside."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from forge_tui.errors import ForgeError, MissingEnvironment, ProjectError

if TYPE_CHECKING:
    from forge_tui.engine.bench.bench import BenchResult
    from forge_tui.engine.cards import OperatorFile
    from forge_tui.engine.document import Document
    from forge_tui.engine.options import RunOptions
    from forge_tui.store.paths import ProjectPaths
    from forge_tui.store.project import ProjectConfig

_data: TextIO | None = None
"""What stdout was, while a user's model runs in this process; None: sys.stdout itself."""
STOP_S = 30.0
"""How long `stop` waits: a run looks for requests between the steps of a judgement."""


def app(options: Namespace) -> int:
    """The app needs a terminal that can place its cursor."""
    if options.project is not None:
        _project(options.project)
    why = None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        why = "stdin or stdout is no terminal"
    elif os.environ.get("TERM", "") in ("", "dumb"):
        why = f"TERM={os.environ.get('TERM', '')} cannot place a cursor"
    if why:
        target = options.project or "TARGET"
        raise ProjectError(f"the app cannot run here: {why}", cure=f"without the app: forge-tui --run {target}")
    gc.disable()  # until the first screen is painted: a fifth of the time to it
    from forge_tui.app import run_app

    signal.signal(signal.SIGINT, signal.default_int_handler)  # Textual's event loop puts its own in place of this one only
    return run_app(options.project)


def run(options: Namespace) -> int:
    """`--run`: data on stdout, progress on stderr, the exit code that the run's last event carries."""
    from forge_tui.engine.newproject import project_of

    try:
        paths, made = project_of(options.run)
        if made:
            _tell(f"made the project {_relative(paths.root)} for {options.run}")
        config = _load(paths)
        if options.detach:
            return _detach(paths, options)
        with _model_apart():
            return _run(paths, config, options)
    except ForgeError as error:
        if options.json:
            _print_json(_failed(options.run, error))
        raise


@contextmanager
def _model_apart() -> Iterator[None]:
    """Keeps stdout for data: what the user's model prints there, from Python or C, goes to stderr; also at exit.

    A crash in native code, which ends the process, leaves the model's Python lines on stderr.
    """
    global _data
    stdout = sys.stdout
    if stdout is sys.__stdout__ and stdout is not None:
        stdout.flush()
        _data = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
        with suppress(OSError):  # stderr is closed: then there is nowhere to send it
            os.dup2(2, 1)
        with suppress(OSError, ValueError):  # likewise
            faulthandler.enable(all_threads=False)
    else:  # a caller inside this process reads sys.stdout
        _data, sys.stdout = stdout, sys.stderr
    try:
        yield
    finally:
        if sys.stdout is not stdout and _data is stdout:
            sys.stdout, _data = stdout, None


def _run(paths: ProjectPaths, config: ProjectConfig, options: Namespace) -> int:
    from forge_tui.engine import events
    from forge_tui.engine.forge import run as forge
    from forge_tui.engine.report import render_table
    from forge_tui.progress import Progress

    progress = Progress(paths)
    code = 0

    def on_event(event: events.AnyEvent) -> None:
        nonlocal code
        if isinstance(event, events.RunEnded):
            code = event.exit_code
        if options.events:
            _print_json(event)
        progress(event)

    document = forge(paths, config, _run_options(options), on_event)
    if options.json:
        _print_json(document)
    elif not options.events and document.operators:
        _print(render_table(document, _columns()))
        _tell(_next_steps(paths, document))
    if document.error:
        _tell(f"forge-tui: {document.error}")
    return code


def _detach(paths: ProjectPaths, options: Namespace) -> int:
    from forge_tui.engine.control import start_engine

    started = start_engine(paths, _as_arguments(options))
    where = _relative(paths.root)
    _print(f"process {started.pid} {'has run' if started.ended else 'runs'} {where}; log: {_relative(started.log)}")
    _tell(f"watch it: forge-tui {where}    results: forge-tui show {where}    end it: forge-tui stop {where}")
    return 0


def _as_arguments(options: Namespace) -> list[str]:
    """The run options of this command line, for the engine's."""
    words = []
    for name in ("iterations", "budget_usd", "time_limit", "provider", "llm", "roles", "policy", "device", "seed", "jobs",
                 "require_speedup"):
        value = getattr(options, name)
        if value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    flags = [f"--{name.replace('_', '-')}" for name in ("fresh", "wait", "no_builtin") if getattr(options, name)]
    return [*(f"--ops={pattern}" for pattern in options.ops), *words, *flags]


def _run_options(options: Namespace) -> RunOptions:
    from forge_tui.engine.options import RunOptions

    return RunOptions(
        ops=tuple(options.ops), iterations=options.iterations, budget_usd=options.budget_usd,
        time_limit_s=options.time_limit, provider=options.provider, llm=options.llm, policy=options.policy,
        roles=options.roles, device=options.device, seed=options.seed, jobs=options.jobs, fresh=options.fresh, wait=options.wait,
        require_speedup=options.require_speedup, seeds=not options.no_builtin)


def _next_steps(paths: ProjectPaths, document: Document) -> str:
    where = _relative(paths.root)
    steps = []
    if document.status in ("limit", "interrupted", "waiting"):
        steps.append((f"forge-tui --run {where}", "go on from here"))
    tried = [item for item in document.operators if item.tried]
    if tried:
        best = next((item for item in tried if item.best_kernel), None)
        steps.append((f"forge-tui show {where} {best.variant[:4]} best", "a kernel, its verdict, every check") if best else
                     (f"forge-tui show {where} {tried[0].variant[:4]}", "what was tried, and why it failed"))
    for manifest in Path(document.package).glob("forged_*/manifest.toml") if document.package else ():
        module = manifest.parent
        steps.append((f"PYTHONPATH={_relative(module.parent)} python", f"then: import {module.name}; {module.name}.apply(model)"))
        steps.append((f"forge-tui export {where} -o OUT --wheel", "the package as a wheel"))
    width = max((len(command) for command, _ in steps), default=0)
    return "\n".join(["", "next:", *(f"  {command:<{width}}   {what}" for command, what in steps)]) if steps else ""


def _failed(project: str, error: ForgeError) -> Document:
    """The document of a run that could not begin or go on."""
    from forge_tui.engine.document import SCHEMA_VERSION, Document

    return Document(SCHEMA_VERSION, "failed", str(project), "", "modelled", 0.0, 0.0, 0, None, str(error), ())


def new(options: Namespace) -> int:
    from forge_tui.engine.newproject import new_project

    paths = new_project(options.dir, options.model, inputs=options.inputs, device=options.device, dtype=options.dtype,
                        random_weights=options.random_weights)
    where = _relative(paths.root)
    _print(f"made {where}/project.toml")
    _tell(f"next: edit it if you like, then forge-tui --run {where}")
    return 0


def capture(options: Namespace) -> int:
    paths = _project(options.dir)
    from forge_tui.engine.capture import capture_project
    from forge_tui.store.lock import ProjectLock

    from forge_tui.engine.show import render_cards

    with _model_apart(), ProjectLock(paths):
        cards = capture_project(paths, _load(paths), _tell)
        _print(render_cards(cards))
    return 0


def show(options: Namespace) -> int:
    paths = _project(options.dir)
    cards = _cards(paths)
    from forge_tui.engine import show as views
    from forge_tui.engine.report import document, render_table
    from forge_tui.engine.state import load_state

    state = load_state(paths)
    if options.operator is None:
        result = document(paths, cards, state)
        text = render_table(result)
    else:
        variant = views.find_variant(cards, options.operator)
        if options.node is None:
            result = views.operator_view(cards, state, variant)
            text = views.render_operator(result, cards.time_kind)
        else:
            operator = state.operators.get(variant.key)
            node = views.find_node(operator.tree if operator else None, options.node, variant.key)
            result = views.candidate_view(paths, node)
            text = views.render_candidate(result)
    if options.json:
        _print_json(result)
    else:
        _print(text)
    return 0


def doctor(options: Namespace) -> int:
    if options.provider:
        from forge_tui.engine.providers.trial import try_provider

        _print(try_provider(options.provider, options.llm))
        return 0
    from forge_tui.engine.doctor import diagnose, measure_devices, render

    if options.measure:
        for problem in measure_devices():
            _tell(problem)
    diagnosis = diagnose(Path.cwd())
    if options.json:
        _print_json(diagnosis)
    else:
        _print(render(diagnosis))
    return 0 if diagnosis.usable else MissingEnvironment.exit_code


def stop(options: Namespace) -> int:
    """Not an error where nothing runs: what was asked for is so."""
    from forge_tui.engine.control import request_stop, wait_released

    paths = _project(options.dir)
    holder = request_stop(paths)
    if holder is None:
        _print(f"no run holds {_relative(paths.root)}")
    else:
        _tell(f"asked {holder} to save and end")
        if wait_released(paths, STOP_S):
            _print(f"{_relative(paths.root)} is free")
        else:
            _print(f"{_relative(paths.root)} is still held by {holder}: it ends when what it is doing is done")
    return 0


def eval_(options: Namespace) -> int:
    """One kernel through the whole judgement. Nothing is added to the project."""
    paths = _project(options.dir)
    cards = _cards(paths)
    text = _read_kernel(options.file)
    from forge_tui.engine.judge.client import JudgeClient
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.show import find_variant, render_verdict

    variant = find_variant(cards, options.operator)
    config = _load(paths)
    limits = JudgeOptions(tune_points=config.search.tune_points, profile=options.profile, sanitize=options.sanitize)
    with JudgeClient(paths, config.device.target, options=limits, on_note=_tell) as judge:
        verdict = judge.judge(variant.key, text, options.file, options.seed)
        if verdict.verified:
            verdict = judge.again(variant.key, text, options.file, verdict)
    if options.json:
        _print_json(verdict)
    else:
        _print("\n".join([f"{verdict.outcome}: {verdict.sentence}", *render_verdict(verdict), f"  seed: {verdict.seed}"]))
    return {"verified": 0, "skipped": MissingEnvironment.exit_code}.get(verdict.outcome, ProjectError.exit_code)


def check(options: Namespace) -> int:
    """One kernel file on the interpreter, without a project."""
    text = _read_kernel(options.file)
    from forge_tui.engine.check.checking import check_file
    from forge_tui.engine.check.page import render

    report = check_file(text, options.file, options.inputs, dict(options.set), _tell if sys.stderr.isatty() else lambda words: None)
    if options.json:
        _print_json(report)
    else:
        stream = _data or sys.stdout
        colour = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
        _print(render(report, text, _columns(), colour))
    return {"clean": 0, "skipped": MissingEnvironment.exit_code}.get(report.status, ProjectError.exit_code)


def _read_kernel(file: str) -> str:
    try:
        return Path(file).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ProjectError(f"not UTF-8 text: {error.reason} at byte {error.start}", where=file,
                           cure="a kernel file is text: name the .cu file") from error
    except OSError as error:
        raise ProjectError(f"cannot be read: {error.strerror}", where=file, cure="name a kernel file that is there") from error


def selftest(options: Namespace) -> int:
    """The kernels that ship for it through the judge; exit code 1 where a verdict is not the one it must be."""
    from forge_tui.engine.judge.selftest import ExamResult, run_selftest

    def tell(result: ExamResult) -> None:
        word = "ok" if result.passed else "left out" if not result.shown else "NOT OK"
        _tell(f"  {word:8} {result.name:34} {result.problem or result.outcome}")

    report = run_selftest(options.device, options.only, tell, _tell)
    if not report.results:
        raise ProjectError(f"no kernel's name contains {options.only!r}", where="--only", cure="leave --only out to see all names")
    if options.json:
        _print_json(report)
    else:
        _print(f"{report.target}: {report.summary()}")
    return 0 if report.passed else 1


def export(options: Namespace) -> int:
    paths = _project(options.dir)
    cards = _cards(paths)
    from forge_tui.engine.forge import verified, winners
    from forge_tui.engine.package.export import export_package
    from forge_tui.engine.package.selection import select
    from forge_tui.engine.state import load_state

    state = load_state(paths)
    known = (winners if options.select == "safe" else verified)(state, cards)
    found, left = select(known, options.select)
    for winner, reason in left:
        _tell(f"{winner.variant.key} ({winner.variant.operator}) is not in the package: {reason}")
    if not found:
        raise ProjectError("no kernel is confirmed yet: there is nothing to export", where=str(paths.root),
                           cure=f"forge-tui --run {_relative(paths.root)}")
    exported = export_package(paths, cards, found, cards.device, Path(options.output) if options.output else None,
                              wheel=options.wheel, archs=options.arch)
    for key, reason in exported.left_out:
        _tell(f"{key} is not in the package: {reason}")
    for note in exported.notes:
        _tell(note)
    _print(f"{exported.kernels} kernels in {_relative(exported.folder)}")
    if exported.wheel:
        _print(f"wheel: {_relative(exported.wheel)}")
    _tell(f"use it: import {exported.module}; {exported.module}.apply(model)")
    return 0


def bench(options: Namespace) -> int:
    """The whole-model proof. What has to go is exported away from the project's own package; a package elsewhere stays."""
    import secrets

    from forge_tui.engine.bench.bench import bench as run_bench
    from forge_tui.engine.bench.render import render
    from forge_tui.engine.forge import resolve_device
    from forge_tui.engine.state import load_state
    from forge_tui.store.lock import ProjectLock

    paths = _project(options.dir)
    config = _load(paths)
    state = load_state(paths)
    own = options.package is None
    folder = Path(options.package or (state.packaged.path if state.packaged else paths.packages)).absolute()
    module = next(iter(folder.glob("forged_*/manifest.toml")), None)
    if module is None:
        raise ProjectError("there is no package to bench", where=str(folder), cure=f"forge-tui export {_relative(paths.root)}")
    target = "host" if resolve_device(config.device.target) == "host" else "cuda"
    with _model_apart(), ProjectLock(paths):
        seed = secrets.randbits(31) if options.seed is None else options.seed
        result, dropped = run_bench(paths, config, module.parent, target, seed=seed, rounds=options.rounds, progress=_tell)
        if own:
            _record_bench(paths, result, dropped)
        if dropped and own:
            _export_without(paths, folder, module, dropped)
        _print_json(result) if options.json else _print(render(result))
    return 0 if result.accepted else ProjectError.exit_code


def _record_bench(paths: ProjectPaths, result: BenchResult, dropped: dict[str, str]) -> None:
    """Into the journal: results and screens show it until another package is written."""
    import time

    from forge_tui.engine import events
    from forge_tui.store.journal import JournalWriter

    times = tuple(events.ModelTime(item.name, item.us, item.speedup, item.speedup_interval) for item in result.contenders)
    with JournalWriter(paths.journal) as journal:
        journal.append(events.encode(events.Benched(
            at=time.time(), accepted=result.accepted, reason=result.reason, device=result.device, times=times,
            error=result.agreement.forged_error, dropped=dropped)), sync=True)


def _export_without(paths: ProjectPaths, folder: Path, manifest: Path, dropped: dict[str, str]) -> None:
    """Write the project's package again, without the kernels that a bench dropped."""
    import tomllib

    from forge_tui.engine.forge import verified
    from forge_tui.engine.package.export import export_package
    from forge_tui.engine.state import load_state

    kept = set(tomllib.loads(manifest.read_text())["entries"]) - set(dropped)
    cards = _cards(paths)
    winners = [winner for winner in verified(load_state(paths), cards) if winner.variant.key in kept]
    if winners:
        exported = export_package(paths, cards, winners, cards.device, folder)
        _tell(f"the package was written again with {exported.kernels} kernels")
    else:
        _tell("every kernel was dropped; the package was left as it was: do not use it")


def _project(folder: str) -> ProjectPaths:
    """The folder of a project that loads. Raises ProjectError."""
    from forge_tui.store.paths import ProjectPaths

    paths = ProjectPaths(folder)
    _load(paths)
    return paths


def _load(paths: ProjectPaths) -> ProjectConfig:
    from forge_tui.store.project import load_project

    return load_project(paths.root)


def _cards(paths: ProjectPaths) -> OperatorFile:
    from forge_tui.engine.cards import load_operators

    cards = load_operators(paths)
    if cards is None:
        raise ProjectError("nothing was captured yet", where=str(paths.root),
                           cure=f"forge-tui capture {_relative(paths.root)}")
    return cards


def _print(text: str) -> None:
    """Data. A reader that has gone (`| head`) does not end the command."""
    stream = _data or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        with suppress(OSError):  # what is still buffered would be a traceback at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise MissingEnvironment(f"cannot write the result: {(error.strerror or str(error)).lower()}", where="standard output",
                                 cure="send it somewhere with room; the project itself is saved") from error


def _print_json(value: object) -> None:
    import msgspec

    _print(msgspec.json.encode(value).decode())


def _tell(text: str) -> None:
    """Progress and hints. A terminal that is gone does not end the work."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _columns() -> int:
    """Of the terminal that stdout is; 100 elsewhere."""
    stream = _data or sys.stdout
    if stream is None or not stream.isatty():
        return 100
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100
    except OSError:  # a terminal that does not tell
        return 100


def _relative(path: Path) -> str:
    """As a person would type it from here."""
    try:
        return str(path.relative_to(Path.cwd())) or "."
    except ValueError:
        return str(path)


BODIES: dict[str, Callable[[Namespace], int]] = {
    "app": app, "run": run, "new": new, "capture": capture, "show": show, "eval": eval_, "check": check, "export": export, "bench": bench, "doctor": doctor,
    "stop": stop, "selftest": selftest,
}
