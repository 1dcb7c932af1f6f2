"""Many programs for many architectures at once: nvcc and ptxas through a generated ninja file, in parallel and
incrementally.

For packages. What is judged is built by NVRTC; this adds architectures that this machine may not have. Everything stays
in the folder: sources, PTX, cubins, what the compilers said (`*.log`), and ninja's own record of what is up to date.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from forge_tui.cuda.compile import image_of
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.toolchain import HEADERS, headers_digest
from forge_tui.errors import MissingEnvironment

DEADLINE_S = 1800.0
HEAD = """#include <algorithm>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using uchar = unsigned char;
#include "forge.cuh"
"""
"""What NVRTC's prelude gives a kernel file; nvcc brings the real headers."""
NINJA = """# Written by Forge. Run by hand with: ninja -f build.ninja
ninja_required_version = 1.5
nvcc = {nvcc}
ptxas = {ptxas}
rule ptx
  command = : {identity}; $nvcc -ptx -arch=$compute $
      -std=c++17 -lineinfo -expt-relaxed-constexpr -I{headers} -o $out $in > $out.log 2>&1 || (cat $out.log; exit 1)
  description = PTX $out
rule cubin
  command = : {identity}; $ptxas -arch=$arch $
      -v --generate-line-info -o $out $in > $out.log 2>&1 || (cat $out.log; exit 1)
  description = CUBIN $out
"""
"""Kernel files include the toolkit's headers and ours only: both are in the identity, and a command that changes is run
again.
(A dependency file would name the file that `#line` names, which is nowhere.)"""


class Bulk(Struct, frozen=True):
    """What came of it, by (build key of the program, architecture)."""

    images: dict[tuple[str, str], Image]
    failures: dict[tuple[str, str], str]
    """The compiler's words, or why the image is refused."""
    commands: int
    """Compilers run: 0 when everything was up to date."""
    seconds: float


def find_nvcc() -> Path | None:
    """nvcc of the path, or of the toolkit that CUDA_HOME names or that lies in /usr/local/cuda; with its ptxas beside
    it."""
    on_path = shutil.which("nvcc")
    places = [Path(on_path).resolve()] if on_path else []
    places += [Path(home) / "bin/nvcc" for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if home]
    return next(
        (path for path in places if os.access(path, os.X_OK) and os.access(path.with_name("ptxas"), os.X_OK)), None
    )


def bulk_build(
    programs: Iterable[Program],
    archs: Sequence[str],
    folder: Path,
    *,
    jobs: int | None = None,
    deadline_s: float = DEADLINE_S,
) -> Bulk:
    """Every program for every architecture (`sm_80`), as cubins; what fails is told and the rest is built.

    folder: kept from call to call. jobs: compilers at a time; None: as many as ninja sees fit. Raises
    MissingEnvironment without nvcc or ninja, when they do not end in time, or where `folder` cannot be written.
    """
    nvcc, ninja = find_nvcc(), _find_ninja()
    if nvcc is None:
        raise MissingEnvironment("nvcc is not here", cure="install a CUDA toolkit, or let NVRTC build")
    for arch in archs:
        if not re.fullmatch(r"sm_\d+[af]?", arch):
            raise MissingEnvironment("no such architecture", where=arch, cure="write sm_80, sm_90 ...")
    started = time.perf_counter()
    listed = list({program.build_key(): program for program in programs}.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, listed, archs, nvcc)
    except OSError as error:
        raise MissingEnvironment(
            f"cannot be written: {error.strerror}", where=str(folder), cure="name a folder that can be"
        ) from error
    commands = _run(ninja, folder, jobs, deadline_s)
    images: dict[tuple[str, str], Image] = {}
    failures: dict[tuple[str, str], str] = {}
    for program in listed:
        for arch in archs:
            try:
                images[program.build_key(), arch] = _read(folder, program, arch)
            except CandidateFault as fault:
                failures[program.build_key(), arch] = str(fault)
    return Bulk(images, failures, commands, time.perf_counter() - started)


def _write(folder: Path, programs: Sequence[Program], archs: Sequence[str], nvcc: Path) -> None:
    """Sources and the ninja file; a file that would not change is left alone, so that ninja sees it so."""
    lines = [
        NINJA.format(
            nvcc=_escape(str(nvcc)),
            ptxas=_escape(str(nvcc.with_name("ptxas"))),
            headers=_escape(str(HEADERS)),
            identity=f"{headers_digest()} {_version(nvcc)}",
        )
    ]
    for program in programs:
        name = _name(program)
        _keep(folder / f"{name}.cu", _source(program))
        for arch in archs:
            lines += [
                f"build {name}.{arch}.ptx: ptx {name}.cu",
                f"  compute = {arch.replace('sm_', 'compute_')}",
                f"build {name}.{arch}.cubin: cubin {name}.{arch}.ptx",
                f"  arch = {arch}",
            ]
    _keep(folder / "build.ninja", "\n".join(lines) + "\n")


def _version(nvcc: Path) -> str:
    """The compiler's build, `cuda_13.0.r13.0/compiler.36424714_0`. Raises MissingEnvironment."""
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingEnvironment(
            f"nvcc does not run: {error}", where=str(nvcc), cure="install the CUDA toolkit again"
        ) from error
    return re.sub(r"[^\w./-]", "", said.strip().rpartition("\n")[2]) or "unknown"


def _source(program: Program) -> str:
    """A translation unit: lines of messages are lines of the kernel file, as with NVRTC."""
    macros = "".join(f"#define {name} {value}\n" for name, value in program.macros)
    filename = program.filename.replace("\\", "/").replace('"', "'")
    return f'{HEAD}{macros}#line 1 "{filename}"\n{program.source}\n'


def _keep(path: Path, text: str) -> None:
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass  # not there yet
    path.write_bytes(data)


def _run(ninja: str, folder: Path, jobs: int | None, deadline_s: float) -> int:
    """Commands that were run. What fails is read from the logs afterwards."""
    command = [ninja, "-k", "0", *(["-j", str(jobs)] if jobs else [])]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "NINJA_STATUS": "[%f/%t] "},
    )
    try:
        said, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        raise MissingEnvironment(
            f"nvcc was still at work after {deadline_s:g} s", where=str(folder), cure="ask for fewer architectures"
        ) from None
    if process.returncode and not re.search(r"^\[\d+/\d+\]|^FAILED", said, re.M):
        raise MissingEnvironment(
            f"ninja failed: {said.strip()[-500:]}", where=str(folder), cure="delete that folder and try again"
        )
    return len(re.findall(r"^\[\d+/\d+\] ", said, re.M))


def _read(folder: Path, program: Program, arch: str) -> Image:
    """Raises CandidateFault for what did not build or must not be."""
    stem = folder / f"{_name(program)}.{arch}"
    ptx_log, log = _text(stem.with_name(stem.name + ".ptx.log")), _text(stem.with_name(stem.name + ".cubin.log"))
    try:
        ptx = stem.with_name(stem.name + ".ptx").read_text()
        code = stem.with_name(stem.name + ".cubin").read_bytes()
    except OSError:
        said = "\n".join(filter(None, (ptx_log.strip(), log.strip()))) or "the compiler said nothing"
        raise CandidateFault("compile", f"nvcc does not build it for {arch}: {said}") from None
    return image_of(program, "cubin", arch, code, ptx, f"{ptx_log}\n{log}", 0.0)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _name(program: Program) -> str:
    """Of a program's files: what decides the image, and the name that is in its line table."""
    return hashlib.sha256(f"{program.build_key()}\0{program.filename}".encode()).hexdigest()[:32]


def _escape(text: str) -> str:
    """For a ninja file and the shell that ninja runs."""
    return "'" + text.replace("$", "$$").replace("'", "'\\''") + "'" if re.search(r"[^\w./+-]", text) else text


def _find_ninja() -> str:
    try:
        import ninja

        path = Path(ninja.BIN_DIR) / "ninja"
        if path.is_file():
            return str(path)
    except ImportError:
        pass  # a system's own will do
    found = shutil.which("ninja")
    if found is None:
        raise MissingEnvironment("ninja is not here", cure="pip install ninja")
    return found
