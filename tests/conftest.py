"""Shared test set-up: one torch thread (spinning threads on two busy cores cost a factor of 30), children, gpu marks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Children have this checkout's code, in whatever folder they start and whether or not it is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
# Under nohup and in a shell's background SIGHUP and SIGINT are ignored, and children inherit that: the commands whose
# signals are tested would never end. A handler that does nothing is not inherited, and these tests go on as before.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first; gpu tests skip with the reason where no GPU is."""
    from forge_tui.cuda.device import find_gpu

    wants_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if wants_gpu and not find_gpu():
        for item in wants_gpu:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
