"""The journal's events: the only truth about a run. Screens, `--events`, resume and reports are readers of these.

Adding a field with a default, or an event type, keeps old journals readable; anything else raises `FORMAT`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from forge_tui.engine.judge.verdict import Verdict

FORMAT = 1


class Event(Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all events. `at`: Unix seconds."""

    at: float


class RunStarted(Event, tag="run_started"):
    """One `forge-tui --run` process begins; earlier events of the project stay valid."""

    run: str
    host: str
    pid: int
    version: str
    provider: str
    llm: str
    policy: str
    seed: int
    device: str
    target: Literal["host", "cuda"]
    iterations: int
    """Per operator."""


class Captured(Event, tag="captured"):
    """`operators.msgpack` was written."""

    variants: int
    offered: int
    forward_us: float
    captured_at: float = 0.0
    """As in the cards: tells one capture from the next."""


class Selected(Event, tag="selected"):
    """The operators this run works on are known."""

    operators: tuple[str, ...]
    """Variant keys, the most recoverable first."""


class Proposed(Event, tag="proposed"):
    """A node was chosen, a strategy given, and a provider is being asked."""

    node: str
    """`VARIANTKEY/NUMBER`, numbers from 1 in order of proposal."""
    variant: str
    parent: str | None
    """None: a child of the root (the operator itself)."""
    strategy: str
    provider: str
    model: str = ""
    origin: Literal["search", "repair", "human"] = "search"


class Replied(Event, tag="replied"):
    """The provider's answer arrived. Prompt and reply texts lie in `replies/`."""

    node: str
    kernel: str | None
    """SHA-256 (hex) of the kernel file under `kernels/`; None when there is no usable kernel in the reply."""
    idea: str = ""
    """One line."""
    prompt_file: str | None = None
    reply_file: str | None = None
    reasoning_file: str | None = None
    """What the model showed of its thinking."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    """None: unknown. 0.0: really free."""
    problem: str = ""
    """What could not be used."""
    model: str = ""
    """Who answered: a language model's name, a builtin kernel's."""
    seconds: float = 0.0


class Steered(Event, tag="steered"):
    """A person's move (`engine/steering.py`). `kernel` makes a node of its own, proposed and answered by this one event."""

    request: str
    """Each request is taken up once."""
    action: Literal["kernel", "hint", "prune", "unprune", "pin", "unpin"]
    node: str
    """`VARIANT/NUMBER`, or `VARIANT` for the operator itself. Of `kernel`: the parent."""
    text: str = ""
    """Of `hint`: the words; empty takes it back."""
    made: str = ""
    """Of `kernel`: the new node."""
    kernel: str = ""
    """Of `kernel`: SHA-256 (hex) of the kernel file."""
    idea: str = ""


class Judged(Event, tag="judged"):
    """The verdict on a node."""

    node: str
    verdict: Verdict
    value: float | None
    """log speed-up over the baseline, or over the first verified kernel where nothing is timed against eager."""
    duplicate_of: str | None = None
    """The node with the same compiled image; the verdict is that one's."""


class Confirmed(Event, tag="confirmed"):
    """An operator's best node was judged once more, in a fresh process on fresh inputs."""

    node: str
    verdict: Verdict
    value: float | None
    """As in `Judged`, from the second timing; None when it failed: the node is then no winner."""


class OperatorDone(Event, tag="operator_done"):
    """The search on one variant ended."""

    variant: str
    status: Literal["won", "no_gain", "failed", "skipped", "pending", "verified"]
    reason: str
    best: str | None
    """Node."""


class Packaged(Event, tag="packaged"):
    """A package was written."""

    path: str
    kernels: int


class KernelUse(Struct, frozen=True):
    """What became of one kernel's calls in the model."""

    variant: str
    calls: int
    """By the kernel."""
    fallbacks: dict[str, int] = {}
    """By the original operator: the guard that sent them there -> calls."""


class InModel(Event, tag="in_model"):
    """The model was run with the package's kernels and compared with eager."""

    relative_error: float
    """Largest over the model's outputs: norm of the difference over norm of eager's."""
    kernel_calls: int
    fallback_calls: int
    detail: str = ""
    kernels: tuple[KernelUse, ...] = ()
    """Of every kernel in the package; empty in journals of older versions."""


class ModelTime(Struct, frozen=True):
    """One way to run the whole model."""

    name: str
    """`eager`, `torch.compile` ..., `forged`, `forged under compile`."""
    us: float | None
    """Median device time of a forward, microseconds; None where it could not be timed."""
    speedup: float | None = None
    """Over eager."""
    speedup_interval: tuple[float, float] | None = None


class Benched(Event, tag="benched"):
    """The whole model was compared and, on a GPU, timed with its package (`forge-tui bench`). No part of a run."""

    accepted: bool
    reason: str
    device: str
    times: tuple[ModelTime, ...]
    """Eager first; empty where nothing is timed."""
    error: float
    """Norm of the difference from eager over eager's norm, the largest over held-out inputs."""
    dropped: dict[str, str] = {}
    """Variants whose kernels were taken out of the package, with the reason."""


class Note(Event, tag="note"):
    """Something a person should read: a retry, a replaced worker, a torn journal tail that was cut."""

    level: Literal["info", "warning", "error"]
    text: str


class RunEnded(Event, tag="run_ended"):
    """The process ends in order. Missing: it was killed."""

    run: str
    status: Literal["done", "limit", "waiting", "interrupted", "failed"]
    reason: str
    exit_code: int


AnyEvent = (RunStarted | Captured | Selected | Proposed | Replied | Judged | Confirmed | OperatorDone | Packaged | InModel
            | Benched | Note | RunEnded | Steered)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def encode(event: AnyEvent) -> bytes:
    return _encoder.encode(event)


def decode(data: bytes | memoryview) -> AnyEvent:
    """Raises msgspec.DecodeError on an event this version does not know."""
    return _decoder.decode(data)
