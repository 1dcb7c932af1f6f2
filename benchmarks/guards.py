"""What a package's guards cost: CPU microseconds of one call, over calling the function itself.

    python -m benchmarks.guards          writes benchmarks/results/guards-cpu.json

Regions: one of each kind, a whole forward with its kernel, and what a call that does not match adds to eager's.

The kernel is replaced by nothing, so that what is left of a matching call is the guard, the counter and the result's
allocation. Each figure is the least of several medians of thread time: other processes can only add.
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
import torch.nn.functional as F

from benchmarks.results import FOLDER, header, write
from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.export import Winner, export_package
from forge_tui.engine.package.runtime import Entry, Package
from forge_tui.store.kernels import save_kernel
from forge_tui.store.paths import ProjectPaths
from tests.packagekit import aligned, write_package

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from region_kit import captured  # noqa: E402 - found beside the models that it is for
from test_region_guards import CASES  # noqa: E402

CALLS, ROUNDS = 2_000, 40
"""Many short rounds: the least is of one that nothing interrupted."""


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


def region(folder: Path, name: str) -> dict[str, float]:
    """Of one region of `tests/test_region_guards.py`: a forward whose kernel does nothing, eager's, and what a miss adds to it."""
    make, args = CASES[name]
    model = make().eval().requires_grad_(False)
    plain = copy.deepcopy(model)
    _, cards = captured(model, *args)
    paths, (variant,) = ProjectPaths(folder / "project"), [item for item in cards.variants if item.covers and item.offered]
    kernel = next(item for item in kernels_for(variant.call) if not parse(item.text, "k.cu").refusal(variant.call, H200))
    settings = parse(kernel.text, "k.cu").points(variant.call, H200)[0]
    winner = Winner(variant, save_kernel(paths, kernel.text), Verdict("verified", "not judged: it never runs", settings=settings))
    exported = export_package(paths, cards, [winner], H200, folder / "out")
    package = Package(exported.folder / exported.module, Nothing())
    package.apply(model)
    missed = tuple(torch.cat([tensor, tensor]) for tensor in args)
    adds = statistics.median(microseconds(lambda: model(*missed)) - microseconds(lambda: plain(*missed)) for _ in range(3))
    return {"matches, result allocated": round(microseconds(lambda: model(*args)), 3),
            "eager": round(microseconds(lambda: plain(*args)), 3), "does not match: shape": round(adds, 3)}


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
        regions = {name: region(Path(folder) / name.replace(" ", "-"), name) for name in CASES}
    document = {**header("guards"), "us": rows, "matches, result allocated": round(matching, 3), "eager relu": round(eager, 3),
                "eager softmax": round(softmax, 3), "empty_strided": round(allocation, 3), "regions": regions}
    print(json.dumps(document, indent=1))
    write(FOLDER / "guards-cpu.json", document)


if __name__ == "__main__":
    main()
