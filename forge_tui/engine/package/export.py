"""`forge-tui export`: the winners as a folder that needs torch but not Forge, and as an installable wheel."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

import forge_tui
from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import Image, Program
from forge_tui.engine.cards import OperatorFile
from forge_tui.engine.package.architectures import Further, bound, further_images
from forge_tui.engine.package.runtime import MANIFEST_FORMAT
from forge_tui.engine.package.winner import Winner
from forge_tui.errors import ProjectError
from forge_tui.store.atomic import make_folder, write_atomic, writing
from forge_tui.store.paths import ProjectPaths

__all__ = ["Exported", "Winner", "export_package"]

RUNTIME = Path(__file__).with_name("runtime")

INIT = '''"""Kernels forged for {model}. `apply(model)` uses them, `remove(model)` stops, `report()` says what ran."""

from pathlib import Path

from ._runtime import Package, PackageError

package = Package(Path(__file__).parent)
apply = package.apply
remove = package.remove
optimized = package.optimized
report = package.report

__all__ = ["PackageError", "apply", "optimized", "package", "remove", "report"]
'''


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    folder: Path
    module: str
    """Import name of the package."""
    kernels: int
    wheel: Path | None
    left_out: tuple[tuple[str, str], ...]
    """Variant keys of winners that could not be packed, with the reason."""
    notes: tuple[str, ...] = ()
    """Images for further architectures that could not be built, with the reason."""


def export_package(paths: ProjectPaths, cards: OperatorFile, winners: list[Winner], facts: DeviceFacts,
                   out: Path | None = None, *, wheel: bool = False, archs: Sequence[str] = ()) -> Exported:
    """Write the package into `out` (default: its own folder in `packages/` of the project), replacing what an earlier export of the project
    wrote there, and nothing else.

    archs: further architectures (`sm_80`) to build for, with nvcc where it is, else with NVRTC. Kernels were judged on this
    device only. The package is built beside its place and moved there whole, so a failed export leaves the old one. Raises ProjectError
    when `out` holds other things and no package, MissingEnvironment when there is no compiler or no place to write.
    """
    module = "forged_" + (re.sub(r"\W+", "_", paths.root.name).strip("_").lower() or "model")
    folder = (out or paths.packages / module).absolute()
    _refuse_foreign(folder, module)
    make_folder(folder.parent)
    with writing(folder.parent):
        scratch_folder = tempfile.TemporaryDirectory(prefix=f".{module}.", dir=folder if folder.exists() else folder.parent)
    with scratch_folder as scratch:
        fresh = Path(scratch) / "fresh"
        further = further_images(paths, winners, facts, archs)
        left_out = _write_module(fresh / module, paths, cards, winners, facts, further)
        if len(left_out) == len(winners) and winners:
            raise ProjectError(f"none of the {len(winners)} kernels can be packed: {left_out[0][1]}", where=str(folder),
                               cure="run the search again: `forge-tui --run " + str(paths.root) + "`")
        write_atomic(fresh / "README.md", _readme(module, cards))
        wheel_path = _write_wheel(fresh, module) if wheel else None
        make_folder(folder)
        with writing(folder):
            notes = _move_in(fresh, folder, module, Path(scratch) / "previous")
    return Exported(folder, module, len(winners) - len(left_out), folder / wheel_path.name if wheel_path else None,
                    tuple(left_out), (*further.notes, *notes))


def _move_in(fresh: Path, folder: Path, module: str, previous: Path) -> list[str]:
    """Put what was built into its place, one by one: whatever else is there is somebody else's. What should be known of that."""
    if (folder / module).exists():
        shutil.move(folder / module, previous)
    shutil.move(fresh / module, folder / module)
    readme = folder / "README.md"
    if not readme.exists() or readme.read_text(errors="replace").startswith("# forged_"):
        shutil.move(fresh / readme.name, readme)
    for wheel in fresh.glob("*.whl"):
        shutil.move(wheel, folder / wheel.name)
        return []
    return [f"{item.name} there is of an earlier export: --wheel writes it anew" for item in folder.glob(f"{module}-*.whl")]


def _refuse_foreign(folder: Path, module: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise ProjectError("there is a file of that name", where=str(folder), cure="name a folder with -o")
    taken = (folder / module).exists() and not (folder / module / "manifest.toml").exists()
    if taken or (folder.exists() and any(folder.iterdir()) and not any(folder.glob("forged_*/manifest.toml"))):
        raise ProjectError("the folder holds something that is not a Forge package", where=str(folder),
                           cure=f"name a new folder with -o, e.g. -o {folder / (module + '_package' if taken else module)}")


def _write_module(module: Path, paths: ProjectPaths, cards: OperatorFile, winners: list[Winner],
                  facts: DeviceFacts, further: Further) -> list[tuple[str, str]]:
    """The importable package itself; returns what had to be left out."""
    files: dict[str, bytes] = {}
    entries: list[str] = []
    left_out: list[tuple[str, str]] = []
    for winner in winners:
        reason = _add_entry(files, paths, winner, facts, further)
        if reason:
            left_out.append((winner.variant.key, reason))
        else:
            entries.append(winner.variant.key)
    for name, data in files.items():
        write_atomic(module / name, data)
    for source in sorted(RUNTIME.glob("*.py")):
        write_atomic(module / "_runtime" / source.name, source.read_bytes())
    write_atomic(module / "__init__.py", INIT.format(model=cards.model.replace('"', "'").replace("\\", "/")))
    write_atomic(module / "manifest.toml", _manifest(cards, winners, entries, facts, files))
    return left_out


def _add_entry(files: dict[str, bytes], paths: ProjectPaths, winner: Winner, facts: DeviceFacts, further: Further) -> str:
    """Add one winner's files; returns why it cannot be packed, or an empty string."""
    variant = winner.variant
    if not variant.forms:
        return "the capture does not say how the model spells this call; capture again"
    try:
        text = paths.kernel(winner.kernel).read_text()
    except OSError as error:
        return f"kernels/{winner.kernel}.cu cannot be read: {error.strerror}"
    program = bound(text, winner, facts)
    images: dict[str, str] = {}
    for image in [*_build(program, facts), *further.images.get(program.build_key(), ())]:
        name = f"{image.key[:32]}.{image.kind}"
        label = image.arch if image.kind == "cubin" else f"ptx_{facts.cc}"
        images[label] = name
        files[f"images/{name}"] = image.code
    files[f"kernels/{winner.kernel}.cu"] = text.encode()
    files[f"entries/{variant.key}.json"] = _entry(winner, program, images)
    return ""


def _build(program: Program, facts: DeviceFacts) -> list[Image]:
    """Machine code for the device's own architecture, and PTX for the driver of a newer one."""
    from forge_tui.cuda.compile import compile_program

    return [compile_program(program, kind="cubin", arch=f"sm_{facts.cc}"),
            compile_program(program, kind="ptx", arch=f"sm_{facts.cc}")]


def _entry(winner: Winner, program: Program, images: dict[str, str]) -> bytes:
    plan = msgspec.to_builtins(program)
    del plan["source"]  # it lies in kernels/
    record: dict[str, Any] = {
        "variant": winner.variant.key,
        "kernel": winner.kernel,
        "call": winner.variant.call,
        "forms": winner.variant.forms,
        "program": plan,
        "images": images,
        "evidence": winner.verdict,
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def _manifest(cards: OperatorFile, winners: list[Winner], entries: list[str], facts: DeviceFacts,
              files: dict[str, bytes]) -> str:
    kernels = []
    for winner in winners:
        if winner.variant.key in entries:
            timing = winner.verdict.timing
            kernels.append({
                "operator": winner.variant.operator, "variant": winner.variant.key, "kernel": winner.kernel,
                "outcome": winner.verdict.outcome, "seed": winner.verdict.seed, "settings": winner.verdict.settings,
                **({"us": timing.us, "time_kind": timing.kind} if timing else {}),
                **({"speedup": timing.speedup} if timing and timing.speedup is not None else {}),
            })
    document = {
        "format": MANIFEST_FORMAT,
        "forge": forge_tui.__version__,
        "torch": cards.torch,
        "model": cards.model,
        "device": {"name": facts.name, "architecture": f"sm_{facts.cc}"},
        "entries": entries,
        "kernels": kernels,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    return ("# What this package holds and the SHA-256 of every file that is loaded. Written by forge-tui export.\n"
            + tomli_w.dumps(document))


def _readme(module: str, cards: OperatorFile) -> str:
    return f"""# {module}

CUDA kernels for {cards.model}, forged by forge-tui {forge_tui.__version__}. Needs torch and an NVIDIA driver, not Forge.

```python
import {module}

{module}.apply(model)       # the model's captured calls now use the kernels; everything else is the original
print({module}.report())    # how often each kernel ran, and why the original ran where it did
{module}.remove(model)
```

A call uses a kernel only when dtype, shape, strides, alignment, arguments and device are exactly what was captured, no
gradient is wanted and no autocast or functorch transform is active; inside torch.compile it becomes the package's own operator of
`torch.library`. `{module}/manifest.toml` lists the kernels and the
hashes; `{module}/entries/` holds the evidence of each.
"""


def _write_wheel(fresh: Path, module: str) -> Path:
    from forge_tui.engine.package.wheel import write_wheel

    return write_wheel(fresh / module, fresh, version=forge_tui.__version__)
