"""Group norm of contiguous tensors by kernels that keep whole groups on the chip: which of them fit a call, and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from forge_tui.engine.builtin.families.elementwise import activation_of, after_function
from forge_tui.engine.builtin.families.layout import quoted
from forge_tui.engine.builtin.registry import Recipe
from forge_tui.specs import Call, TensorSpec

KIB, MIB = 1 << 10, 1 << 20
CLUSTER_GROUPS = (16 * KIB, 8 * 224 * KIB)
"""Bytes of a group for a cluster: less is for one block, more does not fit the shared memory of eight blocks."""

CLUSTER_NUMEL = 1 << 18
"""Elements from which clusters are worth their start."""

RELAY_BYTES = 8 * MIB
"""Bytes of a tensor from which every multiprocessor of a large device has tiles enough for a relay."""

RELAY_GROUP = 32 * MIB
"""Most bytes of a group for a relay: what 132 multiprocessors hold in shared memory and registers."""

CLUSTER_FIRST = MIB
"""Groups below this many bytes are faster in a cluster (measured at 128 KiB and 512 KiB; the relay from 2 MiB)."""

LARGE_RESULT = 128 * MIB
"""Results from which keeping them in an L2 of 60 MiB is of no use (measured: at 64 MiB it still is)."""

RELAY_NAMES = ("WARPS", "CHUNK", "SLOTS", "RING", "KEPT", "LOADS", "STREAM")
RELAY = (
    (3 * MIB, [(8, 4096, 6, 3, 0, 1, 2), (16, 2048, 6, 4, 0, 1, 2), (16, 2048, 6, 4, 0, 0, 0), (8, 4096, 6, 2, 0, 1, 0),
               (16, 2048, 6, 2, 0, 1, 2), (8, 4096, 6, 3, 0, 0, 2), (16, 2048, 6, 4, 0, 0, 1), (8, 2048, 13, 9, 0, 1, 1),
               (8, 1024, 27, 10, 0, 1, 1)]),
    (6 * MIB, [(16, 2048, 6, 4, 0, 1, 1), (8, 2048, 13, 9, 0, 1, 1), (8, 4096, 6, 4, 0, 1, 1), (16, 2048, 6, 4, 0, 0, 1),
               (8, 2048, 13, 9, 0, 1, 0), (16, 2048, 6, 4, 2, 1, 1), (8, 4096, 6, 4, 2, 0, 1), (8, 1024, 27, 21, 0, 1, 1)]),
    (12 * MIB, [(8, 4096, 6, 4, 2, 1, 1), (16, 2048, 6, 4, 2, 1, 1), (8, 2048, 13, 9, 4, 0, 1), (8, 4096, 6, 4, 2, 0, 1),
                (16, 2048, 6, 4, 2, 0, 1), (8, 2048, 13, 9, 6, 1, 1), (16, 1024, 13, 9, 4, 1, 1), (8, 2048, 13, 10, 0, 1, 1),
                (8, 1024, 27, 21, 0, 1, 1)]),
    (20 * MIB, [(8, 2048, 13, 9, 6, 1, 1), (16, 1024, 13, 10, 5, 1, 1), (8, 2048, 13, 9, 6, 0, 1), (16, 1024, 13, 10, 5, 0, 1),
                (8, 2048, 13, 10, 6, 1, 1), (16, 1024, 13, 9, 5, 1, 1), (8, 2048, 13, 8, 6, 0, 1), (8, 2048, 13, 10, 4, 0, 1),
                (8, 1024, 27, 22, 8, 1, 1)]),
    (RELAY_GROUP, [(8, 2048, 13, 11, 6, 1, 1), (16, 1024, 13, 12, 5, 1, 1), (8, 2048, 13, 12, 6, 1, 1),
                   (8, 2048, 13, 11, 6, 0, 1), (16, 1024, 13, 12, 5, 0, 1), (8, 2048, 13, 12, 6, 0, 1)]),
)
"""By the most bytes of a group: settings, best guess first, CHUNK in bytes. Measured on an H200 in bfloat16 at 2, 4, 8 and 16 MiB; each
list ends with a small CHUNK, which planes of odd sizes allow."""

SMALL_MEMORY = [(8, 2048, 5, 4, 6, 0, 1), (8, 2048, 5, 3, 0, 0, 1)]
"""For devices of 99 KiB of shared memory a block (compute capability 12.0); not measured."""


def whole_groups(call: Call, groups: int, parameters: dict[str, TensorSpec], guards: Sequence[str]) -> Iterator[Recipe]:
    """The kernels that may hold the call's groups, best guess first. Input and result are contiguous.

    guards: conditions on weight and bias.
    """
    source = call.arguments["input"]
    assert isinstance(source, TensorSpec)
    count = source.shape[0] * groups
    plane, group = (size * source.itemsize for size in (prod(source.shape[2:]), source.numel // max(count, 1)))
    words = _words(call, parameters, guards)
    found = []
    in_cluster = cluster_points(group, plane, count, source)
    if in_cluster:
        found.append(Recipe("group_cluster", "pipelining", "a cluster holds its group: moments by remote stores, weights fetched beside "
                            "the data", {**words, "POINTS": _toml(in_cluster)}))
    in_relay = relay_points(group, plane, count, source)
    if in_relay:
        found.append(Recipe("group_relay", "pipelining", "tiles wait for their group's moments in shared memory, then in registers",
                            {**words, "POINTS": _toml(in_relay)}))
    yield from found if group < CLUSTER_FIRST else reversed(found)


def cluster_points(group: int, plane: int, count: int, source: TensorSpec) -> list[dict[str, int]]:
    """Settings of `group_cluster`, best guess first: at most six of the best cluster size, three of the others.

    group, plane: bytes. count: of groups.
    """
    if not CLUSTER_GROUPS[0] <= group <= CLUSTER_GROUPS[1] or source.numel < CLUSTER_NUMEL or source.align < 16:
        return []
    stream = int(source.numel * source.itemsize >= LARGE_RESULT)
    points = []
    for cluster in cluster_sizes(count, group // source.itemsize):
        share = group // cluster
        own = [{"CLUSTER": cluster, "BLOCK": block, "PIECES": pieces, "LATE": late, "STREAM": stream}
               for block, pieces, late in _pieces(share, plane)] if group % (16 * cluster) == 0 else []
        points += own[:3 if points else 6]
    return points


def _pieces(share: int, plane: int) -> list[tuple[int, int, int]]:
    """(BLOCK, PIECES, LATE) that divide a block's share: four pieces first, and few threads where the share is small."""
    found = []
    for block in (256, 128, 512) if share >= 32 * KIB else (128, 256, 64):
        turns = share // (block * 16)                       # accesses of a thread
        if share % (block * 16) or plane % (block * 16):
            continue
        for pieces in (2, 4, 8, 3, 6, 5, 7) if block == 512 else (4, 8, 2, 3, 6, 5, 7):
            if turns % pieces == 0 and turns // pieces <= 8:
                found.append((block, pieces, 0))
    if found and found[0][0] == 256:                        # two clusters on a multiprocessor: the second's loads come later
        found.insert(0, (*found[0][:2], 1))
    return found


def cluster_sizes(rows: int, cols: int) -> list[int]:
    """Blocks of a cluster, best guess first: enough of them to fill a large device."""
    return [8, 4, 2] if rows * 8 <= 264 or cols >= 1 << 17 else [4, 8, 2] if rows * 4 <= 264 else [2, 4, 8]


def relay_points(group: int, plane: int, count: int, source: TensorSpec) -> list[dict[str, int]]:
    """Settings of `group_relay`, best guess first; none where the call is too small, or no tile divides its groups.

    group, plane: bytes. count: of groups. The file's own conditions leave out what a device does not allow.
    """
    size = source.numel * source.itemsize
    if size < RELAY_BYTES or not 0 < group <= RELAY_GROUP or count > 1024 or source.align < 16:
        return []
    rows = next(rows for most, rows in RELAY if group <= most)
    if group <= RELAY[0][0] and size <= 32 * MIB:           # few tiles a block: what waits must be little
        rows = sorted(rows, key=lambda row: row[3] > 2)
    points = []
    for warps, chunk, slots, ring, kept, loads, stream in [*rows, *SMALL_MEMORY]:
        if group % (warps * chunk) == 0 and plane % chunk == 0:
            values = (warps, chunk // source.itemsize, slots, ring, kept, loads, 1 if size >= LARGE_RESULT else stream)
            points.append(dict(zip(RELAY_NAMES, values, strict=True)))
    return [point for i, point in enumerate(points) if point not in points[:i]]


def _words(call: Call, parameters: dict[str, TensorSpec], guards: Sequence[str]) -> dict[str, str]:
    value = "fmaf(x[i] - mean, scale, wb.y)"
    return {
        "GUARD": quoted(["input.contiguous", "out.contiguous", "present(eps)", *guards]),
        "PARAMETERS": "".join(f", const DTYPE_{name}* __restrict__ {name}" for name in parameters) + ", float eps",
        "ARGS": "".join(f', "{name}"' for name in parameters) + ', { float = "eps" }',
        "AFTER": after_function(activation_of(call.operator)),
        "RESULT": f"after({value})" if "+" in call.operator else value,
        "WEIGHT": "forge::to_float(weight[i])" if "weight" in parameters else "1.f",
        "BIAS": "forge::to_float(bias[i])" if "bias" in parameters else "0.f"}


def _toml(points: list[dict[str, int]]) -> str:
    lines = ["{ " + ", ".join(f"{name} = {value}" for name, value in point.items()) + " }" for point in points]
    return "[\n    " + ",\n    ".join(lines) + "]"
