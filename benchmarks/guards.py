"""What a package's guards cost: CPU microseconds of one call, matched and not, beside the eager call it replaces.

    python -m benchmarks.guards          writes benchmarks/results/guards-cpu.json

The matched call is whole, from the model's code to the call of the driver, which does nothing: guards, counter, results
allocated, arguments packed. Eager runs on a few elements, so that its time is that of the calls, and launches nothing either. Contenders take turns
in one process; figures are the least of all rounds, since other processes can only add, and the median within rounds.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.guardcases import CASES, DTYPE, Case, Nothing, SilentDriver, no_device, packed
from benchmarks.results import FOLDER, header, write
from forge_tui.engine.package.runtime import Package

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
    "shape": lambda t: torch.cat([t, t]), "dtype": torch.Tensor.float, "stride": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "alignment": moved, "gradient": lambda t: t.clone().requires_grad_(), "autocast": lambda t: t, "device": lambda t: t.to("meta"),
}


def around(miss: str) -> Any:
    if miss == "autocast":
        return torch.autocast("cpu", torch.bfloat16)
    return torch.enable_grad() if miss == "gradient" else contextlib.nullcontext()


def measured(folder: Path, name: str) -> dict[str, Any]:
    """One row: the whole matched call in a model and the eager one, the model's own call taken off both; and what misses add."""
    case = CASES[name]
    model, args = case.make().to(DTYPE).eval().requires_grad_(False), case.inputs()
    plain = copy.deepcopy(model)
    package, empty = packed(folder, model, args), Nothing()
    package.apply(model)
    times = interleaved({"forged": lambda: model(*args), "eager": lambda: plain(*args), "empty": lambda: empty(*args)})
    assert ran(package) == ROUNDS * CALLS, f"{name}: not one kernel a call: {package.report()}"
    return {"matches": apart(times, "forged", "empty"), "eager": apart(times, "eager", "empty"), "does not match": misses(case, plain, args, package)}


def misses(case: Case, plain: torch.nn.Module, args: tuple[torch.Tensor, ...], package: Package) -> dict[str, Any]:
    """What a call costs that is turned away, without the original, which is replaced by nothing: where none has matched, and where one has."""
    first, stand_in = (case.stand_in(package, nothing) for _ in range(2))
    stand_in(*case.arguments(plain, args))
    before, found = ran(package), {}
    for miss, change in MISSES.items():
        given = case.arguments(copy.deepcopy(plain).to("meta") if miss == "device" else plain, tuple(change(item) for item in args))
        with around(miss):
            assert stand_in(*given) is None and first(*given) is None, f"{miss} matches"
            times = interleaved({"after": lambda: stand_in(*given), "first": lambda: first(*given),
                                 "original": (lambda: None) if case.inline else lambda: nothing(*given)}, ROUNDS // 2)
        found[miss] = {"before a match": apart(times, "first", "original"), "after one": apart(times, "after", "original")}
    assert ran(package) == before
    return found


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for an original."""


def ran(package: Package) -> int:
    return sum(kernel["calls"] for kernel in package.report()["kernels"])


def pieces() -> dict[str, float]:
    """What no guard can save: the allocation of one result, and a call through ctypes of a function that does nothing."""
    submit, memory = SilentDriver().cuLaunchKernelEx, ctypes.byref(ctypes.c_uint64())
    function = ctypes.c_void_p.from_param(1)
    allocate = torch._C._dynamo.guards._empty_strided_cpu
    times = interleaved({"allocation": lambda: allocate((4, 8), (8, 1), DTYPE), "driver": lambda: submit(memory, function, memory, None), "": lambda: None})
    return {name: apart(times, name, "")["least"] for name in ("allocation", "driver")}


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), no_device():
        document = {**header("guards"), "parts_of_a_match_us": pieces(),
                    "us": {name: measured(Path(folder) / str(at), name) for at, name in enumerate(wanted)}}
    print(json.dumps(document, indent=1))
    if len(wanted) == len(CASES):
        write(FOLDER / "guards-cpu.json", document)


if __name__ == "__main__":
    main()
