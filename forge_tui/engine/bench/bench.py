"""`forge-tui bench`: is the model right with the package in it, is it faster, and which kernels have to go."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from msgspec import Struct, structs

from forge_tui.engine.bench.agreement import DRAWS, Agreement, compare
from forge_tui.engine.bench.heldout import held_out
from forge_tui.engine.bench.rounds import EAGER, FORGED, Contender, in_stages, measure
from forge_tui.engine.forward import open_model, run_forward
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.package.runtime import Backend, Entry, Package, PackageError
from forge_tui.engine.sources import LoadedModel
from forge_tui.errors import ProjectError
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ProjectConfig

SCHEMA_VERSION = 1
LEFT_OUT = "left out of a comparison"
Progress = Callable[[str], None]


class KernelInModel(Struct, frozen=True):
    """What one kernel did in the model."""

    operator: str
    variant: str
    calls: int
    fallbacks: dict[str, int]
    status: Literal["kept", "dropped", "not reached"]
    reason: str = ""


class BenchResult(Struct, frozen=True):
    """The document of one bench."""

    schema_version: int
    model: str
    device: str
    time_kind: Literal["device", "none"]
    """`none` on `host`: nothing is timed there."""
    torch: str
    contenders: tuple[Contender, ...]
    """Eager first."""
    agreement: Agreement
    """Of what is kept."""
    kernels: tuple[KernelInModel, ...]
    accepted: bool
    """Outputs within bounds and, where time is measured, an interval above 1."""
    reason: str


class Bench:
    """A loaded model with its package: compared, timed, and rid of kernels that do not belong."""

    def __init__(self, loaded: LoadedModel, inputs: list[ModelInput], package: Package, device: torch.device, seed: int,
                 progress: Progress = lambda text: None) -> None:
        self.loaded, self.package, self.device, self.seed, self.progress = loaded, package, device, seed, progress
        self.model = loaded.model.to(device)
        self.inputs = [item.to(device) for item in inputs]
        self.dropped: dict[str, str] = {}
        """Variant to reason."""

    def run(self, rounds: int, compiled: bool = True, autotune: bool = True) -> BenchResult:
        """All of it. compiled: torch.compile too, alone and with the package. autotune: and its max-autotune, whose search takes minutes.
        An interruption while these are timed ends the timing, and what was measured before is the result. On a device without a clock of its own
        (`host`) outputs are compared and nothing is timed."""
        timed = self.device.type == "cuda"
        self._compare_calls()
        agreement = self._agree()
        if not agreement.within:
            agreement = self._drop_wrong(agreement)
        if timed:
            self._drop_slow(rounds)
        kept = self._active()
        agreement = structs.replace(agreement, calls=sum(entry.canaries for entry in kept),
                                    call_error=max((entry.canary_error for entry in kept), default=None))
        contenders = self._time(rounds, compiled, autotune) if timed else []
        accepted, reason = self._judge(agreement, contenders)
        name = torch.cuda.get_device_name(self.device) if timed else "host"
        return BenchResult(SCHEMA_VERSION, self.loaded.description, name, "device" if timed else "none", str(torch.__version__),
                           tuple(contenders), agreement, tuple(self._kernels()), accepted, reason)

    # -- right

    def _compare_calls(self) -> None:
        """Every call of every kernel beside the original on the same tensors, and those that differ dropped. The model goes on with the
        original's results: what a rounding grows to in later layers is not in this comparison."""
        self.progress("comparing each kernel's calls with the original ones")
        self.package.canary(1)
        try:
            with torch.inference_mode(), warnings.catch_warnings(action="ignore"):
                for number in range(DRAWS):
                    for item in self.inputs:
                        self._forged(held_out(item, self.seed + number))
        finally:
            self.package.canary(0)
        for entry in self.package.entries:
            if entry.disabled:
                self._drop(entry.variant, f"a call of it in the model is {entry.canary_error:.3g} from the original's, off by more than rounding")

    def _agree(self) -> Agreement:
        self.progress("comparing outputs on held-out inputs")
        with torch.inference_mode(), self._float64() as float64:
            return compare(self.inputs, self.seed, self._call, self._forged, float64)

    def _call(self, item: ModelInput) -> Any:
        return run_forward(self.loaded, item)

    def _forged(self, item: ModelInput) -> Any:
        with self.package.optimized(self.model):
            return self._call(item)

    @contextmanager
    def _float64(self) -> Iterator[Callable[[ModelInput], Any] | None]:
        """The model in float64, or None where memory or torch has no room for it."""
        wide = self._widened_model()  # what it raised is gone here, with all that its frames held: half a copy may fill the device
        if wide is None:
            yield None
            return

        def run(item: ModelInput) -> Any:
            item = _widened(item)
            return wide(*item.args, **item.kwargs)

        yield run

    def _widened_model(self) -> Any:
        """A copy in float64 that has run once; None, and why is said, where that cannot be."""
        try:
            wide = copy.deepcopy(self.model).double()
            first = _widened(self.inputs[0])
            wide(*first.args, **first.kwargs)
            return wide
        except Exception as error:  # out of memory, an operator without float64, a cast inside the model: nothing to compare with
            self.progress(f"no float64 reference: {type(error).__name__}")
            return None

    def _drop_wrong(self, agreement: Agreement) -> Agreement:
        """Leave out one kernel at a time; that one goes without which outputs come nearest, until they are within bounds."""
        while not agreement.within and self._active():
            tries = {}
            for entry in self._active():
                with _without(entry):
                    tries[entry.variant] = self._agree()
            best = min(tries, key=lambda variant: _distance(tries[variant]))
            self._drop(best, f"with it the model's outputs are off by {_distance(agreement):.3g} (allowed {agreement.allowed:.3g}), "
                             f"without it by {_distance(tries[best]):.3g}")
            agreement = tries[best]
        return agreement

    # -- fast

    def _drop_slow(self, rounds: int) -> None:
        """Leave one out: a kernel without which the model is faster, interval clear of 1, wins alone and loses here."""
        item = self.inputs[0]
        for entry in self._active():
            def without(entry: Entry = entry) -> None:
                with _without(entry):
                    self._call(item)

            with torch.inference_mode(), self.package.optimized(self.model):
                pair = measure({"with": lambda: self._call(item), "without": without}, self.device, self.seed,
                               rounds=max(rounds // 2, 5), seconds=10.0)
            gain = pair[1].speedup_interval
            if gain is not None and gain[0] > 1:
                self._drop(entry.variant, f"the model is {pair[1].speedup:.3f}x as fast without it, interval {gain[0]:.3f} "
                                          f"to {gain[1]:.3f}")

    def _time(self, rounds: int, compiled: bool, autotune: bool) -> list[Contender]:
        """Eager and forged first, then all that are compiled with both, then max-autotune beside eager: whoever cannot wait has seen the others."""
        item = self.inputs[0]

        def call(model: Any) -> Callable[[], object]:
            def run() -> object:
                with torch.inference_mode():
                    return model(*item.args, **item.kwargs)

            return run

        def timed(calls: dict[str, Callable[[], object]]) -> list[Contender]:
            found = measure(calls, self.device, self.seed, rounds=rounds, progress=self.progress)
            for one in found:
                self.progress(f"{one.name}: {one.us:.0f} us, {one.speedup:.3f}x" if one.us and one.speedup else f"{one.name}: {one.note}")
            return found

        def all_compiled() -> list[Contender]:
            both = torch.compile(self.package.apply(_twin(self.model)))
            return timed({EAGER: eager, "torch.compile": call(torch.compile(_twin(self.model))), FORGED: forged, "forged under compile": call(both)})

        def autotuned() -> list[Contender]:
            tuned = torch.compile(_twin(self.model), mode="max-autotune-no-cudagraphs")
            return timed({EAGER: eager, "torch.compile max-autotune": call(tuned)})[1:]

        eager, forged = call(self.model), call(self.package.apply(_twin(self.model)))
        return in_stages([lambda: timed({EAGER: eager, FORGED: forged}), *[all_compiled] * compiled, *[autotuned] * (compiled and autotune)],
                         self.progress)

    # -- what is said

    def _active(self) -> list[Entry]:
        return [entry for entry in self.package.entries if not entry.disabled]

    def _drop(self, variant: str, reason: str) -> None:
        self.dropped[variant] = reason
        self.progress(f"dropped {variant}: {reason}")
        for entry in self.package.entries:
            if entry.variant == variant:
                entry.disabled = f"dropped: {reason}"

    def _kernels(self) -> Iterator[KernelInModel]:
        for kernel in self.package.report()["kernels"]:
            reason = self.dropped.get(kernel["variant"], "")
            seen = kernel["calls"] or kernel["fallbacks"]
            status: Literal["kept", "dropped", "not reached"] = "dropped" if reason else "kept" if kernel["calls"] else "not reached"
            yield KernelInModel(kernel["operator"], kernel["variant"], kernel["calls"], kernel["fallbacks"], status,
                                reason or ("" if seen else "no call of the model came to it"))

    def _judge(self, agreement: Agreement, contenders: Any) -> tuple[bool, str]:
        if not self._active():
            return False, "every kernel was dropped"
        if not agreement.calls:
            return False, f"no kernel ran: this model makes no call that the package, made for {self.package.manifest.get('model', '?')}, has one for"
        if not agreement.within:
            return False, f"outputs are off by {_distance(agreement):.3g}, allowed {agreement.allowed:.3g}"
        right = "outputs are within bounds" if not agreement.untelling else (
            f"outputs cannot tell, {agreement.untelling}; each call of a kernel is right")
        forged = next((item for item in contenders if item.name == FORGED), None)
        if forged is None:
            return True, f"{right}; nothing is timed on this device"
        if forged.speedup_interval is None:
            return False, f"the forged model cannot be timed: {forged.note}"
        low, high = forged.speedup_interval
        return low > 1, f"{forged.speedup:.3f}x over eager, interval {low:.3f} to {high:.3f}; {right}"


def bench(paths: ProjectPaths, config: ProjectConfig, package: Path, target: Literal["host", "cuda"], *, seed: int,
          rounds: int, compiled: bool = True, autotune: bool = True, progress: Progress = lambda text: None) -> tuple[BenchResult, dict[str, str]]:
    """Bench the project's model with the package at `package` (its importable folder); the result, and what to drop."""
    progress("loading the model")
    loaded, inputs = open_model(config, paths.root)
    backend: Backend | None = None
    if target == "host":
        from forge_tui.engine.package.host_backend import HostBackend

        backend = HostBackend()
    device = torch.device("cuda", torch.cuda.current_device()) if target == "cuda" else torch.device("cpu")
    try:
        opened = Package(package, backend)
    except PackageError as error:
        raise ProjectError(str(error), where=str(package), cure="export it again: forge-tui export " + str(paths.root)) from None
    made = Bench(loaded, inputs, opened, device, seed, progress)
    return made.run(rounds, compiled, autotune), made.dropped


@contextmanager
def _without(entry: Entry) -> Iterator[None]:
    entry.disabled = LEFT_OUT
    try:
        yield
    finally:
        entry.disabled = ""


def _distance(agreement: Agreement) -> float:
    return agreement.forged_error if agreement.forged_float64_error is None else agreement.forged_float64_error


def _twin(model: torch.nn.Module) -> torch.nn.Module:
    """Another model of the same tensors: what is applied to one does not show in the other."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _widened(item: ModelInput) -> ModelInput:
    return ModelInput(_wide(item.args), _wide(item.kwargs), label=item.label)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _wide(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_wide(item) for item in value)
    return value
