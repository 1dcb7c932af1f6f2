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

from benchmarks.guardcases import CASES, DTYPE, Case, Nothing, SilentDriver, no_device, packed, with_constant
from benchmarks.results import FOLDER, header, write
from forge_tui.engine.package.runtime import Package

CALLS, ROUNDS, PASSES = 300, 60, 3
"""Many short rounds, interleaved: the least is of one that nothing interrupted, and contenders meet the same disturbances. Passes over all
cases: a neighbour that is busy for seconds slows everything, also what interrupts nothing."""

Times = dict[str, list[float]]
"""By contender the time of one call in microseconds, one figure a round."""


def interleaved(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> Times:
    """Thread time."""
    times: Times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.thread_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.thread_time() - begin) / CALLS * 1e6)
    return times


def apart(times: Times, one: str, other: str) -> dict[str, float]:
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
    "constant": lambda t: t,
}


def missing(case: Case, plain: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, tuple[Any, ...]]:
    """By guard the arguments of a call that violates it."""
    found = {}
    for miss, change in MISSES.items():
        if miss != "constant" or case.constant is not None:
            model = copy.deepcopy(plain).to("meta" if miss == "device" else "cpu")
            given = case.arguments(model, tuple(change(item) for item in args))
            found[miss] = with_constant(case, model, given) if miss == "constant" else given
    return found


def around(miss: str) -> Any:
    if miss == "autocast":
        return torch.autocast("cpu", torch.bfloat16)
    return torch.enable_grad() if miss == "gradient" else contextlib.nullcontext()


def measured(folder: Path, name: str) -> dict[str, Times]:
    """The whole matched call in a model, the eager one and the model's own call; and by miss what `misses` gives."""
    case = CASES[name]
    model, args = case.make().to(DTYPE).eval().requires_grad_(False), case.inputs()
    plain = copy.deepcopy(model)
    package, empty = packed(folder, model, args), Nothing()
    package.apply(model)
    times = interleaved({"forged": lambda: model(*args), "eager": lambda: plain(*args), "empty": lambda: empty(*args)})
    assert ran(package) == ROUNDS * CALLS, f"{name}: not one kernel a call: {package.report()}"
    return {"match": times, **misses(case, plain, args, package)}


def misses(case: Case, plain: torch.nn.Module, args: tuple[torch.Tensor, ...], package: Package) -> dict[str, Times]:
    """A call that is turned away, without the original, which is replaced by nothing: where none has matched, and where one has."""
    first, stand_in = (case.stand_in(package, nothing) for _ in range(2))
    stand_in(*case.arguments(plain, args))
    before, found = ran(package), {}
    for miss, given in missing(case, plain, args).items():
        with around(miss):
            assert stand_in(*given) is None and first(*given) is None, f"{miss} matches"
            found[miss] = interleaved({"after": lambda: stand_in(*given), "first": lambda: first(*given),
                                       "original": (lambda: None) if case.inline else lambda: nothing(*given)}, ROUNDS // 2)
    assert ran(package) == before
    return found


def row(times: dict[str, Times]) -> dict[str, Any]:
    """What a match, eager and each miss cost, the model's own call, or the original's, taken off."""
    return {"matches": apart(times["match"], "forged", "empty"), "eager": apart(times["match"], "eager", "empty"),
            "does not match": {miss: {"before a match": apart(times[miss], "first", "original"),
                                      "after one": apart(times[miss], "after", "original")} for miss in times if miss != "match"}}


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
    times: dict[str, dict[str, Times]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), no_device():
        for number in range(PASSES):
            for at, name in enumerate(wanted):
                for what, found in measured(Path(folder) / f"{number}-{at}", name).items():
                    for contender, figures in found.items():
                        times.setdefault(name, {}).setdefault(what, {}).setdefault(contender, []).extend(figures)
        document = {**header("guards"), "parts_of_a_match_us": pieces(), "us": {name: row(found) for name, found in times.items()}}
    print(json.dumps(document, indent=1))
    if len(wanted) == len(CASES):
        write(FOLDER / "guards-cpu.json", document)


if __name__ == "__main__":
    main()
