"""Images of a package for architectures that this machine may not have: by nvcc in bulk where it is, else by NVRTC."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, structs

from forge_tui.cuda.bulk import bulk_build, find_nvcc
from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Image, Program
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.winner import Winner
from forge_tui.errors import KernelFileError, MissingEnvironment, ProjectError
from forge_tui.store.paths import ProjectPaths


class Further(Struct, frozen=True):
    """What was built beyond the judged device's own architecture."""

    images: dict[str, list[Image]] = {}
    """By the program's build key."""
    notes: tuple[str, ...] = ()
    """What could not be, and why."""


def bound(text: str, winner: Winner, facts: DeviceFacts) -> Program:
    """A winner's kernel file with the settings it won with. Raises KernelFileError."""
    return parse(text, f"{winner.kernel[:12]}.cu").bind(winner.variant.call, facts, winner.verdict.settings)


def further_images(paths: ProjectPaths, winners: Sequence[Winner], facts: DeviceFacts, archs: Sequence[str]) -> Further:
    """Every winner for every architecture that its file does not refuse; the device's own is left out. Raises
    ProjectError."""
    wanted = [arch for arch in dict.fromkeys(archs) if arch != f"sm_{facts.cc}"]
    for arch in wanted:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
            raise ProjectError("no such architecture", where=arch, cure="write sm_80, sm_90, sm_100 ...")
    notes: list[str] = []
    jobs: list[tuple[str, Program]] = []
    for winner in winners:
        try:
            text = paths.kernel(winner.kernel).read_text()
            program = bound(text, winner, facts)
        except (OSError, KernelFileError):
            continue  # the export itself says what is wrong with it
        for arch in wanted:
            device = structs.replace(facts, cc=int(re.sub(r"\D", "", arch)))
            reason = parse(text, program.filename).refusal(winner.variant.call, device)
            if reason:
                notes.append(f"{winner.variant.key} is not built for {arch}: {reason}")
            else:
                jobs.append((arch, program))
    images: dict[str, list[Image]] = {}
    built = _by_nvcc(paths, jobs)
    for arch, program in jobs:
        key = program.build_key()
        try:
            image = built.get((key, arch)) or compile_program(program, kind="cubin", arch=arch)
            if all(other.arch != arch for other in images.get(key, [])):
                images.setdefault(key, []).append(image)
        except (CandidateFault, MissingEnvironment) as problem:
            notes.append(f"{program.filename} is not built for {arch}: {problem}")
    return Further(images, tuple(notes))


def _by_nvcc(paths: ProjectPaths, jobs: Sequence[tuple[str, Program]]) -> dict[tuple[str, str], Image]:
    """Nothing where nvcc is not: NVRTC builds what is missing here."""
    if not jobs or find_nvcc() is None:
        return {}
    archs: dict[str, tuple[str, ...]] = {}
    programs = {program.build_key(): program for _, program in jobs}
    for arch, program in jobs:
        archs[program.build_key()] = (*archs.get(program.build_key(), ()), arch)
    images: dict[tuple[str, str], Image] = {}
    for group in dict.fromkeys(archs.values()):  # nearly always one: a file rarely refuses an architecture
        try:
            images |= bulk_build(
                [programs[key] for key in archs if archs[key] == group], group, paths.build / "bulk"
            ).images
        except MissingEnvironment:
            continue
    return images
