"""What this machine has and lacks for Forge: every finding with a status and, where something is missing, the fix."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from forge_tui import __version__
from forge_tui.errors import ForgeError
from forge_tui.store.paths import UserPaths

if TYPE_CHECKING:
    from forge_tui.cuda.overview import Overview

Status = Literal[
    "ok",
    "note",     # something that is not there and is not needed for everything
    "missing",  # nothing can be judged without it
]

FREE_BYTES = 2 * 1024 ** 3
"""Below this a project is in danger: captures have a cap of 256 MiB by default, a CUDA image cache one of 512 MiB, and a
package, a journal and the provider's texts need room too."""

STATUS_WIDTH = 8
"""Of the longest status and a gap."""

KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
"""Providers that need one."""


class Finding(Struct, frozen=True):
    """One line of the report."""

    name: str
    status: Status
    found: str
    """What is there; never the value of a key."""
    fix: str = ""
    """Empty when `ok`."""


class Diagnosis(Struct, frozen=True):
    """What `doctor --json` prints."""

    schema_version: int
    version: str
    """Of Forge."""
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return all(finding.status != "missing" for finding in self.findings)


def diagnose(folder: Path) -> Diagnosis:
    """Looks at this machine; `folder` is where projects would be made. Takes a second or two: it imports torch."""
    return Diagnosis(1, __version__, (
        *_device(), *_compiler(), *_packages(), *_keys(), _disk(folder), _terminal(),
    ))


def render(diagnosis: Diagnosis, width: int = 0) -> str:
    """The report for people. The words carry the status, so that it reads without colours.

    width: columns of the terminal, where lines are broken between words and go on below where they began; a path or a
    command that is longer than that is left whole, so that it can be copied. 0: one line for each thing.
    """
    names = max(len(finding.name) for finding in diagnosis.findings) + 2
    indent, below = layout(STATUS_WIDTH + names, width or sys.maxsize)
    lines = [f"forge-tui {diagnosis.version}"]
    for finding in diagnosis.findings:
        head = f"{finding.status:<{STATUS_WIDTH}}{finding.name:<{names}}"
        said = broken(finding.found, width, indent)
        lines += [head.rstrip(), *said] if below else [(head + said[0][indent:]).rstrip(), *said[1:]]
        if finding.fix:
            lines += broken(f"fix: {finding.fix}", width, indent)
    return "\n".join(lines)


def layout(head: int, width: int) -> tuple[int, bool]:
    """Where the words of a finding begin (column), whose status and name take `head` cells; and whether that is below them:
    beside them there would be less than half of the line."""
    return (4, True) if head > width // 2 else (head, False)


def broken(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width` columns, all `indent` in, but where a longer word needs the room; 0: one."""
    margin = " " * indent
    if not width:
        return [margin + text]
    first, *rest = textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin, break_long_words=False,
                                 break_on_hyphens=False) or [margin]
    if len(first) > width:  # it stands behind the finding's name
        first, rest = margin, [first, *rest]
    return [first, *(line if len(line) <= width else line.strip().rjust(min(width, len(line))) for line in rest)]


def _device() -> list[Finding]:
    driver = _nvidia_smi()
    tools = _tools() if driver else []
    findings = [Finding("driver", "ok", f"NVIDIA driver {driver}") if driver else
                Finding("driver", "note", "no NVIDIA driver",
                        "none needed on `host`, where checks are real and times are modelled; to time kernels, run on a "
                        "machine with an NVIDIA GPU")]
    from forge_tui.cuda.overview import overviews

    seen = overviews()
    findings += [finding for item in seen for finding in _gpu(item)]
    if driver and not seen:
        findings.append(Finding("device", "note", "torch sees no GPU though the driver does", "install a CUDA build of torch "
                                "that this driver supports, and look at CUDA_VISIBLE_DEVICES"))
    findings.append(Finding("host", "ok", f"{os.cpu_count()} CPU cores; interprets kernels for a named GPU"))
    return findings + (_comparison() if seen else []) + tools


def _nvidia_smi() -> str | None:
    """The driver's version, or None."""
    try:
        result = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                                text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.split("\n")[0].strip() or None if result.returncode == 0 else None


def _gpu(seen: Overview) -> list[Finding]:
    """One device: what it is, what it can do, who else is there."""
    name = f"cuda:{seen.index}"
    ceilings = seen.ceilings_text()
    findings = [Finding(name, "ok", seen.text())]
    findings.append(Finding(f"{name} ceilings", "ok", ceilings) if ceilings else
                    Finding(f"{name} ceilings", "note", "not measured yet", "forge-tui doctor --measure, or the first run does it"))
    if seen.others():
        pids = ", ".join(str(pid) for pid in seen.state.processes[:8]) if seen.state else ""
        findings.append(Finding(f"{name} load", "note", f"{seen.others()} processes have a context there ({pids})",
                                "times are trustworthy only on a device of one's own: choose another with --device cuda:N"))
    return findings


def _comparison() -> list[Finding]:
    """Whether the judge's own comparison kernels count right on the first GPU."""
    from forge_tui.cuda.gpu import GpuTarget
    from forge_tui.engine.judge.fusedcheck import problem

    try:
        why = problem(GpuTarget(0, measure=False))
    except (ForgeError, RuntimeError) as error:  # RuntimeError: torch's own, e.g. out of memory on a device that others fill
        why = str(error).splitlines()[0]
    if not why:
        return [Finding("comparison", "ok", "the judge's comparison kernels agree with torch on known tensors")]
    return [Finding("comparison", "note", f"the judge's comparison kernels fail their self-check: {why}",
                    "judging goes on with torch's own operators, which is slower; please report this")]


def measure_devices() -> list[str]:
    """Measures the ceilings of every GPU that has none stored, a second each; a line for each that could not be."""
    from forge_tui.cuda.gpu import GpuTarget
    from forge_tui.cuda.overview import overviews

    problems = []
    for seen in overviews():
        if seen.ceilings is None:
            try:
                GpuTarget(seen.index)
            except (ForgeError, RuntimeError) as error:  # RuntimeError: torch's own, e.g. out of memory on a device that others fill
                problems.append(f"cuda:{seen.index} could not be measured: {str(error).splitlines()[0]}")
    return problems


def _compiler() -> list[Finding]:
    from forge_tui.cuda.toolchain import compiler_facts

    facts = compiler_facts()
    cure = facts.cure or ""
    findings = [
        Finding("compiler", "ok", f"NVRTC {facts.nvrtc_version} ({facts.nvrtc})") if facts.nvrtc else
        Finding("compiler", "missing", facts.problem or "NVRTC was not found", cure),
        Finding("headers", "ok", f"CUDA {facts.headers_version} ({facts.headers})") if facts.headers else
        Finding("headers", "missing", "no CUDA headers (cuda_fp16.h)", cure or "pip install 'forge-tui[host]'"),
        Finding("cccl", "ok", str(facts.cccl or facts.headers)) if _has_cccl(facts.headers, facts.cccl) else
        Finding("cccl", "note", "no <cuda/atomic>: kernels that include cooperative_groups.h do not build",
                "pip install nvidia-cuda-cccl"),
    ]
    nvcc = _nvcc()
    findings.append(Finding("nvcc", "ok", nvcc) if nvcc else
                    Finding("nvcc", "note", "no CUDA toolkit", "not needed: kernels are built with NVRTC; the toolkit adds "
                            "compute-sanitizer, which the judge uses where it is"))
    return findings


def _tools() -> list[Finding]:
    """What looks into kernels on a GPU."""
    from forge_tui.cuda.single import find_tool

    findings = []
    for name, use in (("ncu", "`eval --profile` then tells what image and ceilings give"),
                      ("compute-sanitizer", "winners are confirmed without it then, and their verdicts say so")):
        path = find_tool(name)
        findings.append(Finding(name, "ok", path) if path else Finding(name, "note", "not installed", f"{use}; it comes with the CUDA toolkit"))
    return findings


def _has_cccl(headers: str | None, cccl: str | None) -> bool:
    return bool(cccl) or bool(headers and (Path(headers) / "cuda/atomic").is_file())


def _nvcc() -> str | None:
    path = shutil.which("nvcc")
    if path is None:
        return None
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release ([\d.]+)", text)
    return f"CUDA toolkit {release[1]} ({path})" if release else None


def _packages() -> list[Finding]:
    """Forge's own requirements, read from its metadata, so that no list of them can go stale."""
    import importlib.metadata

    try:
        requirements = importlib.metadata.requires("forge-tui") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("packages", "note", "forge-tui runs from a source folder and is not installed",
                        "pip install -e . in that folder")]
    findings = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if "extra" in marker or ("linux" in marker and sys.platform != "linux"):
            continue
        plain = re.match(r"[\w.-]+", name)
        if plain:
            findings.append(_package(plain[0], name.strip()))
    return findings


def _package(name: str, requirement: str) -> Finding:
    """pip checks the version when it installs; here only what is gone is a finding."""
    import importlib.metadata

    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", f"pip install '{requirement}'")


def _keys() -> list[Finding]:
    return [_key(service, variable) for service, variable in KEYS.items()]


def _key(service: str, variable: str) -> Finding:
    """Whether there is one, and that nobody else may read it."""
    if os.environ.get(variable, "").strip():
        return Finding(variable, "ok", "set")
    from forge_tui.engine.providers import NAMES  # loads most of the engine

    file = UserPaths.find().config / "keys" / service
    try:
        mode = file.stat().st_mode
    except OSError:
        use = f"export {variable}=... or write the key to {file}, to use provider {service}; `builtin` needs no key"
        return Finding(variable, "note", "not set", use if service in NAMES else
                       f"not needed: provider {service} is not in this version")
    if stat.S_IMODE(mode) & 0o077:
        return Finding(variable, "note", f"in {file}, which others may read", f"chmod 600 {file}")
    return Finding(variable, "ok", f"in {file}")


def _disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", "missing", f"{folder}: {error.strerror}", "work in a folder that exists")
    text = f"{free / 2**30:.1f} GiB free at {folder}"
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return Finding("disk", "note", f"{text}, which cannot be written", "make projects in a writable folder")
    if free < FREE_BYTES:
        return Finding("disk", "note", text, "free some: a project with captures, builds and a package may take 2 GiB")
    return Finding("disk", "ok", text)


def _terminal() -> Finding:
    term = os.environ.get("TERM", "")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Finding("terminal", "note", f"stdin or stdout is no terminal (TERM={term or 'unset'})",
                       "the app needs one; `forge-tui --run` does not")
    if term in ("", "dumb"):
        return Finding("terminal", "note", f"TERM={term or 'unset'} has no cursor control",
                       "export TERM=xterm-256color for the app; `forge-tui --run` needs none")
    size = os.get_terminal_size()
    text = f"{size.columns} x {size.lines}, {_colours(term)}, TERM={term}"
    if size.columns < 80 or size.lines < 24:
        return Finding("terminal", "note", text, "make it at least 80 x 24")
    return Finding("terminal", "ok", text)


def _colours(term: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "16 million colours"
    return "256 colours" if "256" in term else "16 colours"
