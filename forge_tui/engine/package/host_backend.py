"""Runs a package's kernels where there is no GPU: through the host target, on CPU tensors. For proofs, not for speed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Image, Program
from forge_tui.engine.package.runtime import Entry, PackageError


class HostBackend:
    """A `runtime.Backend` over the PTX of a package."""

    device_type = "cpu"

    def __init__(self) -> None:
        self._target = HostTarget()

    def prepare(self, entry: Entry, device: torch.device) -> Callable[[dict[str, torch.Tensor | None]], None]:
        name = next((key for key in entry.images if key.startswith("ptx_")), None)
        if name is None:
            raise PackageError("the package holds no PTX for the host target")
        source = (entry.package / "kernels" / f"{entry.kernel}.cu").read_text()
        program = msgspec.convert({**entry.program, "source": source}, Program)
        image = Image("ptx", f"sm_{name[4:]}", entry.image(name), entry.images[name])

        def run(tensors: dict[str, torch.Tensor | None]) -> None:
            try:
                self._target.run(program, image, {key: value for key, value in tensors.items() if value is not None})
            except CandidateFault as fault:
                raise RuntimeError(f"{entry.operator} {entry.variant} on the host target: {fault}") from fault

        return run
