"""A project, a judge and a writer for tests of the loop: real code, no device, no model.

A scripted kernel is a text that says its own verdict: `// verdict: verified 12.5` or `// verdict: wrong`; and, as where a
device is timed, `// speedup: 1.5 1.4 1.6` (median and interval), `// over eager: 1.2 1.4`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

from forge_tui.cuda.device import H200
from forge_tui.engine.cards import FORMAT, OperatorFile, Variant, save_operators, variant_key
from forge_tui.engine.judge.verdict import Outcome, Timing, Verdict
from forge_tui.engine.options import Settings
from forge_tui.specs import Call, TensorSpec
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import FORMAT as PROJECT_FORMAT
from forge_tui.store.project import ModelConfig, ProjectConfig, ProviderConfig, SearchConfig, create_project


def make_variant(operator: str, rows: int, calls: int = 4, offered: bool = True, reason: str = "") -> Variant:
    spec = TensorSpec("float32", (rows, 64), (64, 1))
    more = {"dim": -1, "_stacklevel": 3, "dtype": None} if operator == "softmax" else {}
    call = Call(f"torch.nn.functional.{operator}", {"input": spec, **more}, (spec,))
    return Variant(key=variant_key(call), call=call, calls=calls, time_us=50.0, bytes_moved=rows * 512, operations=rows * 320,
                   floor_us=4.0, statistics={}, samples=(), modules=("layer",), offered=offered, reason=reason)


SOFTMAX = make_variant("softmax", 128)
NORM = make_variant("layer_norm", 256, calls=2)
VIEW = make_variant("view", 8, offered=False, reason="a view moves no data")


def make_project(root: Path, *variants: Variant, iterations: int = 4, jobs: int = 1,
                 provider: str = "builtin") -> tuple[ProjectPaths, ProjectConfig]:
    """A project that was captured: cards without tensors."""
    config = ProjectConfig(format=PROJECT_FORMAT, model=ModelConfig("model.py"), provider=ProviderConfig(provider),
                           search=SearchConfig(iterations=iterations, jobs=jobs, seed=7))
    paths = create_project(root, config)
    save_operators(paths, OperatorFile(
        format=FORMAT, model="a scripted model", device=H200, time_kind="cpu", forward_us=400.0,
        variants=variants or (SOFTMAX, NORM, VIEW), skipped=(), torch="2.13.0", captured_at=1000.0))
    return paths, config


def kernel(verdict: str, note: str = "") -> str:
    """A scripted kernel file."""
    return f"/*forge\nformat = 1\n*/\n// verdict: {verdict}\n// {note}\n__global__ void k() {{}}\n"


class ScriptedJudge:
    """Judges scripted kernels. Thread-safe; remembers what it judged. `gate`, when given, holds every judgement back."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.judged: list[tuple[str, str]] = []
        """(variant, kernel text)."""
        self.confirmed: list[tuple[str, str]] = []
        self.opened = 0
        self.closed = threading.Event()
        self.gate = gate

    def open(self, paths: ProjectPaths, device: str, settings: Settings, workers: int, note: object) -> ScriptedJudge:
        """As `forge.run` opens judges."""
        self.opened += 1
        return self

    def __enter__(self) -> ScriptedJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed.set()
        if self.gate is not None:
            self.gate.set()

    def judge(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int] | None = None) -> Verdict:
        if self.gate is not None:
            self.gate.wait()
        (self.judged if settings is None else self.confirmed).append((variant_key, text))
        found = re.search(r"// verdict: (\w+) ?([\d.]*)(?: then (\w+))?", text)
        outcome: Outcome = found[1] if settings is None or not found[3] else found[3]
        image = hashlib.sha256(re.sub(r"//.*note.*", "", text).encode()).hexdigest()
        if outcome != "verified":
            return Verdict(outcome, f"scripted to be {outcome}", image=image)
        timing = Timing("modelled", float(found[2]))
        paired = re.search(r"// speedup: ([\d.]+) ([\d.]+) ([\d.]+)", text)
        if paired:
            speedup, low, high = map(float, paired.groups())
            eager = re.search(r"// over eager: ([\d.]+) ([\d.]+)", text)
            timing = Timing("device", timing.us, baseline_us=timing.us * speedup, baseline="compile", speedup=speedup,
                            speedup_interval=(low, high), over_eager=eager and (float(eager[1]), float(eager[2])))
        return Verdict("verified", "every check passed", settings={"BLOCK": 128}, timing=timing, image=image)

    def confirm(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int]) -> Verdict:
        return self.judge(variant_key, text, filename, settings=settings)


WRITER = '''
"""A writer for the command provider: the nth prompt of an operator gets the nth kernel of KERNELS."""
import os, sys
KERNELS = {kernels!r}
prompt = sys.stdin.read()
number = int(os.environ["FORGE_ASK"].rpartition("-")[2])
text = KERNELS[(number - 1) % len(KERNELS)]
print("I write kernel", number, "of a prompt with", len(prompt) > 1000 and "many" or "few", "characters.")
print("```cuda")
print(text, end="")
print("```")
'''


def write_writer(folder: Path, *kernels: str) -> str:
    """A real program that answers prompts; returns the provider's name on the command line."""
    import sys

    script = folder / "writer.py"
    script.write_text(WRITER.format(kernels=list(kernels)))
    return f"command:{sys.executable} {script}"
