"""The judging worker with a launch that hangs, as an endless kernel's does on a device, or with a target that corrupts results.

`python hanging_server.py hang|corrupt|later ... PROJECT`; `later`: every process but the first of a project corrupts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import forge_tui.cuda.target
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.worker import serve
from forge_tui.engine.judge.server import Server


class HangingTarget(HostTarget):
    """Stops the whole process where the kernel would not end: nothing in it can answer any more."""

    def run(self, program, *arguments, **keywords):
        if "while (*flag" in program.source:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().run(program, *arguments, **keywords)


class CorruptTarget(HostTarget):
    """Spoils what in-place kernels of the exams leave; the judge's own probe has none."""

    def run(self, program, image, tensors, *arguments, **keywords):
        report = super().run(program, image, tensors, *arguments, **keywords)
        for source in program.aliases.values():
            tensors[source].view(-1)[0] += 1
        return report


def later() -> HostTarget:
    mark = Path(sys.argv[-1]) / "was-here"
    first = not mark.exists()
    mark.touch()
    return HostTarget() if first else CorruptTarget()


if __name__ == "__main__":
    kind = {"hang": HangingTarget, "corrupt": CorruptTarget, "later": later}[sys.argv[1]]
    forge_tui.cuda.target.open_target = lambda name, images: kind()
    serve(Server(Path(sys.argv[-1])).handle)
