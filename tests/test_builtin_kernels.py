"""Every builtin kernel against torch, in every float type and on every awkward layout, on the host target."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.builtin.catalog import kernels_for
from tests.builtin_cases import FAMILIES
from tests.kernels import FLOATS, check

pytest.importorskip("forge_tui.cuda.host.target")

ALL = [(family, name) for family, cases in FAMILIES.items() for name in cases]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(("family", "name"), ALL, ids=lambda text: text.replace(" ", "-"))
def test_every_kernel_is_right_at_its_first_guess(family: str, name: str, dtype: torch.dtype) -> None:
    item = FAMILIES[family][name](dtype)
    kernels = kernels_for(item.call)
    assert kernels, f"no builtin kernel takes {item.call}"
    assert check(kernels, item) == len(kernels)
