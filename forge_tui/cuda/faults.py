"""What can go wrong between source and result: the candidate's faults, as exceptions with a closed set of kinds."""

from __future__ import annotations

from typing import Literal

FaultKind = Literal[
    "compile",           # the compiler refused it
    "out_of_bounds",     # global, shared or local access outside its buffer
    "misaligned",
    "uninitialized",     # read of shared, local or workspace memory that nothing wrote
    "race",
    "divergent_barrier",  # barrier or warp collective with lanes missing
    "read_only",         # a store to an input
    "endless",           # instruction budget or deadline used up
    "illegal_instruction",
    "launch",            # the driver or the plan refused the launch
    "out_of_memory",
    "crashed",           # the worker died
    "not_interpretable",  # the host target cannot run this instruction: neither a pass nor a failure
]


class CandidateFault(Exception):
    """The candidate is at fault (or cannot be interpreted): becomes a verdict, never an exit code.

    `line` is in the kernel file; block and thread are linear indices. All None where the target cannot tell.
    """

    def __init__(self, kind: FaultKind, message: str, *, kernel: str | None = None, line: int | None = None,
                 block: int | None = None, thread: int | None = None) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.message = message
        self.kernel = kernel
        self.line = line
        self.block = block
        self.thread = thread

    def __str__(self) -> str:
        place = []
        if self.kernel:
            place.append(self.kernel)
        if self.line is not None:
            place.append(f"line {self.line}")
        if self.block is not None:
            place.append(f"block {self.block}")
        if self.thread is not None:
            place.append(f"thread {self.thread}")
        return f"{self.message} ({', '.join(place)})" if place else self.message
