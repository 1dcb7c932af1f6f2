"""Timing on a GPU: the candidate beside eager and torch.compile, on rotated copies of the captured inputs."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.launch import PreparedProgram
from forge_tui.cuda.statistics import Stop
from forge_tui.cuda.timing import QUICK, Contender, Stopwatch
from forge_tui.engine.cards import variant_key
from forge_tui.engine.judge.memory import Arena, Patterns, same_bits
from forge_tui.engine.judge.reference import eager, in_place
from forge_tui.engine.judge.trial import Trial
from forge_tui.engine.judge.tuning import Setting
from forge_tui.engine.judge.verdict import Timing
from forge_tui.engine.operators import flatten_outputs, lookup, materialize
from forge_tui.specs import Call

COPIES = 3
"""Sets of tensors taken in turn."""
COPIES_BYTES = 4 << 30
"""Of all sets together; fewer sets where one is larger, never fewer than one."""
KEPT_COMPILED = 8
"""Compiled functions kept in a worker: compiling one takes seconds."""

Interval = tuple[float, float]
Function = Callable[[list[Any], dict[str, Any]], tuple[torch.Tensor, ...]]
_compiled: OrderedDict[str, Function | str] = OrderedDict()
"""By variant: torch.compile's function, or why there is none."""


class DeviceTimer:
    """A CUDA target's timer."""

    noisy = True

    def __init__(self, target: GpuTarget) -> None:
        self.target = target
        self.watch = Stopwatch(target)

    def quick(self, setting: Setting, trial: Trial, effort: int = 1) -> tuple[float, Interval | None]:
        """Cold time of one call, on the trial's own tensors. Raises CandidateFault."""
        arena = trial.arena
        tensors = {name: buffer.tensor for name, buffer in {**arena.inputs, **arena.outputs}.items()}
        workspaces = {name: buffer.tensor for name, buffer in arena.workspaces.items()}
        prepared = self.target.prepare(setting.full, setting.image, tensors, workspaces)
        contender = Contender("candidate", [self._enqueue(prepared)], before=[lambda: poison(arena, trial.patterns)])
        found = self.watch.alone(contender, _stop(effort))
        return found.value, (found.low, found.high)

    def full(self, setting: Setting, trial: Trial, samples: Sequence[Mapping[str, torch.Tensor]]) -> Timing:
        """Paired with the baselines; the results of one timed launch of every batch, and of the last of each set, are checked.

        Raises CandidateFault, Failed.
        """
        sets = [_Set(self.target, setting, trial, dict(samples[index % len(samples)])) for index in range(_copies(trial.call))]
        candidate = Contender("candidate", [self._enqueue(item.prepared) for item in sets],
                              before=[item.poison for item in sets], after=[] if trial.call.aliases else [item.keep for item in sets])
        baselines = [Contender("eager", [item.eager for item in sets])]
        notes: list[str] = []
        function = compiled(trial.call)
        if isinstance(function, str):
            notes.append(f"no torch.compile baseline: {function}")
        else:
            baselines.append(Contender("compile", [item.through(function) for item in sets]))
        with torch.no_grad():
            found = self.watch.against(candidate, baselines)
        for item in sets:
            item.check()
        better = found.better()
        speedup, over_eager = found.speedups[better], found.speedups["eager"]
        return Timing("device", found.candidate_us.value, (found.candidate_us.low, found.candidate_us.high),
                      found.baselines_us[better].value, better,  # type: ignore[arg-type]
                      speedup.value, (speedup.low, speedup.high), (over_eager.low, over_eager.high), notes=(*notes, *found.notes))

    def _enqueue(self, prepared: PreparedProgram) -> Callable[[], None]:
        return lambda: self.target.enqueue(prepared)


class _Set:
    """One set of tensors: a captured sample in memory of its own, and the ways to call the operator on it."""

    def __init__(self, target: GpuTarget, setting: Setting, trial: Trial, values: dict[str, torch.Tensor]) -> None:
        self.target = target
        self.trial = trial
        self.values = values
        self.arena = Arena(trial.call, trial.device, as_allocated=True)
        workspaces = self.arena.need(setting.full.workspaces)
        trial.patterns.turn()
        tensors = self.arena.begin(values, trial.patterns)
        self.prepared = target.prepare(setting.full, setting.image, tensors, workspaces)
        operator = lookup(trial.call.operator)
        self.positional, self.keywords = operator.split(materialize(trial.call, {name: tensors[name] for name in self.arena.inputs}))
        self.function = operator.function
        self.right: list[torch.Tensor] = []
        """Results that were compared with the reference: the same bits need no second comparison."""

    def poison(self) -> None:
        poison(self.arena, self.trial.patterns)

    def keep(self) -> Callable[[], None]:
        """Copies what the launch before it leaves; the function returned compares it. Raises Failed.

        Not for in-place operators, whose timed launches work on what the former one left: `check` does for them.
        """
        copies = [torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device).copy_(result)
                  for result in self.arena.results()]
        return lambda: self._look(copies)

    def _look(self, copies: list[torch.Tensor]) -> None:
        if self.right and all(same_bits(one, other) for one, other in zip(self.right, copies, strict=True)):
            return
        own = in_place(self.trial.call, eager(self.trial.call, self.values))
        self.trial.compare("a timed launch", self.arena, self.values, own, copies)
        self.right = copies

    def eager(self) -> object:
        return self.function(*self.positional, **self.keywords)

    def through(self, function: Function) -> Callable[[], object]:
        return lambda: function(self.positional, self.keywords)

    def check(self) -> None:
        """What the timed launches left is right, and nothing else was written. Raises Failed, CandidateFault."""
        if self.trial.call.aliases:                         # written over and over: once more, from the inputs
            self.arena.begin(self.values, self.trial.patterns)
            self.target.enqueue(self.prepared)
            self.target.wait()
        own = in_place(self.trial.call, eager(self.trial.call, self.values))
        self.trial.inspect("the timed launches", self.arena, self.values, own)


def poison(arena: Arena, patterns: Patterns) -> None:
    """Before every timed launch, outside the time: nothing that an earlier one left can pass for a result."""
    patterns.turn()
    arena.poison_results(patterns)


def compiled(call: Call) -> Function | str:
    """torch.compile's function for a variant, compiled at its first call; or why there is none."""
    key = variant_key(call)
    if key not in _compiled:
        _compiled[key] = _try_compile(call, fresh_function(lookup(call.operator).function))
        if len(_compiled) > KEPT_COMPILED:
            _compiled.popitem(last=False)
    _compiled.move_to_end(key)
    return _compiled[key]


def fresh_function(function: Callable[..., Any]) -> Function:
    """The call of an operator as a function with code of its own.

    torch.compile keeps its results by code object and, after a few of one, quietly runs eager instead: variants must not share it.
    """
    def run(positional: list[Any], keywords: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return flatten_outputs(function(*positional, **keywords))

    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _try_compile(call: Call, run: Function) -> Function | str:
    import torch._inductor.config as inductor

    inductor.compile_threads = 1                            # no pool of processes inside a worker
    found = torch.compile(run, dynamic=False, fullgraph=True)  # whatever cannot be compiled whole is an error, not eager
    tensors = {name: torch.zeros(max(spec.span // spec.itemsize, 1), dtype=getattr(torch, spec.dtype), device="cuda")
               .as_strided(spec.shape, spec.stride) for name, spec in call.tensors()}
    try:
        with torch.no_grad():
            found(*lookup(call.operator).split(materialize(call, tensors)))
        torch.cuda.synchronize()
    except Exception as error:  # whatever the compiler, its backend or the system's C compiler raises: then eager is the baseline
        return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return found


def _copies(call: Call) -> int:
    one = sum(spec.span for _, spec in call.tensors()) + sum(spec.span for spec in call.outputs)
    return max(1, min(COPIES, COPIES_BYTES // max(one, 1)))


def _stop(effort: int) -> Stop:
    """`QUICK` with so many times the samples and the time; the interval narrows with their root."""
    return Stop(least=QUICK.least * effort, most=QUICK.most * effort, spread=QUICK.spread / effort ** 0.5, seconds=QUICK.seconds * effort)
