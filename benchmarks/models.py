"""Whole models through all of Forge: captured, forged with the builtin kernels, packed, and benched.

    python -m benchmarks.models --architectures ../shared/models [NAME ...] [--iterations N] [--time-limit T]

For each model a project is made in `--work`, `forge-tui --run` searches it, `forge-tui export` packs what is faster
than eager (`--select`: all that is right, for models that wait for their CPU), `forge-tui bench` proves it, and the documents go to
`results/models-DEVICE.json`: eager, torch.compile, forged, forged under compile, with intervals, agreement and memory. A miss of
a goal is in the table too, beside the operators that the rest of the time goes to. `--list` names the models. A model of which a
result is there already for this commit's version is made anew. `--only search` stops before the package and `--only bench` goes on
from there: several models can be searched beside each other, and each then proved with the device to itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import FOLDER, earlier, header, store
from benchmarks.zoo import MODELS
from forge_tui.cuda.target import open_target

ROOT = Path(__file__).parent.parent
SOURCE = '''"""{name} at its true size, random weights."""
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from benchmarks.zoo import MODELS
def build_model():
    return MODELS[{name!r}][0](Path({architectures!r}))
def sample_inputs():
    return MODELS[{name!r}][1]()
'''


def forge(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One command line; progress goes straight to stderr."""
    return subprocess.run([sys.executable, "-m", "forge_tui", *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def search(name: str, options: argparse.Namespace) -> None:
    """Keeps the document of one model's `--run` beside its project; a project that is there is gone on with."""
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "model.py"
    source.write_text(SOURCE.format(name=name, root=str(ROOT), architectures=str(options.architectures.resolve())))
    project = folder / "project"
    if not project.exists():
        made = forge("new", project, "--model", source, "--device", options.device)
        if made.returncode:
            raise SystemExit(f"{name}: no project could be made")
    ran = forge("--run", project, "--json", "--iterations", options.iterations, "--time-limit", options.time_limit,
                *(f"--ops={pattern}" for pattern in options.ops))
    run = json.loads(ran.stdout.splitlines()[-1]) if ran.stdout else {}
    (folder / "run.json").write_text(json.dumps(run | {"exit_code": ran.returncode, "command": header("models")["command"]}))


def prove(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model's package measured in it, or what went wrong; its search is the last that was done in `--work`."""
    folder = options.work / name
    if not (folder / "run.json").is_file():
        raise SystemExit(f"{name}: no search ended in {folder}; without --only, or with --only search, one is done")
    run = json.loads((folder / "run.json").read_text())
    project, package = folder / "project", folder / "package"
    if forge("export", project, "--select", options.select, "--output", package).returncode:
        return {"failed": f"--run ended with {run['exit_code']}: {run.get('error') or 'no kernel is faster than eager'}", "run": run}
    benched = forge("bench", project, "--package", package, "--json", "--seed", options.seed, "--rounds", options.rounds,
                    *["--no-autotune"] * (not options.autotune), *["--no-compile"] * options.no_compile)
    if not benched.stdout:
        return {"failed": f"bench ended with {benched.returncode}", "run": run}
    bench = json.loads(benched.stdout.splitlines()[-1])
    goal = MODELS[name][2]
    forged = next((item for item in bench["contenders"] if item["name"] == "forged"), None)
    reached = None if goal is None or forged is None or forged["speedup"] is None else forged["speedup"] >= goal
    return {"bench": bench, "goal": goal, "goal_reached": reached, "search": run["command"], "time_goes_to": _heaviest(run)}


def _heaviest(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The ten operators with most of the eager time, and what became of them."""
    rows = sorted(run.get("operators", []), key=lambda item: -(item["share"] or 0.0))[:10]
    return [{key: row[key] for key in ("operator", "variant", "calls", "share", "baseline_us", "best_us", "floor_us", "status",
                                       "reason")} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="models; default: all but the largest")
    parser.add_argument("--architectures", type=Path, default=Path("../shared/models"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "forge-models")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--time-limit", default="5m")
    parser.add_argument("--ops", action="append", default=[], metavar="PATTERN", help="only these operators, as of `--run`")
    parser.add_argument("--select", default="eager", help="which kernels, as of `export`")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the JSON file")
    parser.add_argument("--autotune", action="store_true", help="beside torch.compile's max-autotune too: many minutes for convolutions")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes a decoder with a cache minutes")
    parser.add_argument("--only", choices=("search", "bench"), help="the search alone, or the proof of what was searched before")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODELS))
        return 0
    target = open_target(options.device)
    found: dict[str, Any] = {}
    for name in options.names or [name for name in MODELS if "qwen" not in name]:
        print(f"== {name}", file=sys.stderr, flush=True)
        if options.only != "bench":
            search(name, options)
        if options.only == "search":
            continue
        found[name] = {key: value for key, value in header("models").items() if key in ("command", "date")} | prove(name, options)
        path = store("models", target.facts, {"models": earlier("models", target.facts).get("models", {}) | found}, options.out)
        print(path)
    if torch.cuda.is_available():
        print(torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
