"""The judging worker with comparison kernels that count wrong, or that end the context of its device.

`python fused_server.py wrong|fatal PROJECT`
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from msgspec.structs import replace

import forge_tui.cuda.target
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.worker import serve
from forge_tui.engine.judge import fused, fusedcheck
from forge_tui.engine.judge.messages import Hello, Welcome
from forge_tui.engine.judge.server import Server


class DeviceLike(HostTarget):
    """An interpreter that passes for a CUDA target to whoever compares: `prepare`, `enqueue`."""

    kind = "cuda"  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.launched = 0

    def prepare(self, program, image, tensors):
        return program, image, tensors

    def enqueue(self, prepared) -> None:
        self.launched += 1
        self.run(*prepared)


class FatalTarget(HostTarget):
    """Its context ends with the first comparison by kernels."""

    def warm(self) -> None:
        """Nothing builds beside it."""

    def run(self, program, *arguments, **keywords):
        if program.filename == "fused.cu" and "fatal" in sys.argv:
            self.lost = CandidateFault("out_of_bounds", "an access to an address that is not the kernel's")
            raise self.lost
        return super().run(program, *arguments, **keywords)


class CheckingServer(Server):
    """Checks as where the device is a GPU."""

    def _hello(self, request: Hello) -> Welcome:
        welcome = super()._hello(request)
        return replace(welcome, notes=self._comparison(request.fused))


if __name__ == "__main__":
    source = fused._source()
    fused._source = lambda: source.replace("- 1022", "- 1023")
    fusedcheck.SHAPES, fusedcheck.DTYPES = ((3, 40),), (torch.bfloat16,)
    forge_tui.cuda.target.open_target = lambda name, images: FatalTarget()
    serve(CheckingServer(Path(sys.argv[-1])).handle)
