"""One program run once in a process of its own, under a tool: `TOOL python -m forge_tui.cuda.single FOLDER`.

Only the driver is used there, with every buffer an allocation of exactly its size, so that a profiler sees no kernel
but the candidate's and a sanitizer sees every byte past a buffer's end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from forge_tui.cuda.program import Image, Program
from forge_tui.specs import ITEMSIZE

if TYPE_CHECKING:
    import torch

JOB = "job.msgpack"


class Job(Struct, frozen=True):
    """What is run. Every buffer is one allocation; those with a file begin with its bytes, others as garbage."""

    program: Program
    image: Image
    device: int
    """As this process numbers them."""
    sizes: dict[str, int]
    """Bytes of each tensor."""
    files: dict[str, str]


class ToolRun(Struct, frozen=True):
    """What a tool said."""

    output: str
    """Its stdout and stderr."""
    status: int | None
    """Exit status; None when it was ended at the deadline."""


def find_tool(name: str) -> str | None:
    """`ncu` or `compute-sanitizer`: on the path, or in the toolkit that CUDA_HOME names or nvcc belongs to."""
    found = shutil.which(name)
    if found:
        return found
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.insert(0, str(Path(nvcc).resolve().parent.parent))
    for home in filter(None, homes):
        for path in (Path(home) / "bin" / name, Path(home) / name, Path(home) / "compute-sanitizer" / name):
            if os.access(path, os.X_OK) and path.is_file():
                return str(path)
    return None


@contextmanager
def job_folder(program: Program, image: Image, tensors: Mapping[str, torch.Tensor], device: int) -> Iterator[Path]:
    """A folder that holds the job until the block ends. tensors: inputs with their values, outputs for their size."""
    import torch

    with tempfile.TemporaryDirectory(prefix="forge-single-") as name:
        folder = Path(name)
        sizes, files = {}, {}
        for index, (tensor_name, tensor) in enumerate(tensors.items()):
            span = (
                sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
                if tensor.numel()
                else 0
            )
            sizes[tensor_name] = span * tensor.element_size()
            if tensor_name in program.outputs or not span:
                continue
            flat = tensor.detach().as_strided((span,), (1,)).cpu()
            files[tensor_name] = f"{index}.bin"
            flat.view(torch.uint8).numpy().tofile(folder / files[tensor_name])
        (folder / JOB).write_bytes(msgspec.msgpack.encode(Job(program, image, device, sizes, files)))
        yield folder


def run_under(tool: Sequence[str], folder: Path, deadline_s: float) -> ToolRun:
    """The job in a child under `tool`; an empty one runs it bare. Its output is kept whatever happens to it."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))),
    }
    command = [*tool, sys.executable, "-m", "forge_tui.cuda.single", str(folder)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        return ToolRun(output.read().decode("utf-8", "replace"), status)


def main(folder: Path) -> None:
    """The child: allocate, copy, launch, wait. Any error of the driver ends it with a traceback, which the tool has
    explained."""
    import numpy as np

    from forge_tui.cuda.driver import call, driver
    from forge_tui.cuda.launch import LoadedImage, PackedArguments, launch_config

    job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=Job)
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", job.device)))
    addresses: dict[str, int] = {}
    for name, size in job.sizes.items():
        if name in job.program.aliases:
            continue
        addresses[name] = _allocate(size)
        if name in job.files:
            data = np.fromfile(folder / job.files[name], np.uint8)
            call("cuMemcpyHtoD", addresses[name], data.ctypes.data, size)
    for name, source in job.program.aliases.items():
        addresses[name] = addresses[source]
    for workspace in job.program.workspaces:
        size = ITEMSIZE[workspace.dtype]
        for extent in workspace.shape:
            size *= extent
        addresses[workspace.name] = _allocate(size)
        if workspace.fill is not None and size:
            call("cuMemsetD8", addresses[workspace.name], workspace.fill & 0xFF, size)
    loaded = LoadedImage(job.image)
    for launch in job.program.launches:
        if 0 in launch.grid:
            continue
        loaded.permit(launch)
        arguments = PackedArguments(launch.arguments, addresses)
        config = launch_config(launch)
        config.hStream = driver().CUstream(0)
        call("cuLaunchKernelEx", config, loaded.function(launch.kernel), arguments.address, 0)
        call("cuCtxSynchronize")


def _allocate(size: int) -> int:
    from forge_tui.cuda.driver import call

    return int(call("cuMemAlloc", max(size, 1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
