"""Operators in a row, `first+second`: which of the row's arguments are whose, and one run after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RETURNS_SUM = "returns_sum"
CONVOLUTION = "torch.nn.functional.conv"
"""What paths of convolutions begin with."""
OF_CONVOLUTION = ("weight", "bias", "stride", "padding", "dilation", "groups")
RENAMED = {"weight": "norm_weight", "bias": "norm_bias"}
"""Arguments of a norm that have another name after a convolution, which has such arguments itself."""
One = Callable[[str, Any, dict[str, Any]], Any]
"""Runs one operator: its path, its first tensor, its other arguments by name."""


def in_a_row(operator: str, arguments: Mapping[str, Any], one: One) -> Any:
    """The results of operators in a row. Raises what they raise."""
    given = dict(arguments)
    value, sum_too = given.pop("input"), given.pop(RETURNS_SUM, False)
    first, *rest = operator.split("+")
    if first == "torch.add":
        total = one(first, value, {"other": given.pop("other")})
        result = one(rest[0], total, given)
        return (total, result) if sum_too else result
    if rest == ["torch.mul"]:
        other = given.pop("other")
        return one("torch.mul", one(first, value, given), {"other": other})
    if first.startswith(CONVOLUTION):
        value = one(first, value, {name: given.pop(name) for name in OF_CONVOLUTION if name in given})
        own = {new: name for name, new in RENAMED.items()}
        first, given = rest.pop(0), {own.get(name, name): item for name, item in given.items()}
    value = one(first, value, given)
    for path in rest:
        value = one(path, value, {})
    return value
