"""Module classes as operators: the forward of a module that is exactly a captured one runs as one kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .entry import Backend, Entry
from .router import Router

ANYTHING = {"type": "anything"}
_MISSING = object()


class Region:
    """All captured calls of one module class. A call's values are forward's tensor, the module's state, and the module."""

    def __init__(self, path: str, entry: Entry, backend: Backend) -> None:
        self.path = path
        self.names = [name for name in entry.arguments if name != "input"]
        """Parameters, buffers and attributes, in the order of the captured values."""
        self._known = frozenset(self.names)
        self.router = Router(path, self.alone, backend)

    def add(self, entry: Entry, form: dict[str, Any]) -> None:
        if [name for name in entry.arguments if name != "input"] == self.names:
            self.router.add(entry, {**form, "positional": [*form["positional"], ANYTHING]})

    def alone(self, *values: Any) -> Any:
        """The class's forward without a module: on an object of the class that holds these values."""
        module_name, _, name = self.path.rpartition(".")
        kind = getattr(sys.modules[module_name], name)
        module = kind.__new__(kind)
        torch.nn.Module.__init__(module)
        module.training = False
        module.__dict__.update(zip(self.names, values[1:], strict=False))
        return kind.forward(module, values[0])

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` of the class, except for the calls that a kernel takes."""
        names, known, tracing = self.names, self._known, torch.compiler.is_dynamo_compiling
        route = self.router.standing_in(forward, lambda *values: forward(values[-1], values[0]))

        def routed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) != 1 or module.training:
                return forward(module, *args, **kwargs)
            if tracing():
                return route(args[0], *[getattr(module, name, _MISSING) for name in names], module)
            state = module.__dict__
            parameters, buffers = state["_parameters"], state["_buffers"]
            if not (parameters.keys() <= known and buffers.keys() <= known):
                return forward(module, *args)
            values = [args[0]]
            for name in names:
                value = parameters.get(name, _MISSING)
                if value is _MISSING:
                    value = state.get(name, _MISSING)
                values.append(buffers.get(name, _MISSING) if value is _MISSING else value)
            return route(*values, module)

        return routed
