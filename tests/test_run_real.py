"""A whole run on a real model, the real judge and the host target, killed in its middle and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forge_tui.engine import events
from forge_tui.engine.state import load_state
from forge_tui.store.journal import JournalReader
from forge_tui.store.paths import ProjectPaths

ROOT = Path(__file__).parent.parent

MODEL = '''
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(96)

    def forward(self, x):
        return torch.softmax(self.norm(nn.functional.gelu(x)), dim=-1)

def build_model():
    torch.manual_seed(0)
    return Block()

def sample_inputs():
    torch.manual_seed(1)
    return (torch.randn(48, 96),)
'''


def forge_tui(*arguments: str, **more) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "forge_tui", *arguments], cwd=ROOT, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **more)


def recorded(paths: ProjectPaths) -> list[events.AnyEvent]:
    return [events.decode(record) for record in JournalReader(paths.journal).poll()]


@pytest.mark.slow
def test_a_real_run_killed_in_its_middle_is_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    paths = ProjectPaths(tmp_path / "p")
    assert forge_tui("new", str(paths.root), "--model", str(tmp_path / "model.py"), "--device", "host").wait() == 0

    first = forge_tui("--run", str(paths.root), "--seed", "5", "--jobs", "2", "--events")
    for line in first.stdout:
        if '"type":"judged"' in line:
            break
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    before = recorded(paths)
    judged = {event.node for event in before if isinstance(event, events.Judged)}
    assert judged and not any(isinstance(event, events.RunEnded) for event in before)

    second = forge_tui("--run", str(paths.root), "--jobs", "2", "--json")
    document = json.loads(second.communicate(timeout=400)[0])
    assert second.returncode == 0 and document["status"] == "done" and document["time_kind"] == "modelled"
    after = recorded(paths)
    assert after[:len(before)] == before
    counts = Counter(event.node for event in after if isinstance(event, events.Judged))
    assert set(counts.values()) == {1} and judged < set(counts)
    assert sum(isinstance(event, events.Captured) for event in after) == 1, "captured once"

    state = load_state(paths)
    assert state.run.seed == 5, "the seed of the run that is continued"
    done = {item["operator"].rpartition(".")[2]: item for item in document["operators"]}
    for name in ("gelu", "layer_norm", "softmax"):
        assert done[name]["status"] == "verified" and done[name]["speedup"] is None and done[name]["best_us"] > 0
        assert (paths.kernels / f"{done[name]['best_kernel']}.cu").is_file()
    assert state.in_model.kernel_calls == 3 and state.in_model.relative_error < 1e-5
    assert Path(document["package"]).is_dir()

    third = forge_tui("--run", str(paths.root), "--json")
    again = json.loads(third.communicate(timeout=60)[0])
    assert third.returncode == 0 and again["operators"] == document["operators"]
    last = recorded(paths)[len(after):]
    assert [type(event).__name__ for event in last] == ["RunStarted", "Selected", "RunEnded"], "nothing was left to do"


WRITER = '''
"""Answers the nth prompt with the prompt's own worked example, a little changed each time; the third is wrong."""
import os, re, sys
text = sys.stdin.read()
number = int(os.environ["FORGE_ASK"].rpartition("-")[2])
kernel = re.search(r"```cuda\\n(/\\*forge.*?)```", text, re.DOTALL)[1]
kernel = kernel.replace("[128, 256, 512]", ["[128]", "[64, 256]", "[32]", "[96, 160]", "[512, 1024]", "[192]"][number % 6])
if number == 3:
    kernel = kernel.replace("/ sum;", "/ (sum + 1.f);")
print("Other blocks.\\n```cuda\\n" + kernel + "```")
'''


@pytest.mark.slow
def test_a_run_replayed_from_its_journal_has_the_same_tree_choices_and_verdicts(tmp_path: Path) -> None:
    """The real judge on the host target, a program as the writer, then `--provider replay` in another project."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "writer.py").write_text(WRITER)
    projects = [ProjectPaths(tmp_path / name) for name in ("p", "q")]
    providers = (f"command:{sys.executable} {tmp_path / 'writer.py'}", f"replay:{projects[0].root}")
    trees = []
    for paths, provider in zip(projects, providers, strict=True):
        assert forge_tui("new", str(paths.root), "--model", str(tmp_path / "model.py"), "--device", "host").wait() == 0
        running = forge_tui("--run", str(paths.root), "--ops", "softmax", "--seed", "5", "--jobs", "1", "--iterations", "7",
                            "--provider", provider, "--json")
        document = json.loads(running.communicate(timeout=400)[0])
        assert document["status"] == "done", document
        state = load_state(paths)
        trees.append({node.id: (node.parent.id, node.strategy, node.origin, node.kernel, node.outcome, node.value,
                                node.verdict.settings, [check.name for check in node.verdict.checks])
                      for operator in state.operators.values() for node in operator.tree.nodes.values()})
    assert trees[0] == trees[1] and len(trees[0]) == 7
    outcomes = Counter(node[4] for node in trees[0].values())
    assert outcomes["verified"] >= 4 and outcomes["wrong"] == 1
