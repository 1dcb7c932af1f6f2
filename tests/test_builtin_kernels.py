"""Every builtin kernel against torch, in every float type and on every awkward layout, on the host target."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.builtin.catalog import kernels_for
from tests.builtin_cases import FAMILIES
from tests.kernels import FLOATS, check



def _cases() -> list[object]:
    """Functions in all three types; layouts in float32 and, by turns, one of the half types."""
    cases = [(family, name, dtype) for family, names in FAMILIES.items() for position, name in enumerate(names)
             for dtype in (FLOATS if family == "function" else (torch.float32, FLOATS[1 + position % 2]))]
    return [pytest.param(*case, id=f"{case[0]} {case[1]} {case[2]}".replace("torch.", "").replace(" ", "-")) for case in cases]


@pytest.mark.parametrize(("family", "name", "dtype"), _cases())
def test_every_kernel_is_right_at_its_first_guess(family: str, name: str, dtype: torch.dtype) -> None:
    item = FAMILIES[family][name](dtype)
    kernels = kernels_for(item.call)
    assert kernels, f"no builtin kernel takes {item.call}"
    assert check(kernels, item) == len(kernels)
