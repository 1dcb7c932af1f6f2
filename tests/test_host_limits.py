"""Launches that would never end on the host target end there with a verdict."""

from __future__ import annotations

import pytest

from forge_tui.cuda.host.orders import REVERSE, chunk_order


@pytest.mark.parametrize("schedule", ["in step", REVERSE])
def test_a_grid_of_two_thousand_million_blocks_is_not_a_list(schedule: str) -> None:
    order = chunk_order(schedule, range(0, 2**31 - 1, 16))
    assert isinstance(order, range) and len(order) == 2**27


def test_the_random_order_has_every_chunk() -> None:
    assert sorted(chunk_order("random 3", range(0, 100, 7))) == list(range(0, 100, 7))
