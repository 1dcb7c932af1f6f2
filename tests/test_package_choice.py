"""Which kernels `export --select` takes."""

from __future__ import annotations

import msgspec
import pytest
from scripted import NORM, SOFTMAX

from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.package.selection import select
from forge_tui.engine.package.winner import Winner
from forge_tui.errors import ProjectError


def winner(low: float | None, over_eager: float | None = None) -> Winner:
    """low, over_eager: where the intervals over the better baseline and over eager begin."""
    timing = Timing("device", 5.0, baseline_us=5.0, baseline="compile", speedup=low and low + 0.1,
                    speedup_interval=None if low is None else (low, low + 0.2),
                    over_eager=None if over_eager is None else (over_eager, over_eager + 0.2))
    return Winner(SOFTMAX, "0" * 64, Verdict("verified", "right", timing=timing))


SURE, ALIKE, SLOW, MODELLED = winner(1.3, 2.0), winner(0.97, 1.6), winner(0.8, 0.9), Winner(
    NORM, "1" * 64, Verdict("verified", "right", timing=Timing("modelled", 5.0)))


@pytest.mark.parametrize(("choice", "taken"), [("safe", [SURE, MODELLED]), ("eager", [SURE, ALIKE, MODELLED]),
                                               ("all", [SURE, ALIKE, SLOW, MODELLED]), ("layer_norm", [MODELLED])])
def test_what_is_taken(choice: str, taken: list[Winner]) -> None:
    every = [SURE, ALIKE, SLOW, MODELLED]
    found, left = select(every, choice)
    assert found == taken and [item for item, reason in left if reason] == [item for item in every if item not in taken]


def test_a_verdict_from_before_over_eager_was_recorded_is_not_taken_for_faster() -> None:
    assert select([winner(1.3)], "eager") == ([], [(winner(1.3), "not timed against eager")])


@pytest.mark.parametrize("choice", ["gelu", "", " , ", "safe,softmax"])
def test_a_name_that_fits_nothing(choice: str) -> None:
    with pytest.raises(ProjectError, match="safe, eager or all"):
        try:
            select([SURE], choice)
        except ProjectError as error:
            raise ProjectError(f"{error} {error.cure}") from error


def test_patterns_know_no_case() -> None:
    variant = msgspec.structs.replace(NORM, call=msgspec.structs.replace(NORM.call, operator="models.llama.LlamaRMSNorm"))
    chosen = Winner(variant, "2" * 64, SURE.verdict)
    assert select([SURE, chosen], "*norm*")[0] == [chosen] == select([SURE, chosen], "LLAMArmsnorm")[0]
