"""Rewritten functions do what was written, also for whoever sees a name between two statements."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from seen_between import KINDS
from torch.nn import functional as F

from forge_tui.engine.package.runtime.parts import WRITTEN
from forge_tui.engine.package.runtime.sites import helper_name, rewritten


def norm(value: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(value, (8,))


@pytest.mark.parametrize("function", KINDS, ids=lambda function: function.__name__)
def test_nobody_sees_two_statements_as_one(function: Callable[..., Any]) -> None:
    found = rewritten(function.__code__)
    assert (set(found[1]) if found else set()) == KINDS[function]
    code = found[0] if found else function.__code__
    space = function.__globals__ | {helper_name(kind): written for kind, written in WRITTEN.items()}
    x, b = (torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    results = [run(norm, F.silu, x.clone(), b.clone()) for run in (function, types.FunctionType(code, space))]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_what_is_held_for_a_moment_is_let_go() -> None:
    """The result of a norm would else live until its function returns."""
    def kept(x: torch.Tensor, b: torch.Tensor) -> Any:
        total = x + b
        y = norm(total)
        return (yield total), y

    found = rewritten(kept.__code__)
    assert found is not None and found[1] == {"add_norm_sum"}
    space = kept.__globals__ | {helper_name(kind): written for kind, written in WRITTEN.items()}
    running = types.FunctionType(found[0], space)(torch.ones(4, 8), torch.ones(4, 8))
    next(running)
    assert sorted(running.gi_frame.f_locals) == ["b", "total", "x", "y"]
