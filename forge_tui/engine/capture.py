"""Capture: one forward of the unmodified model, recorded; every variant timed, described, its samples kept."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from forge_tui.cuda.device import H200, DeviceFacts, find_gpu
from forge_tui.engine.calltiming import call_us, forward_us, issue_us, one_thread
from forge_tui.engine.cards import FORMAT, ROUTED_US, OperatorFile, Skipped, Statistics, Variant, save_operators
from forge_tui.engine.forward import open_model, run_forward
from forge_tui.engine.inputs import ModelInput, describe_input
from forge_tui.engine.operators import bytes_moved, lookup, materialize, operations
from forge_tui.engine.overlap import once
from forge_tui.engine.recording import Recorder, Seen, outputs_agree, unseen_calls
from forge_tui.engine.samples import KeptSample, SampleKeeper, find_in_files, save_sample, store_weight
from forge_tui.engine.sources import LoadedModel
from forge_tui.engine.sources.failures import first_lines
from forge_tui.engine.sources.usercode import user_code
from forge_tui.engine.statistics import statistics
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ProjectConfig

BYTE_CAPS = {"cpu": 256 << 20, "cuda": 4 << 30}
"""Kept of all samples where the project names no number, by kind of device. What does not fit cannot be offered, and the largest
calls, left out first, have most to give."""
AT_FLOOR = 1.1
"""A call within a tenth of its floor has nothing to give."""
LAUNCH_BOUND = 0.6
"""A forward of which the device works less than this part, and for less time than issuing the calls takes, waits for its CPU: for that
and for what is between the calls, Python for the most part. Whatever of it a kernel saves, the forward saves."""
Progress = Callable[[str], None]


def capture_project(paths: ProjectPaths, config: ProjectConfig, progress: Progress = lambda message: None) -> OperatorFile:
    """Loads the model, records it on its inputs, and writes `captures/` and `operators.msgpack`.

    The cards are the commit: new tensors get new names, the cards are replaced atomically, and only then are old tensors
    deleted, so that a kill at any point leaves the old capture or the new one. progress: called with one line at a time.
    Raises ProjectError and MissingEnvironment.
    """
    progress(f"loading {config.model.source}")
    loaded, inputs = open_model(config, paths.root)
    for text in [loaded.description, *loaded.notes]:
        progress(text)
    device, facts = open_device(config.device.target)
    for text in device_lines(device, facts):
        progress(text)
    with one_thread():
        capture = capture_model(loaded, inputs, device, facts, samples=config.capture.samples,
                                byte_cap=config.capture.byte_cap or BYTE_CAPS[device.type], progress=progress)
        progress("writing the captured tensors")
        return capture.save(paths)


def open_device(target: str) -> tuple[torch.device, DeviceFacts]:
    """Where the model runs, and the device that floors are for: on `host` the one whose time is modelled."""
    if target == "host" or (target == "auto" and not find_gpu()):
        return torch.device("cpu"), H200
    from forge_tui.cuda.target import open_target

    facts = open_target(target).facts
    return torch.device("cuda" if target == "auto" else target), facts


def device_lines(device: torch.device, facts: DeviceFacts) -> list[str]:
    """What a person should know of it before believing times that are taken there."""
    if device.type == "cpu":
        return [f"running on the CPU; kernels are interpreted, and modelled for {facts.name}"]
    from forge_tui.cuda.overview import overview

    seen = overview(device.index or 0)
    lines = [f"running on {seen.text()}; {seen.ceilings_text() or 'ceilings not measured'}"]
    if seen.state is not None and len(seen.state.processes) > 1:
        lines.append(f"{len(seen.state.processes)} processes use this device: times taken now are not those of a device of one's own")
    return lines


def capture_model(loaded: LoadedModel, inputs: list[ModelInput], device: torch.device, facts: DeviceFacts, *,
                  samples: int = 2, byte_cap: int = BYTE_CAPS["cpu"], progress: Progress = lambda message: None) -> Capture:
    """Records a loaded model, in memory. samples: most kept of a variant. byte_cap: of all samples, weights aside."""
    with user_code(f"{type(loaded.model).__name__} cannot be moved to {device}", cure="correct the model", own=loaded.own_file):
        loaded.model.to(device)
    inputs = [item.to(device) for item in inputs]
    progress(f"inputs: {'; '.join(item.label or describe_input(item) for item in inputs)}")
    run_forward(loaded, inputs[0])
    eager_us = forward_us(lambda: run_forward(loaded, inputs[0]), device)
    recorder = Recorder(loaded.model, SampleKeeper(samples, byte_cap))
    for item in inputs:
        recorder.forward(lambda item=item: run_forward(loaded, item))
    recorder.recording.skipped.update(unseen_calls(lambda: run_forward(loaded, inputs[0])))
    total = sum(recorder.recording.calls.values())
    progress(f"recorded {total} calls of {len(recorder.recording.variants)} variants in one forward, which took "
             f"{recorder.seconds * 1e3:.1f} ms (eager: {eager_us / 1e3:.1f} ms)")
    return Capture(loaded, recorder, device, facts, eager_us, progress)


class Capture:
    """A finished recording: makes the cards and writes them."""

    def __init__(self, loaded: LoadedModel, recorder: Recorder, device: torch.device, facts: DeviceFacts, eager_us: float,
                 progress: Progress) -> None:
        self.loaded, self.recorder, self.device, self.facts, self.eager_us = loaded, recorder, device, facts, eager_us
        self._progress = progress
        self._changed = recorder.weights.changed()

    def samples(self, key: str) -> list[KeptSample]:
        return self.recorder.keeper.kept.get(key, [])

    def tensors(self, sample: KeptSample, seen: Seen) -> dict[str, torch.Tensor]:
        """All tensor inputs of a kept call, in the order of the call, weights from the model itself."""
        return {name: sample.tensors[name] if name in sample.tensors else self.recorder.weights.tensors[sample.weights[name]]
                for name, _ in seen.call.tensors()}

    def cards(self) -> OperatorFile:
        """Times every variant and describes its values; the ranking is by recoverable time.

        On a GPU that is calls x (time - floor). CPU time and a GPU's floor are not comparable, so on `host` it is
        calls x time: the operators that take most of the model's time come first.
        """
        cuda = self.device.type == "cuda"
        variants = []
        for number, (key, seen) in enumerate(self.recorder.recording.variants.items(), 1):
            if number % 20 == 0:
                self._progress(f"timed {number} of {len(self.recorder.recording.variants)} variants")
            variants.append(self._card(key, seen))
        busy, issued = device_and_cpu_us(variants)
        launch_bound = cuda and waits_for_cpu(busy, issued, self.eager_us)
        if launch_bound:
            self._progress(f"launch-bound: of a forward's {self.eager_us / 1e3:.1f} ms the device works {busy / 1e3:.1f} ms and waits for its "
                           "CPU else; calls are ranked by what their CPU time would save too")
        variants = once([at_floor(variant, launch_bound) for variant in variants] if cuda else variants, cuda and not launch_bound)
        variants.sort(key=lambda item: (not item.offered, -(item.recoverable_us if cuda else item.open_calls * item.time_us)))
        skipped = [*(Skipped(name, count, reason) for (name, reason), count in self.recorder.recording.skipped.items()),
                   *self._hidden_modules()]
        return OperatorFile(FORMAT, self.loaded.description, self.facts, "device" if cuda else "cpu", self.eager_us,
                            tuple(variants), tuple(sorted(skipped, key=lambda item: (-item.calls, item.operator))),
                            str(torch.__version__), time.time(), launch_bound)

    def _card(self, key: str, seen: Seen) -> Variant:
        kept, call = self.samples(key), seen.call
        time_us, issued_us, reason = self._time(seen, kept)
        moved = bytes_moved(call)
        floor_us = max(moved / self.facts.copy_bytes_per_s * 1e6, self.facts.launch_us)
        return Variant(key=key, call=call, calls=self.recorder.recording.calls[key], time_us=time_us, bytes_moved=moved,
                       operations=operations(call), floor_us=floor_us, statistics=self._statistics(seen, kept),
                       samples=(), modules=tuple(seen.modules), forms=tuple(seen.forms.values()),
                       covers=dict(seen.covers), offered=not reason, reason=reason, issue_us=issued_us)

    def _time(self, seen: Seen, kept: list[KeptSample]) -> tuple[float, float, str]:
        """Microseconds of one call alone, of issuing it, and why it cannot be offered, if so."""
        call = seen.call
        if not kept:
            size = sum(spec.span for _, spec in call.tensors() if not spec.weight)
            return 0.0, 0.0, (f"its inputs ({size / 2**20:.1f} MB) do not fit into what is kept of all variants: raise [capture] "
                         f"byte_cap, now {self.recorder.keeper.byte_cap / 2**20:.1f} MB")
        if all(spec.numel == 0 for spec in call.outputs):
            return 0.0, 0.0, "its result is empty"
        changed = sorted({name for sample in kept for name in sample.weights.values()} & self._changed)
        if changed:
            return 0.0, 0.0, f"{changed[0]} changes during the forward"
        tensors = self.tensors(kept[0], seen)
        try:
            operator, arguments = lookup(call.operator), materialize(call, tensors)
            with torch.no_grad():
                difference = outputs_agree(call, operator.call(arguments))
                positional, keywords = operator.split(arguments)

                def run() -> object:
                    return operator.function(*positional, **keywords)

                taken = call_us(run, self.device, len(self.recorder.recording.variants))
                issued = issue_us(run) if self.device.type == "cuda" else 0.0
        except Exception as error:  # torch may refuse the call for any reason of its own; the model itself ran
            return 0.0, 0.0, f"it cannot be run alone: {type(error).__name__}: {first_lines(error, 1)}"
        return taken, issued, difference

    def _statistics(self, seen: Seen, kept: list[KeptSample]) -> dict[str, Statistics]:
        every = [self.tensors(sample, seen) for sample in kept]
        return {name: statistics([tensors[name] for tensors in every]) for name, _ in seen.call.tensors() if every}

    def _hidden_modules(self) -> list[Skipped]:
        return [Skipped(name or type(module).__name__, 1, "TorchScript: the calls inside it are not visible")
                for name, module in self.loaded.model.named_modules() if isinstance(module, torch.jit.ScriptModule)
                and not isinstance(_parent(self.loaded.model, name), torch.jit.ScriptModule)]

    def save(self, paths: ProjectPaths) -> OperatorFile:
        """Writes samples, weights and cards; then deletes what an earlier capture left. Raises MissingEnvironment."""
        cards = self.cards()
        stamp = secrets.token_hex(4)
        places: dict[str, dict[str, Any]] = {}
        written = []
        for variant in cards.variants:
            names = []
            for index, sample in enumerate(self.samples(variant.key)):
                names.append(f"{variant.key}-{index}-{stamp}.msgpack")
                save_sample(paths, names[-1], sample, lambda name: self._weight(paths, places, name, stamp))
            written.append(_with_samples(variant, tuple(names)))
        cards = _with_variants(cards, tuple(written))
        save_operators(paths, cards)
        _delete_old(paths.captures, stamp)
        _delete_old(paths.weights, stamp)
        return cards

    def _weight(self, paths: ProjectPaths, places: dict[str, dict[str, Any]], name: str, stamp: str) -> dict[str, Any]:
        if name not in places:
            tensor = self.recorder.weights.tensors[name]
            places[name] = (find_in_files(self.loaded.weight_files, name, tensor)
                            or store_weight(paths, name, tensor, stamp))
        return places[name]


def _parent(model: nn.Module, name: str) -> nn.Module | None:
    return model.get_submodule(name.rpartition(".")[0]) if name else None


def _with_samples(variant: Variant, names: tuple[str, ...]) -> Variant:
    return msgspec.structs.replace(variant, samples=names)


def device_and_cpu_us(variants: list[Variant]) -> tuple[float, float]:
    """Microseconds of all calls of a forward: on the device, and for the CPU to issue. Regions are made of operators that are in the sums."""
    calls = [item for item in variants if not item.covers]
    return sum(item.calls * item.time_us for item in calls), sum(item.calls * item.issue_us for item in calls)


def waits_for_cpu(device_us: float, issue_us: float, forward_us: float) -> bool:
    """Whether a forward is launch-bound (LAUNCH_BOUND), from `device_and_cpu_us` and its own time."""
    return issue_us >= device_us and device_us < LAUNCH_BOUND * forward_us


def at_floor(variant: Variant, launch_bound: bool) -> Variant:
    """A variant with a reason where a kernel has nothing to give: neither time of the device nor, where that waits, of the CPU."""
    if not launch_bound:
        variant = msgspec.structs.replace(variant, issue_us=0.0)
    if not variant.offered or variant.time_us > AT_FLOOR * variant.floor_us or variant.issue_us > AT_FLOOR * ROUTED_US:
        return variant
    return msgspec.structs.replace(variant, offered=False, reason=(
        f"already at the floor: {variant.time_us:.1f} us, and the bytes alone take {variant.floor_us:.1f} us"))


def _with_variants(cards: OperatorFile, variants: tuple[Variant, ...]) -> OperatorFile:
    return msgspec.structs.replace(cards, variants=variants)


def _delete_old(folder: Path, stamp: str) -> None:
    """Files of earlier captures, and what a killed one left half written; only names that capture itself gives."""
    for file in folder.glob("*"):
        old = file.suffix == ".msgpack" and not file.stem.endswith(stamp)
        if file.is_file() and (old or file.suffix == ".tmp"):
            file.unlink(missing_ok=True)
