"""The body of each command: reads arguments, calls the engine, prints data to stdout. Heavy imports only inside."""

from __future__ import annotations

import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tui.errors import ForgeError, MissingEnvironment, ProjectError
from forge_tui.kernel_commands import bench, check, eval_, export, selftest
from forge_tui.streams import cards_of, columns, config_of, model_apart, open_project, print_json, print_text, relative, tell

if TYPE_CHECKING:
    from forge_tui.engine.document import Document
    from forge_tui.engine.options import RunOptions
    from forge_tui.store.paths import ProjectPaths
    from forge_tui.store.project import ProjectConfig

STOP_S = 30.0
"""How long `stop` waits: a run looks for requests between the steps of a judgement."""


def app(options: Namespace) -> int:
    """The app needs a terminal that can place its cursor."""
    if options.project is not None:
        open_project(options.project)
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
    from forge_tui.store.recent import remember

    try:
        paths, made = project_of(options.run)
        if made:
            tell(f"made the project {relative(paths.root)} for {options.run}")
        config = config_of(paths)
        remember(paths.root)
        if options.detach:
            return _detach(paths, options)
        with model_apart():
            return _run(paths, config, options)
    except ForgeError as error:
        if options.json:
            print_json(_failed(options.run, error))
        raise


def _run(paths: ProjectPaths, config: ProjectConfig, options: Namespace) -> int:
    from forge_tui.engine import events
    from forge_tui.engine.cards import load_operators
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
            print_json(event)
        progress(event)

    document = forge(paths, config, _run_options(options), on_event)
    if options.json:
        print_json(document)
    elif not options.events and document.operators:
        print_text(render_table(document, columns(), load_operators(paths)))
        tell(_next_steps(paths, document))
    if document.error:
        tell(f"forge-tui: {document.error}")
    return code


def _detach(paths: ProjectPaths, options: Namespace) -> int:
    from forge_tui.engine.control import start_engine

    started = start_engine(paths, _as_arguments(options))
    where = relative(paths.root)
    print_text(f"process {started.pid} {'has run' if started.ended else 'runs'} {where}; log: {relative(started.log)}")
    tell(f"watch it: forge-tui {where}    results: forge-tui show {where}    end it: forge-tui stop {where}")
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
    where = relative(paths.root)
    steps = []
    if document.status in ("limit", "interrupted", "waiting"):
        steps.append((f"forge-tui --run {where}", "go on from here"))
    tried = [item for item in document.operators if item.tried]
    if tried:
        best = next((item for item in tried if item.best_kernel), None)
        steps.append((f"forge-tui show {where} {best.variant[:4]} best", "a kernel, its verdict, every check") if best else
                     (f"forge-tui show {where} {tried[0].variant[:4]}", "what was tried, and why it failed"))
    on_gpu = "on a machine with a GPU; " if document.time_kind == "modelled" else ""
    for manifest in Path(document.package).glob("forged_*/manifest.toml") if document.package else ():
        module = manifest.parent
        steps.append((f"PYTHONPATH={relative(module.parent)} python", f"{on_gpu}then: import {module.name}; {module.name}.apply(model)"))
        steps.append((f"forge-tui export {where} -o OUT --wheel", "the package as a wheel"))
    width = max((len(command) for command, _ in steps), default=0)
    return "\n".join(["", "next:", *(f"  {command:<{width}}   {what}" for command, what in steps)]) if steps else ""


def _failed(project: str, error: ForgeError) -> Document:
    """The document of a run that could not begin or go on."""
    from forge_tui.engine.document import SCHEMA_VERSION, Document

    return Document(SCHEMA_VERSION, "failed", str(project), "", "modelled", 0.0, 0.0, 0, None, str(error), ())


def new(options: Namespace) -> int:
    from forge_tui.engine.newproject import new_project
    from forge_tui.store.recent import remember

    paths = new_project(options.dir, options.model, inputs=options.inputs, device=options.device, dtype=options.dtype,
                        random_weights=options.random_weights)
    remember(paths.root)
    where = relative(paths.root)
    print_text(f"made {where}/project.toml")
    tell(f"next: edit it if you like, then forge-tui --run {where}")
    return 0


def capture(options: Namespace) -> int:
    paths = open_project(options.dir)
    from forge_tui.engine.capture import capture_project
    from forge_tui.store.lock import ProjectLock

    from forge_tui.engine.show import render_cards

    with model_apart(), ProjectLock(paths):
        cards = capture_project(paths, config_of(paths), tell)
        print_text(render_cards(cards))
    return 0


def show(options: Namespace) -> int:
    paths = open_project(options.dir)
    cards = cards_of(paths)
    from forge_tui.engine import show as views
    from forge_tui.engine.report import document, render_table
    from forge_tui.engine.state import load_state

    state = load_state(paths)
    if options.operator is None:
        result = document(paths, cards, state)
        text = render_table(result, cards=cards)
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
        print_json(result)
    else:
        print_text(text)
    return 0


def doctor(options: Namespace) -> int:
    if options.provider:
        from forge_tui.engine.providers.trial import try_provider

        print_text(try_provider(options.provider, options.llm))
        return 0
    from forge_tui.engine.doctor import diagnose, measure_devices, render

    if options.measure:
        for problem in measure_devices():
            tell(problem)
    diagnosis = diagnose(Path.cwd())
    if options.json:
        print_json(diagnosis)
    else:
        print_text(render(diagnosis, columns(elsewhere=0)))
    return 0 if diagnosis.usable else MissingEnvironment.exit_code


def stop(options: Namespace) -> int:
    """Not an error where nothing runs: what was asked for is so."""
    from forge_tui.engine.control import request_stop, wait_released

    paths = open_project(options.dir)
    holder = request_stop(paths)
    if holder is None:
        print_text(f"no run holds {relative(paths.root)}")
    else:
        tell(f"asked {holder} to save and end")
        if wait_released(paths, STOP_S):
            print_text(f"{relative(paths.root)} is free")
        else:
            print_text(f"{relative(paths.root)} is still held by {holder}: it ends when what it is doing is done")
    return 0


BODIES: dict[str, Callable[[Namespace], int]] = {
    "app": app, "run": run, "new": new, "capture": capture, "show": show, "doctor": doctor, "stop": stop,
    "eval": eval_, "check": check, "selftest": selftest, "export": export, "bench": bench,
}
