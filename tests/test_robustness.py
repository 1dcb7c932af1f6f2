"""One run in which workers are killed, hang, fault and starve: every other verdict is right."""

from __future__ import annotations

from benchmarks.robustness import DISTURBANCES, run
from hostkit import needs_nvrtc


@needs_nvrtc
def test_every_other_verdict_is_right() -> None:
    found = run("host", len(DISTURBANCES))
    for name, count in found["counts"].items():
        assert count.right == count.tried == (len(DISTURBANCES) if name == "honest" else 1), (name, count.surprises)
    assert found["workers"] == 2, "only the killed one is replaced: the interpreter survives the rest"
