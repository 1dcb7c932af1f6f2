"""What the engine and a judging worker say to each other. Bodies of frames, in msgpack."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.verdict import Verdict


class Hello(Struct, frozen=True, tag="hello"):
    """First request: open the device, and try the judge on itself."""

    device: str
    """`auto`, `host`, `cuda`, `cuda:N`."""
    probe: bool = True
    fused: bool = True
    """False: results are compared by torch; an earlier worker was lost to the comparison kernels."""


class JudgeRequest(Struct, frozen=True, tag="judge"):
    """Judge one kernel file on one captured variant."""

    variant: str
    text: str
    filename: str
    seed: int | None
    options: JudgeOptions
    settings: dict[str, int] | None = None
    """Of `[tune]`: only these are tried; None: all that the options admit."""


Request = Hello | JudgeRequest


class Welcome(Struct, frozen=True, tag="welcome"):
    """Answer to Hello."""

    target: str
    """`host` or `cuda`."""
    facts: DeviceFacts
    torch: str
    pid: int
    sanitizer: bool = False
    """Whether NVIDIA's compute-sanitizer is there and would be of use."""
    notes: tuple[str, ...] = ()
    """What a person should know of this worker."""


class Judgement(Struct, frozen=True, tag="judgement"):
    """Answer to JudgeRequest."""

    verdict: Verdict
    last: bool = False
    """The candidate ended the worker's CUDA context: nothing can run there any more, and another worker must be
    started."""


Reply = Welcome | Judgement


class Refusal(Struct, frozen=True):
    """Why a request could not be answered."""

    kind: str
    """The class of `forge_tui.errors`, `NoMemory`, `Comparison` where our own comparison kernels ended the device's context,
    or `Internal` for a defect of ours."""
    message: str
    where: str | None = None
    cure: str | None = None


class ProgressReport(Struct, frozen=True):
    """Where a judgement is."""

    what: str
    done: int
    of: int


encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_refusal = msgspec.msgpack.Decoder(Refusal).decode
decode_progress = msgspec.msgpack.Decoder(ProgressReport).decode
