"""Regions and the operators inside them share their time: which of the two are offered, so that no microsecond counts twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from forge_tui.engine.cards import Variant
from forge_tui.specs import short_name


def once(variants: list[Variant], device_times: bool) -> list[Variant]:
    """Offers either a region or what is in it (operators, and regions again), whichever recovers more.

    Calls that an offered region takes are in the `inside` of what it takes them from. What is called elsewhere too keeps those
    calls. device_times: what can be recovered is the device's time, and known; without it the outermost region is offered, since one kernel moves
    less than several and is one launch.
    """
    cards = {variant.key: variant for variant in variants}
    left = Counter({variant.key: variant.calls for variant in variants})
    taken: dict[str, str] = {}
    refused = set()
    for region in sorted((item for item in variants if item.covers), key=_calls_inside, reverse=True):
        calls = left[region.key]
        if not region.offered or calls <= 0:
            continue
        if device_times and _worth(region, calls) < _worth_inside(region, calls, cards):
            refused.add(region.key)
            continue
        for key, count in region.covers.items():
            if key in cards:
                left[key] -= round(count * calls / region.calls)
                taken.setdefault(key, short_name(region.operator))
    return [_settled(item, max(0, left[item.key]), taken.get(item.key, ""), item.key in refused) for item in variants]


class Inside:
    """Gives the calls of offered regions back to what is inside them: for regions whose kernels are of no use."""

    def __init__(self, variants: Iterable[Variant]) -> None:
        """variants: as `once` left them."""
        self._cards = {variant.key: variant for variant in variants}
        self._given: set[str] = set()

    def of(self, region: Variant) -> list[Variant]:
        """What is in a region and in no smaller one of it, offered, with the region's open calls among its own; once a region."""
        if region.key in self._given:
            return []
        self._given.add(region.key)
        found = []
        for key, count in _directly(region, self._cards).items():
            card, back = self._cards[key], round(count * region.open_calls / region.calls)
            freed = msgspec.structs.replace(card, inside=max(0, card.inside - back), offered=True, reason="", taken_by="")
            if card.offered or card.taken_by:
                self._cards[key] = freed
                found.append(freed)
            elif card.covers:
                found += self.of(freed)
        return found


def _settled(variant: Variant, left: int, taken_by: str, refused: bool) -> Variant:
    if refused:
        return msgspec.structs.replace(variant, offered=False, reason="its operators recover more one by one")
    if not taken_by:
        return variant
    inside = variant.calls - left
    if left or not variant.offered:
        return msgspec.structs.replace(variant, inside=inside)
    return msgspec.structs.replace(variant, inside=inside, taken_by=taken_by, offered=False, reason=f"inside {taken_by}, which is offered whole")


def _calls_inside(region: Variant) -> float:
    """Of one of its calls: a region that holds another has more."""
    return sum(region.covers.values()) / region.calls


def _worth(variant: Variant, calls: float) -> float:
    """Microseconds that so many calls could save, if it is offered."""
    return calls * variant.saving_us if variant.offered else 0.0


def _worth_inside(region: Variant, calls: float, cards: Mapping[str, Variant]) -> float:
    """The most that the operators and regions inside so many of a region's calls could save."""
    return sum(max(_worth(cards[key], count * calls / region.calls),
                   _worth_inside(cards[key], count * calls / region.calls, cards) if cards[key].covers else 0.0)
               for key, count in _directly(region, cards).items())


def _directly(region: Variant, cards: Mapping[str, Variant]) -> dict[str, float]:
    """Calls inside a region that are not inside another one in it."""
    rest: dict[str, float] = {key: float(count) for key, count in region.covers.items() if key in cards}
    for inner in sorted((cards[key] for key in rest if cards[key].covers), key=_calls_inside, reverse=True):
        for key, count in inner.covers.items():
            if key in rest:
                rest[key] -= count * rest[inner.key] / inner.calls
    return {key: count for key, count in rest.items() if count > 1e-9}
