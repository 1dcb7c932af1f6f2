"""Regions within regions and the operators inside them: every call's time is offered once, to whoever saves most with it."""

from __future__ import annotations

import pytest

from forge_tui.engine.cards import Variant
from forge_tui.engine.overlap import Inside, once
from forge_tui.specs import Call, TensorSpec

SPEC = TensorSpec("float32", (4, 8), (8, 1))


def card(key: str, calls: int, time_us: float, floor_us: float = 1.0, covers: dict[str, int] | None = None, offered: bool = True) -> Variant:
    operator = {"s": "torch.add+m.Norm", "n": "m.Norm"}.get(key, f"torch.{key}")
    return Variant(key=key, call=Call(operator, {"input": SPEC}, (SPEC,)), calls=calls, time_us=time_us, bytes_moved=0, operations=0,
                   floor_us=floor_us, statistics={}, samples=(), modules=(), covers=covers or {}, offered=offered)


def cards(sum_us: float, norm_us: float, mean_us: float = 3.0) -> list[Variant]:
    """A sum with its norm twice, the norm alone once more; in each norm two `mul` and a `mean`; one more `mul` elsewhere."""
    return [card("s", 2, sum_us, covers={"add": 2, "n": 2, "mul": 4, "mean": 2}), card("n", 3, norm_us, covers={"mul": 6, "mean": 3}),
            card("add", 2, 1.0), card("mul", 7, 1.5), card("mean", 3, mean_us)]


def offered(variants: list[Variant], device_times: bool = True) -> dict[str, int]:
    return {item.key: item.open_calls for item in once(variants, device_times) if item.offered}


def test_the_outermost_region_takes_its_calls_and_leaves_the_others() -> None:
    assert offered(cards(20.0, 6.0)) == {"s": 2, "n": 1, "mul": 1}
    assert offered(cards(2.0, 2.0), device_times=False) == {"s": 2, "n": 1, "mul": 1}
    found = {item.key: item for item in once(cards(20.0, 6.0), True)}
    assert found["mean"].taken_by and found["add"].taken_by == "add+Norm" and not found["n"].taken_by
    assert [found[key].calls for key in ("n", "mul", "mean")] == [3, 7, 3], "what the model calls does not change"


def test_a_region_inside_that_saves_more_is_offered_itself() -> None:
    assert offered(cards(5.0, 8.0)) == {"n": 3, "add": 2, "mul": 1}


def test_operators_that_save_more_one_by_one_are_offered_themselves() -> None:
    assert offered(cards(3.0, 2.0, mean_us=9.0)) == {"add": 2, "mul": 7, "mean": 3}


@pytest.mark.parametrize("sum_us", [2.0, 5.0, 6.0, 20.0])
@pytest.mark.parametrize("norm_us", [2.0, 4.0, 8.0])
def test_no_microsecond_is_counted_twice(sum_us: float, norm_us: float) -> None:
    """The offered calls of each operator, those inside offered regions included, are exactly those of the model."""
    variants = cards(sum_us, norm_us)
    left, by_key = offered(variants), {item.key: item for item in variants}
    for key in ("add", "mul", "mean"):
        inside = 0
        for region in ("s", "n"):
            inside += by_key[region].covers.get(key, 0) * left.get(region, 0) // by_key[region].calls
        assert left.get(key, 0) + inside == by_key[key].calls


def test_what_cannot_be_offered_is_worth_nothing() -> None:
    variants = [item if item.key != "s" else card("s", 2, 20.0, covers=item.covers, offered=False) for item in cards(20.0, 8.0)]
    assert offered(variants) == {"n": 3, "add": 2, "mul": 1}


def test_a_region_gives_its_calls_back_once_and_the_next_one_inside_it_can_too() -> None:
    """Calls freed of what is inside are those of the region; what is elsewhere too had and keeps its own."""
    found = {item.key: item for item in once(cards(20.0, 6.0), True)}
    inside = Inside(found.values())
    first = {item.key: item.open_calls for item in inside.of(found["s"])}
    assert first == {"n": 3, "add": 2}, "the norm inside is a region itself: what is in it waits for it"
    assert inside.of(found["s"]) == [], "once"
    norm = next(item for item in Inside(found.values()).of(found["s"]) if item.key == "n")
    after = {item.key: item for item in inside.of(norm)}
    assert {key: item.open_calls for key, item in after.items()} == {"mul": 7, "mean": 3}
    assert all(item.offered and not item.taken_by and not item.reason for item in after.values())


def test_what_cannot_be_offered_is_not_given_back() -> None:
    variants = [item if item.key != "mean" else card("mean", 3, 3.0, offered=False) for item in cards(20.0, 6.0)]
    found = {item.key: item for item in once(variants, True)}
    inside = Inside(found.values())
    norm = next(item for item in inside.of(found["s"]) if item.key == "n")
    assert [item.key for item in inside.of(norm)] == ["mul"]
