"""A few settings that stand for many: every value early, evenly, and far from what was taken already."""

from __future__ import annotations

from collections import Counter


def spread(settings: list[dict[str, int]], limit: int) -> list[dict[str, int]]:
    """At most `limit` of `settings`, the first one first; deterministic.

    Greedy: most values not yet taken, then values taken least, then the largest distance (in steps of each list) to what
    was taken. So once `limit` reaches the number of distinct values, each occurs.
    """
    if len(settings) <= limit or limit <= 0:
        return settings[:max(limit, 0)]
    scales = {name: _scale([setting[name] for setting in settings]) for name in settings[0]}
    left = dict(enumerate(settings))
    distance = {index: float("inf") for index in left}
    used: Counter[tuple[str, int]] = Counter()
    taken: list[dict[str, int]] = []
    pick = 0
    while True:
        chosen = left.pop(pick)
        taken.append(chosen)
        used.update(chosen.items())
        if len(taken) == limit:
            return taken
        for index, setting in left.items():
            step = sum(abs(scales[name][setting[name]] - scales[name][chosen[name]]) for name in setting)
            distance[index] = min(distance[index], step)
        pick = max(left, key=lambda index: (*_novelty(left[index], used), distance[index], -index))


def _novelty(setting: dict[str, int], used: Counter[tuple[str, int]]) -> tuple[int, int]:
    counts = [used[item] for item in setting.items()]
    return counts.count(0), -sum(counts)


def _scale(values: list[int]) -> dict[int, float]:
    """0 to 1 by rank among the values that occur."""
    ranked = sorted(set(values))
    return {value: rank / max(1, len(ranked) - 1) for rank, value in enumerate(ranked)}
