"""Where a kernel's time goes, as far as Nsight Compute may look: throughputs, occupancy, stalls, from its CSV
output."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.single import ToolRun, find_tool, job_folder, run_under

if TYPE_CHECKING:
    import torch

DEADLINE_S = 120.0
FIGURES = {
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
"""Field: metric, as named by the profiling guide of Nsight Compute."""
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
REASONS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "no_instruction",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
TOP = 3
"""Stall reasons kept of each kernel."""


class KernelProfile(Struct, frozen=True):
    """One launch. Percentages are of the device's peak; None where nothing says."""

    kernel: str
    sm_percent: float | None = None
    dram_percent: float | None = None
    l2_percent: float | None = None
    occupancy_percent: float | None = None
    """Achieved, of the warps an SM can hold; from the image alone: theoretical."""
    registers: int | None = None
    stalls: tuple[tuple[str, float], ...] = ()
    """Reason and warps that wait for it at each issued instruction, the worst first."""


class Profile(Struct, frozen=True):
    """What is known of a candidate's use of the device."""

    source: Literal["ncu", "image"]
    """Measured by Nsight Compute; or worked out from the compiled image, the timing and the ceilings."""
    kernels: tuple[KernelProfile, ...]
    ceiling_share: float | None = None
    """Bytes the operator must move, by the time it took, over the measured copy bandwidth."""
    note: str = ""
    """Why Nsight Compute did not look."""


class NoProfile(Exception):
    """Nsight Compute is not here, may not look, or failed; the message says which, and the cure."""


def ncu_profile(
    program: Program, image: Image, tensors: Mapping[str, torch.Tensor], device: int, deadline_s: float = DEADLINE_S
) -> tuple[KernelProfile, ...]:
    """Every launch of one call, in a child under `ncu`. Clocks stay as they are. Raises NoProfile."""
    tool = find_tool("ncu")
    if tool is None:
        raise NoProfile("ncu (Nsight Compute) is not installed; it comes with the CUDA toolkit")
    with job_folder(program, image, tensors, device) as folder:
        for reasons in (REASONS, ()):  # a metric that this device lacks ends the whole of ncu
            run = run_under([tool, *arguments(reasons)], folder, deadline_s)
            try:
                return parse(run)
            except NoProfile:
                if not reasons or "Failed to find metric" not in run.output:
                    raise
    raise AssertionError("not reached")


def arguments(reasons: tuple[str, ...]) -> list[str]:
    stalls = [f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in reasons]
    return [
        "--clock-control",
        "none",
        "--csv",
        "--print-units",
        "base",
        "--target-processes",
        "application-only",
        "--metrics",
        ",".join([*FIGURES.values(), *stalls]),
    ]


def parse(run: ToolRun) -> tuple[KernelProfile, ...]:
    """The records of one run's output, in the order of launches. Raises NoProfile."""
    if run.status is None:
        raise NoProfile("ncu did not end in time")
    if "ERR_NVGPUCTRPERM" in run.output:
        raise NoProfile(
            "ncu may not read the performance counters here (ERR_NVGPUCTRPERM): an administrator must allow it, see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    lines = run.output.splitlines()
    begin = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        said = next((line for line in lines if line.startswith("==ERROR==")), lines[-1] if lines else "nothing")
        raise NoProfile(f"ncu failed with status {run.status}: {said.removeprefix('==ERROR==').strip()}")
    table = "\n".join(line for line in lines[begin:] if line.startswith('"'))
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        name = row["Kernel Name"].partition("(")[0]
        value = _number(row.get("Metric Value") or "")
        if value is not None:
            launches.setdefault(row["ID"], (name, {}))[1][row["Metric Name"]] = value
    if not launches:
        raise NoProfile("ncu measured nothing")
    return tuple(_kernel(name, values) for name, values in launches.values())


def _kernel(name: str, values: dict[str, float]) -> KernelProfile:
    found = {field: values.get(metric) for field, metric in FIGURES.items()}
    registers = found.pop("registers")
    stalls = [(match[1], value) for metric, value in values.items() if (match := STALL.fullmatch(metric)) and value > 0]
    return KernelProfile(
        name,
        **found,
        registers=None if registers is None else int(registers),
        stalls=tuple(sorted(stalls, key=lambda item: -item[1])[:TOP]),
    )


def _number(text: str) -> float | None:
    """`1,234.5` of the C and English locales; None for `n/a` and `(!) nan`."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value == value else None
