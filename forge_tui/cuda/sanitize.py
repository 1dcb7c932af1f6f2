"""NVIDIA's compute-sanitizer on one candidate: its four tools side by side, in children that run the program once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from forge_tui.cuda.faults import FaultKind
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.single import ToolRun, find_tool, job_folder, run_under

if TYPE_CHECKING:
    import torch

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
DEADLINE_S = 60.0
"""Of each tool."""
FOUND = 99
"""The exit status asked for when a tool found something."""
PREFIX = "========="
_FAULTS: dict[Tool, FaultKind] = {
    "memcheck": "out_of_bounds",
    "racecheck": "race",
    "initcheck": "uninitialized",
    "synccheck": "divergent_barrier",
}


class Finding(Struct, frozen=True):
    """What one tool found; the first thing of many."""

    tool: Tool
    ran: bool
    """False: the tool is not here, failed, or did not end; `message` says so, and nothing is known."""
    errors: int = 0
    message: str = ""
    kernel: str = ""
    line: int | None = None
    """Of the kernel file."""
    fault: FaultKind | None = None

    @property
    def clean(self) -> bool:
        return self.ran and not self.errors


def sanitize(
    program: Program,
    image: Image,
    tensors: Mapping[str, torch.Tensor],
    device: int,
    *,
    tools: tuple[Tool, ...] = TOOLS,
    deadline_s: float = DEADLINE_S,
) -> list[Finding]:
    """One finding for each tool, in their order."""
    command = find_tool("compute-sanitizer")
    if command is None:
        return [
            Finding(tool, False, message="compute-sanitizer is not installed; it comes with the CUDA toolkit")
            for tool in tools
        ]
    with job_folder(program, image, tensors, device) as folder, ThreadPoolExecutor(len(tools)) as side_by_side:
        runs = side_by_side.map(lambda tool: run_under([command, *arguments(tool)], folder, deadline_s), tools)
        return [parse(tool, run, program.filename) for tool, run in zip(tools, runs, strict=True)]


def arguments(tool: Tool) -> list[str]:
    more = ["--racecheck-detect-level", "error"] if tool == "racecheck" else []
    return [
        "--tool",
        tool,
        "--print-limit",
        "20",
        "--error-exitcode",
        str(FOUND),
        "--report-api-errors",
        "no",
        "--show-backtrace",
        "no",
        *more,
    ]


def parse(tool: Tool, run: ToolRun, filename: str) -> Finding:
    """What a run's output says. Without the tool's own summary nothing is known, whatever the exit status."""
    if run.status is None:
        return Finding(tool, False, message=f"{tool} did not end in time")
    said = [line.removeprefix(PREFIX).strip() for line in run.output.splitlines() if line.startswith(PREFIX)]
    summary = next(
        (
            match
            for line in said
            if (
                match := re.match(
                    r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)(?: displayed \((\d+) errors?)?", line
                )
            )
        ),
        None,
    )
    if summary is None:
        last = next((line for line in reversed(run.output.splitlines()) if line.strip()), "nothing")
        return Finding(tool, False, message=f"{tool} failed with status {run.status}; it said: {last.strip()[:300]}")
    errors = int(summary[2] if summary[2] is not None else summary[1])
    if not errors:
        if run.status:
            return Finding(
                tool, False, message=f"the program ended with status {run.status} under {tool}, which found nothing"
            )
        return Finding(tool, True)
    return _first(tool, said, errors, filename)


def _first(tool: Tool, said: list[str], errors: int, filename: str) -> Finding:
    """The first error and the lines that tell more of it, up to the next empty one."""
    begin = next((index for index, line in enumerate(said) if _is_error(line)), None)
    if begin is None:
        return Finding(tool, True, errors, f"{errors} errors", fault=_FAULTS[tool])
    block = []
    for line in said[begin:]:
        if not line or "SUMMARY" in line or (block and _is_error(line)):
            break
        block.append(line)
    text = "; ".join(block)
    place = re.search(rf"{re.escape(filename.rpartition('/')[2])}:(\d+)", text)
    kernel = re.search(r"\bat (?:0x[0-9a-f]+ in )?(?:\S+:\d+:)?(?:void )?(\w+)", text)
    fault: FaultKind = "misaligned" if "misaligned" in text else _FAULTS[tool]
    return Finding(tool, True, errors, text, kernel[1] if kernel else "", int(place[1]) if place else None, fault)


def _is_error(line: str) -> bool:
    return bool(
        re.match(r"Invalid |Error: |Uninitialized |Barrier error|Race reported|Fatal |Program hit |Misaligned ", line)
    )
