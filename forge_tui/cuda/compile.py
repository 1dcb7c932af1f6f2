"""CUDA C++ to PTX or a cubin through NVRTC, with no toolkit and no driver needed."""

from __future__ import annotations

import hashlib
import re
import struct
import threading
import time
from collections.abc import Callable
from typing import Literal

from forge_tui.cuda import ptxscan
from forge_tui.cuda.cache import ImageCache
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.precompiled import Precompiled, options_for, precompiled
from forge_tui.cuda.program import Image, KernelInfo, Program
from forge_tui.cuda.toolchain import CURE, CompilerFacts, Toolchain, compiler_facts, find_toolchain, in_memory_headers
from forge_tui.errors import MissingEnvironment

__all__ = ["CompilerFacts", "ImageCache", "compile_program", "compiler_facts"]

_CUBIN_SECTIONS = (".text.", ".nv.constant", ".nv.info", ".nv.shared.", ".nv.global", ".nv.local.")
"""Sections that decide what a cubin does; line tables, debug strings, symbol tables and notes are left out of its key."""


_Built = tuple[bytes, str, str]

HARMLESS_CALLS = frozenset({"vprintf"})
"""What device code may call outside itself: printing leaves nothing behind that a later launch could read."""


def compile_program(program: Program, *, kind: Literal["ptx", "cubin"], arch: str = "sm_90", cache: ImageCache | None = None,
                    deadline_s: float | None = None) -> Image:
    """Build `program` for `arch` as `ptx` or `cubin`.

    Thread-safe; NVRTC itself compiles one program at a time in a process, so builds in parallel need processes.
    Nothing is ever compiled with fast math. Lines of messages and of the line table are lines of the kernel file.
    Raises CandidateFault('compile') for a source that is refused, by NVRTC or because its image would keep state between
    launches, call out, or lack a kernel that the plan launches; MissingEnvironment where there is no compiler for `arch`.
    deadline_s: past it CandidateFault('endless'). NVRTC cannot be stopped: it goes on in its thread, and nothing more can be built
    in this process.
    """
    tools = find_toolchain()
    if re.sub(r"[a-z]$", "", arch) not in tools.archs:
        raise MissingEnvironment(f"NVRTC {tools.version} cannot build for {arch}; it builds for {', '.join(tools.archs)}",
                                 where=tools.library, cure="pip install -U nvidia-cuda-nvrtc, or a newer CUDA toolkit")
    if cache is not None and (kept := cache.get(program, kind, arch, tools)) is not None:
        return kept
    started = time.perf_counter()
    code, ptx, log = _in_time(program, deadline_s, lambda: _nvrtc(program, kind, arch, tools))
    image = image_of(program, kind, arch, code, ptx, log, time.perf_counter() - started)
    if cache is not None:
        cache.put(program, image, tools)
    return image


def image_of(program: Program, kind: Literal["ptx", "cubin"], arch: str, code: bytes, ptx: str, log: str, build_s: float) -> Image:
    """What a compiler made of `program`, checked. ptx: of the same build, which the checks read. Raises CandidateFault."""
    canonical = ptxscan.canonical_ptx(ptx)
    _refuse(program, canonical)
    usage, warnings = _read_ptxas(log)
    infos = tuple(
        KernelInfo(name=name, static_shared=shared, registers=usage.get(name, (None, None))[0],
                   spill_bytes=usage.get(name, (None, None))[1])
        for name, shared in ptxscan.kernels(canonical).items())
    key = cubin_key(code) if kind == "cubin" else hashlib.sha256(canonical.encode()).hexdigest()
    return Image(kind=kind, arch=arch, code=code, key=key, kernels=infos, log=warnings,
                 build_s=build_s)


def cubin_key(code: bytes) -> str:
    """SHA-256 (hex) of the sections that decide what the cubin does, by name; equal for equal code from differently named files."""
    digest = hashlib.sha256()
    for name, content in sorted(_sections(code)):
        if name.startswith(_CUBIN_SECTIONS):
            digest.update(ptxscan.without_file_names(name).encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def _in_time(program: Program, deadline_s: float | None, build: Callable[[], _Built]) -> _Built:
    """What `build` gives, or CandidateFault('endless'); a thread is left behind then, which ends with the process.

    In a thread without a deadline too: NVRTC 12.4, which comes with torch 2.6, leaves the thread that it ran in with the C locale,
    in which Python reads text files as ASCII."""
    done: list[_Built | BaseException] = []

    def run() -> None:
        try:
            done.append(build())
        except BaseException as error:  # raised again by whoever waits
            done.append(error)

    worker = threading.Thread(target=run, name=f"build {program.filename}", daemon=True)
    worker.start()
    worker.join(deadline_s)
    if not done:
        raise CandidateFault("endless", f"the compiler was still at work after {deadline_s:g} s")
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


def _nvrtc(program: Program, kind: str, arch: str, tools: Toolchain) -> tuple[bytes, str, str]:
    """(image, PTX text, log). The PTX is there for a cubin too: the checks read it."""
    from cuda.bindings import nvrtc

    common = precompiled(tools, kind, arch)
    headers = in_memory_headers() | common.headers | {"forge_macros.h": _macros(program, common)}
    # `#line` makes the compiler's lines those of the kernel file again.
    source = f'{common.head}#include "forge_macros.h"\n#line 1 "{program.filename}"\n{program.source}'
    status, handle = nvrtc.nvrtcCreateProgram(
        source.encode(), program.filename.encode(), len(headers),
        [text.encode() for text in headers.values()], [name.encode() for name in headers])
    _expect(nvrtc, status)
    try:
        options = [option.encode() for option in [*options_for(kind, arch, tools), *common.options]]
        status, = nvrtc.nvrtcCompileProgram(handle, len(options), options)
        log = _fetch(nvrtc, handle, "ProgramLog").decode(errors="replace")
        if int(status):
            raise _compile_fault(program, log or str(status))
        ptx = _fetch(nvrtc, handle, "PTX")
        code = _fetch(nvrtc, handle, "CUBIN") if kind == "cubin" else ptx
        return code, ptx.decode(errors="replace"), log      # a file's own inline assembly may hold any byte
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def _macros(program: Program, common: Precompiled) -> str:
    """The program's macros as a header that is included before the file. With -D they would come before NVRTC's own built-in
    header too, where a tunable named T breaks every build. Half types that `DTYPE_` macros name get their header."""
    values = " ".join(value for _, value in program.macros)
    lines = [] if common.headers else ['#include "forge_prelude.h"']
    lines += [f"#include <{name}>" for word, name in (("half", "cuda_fp16.h"), ("bfloat16", "cuda_bf16.h")) if word in values]
    lines += [f"#define {name} {value}" for name, value in program.macros]
    return "\n".join(lines) + "\n"


def _fetch(nvrtc, handle, what: str) -> bytes:
    """One of NVRTC's results, without the terminating zero of texts."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(handle)
    _expect(nvrtc, status)
    # NVRTC writes into the bytes object itself. One of length 1 is shared by the whole interpreter (an empty log has size 1), so
    # the buffer is never that short.
    buffer = bytes(size + 16)
    _expect(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(handle, buffer)[0])
    return buffer[:size] if what == "CUBIN" else buffer.rstrip(b"\0")


def _expect(nvrtc, status) -> None:
    if int(status):
        text = nvrtc.nvrtcGetErrorString(status)[1]
        raise MissingEnvironment(f"NVRTC failed: {text.decode() if isinstance(text, bytes) else text}", cure=CURE)


def _compile_fault(program: Program, log: str) -> CandidateFault:
    """NVRTC's words; `line` is that of the first error in the kernel file itself."""
    match = re.search(rf"^{re.escape(program.filename)}\((\d+)\): (?:catastrophic )?error", log, re.M)
    return CandidateFault("compile", log.strip(), line=int(match[1]) if match else None)


def _refuse(program: Program, canonical: str) -> None:
    """What a candidate may not do, seen in its compiled code. Raises CandidateFault."""
    for name, why in ptxscan.written_globals(canonical):
        raise CandidateFault(
            "compile", f"device variable `{_plain(name)}` may be written ({why}); nothing may survive a launch. "
            "Use a [[workspace]] for scratch, or __constant__ / constexpr for a table", line=_source_line(program, name))
    for name in ptxscan.external_calls(canonical):
        if name not in HARMLESS_CALLS:
            raise CandidateFault(
                "compile", f"the kernel calls `{name}`, which is outside of it: no allocation or launching from device code",
                line=_source_line(program, name))
    there = ptxscan.kernels(canonical)
    for launch in program.launches:
        if launch.kernel not in there:
            raise CandidateFault(
                "compile", f"the plan launches `{launch.kernel}`, but the code has no such extern \"C\" __global__ function "
                f"(it has: {', '.join(there) or 'none'})", kernel=launch.kernel)


def _plain(name: str) -> str:
    """The last identifier of an Itanium-mangled name (`_ZZ1kE1z` is `z` of `k`); other names as they are."""
    if not name.startswith("_Z"):
        return name
    parts, at = [], 2
    while match := re.compile(r"\d+").search(name, at):
        at = match.end() + int(match[0])
        parts.append(name[match.end():at])
    return parts[-1] if parts else name


def _source_line(program: Program, name: str) -> int | None:
    """First line of code, after the plan comment, that has the identifier."""
    start = program.source.find("*/") if program.source.lstrip().startswith("/*") else 0
    match = re.compile(rf"\b{re.escape(_plain(name))}\b").search(program.source, max(start, 0))
    return program.source.count("\n", 0, match.start()) + 1 if match else None


def _read_ptxas(log: str) -> tuple[dict[str, tuple[int | None, int | None]], str]:
    """({kernel: (registers, bytes of spill stores)}, the compiler's other words)."""
    usage: dict[str, tuple[int | None, int | None]] = {}
    words, name, spill = [], None, None
    for line in log.splitlines():
        if entry := re.match(r"ptxas info\s*: Compiling entry function '([^']+)'", line):
            name, spill = entry[1], None
        elif stack := re.search(r"(\d+) bytes spill stores", line):
            spill = int(stack[1])
        elif used := re.match(r"ptxas info\s*: Used (\d+) registers", line):
            if name is not None:
                usage[name] = (int(used[1]), spill)
        elif not line.startswith("ptxas info"):
            words.append(line)
    return usage, _own_warnings("\n".join(words))


def _own_warnings(text: str) -> str:
    """Without NVRTC's remark on options and without cccl's redefinitions of what our prelude defines."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(b for b in blocks if b.strip() and not b.startswith("Remark:") and "forge_prelude.h" not in b).strip()


def _sections(elf: bytes) -> list[tuple[str, bytes]]:
    """(name, content) of a 64-bit little-endian ELF's sections; empty content where it has none in the file (SHT_NOBITS)."""
    offset, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    names_at = headers[names_index][4]
    sections = []
    for name_at, kind, _, _, at, length in headers:
        name = elf[names_at + name_at:elf.index(b"\0", names_at + name_at)].decode()
        sections.append((name, length.to_bytes(8, "little") if kind == 8 else elf[at:at + length]))
    return sections
