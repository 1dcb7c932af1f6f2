"""What a package's guards cost: CPU microseconds of one call, over calling the function itself.

    python -m benchmarks.guards          writes benchmarks/results/guards-cpu.json

The kernel is replaced by nothing, so that what is left of a matching call is the guard, the counter and the result's
allocation. Each figure is the least of several medians of thread time: other processes can only add.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.results import FOLDER, header, write
from forge_tui.engine.package.runtime import Entry, Package
from tests.packagekit import aligned, write_package

CALLS, ROUNDS = 20_000, 15


class Nothing:
    """A backend whose kernels do nothing."""

    device_type = "cpu"

    def prepare(self, entry: Entry, device: torch.device) -> Callable[[Any], None]:
        return lambda tensors: None


class One(torch.nn.Module):
    """One call and nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


def microseconds(call: Callable[[], object]) -> float:
    """Thread time of one call: the least over rounds of the mean within one."""
    def once() -> float:
        begin = time.thread_time()
        for _ in range(CALLS):
            call()
        return (time.thread_time() - begin) / CALLS * 1e6
    return min(once() for _ in range(ROUNDS))


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        package = Package(write_package(Path(folder) / "p"), Nothing())
        plain, forged = One(), package.apply(One())
        x = aligned(4, 8)
        misses = {"shape": x[:3], "dtype": x.double(), "stride": x.t().contiguous().t(),
                  "alignment": aligned(4, 8, offset=1)}
        rows = {}
        for name, tensor in misses.items():
            paired = [(microseconds(lambda: forged(tensor)), microseconds(lambda: plain(tensor))) for _ in range(3)]
            rows[f"does not match: {name}"] = round(statistics.median(one - other for one, other in paired), 3)
        eager = microseconds(lambda: F.relu(x))
        softmax = microseconds(lambda: F.softmax(x, dim=-1))
        matching = microseconds(lambda: forged(x)) - microseconds(lambda: plain(x)) + eager
        allocation = microseconds(lambda: torch.empty_strided((4, 8), (8, 1), dtype=x.dtype, device=x.device))
    document = {**header("guards"), "us": rows, "matches, result allocated": round(matching, 3), "eager relu": round(eager, 3),
                "eager softmax": round(softmax, 3), "empty_strided": round(allocation, 3)}
    print(json.dumps(document, indent=1))
    write(FOLDER / "guards-cpu.json", document)


if __name__ == "__main__":
    main()
