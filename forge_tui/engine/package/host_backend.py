"""Runs a package's kernels where there is no GPU: through the host target, on CPU tensors. For proofs, not for speed."""

from __future__ import annotations

import msgspec
import torch

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Image, Program
from forge_tui.engine.package.runtime.entry import Entry, Launcher, PackageError, Tensors


class HostBackend:
    """A `runtime.Backend` over the PTX of a package."""

    device_type = "cpu"

    def __init__(self) -> None:
        self._target = HostTarget()

    def prepare(self, entry: Entry, device: torch.device) -> Launcher:
        name = next((key for key in entry.images if key.startswith("ptx_")), None)
        if name is None:
            raise PackageError("the package holds no PTX for the host target")
        program = msgspec.convert({**entry.program, "source": entry.text()}, Program)
        image = Image("ptx", f"sm_{name[4:]}", entry.image(name), entry.images[name])
        names = [*entry.input_names, *entry.output_names]

        def run(tensors: Tensors) -> None:
            try:
                self._target.run(program, image, dict(zip(names, tensors, strict=True)))
            except CandidateFault as fault:
                raise RuntimeError(f"{entry.operator} {entry.variant} on the host target: {fault}") from fault

        return run
