"""Where measurements go: one JSON file a benchmark and device, with what is needed to believe or repeat it."""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch

import forge_tui
from forge_tui.cuda.compile import compiler_facts
from forge_tui.cuda.device import DeviceFacts

FOLDER = Path(__file__).parent / "results"


def store(name: str, facts: DeviceFacts, body: dict[str, Any], folder: Path | None = None) -> Path:
    """Write `results/NAME-DEVICE.json`; returns its path. `body`: the measurements, JSON-able."""
    document = {
        "benchmark": name,
        "command": " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": {"name": facts.name, "architecture": f"sm_{facts.cc}", "sm_count": facts.sm_count,
                   "copy_bytes_per_s": facts.copy_bytes_per_s, "launch_us": facts.launch_us},
        "versions": {"forge-tui": forge_tui.__version__, "torch": torch.__version__, "cuda": torch.version.cuda,
                     "python": platform.python_version(), "nvrtc": compiler_facts().nvrtc_version},
        **body,
    }
    target = (folder or FOLDER) / f"{name}-{re.sub(r'[^a-z0-9]+', '-', facts.name.lower()).strip('-')}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    return target
