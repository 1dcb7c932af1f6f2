"""`kill -9` at any event: the next run continues, and judges nothing twice but what was in flight."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from scripted import ScriptedJudge, kernel, make_project, write_writer

from forge_tui.engine import events
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.engine.state import load_state
from forge_tui.store.journal import JournalReader

DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {root!r}]
from scripted import ScriptedJudge
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import load_project

seen = 0
def on_event(event):
    global seen
    seen += 1
    if seen == {after}:
        os.kill(os.getpid(), signal.SIGKILL)

paths = ProjectPaths({project!r})
run(paths, load_project(paths.root), RunOptions(device="host", seeds=False, package=False, provider={provider!r}), on_event,
    ScriptedJudge().open)
"""


def killed_run(project: Path, provider: str, after: int) -> int:
    """A real process that gets SIGKILL at its nth event; its exit status."""
    tests = Path(__file__).parent
    script = DRIVER.format(tests=str(tests), root=str(tests.parent), after=after, project=str(project), provider=provider)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("jobs", [1, 3])
def test_killed_again_and_again_a_run_ends_as_an_unbroken_one(tmp_path: Path, jobs: int) -> None:
    kernels = [kernel("verified 20"), kernel("wrong"), kernel("verified 10"), "nothing usable\n", kernel("verified 12")]
    provider = write_writer(tmp_path, *kernels)
    paths, config = make_project(tmp_path / "p", iterations=5, jobs=jobs)
    kills = 0
    for after in (1, 4, 5, 6, 7, 8, 9):
        kills += killed_run(paths.root, provider, after) == -9
    judge = ScriptedJudge()
    result = run(paths, config, RunOptions(device="host", seeds=False, package=False, provider=provider),
                 open_judge=judge.open)
    assert kills == 7 and result.status == "done"
    recorded = [events.decode(record) for record in JournalReader(paths.journal).poll()]
    counts = Counter(event.node for event in recorded if isinstance(event, events.Judged))
    replies = Counter(event.node for event in recorded if isinstance(event, events.Replied))
    assert len(replies) == 10 and set(replies.values()) == {1}, "nothing that was answered is asked again"
    assert len(counts) == 8 and set(counts.values()) == {1}, "nothing that was judged is judged again"

    unbroken, config = make_project(tmp_path / "q", iterations=5, jobs=jobs)
    expected = run(unbroken, config, RunOptions(device="host", seeds=False, package=False, provider=provider),
                   open_judge=ScriptedJudge().open)
    assert [(item.variant, item.status, item.best_us, item.tried, item.verified) for item in result.operators] \
        == [(item.variant, item.status, item.best_us, item.tried, item.verified) for item in expected.operators]


def test_one_job_resumed_makes_the_choices_of_the_unbroken_run(tmp_path: Path) -> None:
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("wrong"), kernel("verified 10"), kernel("verified 12"))
    trees = []
    for name, kills in (("p", (9, 12)), ("q", ())):
        paths, config = make_project(tmp_path / name, iterations=8)
        for after in kills:
            assert killed_run(paths.root, provider, after) == -9
        run(paths, config, RunOptions(device="host", seeds=False, package=False, provider=provider),
            open_judge=ScriptedJudge().open)
        trees.append({node.id: (node.parent.id, node.strategy, node.origin, node.outcome)
                      for operator in load_state(paths).operators.values() for node in operator.tree.nodes.values()})
    assert trees[0] == trees[1] and len(trees[0]) == 16
