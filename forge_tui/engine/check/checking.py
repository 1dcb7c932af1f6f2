"""One kernel file on one call: built, run in several orders of warps with every access checked, compared, counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from msgspec import Struct

from forge_tui.cuda.device import H200
from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.host.model import modelled_us
from forge_tui.cuda.host.orders import FORWARD, IN_STEP, REVERSE
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Image, KernelInfo, Program
from forge_tui.cuda.remarks import Remark, remarks
from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.check.forms import form_of
from forge_tui.engine.check.inputs import Chosen, choose, described
from forge_tui.engine.judge.reference import NoReference, eager, in_place
from forge_tui.engine.judge.trial import Failed, Trial
from forge_tui.engine.kernelfile import KernelFile, parse
from forge_tui.errors import KernelFileError, ProjectError

SCHEMA_VERSION = 1
ORDERS = (IN_STEP, FORWARD, REVERSE, "random 1", "random 2")
MOST_WORK = 400_000_000
"""Thread instructions times warps of a block, up to which the other orders are run: about a minute each."""

Status = Literal["clean", "fault", "wrong", "refused", "no_build", "skipped"]

CURES: dict[FaultKind, str] = {
    "out_of_bounds": "guard the access by the sizes, or give the buffer what the index reaches",
    "misaligned": "use vectors only where address and row length are multiples of their size",
    "uninitialized": "write it before it is read, or give the workspace a fill",
    "race": "put a barrier between the two, use an atomic, or split the work into two launches",
    "divergent_barrier": "let every thread of the block reach the same barrier, and name in a mask only lanes that are there",
    "read_only": "inputs are const: write to an output or a [[workspace]]",
    "endless": "check the loop's end; only a cooperative launch may wait for other blocks",
    "illegal_instruction": "the kernel's own assertion or trap: check what it tests",
    "launch": "correct the plan",
    "compile": "correct the source where the compiler points",
    "not_interpretable": "check it on a GPU: forge-tui eval, or compute-sanitizer",
}


class FoundFault(Struct, frozen=True):
    """One fault, where it happened first."""

    kind: FaultKind
    message: str
    cure: str
    kernel: str | None = None
    line: int | None = None
    """In the kernel file."""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    order: str = IN_STEP
    """Order of warps in which it showed."""


class Run(Struct, frozen=True):
    """One order of warps."""

    order: str
    outcome: Literal["right", "not compared", "fault", "wrong", "left out"]
    detail: str = ""


class CheckReport(Struct, frozen=True):
    """All that `forge-tui check` found; the document of `--json`."""

    file: str
    operator: str
    status: Status
    sentence: str
    inputs: dict[str, str] = {}
    """Arguments as a spec has them, by name."""
    inputs_by: str = ""
    settings: dict[str, int] = {}
    settings_count: int = 0
    device: str = H200.name
    """Whose time is modelled."""
    faults: tuple[FoundFault, ...] = ()
    """Each kind and line once."""
    runs: tuple[Run, ...] = ()
    remarks: tuple[Remark, ...] = ()
    counts: tuple[LaunchCounts, ...] = ()
    """Of each launch, in step."""
    kernels: tuple[KernelInfo, ...] = ()
    modelled_us: float | None = None
    log: str = ""
    """The compiler's own words."""
    schema_version: int = SCHEMA_VERSION
    checked_s: float = 0.0


def check_file(text: str, filename: str, spec: str = "", wanted: dict[str, int] | None = None,
               progress: Callable[[str], None] = lambda text: None, orders: tuple[str, ...] = ORDERS) -> CheckReport:
    """Check a kernel file. spec: of `--inputs`. wanted: some of its tunables; the first setting that has them is taken. orders: of
    warps, `in step` first.

    Raises ProjectError where spec or setting is wrong, MissingEnvironment where there is no compiler. A file that is refused is a report.
    """
    begun = time.monotonic()
    target = HostTarget()
    try:
        file = parse(text, filename)
        chosen = choose(file, spec, target.facts)
        points = file.points(chosen.call, target.facts)
        settings = _setting(file, points, wanted or {})
        program = file.bind(chosen.call, target.facts, settings)
    except KernelFileError as error:
        return CheckReport(filename, "", "refused", str(error))
    about = CheckReport(filename, file.plan.operator, "clean", "", dict(described(chosen.call)), chosen.by, settings, len(points))
    checking = _Checking(target, program, chosen, progress)
    report = checking.run(about, orders)
    return _replace(report, checked_s=round(time.monotonic() - begun, 3))


def _setting(file: KernelFile, points: list[dict[str, int]], wanted: dict[str, int]) -> dict[str, int]:
    for name in wanted:
        if points and name not in points[0]:
            raise ProjectError(f"{name} is no tunable of this file", where="--set", cure=f"it has: {', '.join(points[0]) or 'none'}")
    found = next((point for point in points if all(point[name] == value for name, value in wanted.items())), None)
    if found is None:
        some = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise ProjectError(f"no legal setting has {some}" if wanted else "no setting is legal for these inputs",
                           where="--set" if wanted else "--inputs", cure=form_of(file) if not wanted else "leave out --set: the first legal one is taken")
    return found


class _Checking:
    def __init__(self, target: HostTarget, program: Program, chosen: Chosen, progress: Callable[[str], None]) -> None:
        self.target, self.program, self.chosen, self.progress = target, program, chosen, progress
        self.faults: dict[tuple[str, int | None], FoundFault] = {}
        self.runs: list[Run] = []
        self.counts: tuple[LaunchCounts, ...] = ()
        self.results: dict[str, list[torch.Tensor]] = {}
        self.own = self.eager()

    def eager(self) -> tuple[torch.Tensor, ...] | None:
        """Torch's own results; None where it has none."""
        if self.chosen.arguments is None:
            return None
        try:
            return in_place(self.chosen.call, eager(self.chosen.call, self.chosen.tensors))
        except NoReference:
            return None

    def run(self, about: CheckReport, orders: tuple[str, ...]) -> CheckReport:
        try:
            image = self.target.build(self.program)
        except CandidateFault as fault:
            found = self.found(fault, "")
            return _replace(about, status="no_build", sentence="does not compile", faults=(found,), log=fault.message)
        for order in orders:
            self.progress(f"running, {order}")
            self.runs.append(self.one(order, image))
            if self.runs[0].outcome == "fault":
                break      # nothing to compare other orders with
        kernels = self.target.resources(self.program)
        us = round(modelled_us(self.counts, self.target.facts, kernels), 3) if self.counts else None
        status, sentence = self.conclusion()
        return _replace(about, status=status, sentence=sentence, faults=tuple(self.faults.values()), runs=tuple(self.runs),
                        remarks=tuple(remarks(self.counts, kernels)), counts=self.counts, kernels=kernels, modelled_us=us, log=image.log)

    def one(self, order: str, image: Image) -> Run:
        if order != IN_STEP:
            work = sum(c.thread_instructions * -(-c.threads // 32) for c in self.counts)
            if work > MOST_WORK:
                return Run(order, "left out", "so large a call takes too long: check smaller --inputs")
        self.target.schedule = order
        trial = Trial(self.chosen.call, self.target, 1)
        try:
            return self.compared(order, trial, image)
        except Failed as failed:
            if isinstance(failed.__cause__, CandidateFault):
                fault = failed.__cause__
                self.faults.setdefault((fault.kind, fault.line), self.found(fault, order))
                return Run(order, "fault", str(fault))
            if failed.outcome == "fault":
                self.faults.setdefault((failed.fault or "out_of_bounds", None), FoundFault(
                    failed.fault or "out_of_bounds", failed.sentence, CURES[failed.fault or "out_of_bounds"], order=order))
                return Run(order, "fault", failed.sentence)
            return Run(order, "wrong", failed.sentence)

    def compared(self, order: str, trial: Trial, image: Image) -> Run:
        """Run in one order, and compare with torch where it knows the operator. Raises Failed."""
        arena = trial.arena
        workspaces = arena.need(self.program.workspaces)
        trial.patterns.turn()
        tensors = arena.begin(self.chosen.tensors, trial.patterns)
        try:
            report = self.target.run(self.program, image, tensors, workspaces)
        except CandidateFault as fault:
            raise _as_failed(fault) from fault
        self.results[order] = [tensor.clone() for tensor in arena.results()]
        if order == IN_STEP:
            self.counts = report.counts
        if self.own is None:
            return Run(order, "not compared", "torch has no results to compare with")
        made = trial.inspect("these inputs", arena, self.chosen.tensors, self.own)
        return Run(order, "right", f"error {made.figure:.3g}, allowed {made.allowed:.3g}" if made.allowed else "equal to torch's")

    def found(self, fault: CandidateFault, order: str) -> FoundFault:
        launch = next((item for item in self.program.launches if item.kernel == fault.kernel), None)
        return FoundFault(fault.kind, fault.message, CURES.get(fault.kind, ""), fault.kernel, fault.line,
                          _spread(fault.block, launch.grid if launch else None), _spread(fault.thread, launch.block if launch else None), order)

    def conclusion(self) -> tuple[Status, str]:
        kinds = [fault.kind for fault in self.faults.values()]
        if kinds == ["not_interpretable"]:
            return "skipped", next(iter(self.faults.values())).message
        if kinds:
            return "fault", f"{len(kinds)} fault{'s' if len(kinds) > 1 else ''}"
        wrong = next((run for run in self.runs if run.outcome == "wrong"), None)
        if wrong is not None:
            only = [run.order for run in self.runs if run.outcome == "wrong"]
            some = len(only) < sum(run.outcome in ("right", "wrong") for run in self.runs)
            return "wrong", wrong.detail + (f" (in the order{'s' if len(only) > 1 else ''} {', '.join(only)}: results depend on whose turn it is)" if some else "")
        ran = [run for run in self.runs if run.outcome != "left out"]
        how = "results right" if ran[0].outcome == "right" else "results not compared"
        different = self.different()
        if different and ran[0].outcome != "right":
            return "wrong", f"results depend on the order of warps: {different}"
        return "clean", f"no fault in {len(ran)} order{'s' if len(ran) > 1 else ''} of warps, {how}" + (
            f"; they differ in their last bits between orders ({different}), as sums by floating-point atomics do" if different else "")

    def different(self) -> str:
        """Orders whose results are not those of the first, bit by bit; empty when there are none."""
        first = self.results.get(IN_STEP)
        if first is None:
            return ""
        return ", ".join(order for order, results in self.results.items()
                         if not all(torch.equal(_bits(a), _bits(b)) for a, b in zip(first, results, strict=True)))


def _as_failed(fault: CandidateFault) -> Failed:
    from forge_tui.engine.judge.trial import from_fault

    return from_fault(fault, "")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def _spread(linear: int | None, sizes: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
    """A linear index as x, y, z."""
    if linear is None or sizes is None:
        return None
    return linear % sizes[0], linear // sizes[0] % sizes[1], linear // (sizes[0] * sizes[1])


def _replace(report: CheckReport, **changes: object) -> CheckReport:
    from msgspec.structs import replace

    return replace(report, **changes)
