"""The judge: one kernel file on one variant, from the refusal of the file to the timing of its best setting.

In this order, stopping at the first failure: the file takes the call; its first setting builds; that setting is right
on a captured sample; every other setting is built, checked on the sample and timed; the fastest is checked on all
samples and all fresh draws, in poisoned and guarded memory, and run again; what passes is timed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from msgspec.structs import replace

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.target import GPU_DEADLINE_S, LaunchCounts, Target
from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.behaviour import behaviour_of
from forge_tui.engine.judge.draws import Drawer
from forge_tui.engine.judge.insight import profiled, sanitized
from forge_tui.engine.judge.halving import OVER, Budget, halve, ranking
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.proxy import Proxy, extrapolate, proxies, representative, whole
from forge_tui.engine.judge.reference import NoReference, eager, finite, in_place
from forge_tui.engine.judge.timing import Timer, open_timer
from forge_tui.engine.judge.trial import Failed, Trial, from_fault
from forge_tui.engine.judge.tuning import Setting, settings_of
from forge_tui.engine.judge.verdict import Check, Point, Timing, Verdict
from forge_tui.engine.kernelfile import KernelFile, parse
from forge_tui.errors import KernelFileError

HOST_ELEMENTS = 1 << 22
"""A call whose smallest representative proxy is larger is not interpreted: it would take minutes a launch."""

FULL_INSTRUCTIONS = 1 << 28
"""Most thread instructions of a launch at full size beside a reduced call's: one to two seconds of interpretation."""

ABOVE_CEILING = 1.1
"""A bandwidth this many times the measured copy bandwidth is a fault, not a record."""

Progress = Callable[[str, int, int], None]
"""What is being done, how many of it are done, how many there are."""


def judge_text(text: str, filename: str, variant: Variant, samples: Sequence[Mapping[str, torch.Tensor]], target: Target,
               *, seed: int | None = None, options: JudgeOptions = JudgeOptions(),
               settings: dict[str, int] | None = None, progress: Progress | None = None, timer: Timer | None = None) -> Verdict:
    """`judge` on a kernel file's text; a file that cannot be read is refused, with its line."""
    try:
        file = parse(text, filename)
    except KernelFileError as error:
        return refused(error, seed)
    return judge(file, variant, samples, target, seed=seed, options=options, settings=settings, progress=progress,
                 timer=timer)


def refused(error: KernelFileError, seed: int | None = None) -> Verdict:
    """The verdict on a kernel file that is refused before anything runs."""
    line = (error.where or "").rpartition(":")[2]
    return Verdict("refused", str(error).replace("\n  fix: ", "; fix: "), seed=seed or 0,
                   line=int(line) if line.isdigit() else None, checks=(Check("kernel file", False, detail=error.message),))


def judge(file: KernelFile, variant: Variant, samples: Sequence[Mapping[str, torch.Tensor]], target: Target, *,
          seed: int | None = None, options: JudgeOptions = JudgeOptions(), settings: dict[str, int] | None = None,
          progress: Progress | None = None, timer: Timer | None = None) -> Verdict:
    """Judge one kernel file on one variant.

    samples: captured inputs of the variant by kernel-file name, at least one, on the target's kind of device. seed:
    of every fresh draw; None: an unpredictable one, recorded in the verdict. settings: of `[tune]`, the only ones to
    try; None: as many as the options admit. Never raises for the candidate's faults; what the machine lacks
    (MissingEnvironment) passes through.
    """
    judgement = _Judgement(file, variant, samples, target, seed, options, progress or (lambda what, done, of: None),
                           timer or open_timer(target))
    judgement.only = settings
    return judgement.run()


class _Judgement:
    """State of one judgement: the checks made so far and the points tried."""

    def __init__(self, file: KernelFile, variant: Variant, samples: Sequence[Mapping[str, torch.Tensor]], target: Target,
                 seed: int | None, options: JudgeOptions, progress: Progress, timer: Timer) -> None:
        self.file = file
        self.variant = variant
        self.call = variant.call
        self.samples = samples
        self.target = target
        self.given_seed = seed
        self.seed = 0 if seed is None else seed
        self.options = options
        self.progress = progress
        self.timer = timer
        target.build_deadline_s = options.build_deadline_s
        target.deadline_s = options.launch_deadline_s if target.kind == "host" else min(options.launch_deadline_s, GPU_DEADLINE_S)
        self.only: dict[str, int] | None = None
        self.checks: list[Check] = []
        self.points: list[Point] = []
        self.proxy: Proxy = whole(self.call)
        self.current: Setting | None = None
        self.whole = False
        """Whether a reduced call's candidate was run at full size too."""
        self.own_sample: tuple[torch.Tensor, ...] | None = None
        """Eager's results on the first captured sample."""

    def run(self) -> Verdict:
        begin = time.monotonic()
        try:
            verdict = self._judge()
        except KernelFileError as error:
            verdict = refused(error, self.seed)
        except CandidateFault as fault:
            verdict = self._failed(from_fault(fault, ""))
        except Failed as failed:
            verdict = self._failed(failed)
        except NoReference as reason:
            verdict = self._failed(Failed("skipped", f"torch itself refuses the captured call: {reason}",
                                          Check("reference", False, detail=str(reason))))
        return _with_time(verdict, time.monotonic() - begin)

    def _judge(self) -> Verdict:
        self._accept()
        first = self._build_first()
        # Chosen only now: nothing of the candidate can depend on it.
        if self.given_seed is None:
            self.seed = secrets.randbits(48)
        self._choose_proxy(first)
        self.trial = Trial(self.proxy.call, self.target, self.seed)
        self.cut_samples = [self.proxy.cut(sample) for sample in self.samples]
        self._quick(first)
        self.checks.append(Check("quick check", True))
        ranked = self._tune(first)
        best, counts, timing = self._finals(ranked)
        return self._with_tools(best, self._verified(best, counts, timing))

    def _with_tools(self, best: Setting, verdict: Verdict) -> Verdict:
        """What NVIDIA's tools add, where that was asked for. Raises Failed."""
        self.current = best
        if self.options.sanitize:
            self.progress("sanitizing", 0, 1)
            self.checks += sanitized(best, self.trial, self.cut_samples[0], self.target)
            verdict = replace(verdict, checks=tuple(self.checks))
        if self.options.profile:
            self.progress("profiling", 0, 1)
            profile = profiled(best, self.trial, self.cut_samples[0], self.target, self.variant, verdict.timing)
            verdict = replace(verdict, profile=profile)
        return verdict

    # -- before anything runs

    def _accept(self) -> None:
        self.progress("reading the kernel file", 0, 1)
        reason = self.file.refusal(self.call, self.target.facts)
        if reason:
            raise Failed("refused", str(reason), Check("kernel file", False, detail=str(reason)))
        self.checks.append(Check("kernel file", True))

    def _build_first(self) -> Setting:
        self.settings = settings_of(self.file, self.call, self.target.facts, self.options.tune_points, self.only)
        if not self.settings:
            raise Failed("refused", "no setting of [tune] passes [require] on this call and device",
                         Check("kernel file", False, detail="no setting left"))
        first = self.settings[0]
        self.current = first
        self.progress("building", 0, 1)
        first.build(self.target)
        self.checks.append(Check("build", True))
        return first

    def _choose_proxy(self, first: Setting) -> None:
        """On the host target, the smallest proxy on which the plan does what it does at full size."""
        if self.target.kind == "host":
            for proxy in proxies(self.call, self.samples[0], self.options.proxy_elements):
                if self._fits(first, proxy):
                    self.proxy = proxy
                    break
            if sum(spec.numel for spec in self.proxy.call.outputs) > HOST_ELEMENTS:
                raise Failed("skipped", "too large to interpret, and no smaller call of the same kind takes the same plan",
                             Check("proxy", False, detail="none is representative"))
        first.reduce(self.file, self.proxy, self.target)

    def _fits(self, setting: Setting, proxy: Proxy) -> bool:
        if not proxy.cuts:
            return True
        try:
            if self.file.refusal(proxy.call, self.target.facts):
                return False
            return representative(setting.full, self.file.bind(proxy.call, self.target.facts, setting.values))
        except KernelFileError:
            return False  # this setting has no meaning at the proxy's size: a larger one may do

    # -- running

    def _own(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return in_place(self.proxy.call, eager(self.proxy.call, values))

    def _quick(self, setting: Setting) -> None:
        """Right on the first captured sample, and timed for the comparison of settings."""
        values = self.cut_samples[0]
        if self.own_sample is None:
            self.own_sample = self._own(values)
        self.current = setting
        self.progress("checking the captured sample", 0, 1)
        _, report = self.trial.run("the captured sample", setting.program, setting.built, values, self.own_sample)
        setting.counts = extrapolate(report.counts, setting.full, setting.program, self.proxy) if report.counts else ()
        setting.us, setting.interval = self.timer.quick(setting, self.trial)

    def _tune(self, first: Setting) -> list[Setting]:
        """Build, check and time every other setting; fastest first. A setting that fails is a point that says why."""
        passed = [first]
        rest = self.settings[1:]
        budget = Budget(self.options.tune_seconds if self.timer.noisy else 0.0)
        self.target.expect([setting.full for setting in rest])
        for number, setting in enumerate(rest):
            self.progress("tuning", number, len(rest))
            if budget.over:
                setting.reason = OVER
                continue
            try:
                self.current = setting
                budget.pause()
                setting.build(self.target)
                budget.resume()
                twin = setting.twin(passed)
                if twin is not None:
                    setting.us, setting.interval, setting.reason = twin.us, twin.interval, "the same image as another setting"
                    continue
                setting.reduce(self.file, self.proxy, self.target)
                self._quick(setting)
                passed.append(setting)
            except (CandidateFault, KernelFileError, Failed) as problem:
                if getattr(self.target, "lost", None) is not None:
                    raise  # the device's context is gone with it: nothing more can run in this process
                setting.reason = str(from_fault(problem, "")) if isinstance(problem, CandidateFault) else str(problem)
                budget.resume()
        efforts: dict[int, int] = {}
        if self.timer.noisy:
            halve(passed, lambda setting, effort: self._again(setting, effort, efforts), budget)
        self.points = [setting.point() for setting in self.settings]
        return ranking(passed, efforts)

    def _again(self, setting: Setting, effort: int, efforts: dict[int, int]) -> None:
        """Time a setting that was right once more, on the inputs that lie there. Raises CandidateFault."""
        assert setting.program is not None
        self.current = setting
        self.trial.arena.need(setting.program.workspaces)
        setting.us, setting.interval = self.timer.quick(setting, self.trial, effort)
        efforts[id(setting)] = effort

    def _finals(self, ranked: list[Setting]) -> tuple[Setting, tuple[LaunchCounts, ...], Timing | None]:
        """Full checks of the fastest setting, of the next where it fails; the failure that is told is the first."""
        earlier = list(self.checks)
        failure: Failed | None = None
        failed_checks: list[Check] = []
        failed_setting: Setting | None = None
        for setting in ranked[: self.options.finalists]:
            self.checks = list(earlier)
            self.current = setting
            try:
                self._full(setting)
                self._at_full_size(setting)
                setting.know(self.target)
                timing = self._time(setting) if self.options.time else None
                self.points = [item.point() for item in self.settings]
                return setting, setting.counts, timing
            except (CandidateFault, Failed) as problem:
                if getattr(self.target, "lost", None) is not None:
                    raise
                failed = from_fault(problem, "") if isinstance(problem, CandidateFault) else problem
                setting.reason = failed.sentence
                if failure is None:
                    failure, failed_checks, failed_setting = failed, self.checks, setting
        assert failure is not None
        self.checks, self.current = failed_checks, failed_setting
        self.points = [item.point() for item in self.settings]
        raise failure

    def _full(self, setting: Setting) -> None:
        self.own_sample = None                              # as large as an output; every check below makes its own
        drawer = Drawer(self.proxy.call, self.cut_samples, self.variant.statistics, self.seed)
        names = drawer.names()
        total = len(self.cut_samples) + len(names) + self.options.repeats
        done = 0
        for index, values in enumerate(self.cut_samples):
            self.progress("checking", done, total)
            name = f"captured sample {index + 1}"
            self.checks.append(self.trial.run(name, setting.program, setting.built, values, self._own(values))[0])
            done += 1
        for index, name in enumerate(names):
            self.progress("checking", done, total)
            self._draw(setting, drawer, name, elsewhere=index % 3 == 2)
            done += 1
        for index in range(self.options.repeats):
            self.progress("checking", done, total)
            values = self.cut_samples[index % len(self.cut_samples)]
            own = self._own(values)
            with self.target.under_load():
                self.checks.append(self.trial.run(f"repeat {index + 1}", setting.program, setting.built, values, own)[0])
            done += 1
        self.checks.append(Check("memory", True, detail="poison, guard bands and inputs looked at after every launch"))

    def _at_full_size(self, setting: Setting) -> None:
        """Two launches of the whole call where only a reduced one was run, if that takes seconds: what depends on sizes or comes in
        late rows shows there. On the captured values and on their negatives."""
        if not self.proxy.cuts:
            return
        instructions = sum(count.thread_instructions for count in setting.counts)
        largest = max(spec.numel for spec in (*self.call.outputs, *(spec for _, spec in self.call.tensors())))
        if instructions > FULL_INSTRUCTIONS or largest > HOST_ELEMENTS:
            self.checks.append(Check("full size", True, detail=f"not made: {largest:,} elements, {instructions:,} thread instructions"))
            return
        self.progress("checking the full size", 0, 1)
        trial = Trial(self.call, self.target, self.seed)
        flipped = Drawer(self.call, self.samples, self.variant.statistics, self.seed).make("sign flipped")
        for name, values in (("full size", dict(self.samples[0])), ("full size, sign flipped", flipped)):
            own = in_place(self.call, eager(self.call, values))
            self.checks.append(trial.run(name, setting.full, setting.image, values, own)[0])
        self.whole = True

    def _draw(self, setting: Setting, drawer: Drawer, name: str, elsewhere: bool) -> None:
        """One fresh draw. A draw on which eager overflows, though its inputs are finite, is weakened and made again."""
        for attempt in range(3):
            values = drawer.make(name, attempt)
            try:
                own = self._own(values)
            except NoReference as reason:
                self.checks.append(Check(f"draw {name}", True, detail=f"not made: eager refuses it ({reason})"))
                return
            if name not in ("large", "one spike") or all(finite(output) for output in own):
                break
        check, _ = self.trial.run(f"draw {name}", setting.program, setting.built, values, own, elsewhere=elsewhere)
        self.checks.append(check)

    def _time(self, setting: Setting) -> Timing:
        self.progress("timing", 0, 1)
        timing = self.timer.full(setting, self.trial, self.cut_samples)
        moved = self.variant.bytes_moved / max(timing.us, 1e-9) * 1e6
        ceiling = self.target.facts.copy_bytes_per_s * ABOVE_CEILING
        if timing.kind == "device" and moved > ceiling:
            detail = f"{moved / 1e12:.2f} TB/s, more than the {ceiling / 1e12:.2f} TB/s this device can move"
            raise Failed("fault", f"timed at {detail}: it cannot have read its inputs and written its outputs",
                         Check("bandwidth", False, moved, ceiling, detail), fault="launch")
        return timing

    # -- verdicts

    def _failed(self, failed: Failed) -> Verdict:
        current = self.current
        return Verdict(failed.outcome, failed.sentence, (*self.checks, failed.check), failed.fault, failed.line, failed.worst,
                       self.seed, dict(current.values) if current else {}, tuple(self.points),
                       image=current.image.key if current and current.image else "", proxy=self.proxy.text,
                       build_log=failed.log or (current.image.log if current and current.image else ""))

    def _verified(self, best: Setting, counts: tuple[LaunchCounts, ...], timing: Timing | None) -> Verdict:
        draws = sum(check.name.startswith("draw") and not check.detail.startswith("not made") for check in self.checks)
        many = f"{len(self.samples)} captured sample{'s' if len(self.samples) != 1 else ''} and {draws} fresh draws"
        on = f", on the reduced call {self.proxy.text}{', and at full size' * self.whole}" if self.proxy.cuts else ""
        behaviour = behaviour_of(best.full.launches, best.image.kernels, self.target.facts, us=timing.us if timing else None,
                                 bytes_moved=self.variant.bytes_moved, counts=counts)
        return Verdict("verified", f"right on {many}{on}", tuple(self.checks), seed=self.seed, settings=dict(best.values),
                       points=tuple(self.points), timing=timing, image=best.built.key, counts=counts, proxy=self.proxy.text,
                       build_log=best.built.log, behaviour=behaviour)


def _with_time(verdict: Verdict, seconds: float) -> Verdict:
    return replace(verdict, judged_s=seconds)
