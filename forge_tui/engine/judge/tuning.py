"""The settings of a kernel file's `[tune]` table on one call: which are tried, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import LaunchCounts, Target
from forge_tui.engine.judge.proxy import Proxy, representative
from forge_tui.engine.judge.verdict import Check, Point
from forge_tui.engine.judge.trial import Failed
from forge_tui.engine.kernelfile import KernelFile
from forge_tui.specs import Call


@dataclass(eq=False)
class Setting:
    """One tuning point on its way through the judgement."""

    values: dict[str, int]
    full: Program
    """Bound to the variant's own call: what is built, timed and shipped."""
    image: Image | None = None
    """Of `full`."""
    program: Program | None = None
    """What is run: `full`, or the plan bound to the reduced proxy."""
    built: Image | None = None
    """What `program` runs with: `image`, unless the proxy's sizes are compiled in."""
    counts: tuple[LaunchCounts, ...] = ()
    """Of the full call."""
    us: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = ""

    def build(self, target: Target) -> None:
        """Raises CandidateFault('compile'), and Failed where the compiler does not end."""
        self.image = self._built(self.full, target)

    def _built(self, program: Program, target: Target) -> Image:
        try:
            return target.build(program)
        except CandidateFault as fault:
            if fault.kind != "endless":
                raise
            settings = ", ".join(f"{name} = {value}" for name, value in self.values.items())
            sentence = f"does not build: {fault}{f' (with {settings})' if settings else ''}"
            raise Failed("no_build", sentence, Check("build", False, detail=str(fault)), fault="endless") from fault

    def reduce(self, file: KernelFile, proxy: Proxy, target: Target) -> None:
        """Bind to the proxy. Raises KernelFileError, CandidateFault, and Failed where the plan differs there."""
        if not proxy.cuts:
            self.program, self.built = self.full, self.image
            return
        self.program = file.bind(proxy.call, target.facts, self.values)
        if not representative(self.full, self.program):
            raise Failed("skipped", "its launch plan differs on the reduced proxy", Check("proxy", False))
        same = self.program.build_key() == self.full.build_key()
        self.built = self.image if same else self._built(self.program, target)

    def know(self, target: Target) -> None:
        """Registers and spills, which the PTX that the host target runs does not say."""
        resources = getattr(target, "resources", None)
        if resources is not None and self.image is not None and (infos := resources(self.full)):
            self.image = replace(self.image, kernels=infos)

    def twin(self, others: list[Setting]) -> Setting | None:
        """One of `others` with the same compiled image and the same launches: the same kernel."""
        return next((other for other in others if other.image and self.image and other.image.key == self.image.key
                     and other.full.launches == self.full.launches and other.full.workspaces == self.full.workspaces), None)

    def point(self) -> Point:
        kernels = self.image.kernels if self.image else ()
        return Point(dict(self.values), self.us, self.interval, self.reason, kernels, self.image.key if self.image else "")


def settings_of(file: KernelFile, call: Call, device: DeviceFacts, most: int,
                only: dict[str, int] | None = None) -> list[Setting]:
    """At most `most` settings that `[require]` admits, the file's first guess first; or just `only`.

    Raises KernelFileError where `only` is not legal.
    """
    points = file.points(call, device, most) if only is None else [only]
    return [Setting(values, file.bind(call, device, values)) for values in points]
