"""What a device can do at the most, measured once and stored: copy bandwidth, an empty launch, matrix rates."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import Argument, Launch, Program
from forge_tui.cuda.statistics import Stop

if TYPE_CHECKING:
    from forge_tui.cuda.gpu import GpuTarget

FORMAT = 1
COPY_BYTES = 1 << 30
"""Of each buffer, or a sixteenth of the free memory where that is less."""
MATRIX = 8192
"""Rows of the square matrices whose product is timed."""
PATIENT = Stop(least=15, most=60, spread=0.01, seconds=0.3)

COPY = """extern "C" __global__ void __launch_bounds__(THREADS) copy(const uint4* __restrict__ input, uint4* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) if (first + u * THREADS < n) v[u] = __ldcs(input + first + u * THREADS);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) if (first + u * THREADS < n) __stcs(out + first + u * THREADS, v[u]);
}
extern "C" __global__ void empty() {}
"""
"""A copy by a kernel: what a kernel of ours can reach. (A captured memcpy node is slower than kernels are.)"""
SHAPES = ((256, 4), (512, 4), (256, 8), (1024, 2))
"""Threads of a block and 16-byte vectors of a thread that are tried; the fastest counts."""


class Ceilings(Struct, frozen=True):
    """Measured on one device. Bytes are read plus written."""

    format: int
    device: str
    driver: int
    copy_bytes_per_s: float
    launch_us: float
    """Cold time of an empty kernel, by the method that short calls are timed by."""
    matrix_flops: dict[str, float]
    """Operations a second of a large product, by dtype (`float32` as torch's settings have it); only what was measured."""
    measured_at: float
    """Unix seconds."""

    def apply(self, facts: DeviceFacts) -> DeviceFacts:
        return msgspec.structs.replace(facts, copy_bytes_per_s=self.copy_bytes_per_s, launch_us=self.launch_us)


def ceilings_of(target: GpuTarget, folder: Path | None = None) -> Ceilings:
    """The stored ones of this device and driver, or measured now and stored. A folder that cannot be written costs only time."""
    stored = stored_ceilings(target.index, folder)
    if stored is not None:
        return stored
    identity = _identity(target.index)
    path = _path(identity, folder)
    found = measure(target, identity, _driver_version())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(msgspec.json.encode(found))
        os.replace(aside, path)
    except OSError:
        pass
    return found


def stored_ceilings(index: int, folder: Path | None = None) -> Ceilings | None:
    """Of torch's device `index` with the driver that is loaded; None when they were not measured yet."""
    identity = _identity(index)
    stored = _stored(_path(identity, folder))
    return stored if stored is not None and stored.device == identity and stored.driver == _driver_version() else None


def _identity(index: int) -> str:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} {getattr(properties, 'uuid', index)}"


def _path(identity: str, folder: Path | None) -> Path:
    return (folder or data_folder()) / "ceilings" / f"{re.sub(r'[^A-Za-z0-9]+', '-', identity)}.json"


def measure(target: GpuTarget, identity: str, driver: int) -> Ceilings:
    """About a second of device time. Raises MissingEnvironment without a compiler."""
    import torch

    from forge_tui.cuda.timing import Stopwatch

    watch = Stopwatch(target)
    copy = max(_copy_rate(target, watch, threads, unroll) for threads, unroll in SHAPES)
    found = Ceilings(FORMAT, identity, driver, copy, _empty_us(target, watch), _matrix_rates(target, watch), time.time())
    torch.cuda.empty_cache()                                # gigabytes that nobody needs again
    return found


def data_folder() -> Path:
    """This user's data, as `UserPaths.data` of the store has it (which nothing here may import; a test compares them)."""
    home = os.environ.get("FORGE_HOME")
    if home:
        return Path(home).expanduser().absolute() / "data"
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local/share") / "forge-tui"


def copy_program(elements: int, threads: int, unroll: int) -> Program:
    """Copies `elements` 16-byte vectors from `input` to `out`."""
    blocks = -(-elements // (threads * unroll))
    arguments = (Argument("pointer", "input"), Argument("pointer", "out"), Argument("int64", value=elements))
    return Program("copy.cu", COPY, (("THREADS", str(threads)), ("UNROLL", str(unroll))),
                   (Launch("copy", (blocks, 1, 1), (threads, 1, 1), arguments),), inputs=("input",))


def empty_program() -> Program:
    return Program("copy.cu", COPY, (("THREADS", "256"), ("UNROLL", "4")), (Launch("empty", (1, 1, 1), (32, 1, 1), ()),), outputs=())


def _copy_rate(target: GpuTarget, watch: object, threads: int, unroll: int) -> float:
    import torch

    from forge_tui.cuda.timing import Contender

    free, _ = torch.cuda.mem_get_info(target.index)
    size = min(COPY_BYTES, free // 16) // 16 * 16
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=target.device)    # zeros would be faster than data is
    result = torch.empty_like(source)
    program = copy_program(size // 16, threads, unroll)
    prepared = target.prepare(program, target.build(program), {"input": source, "out": result})
    us = watch.alone(Contender("copy", [prepared.enqueue]), PATIENT).value  # type: ignore[attr-defined]
    return 2 * size / us * 1e6


def _empty_us(target: GpuTarget, watch: object) -> float:
    from forge_tui.cuda.timing import Contender

    program = empty_program()
    prepared = target.prepare(program, target.build(program), {})
    return watch.alone(Contender("empty", [prepared.enqueue]), PATIENT).value  # type: ignore[attr-defined]


def _matrix_rates(target: GpuTarget, watch: object) -> dict[str, float]:
    import torch

    from forge_tui.cuda.timing import Contender

    rates = {}
    for name in ("float32", "float16", "bfloat16"):
        left, right = (torch.randn(MATRIX, MATRIX, dtype=getattr(torch, name), device=target.device) for _ in range(2))
        result = torch.empty_like(left)
        us = watch.alone(Contender(name, [lambda: torch.mm(left, right, out=result)]),  # type: ignore[attr-defined]  # noqa: B023
                         Stop(least=3, most=6, spread=0.02, seconds=0.05)).value
        rates[name] = 2.0 * MATRIX**3 / us * 1e6
    return rates


def _stored(path: Path) -> Ceilings | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.format == FORMAT else None


def _driver_version() -> int:
    from forge_tui.cuda.driver import call

    return int(call("cuDriverGetVersion"))
