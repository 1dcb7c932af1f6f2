"""The body of each command: reads arguments, calls the engine, prints data to stdout. Heavy imports only inside."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tui.errors import ForgeError, MissingEnvironment, ProjectError

if TYPE_CHECKING:
    from forge_tui.engine.cards import OperatorFile
    from forge_tui.engine.options import RunOptions
    from forge_tui.store.paths import ProjectPaths

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
    from forge_tui.app import run_app

    return run_app(options.project)


def run(options: Namespace) -> int:
    """`--run`: data on stdout, progress on stderr, the exit code that the run's last event carries."""
    from forge_tui.engine.newproject import project_of

    try:
        paths, made = project_of(options.run)
        if made:
            _tell(f"made the project {paths.root} for {options.run}")
        config = _load(paths)
        if options.detach:
            return _detach(paths, options)
        return _run(paths, config, options)
    except ForgeError as error:
        if options.json:
            _print_json(_failed(options.run, error))
        raise


def _run(paths: ProjectPaths, config: object, options: Namespace) -> int:
    from forge_tui.engine import events
    from forge_tui.engine.forge import run as forge
    from forge_tui.engine.report import render_table
    from forge_tui.progress import Progress, names_from

    progress = Progress(names_from(paths.root))
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
    elif not options.events:
        _print(render_table(document))
        _tell(_next_steps(paths, document))
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
    for name in ("iterations", "budget_usd", "time_limit", "provider", "llm", "policy", "device", "seed", "jobs",
                 "require_speedup"):
        value = getattr(options, name)
        if value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    return [*(f"--ops={pattern}" for pattern in options.ops), *words, *(["--fresh"] if options.fresh else [])]


def _run_options(options: Namespace) -> RunOptions:
    from forge_tui.engine.options import RunOptions

    return RunOptions(
        ops=tuple(options.ops), iterations=options.iterations, budget_usd=options.budget_usd,
        time_limit_s=options.time_limit, provider=options.provider, llm=options.llm, policy=options.policy,
        device=options.device, seed=options.seed, jobs=options.jobs, fresh=options.fresh,
        require_speedup=options.require_speedup)


def _next_steps(paths: ProjectPaths, document: object) -> str:
    where = _relative(paths.root)
    steps = [f"forge-tui show {where} OPERATOR     what was tried, and the kernels"]
    if document.package:
        steps.append(f"PYTHONPATH={_relative(Path(document.package))} python -c 'import {_module(document.package)} as forged; "
                     "...; forged.apply(model)'")
    if document.status != "done":
        steps.append(f"forge-tui --run {where}           go on from here")
    return "\nnext:\n  " + "\n  ".join(steps)


def _failed(project: str, error: ForgeError) -> object:
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

    with ProjectLock(paths):
        cards = capture_project(paths, _load(paths), _tell)
    _print(_cards_table(cards))
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
    from forge_tui.engine.doctor import diagnose, render

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
    raise NotImplementedError


def export(options: Namespace) -> int:
    _project(options.dir)
    raise NotImplementedError


def _project(folder: str) -> ProjectPaths:
    """The folder of a project that loads. Raises ProjectError."""
    from forge_tui.store.paths import ProjectPaths

    paths = ProjectPaths(folder)
    _load(paths)
    return paths


def _load(paths: ProjectPaths) -> object:
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
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(value: object) -> None:
    import msgspec

    _print(msgspec.json.encode(value).decode())


def _tell(text: str) -> None:
    """Progress and hints."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone; the work goes on
        pass


def _relative(path: Path) -> str:
    """As a person would type it from here."""
    try:
        return str(path.relative_to(Path.cwd())) or "."
    except ValueError:
        return str(path)


BODIES: dict[str, Callable[[Namespace], int]] = {
    "app": app, "run": run, "new": new, "capture": capture, "show": show, "eval": eval_, "export": export, "doctor": doctor,
    "stop": stop,
}
