"""The document of `--json` (a contract): one result of a run, the same struct for people's tables and for machines."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SCHEMA_VERSION = 1


class OperatorResult(Struct, frozen=True):
    """One variant. Times in microseconds of one call."""

    operator: str
    variant: str
    calls: int
    share: float
    baseline_us: float | None
    baseline: Literal["eager", "compile"] | None
    floor_us: float
    best_us: float | None
    speedup: float | None
    interval: tuple[float, float] | None
    status: Literal["won", "no_gain", "failed", "skipped", "pending", "verified"]
    reason: str
    tried: int
    verified: int
    best_kernel: str | None
    """SHA-256 (hex): `kernels/<hash>.cu`."""


class Document(Struct, frozen=True):
    """What `--json` prints."""

    schema_version: int
    status: Literal["done", "limit", "waiting", "interrupted", "failed"]
    project: str
    device: str
    time_kind: Literal["device", "modelled"]
    elapsed_s: float
    cost_usd: float | None
    tokens: int
    package: str | None
    error: str | None
    operators: tuple[OperatorResult, ...]
