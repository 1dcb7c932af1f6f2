"""One candidate, one set of inputs: run it in poisoned memory, look for stray writes, compare with the reference."""

from __future__ import annotations


import torch
from msgspec.structs import replace

from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import RunReport, Target
from forge_tui.engine.judge.memory import Arena, Patterns, fingerprint
from forge_tui.engine.judge.reference import compare
from forge_tui.engine.judge.tolerance import Comparison
from forge_tui.engine.judge.verdict import Check, Outcome, Worst
from forge_tui.specs import Call, Items, TensorSpec, Value

WORDS: dict[FaultKind, str] = {
    "compile": "does not compile", "out_of_bounds": "accesses memory out of bounds", "misaligned": "makes a misaligned access",
    "uninitialized": "reads memory that nothing has written", "race": "has a data race",
    "divergent_barrier": "has a barrier that not every thread reaches", "read_only": "writes to an input",
    "endless": "does not end", "illegal_instruction": "executes an illegal instruction", "launch": "cannot be launched",
    "out_of_memory": "runs out of memory", "crashed": "crashed the worker",
    "not_interpretable": "cannot be interpreted on this target",
}


BOTH_BYTES = 128 << 20
"""Tensors up to this size may lie in two arenas at once; with larger ones that would break the bound of three times the tensors."""


class Failed(Exception):
    """A check that was not passed: everything the verdict needs of it."""

    def __init__(self, outcome: Outcome, sentence: str, check: Check, *, fault: FaultKind | None = None,
                 line: int | None = None, worst: Worst | None = None, log: str = "") -> None:
        super().__init__(sentence)
        self.outcome: Outcome = outcome
        self.sentence = sentence
        self.check = check
        self.fault = fault
        self.line = line
        self.worst = worst
        self.log = log


def from_fault(fault: CandidateFault, where: str) -> Failed:
    """What a fault of the device code means for the verdict. where: `on the captured sample`, or empty."""
    outcome: Outcome = {"compile": "no_build", "not_interpretable": "skipped"}.get(fault.kind, "fault")
    place = f" {where}" if where else ""
    sentence = f"{WORDS[fault.kind]}{place}: {fault}"
    log = fault.message if fault.kind == "compile" else ""
    return Failed(outcome, sentence, Check(where.removeprefix("on ") or fault.kind, False, detail=str(fault)),
                  fault=fault.kind, line=fault.line, log=log)


class Trial:
    """Runs candidates on one call, in one arena; `elsewhere` runs are at other addresses, so that a path chosen by address is taken
    both ways.

    One of the two is at exactly the alignment that the call promises and no better. On a GPU that is elsewhere: the arena, in
    which settings are timed, lies as a model's tensors do, since an address decides how many lines an access touches.
    """

    def __init__(self, call: Call, target: Target, seed: int) -> None:
        self.call = call
        self.target = target
        self.device = torch.device("cpu") if target.kind == "host" else torch.device("cuda", torch.cuda.current_device())
        self.seed = seed
        self._arena: Arena | None = None
        self._outputs_first = False
        self._marked: tuple[dict[str, torch.Tensor], str] | None = None
        self.large = sum(spec.span for spec in (*(spec for _, spec in call.tensors()), *call.outputs)) > BOTH_BYTES
        generator = torch.Generator(device="cpu")
        generator.manual_seed(seed & ((1 << 63) - 1))
        self.patterns = Patterns(generator)

    @property
    def arena(self) -> Arena:
        """Where all runs but those `elsewhere` take place."""
        if self._arena is None:
            self._arena = Arena(self.call, self.device, as_allocated=self.target.kind == "cuda")
            self._outputs_first = self._arena.outputs_first
        return self._arena

    def run(self, name: str, program: Program, image: Image, values: dict[str, torch.Tensor],
            own: tuple[torch.Tensor, ...], *, elsewhere: bool = False) -> tuple[Check, RunReport]:
        """Run and check. name: of the inputs, e.g. `draw one spike`. own: eager's results. Raises Failed."""
        inputs = self._fingerprint(values)
        try:
            check, report = self._run(name, program, image, values, own, elsewhere)
        except Failed as failed:
            failed.check = replace(failed.check, inputs=inputs)
            raise
        return replace(check, inputs=inputs), report

    def _fingerprint(self, values: dict[str, torch.Tensor]) -> str:
        """Every setting runs on the same sample, the first that is run, which nothing writes to: its bits are looked at once. Draws are
        not held."""
        if self._marked is None:
            self._marked = values, fingerprint(values)
        return self._marked[1] if self._marked[0] is values else fingerprint(values)

    def _run(self, name: str, program: Program, image: Image, values: dict[str, torch.Tensor],
             own: tuple[torch.Tensor, ...], elsewhere: bool) -> tuple[Check, RunReport]:
        if elsewhere and self.large:
            self._arena = None
        arena = self._elsewhere() if elsewhere else self.arena
        workspaces = arena.need(program.workspaces)
        self.patterns.turn()
        tensors = arena.begin(values, self.patterns)
        if elsewhere:                                       # made-up addresses of `host` follow this order: outputs before inputs
            tensors = dict(reversed(tensors.items()))
        try:
            report = self.target.run(program, image, tensors, workspaces)
        except CandidateFault as fault:
            raise from_fault(fault, f"on {name}") from fault
        return self.inspect(name, arena, values, own), report

    def _elsewhere(self) -> Arena:
        """On a GPU outputs and inputs lie the other way round than in the arena that most runs take place in."""
        if self.target.kind == "host":
            return Arena(realigned(self.call), self.device)
        return Arena(self.call, self.device, outputs_first=not self._outputs_first)

    def inspect(self, name: str, arena: Arena, values: dict[str, torch.Tensor], own: tuple[torch.Tensor, ...]) -> Check:
        """What a launch left in an arena: stray writes first, then the results. Raises Failed."""
        problem = arena.problem(values)
        if problem:
            raise Failed("fault", f"on {name}, {problem}", Check(name, False, detail=problem),
                         fault="read_only" if problem.startswith("the input") else "out_of_bounds")
        return self.compare(name, arena, values, own, arena.results())

    def compare(self, name: str, arena: Arena, values: dict[str, torch.Tensor], own: tuple[torch.Tensor, ...],
                results: list[torch.Tensor]) -> Check:
        """Results (an arena's, or a copy of them) against the reference. Raises Failed."""
        comparisons = compare(self.call, values, own, results, target=self.target)
        if not all(item.passed for item in comparisons):
            comparisons = self._second_look(comparisons, values, own, results)
        for item in comparisons:
            if not item.passed:
                raise self._wrong(name, item, arena)
        most = max(comparisons, key=lambda item: item.figure / item.allowed if item.allowed else 0.0, default=None)
        if most is None:
            return Check(name, True)
        return Check(name, True, most.figure, most.allowed, f"eager's own error {most.eager:.3g}" if most.allowed else "equal",
                     eager=max(item.eager for item in comparisons))

    def _second_look(self, first: list[Comparison], values: dict[str, torch.Tensor], own: tuple[torch.Tensor, ...],
                     results: list[torch.Tensor]) -> list[Comparison]:
        """Count the operator's sensitivity too, where the difference is one of size and not of kind."""
        if any(item.reason in ("shape", "dtype", "strides", "nonfinite", "exact") for item in first):
            return first
        return compare(self.call, values, own, results, sensitivity_seed=self.seed & 0xFFFFFFFF, target=self.target)

    def _wrong(self, name: str, item: Comparison, arena: Arena) -> Failed:
        sentence = f"wrong on {name}: {item.sentence}"
        worst = item.worst
        if worst is not None and arena.outputs[worst.output].untouched(worst.index[:arena.outputs[worst.output].spec.ndim]):
            sentence = (f"{sentence}; it still holds the pattern that outputs are filled with before the launch: "
                        "nothing was written there")
        return Failed("wrong", sentence, Check(name, False, item.figure, item.allowed, item.sentence), worst=worst)


def realigned(call: Call) -> Call:
    """The same call with every tensor at 256 bytes: another place, no other promise."""
    def better(value: Value) -> Value:
        if isinstance(value, TensorSpec):
            return TensorSpec(value.dtype, value.shape, value.stride, 256, value.weight)
        if isinstance(value, Items):
            return Items(tuple(better(item) for item in value.items))
        return value

    return Call(call.operator, {name: better(value) for name, value in call.arguments.items()}, call.outputs, call.aliases)
