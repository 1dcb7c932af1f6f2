"""Group norm by kernels that keep whole groups on the chip: results of small settings in several orders of warps, refusals, and a build
of every shipped setting."""

from __future__ import annotations

import re

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hostkit import needs_nvrtc

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200, DeviceFacts
from forge_tui.cuda.host.orders import FORWARD, IN_STEP, REVERSE
from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.specs import Call, TensorSpec
from tests.kernels import FLOATS, Sample, assert_right, bound, draw, parsed, run, sample
from tests.region_cases import normed

pytestmark = needs_nvrtc

RELAYS = {  # tiles of 2 KiB, dealt to three blocks; widths in bytes
    "ring goes round": ((1, 16, 32, 128), 2, {"SLOTS": 8, "RING": 6, "KEPT": 0}),
    "registers too": ((1, 16, 32, 128), 2, {"SLOTS": 5, "RING": 3, "KEPT": 3}),
    "registers above all": ((1, 16, 32, 128), 2, {"SLOTS": 3, "RING": 1, "KEPT": 4}),
    "several groups a turn": ((5, 32, 16, 32), 8, {"SLOTS": 4, "RING": 1, "KEPT": 0}),
    "fewer tiles than places": ((1, 8, 8, 128), 2, {"SLOTS": 8, "RING": 5, "KEPT": 2}),
}
CLUSTERS = {
    "two channels a block": ((2, 16, 32, 64), 4, {"CLUSTER": 2, "BLOCK": 64, "PIECES": 2, "LATE": 1}),
    "one and a half": ((1, 12, 32, 64), 2, {"CLUSTER": 4, "BLOCK": 32, "PIECES": 3, "LATE": 0}),
    "half a channel": ((3, 4, 32, 64), 4, {"CLUSTER": 2, "BLOCK": 32, "PIECES": 2, "LATE": 0}),
    "more warps than lanes": ((1, 8, 32, 256), 1, {"CLUSTER": 8, "BLOCK": 256, "PIECES": 2, "LATE": 0}),
}
AFFINE = ("both", "weight", "none", "silu")


def _sample(shape: tuple[int, ...], groups: int, dtype: torch.dtype, kind: str) -> Sample:
    """The last of `shape` is in bytes."""
    sizes = (*shape[:-1], shape[-1] // dtype.itemsize)
    if kind == "silu":
        return normed(*sizes, groups=groups, dtype=dtype, shift=3.0)
    weight, bias = (draw(sizes[1], dtype=dtype, seed=seed) for seed in (1, 2))
    return sample(F.group_norm, draw(*sizes, dtype=dtype), groups, weight if kind != "none" else None, bias if kind == "both" else None)


def _kernel(name: str, item: Sample, settings: dict[str, int]) -> tuple[BuiltinKernel, dict[str, int], DeviceFacts]:
    """The file that a large call of the same kind is offered, with these settings, and a device of three multiprocessors for it."""
    call, size = item.call, item.call.outputs[0].itemsize
    large = _spec(call.outputs[0].dtype, 16, call.outputs[0].shape[1], 256, 128)
    kernel = next(kernel for kernel in kernels_for(Call(call.operator, {**call.arguments, "input": large}, (large,)))
                  if kernel.name == name)
    if name == "group_relay":
        settings = {"WARPS": 4, "CHUNK": 512 // size, **settings, "LOADS": settings["KEPT"] % 2}
    settings = {**settings, "STREAM": 1}
    point = ", ".join(f"{key} = {value}" for key, value in settings.items())
    text, count = re.subn(r"points = \[\n.*?\]\n", f"points = [{{ {point} }}]\n", kernel.text, flags=re.DOTALL)
    assert count == 1
    shared = settings["SLOTS"] * 2048 + 2560 if name == "group_relay" else H200.max_shared
    return msgspec.structs.replace(kernel, text=text), settings, msgspec.structs.replace(H200, sm_count=3, max_shared=shared)


def _spec(dtype: str, *shape: int) -> TensorSpec:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorSpec(dtype, shape, tuple(reversed(stride)))


def _check(name: str, case: tuple[tuple[int, ...], int, dict[str, int]], dtype: torch.dtype, kind: str, order: str = IN_STEP) -> None:
    item = _sample(case[0], case[1], dtype, kind)
    kernel, settings, device = _kernel(name, item, case[2])
    target = HostTarget()
    target.schedule = order
    assert_right(run(kernel, item, settings, device, target), item, f"{name} {settings} on {item.call}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", RELAYS)
def test_a_relay_is_right(case: str, dtype: torch.dtype) -> None:
    turn = list(RELAYS).index(case) + FLOATS.index(dtype)
    _check("group_relay", RELAYS[case], dtype, AFFINE[turn % 4])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CLUSTERS)
def test_a_cluster_is_right(case: str, dtype: torch.dtype) -> None:
    turn = list(CLUSTERS).index(case) + FLOATS.index(dtype)
    _check("group_cluster", CLUSTERS[case], dtype, AFFINE[turn % 4])


@pytest.mark.parametrize("order", [FORWARD, REVERSE, "random 3"])
@pytest.mark.parametrize(("name", "case"), [("group_relay", RELAYS["registers too"]), ("group_cluster", CLUSTERS["one and a half"])])
def test_results_do_not_depend_on_the_order_of_warps(name: str, case: tuple[tuple[int, ...], int, dict[str, int]], order: str) -> None:
    _check(name, case, torch.bfloat16, "silu", order)


def _call(*shape: int, dtype: str = "bfloat16", align: int = 64) -> Call:
    image, channels = msgspec.structs.replace(_spec(dtype, *shape), align=align), _spec(dtype, shape[1])
    return Call("torch.nn.functional.group_norm+torch.nn.functional.silu",
                {"input": image, "num_groups": 32, "weight": channels, "bias": channels, "eps": 1e-6}, (image,))


FIRST = {  # by the measured best, on an H200 in bfloat16
    (1, 256, 1024, 1024): ("group_relay", (8, 1024, 13, 9, 6)), (1, 512, 512, 512): ("group_relay", (8, 2048, 6, 4, 2)),
    (1, 256, 512, 512): ("group_relay", (16, 1024, 6, 4, 0)), (1, 512, 256, 256): ("group_relay", (8, 2048, 6, 3, 0)),
    (1, 512, 128, 128): ("group_cluster", (8, 256, 4, 1)), (1, 512, 64, 64): ("group_cluster", (8, 128, 4, 0)),
}


@pytest.mark.parametrize("shape", FIRST)
def test_the_first_guess_is_the_fastest_measured(shape: tuple[int, ...]) -> None:
    name, values = FIRST[shape]
    kernel = kernels_for(_call(*shape))[0]
    points = parsed(kernel.text, kernel.name).points(_call(*shape), H200)
    assert (kernel.name, tuple(points[0].values())[:len(values)]) == (name, values)
    assert len(points) <= 16, "a search of 16 settings tries all"


def _whole(call: Call) -> list[BuiltinKernel]:
    return [kernel for kernel in kernels_for(call) if kernel.name.startswith("group_")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("multiprocessors", [1, 8, 78, 114, 132, 148, 188])
def test_a_device_that_cannot_hold_a_group_is_refused(multiprocessors: int, dtype: str) -> None:
    """Every legal setting lets a block take its last tile of a group before it waits for that group."""
    accepted = 0
    for shared, cc in ((H200.max_shared, 90), (101376, 120)):
        device = msgspec.structs.replace(H200, sm_count=multiprocessors, max_shared=shared, cc=cc)
        for shape in ((1, 512, 1024, 1024), (1, 256, 1024, 1024), (1, 512, 512, 512), (1, 512, 256, 256), (1, 512, 128, 256), (4, 512, 96, 96)):
            call = _call(*shape, dtype=dtype)
            for kernel in _whole(call):
                for point in parsed(kernel.text, kernel.name).points(call, device):
                    accepted += 1
                    plan = bound(kernel, call, point, device).launches[0]
                    assert plan.shared <= shared
                    if kernel.name == "group_relay":
                        tiles = call.outputs[0].numel // 32 // shape[0] // (point["WARPS"] * point["CHUNK"])
                        assert point["RING"] + point["KEPT"] >= (tiles - 1) // plan.grid[0]
                        assert point["SLOTS"] > point["RING"]
                        assert plan.grid[0] <= multiprocessors, "a cooperative grid is resident at once"
    assert accepted
    huge = _whole(_call(1, 512, 1024, 1024))[0]
    few = msgspec.structs.replace(H200, sm_count=8)
    assert "RING + KEPT" in (parsed(huge.text, huge.name).refusal(_call(1, 512, 1024, 1024), few) or "")


def test_other_devices_addresses_and_sizes_are_refused() -> None:
    call = _call(1, 512, 128, 128)
    for kernel in _whole(call):
        file = parsed(kernel.text, kernel.name)
        assert file.refusal(call, msgspec.structs.replace(H200, cc=80)) is not None
        for other in (_call(1, 512, 128, 128, align=8), _call(1, 512, 125, 125), _call(1, 512, 128, 128, dtype="float32")):
            assert file.refusal(call, H200) is None
            assert other.outputs[0].dtype == "float32" or file.refusal(other, H200) is not None
    for call in (_call(1, 512, 128, 128, align=8), _call(1, 512, 125, 125), _call(1, 512, 8, 8), _call(1, 512, 4096, 1024)):
        assert _whole(call) == []


def _builds() -> dict[str, tuple[BuiltinKernel, Call, dict[str, int]]]:
    """The relay in bfloat16 with silu, which takes most registers: everything that decides how many."""
    found = {}
    for shape in FIRST:
        call = _call(*shape)
        for kernel in _whole(call):
            for point in parsed(kernel.text, kernel.name).points(call, H200) if kernel.name == "group_relay" else []:
                found.setdefault(" ".join(f"{name}{point[name]}" for name in ("WARPS", "CHUNK", "KEPT")), (kernel, call, point))
    return found


BUILDS = _builds()


@pytest.mark.parametrize("case", BUILDS)
def test_a_relay_builds_without_spills(case: str) -> None:
    kernel, call, settings = BUILDS[case]
    image = compile_program(bound(kernel, call, settings), kind="cubin")
    assert sum(info.spill_bytes or 0 for info in image.kernels) == 0, settings
    assert image.log == "", image.log
