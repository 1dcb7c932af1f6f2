"""`forge-tui selftest`: wrong, cheating and honest kernels through the judge itself, on this machine.

Each file of `exams/` is a whole kernel file; lines that begin with `//:` say in TOML what it pretends, how it is
meant to be caught, and the verdict it must get.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, convert
from msgspec.structs import replace

from forge_tui.cuda.device import H200
from forge_tui.cuda.target import Target
from forge_tui.engine.cards import FORMAT, OperatorFile, Variant, save_operators, variant_key
from forge_tui.engine.judge.client import JudgeClient
from forge_tui.engine.judge.insight import has_sanitizer
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import to_device
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.operators import bytes_moved, describe, lookup, named_tensors, operations
from forge_tui.engine.samples import KeptSample, save_sample
from forge_tui.engine.statistics import statistics
from forge_tui.store.paths import ProjectPaths

FOLDER = Path(__file__).with_name("exams")
DEADLINE_S = 180.0
"""Of one exam, compiling its baseline included. An endless kernel is ended long before: by a limit on instructions, or by
the deadline of a launch."""
SANITIZER_DEADLINE_S = 600.0


class Exam(Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel file of `exams/`."""

    call: str
    """A name of `CALLS`."""
    pretends: str
    outcome: str
    """What the verdict must be; several are joined by `or`."""
    caught: str = ""
    """How it is meant to be caught; empty for honest ones."""
    fault: str = ""
    """The kind of fault it must be refused for."""
    says: str = ""
    """What the sentence must contain."""
    cuda: str = ""
    """Where it differs on a GPU: the verdict there, of whatever kind (a result that came out wrong is as good a
    reason as the fault behind it); `sanitizer` where only NVIDIA's sanitizer can show the fault: it is run then."""
    name: str = ""
    text: str = ""

    @property
    def honest(self) -> bool:
        return self.outcome == "verified"

    def sanitizer(self, target: str) -> bool:
        """Whether only NVIDIA's sanitizer can show the fault on this kind of target."""
        return target == "cuda" and self.cuda == "sanitizer"

    def problem(self, verdict: Verdict, target: str) -> str:
        """How the verdict differs from what it must be on this kind of target; empty when it does not."""
        if target == "cuda" and self.cuda and not self.sanitizer(target):
            return "" if verdict.outcome in self.cuda.split(" or ") else f"{verdict.outcome} instead of {self.cuda}"
        if verdict.outcome not in self.outcome.split(" or "):
            return f"{verdict.outcome} instead of {self.outcome}: {verdict.sentence}"
        if self.fault and verdict.outcome in ("fault", "no_build") and verdict.fault != self.fault:
            return f"refused for {verdict.fault} instead of {self.fault}: {verdict.sentence}"
        if self.says and self.says not in verdict.sentence:
            return f"refused, but its sentence does not say {self.says!r}: {verdict.sentence}"
        return ""


class ExamResult(Struct, frozen=True):
    """What became of one exam."""

    name: str
    honest: bool
    passed: bool
    outcome: str
    sentence: str
    problem: str = ""
    shown: bool = True
    """False: this target cannot show the fault, and nothing was judged."""


class SelftestReport(Struct, frozen=True):
    """All of them."""

    target: str
    results: tuple[ExamResult, ...]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results if result.shown)

    def summary(self) -> str:
        """Both counts, in one line."""
        parts = []
        for honest, words in ((False, "faulty kernels refused for the stated reason"), (True, "honest kernels accepted")):
            some = [result for result in self.results if result.honest == honest and result.shown]
            parts.append(f"{sum(result.passed for result in some)} of {len(some)} {words}")
        hidden = sum(not result.shown for result in self.results)
        return ", ".join(parts) + (f", {hidden} left out: compute-sanitizer, which alone can show it, cannot run here" if hidden else "")


def exams() -> list[Exam]:
    """Every exam, faulty ones first."""
    found = [_read(path) for path in sorted(FOLDER.glob("*.cu"))]
    return sorted(found, key=lambda exam: exam.honest)


def _read(path: Path) -> Exam:
    text = path.read_text()
    meta = "\n".join(line[3:] for line in text.splitlines() if line.startswith("//:"))
    return convert({**tomllib.loads(meta), "name": path.stem, "text": text}, Exam)


def run_selftest(device: str = "auto", only: str = "", on_result: Callable[[ExamResult], None] = lambda result: None,
                 on_note: Callable[[str], None] = lambda text: None, *, deadline_s: float = DEADLINE_S,
                 command: Callable[[ProjectPaths], Sequence[str]] | None = None) -> SelftestReport:
    """Judge every exam (or those whose name contains `only`) as any candidate is: in a worker, on captured samples.

    A worker that an exam ends, or that has to be ended, is replaced, and the next exam goes on. deadline_s: of one exam.
    command: starts a worker for a project, in place of the usual one.
    Raises MissingEnvironment where the device cannot be opened, ForgeError where the judge fails its own probe.
    """
    results = []
    chosen = [exam for exam in exams() if only in exam.name]
    with tempfile.TemporaryDirectory(prefix="forge-selftest-") as folder:
        paths = ProjectPaths(folder)
        keys = write_project(paths)
        with JudgeClient(paths, device, deadline_s=deadline_s, on_note=on_note,
                         command=command(paths) if command else None) as client:
            assert client.welcome is not None
            target, sanitizer = client.welcome.target, client.welcome.sanitizer
            for exam in chosen:
                client.deadline_s = SANITIZER_DEADLINE_S if exam.sanitizer(target) else deadline_s
                result = hidden(exam, target, sanitizer) or grade(exam, client.judge(
                    keys[exam.call], exam.text, f"{exam.name}.cu", options=options_for(exam, target)), target)
                results.append(result)
                on_result(result)
    return SelftestReport(target, tuple(results))


def write_project(paths: ProjectPaths) -> dict[str, str]:
    """The calls of the exams as capture would leave them in a project folder; variant keys by the call's name."""
    keys, variants = {}, []
    for name, make in CALLS.items():
        variant, sample = make()
        file = f"{name}.msgpack"
        save_sample(paths, file, KeptSample(sample, {}), lambda qualified: {})
        variants.append(replace(variant, samples=(file,)))
        keys[name] = variant.key
    save_operators(paths, OperatorFile(FORMAT, "the exams of forge-tui selftest", H200, "cpu", 0.0, tuple(variants), (),
                                       str(torch.__version__)))
    return keys


def take(exam: Exam, target: Target, seed: int | None = None) -> ExamResult:
    """One exam in this process. seed: of the fresh draws; None: unpredictable, as for every kernel.

    On a GPU a fault may end this process's context.
    """
    variant, sample = CALLS[exam.call]()
    if target.kind == "cuda":
        sample = {name: to_device(tensor, "cuda") for name, tensor in sample.items()}
    return hidden(exam, target.kind, has_sanitizer(target)) or grade(exam, judge_text(
        exam.text, f"{exam.name}.cu", variant, [sample], target, seed=seed, options=options_for(exam, target.kind)), target.kind)


def options_for(exam: Exam, target: str) -> JudgeOptions:
    """As every kernel is judged; with the sanitizer where only that can show the fault."""
    return JudgeOptions(sanitize=exam.sanitizer(target))


def hidden(exam: Exam, target: str, sanitizer: bool) -> ExamResult | None:
    """The result of an exam that this target cannot show; None for all others. sanitizer: whether NVIDIA's is there."""
    if sanitizer or not exam.sanitizer(target):
        return None
    return ExamResult(exam.name, exam.honest, False, "skipped", "only compute-sanitizer can show it here", shown=False)


def grade(exam: Exam, verdict: Verdict, target: str) -> ExamResult:
    """What the verdict is worth."""
    if exam.sanitizer(target) and verdict.verified:
        why = [check.detail for check in verdict.checks if check.name.startswith("sanitizer") and check.detail.startswith("not run")]
        if why:
            return ExamResult(exam.name, exam.honest, False, "skipped", f"the sanitizer could not look: {why[0]}", shown=False)
    problem = exam.problem(verdict, target)
    return ExamResult(exam.name, exam.honest, not problem, verdict.outcome, verdict.sentence, problem)


# -- the calls

Made = tuple[Variant, dict[str, torch.Tensor]]


def variant_of(operator: str, arguments: dict[str, Any], weights: tuple[str, ...] = (),
               aliases: dict[str, str] | None = None) -> Made:
    """A variant as capture would make it from this call, and its sample. weights: arguments that are parameters."""
    sample = dict(named_tensors(arguments))
    names = {id(sample[name]): name for name in weights}
    call = describe(operator, arguments, lookup(operator).call(arguments), lambda tensor: names.get(id(tensor)), aliases)
    variant = Variant(key=variant_key(call), call=call, calls=1, time_us=1.0, bytes_moved=bytes_moved(call),
                      operations=operations(call), floor_us=1.0, modules=("",), samples=("sample",),
                      statistics={name: statistics([tensor]) for name, tensor in sample.items()})
    return variant, sample


def _normal(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _relu(tensor: torch.Tensor, aliases: dict[str, str] | None = None) -> Made:
    return variant_of("torch.nn.functional.relu", {"input": tensor}, aliases=aliases)


def _layer_norm(fresh: bool = False) -> Made:
    """fresh: with the weights that a new model has, and of another shape, since values make no other variant."""
    cols = 80 if fresh else 96
    weight, bias = (torch.ones(cols), torch.zeros(cols)) if fresh else (_normal(cols, seed=8), _normal(cols, seed=9))
    return variant_of("torch.nn.functional.layer_norm", {"input": _normal(24, cols), "normalized_shape": (cols,), "weight": weight,
                                                         "bias": bias, "eps": 1e-5}, ("weight", "bias"))


def _group_norm() -> Made:
    return variant_of("torch.nn.functional.group_norm", {
        "input": _normal(1, 32, 64, 64), "num_groups": 1, "weight": _normal(32, seed=8), "bias": _normal(32, seed=9), "eps": 1e-5},
        ("weight", "bias"))


CALLS: dict[str, Callable[[], Made]] = {
    "softmax": lambda: variant_of("torch.nn.functional.softmax", {"input": _normal(37, 67), "dim": -1, "dtype": None}),
    "relu": lambda: _relu(_normal(1000)),
    "relu_transposed": lambda: _relu(_normal(47, 33).t()),
    "relu_offset": lambda: _relu(_normal(1001)[1:]),
    "relu_in_place": lambda: _relu(_normal(1000), {"out": "input"}),
    "relu_large": lambda: _relu(_normal(4001, 257)),
    "relu_empty": lambda: _relu(_normal(0, 5)),
    "gt": lambda: variant_of("torch.gt", {"input": _normal(1000), "other": 0.5}),
    "layer_norm": _layer_norm,
    "layer_norm_fresh": lambda: _layer_norm(fresh=True),
    "silu_bfloat16": lambda: variant_of("torch.nn.functional.silu", {"input": _normal(1500).bfloat16()}),
    "group_norm_one_group": _group_norm,
    "sum_rows": lambda: variant_of("torch.sum", {"input": _normal(6, 3000), "dim": (-1,), "keepdim": False, "dtype": None}),
}
"""Small calls with awkward sizes, one that `host` reduces, and one that eager is slow at."""

