"""A whole run on a real model, the real judge and the host target, replayed from its journal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forge_tui.engine.state import load_state
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
