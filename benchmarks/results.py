"""Where measurements go: one JSON file a benchmark and device, with what is needed to believe or repeat it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import forge_tui
from forge_tui.cuda.device import DeviceFacts

FOLDER = Path(__file__).parent / "results"


def header(name: str) -> dict[str, Any]:
    """What every file begins with: the benchmark, the command, the date, the versions and the machine it ran on."""
    return {
        "benchmark": name,
        "command": " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"forge-tui": forge_tui.__version__, "torch": version("torch"), "python": platform.python_version()},
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
    }


def write(path: Path, document: dict[str, Any]) -> Path:
    """The document as a file that people can read in a diff; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def about(document: dict[str, Any]) -> str:
    """The command and the day, for parts of a document that were not measured together."""
    return f"{document['command']}, {document['date'][:10]}"


def device_name(facts: DeviceFacts) -> str:
    """As file names have it."""
    return re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-")


def earlier(name: str, facts: DeviceFacts) -> dict[str, Any]:
    """The document of a benchmark that is there for this device; empty where there is none."""
    path = FOLDER / f"{name}-{device_name(facts)}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def store(name: str, facts: DeviceFacts, body: dict[str, Any], folder: Path | None = None, *, part: str = "") -> Path:
    """What was measured on a GPU: `results/NAME-DEVICE.json`, or `NAME-PART-DEVICE.json`; returns its path.

    body: the measurements, JSON-able.
    """
    import torch

    from forge_tui.cuda.compile import compiler_facts

    document = header(name)
    document["versions"] |= {"cuda": torch.version.cuda, "nvrtc": compiler_facts().nvrtc_version}
    document["device"] = {"name": facts.name, "architecture": f"sm_{facts.cc}", "sm_count": facts.sm_count,
                          "copy_bytes_per_s": facts.copy_bytes_per_s, "launch_us": facts.launch_us}
    return write((folder or FOLDER) / f"{'-'.join(filter(None, (name, part, device_name(facts))))}.json", {**document, **body})
