"""The headers that nearly every kernel file needs, compiled once a process: they are most of what a build would read."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from threading import Lock

from msgspec import Struct

from forge_tui.cuda.toolchain import Toolchain, in_memory_headers

COMMON = "forge_common.h"
TEXT = """#include "forge_prelude.h"
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include "forge.cuh"
"""
"""None of it looks at macros of a kernel file, which are defined after it."""
HEAD = f'#include "{COMMON}"\n#pragma nv_hdrstop\n'
"""Begins every source: what is precompiled ends at the pragma, which counts in the source itself only."""
FIRST_VERSION = (12, 8)
"""NVRTC's first with precompiled headers (its documentation, "Precompiled Header (PCH)")."""

OWN_CACHE = (12, 9)
"""NVRTC's first that keeps what it compiled in the driver's cache by itself. Images are kept by `cuda.cache`, which a project
can carry and a benchmark can leave out; a second cache would only make the figures of builds depend on what ran before."""

_making = Lock()


class Precompiled(Struct, frozen=True):
    """What to add to a build; nothing where nothing is precompiled."""

    headers: dict[str, str] = {}
    """In-memory headers."""
    options: tuple[str, ...] = ()
    head: str = ""
    """What the source must begin with, to the letter."""


def options_for(kind: str, arch: str, tools: Toolchain) -> list[str]:
    """NVRTC's options of every build; a precompiled header is only good for the same ones."""
    target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
    options = [f"--gpu-architecture={target}", "-lineinfo", "-std=c++17", "-default-device"]
    if kind == "cubin":
        options.append("--ptxas-options=-v")
    if tools.number >= OWN_CACHE:
        options += ["--no-cache", "--minimal"]              # minimal: no textures, no device runtime, which no kernel file may use
    return options + [f"-I{path}" for path in tools.include]


def precompiled(tools: Toolchain, kind: str, arch: str) -> Precompiled:
    """The precompiled common headers for these options, made at the first call; nothing where NVRTC or headers are too old.

    Thread-safe. The file lives as long as the process: another process could map it only at the same address.
    """
    with _making:
        return _make(tools, kind, arch)


@functools.cache
def _make(tools: Toolchain, kind: str, arch: str) -> Precompiled:
    if tools.number < FIRST_VERSION or not any((Path(path) / "cuda_bf16.h").is_file() for path in tools.include):
        return Precompiled()
    file = _folder() / f"{kind}-{arch}.pch"
    if not _create(tools, kind, arch, file):
        return Precompiled()
    return Precompiled({COMMON: TEXT}, (f"--use-pch={file}", "--pch-messages=false"), HEAD)


def _create(tools: Toolchain, kind: str, arch: str, file: Path) -> bool:
    from cuda.bindings import nvrtc

    headers = in_memory_headers() | {COMMON: TEXT}
    status, handle = nvrtc.nvrtcCreateProgram(HEAD.encode(), b"common.cu", len(headers), [text.encode() for text in headers.values()],
                                              [name.encode() for name in headers])
    if int(status):
        return False
    try:
        options = [*options_for(kind, arch, tools), f"--create-pch={file}"]
        status, = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
        return not int(status) and file.is_file()
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


@functools.cache
def _folder() -> Path:
    """Of this process."""
    folder = Path(tempfile.mkdtemp(prefix="forge-pch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
