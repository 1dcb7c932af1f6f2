"""The judging worker on a host target that, like a GPU's context, answers nothing any more after an access out of bounds."""

from __future__ import annotations

from pathlib import Path

import forge_tui.cuda.target
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.worker import serve
from forge_tui.engine.judge.server import Server


class LosingTarget(HostTarget):
    """`lost` as on the CUDA target; torch's calls after it fail there, here `run` does."""

    def run(self, *arguments, **keywords):
        if self.lost is not None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        try:
            return super().run(*arguments, **keywords)
        except CandidateFault as fault:
            if fault.kind == "out_of_bounds":
                self.lost = fault
            raise


if __name__ == "__main__":
    import sys

    forge_tui.cuda.target.open_target = lambda name, images: LosingTarget()
    serve(Server(Path(sys.argv[1])).handle)
