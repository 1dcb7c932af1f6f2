"""The commands about kernels and their package: eval, check, selftest, export, bench. Heavy imports only inside."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tui.errors import Interrupted, MissingEnvironment, ProjectError
from forge_tui.streams import cards_of, coloured, columns, config_of, model_apart, open_project, print_json, print_text, relative, tell

if TYPE_CHECKING:
    from forge_tui.engine.bench.bench import BenchResult
    from forge_tui.store.paths import ProjectPaths


def eval_(options: Namespace) -> int:
    """One kernel through the whole judgement. Nothing is added to the project."""
    paths = open_project(options.dir)
    cards = cards_of(paths)
    text = _read_kernel(options.file)
    from forge_tui.engine.judge.client import JudgeClient
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.show import find_variant, render_verdict

    variant = find_variant(cards, options.operator)
    config = config_of(paths)
    limits = JudgeOptions(tune_points=config.search.tune_points, profile=options.profile, sanitize=options.sanitize)
    with JudgeClient(paths, config.device.target, options=limits, on_note=tell) as judge:
        verdict = judge.judge(variant.key, text, options.file, options.seed)
        if verdict.verified:
            verdict = judge.again(variant.key, text, options.file, verdict)
    if options.json:
        print_json(verdict)
    else:
        print_text("\n".join([f"{verdict.outcome}: {verdict.sentence}", *render_verdict(verdict), f"  seed: {verdict.seed}"]))
    return {"verified": 0, "skipped": MissingEnvironment.exit_code}.get(verdict.outcome, ProjectError.exit_code)


def check(options: Namespace) -> int:
    """One kernel file on the interpreter, without a project."""
    text = _read_kernel(options.file)
    from forge_tui.engine.check.checking import check_file
    from forge_tui.engine.check.page import render

    report = check_file(text, options.file, options.inputs, dict(options.set), tell if sys.stderr.isatty() else lambda words: None)
    if options.json:
        print_json(report)
    else:
        print_text(render(report, text, columns(), coloured()))
    return {"clean": 0, "skipped": MissingEnvironment.exit_code}.get(report.status, ProjectError.exit_code)


def _read_kernel(file: str) -> str:
    if Path(file).exists() and not (Path(file).is_file() or Path(file).is_dir()):
        raise ProjectError("not a regular file", where=file, cure="name a kernel file: a pipe or a device may never end")
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

    def say(result: ExamResult) -> None:
        word = "ok" if result.passed else "left out" if not result.shown else "NOT OK"
        tell(f"  {word:8} {result.name:34} {result.problem or result.outcome}")

    report = run_selftest(options.device, options.only, say, tell)
    if not report.results:
        raise ProjectError(f"no kernel's name contains {options.only!r}", where="--only", cure="leave --only out to see all names")
    if options.json:
        print_json(report)
    else:
        print_text(f"{report.target}: {report.summary()}")
    return 0 if report.passed else 1


def export(options: Namespace) -> int:
    paths = open_project(options.dir)
    cards = cards_of(paths)
    from forge_tui.engine.forge import contenders, verified, winners
    from forge_tui.engine.package.export import export_package
    from forge_tui.engine.package.selection import select
    from forge_tui.engine.state import load_state

    state = load_state(paths)
    known = {"safe": winners, "eager": contenders}.get(options.select, verified)(state, cards)
    found, left = select(known, options.select)
    for winner, reason in left:
        tell(f"{winner.variant.key} ({winner.variant.operator}) is not in the package: {reason}")
    if not found:
        raise ProjectError("no kernel is confirmed yet: there is nothing to export", where=str(paths.root),
                           cure=f"forge-tui --run {relative(paths.root)}")
    exported = export_package(paths, cards, found, cards.device, Path(options.output) if options.output else None,
                              wheel=options.wheel, archs=options.arch)
    for key, reason in exported.left_out:
        tell(f"{key} is not in the package: {reason}")
    for note in exported.notes:
        tell(note)
    print_text(f"{exported.kernels} kernels in {relative(exported.folder)}")
    if exported.wheel:
        print_text(f"wheel: {relative(exported.wheel)}")
    where = "on a machine with a GPU" if cards.time_kind == "cpu" else "use it"
    tell(f"{where}: import {exported.module}; {exported.module}.apply(model)")
    return 0


def bench(options: Namespace) -> int:
    """The whole-model proof. What has to go is exported away from the project's own package; a package elsewhere stays."""
    import secrets

    from forge_tui.engine.bench.bench import bench as run_bench
    from forge_tui.engine.bench.render import render
    from forge_tui.engine.forge import resolve_device
    from forge_tui.engine.state import load_state
    from forge_tui.store.lock import ProjectLock

    paths = open_project(options.dir)
    config = config_of(paths)
    state = load_state(paths)
    own = options.package is None
    folder = Path(options.package or (state.packaged.path if state.packaged else paths.packages)).absolute()
    found = [item for item in (folder / "manifest.toml", *sorted(folder.glob("forged_*/manifest.toml"))) if item.is_file()]
    if len(found) > 1:
        raise ProjectError(f"there are {len(found)} packages", where=str(folder), cure=f"name one: --package {relative(found[0].parent)}")
    if not found:
        cure = f"forge-tui {'export' if state.packaged else '--run'} {relative(paths.root)}"
        raise ProjectError("there is no package to bench", where=str(folder), cure=cure)
    module = found[0]
    target = "host" if resolve_device(config.device.target) == "host" else "cuda"
    with model_apart(), ProjectLock(paths):
        seed = secrets.randbits(31) if options.seed is None else options.seed
        result, dropped = run_bench(paths, config, module.parent, target, seed=seed, rounds=options.rounds,
                                    compiled=not options.no_compile, autotune=not options.no_autotune, progress=tell)
        if own:
            _record_bench(paths, result, dropped)
        if dropped and own:
            _export_without(paths, folder, module, dropped)
        print_json(result) if options.json else print_text(render(result))
    if Interrupted.received is not None:
        raise Interrupted(Interrupted.received)
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
    cards = cards_of(paths)
    winners = [winner for winner in verified(load_state(paths), cards) if winner.variant.key in kept]
    if winners:
        exported = export_package(paths, cards, winners, cards.device, folder)
        tell(f"the package was written again with {exported.kernels} kernels")
    else:
        tell("every kernel was dropped; the package was left as it was: do not use it")
