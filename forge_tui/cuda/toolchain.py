"""Where NVRTC and the CUDA headers are on this machine: wheels, a CUDA build of torch, conda, or a toolkit."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from threading import Lock

from msgspec import Struct

from forge_tui.errors import MissingEnvironment

CURE = "pip install 'forge-tui[host]', or set CUDA_HOME to a CUDA toolkit 12.0 or newer"
HEADERS = Path(__file__).parent / "headers"
"""`forge.cuh`, the prelude, and `std/`: the standard headers that NVRTC lacks."""

_loading = Lock()


class CompilerFacts(Struct, frozen=True):
    """What was found where; None for what is not there. `problem` and `cure` are set when nothing can be built."""

    nvrtc: str | None = None
    """Path of the library."""
    nvrtc_version: str | None = None
    """`13.5`."""
    archs: tuple[str, ...] = ()
    """Architectures this NVRTC builds for: `sm_90`."""
    headers: str | None = None
    """Folder with `cuda_fp16.h`; None: kernels that include it or `forge.cuh` do not build."""
    headers_version: str | None = None
    cccl: str | None = None
    """Folder with `cuda/atomic`; None: `<cooperative_groups.h>` does not build."""
    problem: str | None = None
    cure: str | None = None


class Toolchain(Struct, frozen=True):
    """A compiler that is there."""

    version: str
    archs: tuple[str, ...]
    library: str
    include: tuple[str, ...]
    """Folders for `-I`, in order."""

    @property
    def number(self) -> tuple[int, ...]:
        """The version for comparisons: (13, 5)."""
        return tuple(int(part) for part in self.version.split("."))

    def identity(self) -> str:
        """What of the compiler decides the image; part of cache keys."""
        return f"nvrtc {self.version} headers {header_version(self.include[0]) if self.include else None} forge {headers_digest()}"


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """The NVRTC that `cuda.bindings` uses, with the headers that belong to it. Raises MissingEnvironment."""
    with _loading:
        library = _load_nvrtc()
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
        arch_status, numbers = nvrtc.nvrtcGetSupportedArchs()
        if int(status) or int(arch_status):
            raise MissingEnvironment(f"NVRTC at {library} does not answer ({status})", cure=CURE)
    folders = _header_folders(library, major)
    headers = next(iter(folders), None)
    include = [path for path in (headers, _find_cccl(folders)) if path is not None]
    return Toolchain(version=f"{major}.{minor}", archs=tuple(f"sm_{n}" for n in numbers), library=str(library),
                     include=tuple(str(path) for path in include))


def compiler_facts() -> CompilerFacts:
    """For `doctor`: never raises."""
    try:
        found = find_toolchain()
    except MissingEnvironment as error:
        return CompilerFacts(problem=error.message, cure=error.cure)
    headers = found.include[0] if found.include else None
    cccl = next((path for path in found.include if (Path(path) / "cuda/atomic").is_file()), None)
    return CompilerFacts(
        nvrtc=found.library, nvrtc_version=found.version, archs=found.archs, headers=headers,
        headers_version=header_version(headers) if headers else None, cccl=cccl,
        problem=None if headers else "no CUDA headers: kernels for float16 and bfloat16 cannot be built",
        cure=None if headers else CURE)


@lru_cache(maxsize=1)
def in_memory_headers() -> dict[str, str]:
    """Our headers by the name they are included under: `forge.cuh`, `cstdint`, `forge_prelude.h` ..."""
    files = [path for path in sorted(HEADERS.iterdir()) if path.suffix in (".cuh", ".h")]
    files += sorted((HEADERS / "std").iterdir())
    return {path.name: path.read_text() for path in files if path.is_file()}


@lru_cache(maxsize=1)
def headers_digest() -> str:
    """Short hash of our headers: a changed `forge.cuh` is a changed kernel."""
    import hashlib

    digest = hashlib.sha256()
    for name, text in in_memory_headers().items():
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=8)
def header_version(folder: str) -> str | None:
    """`13.5` of CUDA_VERSION 13050 in `cuda.h` or CUDART_VERSION in `cuda_runtime_api.h`; None where neither says."""
    for name, macro in (("cuda_runtime_api.h", "CUDART_VERSION"), ("cuda.h", "CUDA_VERSION")):
        path = Path(folder) / name
        if path.is_file():
            match = re.search(rf"#define\s+{macro}\s+(\d+)", path.read_text(errors="replace"))
            if match:
                number = int(match[1])
                return f"{number // 1000}.{number % 1000 // 10}"
    return None


def _load_nvrtc() -> Path:
    """Load NVRTC and, before it, the builtins library it will look for by name (a torch wheel's rpath does not find it)."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise MissingEnvironment("the package cuda-bindings is not installed", cure="pip install 'cuda-bindings>=12.8'") from error
    try:
        path = Path(load_nvidia_dynamic_lib("nvrtc").abs_path or "")
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise MissingEnvironment("NVRTC, the CUDA runtime compiler, was not found", cure=CURE) from error
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
        try:
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue                                        # of another version or damaged: NVRTC says so itself if it matters
    return path


def _header_folders(library: Path, major: int) -> list[Path]:
    """Folders with `cuda_fp16.h`, the nearest to the library first; of the library's own major version where there are any."""
    real = library.resolve()
    candidates = [real.parent.parent / "include", real.parent.parent.parent / "cuda_runtime/include"]
    for root in map(Path, dict.fromkeys(sys.path)):
        candidates += [root / f"nvidia/cu{major}/include", root / "nvidia/cuda_runtime/include"]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if os.environ.get(variable):
            base = Path(os.environ[variable])
            candidates += [base / "include", base / "targets/x86_64-linux/include", base / "targets/sbsa-linux/include"]
    candidates += [Path("/usr/local/cuda/include"), Path(f"/usr/local/cuda-{major}/include"), Path("/usr/include")]
    there = [path for path in dict.fromkeys(candidates) if (path / "cuda_fp16.h").is_file()]
    same = [path for path in there if (header_version(str(path)) or "").split(".")[0] == str(major)]
    return same or there


def _find_cccl(folders: list[Path]) -> Path | None:
    """The folder with `cuda/atomic`, when it is not the first header folder itself. It may be a toolkit's where the headers are
    a wheel's: a CUDA build of torch brings the one and not the other."""
    if not folders or (folders[0] / "cuda/atomic").is_file():
        return None
    for headers in folders:
        wheel = headers.parent.parent / "cuda_cccl/include"
        for path in (headers / "cccl", wheel, wheel / "cccl", headers):
            if (path / "cuda/atomic").is_file():
                return path
    return None
