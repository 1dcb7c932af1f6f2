"""Values that generated code asks for once a launch: literals, parameters, addresses of variables, special registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.translation import coordinate

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]


class Values:
    """Constants of one machine as arrays that broadcast over (threads, blocks)."""

    def __init__(self, machine: Machine, bases: dict[str, int]) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.geometry = machine.geometry
        self.bases = bases
        """Address of each buffer by name."""
        self.specials: dict[tuple[str, int], Lanes] = {}

    @staticmethod
    def scalar(value: int, size: int) -> Lanes:
        return np.array([[value]], np.uint64).astype(f"u{size}")

    @staticmethod
    def flag(value: bool) -> Lanes:
        return np.array([[value]])

    def parameter(self, name: str, offset: int, size: int) -> Lanes:
        start = next(p.offset for p in self.kernel.parameters if p.name == name) + offset
        return np.frombuffer(self.geometry.parameters[start:start + size], f"u{size}").reshape(1, 1).copy()

    def symbol(self, name: str, offset: int, size: int) -> Lanes:
        """Address of a variable in its own space; data tables and parameters have global addresses."""
        kernel = self.kernel
        if name in kernel.shared:
            return self.scalar(kernel.shared[name] + offset, size)
        if name in kernel.local:
            return self.scalar(kernel.local[name] + offset, size)
        if name in kernel.constants:
            return self.scalar(self.bases["constant data"] + kernel.constants[name] + offset, size)
        for parameter in kernel.parameters:
            if parameter.name == name:
                return self.scalar(self.bases["kernel parameters"] + parameter.offset + offset, size)
        raise KeyError(name)

    def special(self, name: str, size: int) -> Lanes:
        """A special register, shaped by what it varies over. The arrays are kept and follow the chunk."""
        key = (name, size)
        if key not in self.specials:
            self.specials[key] = self.special_value(name).astype(f"u{size}")
        return self.specials[key]

    def special_value(self, name: str) -> Lanes:
        base, _, axis_name = name.partition(".")
        axis = "xyz".find(axis_name) if axis_name else 0
        grid, block = self.geometry.grid, self.geometry.block
        thread = np.arange(self.machine.threads)[:, None]
        if base == "%tid":
            return coordinate(thread, block, axis) if block[axis] > 1 else np.zeros((1, 1), np.int64)
        cluster, columns = self.geometry.cluster, np.arange(self.machine.blocks)[None, :]
        of_block = {"%ctaid": lambda: coordinate(self.machine.block_ids[None, :], grid, axis),
                    "%cluster_ctarank": lambda: columns % self.machine.cluster_size,
                    "%cluster_ctaid": lambda: coordinate(columns % self.machine.cluster_size, cluster, axis),
                    "%clusterid": lambda: coordinate(self.machine.block_ids[None, :], grid, axis) // cluster[axis]}
        if base in of_block:
            return of_block[base]() if base != "%ctaid" or grid[axis] > 1 else np.zeros((1, 1), np.int64)
        lane = thread & 31
        per_lane = {"%laneid": lane, "%warpid": thread >> 5, "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1,
                    "%lanemask_le": (2 << lane) - 1, "%lanemask_gt": 0xFFFFFFFF & ~((2 << lane) - 1),
                    "%lanemask_ge": 0xFFFFFFFF & ~((1 << lane) - 1)}
        if base in per_lane:
            return per_lane[base]
        shared = self.kernel.static_shared + self.geometry.shared
        barrier = self.bases.get("grid barrier", 0)
        same = {"%envreg1": barrier >> 32, "%envreg2": barrier & 0xFFFFFFFF, "%ntid": block[axis],
                "%nctaid": grid[axis], "%nwarpid": -(-self.machine.threads // 32), "%smid": 0, "%nsmid": 132, "%gridid": 0,
                "%dynamic_smem_size": self.geometry.shared, "%total_smem_size": shared,
                "%cluster_nctaid": cluster[axis], "%cluster_nctarank": self.machine.cluster_size,
                "%nclusterid": grid[axis] // cluster[axis], "%is_explicit_cluster": self.machine.cluster_size > 1}
        if base not in same:
            raise CandidateFault("not_interpretable", f"not interpretable: special register {name}", kernel=self.kernel.name)
        return np.array([[same[base]]])

    def follow(self) -> None:
        """The machine went on to another chunk: block indices change in place."""
        for (name, size), array in self.specials.items():
            if name.startswith(("%ctaid", "%clusterid")):
                np.copyto(array, self.special_value(name).astype(f"u{size}"))
