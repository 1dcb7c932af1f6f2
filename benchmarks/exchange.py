"""What a language model makes of one operator from nothing: group_norm of the VAE, through the exchange, no builtin kernel.

    python -m benchmarks.exchange FOLDER [--jobs 12] [--iterations 24] [--device cuda:0]

Makes a project in FOLDER the first time and runs it until it waits for replies; when they are in `FOLDER/project/exchange/replies`
the same command goes on, on any machine that has the folder. Results so far go to `results/exchange-DEVICE.json`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from benchmarks.results import store
from forge_tui.engine.cards import load_operators
from forge_tui.engine.search.tree import Node
from forge_tui.engine.state import RunState, load_state
from forge_tui.store.paths import ProjectPaths

ROOT = Path(__file__).parent.parent
MODEL = '''"""group_norm of the SD3.5 VAE's middle blocks: 512 channels of 128 x 128 in 32 groups, bfloat16."""
import torch


def build_model():
    torch.manual_seed(0)
    norm = torch.nn.GroupNorm(32, 512, eps=1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    torch.nn.init.normal_(norm.bias, 0.0, 0.3)
    return norm.to(torch.bfloat16).eval()


def sample_inputs():
    return (torch.randn(1, 512, 128, 128, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16),)
'''
WAITING = 75


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--summary", action="store_true", help="run nothing: say what the project holds")
    options = parser.parse_args()
    project = options.folder / "project"
    if options.summary:
        return summary(project, options.out, "as far as the journal goes")
    if not project.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "model.py").write_text(MODEL)
        forge("new", project, "--model", options.folder / "model.py", "--device", options.device)
    code = forge("--run", project, "--provider", "exchange", "--no-builtin", "--iterations", options.iterations, "--jobs", options.jobs,
                 "--seed", options.seed, "--device", options.device)
    summary(project, options.out, "waiting for replies" if code == WAITING else f"ended with {code}")
    return 0 if code in (0, 5, WAITING) else code


def summary(project: Path, out: Path | None, status: str) -> int:
    """Print and store what came of the prompts so far; 1 where nothing was captured."""
    paths = ProjectPaths(project)
    cards, state = load_operators(paths), load_state(paths)
    if cards is None:
        return 1
    body = {"status": status, "operators": [outcome(paths, state, variant.key, variant.operator)
                                            for variant in cards.variants if variant.key in state.operators]}
    for item in body["operators"]:
        print(f"{item['operator']}: {item['prompts']} prompts, {item['replies']} replies, {item['outcomes']}; best {item['best']}")
    if cards.time_kind == "device" or out:                  # on `host` the facts are those of the device it models
        print(f"stored in {store('exchange', cards.device, body, out)}")
    return 0


def forge(*arguments: object) -> int:
    """One command line, its output seen."""
    return subprocess.run([sys.executable, "-m", "forge_tui", *map(str, arguments)], cwd=ROOT, stdout=sys.stderr).returncode


def outcome(paths: ProjectPaths, state: RunState, key: str, operator: str) -> dict[str, Any]:
    """What came of one operator's prompts."""
    tree = state.operators[key].tree
    nodes = list(tree.nodes.values())
    best = tree.best
    return {
        "operator": operator, "variant": key, "prompts": len(nodes), "replies": sum(node.replied is not None for node in nodes),
        "outcomes": dict(Counter(kind(node) for node in nodes)), "best": to_builtins(best.verdict.timing) if best and best.verdict else None,
        "tries": [{"number": node.number, "parent": node.parent.number if node.parent and node.parent.id else None,
                   "strategy": node.strategy, "origin": node.origin, "model": node.model, "outcome": kind(node), "kernel": node.kernel,
                   "sentence": node.verdict.sentence if node.verdict else "", "timing": to_builtins(node.verdict.timing) if node.verdict else None,
                   "characters": written(paths, node)}
                  for node in nodes],
    }


def written(paths: ProjectPaths, node: Node) -> dict[str, int] | None:
    """Characters of prompt and reply: the exchange does not say how many tokens they were."""
    if node.replied is None or node.replied.prompt_file is None or node.replied.reply_file is None:
        return None
    return {"prompt": len((paths.replies / node.replied.prompt_file).read_text()), "reply": len((paths.replies / node.replied.reply_file).read_text())}


def kind(node: Node) -> str:
    """The outcome, and for a fault which one."""
    verdict = node.verdict
    return f"{node.outcome}: {verdict.fault}" if verdict is not None and verdict.fault else node.outcome


if __name__ == "__main__":
    raise SystemExit(main())
