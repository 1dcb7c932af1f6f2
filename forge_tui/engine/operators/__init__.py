"""Operators: canonical names, binding, descriptions, references, formulas and independent dimensions.

`canonical` and `bind` say what a call is; `describe` records it; `materialize` and `Operator.call` run it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forge_tui.engine.operators.binding import BindError, bind, parameters, positional_names, writes_input
from forge_tui.engine.operators.fitness import unfit
from forge_tui.engine.operators.formulas import bytes_moved, operations
from forge_tui.engine.operators.independence import IndependentDim, independent_dims
from forge_tui.engine.operators.names import canonical, function_path, is_attribute
from forge_tui.engine.operators.regions import is_region, region_arguments, region_function, region_name
from forge_tui.engine.operators.values import (
    describe, flatten_outputs, is_plain, materialize, named_tensors, tensor_spec, to_value,
)
from forge_tui.engine.package.runtime.callees import USER_FILE
from forge_tui.errors import ProjectError

__all__ = ["BindError", "IndependentDim", "Operator", "bind", "bytes_moved", "canonical", "describe", "flatten_outputs",
           "function_path", "independent_dims", "is_attribute", "is_plain", "is_region", "lookup", "materialize", "named_tensors",
           "operations", "parameters", "region_arguments", "region_name", "tensor_spec", "to_value", "unfit", "writes_input"]


@dataclass(frozen=True)
class Operator:
    """A torch operator under its canonical name."""

    name: str
    function: Callable[..., Any]

    def call(self, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Run it out of place on bound arguments (as `bind` and `materialize` give them); results flattened.

        Whatever torch raises for these arguments passes through.
        """
        positional, keywords = self.split(arguments)
        return flatten_outputs(self.function(*positional, **keywords))

    def split(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Bound arguments as `function` takes them: positional ones, keywords."""
        positional: list[Any] = []
        keywords = dict(arguments)
        for name, variadic in positional_names(self.name, arguments):
            value = keywords.pop(name)
            positional.extend(value if variadic else [value])
        return positional, keywords


def lookup(name: str) -> Operator:
    """The operator of a canonical name, or of a region. Raises ProjectError where this torch, or this environment, has none."""
    # A user's own file may be another one of the same name by now.
    return _find(name) if USER_FILE in name else _lookup(name)


@functools.cache
def _lookup(name: str) -> Operator:
    return _find(name)


def _find(name: str) -> Operator:
    if is_region(name):
        function = region_function(name)
        if function is None:
            raise ProjectError(f"the model's own code has no {name!r} here", where=name,
                               cure="install what it comes from, or capture again with what is installed")
        return Operator(name, function)
    target: Any = torch
    for part in name.split(".")[1:]:
        target = getattr(target, part, None)
    if not callable(target):
        raise ProjectError(f"torch {torch.__version__} has no operator {name!r}", where=name,
                           cure="use a canonical name such as torch.nn.functional.softmax or torch.add")
    return Operator(name, target)
