"""Which operators a run works on: patterns against the cards."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Sequence

import msgspec

from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.overlap import Inside
from forge_tui.errors import ProjectError
from forge_tui.specs import short_name

WORTH = 0.001
"""Without patterns, operators that could save less than this part of all operator time are left alone: the least that a
whole-model measurement can tell from nothing."""


def select_variants(cards: OperatorFile, patterns: Sequence[str], note: Callable[[str], None] = lambda text: None) -> list[Variant]:
    """The offered variants that a pattern names (all worth it when there is none), the most recoverable first.

    A pattern is a variant key or its beginning (4 digits at least), an operator's full name, its last part (`softmax`), or
    either with `*` and `?`. note: told of patterns that name only what no kernel may replace. Raises ProjectError for a pattern that names
    nothing, and where no pattern names anything that a kernel may replace.
    """
    chosen: dict[str, Variant] = {}
    closed: list[str] = []
    if not patterns:
        chosen = {variant.key: variant for variant in cards.variants if worth_it(cards, variant)}
    for pattern in patterns:
        matching = [variant for variant in cards.variants if matches(variant, pattern)]
        if not matching:
            raise ProjectError(f"`{pattern}` names no operator of this model", where="--ops", cure=_nearest(cards, pattern))
        offered = [variant for variant in matching if variant.offered]
        if not offered:  # those that are only left to a region are worked on when they are asked for
            offered = [msgspec.structs.replace(variant, offered=True, inside=0) for variant in matching if variant.taken_by]
        if not offered:
            closed.append(f"`{pattern}` names only operators that no kernel may replace: {matching[0].reason}")
        chosen.update((variant.key, variant) for variant in offered)
    if closed and not chosen:
        raise ProjectError("; ".join(closed), where="--ops", cure="`forge-tui show` lists those that can be")
    for text in closed:
        note(text)
    return sorted(chosen.values(), key=lambda variant: -variant.recoverable_us)


def inside_of(cards: OperatorFile, patterns: Sequence[str]) -> Callable[[Variant], list[Variant]]:
    """What to work on where no kernel of a region's wins: what is inside it and worth it. Nothing where operators are named:
    whoever names one wants that one."""
    inside = Inside(cards.variants)
    return lambda region: [] if patterns else [variant for variant in inside.of(region) if worth_it(cards, variant)]


def worth_it(cards: OperatorFile, variant: Variant) -> bool:
    """Whether a run works on it without being told to. CPU times say nothing of a GPU's: there, all that are offered."""
    if not variant.offered or cards.time_kind == "cpu":
        return variant.offered
    return variant.recoverable_us >= WORTH * cards.total_us


def matches(variant: Variant, pattern: str) -> bool:
    """Whether a pattern names this variant."""
    name = variant.operator
    if len(pattern) >= 4 and variant.key.startswith(pattern.lower()):
        return True
    return named_by(pattern, name)


def named_by(pattern: str, operator: str) -> bool:
    """Whether a pattern names an operator, by its full name or its last part; `*norm*` is RMSNorm too."""
    return any(fnmatch.fnmatchcase(text.lower(), pattern.lower()) for text in (operator, short_name(operator)))


def _nearest(cards: OperatorFile, pattern: str) -> str:
    names = sorted({short_name(variant.operator) for variant in cards.variants})
    near = difflib.get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.4)
    return f"did you mean {', '.join(f'`{name}`' for name in near or names[:8])}?"
