"""What a package's guards cost: CPU microseconds of one call, matched and not, beside the eager call it replaces.

    python -m benchmarks.guards          writes benchmarks/results/guards-cpu.json
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.guardcases import CASES, Nothing, no_device, packed
from benchmarks.results import FOLDER, header, write

CALLS, ROUNDS = 300, 120
"""Many short rounds, interleaved: the least is of one that nothing interrupted, and contenders meet the same disturbances."""


def interleaved(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Thread time of one call in microseconds, by contender one figure a round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.thread_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.thread_time() - begin) / CALLS * 1e6)
    return times


def apart(times: dict[str, list[float]], one: str, other: str) -> dict[str, float]:
    """How much more `one` costs: of the least of all rounds, and the median of the differences within rounds."""
    return {"least": round(min(times[one]) - min(times[other]), 3),
            "median": round(statistics.median(a - b for a, b in zip(times[one], times[other], strict=True)), 3)}


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides one element past where they lay."""
    room = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
    begin = -(room.data_ptr() // tensor.element_size()) % 64 + 1
    return room[begin:begin + tensor.numel()].view_as(tensor).copy_(tensor)


MISSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shape": lambda t: torch.cat([t, t]), "dtype": torch.Tensor.float,
    "stride": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), "alignment": moved,
}


def measured(folder: Path, name: str) -> dict[str, Any]:
    make, inputs = CASES[name]
    model, args = make().to(inputs()[0].dtype).eval().requires_grad_(False), inputs()
    plain = copy.deepcopy(model)
    package, nothing = packed(folder, model, args), Nothing()
    package.apply(model)
    model(*args)
    before = sum(kernel["calls"] for kernel in package.report()["kernels"])
    model(*args)
    after = sum(kernel["calls"] for kernel in package.report()["kernels"])
    kernels = after - before
    assert kernels, f"{name}: {package.report()}"
    times = interleaved({"forged": lambda: model(*args), "eager": lambda: plain(*args), "nothing": lambda: nothing(*args)})
    row: dict[str, Any] = {"kernels": kernels, "matches": apart(times, "forged", "nothing"), "eager": apart(times, "eager", "nothing")}
    for miss, change in MISSES.items() if kernels == 1 else ():  # elsewhere the second may match what the first returns
        own, other = (model, plain)
        if miss == "dtype":
            own, other = package.apply(copy.deepcopy(plain).float()), copy.deepcopy(plain).float()
        changed = tuple(change(item) for item in args)
        try:
            other(*changed)
        except RuntimeError:
            continue
        times = interleaved({"forged": lambda: own(*changed), "eager": lambda: other(*changed)})
        row[f"does not match: {miss}"] = apart(times, "forged", "eager")
    ran = sum(kernel["calls"] for kernel in package.report()["kernels"])
    assert ran == after + ROUNDS * CALLS * kernels, f"{name}: a call that must not match did"
    return row


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), no_device():
        rows = {name: measured(Path(folder) / str(at), name) for at, name in enumerate(wanted)}
    document = {**header("guards"), "us": rows}
    for name, row in rows.items():
        print(f"{name:28s}", " ".join(f"{key.replace('does not match: ', 'x ')} {value['least']:.2f}/{value['median']:.2f}" for key, value in row.items() if key != "kernels"))
    if len(rows) == len(CASES):
        write(FOLDER / "guards-cpu.json", document)


if __name__ == "__main__":
    main()
