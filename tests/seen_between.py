"""Functions in which something sees a name between two statements that would otherwise count as one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[Any], Any]


def refuse(value: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(f"not of {tuple(value.shape)}")


def closed_over(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    shifted_norm = lambda value: norm(value) + x  # noqa: E731
    x = x + b
    x = shifted_norm(x)
    return x


def closed_over_by_a_generator(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    waiting = (x + each for each in [b])
    next_norm = lambda value: norm(value) + next(waiting)  # noqa: E731
    x = x + b
    x = next_norm(x)
    return x


def closed_over_in_place(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    def read_act(value: Any) -> Any:
        return act(value), x

    x = 1.0
    x += b
    x = read_act(x)
    return x


def closed_over_kept(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    kept = x

    def kept_norm(value: torch.Tensor) -> torch.Tensor:
        return norm(value) + kept

    total = x + b
    kept = total
    y = kept_norm(total)
    return total, kept, y


def not_its_own(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    total = x

    def read_norm(value: torch.Tensor) -> torch.Tensor:
        return norm(value) + total

    def inner() -> None:
        nonlocal total
        total = x + b
        total = read_norm(total)

    inner()
    return total


def three_in_a_row(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    read_act = lambda value: act(value) + x  # noqa: E731
    x = x + b
    x = norm(x)
    x = read_act(x)
    return x


def caught(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    bad_norm = refuse
    try:
        x = x + b
        x = bad_norm(x)
    except RuntimeError:
        return x
    return None


def caught_at_the_end(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    bad_norm, left = refuse, []
    try:
        try:
            if b is not None:
                x = x + b
                x = bad_norm(x)
        finally:
            left.append(x)
    except RuntimeError:
        pass
    return left


def caught_in_a_handler(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    bad_norm, left = refuse, []
    with contextlib.suppress(RuntimeError):
        try:
            refuse(x)
        except RuntimeError:
            total = x + b
            y = bad_norm(total)
            return y
        finally:
            left.append(total)
    return left


def ended_by_a_context(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    bad_act = refuse
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        x = x + b
        x = bad_act(x)
    return x


def by_locals(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    total = x + b
    y = norm(total)
    return dict.fromkeys(locals(), y)


def by_a_frame(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    frame = sys._getframe()
    frame_norm = lambda value: norm(value) + frame.f_locals["x"]  # noqa: E731
    x = x + b
    x = frame_norm(x)
    return x


def one_expression(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    """Nothing is between the two: a site also where names are seen."""
    try:
        x = norm(x + b)
    except RuntimeError:
        return dict.fromkeys(locals(), b)
    return x


def inside_contexts_of_torch(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        x = x + b
        x = norm(x)
    return x


def beside_a_closure(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    """What closes over one name leaves the others as they are; a handler itself is followed by no other."""
    shift = lambda value: value + b  # noqa: E731
    try:
        refuse(x)
    except RuntimeError:
        x = x + b
        x = norm(x)
    else:
        x = act(x)
    total = shift(x) + b
    kept = total
    total = norm(total)
    return total, kept


def gone_over_at_once(norm: Call, act: Call, x: torch.Tensor, b: torch.Tensor) -> Any:
    """As models of transformers end."""
    x = x + b
    x = norm(x)
    return tuple(value for value in [x, None] if value is not None)


KINDS: dict[Callable[..., Any], set[str]] = {
    closed_over: set(), closed_over_by_a_generator: set(), closed_over_in_place: set(), closed_over_kept: set(), not_its_own: set(),
    three_in_a_row: set(), caught: set(), caught_at_the_end: set(), caught_in_a_handler: set(), ended_by_a_context: set(), by_locals: set(),
    by_a_frame: set(), one_expression: {"add_norm"}, inside_contexts_of_torch: {"add_norm"}, beside_a_closure: {"add_norm", "add_norm_sum"},
    gone_over_at_once: {"add_norm"},
}
"""Of what stays a site."""
