"""Landscapes for the search benchmark: every setting of every builtin kernel on some calls, checked, timed, stored as
data.

`python -m benchmarks.landscapes [--device cuda:0|host] [--seconds 100] [--only PATTERN] [--most N]` adds what is
missing to `benchmarks/landscapes/KIND/NAME.json` and stops when its time is over; run it again to go on. On a GPU the
times are measured (cold, as the judge does it); on `host` they are the interpreter's model of an H200 and are called
so.

A stored landscape is data: searches and the calibration need no kernel for it. Kernels of `GONE` ship no more; their points stay,
because a search over them is as real as ever, and new kernels of the same call are added beside them by the next run.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import case
from benchmarks.workloads import WORKLOADS, Workload
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.target import Target, open_target
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.behaviour import behaviour_of
from forge_tui.engine.judge.options import PROXY_ELEMENTS
from forge_tui.engine.judge.proxy import Proxy, extrapolate, proxies, representative, whole
from forge_tui.engine.judge.reference import eager, in_place
from forge_tui.engine.judge.trial import Failed, Trial
from forge_tui.engine.judge.tuning import Setting, settings_of
from forge_tui.engine.kernelfile import KernelFile, parse
from forge_tui.errors import KernelFileError

FOLDER = Path(__file__).parent / "landscapes"
FORMAT = 1
GONE = {"group_stream": "group_relay and group_cluster took its place"}
"""Kernels that stored landscapes have points of and that ship no more, and why."""

LABELS = (
    "softmax bf16 (1, 8, 512, 512)",
    "softmax bf16 (2048, 256)",
    "softmax bf16 (1, 16, 2048, 2048)",
    "layer_norm fp32 (1, 1500, 512)",
    "layer_norm bf16 (16384, 8192)",
    "rms_norm bf16 (1, 512, 1536)",
    "group_norm bf16 (1, 512, 128, 128)",
    "group_norm bf16 (1, 512, 512, 512)",
    "adaptive_avg_pool2d fp32 (32, 2048, 7, 7)",
    "max_pool2d fp32 (32, 64, 112, 112)",
    "batch_norm fp32 (32, 2048, 7, 7)",
    "gelu bf16 (1, 512, 6144)",
)
"""The calls, one or two an operator: short and long rows, latency-bound and memory-bound."""


class Measurer:
    """Checks and times settings of kernel files on one call."""

    def __init__(self, target: Target, variant: Variant, sample: dict[str, torch.Tensor]) -> None:
        self.target, self.variant, self.sample = target, variant, sample
        self._trials: dict[str, tuple[Trial, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]] = {}
        self._watch = None
        if target.kind == "cuda":
            from forge_tui.cuda.timing import Stopwatch

            self._watch = Stopwatch(target)  # type: ignore[arg-type]

    def proxy_of(self, file: KernelFile, first: Setting) -> Proxy:
        """On the host target the smallest call that stands for the whole; elsewhere the whole."""
        if self.target.kind == "host":
            for proxy in proxies(self.variant.call, self.sample, PROXY_ELEMENTS):
                try:
                    if not proxy.cuts or (
                        not file.refusal(proxy.call, self.target.facts)
                        and representative(first.full, file.bind(proxy.call, self.target.facts, first.values))
                    ):
                        return proxy
                except KernelFileError:  # this setting means nothing at that size
                    continue
        return whole(self.variant.call)

    def point(self, file: KernelFile, setting: Setting, proxy: Proxy) -> None:
        """Fills `setting.us` and `counts`. Raises Failed, CandidateFault, KernelFileError."""
        setting.reduce(file, proxy, self.target)
        trial, values, own = self._trial(proxy)
        _, report = trial.run("the captured sample", setting.program, setting.built, values, own)
        if self._watch is None:
            from forge_tui.cuda.host.model import modelled_us

            setting.counts = extrapolate(report.counts, setting.full, setting.program, proxy)
            setting.us = modelled_us(setting.counts, self.target.facts)
            return
        from forge_tui.cuda.timing import Contender

        arena = trial.arena
        tensors = {name: buffer.tensor for name, buffer in {**arena.inputs, **arena.outputs}.items()}
        prepared = self.target.prepare(
            setting.full,
            setting.image,
            tensors,  # type: ignore[attr-defined]
            {name: buffer.tensor for name, buffer in arena.workspaces.items()},
        )
        contender = Contender("candidate", [lambda: self.target.enqueue(prepared)])  # type: ignore[attr-defined]
        found = self._watch.alone(contender)
        setting.us, setting.interval = found.value, (found.low, found.high)

    def _trial(self, proxy: Proxy) -> tuple[Trial, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
        if proxy.text not in self._trials:
            values = proxy.cut(self.sample)
            self._trials[proxy.text] = (
                Trial(proxy.call, self.target, 1),
                values,
                in_place(proxy.call, eager(proxy.call, values)),
            )
        return self._trials[proxy.text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="*", help="pattern over the labels")
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="begin no further point after so long; 0: no limit"
    )
    parser.add_argument(
        "--most", type=int, default=0, help="most settings of one kernel, spread over all; 0: every one"
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    begun = time.monotonic()
    target = open_target(options.device)
    if target.kind == "host":
        torch.set_num_threads(1)
    deadline = begun + options.seconds if options.seconds else float("inf")
    chosen = [
        item
        for label in LABELS
        for item in WORKLOADS
        if item.label == label and fnmatch(label.lower(), options.only.lower())
    ]
    for item in _distinct(chosen):
        if time.monotonic() > deadline:
            print("stopped: --seconds is over; run again to go on", flush=True)
            break
        measure(item, target, options.out, options.most, deadline)
        if getattr(target, "lost", None) is not None:
            print(f"stopped: a setting ended the device's context ({target.lost}); run again to go on", flush=True)  # type: ignore[attr-defined]
            break
        if target.kind == "cuda":
            torch.cuda.empty_cache()


def _distinct(items: list[Workload]) -> list[Workload]:
    return list({item.label: item for item in items}.values())


def measure(item: Workload, target: Target, out: Path, most: int, deadline: float) -> None:
    """Adds the missing kernels of one call to its file."""
    kind = "modelled" if target.kind == "host" else re.sub(r"[^a-z0-9]+", "-", target.facts.name.lower()).strip("-")
    path = out / kind / (re.sub(r"[^a-z0-9]+", "-", item.label.lower()).strip("-") + ".json")
    variant, sample = case(item, "cpu" if target.kind == "host" else "cuda", target.facts)
    document = (
        json.loads(path.read_text())
        if path.exists()
        else {
            "format": FORMAT,
            "landscape": f"{item.model}: {item.label}",
            "operator": variant.operator,
            "times": "modelled by the host target from instruction and memory counts; nothing here was measured"
            if target.kind == "host"
            else "measured on the device, L2 flushed before every call",
            "device": target.facts.name,
            "bytes": variant.bytes_moved,
            "copy_bytes_per_s": target.facts.copy_bytes_per_s,
            "families": [],
        }
    )
    done = {family["name"] for family in document["families"]}
    measurer = Measurer(target, variant, sample)
    for kernel in kernels_for(variant.call):
        if kernel.name in done:
            continue
        found = family(kernel, measurer, most, deadline)
        if found is None:
            break
        if found["points"]:
            document["families"].append(found)
        _write(path, document)
        if getattr(target, "lost", None) is not None:
            break
    points = [point for entry in document["families"] for point in entry["points"]]
    times = [point["us"] for point in points if point["us"] is not None]
    if times:
        print(
            f"{item.label:44} {len(document['families'])} families, {len(points)} points, {len(points) - len(times)} failed, "
            f"{min(times):.2f} to {max(times):.2f} us",
            flush=True,
        )


def family(kernel: BuiltinKernel, measurer: Measurer, most: int, deadline: float) -> dict[str, Any] | None:
    """Every legal setting of one kernel; None when the time was over before its end."""
    file = parse(kernel.text, f"{kernel.name}.cu")
    target, call = measurer.target, measurer.variant.call
    entry: dict[str, Any] = {
        "name": kernel.name,
        "strategy": kernel.strategy,
        "parameters": {name: list(values) for name, values in file.plan.tune.items()},
        "points": [],
    }
    if file.refusal(call, target.facts):
        return entry
    settings = settings_of(file, call, target.facts, most or 1_000_000)
    if not settings:
        return entry
    proxy = measurer.proxy_of(file, settings[0])
    target.expect([setting.full for setting in settings])
    for point in _points(file, settings, measurer, proxy, deadline):
        if point is None:
            target.expect([])
            return None
        entry["points"].append(point)
    return entry


def _points(
    file: KernelFile, settings: list[Setting], measurer: Measurer, proxy: Proxy, deadline: float
) -> Iterator[dict[str, Any] | None]:
    for setting in settings:
        if time.monotonic() > deadline:
            yield None
            return
        try:
            setting.build(measurer.target)
            measurer.point(file, setting, proxy)
        except (CandidateFault, KernelFileError, Failed) as problem:
            if "not_interpretable" in (getattr(problem, "kind", ""), getattr(problem, "fault", "")):
                continue  # this target's limit says nothing of the kernel
            setting.reason = str(problem).splitlines()[0]
        yield _record(setting, measurer)
        if getattr(measurer.target, "lost", None) is not None:
            return  # the family ends here, or the next run would lose the device at the same setting


def _record(setting: Setting, measurer: Measurer) -> dict[str, Any]:
    kernels = setting.image.kernels if setting.image else ()
    shape = behaviour_of(
        setting.full.launches,
        kernels,
        measurer.target.facts,
        us=setting.us,
        bytes_moved=measurer.variant.bytes_moved,
        counts=setting.counts,
    )
    return {
        "settings": setting.values,
        "us": round(setting.us, 4) if setting.us is not None else None,
        "reason": setting.reason,
        "registers": shape.registers if shape else None,
        "shared_bytes": shape.shared_bytes if shape else 0,
        "threads": shape.threads if shape else 0,
        "occupancy": round(shape.occupancy, 4) if shape else 0.0,
        "dram": round(shape.dram, 4) if shape and shape.dram is not None else None,
        "sm": round(shape.sm, 4) if shape and shape.sm is not None else None,
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=None, separators=(",", ":")).replace('{"settings"', '\n{"settings"')
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()
